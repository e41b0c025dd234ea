//! Tool calls, in all request formats, streamed and not.

use serde_json::{Value, json};

use crate::scripted::{Script, TEMPLATE};
use crate::support::{Server, add, events};

const CHAT: &str = "/v1/chat/completions";

/// Returns two functions with short arguments.
fn functions() -> [(&'static str, Value); 2] {
    let of = |name: &str, schema: Value| json!({"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": false});
    [
        ("weather", of("city", json!({"enum": ["Oslo", "Rome"]}))),
        ("go", of("to", json!({"enum": [1, 2]}))),
    ]
}

fn tools() -> Value {
    let tool = |(name, parameters): (&str, Value)| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    functions().map(tool).to_vec().into()
}

fn chat(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 160, "tools": tools(), "temperature": 1, "seed": 9,
    });
    add(&mut body, more);
    body
}

/// Asserts that `arguments` match the schema of the function `name`.
#[track_caller]
fn assert_arguments(name: &str, arguments: &str) {
    let value: Value =
        serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
    let expected = match name {
        "weather" => ["Oslo", "Rome"].map(|city| json!({"city": city})),
        "go" => [1, 2].map(|to| json!({"to": to})),
        name => panic!("there is no function {name}"),
    };
    assert!(expected.contains(&value), "{name}: {arguments}");
}

/// Assembles a message from the deltas of a stream as OpenAI's package does, and returns it with the finish reason.
fn message(chunks: &[Value]) -> (Value, String) {
    let (mut text, mut calls, mut reason) = (None::<String>, Vec::<Value>::new(), String::new());
    for choice in chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().unwrap())
    {
        let delta = &choice["delta"];
        if let Some(more) = delta["content"].as_str() {
            text.get_or_insert_default().push_str(more);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                // The first delta of a call has its name.
                assert!(
                    call["id"].is_string()
                        && call["type"] == "function"
                        && call["function"]["name"].is_string()
                );
                calls.push(
                    json!({"id": call["id"], "type": "function", "function": call["function"]}),
                );
            } else {
                assert!(
                    call["function"].get("name").is_none() && call.get("id").is_none(),
                    "{call}"
                );
                let whole = calls[index]["function"]["arguments"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                let more = call["function"]["arguments"].as_str().unwrap();
                calls[index]["function"]["arguments"] = (whole + more).into();
            }
        }
        reason += choice["finish_reason"].as_str().unwrap_or_default();
    }
    (json!({"content": text, "tool_calls": calls}), reason)
}

