//! Prompts whose KV cache is saved in files.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::Server;

fn server(folder: &Path) -> Server {
    let folder = folder.to_owned();
    Server::with(|options| options.sessions = Some(folder))
}

fn ask(server: &Server, messages: &Value) -> (String, u64) {
    let body = json!({"messages": messages, "max_tokens": 8, "temperature": 0});
    let reply = server.post("/v1/chat/completions", &body).good();
    let answer = reply["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    (
        answer,
        reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap(),
    )
}

#[test]
fn a_restored_session_is_found_by_prompts_that_begin_as_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let begin = json!([{"role": "system", "content": "Be brief. ".repeat(30)}]);
    let mut whole = begin.clone();
    whole
        .as_array_mut()
        .unwrap()
        .push(json!({"role": "user", "content": "Hello"}));
    let (saved, alone) = {
        let server = server(folder.path());
        let (answer, cached) = ask(&server, &whole);
        assert_eq!(cached, 0);
        (
            server
                .post("/sessions/talk-1/save", &json!({"messages": begin}))
                .good(),
            answer,
        )
    };
    let server = server(folder.path());
    let list = server.get("/sessions").good();
    assert_eq!(
        (&list["data"][0]["name"], &list["data"][0]["bytes"]),
        (&json!("talk-1"), &saved["bytes"])
    );
    assert_eq!(
        server.post("/sessions/talk-1/restore", &json!({})).good(),
        saved
    );
    let (answer, cached) = ask(&server, &whole);
    assert_eq!(answer, alone);
    assert_eq!(cached, saved["tokens"].as_u64().unwrap());
    let delete = |name: &str| {
        server
            .send(&format!(
                "DELETE /sessions/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            ))
            .status
    };
    assert_eq!([delete("talk-1"), delete("talk-1")], [204, 404]);
    assert_eq!(
        server.post("/sessions/talk-1/restore", &json!({})).status,
        404
    );
}

#[test]
fn names_lead_nowhere_else_and_nothing_is_left_over() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("sessions");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(folder.path().join("other.session"), "kept").unwrap();
    let server = server(&inside);
    let long = "a".repeat(65);
    for name in [
        "..%2fother",
        "%2e%2e%2fother",
        "..",
        "%00",
        "a.b",
        "a%20b",
        "%C3%A9",
        ".%2fother",
        "C:%5cother",
        &long,
    ] {
        for action in ["save", "restore"] {
            let reply = server.post(
                &format!("/sessions/{name}/{action}"),
                &json!({"prompt": "a"}),
            );
            assert!([400, 404].contains(&reply.status), "{name}: {reply:?}");
        }
    }
    assert_eq!(
        std::fs::read(folder.path().join("other.session")).unwrap(),
        b"kept"
    );
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn a_session_replaces_a_link_and_a_pipe_of_its_name_and_writes_to_neither() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("sessions");
    std::fs::create_dir(&inside).unwrap();
    let outside = folder.path().join("outside");
    std::fs::write(&outside, "kept").unwrap();
    let path = |name: &str| inside.join(format!("{name}.session"));
    std::os::unix::fs::symlink(&outside, path("link")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("none"), path("dangling")).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(path("pipe"))
        .status();
    assert!(made.unwrap().success());
    let server = server(&inside);
    for name in ["link", "dangling", "pipe"] {
        let saved = server.post(
            &format!("/sessions/{name}/save"),
            &json!({"prompt": "ab ".repeat(40)}),
        );
        saved.good();
        let is_file = std::fs::symlink_metadata(path(name)).unwrap().is_file();
        assert!(is_file, "{name}");
        server
            .post(&format!("/sessions/{name}/restore"), &json!({}))
            .good();
    }
    assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
    assert!(!folder.path().join("none").exists());
}

#[test]
fn what_is_no_session_is_refused_and_so_is_all_without_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    server
        .post("/sessions/a/save", &json!({"prompt": "ab ".repeat(40)}))
        .good();
    let path = folder.path().join("a.session");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let damaged = server.post("/sessions/a/restore", &json!({}));
    assert_eq!(
        (damaged.status, &damaged.json()["error"]["code"]),
        (400, &json!("invalid_session"))
    );
    assert!(
        !damaged.body.contains(folder.path().to_str().unwrap()),
        "{damaged:?}"
    );
    for body in [
        json!({}),
        json!({"prompt": "a", "messages": []}),
        json!({"prompt": ""}),
        json!({"messages": []}),
    ] {
        assert_eq!(server.post("/sessions/b/save", &body).status, 400, "{body}");
    }
    assert_eq!(Server::start().get("/sessions").status, 404);
}

#[test]
fn what_the_folder_of_sessions_lacks_is_an_error_that_does_not_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("secret");
    std::fs::write(&inside, "no folder").unwrap();
    let server = server(&inside);
    let replies = [
        server.get("/sessions"),
        server.post("/sessions/a/save", &json!({"prompt": "a"})),
    ];
    for reply in replies {
        assert_eq!(reply.error(500)["type"], "server_error");
        let text = reply.body.to_lowercase();
        assert!(
            ["secret", "directory", "os error", "/tmp"]
                .iter()
                .all(|word| !text.contains(word)),
            "{reply:?}"
        );
    }
}
