//! Requests of agents and other clients that were written for other servers.

use serde_json::{Value, json};

use crate::support::{CONTEXT, NAME, Server, add, engine, post};
use triad_server::{HostedModel, LoadedModel, ModelFacts};

const CHAT: &str = "/v1/chat/completions";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4});
    add(&mut body, more);
    body
}

#[test]
fn tokens_of_a_message_are_counted_as_the_message_counts_them() {
    let server = Server::start();
    let tools = json!([{"name": "f", "input_schema": {"type": "object", "properties": {}}}]);
    for more in [
        json!({}),
        json!({"system": "Be brief"}),
        json!({"system": [{"type": "text", "text": "Be brief"}], "tools": tools}),
        json!({"thinking": {"type": "disabled"}}),
        json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is ("}]}),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        add(&mut body, more);
        let counted = server.post("/v1/messages/count_tokens", &body).good();
        body["max_tokens"] = 1.into();
        let usage = server.post("/v1/messages", &body).good()["usage"].clone();
        let used = usage["input_tokens"].as_u64().unwrap()
            + usage["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(counted, json!({"input_tokens": used}), "{body}");
    }
}

#[test]
fn contents_may_be_empty_or_null_where_nothing_is_said() {
    let server = Server::start();
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    for content in [Value::Null, json!(""), json!([])] {
        let messages = json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": content},
        ]);
        server
            .post(CHAT, &chat(json!({"messages": messages})))
            .good();
        let called = json!([{"type": "tool_use", "id": "a", "name": "f", "input": {}}]);
        let result = json!([{"type": "tool_result", "tool_use_id": "a", "content": content}]);
        let messages = json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": content},
            {"role": "user", "content": "Ho"}, {"role": "assistant", "content": called}, {"role": "user", "content": result},
        ]);
        server
            .post("/v1/messages", &chat(json!({"messages": messages})))
            .good();
    }
    server
        .post(
            CHAT,
            &chat(json!({"messages": [{"role": "user", "content": []}]})),
        )
        .good();
}

#[test]
fn thinking_of_earlier_messages_is_given_to_the_template_and_encrypted_thinking_is_not() {
    let server = Server::start();
    let tokens = |blocks: Value| {
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": blocks},
                              {"role": "user", "content": "Again"}]);
        let body = json!({"messages": messages});
        server.post("/v1/messages/count_tokens", &body).good()["input_tokens"].clone()
    };
    let count = |assistant: Value| {
        let messages = json!([{"role": "user", "content": "Hi"}, assistant, {"role": "user", "content": "Again"}]);
        server
            .post("/tokenize", &json!({"messages": messages}))
            .good()["count"]
            .clone()
    };
    let text = json!({"type": "text", "text": "Yo"});
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "x"});
    let redacted = json!({"type": "redacted_thinking", "data": "x"});
    let plain = count(json!({"role": "assistant", "content": "Yo"}));
    let thought = count(json!({"role": "assistant", "content": "Yo", "reasoning_content": "hm"}));
    assert_ne!(plain, thought);
    assert_eq!(tokens(json!([thinking, text])), thought);
    assert_eq!(tokens(json!([redacted, text])), plain);
    let empty = count(json!({"role": "assistant", "content": "", "reasoning_content": "hm"}));
    assert_eq!(tokens(json!([thinking])), empty);
}

#[test]
fn a_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for() {
    let server = Server::start();
    let long = "x".repeat(2 * CONTEXT);
    let messages = json!([{"role": "user", "content": long}]);
    for (path, body) in [
        (CHAT, json!({"messages": messages})),
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/responses", json!({"input": long})),
    ] {
        let error = server.post(path, &body).error(400);
        assert_eq!(error["code"], "context_length_exceeded");
        let message = error["message"].as_str().unwrap();
        for words in [
            format!("maximum context length is {CONTEXT} tokens"),
            "exceeds the available context size".into(),
        ] {
            assert!(message.contains(&words), "{path}: {message}");
        }
    }
    let refused = server.post(
        "/v1/messages",
        &json!({"messages": messages, "max_tokens": 1}),
    );
    let message = refused.json()["error"]["message"].clone();
    assert_eq!(refused.status, 400);
    assert!(
        message
            .as_str()
            .unwrap()
            .starts_with("prompt is too long: "),
        "{message}"
    );
}

#[test]
fn one_model_answers_for_any_name_unless_the_server_is_strict() {
    let asked = |server: &Server, name: &str| {
        let body = chat(json!({"model": name}));
        server.post(CHAT, &body)
    };
    let server = Server::start();
    for name in ["gpt-4o", NAME, "tiny:latest"] {
        assert_eq!(asked(&server, name).good()["model"], NAME);
    }
    let strict = Server::with(|options| options.strict_models = true);
    assert_eq!(
        asked(&strict, "gpt-4o").error(404)["code"],
        "model_not_found"
    );
    for name in [NAME, "tiny:latest"] {
        asked(&strict, name).good();
    }
}

