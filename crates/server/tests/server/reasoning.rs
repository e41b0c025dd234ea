//! Reasoning is apart from answers in all request formats, and its tokens are bounded.

use serde_json::{Value, json};

use crate::scripted::{Script, TEMPLATE};
use crate::support::{Server, add, events};

const CHAT: &str = "/v1/chat/completions";

/// Returns a script that thinks and then answers.
fn thinker() -> Script {
    Script::new(&[]).named(&["<think>", "</think>"]).says(
        "<|a|>",
        &[
            "<think>", "\nhm", " so\n", "</think>", "\n\n", "Yes.", "<|end|>",
        ],
    )
}

/// Returns a script that never stops thinking.
fn dreamer() -> Script {
    Script::new(&["<think>", "</think>"])
        .says("<|a|>", &["<think>", "la"])
        .says("la", &["la"])
        .says("</think>", &["Yes.", "<|end|>"])
}

fn ask(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64});
    add(&mut body, more);
    body
}

fn chat(server: &Server, more: Value) -> Value {
    server.post(CHAT, &ask(more)).good()["choices"][0]["message"].clone()
}

/// Returns the texts of one field of a stream's deltas.
fn streamed(server: &Server, field: &str, mut more: Value) -> String {
    add(&mut more, json!({"stream": true}));
    let chunks = server.post(CHAT, &ask(more)).chunks();
    let deltas = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str());
    deltas.collect()
}

#[test]
fn reasoning_of_a_chat_is_apart_from_its_content_whole_and_streamed() {
    let server = thinker().serve(TEMPLATE);
    let message = chat(&server, json!({}));
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("hm so"), &json!("Yes."))
    );
    assert_eq!(streamed(&server, "reasoning_content", json!({})), "hm so");
    assert_eq!(streamed(&server, "content", json!({})), "Yes.");
    let usage = server.post(CHAT, &ask(json!({}))).good()["usage"].clone();
    let tokens = usage["completion_tokens_details"]["reasoning_tokens"]
        .as_u64()
        .unwrap();
    assert!((2..=5).contains(&tokens), "{usage}");
}

#[test]
fn reasoning_is_where_the_request_wants_it() {
    let server = thinker().serve(TEMPLATE);
    for inline in [
        json!({"reasoning_format": "none"}),
        json!({"reasoning_in_content": true}),
    ] {
        let message = chat(&server, inline.clone());
        assert_eq!(message["content"], "<think>\nhm so\n</think>\n\nYes.");
        assert!(message.get("reasoning_content").is_none());
        assert_eq!(
            streamed(&server, "content", inline),
            "<think>\nhm so\n</think>\n\nYes."
        );
    }
    let hidden = json!({"include_reasoning": false});
    let message = chat(&server, hidden.clone());
    assert_eq!(message["content"], "Yes.");
    assert!(message.get("reasoning_content").is_none());
    assert_eq!(streamed(&server, "reasoning_content", hidden), "");
    for (wrong, field) in [
        (json!({"reasoning_format": "other"}), "reasoning_format"),
        (
            json!({"reasoning_format": "auto", "reasoning_in_content": true}),
            "reasoning_in_content",
        ),
        (
            json!({"reasoning_format": "none", "include_reasoning": false}),
            "include_reasoning",
        ),
        (json!({"reasoning_budget": -2}), "reasoning_budget"),
        (
            json!({"reasoning_budget": 1, "thinking_token_budget": 2}),
            "thinking_token_budget",
        ),
    ] {
        assert_eq!(server.post(CHAT, &ask(wrong)).error(400)["param"], field);
    }
}

#[test]
fn an_answer_begins_within_reasoning_that_the_template_has_opened() {
    let opened = Script::new(&["<think>", "</think>"])
        .says("<think>", &["hm", "</think>", "Yes.", "<|end|>"]);
    let server = opened.serve(&format!("{TEMPLATE}<think>"));
    let message = chat(&server, json!({}));
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("hm"), &json!("Yes."))
    );
    // A message that is continued tells it itself.
    let plain =
        Script::new(&["<think>", "</think>"]).says("m", &["!", "</think>", "Yes.", "<|end|>"]);
    let server = plain.serve(TEMPLATE);
    let continued = |text: &str| {
        let messages =
            json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]);
        chat(
            &server,
            json!({"messages": messages, "continue_final_message": true}),
        )
    };
    let thinking = continued("<think>hm");
    assert_eq!(
        (&thinking["reasoning_content"], &thinking["content"]),
        (&json!("!"), &json!("Yes."))
    );
    assert!(continued("hm").get("reasoning_content").is_none());
}

