//! Structured output: `response_format`, `text.format` and `structured_outputs`.

use serde_json::{Value, json};

use crate::support::{Server, add};

const CHAT: &str = "/v1/chat/completions";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 96, "seed": 5, "temperature": 1});
    add(&mut body, more);
    body
}

fn content(completion: &Value) -> &str {
    completion["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
}

/// Returns a schema whose properties are not in alphabetical order.
fn city() -> Value {
    json!({
        "type": "object",
        "properties": {"size": {"enum": ["large", "small"]}, "city": {"enum": ["Oslo", "Rome"]}, "days": {"const": 3}},
        "required": ["size", "city", "days"],
        "additionalProperties": false,
    })
}

#[track_caller]
fn assert_city(answer: &str) {
    let value: Value =
        serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    let keys: Vec<_> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(keys, ["size", "city", "days"], "{answer}");
    assert!(
        ["large", "small"].map(Value::from).contains(&value["size"]),
        "{answer}"
    );
    assert!(
        ["Oslo", "Rome"].map(Value::from).contains(&value["city"]),
        "{answer}"
    );
    assert_eq!(value["days"], 3);
}

#[test]
fn an_answer_with_a_schema_is_json_of_it_whole_and_streamed() {
    let server = Server::start();
    for strict in [json!(true), json!(false), json!(null)] {
        let format = json!({"name": "city", "strict": strict, "schema": city()});
        let mut body =
            chat(json!({"response_format": {"type": "json_schema", "json_schema": format}}));
        let completion = server.post(CHAT, &body).good();
        assert_city(content(&completion));
        assert_eq!(completion["choices"][0]["finish_reason"], "stop");
        body["stream"] = true.into();
        let chunks = server.post(CHAT, &body).chunks();
        let deltas = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), content(&completion));
    }
}

#[test]
fn a_json_object_is_one_unless_it_is_cut_off() {
    let server = Server::start();
    for form in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"structured_outputs": {"json_object": true}}),
    ] {
        for seed in 0..4 {
            let mut body = chat(form.clone());
            add(&mut body, json!({"seed": seed}));
            let completion = server.post(CHAT, &body).good();
            let answer = content(&completion);
            assert!(answer.starts_with('{'), "{answer}");
            if completion["choices"][0]["finish_reason"] == "stop" {
                assert!(
                    serde_json::from_str::<Value>(answer).unwrap().is_object(),
                    "{answer}"
                );
            }
        }
    }
}

#[test]
fn a_form_is_kept_by_whichever_name_a_server_has_for_it() {
    let server = Server::start();
    let nested = json!({"type": "json_schema", "json_schema": {"schema": city()}});
    for more in [
        json!({"response_format": {"type": "json_object", "schema": city()}}),
        json!({"response_format": {"type": "json_schema", "schema": city()}}),
        json!({"response_format": nested}),
        json!({"json_schema": city()}),
        json!({"guided_json": city()}),
        json!({"guided_json": city().to_string()}),
    ] {
        assert_city(content(&server.post(CHAT, &chat(more.clone())).good()));
        let mut body = json!({"prompt": "a", "max_tokens": 96, "seed": 5, "temperature": 1});
        add(&mut body, more);
        assert_city(
            server.post("/v1/completions", &body).good()["choices"][0]["text"]
                .as_str()
                .unwrap(),
        );
    }
    for (more, expected) in [
        (json!({"guided_regex": "b{3}"}), "bbb"),
        (json!({"guided_choice": ["a.b"]}), "a.b"),
        (json!({"guided_grammar": "start: \"x\" \"y\""}), "xy"),
    ] {
        assert_eq!(content(&server.post(CHAT, &chat(more)).good()), expected);
    }
    for (more, field) in [
        (
            json!({"guided_json": city(), "guided_regex": "a"}),
            "guided_regex",
        ),
        (
            json!({"response_format": nested, "json_schema": {"type": "object"}}),
            "json_schema",
        ),
        (
            json!({"response_format": {"type": "json_object", "schema": 5}}),
            "response_format.schema",
        ),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"grammar": "root ::= \"a\""}), "grammar"),
    ] {
        assert_eq!(
            server.post(CHAT, &chat(more.clone())).error(400)["param"],
            field,
            "{more}"
        );
    }
}

#[test]
fn structured_outputs_are_schemas_regular_expressions_texts_and_grammars() {
    let server = Server::start();
    let odd = ["a.b", "(x|y)\n", "<ü>"];
    for path in [CHAT, "/v1/completions"] {
        let ask = |forms: Value| {
            let mut body =
                json!({"max_tokens": 96, "temperature": 1, "seed": 3, "structured_outputs": forms});
            let prompt = if path == CHAT {
                json!({"messages": [{"role": "user", "content": "a"}]})
            } else {
                json!({"prompt": "a"})
            };
            add(&mut body, prompt);
            let choice = server.post(path, &body).good()["choices"][0].clone();
            assert_eq!(choice["finish_reason"], "stop", "{body}");
            choice["text"]
                .as_str()
                .or_else(|| choice["message"]["content"].as_str())
                .unwrap()
                .to_owned()
        };
        assert_city(&ask(json!({"json": city()})));
        let number = ask(json!({"regex": "[0-9]{3}-[0-9]{2}"}));
        assert!(
            number.len() == 6 && number.as_bytes()[3] == b'-',
            "{number}"
        );
        assert!(odd.contains(&ask(json!({"choice": odd})).as_str()));
        assert_eq!(ask(json!({"choice": [odd[1]]})), odd[1]);
        let sum = ask(json!({"grammar": "start: N \"+\" N \"=\"\nN: /[1-9][0-9]/\n"}));
        assert!(sum.len() == 6 && sum.ends_with('='), "{sum}");
    }
}

