//! Tool calls, in all request formats, streamed and not.

mod chat;
mod items;

use serde_json::{Value, json};

use crate::support::{Server, add};

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