#[test]
fn a_message_has_blocks_of_thinking_whole_and_streamed() {
    let server = thinker().serve(TEMPLATE);
    let message = server.post("/v1/messages", &ask(json!({}))).good();
    let content = &message["content"];
    assert_eq!(
        (&content[0]["type"], &content[0]["thinking"], &content[1]),
        (
            &json!("thinking"),
            &json!("hm so"),
            &json!({"type": "text", "text": "Yes."})
        )
    );
    assert!(
        content[0]["signature"]
            .as_str()
            .is_some_and(|signature| !signature.is_empty())
    );
    let stream = events(&server.post("/v1/messages", &ask(json!({"stream": true}))));
    let kinds: Vec<_> = stream
        .iter()
        .map(|event| match event["type"].as_str().unwrap() {
            "content_block_start" => event["content_block"]["type"].as_str().unwrap(),
            "content_block_delta" => event["delta"]["type"].as_str().unwrap(),
            kind => kind,
        })
        .collect();
    let mut distinct = kinds.clone();
    distinct.dedup();
    assert_eq!(
        distinct,
        [
            "message_start",
            "thinking",
            "thinking_delta",
            "signature_delta",
            "content_block_stop",
            "text",
            "text_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let omitted = json!({"thinking": {"type": "adaptive", "display": "omitted"}});
    let message = server.post("/v1/messages", &ask(omitted)).good();
    assert_eq!(message["content"][0]["thinking"], "");
    // The client gives the blocks back.
    let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content},
                          {"role": "user", "content": "Again"}]);
    let tokens = server
        .post("/v1/messages/count_tokens", &json!({"messages": messages}))
        .good()["input_tokens"]
        .clone();
    let same = json!([{"role": "user", "content": "Hi"},
                      {"role": "assistant", "content": "Yes.", "reasoning_content": "hm so"},
                      {"role": "user", "content": "Again"}]);
    assert_eq!(
        server.post("/tokenize", &json!({"messages": same})).good()["count"],
        tokens
    );
}

#[test]
fn a_response_has_items_of_reasoning_whole_and_streamed() {
    let server = thinker().serve(TEMPLATE);
    let mut body = json!({"input": "Hi", "max_output_tokens": 64});
    let response = server.post("/v1/responses", &body).good();
    let output = response["output"].as_array().unwrap().clone();
    assert_eq!(output.len(), 2);
    assert_eq!(
        (&output[0]["type"], &output[0]["content"][0]["text"]),
        (&json!("reasoning"), &json!("hm so"))
    );
    assert_eq!(output[1]["content"][0]["text"], "Yes.");
    assert!(
        response["usage"]["output_tokens_details"]["reasoning_tokens"]
            .as_u64()
            .unwrap()
            > 0
    );
    body["stream"] = true.into();
    let stream = events(&server.post("/v1/responses", &body));
    let texts = |kind: &str| {
        let of_kind = stream.iter().filter(|event| event["type"] == kind);
        of_kind
            .map(|event| event["delta"].as_str().unwrap())
            .collect::<String>()
    };
    assert_eq!(texts("response.reasoning_text.delta"), "hm so");
    assert_eq!(texts("response.output_text.delta"), "Yes.");
    // The client gives the items back.
    let count = |input: Value| {
        let body = json!({"input": input});
        server.post("/v1/responses/input_tokens", &body).good()["input_tokens"].clone()
    };
    let given = json!([{"role": "user", "content": "Hi"}, output[0], output[1]]);
    let summary = json!([{"role": "user", "content": "Hi"},
                         {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm so"}]},
                         {"role": "assistant", "content": "Yes."}]);
    let same = json!([{"role": "user", "content": "Hi"},
                      {"role": "assistant", "content": "Yes.", "reasoning_content": "hm so"}]);
    let expected = server.post("/tokenize", &json!({"messages": same})).good()["count"].clone();
    assert_eq!((&count(given), &count(summary)), (&expected, &expected));
}

#[test]
fn a_budget_ends_the_reasoning_and_the_answer_follows() {
    let server = dreamer().serve(TEMPLATE);
    let endless = chat(&server, json!({}));
    assert_eq!(endless["content"], "");
    assert!(endless["reasoning_content"].as_str().unwrap().len() > 60);
    for budget in [0, 1, 5] {
        for field in ["thinking_token_budget", "reasoning_budget"] {
            let message = chat(&server, json!({field: budget}));
            let thought = message["reasoning_content"].as_str().unwrap_or_default();
            assert_eq!(
                (thought, &message["content"]),
                (&*"la".repeat(budget), &json!("Yes."))
            );
        }
    }
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 3}});
    let message = server.post("/v1/messages", &ask(thinking)).good();
    assert_eq!(message["content"][0]["thinking"], "lalala");
    assert_eq!(message["content"][1]["text"], "Yes.");
    for (wrong, field) in [
        (
            json!({"type": "enabled", "budget_tokens": 64}),
            "thinking.budget_tokens",
        ),
        (
            json!({"type": "enabled", "budget_tokens": 0}),
            "thinking.budget_tokens",
        ),
        (
            json!({"type": "disabled", "budget_tokens": 3}),
            "thinking.budget_tokens",
        ),
    ] {
        let refused = server.post("/v1/messages", &ask(json!({"thinking": wrong})));
        assert_eq!(refused.status, 400);
        assert!(
            refused.json()["error"]["message"]
                .as_str()
                .unwrap()
                .starts_with(field)
        );
    }
    // A model that marks no reasoning has no budget of it.
    let plain = Script::new(&[])
        .says("<|a|>", &["Yes.", "<|end|>"])
        .serve(TEMPLATE);
    let refused = plain.post(CHAT, &ask(json!({"reasoning_budget": 5})));
    assert_eq!(refused.error(400)["param"], "reasoning_budget");
}

