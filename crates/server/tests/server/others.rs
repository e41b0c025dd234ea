//! `/v1/responses` and `/v1/messages`: the answers of `/v1/chat/completions` in other forms.

use serde_json::{Value, json};

use crate::support::{NAME, Server, add, events};

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
    // A stop sequence is named.
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
    let server = Server::start();
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
fn what_is_not_stored_is_refused() {
    let server = Server::start();
    let body = json!({"input": "a", "previous_response_id": "x"});
    assert_eq!(
        server.post("/v1/responses", &body).error(400)["param"],
        "previous_response_id"
    );
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
