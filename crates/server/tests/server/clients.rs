//! Requests as client libraries of other servers send them.

use serde_json::{Value, json};

use crate::support::{NAME, Server, add, post};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "temperature": 0});
    add(&mut body, more);
    body
}

#[test]
fn a_program_may_send_json_without_its_type_but_no_page_of_another_site() {
    let server = Server::start();
    let body = chat(json!({"max_tokens": 1})).to_string();
    let request = |kind: &str, headers: &str| {
        let json = "Content-Type: application/json\r\n";
        server.send(&post(CHAT, &body, headers).replace(json, kind))
    };
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    for kind in [
        "",
        form,
        "content-type: Application/X-WWW-Form-Urlencoded; charset=utf-8\r\n",
        "Content-Type: text/plain;charset=UTF-8\r\n",
        "Content-Type: application/octet-stream\r\n",
        "Content-Type: multipart/form-data; boundary=a\r\n",
        "Content-Type: \r\n",
        "Content-Type: \u{e9}\r\n",
    ] {
        request(kind, "").good();
        for headers in [
            "Origin: http://example.org\r\n",
            "Origin: null\r\n",
            "Sec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: none\r\n",
        ] {
            let refused = request(kind, headers).error(415);
            assert_eq!(refused["code"], "unsupported_media_type", "{kind}{headers}");
        }
    }
    let origin = "Origin: http://example.org\r\n";
    assert_ne!(
        request("Content-Type: application/json\r\n", origin).status,
        415
    );
}

#[test]
fn the_schema_of_a_message_has_two_names() {
    let server = Server::start();
    let ask = |more: Value| server.post(MESSAGES, &chat(more));
    let format = |value: &str| json!({"type": "json_schema", "schema": {"const": value}});
    let text = |more: Value| ask(more).good()["content"][0]["text"].clone();
    let nested = json!({"format": format("a")});
    assert_eq!(text(json!({"output_format": format("a")})), "\"a\"");
    let both = json!({"output_format": format("a"), "output_config": nested});
    assert_eq!(text(both), "\"a\"");
    let differ = ask(json!({"output_format": format("b"), "output_config": nested}));
    assert!(
        differ.status == 400 && differ.body.contains("output_format: "),
        "{}",
        differ.body
    );
    let wrong = ask(json!({"output_format": {"type": "json_schema"}}));
    assert!(
        wrong.status == 400 && wrong.body.contains("output_format.schema: "),
        "{}",
        wrong.body
    );
}

#[test]
fn the_schema_of_a_format_may_be_its_value() {
    let server = Server::start();
    let ask = |format: Value| server.post(CHAT, &chat(json!({"response_format": format})));
    for kind in ["json", "json_object"] {
        let format = json!({"type": kind, "value": {"const": "a"}});
        let answer = ask(format).good();
        assert_eq!(
            answer["choices"][0]["message"]["content"], "\"a\"",
            "{kind}"
        );
    }
    let cases = [
        (
            json!({"type": "json", "value": {"const": "a"}, "schema": {"const": "b"}}),
            "response_format.value",
        ),
        (
            json!({"type": "json_schema", "value": {}, "json_schema": {"schema": {}}}),
            "response_format.value",
        ),
        (
            json!({"type": "json", "value": "a"}),
            "response_format.value",
        ),
        (
            json!({"type": "regex", "value": "a"}),
            "response_format.type",
        ),
    ];
    for (format, field) in cases {
        assert_eq!(ask(format).error(400)["param"], field);
    }
}

fn functions() -> [Value; 3] {
    ["one", "other", "third"].map(|name| {
        json!({"name": name, "parameters": {"type": "object", "properties": {}, "additionalProperties": false}})
    })
}