#[test]
fn a_response_has_the_format_of_its_text() {
    let server = Server::start();
    let format = json!({"type": "json_schema", "name": "city", "schema": city(), "strict": true});
    let body = json!({"input": "a", "max_output_tokens": 96, "text": {"format": format}});
    let response = server.post("/v1/responses", &body).good();
    assert_city(
        response["output"][0]["content"][0]["text"]
            .as_str()
            .unwrap(),
    );
    assert_eq!(
        (&response["status"], &response["text"]["format"]),
        (&json!("completed"), &format)
    );
    let body =
        json!({"input": "a", "max_output_tokens": 8, "text": {"format": {"type": "json_object"}}});
    let response = server.post("/v1/responses", &body).good();
    assert!(
        response["output"][0]["content"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with('{')
    );
}

#[test]
fn a_message_has_the_format_of_its_output() {
    let server = Server::start();
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 96});
    body["output_config"] = json!({"format": {"type": "json_schema", "schema": city()}});
    assert_city(
        server.post("/v1/messages", &body).good()["content"][0]["text"]
            .as_str()
            .unwrap(),
    );
    body["output_config"] = json!({"format": {"type": "json_schema", "schema": {"not": {}}}});
    let error = server.post("/v1/messages", &body).json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        error.starts_with("output_config.format.schema: "),
        "{error}"
    );
}

#[test]
fn an_answer_of_any_text_is_the_one_without_a_form() {
    let server = Server::start();
    let plain = server.post(CHAT, &chat(json!({}))).good();
    for more in [
        json!({"response_format": {"type": "text"}}),
        json!({"response_format": null, "structured_outputs": null}),
    ] {
        assert_eq!(
            content(&server.post(CHAT, &chat(more)).good()),
            content(&plain)
        );
    }
}

#[test]
fn a_form_that_cannot_be_had_is_refused_by_its_field() {
    let server = Server::start();
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let of_schema = "response_format.json_schema.schema";
    let cases = [
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type",
        ),
        (json!({"response_format": {}}), "response_format.type"),
        (json!({"response_format": "json"}), "response_format"),
        (
            json!({"response_format": {"type": "json_schema"}}),
            of_schema,
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            of_schema,
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": []}}),
            "response_format.json_schema",
        ),
        (schema(json!("text")), of_schema),
        (schema(json!([])), of_schema),
        (
            schema(json!({"type": "array", "uniqueItems": true})),
            of_schema,
        ),
        (schema(json!({"type": "nothing"})), of_schema),
        (schema(json!({"$ref": "#/$defs/none"})), of_schema),
        (json!({"structured_outputs": {}}), "structured_outputs"),
        (
            json!({"structured_outputs": {"json_object": false}}),
            "structured_outputs",
        ),
        (
            json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
            "structured_outputs",
        ),
        (
            json!({"structured_outputs": {"regex": "("}}),
            "structured_outputs.regex",
        ),
        (
            json!({"structured_outputs": {"regex": 3}}),
            "structured_outputs.regex",
        ),
        (
            json!({"structured_outputs": {"regex": "a".repeat(100_000)}}),
            "structured_outputs.regex",
        ),
        (
            json!({"structured_outputs": {"choice": []}}),
            "structured_outputs.choice",
        ),
        (
            json!({"structured_outputs": {"choice": ["a", ""]}}),
            "structured_outputs.choice",
        ),
        (
            json!({"structured_outputs": {"grammar": "begin: \"a\""}}),
            "structured_outputs.grammar",
        ),
        (
            json!({"structured_outputs": {"grammar": format!("start: {}", "(".repeat(1000))}}),
            "structured_outputs.grammar",
        ),
        (
            json!({"structured_outputs": {"json": 3}}),
            "structured_outputs.json",
        ),
        (
            json!({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}),
            "structured_outputs",
        ),
        (
            json!({"structured_outputs": {"regex": "a"}, "ignore_eos": true}),
            "ignore_eos",
        ),
    ];
    for (more, field) in cases {
        let error = server.post(CHAT, &chat(more.clone())).error(400);
        assert_eq!(error["param"], field, "{more}: {error}");
        assert!(
            error["message"].as_str().unwrap().starts_with(field),
            "{error}"
        );
        let mut body = json!({"prompt": "a"});
        add(&mut body, more.clone());
        assert_eq!(
            server.post("/v1/completions", &body).error(400)["param"],
            field,
            "{more}"
        );
    }
    for (format, field) in [
        (json!({"type": "json_schema"}), "text.format.schema"),
        (
            json!({"type": "json_schema", "schema": {"not": {}}}),
            "text.format.schema",
        ),
        (json!({"type": "grammar"}), "text.format.type"),
    ] {
        let body = json!({"input": "a", "text": {"format": format}});
        assert_eq!(
            server.post("/v1/responses", &body).error(400)["param"],
            field,
            "{body}"
        );
    }
    // The server still works after all these requests.
    server
        .post(CHAT, &chat(json!({"structured_outputs": {"regex": "a"}})))
        .good();
}
