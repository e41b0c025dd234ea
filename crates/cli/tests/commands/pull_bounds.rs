//! Bounds of pulls, and of the changes that clients may make.

use serde_json::json;

use crate::outcome::{json, succeed};
use crate::pulls::{Hub, MODEL, OPTIONS, Serving, changed, fetched, model};
use crate::support::gguf::{Gguf, Value};
use crate::support::{Place, stderr};

/// Starts a server of `given` with clients that may pull.
fn serve(place: &Place, given: &str, more: &[&str], hub: &Hub) -> Serving {
    let arguments = [&OPTIONS[..], &["--no-quantize", "-m", given], more].concat();
    Serving::start(place, &arguments, &hub.address)
}

impl Serving {
    /// Pulls a model. Returns the status and the answer.
    fn pull(&self, name: &str) -> (u16, String) {
        let body = json!({"model": name, "stream": false}).to_string();
        self.ask("POST", "/api/pull", &body)
    }

    /// Returns the names in a list of models.
    fn names(&self, path: &str) -> Vec<String> {
        let (_, list) = self.ask("GET", path, "");
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let models = list["models"].as_array().unwrap().iter();
        models
            .map(|model| model["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

#[test]
fn no_client_adds_a_file_to_the_repository_of_a_given_model() {
    let place = fetched();
    let hub = Hub::start(Gguf::tiny().bytes());
    let folder = place.path("cache/hf/owner/name");
    let files = || std::fs::read_dir(&folder).unwrap().count();
    let before = files();
    for given in ["hf:owner/name:m.gguf", "cache/hf/owner/name/m.gguf"] {
        let server = serve(&place, given, &[], &hub);
        // An encoder of pictures decides what the model is after a restart.
        for file in [
            "mmproj-F32.gguf",
            "mmproj.gguf",
            "other.gguf",
            "sub/other.gguf",
        ] {
            hub.state.lock().unwrap().name = file.into();
            let name = format!("{MODEL}:{file}");
            let (status, error) = server.pull(&name);
            assert!(
                status == 403 && error.contains("of this repository"),
                "{name}: {error}"
            );
            let (status, _) = server.ask("DELETE", "/api/delete", &model(&name));
            assert_eq!(status, 403, "{name}");
        }
        assert_eq!((hub.requests(), files()), (0, before), "{given}");
    }
}

#[test]
fn a_second_encoder_takes_the_pictures_from_no_model() {
    let place = fetched();
    place.write("cache/hf/owner/pictures/mmproj-F16.gguf", b"the first one");
    let hub = Hub::start(b"another one".to_vec());
    let server = serve(&place, "model.gguf", &[], &hub);
    let (status, error) = server.pull("hf:owner/pictures:mmproj-F32.gguf");
    assert!(
        status == 400 && error.contains("another encoder"),
        "{error}"
    );
    assert_eq!(hub.requests(), 0);
    // The only one is fetched, and is no model itself.
    hub.state.lock().unwrap().name = "mmproj-F32.gguf".into();
    let (status, answer) = server.pull("hf:owner/others:mmproj-F32.gguf");
    assert_eq!(status, 200, "{answer}");
    assert!(place.path("cache/hf/owner/others/mmproj-F32.gguf").exists());
    assert!(
        !server
            .names("/api/tags")
            .iter()
            .any(|name| name.contains("others"))
    );
}

#[test]
fn a_deletion_removes_no_package_of_a_file_of_the_user() {
    let place = fetched();
    let other = Gguf::tiny().with("general.name", Value::Text("given".into()));
    place.write("given.gguf", other.bytes());
    // The user has prepared a file with the content of the fetched one.
    succeed(&place.triad(&["run", "-m", "model.gguf", "-p", "Hi", "-n", "2"]));
    let packages = || std::fs::read_dir(place.path("cache/packages")).map_or(0, Iterator::count);
    assert_eq!(packages(), 1);
    let hub = Hub::start(changed());
    let server = serve(&place, "given.gguf", &[], &hub);
    let (status, error) = server.ask("DELETE", "/api/delete", &model(MODEL));
    assert_eq!(status, 200, "{error}");
    assert!(!place.path("cache/hf/owner/name/m.gguf").exists());
    assert_eq!(packages(), 1);
}

#[test]
fn after_a_pull_no_name_of_the_file_answers_with_the_old_version() {
    let place = fetched();
    let hub = Hub::start(Gguf::tiny().bytes());
    let server = serve(&place, "model.gguf", &[], &hub);
    let named = "hf:owner/name:m.gguf";
    assert_eq!(server.pull(named).0, 200);
    let versions = |file: Vec<u8>| hub.state.lock().unwrap().file = file;
    let both = || {
        for name in [MODEL, named] {
            let (status, answer) = server.complete(name);
            assert_eq!(status, 200, "{answer}");
        }
        let loaded = server.names("/api/ps");
        assert!(
            [MODEL, named]
                .iter()
                .all(|name| loaded.iter().any(|it| it == name))
        );
    };
    let neither = || {
        let loaded = server.names("/api/ps");
        assert!(
            !loaded.iter().any(|name| name.starts_with(MODEL)),
            "{loaded:?}"
        );
    };
    both();
    versions(changed());
    assert_eq!(server.pull(named).0, 200);
    neither();
    both();
    // A pull that changes nothing unloads nothing, and one next to the server does as one of a client.
    assert_eq!(server.pull(MODEL).0, 200);
    both();
    versions(Gguf::tiny().bytes());
    let mut pull = place.command(&["pull", MODEL]);
    pull.env("HF_ENDPOINT", format!("http://{}", hub.address));
    succeed(&pull.output().unwrap());
    neither();
    both();
    // Both names are listed, and go with the file.
    assert!(
        [MODEL, named]
            .iter()
            .all(|name| server.names("/api/tags").iter().any(|it| it == name))
    );
    assert_eq!(server.ask("DELETE", "/api/delete", &model(named)).0, 200);
    assert_eq!(server.names("/api/tags"), ["model.gguf"]);
}

#[test]
fn a_pull_of_a_client_has_the_owner_s_token_only_where_it_is_allowed() {
    let place = fetched();
    for (more, is_sent) in [(&[][..], false), (&["--pull-token"], true)] {
        let hub = Hub::start(Gguf::tiny().bytes());
        let server = serve(&place, "model.gguf", more, &hub);
        assert_eq!(server.pull("hf:owner/private").0, 200);
        let with_token = hub.state.lock().unwrap().with_token;
        assert_eq!(with_token == hub.requests(), is_sent);
        assert_eq!(with_token > 0, is_sent);
        drop(server);
        succeed(&place.triad(&["remove", "hf:owner/private"]));
    }
    let refused = place.triad(&["serve", "--pull-token", "-m", "model.gguf"]);
    assert!(
        stderr(&refused).contains("--allow-pull"),
        "{}",
        stderr(&refused)
    );
}

#[test]
#[cfg(unix)]
fn what_the_disk_has_no_room_for_is_refused_with_the_missing_bytes() {
    let place = fetched();
    let hub = Hub::start(Gguf::tiny().bytes());
    hub.state.lock().unwrap().stated = Some(1 << 60);
    let mut pull = place.command(&["pull", "hf:owner/huge"]);
    pull.env("HF_ENDPOINT", format!("http://{}", hub.address));
    let refused = stderr(&pull.output().unwrap());
    assert!(
        refused.contains("owner/huge needs 1152921504606846976 more bytes")
            && refused.contains("bytes are missing"),
        "{refused}"
    );
    let server = serve(&place, "model.gguf", &[], &hub);
    let (status, error) = server.pull("hf:owner/huge");
    assert!(
        status == 507 && error.contains("(fetches leave 5 % of it free)"),
        "{error}"
    );
    assert!(!error.contains("cache"), "{error}");
    assert_eq!(hub.state.lock().unwrap().fetches, 0);
}

/// The system ends each file of the process at 128 blocks of 512 bytes, in the middle of a write.
#[cfg(unix)]
#[test]
fn a_full_disk_ends_a_pull_by_name_and_the_next_one_goes_on() {
    let place = Place::new();
    let whole = [Gguf::tiny().bytes(), vec![0; 300_000]].concat();
    let hub = Hub::start(whole.clone());
    let pull = place.command(&["pull", MODEL]);
    let program = pull.get_program().to_str().unwrap().to_owned();
    let mut limited = std::process::Command::new("/bin/sh");
    let script = format!("trap '' XFSZ; ulimit -f 128; exec {program} pull {MODEL}");
    limited.args(["-c", &script]).current_dir(place.path(""));
    let variables = pull.get_envs();
    limited.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    let address = format!("http://{}", hub.address);
    let full = limited.env("HF_ENDPOINT", &address).output().unwrap();
    let printed = stderr(&full);
    assert!(
        !full.status.success() && printed.contains("m.gguf.part: cannot write at byte "),
        "{printed}"
    );
    let part = place.path("cache/hf/owner/name/m.gguf.part");
    let kept = std::fs::metadata(&part).unwrap().len();
    assert_eq!(kept % 512, 0);
    assert!(kept > 0 && kept < whole.len() as u64, "{kept}");
    // It counts as no model, but is listed as what it is.
    let listed = json(&place.triad(&["list", "--json"]));
    let unfinished = json!([{"name": MODEL, "bytes": kept, "complete": false}]);
    assert_eq!(listed, unfinished);
    let listed = place.triad(&["list"]);
    let (rows, note) = (succeed(&listed), stderr(&listed));
    assert!(
        rows.contains(MODEL) && rows.contains("unfinished"),
        "{rows}"
    );
    assert!(
        note.contains("triad pull hf:owner/name continues it"),
        "{note}"
    );
    let mut pull = pull;
    pull.env("HF_ENDPOINT", &address);
    succeed(&pull.output().unwrap());
    assert_eq!(hub.state.lock().unwrap().from as u64, kept);
    let file = place.path("cache/hf/owner/name/m.gguf");
    assert_eq!(std::fs::read(file).unwrap(), whole);
    assert_eq!(json(&place.triad(&["list", "--json"]))[0]["complete"], true);
}

#[test]
fn an_unfinished_download_is_removed_by_its_name() {
    let place = fetched();
    place.write("cache/hf/owner/name/n.gguf.part", [7; 9]);
    let name = "hf:owner/name:n.gguf";
    let removed = stderr(&place.triad(&["remove", name]));
    assert!(
        removed.contains("removed hf:owner/name:n.gguf"),
        "{removed}"
    );
    let listed = json(&place.triad(&["list", "--json"]));
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["name"], MODEL);
}

#[cfg(unix)]
#[test]
fn files_that_the_owner_has_linked_stay_as_they_are() {
    let place = fetched();
    let mine = place.path("mine");
    std::fs::create_dir(&mine).unwrap();
    std::fs::rename(place.path("cache/hf/owner/name"), mine.join("name")).unwrap();
    std::os::unix::fs::symlink(mine.join("name"), place.path("cache/hf/owner/name")).unwrap();
    let hub = Hub::start(changed());
    let server = serve(&place, "model.gguf", &[], &hub);
    assert_eq!(server.complete(MODEL).0, 200);
    for name in [MODEL, "hf:owner/name:m.gguf", "hf:owner/name:new.gguf"] {
        assert_eq!(server.pull(name).0, 403, "{name}");
        let (status, _) = server.ask("DELETE", "/api/delete", &model(name));
        assert_eq!(status, 403, "{name}");
    }
    assert_eq!(hub.requests(), 0);
    assert_eq!(std::fs::read_dir(mine.join("name")).unwrap().count(), 2);
    // The command removes the link.
    succeed(&place.triad(&["remove", MODEL]));
    assert!(!place.path("cache/hf/owner/name").exists() && mine.join("name/m.gguf").exists());
}
