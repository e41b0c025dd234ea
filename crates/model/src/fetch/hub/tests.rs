//! Complete pulls from a hub on the loopback interface.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::test_server::{Request, Response, Server};
use super::*;

mod changes;
mod hostile;

/// Returns a model of 600,000 bytes and its sha256.
fn content() -> (Vec<u8>, String) {
    let bytes: Vec<u8> = (0..600_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    (bytes.clone(), sha256(&bytes))
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn listing(files: &[(&str, usize, Option<&str>)]) -> Response {
    let siblings: Vec<_> = files
        .iter()
        .map(|(name, size, sha256)| match sha256 {
            Some(sha256) => {
                serde_json::json!({"rfilename": name, "size": size, "lfs": {"sha256": sha256, "size": size}})
            }
            None => serde_json::json!({"rfilename": name, "size": size}),
        })
        .collect();
    Response::ok(serde_json::json!({"id": "o/n", "siblings": siblings}).to_string())
}

/// Starts a hub with the repository o/n, which has one GGUF file; `serve` returns its bytes.
fn one_gguf(sha256: &str, serve: impl Fn(&Request) -> Response + Send + 'static) -> Server {
    let listing = listing(&[
        ("README.md", 10, None),
        ("model.gguf", 600_000, Some(sha256)),
    ]);
    Server::start(move |request| match request.path.as_str() {
        "/api/models/o/n?blobs=true" => listing.clone(),
        "/o/n/resolve/main/model.gguf" => serve(request),
        _ => Response::status(404),
    })
}

fn repository(file: Option<&str>) -> Repository {
    Repository {
        owner: "o".into(),
        name: "n".into(),
        file: file.map(str::to_owned),
    }
}

/// Returns the hub of a server, which is asked again without long pauses.
fn hub_of(server: &Server) -> Hub {
    let mut hub = Hub::new(&server.endpoint, None, None);
    hub.bounds.pauses.first = Duration::from_millis(1);
    hub
}

fn pull(server: &Server, cache: &Path) -> Result<PathBuf> {
    hub_of(server).pull(cache, &repository(None), &())
}

/// Returns the files in the repository's folder except the lock.
fn files(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(cache.join("hf/o/n")).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

#[test]
fn a_gguf_file_is_fetched_once_and_then_found_in_the_cache() {
    let (bytes, hash) = content();
    let served = bytes.clone();
    let server = one_gguf(&hash, move |_| Response::ok(served.clone()));
    let cache = tempfile::tempdir().unwrap();
    assert_eq!(cached(cache.path(), &repository(None)), None);
    let path = pull(&server, cache.path()).unwrap();
    assert_eq!(path, cache.path().join("hf/o/n/model.gguf"));
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(files(cache.path()), ["model.gguf", "pulled.json"]);
    assert_eq!(cached(cache.path(), &repository(None)), Some(path.clone()));
    assert_eq!(
        cached(cache.path(), &repository(Some("model.gguf"))),
        Some(path)
    );
    pull(&server, cache.path()).unwrap();
    assert_eq!(
        server.requests().len(),
        3,
        "the second pull requests only the listing"
    );
}

#[test]
fn a_connection_that_breaks_is_taken_up_where_it_broke() {
    let (bytes, hash) = content();
    let served = bytes.clone();
    let server = one_gguf(&hash, move |request| {
        let cut = request.header("range").is_none().then_some(300_000);
        Response::ranged(request, &served, cut)
    });
    let cache = tempfile::tempdir().unwrap();
    assert_eq!(
        fs::read(pull(&server, cache.path()).unwrap()).unwrap(),
        bytes
    );
    let ranges: Vec<_> = server
        .requests()
        .iter()
        .filter_map(|request| request.header("range").map(str::to_owned))
        .collect();
    assert_eq!(ranges, ["bytes=300000-"]);
}

#[test]
fn an_interrupted_pull_leaves_a_part_and_the_next_one_goes_on() {
    let (bytes, hash) = content();
    let cache = tempfile::tempdir().unwrap();
    let served = bytes.clone();
    let broken = one_gguf(&hash, move |request| {
        Response::ranged(request, &served, Some(200_000))
    });
    let error = pull(&broken, cache.path()).unwrap_err().to_string();
    assert!(
        error.contains("failed at byte 200000")
            && error.contains("the next pull goes on from there"),
        "{error}"
    );
    assert_eq!(files(cache.path()), ["model.gguf.part", "pulled.json"]);
    assert_eq!(cached(cache.path(), &repository(None)), None);
    assert_eq!(cached(cache.path(), &repository(Some("model.gguf"))), None);

    let served = bytes.clone();
    let whole = one_gguf(&hash, move |request| {
        Response::ranged(request, &served, None)
    });
    assert_eq!(
        fs::read(pull(&whole, cache.path()).unwrap()).unwrap(),
        bytes
    );
    assert_eq!(whole.requests()[1].header("range"), Some("bytes=200000-"));
}

#[test]
fn a_server_that_does_not_resume_sends_the_file_from_the_start() {
    let (bytes, hash) = content();
    let cache = tempfile::tempdir().unwrap();
    fs::create_dir_all(cache.path().join("hf/o/n")).unwrap();
    for old in [&bytes[..1000], &[7; 700_000]] {
        fs::write(cache.path().join("hf/o/n/model.gguf.part"), old).unwrap();
        let served = bytes.clone();
        let server = one_gguf(&hash, move |_| Response::ok(served.clone()));
        assert_eq!(
            fs::read(pull(&server, cache.path()).unwrap()).unwrap(),
            bytes
        );
        fs::remove_file(cache.path().join("hf/o/n/model.gguf")).unwrap();
    }
}

#[test]
fn a_part_longer_than_the_file_is_thrown_away() {
    let (bytes, hash) = content();
    let cache = tempfile::tempdir().unwrap();
    fs::create_dir_all(cache.path().join("hf/o/n")).unwrap();
    fs::write(
        cache.path().join("hf/o/n/model.gguf.part"),
        vec![7; 700_000],
    )
    .unwrap();
    let served = bytes.clone();
    let server = one_gguf(&hash, move |request| {
        Response::ranged(request, &served, None)
    });
    assert_eq!(
        fs::read(pull(&server, cache.path()).unwrap()).unwrap(),
        bytes
    );
}

#[test]
fn bytes_with_another_sha256_are_removed_and_are_an_error() {
    let (bytes, hash) = content();
    let mut wrong = bytes;
    wrong[1234] ^= 1;
    let server = one_gguf(&hash, move |_| Response::ok(wrong.clone()));
    let cache = tempfile::tempdir().unwrap();
    let error = pull(&server, cache.path()).unwrap_err().to_string();
    assert!(
        error.contains(&format!("expected {hash}; what was fetched is removed")),
        "{error}"
    );
    assert_eq!(files(cache.path()), ["pulled.json"]);
}

#[test]
fn a_server_that_sends_more_than_it_announced_is_cut_off() {
    let (bytes, hash) = content();
    let longer = [bytes, vec![0; 5_000_000]].concat();
    let server = one_gguf(&hash, move |_| Response::ok(longer.clone()));
    let cache = tempfile::tempdir().unwrap();
    let error = pull(&server, cache.path()).unwrap_err().to_string();
    assert!(
        error.contains("expected 600000; what was fetched is removed"),
        "{error}"
    );
}

#[test]
fn what_is_not_there_or_not_allowed_is_an_error_in_a_sentence() {
    let cache = tempfile::tempdir().unwrap();
    for (status, token, expected) in [
        (404, None, "there is no model o/n at http://127.0.0.1"),
        (
            401,
            None,
            "model o/n is not there, or needs a token, and this fetch has none (accept its terms on the hub, then set HF_TOKEN)",
        ),
        (403, Some("t"), "the token in HF_TOKEN may not read it"),
        (500, None, "the server answered 500 Internal Server Error"),
    ] {
        let server = Server::start(move |_| Response::status(status));
        let mut hub = hub_of(&server);
        hub.token = token.map(str::to_owned);
        let error = hub
            .pull(cache.path(), &repository(None), &())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(
            server.requests()[0].header("authorization"),
            token.map(|_| "Bearer t")
        );
    }
    let server = one_gguf("00", |_| Response::status(404));
    let error = pull(&server, cache.path()).unwrap_err().to_string();
    assert!(
        error.starts_with("there is no file `model.gguf` at http://127.0.0.1"),
        "{error}"
    );
    let server = Server::start(|_| Response::ok("<html>"));
    let error = pull(&server, cache.path()).unwrap_err().to_string();
    assert!(error.contains("is not a hub's answer"), "{error}");
}

#[test]
fn a_redirect_keeps_the_range_and_drops_the_token() {
    let (bytes, hash) = content();
    let served = bytes.clone();
    let storage = Server::start(move |request| Response::ranged(request, &served, None));
    let target = format!(
        "{}/blob",
        storage.endpoint.replace("127.0.0.1", "localhost")
    );
    let server = one_gguf(&hash, move |_| Response {
        headers: vec![("location", target.clone())],
        ..Response::status(302)
    });
    let cache = tempfile::tempdir().unwrap();
    fs::create_dir_all(cache.path().join("hf/o/n")).unwrap();
    fs::write(cache.path().join("hf/o/n/model.gguf.part"), &bytes[..1000]).unwrap();
    let hub = Hub::new(&server.endpoint, Some("secret".into()), None);
    hub.pull(cache.path(), &repository(None), &()).unwrap();
    assert_eq!(
        server.requests()[1].header("authorization"),
        Some("Bearer secret")
    );
    let asked = &storage.requests()[0];
    assert_eq!(
        (asked.header("range"), asked.header("authorization")),
        (Some("bytes=1000-"), None)
    );
}

#[test]
fn the_token_goes_to_the_hubs_own_port_alone() {
    let (bytes, hash) = content();
    let (served, path) = (bytes.clone(), "/o/n/resolve/main/model.gguf");
    let storage = Server::start(move |request| Response::ranged(request, &served, None));
    let target = format!("{}/blob", storage.endpoint);
    let listing = listing(&[("model.gguf", 600_000, Some(&hash))]);
    let to = |location: &str| Response {
        headers: vec![("location", location.to_owned())],
        ..Response::status(307)
    };
    // First a redirect to another path of the same origin, and from there to another port.
    let server = Server::start(move |request| match request.path.as_str() {
        "/api/models/o/n?blobs=true" => to("/api/models/o/n/main"),
        "/api/models/o/n/main" => listing.clone(),
        asked if asked == path => to("main/other"),
        _ => to(&target),
    });
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::new(&server.endpoint, Some("secret".into()), None);
    hub.pull(cache.path(), &repository(None), &()).unwrap();
    let asked = server.requests();
    assert_eq!(asked.len(), 4);
    assert!(
        asked
            .iter()
            .all(|request| request.header("authorization") == Some("Bearer secret")),
        "{asked:?}"
    );
    assert_eq!(asked[3].path, "/o/n/resolve/main/main/other");
    assert_eq!(storage.requests()[0].header("authorization"), None);
}

#[test]
fn redirects_without_an_end_are_an_error() {
    let server = Server::start(|_| Response {
        headers: vec![("location", "/again".into())],
        ..Response::status(302)
    });
    let cache = tempfile::tempdir().unwrap();
    let error = pull(&server, cache.path()).unwrap_err().to_string();
    assert!(error.contains("more than 10 redirects"), "{error}");
}

#[test]
fn a_hub_that_sends_too_little_is_given_up_and_what_came_is_kept() {
    let (bytes, hash) = content();
    let drips = Arc::new(AtomicBool::new(true));
    let dripping = Arc::clone(&drips);
    let server = one_gguf(&hash, move |request| {
        let pause = dripping
            .load(Ordering::Relaxed)
            .then_some(Duration::from_millis(2));
        Response {
            pause,
            ..Response::ranged(request, &bytes, None)
        }
    });
    let cache = tempfile::tempdir().unwrap();
    let mut hub = hub_of(&server);
    hub.bounds.least = 100_000;
    hub.bounds.within = Duration::from_millis(50);
    let error = hub
        .pull(cache.path(), &repository(None), &())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(
            "fewer than 100000 bytes came within 0.05 s; the next pull goes on from there"
        ),
        "{error}"
    );
    let part = cache.path().join("hf/o/n/model.gguf.part");
    let kept = fs::metadata(&part).unwrap().len();
    assert!((1..600_000).contains(&kept), "{kept}");
    drips.store(false, Ordering::Relaxed);
    // A server whose client disconnected still sends slowly.
    let hub = hub_of(&server);
    hub.pull(cache.path(), &repository(None), &()).unwrap();
    assert_eq!(
        server.requests().last().unwrap().header("range"),
        Some(&*format!("bytes={kept}-"))
    );
}

#[test]
fn a_listing_that_takes_too_long_is_given_up() {
    let server = Server::start(|_| Response {
        pause: Some(Duration::from_millis(20)),
        ..Response::ok(vec![b' '; 4000])
    });
    let cache = tempfile::tempdir().unwrap();
    let mut hub = hub_of(&server);
    hub.patience = Duration::from_millis(100);
    let error = hub
        .pull(cache.path(), &repository(None), &())
        .unwrap_err()
        .to_string();
    assert!(error.contains("timeout"), "{error}");
}

#[test]
fn a_file_whose_size_is_not_stated_may_not_be_of_any_size() {
    let listing = Response::ok(r#"{"siblings": [{"rfilename": "model.gguf"}]}"#);
    let server = Server::start(move |request| match request.path.as_str() {
        "/api/models/o/n?blobs=true" => listing.clone(),
        _ => Response {
            is_unstated: true,
            ..Response::ok(vec![0; 600_000])
        },
    });
    let cache = tempfile::tempdir().unwrap();
    let mut hub = hub_of(&server);
    hub.bounds.unstated = 500_000;
    let error = hub
        .pull(cache.path(), &repository(None), &())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("longer than 500000 bytes, and the hub states no size"),
        "{error}"
    );
}

#[test]
fn a_cancelled_pull_keeps_its_part() {
    use std::sync::atomic::AtomicU64;
    struct CancelAfter(u64, AtomicU64);
    impl Progress for CancelAfter {
        fn step(&self, _: &str) {}
        fn bytes(&self, _: &str, done: u64, _: Option<u64>) {
            self.1.store(done, Ordering::Relaxed);
        }
        fn cancelled(&self) -> bool {
            self.1.load(Ordering::Relaxed) > self.0
        }
    }
    let (bytes, hash) = content();
    let server = one_gguf(&hash, move |_| Response::ok(bytes.clone()));
    let cache = tempfile::tempdir().unwrap();
    let hub = hub_of(&server);
    let error = hub
        .pull(
            cache.path(),
            &repository(None),
            &CancelAfter(100_000, AtomicU64::new(0)),
        )
        .unwrap_err()
        .to_string();
    assert_eq!(error, "the fetch was cancelled");
    assert_eq!(files(cache.path()), ["model.gguf.part", "pulled.json"]);
    assert!(
        fs::metadata(cache.path().join("hf/o/n/model.gguf.part"))
            .unwrap()
            .len()
            > 100_000
    );
}

/// Starts a hub with a safetensors repository in two shards, whose index names `second` as the second shard.
fn sharded(second: &'static str) -> Server {
    let index =
        serde_json::json!({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": second}})
            .to_string();
    Server::start(move |request| match request.path.as_str() {
        "/api/models/o/n?blobs=true" => listing(&[
            ("config.json", 2, None),
            ("tokenizer.json", 2, None),
            ("tokenizer_config.json", 2, None),
            ("generation_config.json", 2, None),
            ("chat_template.jinja", 5, None),
            ("onnx/tokenizer.json", 2, None),
            ("consolidated.safetensors", 9, None),
            ("model-00001-of-00002.safetensors", 3, Some(&sha256(b"one"))),
            (second, 3, Some(&sha256(b"two"))),
            ("model.gguf", 3, None),
            (INDEX, index.len(), None),
        ]),
        "/o/n/resolve/main/model.safetensors.index.json" => Response::ok(index.as_str()),
        "/o/n/resolve/main/model-00001-of-00002.safetensors" => Response::ok("one"),
        "/o/n/resolve/main/model-00002-of-00002.safetensors" => Response::ok("two"),
        "/o/n/resolve/main/chat_template.jinja" => Response::ok("hello"),
        path if path.ends_with(".json") => Response::ok("{}"),
        _ => Response::status(404),
    })
}

#[test]
fn a_sharded_safetensors_model_comes_whole_and_alone() {
    let server = sharded("model-00002-of-00002.safetensors");
    let cache = tempfile::tempdir().unwrap();
    let path = pull(&server, cache.path()).unwrap();
    assert_eq!(path, cache.path().join("hf/o/n"));
    let expected = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        INDEX,
        "pulled.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(files(cache.path()), expected);
    assert_eq!(cached(cache.path(), &repository(None)), Some(path.clone()));
    fs::remove_file(path.join("model-00002-of-00002.safetensors")).unwrap();
    assert_eq!(
        cached(cache.path(), &repository(None)),
        None,
        "a model that lacks a file is incomplete"
    );
}

/// Starts a hub whose repository has the model in one file and a template until `changed`, then in one shard.
fn changing(changed: Arc<AtomicBool>, broken: Arc<AtomicBool>) -> Server {
    const SHARD: &str = "model-00001-of-00001.safetensors";
    let index = serde_json::json!({"weight_map": {"a": SHARD}}).to_string();
    Server::start(move |request| {
        let is_changed = changed.load(Ordering::Relaxed);
        match request.path.as_str() {
            "/api/models/o/n?blobs=true" if is_changed => listing(&[
                ("config.json", 2, None),
                ("tokenizer.json", 2, None),
                (SHARD, 3, Some(&sha256(b"new"))),
                (INDEX, index.len(), None),
            ]),
            "/api/models/o/n?blobs=true" => listing(&[
                ("config.json", 2, None),
                ("tokenizer.json", 2, None),
                ("chat_template.jinja", 5, None),
                ("model.safetensors", 3, Some(&sha256(b"old"))),
            ]),
            "/o/n/resolve/main/model.safetensors" => Response::ok("old"),
            "/o/n/resolve/main/chat_template.jinja" => Response::ok("hello"),
            "/o/n/resolve/main/model.safetensors.index.json" => Response::ok(index.as_str()),
            path if path.ends_with(SHARD) && broken.load(Ordering::Relaxed) => {
                Response::status(500)
            }
            path if path.ends_with(SHARD) => Response::ok("new"),
            path if path.ends_with(".json") => Response::ok("{}"),
            _ => Response::status(404),
        }
    })
}

#[test]
fn files_that_a_repository_has_no_more_are_removed_and_a_user_s_own_stay() {
    let [changed, broken] = [false, true].map(|value| Arc::new(AtomicBool::new(value)));
    let server = changing(Arc::clone(&changed), Arc::clone(&broken));
    let cache = tempfile::tempdir().unwrap();
    let folder = pull(&server, cache.path()).unwrap();
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    let old = [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "notes.txt",
        "pulled.json",
        "tokenizer.json",
    ];
    assert_eq!(files(cache.path()), old);
    // A pull that ends halfway leaves no model of two versions.
    changed.store(true, Ordering::Relaxed);
    pull(&server, cache.path()).unwrap_err();
    assert_eq!(cached(cache.path(), &repository(None)), None);
    broken.store(false, Ordering::Relaxed);
    pull(&server, cache.path()).unwrap();
    let new = [
        "config.json",
        "model-00001-of-00001.safetensors",
        INDEX,
        "notes.txt",
        "pulled.json",
        "tokenizer.json",
    ];
    assert_eq!(files(cache.path()), new);
    assert_eq!(cached(cache.path(), &repository(None)), Some(folder));
}

#[test]
fn a_file_name_that_leaves_the_folder_is_refused() {
    for name in [
        "../../evil.safetensors",
        "/evil.safetensors",
        "..\\evil.safetensors",
    ] {
        let server = sharded(name);
        let cache = tempfile::tempdir().unwrap();
        let error = pull(&server, cache.path()).unwrap_err().to_string();
        assert!(error.contains("names a file outside its folder"), "{error}");
    }
}

#[test]
fn the_file_to_fetch_is_the_one_named_or_the_only_one() {
    let sibling = |name: &str| Sibling {
        name: name.into(),
        size: None,
        blob: None,
        lfs: None,
    };
    let select = |names: &[&str], file| {
        let siblings: Vec<_> = names.iter().map(|name| sibling(name)).collect();
        let selection = select(&siblings, &repository(file)).map_err(|error| error.to_string())?;
        Ok((
            selection
                .files
                .into_iter()
                .map(|file| file.name)
                .collect::<Vec<_>>(),
            selection.open,
        ))
    };
    let gguf = |name: &str| Ok((vec![name.to_owned()], Some(name.to_owned())));
    assert_eq!(select(&["a.gguf"], None), gguf("a.gguf"));
    assert_eq!(
        select(&["a.gguf", "sub/b.gguf"], Some("sub/b.gguf")),
        gguf("sub/b.gguf")
    );
    let folder = |names: &[&str]| Ok((names.iter().map(ToString::to_string).collect(), None));
    let both = [
        "config.json",
        "a.gguf",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
    ];
    assert_eq!(
        select(&both, None),
        folder(&["config.json", "tokenizer.json", "model.safetensors"])
    );
    for (names, file, expected) in [
        (
            &["a.gguf", "b.gguf"][..],
            None,
            "ask for one, as in `hf:o/n:a.gguf`: `a.gguf`, `b.gguf`",
        ),
        (
            &["a.gguf"],
            Some("b.gguf"),
            "o/n has no file `b.gguf`; it has `a.gguf`",
        ),
        (&["x"], Some("b.gguf"), "it has no GGUF file"),
        (
            &["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"],
            Some("a-00002-of-00002.gguf"),
            "`a-00002-of-00002.gguf` is one of 2 files of a model; ask for the first, `a-00001-of-00002.gguf`",
        ),
        (
            &["a-00001-of-00002.gguf"],
            None,
            "o/n has no file `a-00002-of-00002.gguf`, which is a part of the model `a-00001-of-00002.gguf`",
        ),
        (
            &["x"],
            Some("config.json"),
            "only a GGUF file can be asked for by name",
        ),
        (
            &["README.md"],
            None,
            "o/n has neither GGUF nor safetensors files",
        ),
        (&["model.safetensors"], None, "o/n has no `config.json`"),
        (
            &["weights.safetensors"],
            None,
            "no `model.safetensors` and no `model.safetensors.index.json`, only `weights.safetensors`",
        ),
    ] {
        let error: String = select(names, file).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let many: Vec<String> = (0..1000).map(|number| format!("{number}.gguf")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let error: String = select(&many, None).unwrap_err();
    assert!(error.ends_with("`19.gguf`, and 980 more"), "{error}");
    let long = "a".repeat(10_000);
    let error: String = select(&["a.gguf", &long], None).unwrap_err();
    assert!(error.contains("10000 bytes, expected at most 1024"));
    assert!(error.len() < 1024);
}

#[test]
fn all_files_of_a_split_gguf_model_are_fetched_and_the_first_is_opened() {
    let names = [1, 2].map(|number| format!("q4/a-0000{number}-of-00002.gguf"));
    let [first, second] = names.each_ref().map(String::as_str);
    let server = {
        let sizes = names.clone().map(|name| (name, 3));
        Server::start(move |request| match request.path.as_str() {
            "/api/models/o/n?blobs=true" => {
                let files = sizes.each_ref().map(|(name, size)| (&**name, *size, None));
                listing(&files)
            }
            path if path.ends_with("00001-of-00002.gguf") => Response::ok("one"),
            _ => Response::ok("two"),
        })
    };
    for file in [None, Some(first)] {
        let cache = tempfile::tempdir().unwrap();
        let hub = hub_of(&server);
        let path = hub.pull(cache.path(), &repository(file), &()).unwrap();
        let folder = cache.path().join("hf/o/n");
        assert_eq!(path, folder.join(first));
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read(folder.join(second)).unwrap(), b"two");
        assert_eq!(cached(cache.path(), &repository(file)), Some(path));
        fs::remove_file(folder.join(second)).unwrap();
        assert_eq!(cached(cache.path(), &repository(file)), None, "{file:?}");
    }
}

#[test]
fn a_file_name_is_percent_encoded_in_the_url() {
    assert_eq!(
        percent_encoded("sub/a b#1?é.gguf"),
        "sub/a%20b%231%3F%C3%A9.gguf"
    );
}
