//! `/v1/responses` and `/v1/messages`: the completions of `/v1/chat/completions` in other formats.

use serde_json::{Value, json};

use crate::support::{CONTEXT, NAME, Reply, Server, add, events, post};

fn chat(server: &Server, messages: &Value) -> String {
    let body = json!({"messages": messages, "max_tokens": 12});
    let completion = server.post("/v1/chat/completions", &body).good();
    completion["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn a_response_has_the_answer_of_the_chat_whole_and_streamed() {
    let server = Server::start();
    let messages =
        json!([{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}]);
    let expected = chat(&server, &messages);
    let parts = json!([{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]);
    for input in [json!("Hello"), parts] {
        let mut body = json!({"model": NAME, "instructions": "Be brief", "input": input, "max_output_tokens": 12});
        let response = server.post("/v1/responses", &body).good();
        assert_eq!(
            (&response["object"], &response["status"]),
            (&json!("response"), &json!("incomplete"))
        );
        assert_eq!(response["output"][0]["content"][0]["text"], expected);
        assert_eq!(response["usage"]["output_tokens"], 12);
        body["stream"] = true.into();
        let events = events(&server.post("/v1/responses", &body));
        assert!(
            events
                .iter()
                .zip(0..)
                .all(|(event, number)| event["sequence_number"] == number)
        );
        assert_eq!(events[0]["type"], "response.created");
        let deltas = events
            .iter()
            .filter(|event| event["type"] == "response.output_text.delta");
        assert_eq!(
            deltas
                .map(|event| event["delta"].as_str().unwrap())
                .collect::<String>(),
            expected
        );
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.incomplete");
        assert_eq!(
            last["response"]["output"][0]["content"],
            response["output"][0]["content"]
        );
    }
}

#[test]
fn a_message_has_the_answer_of_the_chat_whole_and_streamed() {
    let server = Server::start();
    let messages =
        json!([{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}]);
    let expected = chat(&server, &messages);
    let question = json!([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]);
    let mut body =
        json!({"model": NAME, "system": "Be brief", "messages": question, "max_tokens": 12});
    let message = server.post("/v1/messages", &body).good();
    assert_eq!(
        (&message["type"], &message["stop_reason"]),
        (&json!("message"), &json!("max_tokens"))
    );
    assert_eq!(
        message["content"],
        json!([{"type": "text", "text": expected}])
    );
    assert_eq!(message["usage"]["output_tokens"], 12);
    body["stream"] = true.into();
    let events = events(&server.post("/v1/messages", &body));
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(
        kinds[kinds.len() - 3..],
        ["content_block_stop", "message_delta", "message_stop"]
    );
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "content_block_delta");
    assert_eq!(
        deltas
            .map(|event| event["delta"]["text"].as_str().unwrap())
            .collect::<String>(),
        expected
    );
    assert_eq!(
        events[events.len() - 2]["delta"]["stop_reason"],
        "max_tokens"
    );
    // The response names the stop sequence.
    let stop: String = expected.chars().skip(3).take(2).collect();
    body["stream"] = false.into();
    body["stop_sequences"] = json!([stop]);
    let message = server.post("/v1/messages", &body).good();
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop))
    );
}

