//! Answers as unmodified packages for other servers read them.

use serde_json::{Value, json};
use triad_server::routes;

use crate::support::{Server, add, events, post};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, "temperature": 0});
    add(&mut body, more);
    body
}

/// Returns a request without a body.
fn request(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
}

#[test]
fn the_first_event_of_a_message_has_the_cached_tokens_of_the_last() {
    let server = Server::start();
    let words = "many words of one prompt ".repeat(4);
    let body = chat(json!({"messages": [{"role": "user", "content": words}], "stream": true}));
    let mut cached = Vec::new();
    for _ in 0..2 {
        let events = events(&server.post(MESSAGES, &body));
        let kinds: Vec<_> = events.iter().map(|event| &event["type"]).collect();
        assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
        let starts = kinds.iter().filter(|kind| **kind == "message_start");
        assert_eq!(starts.count(), 1);
        let (first, last) = (
            &events[0]["message"]["usage"],
            &events[events.len() - 2]["usage"],
        );
        for name in [
            "input_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
        ] {
            assert_eq!(first[name], last[name], "{name}: {first}, {last}");
        }
        assert_eq!(first["output_tokens"], 0);
        cached.push(first["cache_read_input_tokens"].as_u64().unwrap());
        // The next request finds the prompt.
        server.wait_until_idle();
    }
    assert!(cached[0] == 0 && cached[1] > 0, "{cached:?}");
}

#[test]
fn a_kept_response_is_not_returned_to_a_client_that_expects_events() {
    let server = Server::start();
    let body = json!({"input": "Hi", "max_output_tokens": 2});
    let response = server.post("/v1/responses", &body).good();
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    for query in [
        "",
        "?stream=false",
        "?stream=",
        "?include=message.output_text.logprobs&include_obfuscation=false&stream=False",
        "?api-version=1",
    ] {
        let kept = server.get(&format!("{path}{query}")).good();
        assert_eq!(kept["output"], response["output"], "{query}");
    }
    for (query, name) in [
        ("?stream=true", "stream"),
        (
            "?include=message.output_text.logprobs&stream=True",
            "stream",
        ),
        ("?stream=1", "stream"),
        ("?starting_after=3", "starting_after"),
    ] {
        let refused = server.get(&format!("{path}{query}")).error(400);
        assert_eq!(refused["param"], name, "{query}");
        assert_eq!(refused["code"], "unsupported_parameter", "{query}");
    }
}

#[test]
fn a_form_may_be_given_by_its_older_and_its_newer_name() {
    let server = Server::start();
    let schema = json!({"const": "a"});
    for (form, expected) in [
        (
            json!({"structured_outputs": {"grammar": "start: \"x\" \"y\""}, "guided_grammar": "start: \"x\" \"y\""}),
            "xy",
        ),
        (
            json!({"structured_outputs": {"regex": "b{3}"}, "guided_regex": "b{3}"}),
            "bbb",
        ),
        (
            json!({"structured_outputs": {"choice": ["a.b"]}, "guided_choice": ["a.b"]}),
            "a.b",
        ),
        (
            json!({
                "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
                "structured_outputs": {"json": schema}, "guided_json": schema, "json_schema": schema
            }),
            "\"a\"",
        ),
    ] {
        let answer = server.post(CHAT, &chat(form.clone())).good();
        assert_eq!(
            answer["choices"][0]["message"]["content"], expected,
            "{form}"
        );
    }
    for (form, field) in [
        (
            json!({"structured_outputs": {"regex": "b{3}"}, "guided_regex": "b{4}"}),
            "guided_regex",
        ),
        (
            json!({"structured_outputs": {"json": schema}, "guided_json": schema, "guided_regex": "a"}),
            "guided_regex",
        ),
        (
            json!({"structured_outputs": {"regex": "\"a\""}, "guided_json": schema}),
            "guided_json",
        ),
    ] {
        assert_eq!(server.post(CHAT, &chat(form)).error(400)["param"], field);
    }
}

/// Returns the kind of the API's form that an error has.
fn form(body: &Value) -> &'static str {
    match (&body["error"], &body["type"]) {
        (Value::String(message), _) if !message.is_empty() => "ollama",
        (Value::Object(error), Value::String(_)) if error["type"].is_string() => "anthropic",
        (Value::Object(error), Value::Null) if error.contains_key("code") => "openai",
        _ => panic!("{body}"),
    }
}