fn without_ids(message: &Value) -> Value {
    let mut calls = message["tool_calls"].clone();
    for call in calls.as_array_mut().unwrap() {
        assert!(!call["id"].as_str().unwrap().is_empty());
        call["id"] = "".into();
    }
    json!({"content": message["content"], "tool_calls": calls})
}

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
fn tools_that_a_service_would_run_are_left_out_and_named_unless_a_call_is_required() {
    let server = Server::start();
    let chat_tools = json!([{"type": "web_search"}, tools()[0], {"type": "mcp"}]);
    let flat: Vec<_> = functions()[..1]
        .iter()
        .map(|(name, schema)| json!({"type": "function", "name": name, "parameters": schema}))
        .collect();
    let response_tools = json!([
        {"type": "web_search", "search_context_size": "low"}, flat[0],
        {"type": "mcp", "server_label": "a", "server_url": "http://localhost", "require_approval": "never"},
        {"type": "namespace", "name": "n", "tools": []},
    ]);
    let (name, schema) = &functions()[0];
    let message_tools = json!([
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}, {"name": name, "input_schema": schema},
    ]);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (path, body, required, left) in [
        (
            CHAT,
            json!({"messages": messages, "max_tokens": 2, "tools": chat_tools}),
            json!("required"),
            "web_search, mcp",
        ),
        (
            "/v1/responses",
            json!({"input": "Hi", "max_output_tokens": 2, "tools": response_tools}),
            json!("required"),
            "web_search, mcp, namespace",
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 2, "tools": message_tools}),
            json!({"type": "any"}),
            "web_search_20250305",
        ),
    ] {
        let reply = server.post(path, &body);
        reply.good();
        let header = format!("x-triad-tools-left-out: {left}");
        assert!(reply.headers.contains(&header), "{path}: {}", reply.headers);
        let mut must = body.clone();
        must["tool_choice"] = required;
        let refused = server.post(path, &must);
        assert_eq!(refused.status, 400, "{path}");
        assert!(
            refused.body.contains("tools[0].type"),
            "{path}: {}",
            refused.body
        );
        // The index of an error is that of the request's list.
        let mut wrong = body;
        match path {
            CHAT => wrong["tools"][1]["function"]["name"] = "a b".into(),
            _ => wrong["tools"][1]["name"] = "a b".into(),
        }
        assert!(
            server.post(path, &wrong).body.contains("tools[1]."),
            "{path}"
        );
    }
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
fn an_answer_that_may_call_is_text_where_the_model_does_not() {
    let server = Server::start();
    let mut body = chat(json!({"max_tokens": 16}));
    let whole = server.post(CHAT, &body).good()["choices"][0].clone();
    let text = whole["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty() && whole["message"].get("tool_calls").is_none());
    assert_eq!(whole["finish_reason"], "length");
    body["stream"] = true.into();
    assert_eq!(
        message(&server.post(CHAT, &body).chunks()).0,
        json!({"content": text, "tool_calls": []})
    );
}

#[test]
fn functions_that_may_not_be_called_are_not_told() {
    let server = Server::start();
    let plain = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16, "temperature": 1, "seed": 9});
    let plain = server.post(CHAT, &plain).good();
    for more in [
        json!({"tool_choice": "none"}),
        json!({"tools": []}),
        json!({"tools": [], "tool_choice": "none"}),
    ] {
        let mut body = chat(json!({"max_tokens": 16}));
        add(&mut body, more);
        let completion = server.post(CHAT, &body).good();
        assert_eq!(completion["choices"][0], plain["choices"][0]);
        assert_eq!(
            completion["usage"]["prompt_tokens"],
            plain["usage"]["prompt_tokens"]
        );
    }
    // With tool_choice none, another output format is allowed.
    let format = json!({"tool_choice": "none", "structured_outputs": {"choice": ["yes"]}});
    assert_eq!(
        server.post(CHAT, &chat(format)).good()["choices"][0]["message"]["content"],
        "yes"
    );
}

/// Returns the prompt of `messages`, with or without the tools.
fn prompt(server: &Server, messages: &Value, with_tools: bool) -> String {
    let mut body = json!({"messages": messages});
    if with_tools {
        body["tools"] = tools();
    }
    server.post("/apply-template", &body).good()["prompt"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn functions_calls_and_results_are_a_part_of_the_prompt() {
    let server = Server::start();
    let call = |id: &str, city: &str| json!({"id": id, "type": "function", "function": {"name": "weather", "arguments": format!("{{\"city\": \"{city}\"}}")}});
    let messages = json!([
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "\nWhere is it warmer?"},
        {"role": "assistant", "content": null, "tool_calls": [call("a", "Oslo"), call("b", "Rome")]},
        {"role": "tool", "tool_call_id": "a", "content": "-3"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "21"}]},
        {"role": "assistant", "content": "In Rome"},
    ]);
    let told = "<|turn|>user: \nWhere is it warmer?<|turn|>assistant: <tool_call>\n\
        {\"name\":\"weather\",\"arguments\":{\"city\":\"Oslo\"}}\n</tool_call>\n<tool_call>\n\
        {\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}}\n</tool_call><|turn|>user: <tool_response>\n-3\n\
        </tool_response>\n<tool_response>\n21\n</tool_response><|turn|>assistant: In Rome<|turn|>assistant: ";
    assert_eq!(
        prompt(&server, &messages, false),
        format!("system: Be brief{told}")
    );
    let listed = prompt(&server, &messages, true);
    assert!(
        listed.starts_with("system: Be brief\n\n") && listed.ends_with(told),
        "{listed}"
    );
    assert!(listed.contains(&tools()[1].to_string()), "{listed}");
    // The usage of a completion counts these tokens.
    for tools in [json!([]), tools()] {
        let completion = server
            .post(
                CHAT,
                &json!({"messages": messages, "tools": tools, "max_tokens": 1}),
            )
            .good();
        let tokens = server
            .post("/tokenize", &json!({"messages": messages, "tools": tools}))
            .good();
        assert_eq!(completion["usage"]["prompt_tokens"], tokens["count"]);
    }
}

