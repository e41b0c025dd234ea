//! Repositories that change, files that were pulled by their own names, disks without room, and hubs that ask to wait.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::super::super::disk::{Disk, Space};
use super::*;

/// Names and contents of files.
type Files = Vec<(String, Vec<u8>)>;
/// The responses of a hub to requests of a file.
type Serve = Box<dyn Fn(&Request) -> Response + Send>;

/// A hub with the repository o/n, whose GGUF files have these names and contents.
struct Repo {
    server: Server,
    files: Arc<Mutex<Files>>,
}

impl Repo {
    fn start(files: &[(&str, &[u8])]) -> Self {
        let own = Arc::new(Mutex::new(Vec::new()));
        let served = Arc::clone(&own);
        let server = Server::start(move |request| {
            let files: Vec<(String, Vec<u8>)> = served.lock().unwrap().clone();
            if request.path.starts_with("/api/models") {
                let hashes: Vec<_> = files.iter().map(|(_, bytes)| sha256(bytes)).collect();
                let listed = files.iter().zip(&hashes);
                let listed =
                    listed.map(|((name, bytes), hash)| (&**name, bytes.len(), Some(&**hash)));
                return listing(&listed.collect::<Vec<_>>());
            }
            let file = files
                .iter()
                .find(|(name, _)| request.path.ends_with(&**name));
            file.map_or(Response::status(404), |(_, bytes)| {
                Response::ranged(request, bytes, None)
            })
        });
        let repo = Self { server, files: own };
        repo.set(files);
        repo
    }

    fn set(&self, files: &[(&str, &[u8])]) {
        let files = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
        *self.files.lock().unwrap() = files.collect();
    }

    fn pull(&self, cache: &Path, file: Option<&str>) -> Result<PathBuf> {
        hub_of(&self.server).pull(cache, &repository(file), &())
    }
}

#[test]
fn a_file_that_was_pulled_by_its_name_stays_when_its_repository_changes() {
    let cache = tempfile::tempdir().unwrap();
    let here = cache.path();
    let repo = Repo::start(&[("c.gguf", b"c")]);
    let pull = |file| repo.pull(here, file).unwrap();
    pull(Some("c.gguf"));
    pull(None);
    repo.set(&[("d.gguf", b"d")]);
    pull(None);
    assert_eq!(files(here), ["c.gguf", "d.gguf", "pulled.json"]);
    let named = repository(Some("c.gguf"));
    assert!(cached(here, &named).is_some());
    // A file that came with the repository alone goes with it, and so does its beginning.
    repo.set(&[("e.gguf", b"e")]);
    fs::write(here.join("hf/o/n/d.gguf.part"), "x").unwrap();
    pull(None);
    assert_eq!(files(here), ["c.gguf", "e.gguf", "pulled.json"]);
    // Also after the other order of pulls.
    pull(Some("e.gguf"));
    repo.set(&[("f.gguf", b"f")]);
    pull(None);
    assert_eq!(files(here), ["c.gguf", "e.gguf", "f.gguf", "pulled.json"]);
}

#[test]
fn an_update_goes_on_from_no_part_of_an_older_version() {
    let cache = tempfile::tempdir().unwrap();
    let part = cache.path().join("hf/o/n/c.gguf.part");
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, "older").unwrap();
    let repo = Repo::start(&[("c.gguf", b"a newer version")]);
    let path = repo.pull(cache.path(), None).unwrap();
    assert_eq!(fs::read(path).unwrap(), b"a newer version");
}

fn small(_: &Path) -> Option<Space> {
    Some(Space {
        available: 100,
        total: 1000,
    })
}