#[test]
fn a_path_that_is_no_text_is_refused_in_the_form_of_its_api() {
    let server = Server::start();
    let version = "anthropic-version: 2023-06-01\r\n";
    let mut count = 0;
    for route in routes().iter().filter(|route| route.path.contains('{')) {
        let path = route.path.replace("{*", "{");
        let path: Vec<_> = path
            .split('/')
            .map(|part| if part.starts_with('{') { "%ff" } else { part })
            .collect();
        let path = path.join("/");
        let body = "Content-Type: application/json\r\nContent-Length: 2\r\n";
        let forms: &[_] = match path.starts_with("/v1/models/") {
            true => &[("", "openai"), (version, "anthropic")],
            false => &[("", "openai")],
        };
        for (headers, expected) in forms {
            let head = request(route.method, &path, &format!("{headers}{body}"));
            let reply = server.send(&format!("{head}{{}}"));
            assert_eq!(reply.status, 400, "{} {path}: {reply:?}", route.method);
            assert_eq!(form(&reply.json()), *expected, "{path}: {}", reply.body);
            count += 1;
        }
    }
    assert!(count >= 14, "{count}");
}

#[test]
fn a_path_that_is_not_there_is_told_in_the_form_of_the_clients_api() {
    let server = Server::start();
    let version = "anthropic-version: 2023-06-01\r\n";
    for (method, path, headers, expected) in [
        ("GET", "/api", "", "ollama"),
        ("GET", "/api/", "", "ollama"),
        ("POST", "/api/create", "", "ollama"),
        ("GET", "/api/blobs/x", version, "ollama"),
        ("GET", "/v1/files", "", "openai"),
        ("GET", "/apis", "", "openai"),
        ("GET", "/v1/files", version, "anthropic"),
        ("POST", "/v1/complete", version, "anthropic"),
        ("DELETE", "/v1/messages/batches/a", "", "anthropic"),
        // The path is there, and is OpenAI's alone.
        ("GET", CHAT, version, "openai"),
    ] {
        let reply = server.send(&request(method, path, headers));
        let what = format!("{method} {path} {headers}: {reply:?}");
        assert!([404, 405].contains(&reply.status), "{what}");
        assert_eq!(form(&reply.json()), expected, "{what}");
        let names_request = reply
            .headers
            .to_lowercase()
            .contains("\r\nrequest-id: req_");
        assert_eq!(names_request, expected == "anthropic", "{what}");
    }
}

#[test]
fn an_error_names_the_field_that_the_client_sent() {
    let server = Server::start();
    let with = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        add(&mut body, more);
        body
    };
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let refused = server.post(CHAT, &with(json!({name: 0}))).error(400);
        assert_eq!(refused["param"], name);
    }
    for stops in [json!([""]), json!(vec!["a"; 17])] {
        let body = with(json!({"max_tokens": 1, "stop_sequences": stops}));
        let refused = server.post(MESSAGES, &body);
        assert_eq!(refused.status, 400, "{}", refused.body);
        let message = refused.json()["error"]["message"].clone();
        let message = message.as_str().unwrap();
        assert!(message.starts_with("stop_sequences: "), "{message}");
    }
}

#[test]
fn the_tokens_of_a_message_are_counted_with_the_edits_that_the_message_takes() {
    let server = Server::start();
    let edits = |keep: &str| json!({"edits": [{"type": "clear_thinking_20251015", "keep": keep}]});
    for (path, more) in [
        (MESSAGES, json!({"max_tokens": 1})),
        ("/v1/messages/count_tokens", json!({})),
    ] {
        let status = |management: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "context_management": management});
            add(&mut body, more.clone());
            server.send(&post(path, &body.to_string(), "")).status
        };
        assert_eq!(status(edits("all")), 200, "{path}");
        assert_eq!(status(json!({"edits": []})), 200, "{path}");
        assert_eq!(status(edits("none")), 400, "{path}");
    }
}

#[test]
fn a_request_for_vectors_of_nothing_loads_the_model() {
    let server = Server::start();
    for body in [json!({}), json!({"input": ""}), json!({"input": []})] {
        let embedded = server.post("/api/embed", &body).good();
        assert_eq!(embedded["embeddings"], json!([]), "{body}");
    }
    for body in [json!({}), json!({"prompt": ""})] {
        let embedded = server.post("/api/embeddings", &body).good();
        assert_eq!(embedded, json!({"embedding": []}), "{body}");
    }
    // A text among others has a place in the answer, and no vector.
    let refused = server.post("/api/embed", &json!({"input": ["", "a"]}));
    assert_eq!(refused.status, 400, "{}", refused.body);
}
