//! Calls in answers of the chat API.

use serde_json::{Value, json};

use super::{CHAT, assert_arguments, chat, functions, message, prompt, without_ids};
use crate::scripted::{Script, TEMPLATE};
use crate::support::{Server, add};

#[test]
fn an_answer_that_must_call_a_function_does_whole_and_streamed() {
    let server = Server::start();
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (choice, expected) in [
        (json!("required"), None),
        (named("weather"), Some("weather")),
        (named("go"), Some("go")),
    ] {
        for seed in [1, 2, 3] {
            let mut body =
                chat(json!({"tool_choice": choice, "parallel_tool_calls": false, "seed": seed}));
            let whole = server.post(CHAT, &body).good()["choices"][0].clone();
            assert_eq!(whole["finish_reason"], "tool_calls");
            let message_whole = &whole["message"];
            assert_eq!(
                (
                    &message_whole["content"],
                    message_whole["tool_calls"].as_array().unwrap().len()
                ),
                (&Value::Null, 1)
            );
            let call = &message_whole["tool_calls"][0];
            let name = call["function"]["name"].as_str().unwrap();
            assert!(expected.is_none_or(|expected| expected == name), "{call}");
            assert_arguments(name, call["function"]["arguments"].as_str().unwrap());
            body["stream"] = true.into();
            let chunks = server.post(CHAT, &body).chunks();
            let (streamed, reason) = message(&chunks);
            assert_eq!(reason, "tool_calls");
            assert_eq!(without_ids(&streamed), without_ids(message_whole));
            // The arguments are sent in several chunks, not all at the end.
            let pieces = chunks.iter().filter(|chunk| {
                chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty())
            });
            assert!(pieces.count() > 1);
        }
    }
}

#[test]
fn calls_may_be_several_unless_they_may_not_be_parallel() {
    let server = Server::start();
    let count = |more: Value| {
        let completion = server.post(CHAT, &chat(more)).good();
        let calls = completion["choices"][0]["message"]["tool_calls"]
            .as_array()
            .unwrap();
        let ids: std::collections::BTreeSet<_> = calls
            .iter()
            .map(|call| call["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids.len(), calls.len(), "each call has a name of its own");
        calls.len()
    };
    let counts: Vec<_> = (0..12)
        .map(|seed| count(json!({"tool_choice": "required", "seed": seed, "max_tokens": 200})))
        .collect();
    assert!(
        counts.iter().all(|count| *count >= 1) && counts.iter().any(|count| *count > 1),
        "{counts:?}"
    );
    for seed in 0..12 {
        let alone = json!({"tool_choice": "required", "parallel_tool_calls": false, "seed": seed, "max_tokens": 200});
        assert_eq!(count(alone), 1);
    }
}

#[test]
fn a_function_that_is_demanded_by_its_name_is_called_once_in_every_form() {
    let server = Server::start();
    let (_, schema) = &functions()[1];
    for seed in 0..6 {
        let named = json!({"type": "function", "function": {"name": "go"}});
        let body = chat(json!({"tool_choice": named, "seed": seed, "max_tokens": 400}));
        let choice = server.post(CHAT, &body).good()["choices"][0].clone();
        assert_eq!(
            (
                choice["finish_reason"].as_str(),
                &choice["message"]["tool_calls"][1]
            ),
            (Some("tool_calls"), &Value::Null)
        );
        let body = json!({
            "input": "Hi", "tools": [{"type": "function", "name": "go", "parameters": schema}], "seed": seed,
            "tool_choice": {"type": "function", "name": "go"}, "temperature": 1, "max_output_tokens": 400,
        });
        let response = server.post("/v1/responses", &body).good();
        assert_eq!(
            (
                &response["status"],
                response["output"].as_array().unwrap().len()
            ),
            (&json!("completed"), 1)
        );
        let body = json!({
            "messages": [{"role": "user", "content": "Hi"}], "tools": [{"name": "go", "input_schema": schema}],
            "tool_choice": {"type": "tool", "name": "go"}, "temperature": 1, "max_tokens": 400,
        });
        let message = server.post("/v1/messages", &body).good();
        assert_eq!(
            (
                &message["stop_reason"],
                message["content"].as_array().unwrap().len()
            ),
            (&json!("tool_use"), 1)
        );
    }
}

#[test]
fn a_word_of_calls_that_is_a_control_token_is_read_and_may_be_demanded() {
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]});
    let tools = json!([{"type": "function", "function": {"name": "fun", "parameters": schema}}]);
    let call = "\n{\"name\": \"fun\", \"arguments\": {\"a\": \"b\"}}\n";
    let hermes = Script::new(&["<tool_call>", "</tool_call>"])
        .says("<|a|>", &["<tool_call>", call, "</tool_call>", "<|end|>"]);
    let mistral = Script::new(&["[TOOL_CALLS]", "[ARGS]"]).says(
        "<|a|>",
        &["[TOOL_CALLS]", "fun", "[ARGS]", "{\"a\": \"b\"}", "<|end|>"],
    );
    let list = Script::new(&["[TOOL_CALLS]"]).says(
        "<|a|>",
        &[
            "[TOOL_CALLS]",
            "[{\"name\": \"fun\", \"arguments\": {\"a\": \"b\"}}]",
            "<|end|>",
        ],
    );
    for (script, word) in [
        (hermes, "<tool_call>"),
        (mistral, "[TOOL_CALLS] [ARGS]"),
        (list, "[TOOL_CALLS]"),
    ] {
        let server = script.serve(&format!("{{# {word} #}}{TEMPLATE}"));
        for choice in ["auto", "required"] {
            let body = json!({
                "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 96, "tools": tools, "tool_choice": choice,
            });
            let whole = server.post(CHAT, &body).good()["choices"][0].clone();
            assert_eq!(
                whole["finish_reason"], "tool_calls",
                "{word} {choice}: {whole}"
            );
            let called = &whole["message"]["tool_calls"][0]["function"];
            let arguments: Value =
                serde_json::from_str(called["arguments"].as_str().unwrap()).unwrap();
            assert_eq!(
                (&called["name"], arguments),
                (&json!("fun"), json!({"a": "b"})),
                "{word} {choice}"
            );
            let mut streamed = body.clone();
            streamed["stream"] = true.into();
            let (streamed, _) = message(&server.post(CHAT, &streamed).chunks());
            assert_eq!(without_ids(&streamed), without_ids(&whole["message"]));
        }
        let none = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 96});
        let plain = server.post(CHAT, &none).good()["choices"][0]["message"].clone();
        assert!(plain.get("tool_calls").is_none());
    }
}

