//! Isolation of keys: no key can access data of another key, on any route.

use serde_json::{Value, json};

use crate::support::{Reply, Server, add, post};

fn server(change: impl FnOnce(&mut triad_server::ServerOptions)) -> Server {
    Server::with(|options| {
        options.api_keys = vec!["alice".into(), "bob".into()];
        change(options);
    })
}

fn ask(server: &Server, key: &str, path: &str, body: &Value) -> Reply {
    server.send(&post(
        path,
        &body.to_string(),
        &format!("Authorization: Bearer {key}\r\n"),
    ))
}

fn send(server: &Server, key: &str, method: &str, path: &str) -> Reply {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    server.send(&format!("{head}Authorization: Bearer {key}\r\n\r\n"))
}

/// Returns each endpoint that computes a prompt: its path, its body without a token limit, and the JSON pointer of the
/// number of cached tokens in the response.
fn endpoints(text: &str) -> [(&'static str, Value, &'static str); 4] {
    let messages = json!([{"role": "user", "content": text}]);
    [
        (
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 1}),
            "/usage/prompt_tokens_details/cached_tokens",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 1}),
            "/usage/prompt_tokens_details/cached_tokens",
        ),
        (
            "/v1/responses",
            json!({"input": text, "max_output_tokens": 1}),
            "/usage/input_tokens_details/cached_tokens",
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 1}),
            "/usage/cache_read_input_tokens",
        ),
    ]
}

/// Returns a text of more than one KV page, since only whole pages are reused.
fn secret(number: usize) -> String {
    format!(
        "{} The number is {number}. {}",
        "This is a secret. ".repeat(20),
        "Keep it well. ".repeat(4)
    )
}

fn cached(reply: &Reply, place: &str) -> u64 {
    reply
        .good()
        .pointer(place)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("{place}: {}", reply.body))
}

#[test]
fn no_endpoint_finds_what_another_key_asked() {
    for (path, body, place) in endpoints(&secret(0)) {
        for (other, others_body, others_place) in endpoints(&secret(0)) {
            let server = server(|_| {});
            assert_eq!(cached(&ask(&server, "alice", path, &body), place), 0);
            let found = cached(&ask(&server, "bob", other, &others_body), others_place);
            assert_eq!(found, 0, "{other} tells of {path}");
            assert!(
                cached(&ask(&server, "alice", path, &body), place) >= 256,
                "{path}: a key finds its own prompts"
            );
        }
    }
    // Streams of several completions and scored prompts don't share prompts across keys either.
    for mut body in [
        json!({"n": 2, "stream": true}),
        json!({"echo": true, "logprobs": 1, "stream": true}),
    ] {
        add(
            &mut body,
            json!({"prompt": secret(0), "max_tokens": 1, "stream_options": {"include_usage": true}}),
        );
        let server = server(|_| {});
        for key in ["alice", "bob"] {
            let chunks = ask(&server, key, "/v1/completions", &body).chunks();
            let usage = chunks
                .last()
                .and_then(|chunk| chunk.pointer("/usage/prompt_tokens_details/cached_tokens"));
            assert_eq!(usage, Some(&json!(0)), "{key}: {body}");
        }
    }
}

#[test]
fn requests_without_a_key_have_one_owner() {
    let server = Server::start();
    let (path, body, place) = endpoints(&secret(0))[0].clone();
    assert_eq!(cached(&server.post(path, &body), place), 0);
    // The owner is the same if a client sends a key to a server without keys.
    assert!(cached(&ask(&server, "alice", path, &body), place) >= 256);
}

#[test]
fn keys_share_prompts_and_sessions_where_the_server_was_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(|options| {
        (options.shares_prompts, options.sessions) = (true, Some(folder.path().to_owned()));
    });
    let (path, body, place) = endpoints(&secret(0))[0].clone();
    assert_eq!(cached(&ask(&server, "alice", path, &body), place), 0);
    assert!(cached(&ask(&server, "bob", path, &body), place) >= 256);
    ask(
        &server,
        "alice",
        "/sessions/a/save",
        &json!({"prompt": "a"}),
    )
    .good();
    ask(&server, "bob", "/sessions/a/restore", &json!({})).good();
    assert_eq!(send(&server, "bob", "GET", "/metrics").status, 200);
}

