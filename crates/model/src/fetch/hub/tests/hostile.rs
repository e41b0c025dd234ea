//! Hubs whose repositories change, and hubs that do not keep what they state.

use std::sync::Mutex;
use std::time::Instant;

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// From `printf {} | git hash-object --stdin`.
const GIT_OF_BRACES: &str = "9e26dfeeb6e641a33dae4961196235bdb965b21b";

#[test]
fn a_file_that_is_never_as_long_as_stated_is_given_up() {
    for (sha256, is_cut) in [(None, false), (None, true), (Some("00"), true)] {
        let server = Server::start(move |request| match request.path.as_str() {
            "/api/models/o/n?blobs=true" => listing(&[("model.gguf", 768, sha256)]),
            _ if is_cut => Response::ranged(request, &[7; 768], Some(767)),
            _ => Response::ok(vec![7; 767]),
        });
        let cache = tempfile::tempdir().unwrap();
        let error = pull(&server, cache.path()).unwrap_err().to_string();
        let expected = if is_cut {
            "the network failed at byte 767"
        } else {
            "767 bytes were fetched, expected 768; what was fetched is removed"
        };
        assert!(error.contains(expected), "{error}");
        assert!(server.requests().len() < 10, "{}", server.requests().len());
    }
}

#[test]
fn a_part_that_never_grows_is_not_asked_for_without_end() {
    // The file is one byte shorter than stated, so its rest is never there.
    let server = one_gguf("00", |request| {
        Response::ranged(request, &[7; 599_999], None)
    });
    let cache = tempfile::tempdir().unwrap();
    let part = cache.path().join("hf/o/n/model.gguf.part");
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, [7; 599_999]).unwrap();
    pull(&server, cache.path()).unwrap_err();
    assert!(server.requests().len() < 10, "{}", server.requests().len());
}