#[test]
fn a_function_may_have_a_long_name_and_a_call_no_arguments() {
    let server = Server::start();
    let name = "f".repeat(128);
    let parameters = json!({"type": "object", "properties": {}});
    let body = chat(json!({
        "tools": [{"type": "function", "function": {"name": name, "parameters": parameters}}],
        "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 300,
    }));
    let completion = server.post(CHAT, &body).good();
    assert_eq!(
        completion["choices"][0]["message"]["tool_calls"][0]["function"]["name"],
        name
    );
    let prompts = [json!(null), json!(""), json!("{}")].map(|arguments| {
        let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]},
                              {"role": "tool", "tool_call_id": "a", "content": null}]);
        prompt(&server, &messages, false)
    });
    assert!(
        prompts.iter().all(|prompt| *prompt == prompts[0]),
        "{prompts:?}"
    );
}

#[test]
fn a_call_that_is_cut_off_is_a_part_of_one_and_says_so() {
    let server = Server::start();
    let whole = server
        .post(
            CHAT,
            &chat(json!({"tool_choice": "required", "parallel_tool_calls": false})),
        )
        .good();
    let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
    let arguments = |completion: &Value| {
        completion["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].clone()
    };
    let all = arguments(&whole).as_str().unwrap().to_owned();
    let mut lengths = Vec::new();
    for most in 1..tokens {
        let body = chat(
            json!({"tool_choice": "required", "parallel_tool_calls": false, "max_tokens": most}),
        );
        let cut = server.post(CHAT, &body).good();
        if cut["choices"][0]["finish_reason"] == "tool_calls" {
            continue;
        }
        assert_eq!(cut["choices"][0]["finish_reason"], "length");
        assert!(
            [Value::Null, json!("")].contains(&cut["choices"][0]["message"]["content"]),
            "{cut}"
        );
        if let Value::String(part) = arguments(&cut) {
            assert!(all.starts_with(&part), "{part}");
            lengths.push(part.len());
        }
    }
    assert!(lengths.contains(&2) && lengths.is_sorted(), "{lengths:?}");
}

#[test]
fn an_answer_that_a_stop_string_ends_within_a_call_is_no_whole_call_in_any_form() {
    let call = "\n{\"name\": \"fun\", \"arguments\": {\"a\": \"bcd\"}}\n";
    let script = Script::new(&["<tool_call>", "</tool_call>"])
        .says("<|a|>", &["<tool_call>", call, "</tool_call>", "<|end|>"]);
    let server = script.serve(&format!("{{# <tool_call> #}}{TEMPLATE}"));
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let function = json!({"name": "fun", "parameters": schema});
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let tools = json!([{"type": "function", "function": function}]);
    let own = json!([{"name": "fun", "input_schema": schema}]);
    for (stop, is_whole) in [("bc", false), ("</tool_call>", true)] {
        let body = json!({"messages": messages, "max_tokens": 96, "tools": tools, "stop": stop});
        let choice = server.post(CHAT, &body).good()["choices"][0].clone();
        let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
        let reason = choice["finish_reason"].as_str().unwrap();
        if is_whole {
            assert_eq!(
                (reason, arguments),
                ("tool_calls", &json!("{\"a\": \"bcd\"}"))
            );
        } else {
            assert_eq!((reason, arguments), ("stop", &json!("{\"a\": \"")));
        }
        let body =
            json!({"messages": messages, "max_tokens": 96, "tools": own, "stop_sequences": [stop]});
        let message = server.post("/v1/messages", &body).good();
        assert_eq!(message["stop_sequence"], stop);
        let kind = if is_whole { "tool_use" } else { "text" };
        assert_eq!(message["content"][0]["type"], kind, "{message}");
    }
}

#[test]
fn probabilities_are_of_all_tokens_of_an_answer_that_calls() {
    let server = Server::start();
    let mut body =
        chat(json!({"tool_choice": "required", "logprobs": true, "parallel_tool_calls": false}));
    let whole = server.post(CHAT, &body).good()["choices"][0].clone();
    let tokens = whole["logprobs"]["content"].as_array().unwrap().clone();
    let text: String = tokens
        .iter()
        .map(|token| token["token"].as_str().unwrap())
        .collect();
    let call = &whole["message"]["tool_calls"][0]["function"];
    assert!(
        text.starts_with("<tool_call>\n{") && text.ends_with("\n</tool_call>"),
        "{text}"
    );
    assert!(text.contains(call["arguments"].as_str().unwrap()), "{text}");
    body["stream"] = true.into();
    let chunks = server.post(CHAT, &body).chunks();
    let streamed: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, tokens);
}