#[test]
fn only_the_allowed_tools_of_a_chat_are_called() {
    let server = Server::start();
    let tools = functions().map(|function| json!({"type": "function", "function": function}));
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let ask = |mode: &str, allowed: Value, seed: u64| {
        let choice =
            json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}});
        let more = json!({"tools": tools, "tool_choice": choice, "temperature": 1, "seed": seed,
                          "parallel_tool_calls": false});
        server.post(CHAT, &chat(more))
    };
    let mut called = std::collections::BTreeSet::new();
    for seed in 0..12 {
        let answer = ask("required", json!([named("other"), named("third")]), seed).good();
        let calls = &answer["choices"][0]["message"]["tool_calls"];
        called.insert(calls[0]["function"]["name"].as_str().unwrap().to_owned());
    }
    assert!(
        called.iter().all(|name| name != "one") && called.len() == 2,
        "{called:?}"
    );
    // The prompt does not list the others: it is that of a request with the allowed ones alone.
    let count = |body: &Value| server.post(CHAT, body).good()["usage"]["prompt_tokens"].clone();
    let alone = chat(json!({"tools": [tools[1]], "max_tokens": 1}));
    let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("other")]}});
    let part = chat(json!({"tools": tools, "tool_choice": choice, "max_tokens": 1}));
    assert_eq!(count(&part), count(&alone));
    let field = "tool_choice.allowed_tools";
    for (mode, allowed, place) in [
        ("auto", json!([named("one"), named("fourth")]), ".tools[1]"),
        ("some", json!([named("one")]), ".mode"),
        ("auto", json!([]), ".tools"),
        ("auto", json!([{"type": "web_search"}]), ".tools[0].type"),
        ("auto", json!([{"type": "function"}]), ".tools[0]"),
    ] {
        let error = ask(mode, allowed, 0).error(400);
        assert_eq!(error["param"], format!("{field}{place}"), "{error}");
    }
}

#[test]
fn only_the_allowed_tools_of_a_response_are_called() {
    let server = Server::start();
    let tools = functions().map(|mut function| {
        add(&mut function, json!({"type": "function"}));
        function
    });
    let ask = |name: &str| {
        let choice = json!({"type": "allowed_tools", "mode": "required",
                            "tools": [{"type": "function", "name": name}]});
        let body =
            json!({"input": "Hi", "tools": tools, "tool_choice": choice, "max_output_tokens": 60});
        server.post(RESPONSES, &body)
    };
    for name in ["one", "other", "third"] {
        let response = ask(name).good();
        assert_eq!(response["output"][0]["name"], name, "{response}");
        assert_eq!(response["tool_choice"]["tools"][0]["name"], name);
    }
    assert_eq!(ask("fourth").error(400)["param"], "tool_choice.tools[0]");
}

#[test]
fn a_choice_that_requires_no_call_needs_no_tools() {
    let server = Server::start();
    let none = json!({"tools": [], "tool_choice": "auto"});
    let ask = |path: &str, more: Value| {
        let mut body = match path {
            RESPONSES => json!({"input": "Hi", "max_output_tokens": 2}),
            _ => chat(json!({"max_tokens": 2})),
        };
        add(&mut body, more);
        server.post(path, &body)
    };
    for path in [CHAT, RESPONSES] {
        ask(path, none.clone()).good();
        ask(path, json!({"tool_choice": "auto"})).good();
        for choice in [json!("required"), json!({"type": "function", "name": "f"})] {
            let choice = match path {
                CHAT if choice.is_object() => {
                    json!({"type": "function", "function": {"name": "f"}})
                }
                _ => choice,
            };
            let error = ask(path, json!({"tools": [], "tool_choice": choice})).error(400);
            assert_eq!(error["param"], "tool_choice", "{error}");
        }
    }
    ask(MESSAGES, json!({"tool_choice": {"type": "auto"}})).good();
    ask(
        MESSAGES,
        json!({"tools": [], "tool_choice": {"type": "auto"}}),
    )
    .good();
    for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "f"})] {
        let refused = ask(MESSAGES, json!({"tools": [], "tool_choice": choice}));
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
}