#[test]
fn what_is_wrong_with_tools_is_refused_by_its_field() {
    let server = Server::start();
    let function = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let parameters = |schema: Value| function(json!({"name": "f", "parameters": schema}));
    let required = |mut body: Value| {
        body["tool_choice"] = "required".into();
        body
    };
    let many: Vec<_> = (0..129)
        .map(|index| json!({"type": "function", "function": {"name": format!("f{index}")}}))
        .collect();
    let unsupported =
        json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let of_parameters = "tools[0].function.parameters";
    let cases = [
        (json!({"tools": 3}), "tools"),
        (json!({"tools": [{}]}), "tools[0].type"),
        (
            required(json!({"tools": [{"type": "web_search"}]})),
            "tools[0].type",
        ),
        (
            json!({"tools": [{"type": "function"}]}),
            "tools[0].function",
        ),
        (function(json!({})), "tools[0].function.name"),
        (function(json!({"name": 3})), "tools[0].function.name"),
        (function(json!({"name": ""})), "tools[0].function.name"),
        (function(json!({"name": "a b"})), "tools[0].function.name"),
        (
            function(json!({"name": "f", "description": 3})),
            "tools[0].function.description",
        ),
        (parameters(json!([])), of_parameters),
        (parameters(json!({"type": "array"})), of_parameters),
        (required(parameters(unsupported.clone())), of_parameters),
        (
            required(parameters(json!({"$ref": "#/$defs/none"}))),
            of_parameters,
        ),
        (
            function(json!({"name": "f", "parameters": unsupported, "strict": true})),
            of_parameters,
        ),
        (json!({"tools": many}), "tools"),
        (
            json!({"tools": [tools()[0], tools()[0]]}),
            "tools[1].function.name",
        ),
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (json!({"tool_choice": 3}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "allowed_tools"}}),
            "tool_choice.allowed_tools",
        ),
        (
            json!({"tool_choice": {"type": "function"}}),
            "tool_choice.function.name",
        ),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "stop"}}}),
            "tool_choice",
        ),
        (
            json!({"tools": [], "tool_choice": "required"}),
            "tool_choice",
        ),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"ignore_eos": true}), "ignore_eos"),
        (
            json!({"structured_outputs": {"regex": "a"}}),
            "structured_outputs.regex",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}),
            "response_format.json_schema.schema",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]}),
            of_parameters,
        ),
    ];
    for (more, field) in cases {
        let error = server.post(CHAT, &chat(more.clone())).error(400);
        assert_eq!(error["param"], field, "{more}: {error}");
    }
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let without = |field: &str| {
        let mut call = call.clone();
        call.as_object_mut().unwrap().remove(field);
        json!({"role": "assistant", "tool_calls": [call]})
    };
    for (message, field) in [
        (
            json!({"role": "tool", "content": "a"}),
            "messages[0].tool_call_id",
        ),
        (json!({"role": "user"}), "messages[0].content"),
        (
            json!({"role": "user", "content": "a", "tool_calls": [call]}),
            "messages[0].tool_calls[0]",
        ),
        (without("id"), "messages[0].tool_calls[0].id"),
        (without("function"), "messages[0].tool_calls[0].function"),
        (
            json!({"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "function": {"name": "f", "arguments": ""}}]}),
            "messages[0].tool_calls[0].type",
        ),
        (
            json!({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ] {
        let error = server
            .post(CHAT, &json!({"messages": [message], "max_tokens": 1}))
            .error(400);
        assert_eq!(error["param"], field, "{error}");
    }
    // If a call is optional, an unsupported schema does not constrain the completion and is not an error.
    server.post(CHAT, &chat(json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}], "max_tokens": 4}))).good();
}

