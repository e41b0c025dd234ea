//! Schemas of functions that do not constrain optional calls, which the answer names; and spellings of bodies and schemas.

use serde_json::{Value, json};

use crate::scripted::{Script, TEMPLATE};
use crate::support::{Reply, Server, add};

const HEADER: &str = "x-triad-schemas-left-out: ";
const CHAT: &str = "/v1/chat/completions";

fn schema(name: &str, of_one: &Value) -> Value {
    json!({"type": "object", "properties": {name: of_one}, "required": [name]})
}

/// Returns a request whose function `go` has this schema of its argument, next to a supported one.
fn chat(of_one: &Value, more: Value) -> Value {
    let function = |name: &str, schema: Value| json!({"type": "function", "function": {"name": name, "parameters": schema}});
    let tools = [
        function(
            "weather",
            schema("city", &json!({"enum": ["Oslo", "Rome"]})),
        ),
        function("go", schema("to", of_one)),
    ];
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 120, "temperature": 0, "tools": tools,
    });
    add(&mut body, more);
    body
}

/// Returns a server whose model begins a call of `weather` in a city that its schema does not have.
fn server() -> Server {
    let script = Script::new(&["<tool_call>", "</tool_call>"]).says(
        "<|a|>",
        &[
            "<tool_call>",
            "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"",
            "Paris\"}}\n",
            "</tool_call>",
            "<|end|>",
        ],
    );
    script.serve(&format!("{{# <tool_call> #}}{TEMPLATE}"))
}

/// Returns the functions that the header names.
fn left_out(reply: &Reply) -> Option<&str> {
    reply
        .headers
        .lines()
        .find_map(|line| line.strip_prefix(HEADER))
}

#[test]
fn a_schema_that_is_not_supported_is_named_and_does_not_free_the_other_functions() {
    let server = server();
    let unsupported = json!({"not": {"type": "null"}});
    // The schema of `weather` holds in both.
    for (of_one, named) in [
        (json!({"type": "integer"}), None),
        (unsupported.clone(), Some("go")),
    ] {
        let reply = server.post(CHAT, &chat(&of_one, json!({})));
        let answer = reply.good();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments = call["arguments"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"));
        assert!(
            ["Oslo", "Rome"].iter().any(|city| arguments.contains(city)),
            "{arguments}"
        );
        assert_eq!(left_out(&reply), named, "{}", reply.headers);
    }
    for (path, body) in [
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "tools": [
                {"name": "go", "input_schema": schema("to", &unsupported)},
            ]}),
        ),
        (
            "/v1/responses",
            json!({"input": "Hi", "max_output_tokens": 4, "tools": [
                {"type": "function", "name": "go", "parameters": schema("to", &unsupported)},
            ]}),
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 4}, "stream": false,
                   "tools": [{"type": "function", "function": {"name": "go", "parameters": schema("to", &unsupported)}}]}),
        ),
    ] {
        let reply = server.post(path, &body);
        reply.good();
        assert_eq!(left_out(&reply), Some("go"), "{path}: {}", reply.headers);
    }
    // Where a call or its schema is demanded, it is an error.
    let mut strict = chat(&unsupported, json!({}));
    strict["tools"][1]["function"]["strict"] = true.into();
    let required = chat(&unsupported, json!({"tool_choice": "required"}));
    for body in [strict, required] {
        let error = server.post(CHAT, &body).error(400);
        assert_eq!(error["param"], "tools[1].function.parameters", "{error}");
    }
}

#[test]
fn whole_numbers_of_schemas_may_be_written_as_floats_in_every_request() {
    let server = Server::start();
    let schema = json!({"type": "array", "items": {"type": "string", "maxLength": 2.0}, "minItems": 1.0, "maxItems": 2e0});
    let object = json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let is_good = |text: &str| {
        let value: Value =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let list = value["a"].as_array().unwrap();
        let is_short = |item: &Value| item.as_str().unwrap().chars().count() <= 2;
        (1..=2).contains(&list.len()) && list.iter().all(is_short)
    };
    let named = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": object}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": object}});
    let must = json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false});
    let chat = |more: Value| {
        let mut body = json!({"messages": hi, "max_tokens": 120, "temperature": 1, "seed": 3});
        add(&mut body, more);
        body
    };
    for (path, body, pointer) in [
        (
            CHAT,
            chat(json!({"response_format": named})),
            "/choices/0/message/content",
        ),
        (
            CHAT,
            chat(json!({"structured_outputs": {"json": object}})),
            "/choices/0/message/content",
        ),
        (
            CHAT,
            chat(must),
            "/choices/0/message/tool_calls/0/function/arguments",
        ),
        (
            "/completion",
            json!({"prompt": "Hi", "n_predict": 120, "seed": 3, "json_schema": object}),
            "/content",
        ),
        (
            "/api/chat",
            json!({"messages": hi, "stream": false, "format": object, "options": {"num_predict": 120, "seed": 3}}),
            "/message/content",
        ),
        (
            "/v1/messages",
            json!({"messages": hi, "max_tokens": 120, "output_config": {"format": {"type": "json_schema", "schema": object}}}),
            "/content/0/text",
        ),
    ] {
        let reply = server.post(path, &body).good();
        let text = reply.pointer(pointer).and_then(Value::as_str);
        let text = text.unwrap_or_else(|| panic!("{path}: {reply}"));
        assert!(is_good(text), "{path}: {text}");
    }
}

#[test]
fn a_byte_order_mark_before_a_body_is_ignored_in_every_request() {
    let server = Server::start();
    let hi = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        (CHAT, json!({"messages": hi, "max_tokens": 2})),
        ("/v1/completions", json!({"prompt": "Hi", "max_tokens": 2})),
        ("/v1/messages", json!({"messages": hi, "max_tokens": 2})),
        (
            "/v1/responses",
            json!({"input": "Hi", "max_output_tokens": 2}),
        ),
        ("/v1/embeddings", json!({"input": "Hi"})),
        ("/tokenize", json!({"content": "Hi"})),
        ("/completion", json!({"prompt": "Hi", "n_predict": 2})),
        (
            "/api/chat",
            json!({"messages": hi, "stream": false, "options": {"num_predict": 2}}),
        ),
        ("/api/show", json!({})),
    ] {
        server.post_text(path, &format!("\u{feff}{body}")).good();
        // Only one, and only at the start.
        let twice = server.post_text(path, &format!("\u{feff}\u{feff}{body}"));
        assert_eq!(twice.status, 400, "{path}");
    }
    // Large bodies are read elsewhere.
    let long = json!({"content": "a".repeat(100_000)});
    server
        .post_text("/tokenize", &format!("\u{feff}{long}"))
        .good();
}