#[test]
fn models_have_the_fields_of_anthropics_api_for_its_clients() {
    let server = Server::start();
    let get = |path: &str, headers: &str| {
        server.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
        ))
    };
    let version = "anthropic-version: 2023-06-01\r\n";
    let list = get("/v1/models", version).good();
    let one = get("/v1/models/tiny", version).good();
    assert_eq!(
        (&list["has_more"], &list["first_id"], &list["last_id"]),
        (&json!(false), &json!(NAME), &json!(NAME))
    );
    assert_eq!(list["data"], json!([one]));
    assert_eq!(
        (&one["type"], &one["id"], &one["display_name"]),
        (&json!("model"), &json!(NAME), &json!(NAME))
    );
    let created = one["created_at"].as_str().unwrap();
    assert!(created.starts_with("20") && created.ends_with('Z'), "{one}");
    let missing = get("/v1/models/none", version);
    let error = missing.json();
    assert_eq!(
        (missing.status, &error["type"], &error["error"]["type"]),
        (404, &json!("error"), &json!("not_found_error")),
        "{error}"
    );
    assert!(missing.headers.contains("request-id: req_"), "{missing:?}");
    // Other clients have the fields of OpenAI's API alone.
    let plain = get("/v1/models", "").good();
    assert!(plain.get("has_more").is_none() && plain["data"][0].get("type").is_none());
    assert_eq!(get("/v1/models/none", "").error(404)["param"], "model");
}

#[test]
fn timings_count_every_generated_token_as_llama_cpp_does() {
    let server = Server::start();
    for most in [1, 2, 5] {
        let body = chat(json!({"max_tokens": most, "ignore_eos": true}));
        let timings = server.post(CHAT, &body).good()["timings"].clone();
        assert_eq!(timings["predicted_n"], most, "{timings}");
        let number = |field: &str| timings[field].as_f64().unwrap();
        let rate = 1e3 * f64::from(most) / number("predicted_ms");
        assert!(number("predicted_ms") > 0.0, "{timings}");
        assert!(
            (number("predicted_per_second") / rate - 1.0).abs() < 1e-6,
            "{timings}"
        );
    }
}

#[test]
fn limits_may_be_written_with_a_decimal_point() {
    let server = Server::start();
    let body = chat(json!({"max_tokens": 5.0, "ignore_eos": true}));
    let usage = server.post(CHAT, &body).good()["usage"].clone();
    assert_eq!(usage["completion_tokens"], 5);
    for wrong in [json!(5.5), json!("5"), json!(-1.5)] {
        let error = server
            .post(CHAT, &chat(json!({"max_tokens": wrong})))
            .error(400);
        assert_eq!(error["param"], "max_tokens");
    }
}

#[test]
fn errors_of_a_long_conversation_name_the_field_of_their_api() {
    let server = Server::start();
    let long = "long ".repeat(400);
    let error = server.post(RESPONSES, &json!({"input": long})).error(400);
    assert_eq!(
        (&error["param"], &error["code"]),
        (&json!("input"), &json!("context_length_exceeded"))
    );
    let body = chat(json!({"messages": [{"role": "user", "content": long}]}));
    assert_eq!(server.post(CHAT, &body).error(400)["param"], "messages");
}

#[test]
fn the_chosen_token_is_among_the_alternatives_of_a_completion() {
    let server = Server::start();
    let mut unlikely = 0;
    for seed in 0..4 {
        let body = json!({"prompt": "a", "max_tokens": 8, "logprobs": 1, "temperature": 2, "seed": seed,
                          "ignore_eos": true});
        let told = server.post("/v1/completions", &body).good()["choices"][0]["logprobs"].clone();
        for (index, token) in told["tokens"].as_array().unwrap().iter().enumerate() {
            let top = told["top_logprobs"][index].as_object().unwrap();
            let chosen = &top[token.as_str().unwrap()];
            assert_eq!(chosen, &told["token_logprobs"][index], "{top:?}");
            unlikely += usize::from(top.len() == 2);
        }
    }
    assert!(unlikely > 0);
}