#[test]
fn a_response_calls_functions_in_items_whole_and_streamed() {
    let server = Server::start();
    let tools: Vec<_> = functions()
        .into_iter()
        .map(|(name, schema)| json!({"type": "function", "name": name, "parameters": schema}))
        .collect();
    let earlier =
        json!({"type": "function_call", "call_id": "a", "name": "go", "arguments": "{\"to\": 1}"});
    let input = json!([{"role": "user", "content": "Hi"}, earlier, {"type": "function_call_output", "call_id": "a", "output": "done"}]);
    let mut body = json!({
        "input": input, "tools": tools, "tool_choice": {"type": "function", "name": "weather"}, "max_output_tokens": 160,
        "parallel_tool_calls": false,
    });
    let response = server.post("/v1/responses", &body).good();
    assert_eq!(
        (&response["status"], &response["tool_choice"]["name"]),
        (&json!("completed"), &json!("weather"))
    );
    for (told, tool) in response["tools"].as_array().unwrap().iter().zip(&tools) {
        assert_eq!(
            (&told["name"], &told["parameters"]),
            (&tool["name"], &tool["parameters"])
        );
    }
    assert_eq!(response["output"].as_array().unwrap().len(), 1);
    let call = &response["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &call["status"]),
        (
            &json!("function_call"),
            &json!("weather"),
            &json!("completed")
        )
    );
    assert_arguments("weather", call["arguments"].as_str().unwrap());
    assert!(
        call["call_id"].as_str().unwrap().starts_with("call_") && call["id"] != call["call_id"]
    );
    body["stream"] = true.into();
    let events = events(&server.post("/v1/responses", &body));
    let of = |kind: &str| {
        events
            .iter()
            .filter(|event| event["type"] == kind)
            .collect::<Vec<_>>()
    };
    let added = of("response.output_item.added");
    assert_eq!(
        (
            added.len(),
            &added[0]["item"]["name"],
            &added[0]["item"]["arguments"]
        ),
        (1, &json!("weather"), &json!(""))
    );
    let deltas = of("response.function_call_arguments.delta");
    assert!(
        deltas.len() > 1
            && deltas
                .iter()
                .all(|delta| delta["item_id"] == added[0]["item"]["id"])
    );
    let whole: String = deltas
        .iter()
        .map(|delta| delta["delta"].as_str().unwrap())
        .collect();
    assert_eq!(json!(whole), call["arguments"]);
    assert_eq!(
        of("response.function_call_arguments.done")[0]["arguments"],
        call["arguments"]
    );
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(
        last["response"]["output"][0],
        of("response.output_item.done")[0]["item"]
    );
    assert_eq!(
        last["response"]["output"][0]["arguments"],
        call["arguments"]
    );
    for (input, field) in [
        (json!([{"type": "computer_call"}]), "input[0].type"),
        (
            json!([{"type": "message", "content": "a"}]),
            "input[0].role",
        ),
        (json!([{"role": "user"}]), "input[0].content"),
        (
            json!([{"type": "function_call", "name": "f", "arguments": "{}"}]),
            "input[0].call_id",
        ),
        (
            json!([{"type": "function_call", "call_id": "a", "arguments": "{}"}]),
            "input[0].name",
        ),
        (
            json!([{"type": "function_call", "call_id": "a", "name": "f"}]),
            "input[0].arguments",
        ),
        (
            json!([{"type": "function_call_output", "call_id": "a"}]),
            "input[0].output",
        ),
        (json!([]), "input"),
    ] {
        assert_eq!(
            server
                .post("/v1/responses", &json!({"input": input}))
                .error(400)["param"],
            field,
            "{input}"
        );
    }
    for (more, field) in [
        (
            json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}),
            "tools[0].type",
        ),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (
            json!({"tools": [{"type": "function", "name": "f", "parameters": 3}]}),
            "tools[0].parameters",
        ),
        (
            json!({"tool_choice": {"type": "function"}}),
            "tool_choice.name",
        ),
    ] {
        let mut body = json!({"input": "a"});
        add(&mut body, more);
        assert_eq!(
            server.post("/v1/responses", &body).error(400)["param"],
            field,
            "{body}"
        );
    }
}