#[test]
fn a_model_has_several_names_and_all_are_listed() {
    let (engine, folder) = engine(None);
    let hosted = |name: &str, aliases: &[&str]| {
        let engine = engine.clone();
        HostedModel {
            name: name.into(),
            aliases: aliases.iter().map(|name| (*name).to_owned()).collect(),
            bytes: 0,
            facts: ModelFacts::default(),
            check: Box::new(|| Ok(())),
            load: Box::new(move || {
                Ok(LoadedModel {
                    engine: engine.clone(),
                    adapters: Vec::new(),
                    is_current: Box::new(|| true),
                })
            }),
        }
    };
    let models = vec![hosted("a", &["gpt-4o", "mini"]), hosted("b", &[])];
    let server = Server::with_models((engine.clone(), folder), models, |_| {});
    let list = server.get("/v1/models").good()["data"].clone();
    let names: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(names, ["a", "gpt-4o", "mini", "b"]);
    for (name, expected) in [
        ("a", "a"),
        ("gpt-4o", "a"),
        ("mini:latest", "a"),
        ("b", "b"),
    ] {
        assert_eq!(
            server.post(CHAT, &chat(json!({"model": name}))).good()["model"],
            expected
        );
    }
    // Of several models, an unknown name is none.
    let error = server.post(CHAT, &chat(json!({"model": "c"}))).error(404);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("a, gpt-4o, mini, b"),
        "{error}"
    );
    server.get("/v1/models/mini").good();
}

#[test]
fn a_path_may_have_double_and_trailing_slashes() {
    let server = Server::start();
    for path in [
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions//",
    ] {
        server.post(path, &chat(json!({}))).good();
    }
    server.get("/health/?a=//").good();
    assert_eq!(server.get("/v1/nothing/").error(404)["code"], "unknown_url");
    // The guard sees the same path.
    let server = Server::with(|options| options.api_keys = vec!["key".into()]);
    server.get("//health/").good();
    server.get("//v1/models").error(401);
}

#[test]
fn a_host_that_is_allowed_may_be_named() {
    let ask = |server: &Server, host: &str| {
        let head = format!("GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        server.send(&head).status
    };
    let server = Server::with(|options| options.allowed_hosts = vec!["triad.example.org".into()]);
    assert_eq!(ask(&server, "triad.example.org"), 200);
    assert_eq!(ask(&server, "TRIAD.example.org:443"), 200);
    assert_eq!(ask(&server, "localhost"), 200);
    assert_eq!(ask(&server, "example.org"), 403);
    assert_eq!(ask(&Server::start(), "triad.example.org"), 403);
}

#[test]
fn metrics_have_the_format_that_the_client_accepts() {
    let server = Server::start();
    server.post(CHAT, &chat(json!({}))).good();
    let ask = |accept: &str| {
        let head = format!(
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: {accept}\r\n\r\n"
        );
        server.send(&head)
    };
    let open = ask("text/plain;q=0.3, application/openmetrics-text; version=1.0.0");
    assert!(
        open.headers.contains("application/openmetrics-text") && open.body.ends_with("# EOF\n")
    );
    assert!(
        open.body.contains("# TYPE triad_requests counter"),
        "{}",
        open.body
    );
    for accept in ["*/*", "text/plain"] {
        let text = ask(accept);
        assert!(
            text.headers.contains("text/plain; version=0.0.4"),
            "{}",
            text.headers
        );
        assert!(
            !text.body.contains("# EOF") && !text.body.contains("# UNIT"),
            "{}",
            text.body
        );
        for line in [
            "# TYPE triad_requests_total counter",
            "# HELP triad_requests_total ",
        ] {
            assert!(text.body.contains(line), "{}", text.body);
        }
        assert!(
            text.body.contains("\ntriad_requests_total{path="),
            "{}",
            text.body
        );
    }
}

#[test]
fn neutral_values_of_other_servers_are_taken() {
    let server = Server::start();
    let text = |more: Value| {
        server.post(CHAT, &chat(more)).good()["choices"][0]["message"]["content"].clone()
    };
    // No probability is left for a second token.
    let greedy = text(json!({"temperature": 0}));
    for seed in 0..4 {
        assert_eq!(
            text(json!({"temperature": 1, "top_p": 0, "seed": seed})),
            greedy
        );
    }
    let body = json!({"input": "Hi", "max_output_tokens": -1});
    assert_eq!(
        server.post("/v1/responses", &body).good()["usage"]["output_tokens"]
            .as_u64()
            .map(|tokens| tokens > 4),
        Some(true)
    );
    assert_eq!(
        server
            .post(
                "/v1/responses",
                &json!({"input": "Hi", "max_output_tokens": -2})
            )
            .error(400)["param"],
        "max_output_tokens"
    );
    let conflict =
        chat(json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false}}));
    assert_eq!(
        server.post(CHAT, &conflict).error(400)["param"],
        "enable_thinking"
    );
    let key = post(CHAT, &chat(json!({})).to_string(), "");
    server.send(&key).good();
}