#[test]
fn what_is_wrong_with_a_message_is_told_in_its_own_form() {
    let server = Server::with(|options| options.strict_models = true);
    let cases = [
        (json!({}), 400, "invalid_request_error"),
        (
            json!({"messages": [], "max_tokens": 1}),
            400,
            "invalid_request_error",
        ),
        (
            json!({"model": "other", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
            404,
            "not_found_error",
        ),
    ];
    for (body, status, kind) in cases {
        let reply = server.post("/v1/messages", &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["type"]),
            (status, &json!(kind)),
            "{}",
            reply.body
        );
        assert_eq!(reply.json()["type"], "error");
    }
}

#[test]
fn a_message_goes_on_with_a_last_one_of_the_assistant() {
    let server = Server::start();
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is ("}]);
    let message = server
        .post(
            "/v1/messages",
            &json!({"messages": messages, "max_tokens": 8}),
        )
        .good();
    let body = json!({"messages": messages, "max_tokens": 8, "continue_final_message": true});
    let completion = server.post("/v1/chat/completions", &body).good();
    let raw = json!({"prompt": "user: Hi<|turn|>assistant: It is (", "max_tokens": 8});
    let expected = server.post("/v1/completions", &raw).good()["choices"][0]["text"].clone();
    assert_eq!(
        (
            &message["content"][0]["text"],
            &completion["choices"][0]["message"]["content"]
        ),
        (&expected, &expected)
    );
    let prompt = server.post("/apply-template", &body).good();
    assert_eq!(prompt["prompt"], raw["prompt"]);
    for more in [
        json!({"add_generation_prompt": true}),
        json!({"messages": [{"role": "user", "content": "Hi"}]}),
    ] {
        let mut body = body.clone();
        add(&mut body, more);
        assert_eq!(
            server.post("/v1/chat/completions", &body).error(400)["param"],
            "continue_final_message"
        );
    }
}

#[test]
fn the_stop_sequence_that_ended_a_message_is_told() {
    let server = Server::start();
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12});
        add(&mut body, more);
        server.post("/v1/messages", &body)
    };
    let text = ask(json!({})).good()["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    let third: String = text.chars().skip(2).take(1).collect();
    let stops = json!({"stop_sequences": ["never in it", third, "nor this"]});
    let stopped = ask(stops.clone()).good();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(third))
    );
    let mut streamed = stops;
    streamed["stream"] = true.into();
    let events = events(&ask(streamed));
    assert_eq!(events[events.len() - 2]["delta"]["stop_sequence"], third);
}

/// Returns the value of a header.
fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let lines = reply.headers.lines().skip(1);
    let mut headers = lines.filter_map(|line| line.split_once(": "));
    headers.find_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value))
}

#[test]
fn all_that_is_refused_under_messages_is_in_its_form_with_the_name_of_the_request() {
    let server = Server::with(|options| options.api_keys = vec!["key".into()]);
    let key = "x-api-key: key\r\n";
    let path = "/v1/messages";
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}\r\n")
    };
    let cases = [
        (post(path, "{}", ""), 401, "authentication_error"),
        (post(path, "{", key), 400, "invalid_request_error"),
        (post(path, "{}", key), 400, "invalid_request_error"),
        (
            post("/v1/messages/count_tokens", "{}", key),
            400,
            "invalid_request_error",
        ),
        (get("/v1/messages/batches/a"), 404, "not_found_error"),
        (get(path), 405, "invalid_request_error"),
        (
            post(path, "{}", &format!("{key}Sec-Fetch-Site: none\r\n"))
                .replace("application/json", "text/plain"),
            415,
            "invalid_request_error",
        ),
        (
            get(path).replace("Host: localhost", "Host: example.org"),
            403,
            "permission_error",
        ),
    ];
    for (request, status, kind) in cases {
        let reply = server.send(&request);
        assert_eq!(reply.status, status, "{reply:?}");
        let body = reply.json();
        assert_eq!(
            (&body["type"], &body["error"]["type"]),
            (&json!("error"), &json!(kind)),
            "{body}"
        );
        assert!(body["error"]["message"].is_string(), "{body}");
        let id = header(&reply, "request-id").unwrap();
        assert!(
            id.starts_with("req_") && body["request_id"] == id,
            "{reply:?}"
        );
        assert_eq!(header(&reply, "x-request-id"), None);
    }
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    let good = server.send(&post(path, &body.to_string(), key));
    good.good();
    assert!(header(&good, "request-id").is_some(), "{good:?}");
}