#[test]
fn an_answer_with_a_form_that_may_call_is_calls_or_json() {
    let server = Server::start();
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["<tool_call>"]}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..24 {
        let mut body = chat(
            json!({"response_format": format, "parallel_tool_calls": false, "seed": seed, "temperature": 4}),
        );
        let whole = server.post(CHAT, &body).good()["choices"][0].clone();
        let reason = whole["finish_reason"].as_str().unwrap().to_owned();
        match reason.as_str() {
            "tool_calls" => {
                let call = &whole["message"]["tool_calls"][0]["function"];
                assert_eq!(whole["message"]["content"], Value::Null);
                assert_arguments(
                    call["name"].as_str().unwrap(),
                    call["arguments"].as_str().unwrap(),
                );
            }
            "stop" => {
                let value: Value =
                    serde_json::from_str(whole["message"]["content"].as_str().unwrap()).unwrap();
                assert_eq!(value, json!({"a": "<tool_call>"}));
            }
            reason => panic!("{reason}"),
        }
        body["stream"] = true.into();
        let (streamed, streamed_reason) = message(&server.post(CHAT, &body).chunks());
        assert_eq!(
            (streamed["content"].clone(), &streamed_reason),
            (whole["message"]["content"].clone(), &reason)
        );
        kinds.insert(reason);
    }
    assert_eq!(kinds.len(), 2, "both come: {kinds:?}");
}

#[test]
fn several_answers_have_calls_of_their_own() {
    let server = Server::start();
    let mut body = chat(json!({"n": 3, "tool_choice": "required", "parallel_tool_calls": false}));
    let whole = server.post(CHAT, &body).good();
    body["stream"] = true.into();
    let chunks = server.post(CHAT, &body).chunks();
    for index in 0..3 {
        let of_one: Vec<_> = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == index)
            .cloned()
            .collect();
        let (streamed, reason) = message(&of_one);
        let choice = &whole["choices"][index];
        assert_eq!(
            (choice["finish_reason"].as_str(), reason.as_str()),
            (Some("tool_calls"), "tool_calls")
        );
        assert_eq!(without_ids(&streamed), without_ids(&choice["message"]));
        // This completion has the next seed.
        let mut alone = body.clone();
        add(
            &mut alone,
            json!({"n": 1, "seed": 9 + index, "stream": false}),
        );
        let alone = server.post(CHAT, &alone).good();
        assert_eq!(
            without_ids(&alone["choices"][0]["message"]),
            without_ids(&choice["message"])
        );
    }
}