#[test]
fn what_the_disk_has_no_room_for_is_refused_before_it_is_fetched() {
    let cache = tempfile::tempdir().unwrap();
    let repo = Repo::start(&[("c.gguf", &[7; 80])]);
    repo.pull(cache.path(), None).unwrap();
    repo.set(&[("c.gguf", &[8; 101])]);
    let mut hub = hub_of(&repo.server);
    hub.disk = Disk::new(0).with_space(small);
    let asked = repo.server.requests().len();
    let error = hub.pull(cache.path(), &repository(None), &()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(
        error.to_string().ends_with(
            "o/n needs 101 more bytes on the disk, but 100 are free: 1 bytes are missing"
        ),
        "{error}"
    );
    assert_eq!(
        repo.server.requests().len(),
        asked + 1,
        "only the list is fetched"
    );
    // The model that is there goes on.
    let there = cached(cache.path(), &repository(None)).unwrap();
    assert_eq!(fs::read(there).unwrap(), [7; 80]);
    hub.disk = Disk::new(5).with_space(small);
    repo.set(&[("c.gguf", &[8; 51])]);
    hub.pull(cache.path(), &repository(None), &()).unwrap_err();
    repo.set(&[("c.gguf", &[8; 50])]);
    hub.pull(cache.path(), &repository(None), &()).unwrap();
}

#[test]
fn shards_are_counted_before_the_index_is_fetched() {
    let cache = tempfile::tempdir().unwrap();
    let server = sharded("model-00002-of-00002.safetensors");
    let mut hub = hub_of(&server);
    // The files without the shards have room.
    hub.disk = Disk::new(0).with_space(|_| {
        Some(Space {
            available: 110,
            total: 1000,
        })
    });
    let error = hub.pull(cache.path(), &repository(None), &()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_disk_that_gets_short_ends_a_pull_that_the_next_one_continues() {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    let (bytes, hash) = content();
    let served = bytes.clone();
    let server = one_gguf(&hash, move |request| {
        Response::ranged(request, &served, None)
    });
    let cache = tempfile::tempdir().unwrap();
    let mut hub = hub_of(&server);
    // Another program fills the disk after the second block.
    hub.disk = Disk::new(10).with_space(|_| {
        let looks = LOOKS.fetch_add(1, Ordering::Relaxed);
        Some(Space {
            available: if looks < 3 { 1 << 30 } else { 100 },
            total: 1 << 30,
        })
    });
    let error = hub.pull(cache.path(), &repository(None), &()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(
        error.message().contains("model.gguf: stopped at byte ")
            && error.message().contains("fetches leave 10 % of it free"),
        "{error}"
    );
    let part = cache.path().join("hf/o/n/model.gguf.part");
    let kept = fs::metadata(&part).unwrap().len();
    assert!((1..600_000).contains(&kept), "{kept}");
    assert_eq!(cached(cache.path(), &repository(None)), None);
    hub.disk = Disk::new(0);
    let path = hub.pull(cache.path(), &repository(None), &()).unwrap();
    assert_eq!(fs::read(path).unwrap(), bytes);
    assert_eq!(
        server.requests().last().unwrap().header("range"),
        Some(&*format!("bytes={kept}-"))
    );
}

/// Starts a hub that answers the first two requests for a file, and for its list, with `refusal`.
fn busy(hash: &str, bytes: Vec<u8>, refusal: Response) -> Server {
    let listing = listing(&[("model.gguf", 600_000, Some(hash))]);
    let counts = Mutex::new([0, 0]);
    Server::start(move |request| {
        let is_list = request.path.starts_with("/api/models");
        let count = &mut counts.lock().unwrap()[usize::from(is_list)];
        *count += 1;
        match (*count > 2, is_list) {
            (false, _) => refusal.clone(),
            (true, true) => listing.clone(),
            (true, false) => Response::ranged(request, &bytes, None),
        }
    })
}

#[test]
fn a_busy_hub_is_asked_again_after_the_pause_that_it_asks_for() {
    let (bytes, hash) = content();
    for (status, after, at_least) in [(429, Some("1"), 4), (503, Some("1"), 4), (500, None, 0)] {
        let refusal = Response {
            headers: after
                .map(|after| ("retry-after", after.to_owned()))
                .into_iter()
                .collect(),
            ..Response::status(status)
        };
        let server = busy(&hash, bytes.clone(), refusal);
        let cache = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let path = pull(&server, cache.path()).unwrap();
        assert_eq!(fs::read(path).unwrap(), bytes);
        assert!(start.elapsed() >= Duration::from_secs(at_least), "{status}");
    }
}

#[test]
fn a_pause_without_bound_is_not_kept() {
    let (bytes, hash) = content();
    let refusal = Response {
        headers: vec![("retry-after", "86400".into())],
        ..Response::status(429)
    };
    let server = busy(&hash, bytes, refusal);
    let cache = tempfile::tempdir().unwrap();
    let error = pull(&server, cache.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Hub);
    assert!(
        error
            .to_string()
            .contains("429 Too Many Requests and asked to wait for 86400 s"),
        "{error}"
    );
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_network_that_is_away_for_a_moment_does_not_end_a_pull() {
    let (bytes, hash) = content();
    let served = bytes.clone();
    let start = Instant::now();
    let server = one_gguf(&hash, move |request| match start.elapsed().as_millis() {
        0..700 => Response {
            cut_at: Some(0),
            ..Response::ok(served.clone())
        },
        _ => Response::ranged(request, &served, None),
    });
    let cache = tempfile::tempdir().unwrap();
    let mut hub = hub_of(&server);
    hub.bounds.pauses.first = Duration::from_millis(100);
    let path = hub.pull(cache.path(), &repository(None), &()).unwrap();
    assert_eq!(fs::read(path).unwrap(), bytes);
}

#[test]
fn a_fault_of_the_hub_is_told_apart_from_a_wrong_name() {
    let (bytes, hash) = content();
    let mut wrong = bytes.clone();
    wrong[9] ^= 1;
    let kind = |server: &Server| {
        let cache = tempfile::tempdir().unwrap();
        pull(server, cache.path()).unwrap_err().kind()
    };
    let hubs: [Serve; 4] = [
        Box::new(move |_| Response::ok(wrong.clone())),
        Box::new(|_| Response::status(503)),
        Box::new(|request| Response::ranged(request, &[7; 9], Some(3))),
        Box::new(|_| Response {
            headers: vec![("location", "file:///etc/passwd".into())],
            ..Response::status(302)
        }),
    ];
    for serve in hubs {
        assert_eq!(kind(&one_gguf(&hash, serve)), ErrorKind::Hub);
    }
    let missing = Server::start(|_| Response::status(404));
    assert_eq!(kind(&missing), ErrorKind::Fetch);
    let listed = Server::start(|_| listing(&[("README.md", 1, None)]));
    assert_eq!(kind(&listed), ErrorKind::Fetch);
    let lists = [
        r#"{"siblings": 1}"#,
        r#"{"sha": "x", "siblings": []}"#,
        r#"{"siblings": [{"rfilename": "config.json", "size": 2}, {"rfilename": "model.safetensors", "size": -1}]}"#,
    ];
    for list in lists {
        let server = Server::start(move |_| Response::ok(list));
        assert_eq!(kind(&server), ErrorKind::Hub, "{list}");
    }
}