#[test]
fn a_tool_runner_learns_that_there_are_no_threads() {
    let server = Server::start();
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    let with = |thread: Value| {
        let mut body = body.clone();
        add(&mut body, json!({"thread": thread}));
        server.post("/v1/messages", &body)
    };
    let refused = with(json!({"type": "auto"}));
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(
        refused.json()["error"]["details"],
        json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]})
    );
    with(Value::Null).good();
    // Errors of other fields don't have this code.
    let other = server.post("/v1/messages", &json!({"container": "a"}));
    assert_eq!(other.json()["error"].get("details"), None, "{other:?}");
}

#[test]
fn each_answer_has_the_name_that_the_client_gave_its_request_or_a_new_one() {
    let server = Server::start();
    let ask = |path: &str, given: &str| {
        let headers = format!("X-Request-Id: {given}\r\n");
        let reply = server.send(&post(
            path,
            "{\"prompt\": \"a\", \"max_tokens\": 1}",
            &headers,
        ));
        header(&reply, "x-request-id").unwrap().to_owned()
    };
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/nothing"] {
        let given = "0b6f-4.a:b_c";
        assert_eq!(ask(path, given), given, "{path}");
        for wrong in ["", "a b", "\u{e9}", &"x".repeat(129)] {
            let made = ask(path, wrong);
            assert!(made.starts_with("req_"), "{path} {wrong}: {made}");
        }
        assert_ne!(ask(path, ""), ask(path, ""));
    }
}

#[test]
fn clients_of_anthropic_choose_no_ids_also_for_paths_that_are_missing() {
    let server = Server::start();
    for path in ["/v1/messages", "/v1/nothing"] {
        let headers = "X-Request-Id: mine\r\nanthropic-version: 2023-06-01\r\n";
        let reply = server.send(&post(path, "{}", headers));
        let id = header(&reply, "request-id").unwrap();
        assert!(id.starts_with("req_"), "{path}: {id}");
        assert_eq!(reply.json()["request_id"], id, "{path}");
    }
}

#[test]
fn an_answer_without_a_limit_ends_with_the_context() {
    let server = Server::start();
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let paths = [
            ("/v1/chat/completions", json!({"messages": messages})),
            ("/v1/completions", json!({"prompt": "Hi"})),
        ];
        for (path, mut body) in paths {
            if (path, name) == ("/v1/completions", "max_completion_tokens") {
                continue;
            }
            add(&mut body, json!({name: -1, "ignore_eos": true}));
            let usage = server.post(path, &body).good()["usage"].clone();
            // The last token is not computed, and so needs no KV cache.
            let tokens = usage["total_tokens"].as_u64().unwrap() as usize;
            assert!(
                (CONTEXT..=CONTEXT + 1).contains(&tokens),
                "{path} {name}: {usage}"
            );
            body[name] = json!(-2);
            assert_eq!(server.post(path, &body).error(400)["param"], name);
        }
    }
}

#[test]
fn marks_for_a_cache_have_no_effect_wherever_clients_put_them() {
    let server = Server::start();
    let answers = |mark: Value| {
        let marked = |mut value: Value| {
            add(&mut value, json!({"cache_control": mark}));
            value
        };
        let part = |kind: &str| marked(json!({"type": kind, "text": "Hi"}));
        let message = marked(json!({"role": "user", "content": [part("text")]}));
        let item = marked(json!({"role": "user", "content": [part("input_text")]}));
        let tool = marked(json!({"name": "f", "input_schema": {}}));
        let function = marked(json!({"type": "function", "name": "f"}));
        let messages = marked(json!({
            "system": [part("text")], "messages": [message], "tools": [tool],
            "tool_choice": {"type": "none"}, "max_tokens": 4,
        }));
        let response = json!({"input": [item], "tools": [function], "tool_choice": "none", "max_output_tokens": 4});
        [
            server.post("/v1/messages", &messages).good()["content"].clone(),
            server.post("/v1/responses", &response).good()["output"][0]["content"].clone(),
        ]
    };
    // A null value is the same as a missing field.
    assert_eq!(answers(json!({"type": "ephemeral"})), answers(Value::Null));
}