#[test]
fn a_saved_session_is_there_for_its_key_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(|options| options.sessions = Some(folder.path().to_owned()));
    let names = |key: &str| {
        let list = send(&server, key, "GET", "/sessions").good()["data"].clone();
        list.as_array()
            .unwrap()
            .iter()
            .map(|file| file["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let prompt = |number| json!({"prompt": secret(number)});
    ask(&server, "alice", "/sessions/a/save", &prompt(1)).good();
    ask(&server, "alice", "/sessions/b/save", &prompt(1)).good();
    ask(&server, "bob", "/sessions/b/save", &prompt(2)).good();
    assert_eq!(
        (names("alice"), names("bob")),
        (vec!["a".into(), "b".into()], vec!["b".to_owned()])
    );
    assert_eq!(
        ask(&server, "bob", "/sessions/a/restore", &json!({})).error(404)["code"],
        "no_session"
    );
    assert_eq!(send(&server, "bob", "DELETE", "/sessions/a").status, 404);
    server.engine.forget_prefixes();
    // A session that one key restores is not reused by another key.
    ask(&server, "alice", "/sessions/b/restore", &json!({})).good();
    let (path, mut body, place) = endpoints("")[0].clone();
    body["prompt"] = secret(1).into();
    assert_eq!(cached(&ask(&server, "bob", path, &body), place), 0);
    assert!(cached(&ask(&server, "alice", path, &body), place) >= 256);
    // Deleting a session does not delete another key's session of the same name.
    assert_eq!(send(&server, "bob", "DELETE", "/sessions/b").status, 204);
    assert_eq!((names("alice").len(), names("bob").len()), (2, 0));
}

#[test]
fn a_timeline_is_there_for_its_key_alone() {
    let server = server(|_| {});
    let reply = ask(
        &server,
        "alice",
        "/v1/completions",
        &json!({"prompt": secret(0), "max_tokens": 1}),
    )
    .good();
    let path = format!("/v1/timelines/{}", reply["id"].as_str().unwrap());
    send(&server, "alice", "GET", &path).good();
    assert_eq!(
        send(&server, "bob", "GET", &path).error(404)["code"],
        "no_timeline"
    );
}

#[test]
fn numbers_of_all_keys_together_have_a_key_of_their_own() {
    let several = server(|_| {});
    for key in ["alice", "bob"] {
        assert_eq!(
            send(&several, key, "GET", "/metrics").error(403)["code"],
            "metrics_key_wanted"
        );
    }
    assert_eq!(send(&several, "eve", "GET", "/metrics").status, 401);
    let own = server(|options| options.metrics_key = Some("prometheus".into()));
    assert_eq!(send(&own, "prometheus", "GET", "/metrics").status, 200);
    assert_eq!(send(&own, "alice", "GET", "/metrics").status, 401);
    assert_eq!(send(&own, "prometheus", "GET", "/v1/models").status, 401);
    assert_eq!(
        ask(
            &own,
            "prometheus",
            "/v1/completions",
            &json!({"prompt": "a"})
        )
        .status,
        401
    );
    // With only one key, all metrics are those of that key.
    let one = Server::with(|options| options.api_keys = vec!["alice".into(), "alice".into()]);
    assert_eq!(send(&one, "alice", "GET", "/metrics").status, 200);
}

#[test]
fn no_answer_tells_how_many_tokens_other_keys_sent() {
    let server = server(|options| options.metrics_key = Some("prometheus".into()));
    let read = |paths: &[&str]| {
        paths
            .iter()
            .map(|path| send(&server, "bob", "GET", path).body)
            .collect::<Vec<_>>()
    };
    let paths = [
        "/props",
        "/v1/models",
        "/v1/models/tiny",
        "/sessions",
        "/health",
        "/openapi.json",
        "/metrics",
    ];
    let before = read(&paths);
    for (path, body, _) in endpoints(&secret(0)) {
        ask(&server, "alice", path, &body).good();
    }
    server.wait_until_idle();
    assert_eq!(read(&paths), before);
}