#[test]
fn a_message_uses_tools_in_blocks_whole_and_streamed() {
    let server = Server::start();
    let tools: Vec<_> = functions()
        .into_iter()
        .map(|(name, schema)| json!({"name": name, "input_schema": schema}))
        .collect();
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "Let me see"}, {"type": "tool_use", "id": "a", "name": "go", "input": {"to": 2}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": true}, {"type": "text", "text": "Again"},
        ]},
    ]);
    for (choice, expected) in [
        (
            json!({"type": "any", "disable_parallel_tool_use": true}),
            None,
        ),
        (
            json!({"type": "tool", "name": "go", "disable_parallel_tool_use": true}),
            Some("go"),
        ),
    ] {
        let mut body =
            json!({"messages": messages, "tools": tools, "tool_choice": choice, "max_tokens": 120});
        let message = server.post("/v1/messages", &body).good();
        assert_eq!(message["stop_reason"], "tool_use");
        let block = &message["content"][0];
        assert_eq!(
            (&block["type"], message["content"].as_array().unwrap().len()),
            (&json!("tool_use"), 1)
        );
        let name = block["name"].as_str().unwrap();
        assert!(expected.is_none_or(|expected| expected == name));
        assert_arguments(name, &block["input"].to_string());
        assert!(block["id"].as_str().unwrap().starts_with("toolu_"));
        body["stream"] = true.into();
        let events = events(&server.post("/v1/messages", &body));
        let start = &events[1];
        assert_eq!(
            (
                &start["type"],
                &start["content_block"]["name"],
                &start["content_block"]["input"]
            ),
            (&json!("content_block_start"), &block["name"], &json!({}))
        );
        let deltas: Vec<_> = events
            .iter()
            .filter(|event| event["type"] == "content_block_delta")
            .collect();
        assert!(
            deltas.len() > 1
                && deltas.iter().all(
                    |delta| delta["delta"]["type"] == "input_json_delta" && delta["index"] == 0
                )
        );
        let input: String = deltas
            .iter()
            .map(|delta| delta["delta"]["partial_json"].as_str().unwrap())
            .collect();
        assert_eq!(
            serde_json::from_str::<Value>(&input).unwrap(),
            block["input"]
        );
        assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");
        assert_eq!(events[events.len() - 3]["type"], "content_block_stop");
    }
    let tokens = |messages: &Value| {
        server
            .post(
                "/v1/messages",
                &json!({"messages": messages, "max_tokens": 1}),
            )
            .good()["usage"]
            .clone()
    };
    let asked = tokens(&messages);
    let call = json!({"id": "a", "type": "function", "function": {"name": "go", "arguments": "{\"to\": 2}"}});
    let same = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me see", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "Error: no"},
        {"role": "user", "content": "Again"},
    ]);
    let count = server.post("/tokenize", &json!({"messages": same})).good()["count"].as_u64();
    assert_eq!(
        asked["input_tokens"]
            .as_u64()
            .zip(asked["cache_read_input_tokens"].as_u64())
            .map(|(new, cached)| new + cached),
        count
    );
    let error = |body: Value| {
        let reply = server.post("/v1/messages", &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{}",
            reply.body
        );
        reply.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for (more, field) in [
        (
            json!({"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}}),
            "tools[0].type",
        ),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
        (
            json!({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}),
            "tools[0].input_schema",
        ),
        (
            json!({"tools": tools, "tool_choice": {"type": "tool"}}),
            "tool_choice.name",
        ),
        (
            json!({"tools": tools, "tool_choice": {"type": "tool", "name": "stop"}}),
            "tool_choice",
        ),
        (
            json!({"tools": tools, "tool_choice": {"type": "some"}}),
            "tool_choice.type",
        ),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
        add(&mut body, more);
        assert!(error(body.clone()).starts_with(field), "{body}");
    }
    for (message, field) in [
        (
            json!({"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}),
            "messages[0].content[0].id",
        ),
        (
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}),
            "messages[0].content[0].input",
        ),
        (
            json!({"role": "user", "content": [{"type": "tool_result", "content": "a"}]}),
            "messages[0].content[0].tool_use_id",
        ),
        (
            json!({"role": "user", "content": [{"type": "image"}]}),
            "messages[0].content[0].source",
        ),
        (json!({"role": "tool", "content": "a"}), "messages[0].role"),
    ] {
        assert!(
            error(json!({"messages": [message], "max_tokens": 1})).starts_with(field),
            "{message}"
        );
    }
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

/// Returns the events of the first stream at `path` that contains several calls. An event `start` begins each call.
fn until_several(server: &Server, path: &str, body: &Value, start: &str) -> Vec<Value> {
    for _ in 0..64 {
        let events = events(&server.post(path, body));
        let begun = events.iter().filter(|event| event["type"] == start).count();
        assert!(begun >= 1, "{events:?}");
        if begun > 1 {
            return events;
        }
    }
    panic!("no answer has several calls");
}

#[test]
fn several_items_of_a_response_begin_and_end_one_after_the_other() {
    let server = Server::start();
    let tools: Vec<_> = functions()
        .into_iter()
        .map(|(name, schema)| json!({"type": "function", "name": name, "parameters": schema}))
        .collect();
    let body = json!({
        "input": "Hi", "tools": tools, "tool_choice": "required", "temperature": 1, "max_output_tokens": 160, "stream": true,
    });
    let events = until_several(
        &server,
        "/v1/responses",
        &body,
        "response.output_item.added",
    );
    let (mut begun, mut done, mut arguments) = (0, Vec::new(), String::new());
    for event in &events {
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!((&event["output_index"], done.len()), (&json!(begun), begun));
                begun += 1;
            }
            "response.function_call_arguments.delta" => {
                assert_eq!(event["output_index"], begun - 1);
                arguments += event["delta"].as_str().unwrap();
            }
            "response.output_item.done" => {
                assert_eq!(event["output_index"], done.len());
                assert_eq!(event["item"]["arguments"], std::mem::take(&mut arguments));
                done.push(event["item"].clone());
            }
            _ => {}
        }
    }
    let output = events.last().unwrap()["response"]["output"].clone();
    assert_eq!(
        (output.as_array().unwrap().len(), &output),
        (begun, &json!(done))
    );
}

#[test]
fn several_blocks_of_a_message_begin_and_end_one_after_the_other() {
    let server = Server::start();
    let tools: Vec<_> = functions()
        .into_iter()
        .map(|(name, schema)| json!({"name": name, "input_schema": schema}))
        .collect();
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "tools": tools, "tool_choice": {"type": "any"}, "temperature": 1,
        "max_tokens": 160, "stream": true,
    });
    let events = until_several(&server, "/v1/messages", &body, "content_block_start");
    let (mut begun, mut ended) = (0, 0);
    for event in &events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((&event["index"], ended), (&json!(begun), begun));
                begun += 1;
            }
            "content_block_delta" => {
                assert_eq!((&event["index"], ended), (&json!(begun - 1), begun - 1));
            }
            "content_block_stop" => {
                assert_eq!(event["index"], ended);
                ended += 1;
            }
            _ => {}
        }
    }
    assert_eq!(ended, begun);
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
