//! Calls in items of responses and in blocks of messages.

use serde_json::{Value, json};

use super::{assert_arguments, functions};
use crate::support::{Server, add, events};

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