#[test]
fn reasoning_that_is_turned_off_does_not_come_where_the_template_has_no_variable_for_it() {
    let server = dreamer().serve(TEMPLATE);
    assert!(chat(&server, json!({}))["reasoning_content"].is_string());
    for off in [
        json!({"reasoning_effort": "none"}),
        json!({"enable_thinking": false}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        let message = chat(&server, off.clone());
        let text = message["content"].as_str().unwrap();
        assert!(
            message.get("reasoning_content").is_none(),
            "{off}: {message}"
        );
        assert!(!text.contains("<think>"), "{off}: {message}");
    }
    let off = ask(json!({"thinking": {"type": "disabled"}}));
    let message = server.post("/v1/messages", &off).good();
    assert_eq!(message["content"][0]["type"], "text", "{message}");
    let off = json!({"messages": [{"role": "user", "content": "Hi"}], "think": false, "stream": false,
                     "options": {"num_predict": 64}});
    let message = server.post("/api/chat", &off).good()["message"].clone();
    assert!(message.get("thinking").is_none(), "{message}");
    // A template that reads the variable is trusted with it.
    let reads = format!(
        "{{% if enable_thinking is undefined or enable_thinking %}}{{% endif %}}{TEMPLATE}"
    );
    let server = dreamer().serve(&reads);
    let message = chat(&server, json!({"enable_thinking": false}));
    assert!(message["reasoning_content"].is_string(), "{message}");
}

#[test]
fn reasoning_passes_before_an_answer_in_a_form() {
    let server = thinker().serve(TEMPLATE);
    let format = json!({"type": "json_schema", "json_schema": {"schema": {"enum": ["a"]}}});
    let message = chat(&server, json!({"response_format": format}));
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("hm so"), &json!("\"a\""))
    );
    // A budget and a form together.
    let server = dreamer().serve(TEMPLATE);
    let message = chat(
        &server,
        json!({"response_format": format, "reasoning_budget": 2}),
    );
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("lala"), &json!("\"a\""))
    );
    // Where the template has ended the reasoning, the answer comes at once.
    let over = thinker().serve(&format!("{TEMPLATE}<think>\n\n</think>\n\n"));
    let message = chat(&over, json!({"response_format": format}));
    assert_eq!(
        (&message["content"], message.get("reasoning_content")),
        (&json!("\"a\""), None)
    );
}

#[test]
fn calls_follow_reasoning() {
    let words = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
    let call = "\n{\"name\": \"f\", \"arguments\": {}}\n";
    let script = Script::new(&words).says(
        "<|a|>",
        &[
            "<think>",
            "hm",
            "</think>",
            "<tool_call>",
            call,
            "</tool_call>",
            "<|end|>",
        ],
    );
    let server = script.serve(&format!("{{# <tool_call> #}}{TEMPLATE}"));
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]);
    for choice in ["auto", "required"] {
        let message = chat(&server, json!({"tools": tools, "tool_choice": choice}));
        assert_eq!(message["reasoning_content"], "hm", "{choice}");
        assert_eq!(
            message["tool_calls"][0]["function"]["name"], "f",
            "{choice}: {message}"
        );
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{}");
    }
}