#[test]
fn all_files_come_from_the_commit_of_the_list() {
    let server = Server::start(|request| {
        let folder = format!("/o/n/resolve/{COMMIT}/");
        match request.path.as_str() {
            "/api/models/o/n?blobs=true" => Response::ok(
                serde_json::json!({"sha": COMMIT, "siblings": [
                    {"rfilename": "config.json", "size": 2},
                    {"rfilename": "model.safetensors", "size": 2},
                ]})
                .to_string(),
            ),
            path if path.starts_with(&folder) => Response::ok("{}"),
            _ => Response::status(404),
        }
    });
    let cache = tempfile::tempdir().unwrap();
    pull(&server, cache.path()).unwrap();
    let server = Server::start(|_| Response::ok(r#"{"sha": "../../x", "siblings": []}"#));
    let error = pull(&server, cache.path()).unwrap_err().to_string();
    assert!(
        error.contains("has the `sha` \"../../x\", expected"),
        "{error}"
    );
}

#[test]
fn a_small_file_has_the_hash_that_git_gives_it() {
    let start = |config: &'static str| {
        Server::start(move |request| match request.path.as_str() {
            "/api/models/o/n?blobs=true" => Response::ok(
                serde_json::json!({"siblings": [
                    {"rfilename": "config.json", "size": 2, "blobId": GIT_OF_BRACES},
                    {"rfilename": "model.safetensors", "size": 2},
                ]})
                .to_string(),
            ),
            path if path.ends_with("config.json") => Response::ok(config),
            _ => Response::ok("{}"),
        })
    };
    let cache = tempfile::tempdir().unwrap();
    let error = pull(&start("[]"), cache.path()).unwrap_err().to_string();
    assert!(
        error.contains(&format!("expected {GIT_OF_BRACES}")),
        "{error}"
    );
    let server = start("{}");
    pull(&server, cache.path()).unwrap();
    pull(&server, cache.path()).unwrap();
    let requests = server.requests();
    let of_config = requests
        .iter()
        .filter(|request| request.path.ends_with("config.json"));
    assert_eq!(
        of_config.count(),
        1,
        "a file with this hash is not fetched again"
    );
}

#[test]
fn a_pull_of_several_parts_that_broke_off_leaves_no_model() {
    const NAMES: [&str; 2] = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"];
    // The version of each part; `None`: it is refused.
    let versions = Arc::new(Mutex::new([Some("one"), Some("one")]));
    let served = Arc::clone(&versions);
    let server = Server::start(move |request| match request.path.as_str() {
        "/api/models/o/n?blobs=true" => listing(&NAMES.map(|name| (name, 3, None))),
        path => {
            let part = usize::from(path.ends_with(NAMES[1]));
            let version = served.lock().unwrap()[part];
            version.map_or(Response::status(404), Response::ok)
        }
    });
    for (first, second) in [(Some(NAMES[0]), None), (None, Some(NAMES[0]))] {
        let cache = tempfile::tempdir().unwrap();
        let hub = hub_of(&server);
        let pull = |file| hub.pull(cache.path(), &repository(file), &());
        *versions.lock().unwrap() = [Some("one"); 2];
        let path = pull(first).unwrap();
        assert_eq!(cached(cache.path(), &repository(first)), Some(path));
        *versions.lock().unwrap() = [Some("two"), None];
        pull(first).unwrap_err();
        for file in [first, second] {
            assert_eq!(cached(cache.path(), &repository(file)), None, "{file:?}");
        }
        *versions.lock().unwrap() = [Some("two"); 2];
        let path = pull(first).unwrap();
        assert_eq!(cached(cache.path(), &repository(first)), Some(path));
        assert_eq!(files(cache.path()), [&NAMES[..], &["pulled.json"]].concat());
    }
}

#[test]
fn every_file_that_a_model_is_read_from_is_fetched() {
    const FILES: [&str; 10] = [
        "1_Pooling/config.json",
        "added_tokens.json",
        "additional_chat_templates/tool_use.jinja",
        "chat_template.tool_use.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.model",
        "tokenizer_config.json",
    ];
    let server = Server::start(|request| match request.path.as_str() {
        "/api/models/o/n?blobs=true" => {
            let all = FILES.into_iter().chain(["README.md", "onnx/config.json"]);
            listing(&all.map(|name| (name, 2, None)).collect::<Vec<_>>())
        }
        _ => Response::ok("{}"),
    });
    let cache = tempfile::tempdir().unwrap();
    let folder = pull(&server, cache.path()).unwrap();
    for file in FILES {
        assert!(folder.join(file).is_file(), "{file}");
    }
    assert!(!folder.join("README.md").exists() && !folder.join("onnx").exists());
}

#[test]
fn a_silent_hub_can_be_cancelled() {
    struct Impatient(Instant);
    impl Progress for Impatient {
        fn step(&self, _: &str) {}
        fn bytes(&self, _: &str, _: u64, _: Option<u64>) {}
        fn cancelled(&self) -> bool {
            self.0.elapsed() > Duration::from_millis(200)
        }
    }
    // It is silent at the listing, before a file, or within it.
    for silent in ["/api/models", "/o/n/resolve", "body"] {
        let server = Server::start(move |request| {
            if request.path.starts_with(silent) {
                std::thread::sleep(Duration::from_secs(30));
            }
            match request.path.as_str() {
                "/api/models/o/n?blobs=true" => listing(&[("model.gguf", 3, None)]),
                _ => Response {
                    pause: Some(Duration::from_secs(30)),
                    ..Response::ok("abc")
                },
            }
        });
        let cache = tempfile::tempdir().unwrap();
        let hub = hub_of(&server);
        let start = Instant::now();
        let progress = Impatient(start);
        let error = hub
            .pull(cache.path(), &repository(None), &progress)
            .unwrap_err();
        assert_eq!(error.to_string(), "the fetch was cancelled");
        assert!(start.elapsed() < Duration::from_secs(20), "{silent}");
    }
}

#[test]
fn a_repository_replaces_no_file_of_the_program() {
    for name in [
        "pulled.json",
        ".lock",
        "Pulled.JSON",
        "config.json.part",
        ".lock/x",
    ] {
        let server = Server::start(move |request| match request.path.as_str() {
            "/api/models/o/n?blobs=true" => {
                listing(&[("config.json", 2, None), (INDEX, 40, None), (name, 2, None)])
            }
            path if path.ends_with(INDEX) => {
                let index = serde_json::json!({"weight_map": {"a": name}}).to_string();
                Response::ok(format!("{index:<40}"))
            }
            _ => Response::ok("{}"),
        });
        let cache = tempfile::tempdir().unwrap();
        let error = pull(&server, cache.path()).unwrap_err().to_string();
        assert!(
            error.contains("a name of Triad's own files"),
            "{name}: {error}"
        );
        let is_asked_for = |request: &Request| request.path.ends_with(name);
        assert!(!server.requests().iter().any(is_asked_for), "{name}");
    }
}

#[test]
fn a_file_that_no_later_pull_continues_leaves_no_part() {
    let listing = Response::ok(r#"{"siblings": [{"rfilename": "model.gguf"}]}"#);
    let server = Server::start(move |request| match request.path.as_str() {
        "/api/models/o/n?blobs=true" => listing.clone(),
        _ => Response::ranged(request, &[7; 768], Some(767)),
    });
    let cache = tempfile::tempdir().unwrap();
    pull(&server, cache.path()).unwrap_err();
    assert!(!cache.path().join("hf/o/n/model.gguf.part").exists());
}

#[test]
fn an_endpoint_is_an_address_and_its_password_is_not_shown() {
    for endpoint in [
        "https://hub.co",
        "http://hub.co:8/sub/",
        "https://me:pass@hub.co",
    ] {
        environment::check_endpoint(endpoint).unwrap();
    }
    for endpoint in [
        "hub.co",
        "ftp://hub.co",
        "http://",
        "http://me:pass@hub.co?a",
        "http://hub.co#a",
    ] {
        let error = environment::check_endpoint(endpoint)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("HF_ENDPOINT is ") && !error.contains("pass"),
            "{error}"
        );
    }
    for (token, is_one) in [
        ("hf_Ab.1-2", true),
        ("a b", false),
        ("a\nb", false),
        ("\u{e9}", false),
    ] {
        assert_eq!(environment::check_token(token).is_ok(), is_one, "{token:?}");
    }
    let server = Server::start(|_| Response::status(404));
    let endpoint = server.endpoint.replace("http://", "http://me:pass@");
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::new(&endpoint, None, None);
    let error = hub
        .pull(cache.path(), &repository(None), &())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("there is no model o/n") && !error.contains("pass"),
        "{error}"
    );
}
