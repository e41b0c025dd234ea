//! Every field of every request: used, ignored, or refused by name, as the tables state.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};
use triad_server::fields::{Effect, Field, RequestFields, document, requests};

use crate::library::Library;
use crate::support::{Reply, Server, add, delete, engine};

/// A body in which one field can be changed.
pub struct Body {
    pub body: Value,
    /// The JSON pointer of the object to which fields are added.
    pub place: &'static str,
}

fn functions() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}])
}

/// Returns a body of the request that contains `parent`, one of whose fields a test changes.
pub fn body(path: &str, parent: &str) -> Body {
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let called = json!([
        {"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "1"}
    ]);
    let picture = json!({"type": "image", "source": {"type": "base64", "data": "aGk="}});
    let format = json!({"type": "json_schema", "json_schema": {"schema": {"enum": ["a"]}}});
    let (more, place) = match (path, parent) {
        (_, "") => (json!({}), ""),
        (_, "stream_options") => (
            json!({"stream": true, "stream_options": {}}),
            "/stream_options",
        ),
        (_, "response_format") => (
            json!({"response_format": {"type": "json_object"}}),
            "/response_format",
        ),
        (_, "response_format.json_schema") => (
            json!({"response_format": format}),
            "/response_format/json_schema",
        ),
        (_, "lora") => (json!({"lora": [{"name": "one"}]}), "/lora/0"),
        (_, "structured_outputs") => (json!({"structured_outputs": {}}), "/structured_outputs"),
        (path, "options") if path.starts_with("/api/") => (
            json!({"options": {"num_predict": 12, "seed": 5, "temperature": 1}}),
            "/options",
        ),
        ("/api/chat", "messages.tool_calls" | "messages.tool_calls.function") => {
            let call = json!({"id": "a", "function": {"name": "f", "arguments": {}}});
            let messages = json!([
                {"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "content": "1"}
            ]);
            (
                json!({"messages": messages}),
                if parent == "messages.tool_calls" {
                    "/messages/1/tool_calls/0"
                } else {
                    "/messages/1/tool_calls/0/function"
                },
            )
        }
        ("/infill", "input_extra") => (
            json!({"input_extra": [{"filename": "a", "text": "b"}]}),
            "/input_extra/0",
        ),
        (path, parent) if path.starts_with("/v1/conversations/") && !parent.is_empty() => {
            let Body { body, place } = body("/v1/conversations", parent);
            (body, place)
        }
        ("/v1/messages/count_tokens", _) => {
            let Body { body, place } = body("/v1/messages", parent);
            let mut more = body;
            if let Value::Object(fields) = &mut more {
                fields.remove("max_tokens");
            }
            (more, place)
        }
        ("/v1/responses/input_tokens", _) => {
            let Body { body, place } = body("/v1/responses", parent);
            let mut more = body;
            if let Value::Object(fields) = &mut more {
                ["max_output_tokens", "temperature", "seed"]
                    .iter()
                    .for_each(|name| drop(fields.remove(*name)));
            }
            (more, place)
        }
        ("/v1/conversations", "items" | "items.content" | "items.output" | "items.summary") => {
            let of_input = parent.replace("items", "input");
            let Body { body, place } = body("/v1/responses", &of_input);
            let place = match place {
                "/input/0" => "/items/0",
                "/input/0/content/0" => "/items/0/content/0",
                "/input/0/summary/0" => "/items/0/summary/0",
                "/input/2/output/0" => "/items/2/output/0",
                place => panic!("{place}"),
            };
            (json!({"items": body["input"]}), place)
        }
        ("/v1/messages", "messages.content") => (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}),
            "/messages/0/content/0",
        ),
        ("/v1/messages", "messages.content.content") => (
            json!({"messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}]}
                ]},
            ]}),
            "/messages/2/content/0/content/0",
        ),
        ("/v1/messages", "messages.content.source") => (
            json!({"messages": [{"role": "user", "content": [picture]}]}),
            "/messages/0/content/0/source",
        ),
        ("/v1/messages", "messages.content.content.source") => (
            json!({"messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [picture]}]},
            ]}),
            "/messages/2/content/0/content/0/source",
        ),
        ("/v1/messages", "system") => (
            json!({"system": [{"type": "text", "text": "a"}]}),
            "/system/0",
        ),
        ("/v1/messages", "tools") => (
            json!({"tools": [{"name": "f", "input_schema": {}}]}),
            "/tools/0",
        ),
        ("/v1/messages", "tool_choice") => (
            json!({"tools": [{"name": "f", "input_schema": {"properties": {}}}], "tool_choice": {"type": "any"}}),
            "/tool_choice",
        ),
        ("/v1/messages", "output_format") => (
            json!({"output_format": {"type": "json_schema", "schema": {"enum": ["a"]}}}),
            "/output_format",
        ),
        ("/v1/messages", "output_config") => (json!({"output_config": {}}), "/output_config"),
        ("/v1/messages", "output_config.format") => (
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"enum": ["a"]}}}}),
            "/output_config/format",
        ),
        ("/v1/messages", "thinking") => (json!({"thinking": {"type": "disabled"}}), "/thinking"),
        ("/v1/responses", "input") => (
            json!({"input": [{"role": "user", "content": "Hi"}]}),
            "/input/0",
        ),
        ("/v1/responses", "input.content") => (
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]}),
            "/input/0/content/0",
        ),
        ("/v1/responses", "input.output") => (
            json!({"input": [
                {"role": "user", "content": "Hi"},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]},
            ]}),
            "/input/2/output/0",
        ),
        ("/v1/responses", "input.summary") => (
            json!({"input": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"role": "user", "content": "Hi"},
            ]}),
            "/input/0/summary/0",
        ),
        ("/v1/responses", "conversation") => {
            (json!({"conversation": {"id": "conv_x"}}), "/conversation")
        }
        ("/v1/responses", "text") => (json!({"text": {}}), "/text"),
        ("/v1/responses", "text.format") => (
            json!({"text": {"format": {"type": "json_schema", "schema": {"enum": ["a"]}}}}),
            "/text/format",
        ),
        ("/v1/responses", "tools") => (
            json!({"tools": [{"type": "function", "name": "f"}]}),
            "/tools/0",
        ),
        ("/v1/responses", "tool_choice" | "tool_choice.function") => (
            json!({
                "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}],
                "tool_choice": {"type": "function", "name": "f", "function": {"name": "f"}},
            }),
            if parent == "tool_choice" {
                "/tool_choice"
            } else {
                "/tool_choice/function"
            },
        ),
        ("/v1/responses", "tool_choice.tools") => (
            json!({
                "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}],
                "tool_choice": {
                    "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]
                },
            }),
            "/tool_choice/tools/0",
        ),
        ("/v1/responses", "reasoning") => (json!({"reasoning": {}}), "/reasoning"),
        (_, "messages") => (
            json!({"messages": [{"role": "user", "content": "Hi"}]}),
            "/messages/0",
        ),
        (_, "messages.content") => (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}),
            "/messages/0/content/0",
        ),
        (_, "messages.content.image_url") => {
            let part =
                json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}});
            (
                json!({"messages": [{"role": "user", "content": [part]}]}),
                "/messages/0/content/0/image_url",
            )
        }
        (_, "messages.tool_calls") => (json!({"messages": called}), "/messages/1/tool_calls/0"),
        (_, "messages.tool_calls.function") => (
            json!({"messages": called}),
            "/messages/1/tool_calls/0/function",
        ),
        (_, "tools") => (json!({"tools": functions()}), "/tools/0"),
        (_, "tools.function") => (json!({"tools": functions()}), "/tools/0/function"),
        (_, "tool_choice" | "tool_choice.function") => (
            json!({"tools": functions(), "tool_choice": {"type": "function", "function": {"name": "f"}}}),
            if parent == "tool_choice" {
                "/tool_choice"
            } else {
                "/tool_choice/function"
            },
        ),
        (
            _,
            "tool_choice.allowed_tools"
            | "tool_choice.allowed_tools.tools"
            | "tool_choice.allowed_tools.tools.function",
        ) => {
            let allowed = json!({
                "mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}],
            });
            let place = match parent {
                "tool_choice.allowed_tools" => "/tool_choice/allowed_tools",
                "tool_choice.allowed_tools.tools" => "/tool_choice/allowed_tools/tools/0",
                _ => "/tool_choice/allowed_tools/tools/0/function",
            };
            let choice = json!({"type": "allowed_tools", "allowed_tools": allowed});
            (json!({"tools": functions(), "tool_choice": choice}), place)
        }
        (path, parent) => panic!("{path}: there is no body with {parent}"),
    };
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let mut body = match path {
        "/v1/chat/completions" => {
            json!({"messages": hi, "max_tokens": 12, "temperature": 1, "seed": 5})
        }
        "/v1/completions" => json!({"prompt": "Hi", "max_tokens": 12, "temperature": 1, "seed": 5}),
        "/v1/responses" => {
            json!({"input": "Hi", "max_output_tokens": 12, "temperature": 1, "seed": 5})
        }
        "/v1/messages" => json!({"messages": hi, "max_tokens": 12}),
        "/v1/messages/count_tokens" => json!({"messages": hi}),
        "/v1/responses/input_tokens" => json!({"input": "Hi"}),
        "/v1/conversations" | "/v1/conversations/{id}" => json!({}),
        "/v1/conversations/{id}/items" => json!({"items": []}),
        "/embed" => json!({"inputs": "Hi"}),
        "/v1/embeddings" => json!({"input": "Hi"}),
        "/rerank" => json!({"query": "cat", "documents": ["a cat", "the end"]}),
        "/predict" => json!({"inputs": "a cat"}),
        "/mcp/call" => json!({"name": "f"}),
        "/tokenize" if more.get("messages").is_none() && more.get("tools").is_none() => {
            json!({"content": "Hi"})
        }
        "/tokenize" => json!({"messages": hi}),
        "/detokenize" => json!({"tokens": [97]}),
        "/sessions/{name}/save" => json!({"messages": hi}),
        "/sessions/{name}/restore" => json!({}),
        "/completion" => json!({"prompt": "Hi", "n_predict": 12, "temperature": 1, "seed": 5}),
        "/infill" => {
            json!({"input_prefix": "Hi", "n_predict": 12, "temperature": 1, "seed": 5})
        }
        "/api/chat" => {
            json!({"messages": hi, "stream": false, "options": {"num_predict": 12, "temperature": 1, "seed": 5}})
        }
        "/api/generate" => {
            json!({"prompt": "Hi", "stream": false, "options": {"num_predict": 12, "temperature": 1, "seed": 5}})
        }
        "/api/embed" => json!({"input": "Hi"}),
        "/api/embeddings" => json!({"prompt": "Hi"}),
        "/api/show" => json!({}),
        "/api/pull" => json!({"model": "tiny", "stream": false}),
        "/api/delete" => json!({"model": "none"}),
        path => panic!("there is no body for {path}"),
    };
    add(&mut body, more);
    Body { body, place }
}

/// Returns another value for a used field that changes the response, and the fields that it requires in the body.
pub fn other(path: &str, field: &str) -> (Value, Value) {
    let limit = if path == "/v1/responses" {
        "max_output_tokens"
    } else if path == "/completion" || path == "/infill" {
        "n_predict"
    } else {
        "max_tokens"
    };
    let greedy = json!({"temperature": 0, limit: 48});
    let is_count = path.ends_with("_tokens");
    let messages = json!({"content": null, "messages": [{"role": "user", "content": "Hi"}]});
    let value = match field {
        "model" => json!("none"),
        "samplers" => return (json!(["top_k"]), json!({"temperature": 0})),
        // A line end is needed, which the tests of the endpoint have.
        "t_max_predict_ms" | "n_indent" => json!("a"),
        "response_fields" => json!(["content"]),
        "n_predict" if path == "/completion" || path == "/infill" => json!(3),
        "max_tokens" if path == "/completion" || path == "/infill" => {
            return (json!(3), json!({"n_predict": null}));
        }
        "input_extra" => json!([{"filename": "a", "text": "b"}]),
        "input_prefix" | "input_suffix" | "input_extra.filename" => json!("Ho"),
        "suffix" => json!("Ho"),
        "name" if path == "/api/show" || path == "/mcp/call" => json!("none"),
        "arguments" if path == "/mcp/call" => json!(5.5),
        "name" if path == "/api/pull" => return (json!("none"), json!({"model": null})),
        "keep_alive" => json!("soon"),
        "think" if path.starts_with("/api/") => json!(true),
        "raw" => json!(true),
        "query" => json!("the end"),
        "inputs" => json!("the end"),
        "instruction" => json!("find it"),
        "parse_special" if path == "/predict" => {
            return (json!(false), json!({"inputs": "[MASK]"}));
        }
        "documents" if path == "/rerank" => json!(["x"]),
        "texts" => return (json!(["x"]), json!({"documents": null})),
        "top_n" | "top_k" if path == "/rerank" => json!(1),
        "return_documents" | "return_text" | "raw_scores" => json!(true),
        "parse_special" if path == "/rerank" => {
            return (json!(false), json!({"query": "[MASK]"}));
        }
        "truncate" if path == "/embed" => {
            return (json!(true), json!({"inputs": "long ".repeat(400)}));
        }
        "truncate" => return (json!(false), json!({"input": "long ".repeat(400)})),
        "dimensions" => json!(3),
        "format" if path.starts_with("/api/") => json!("json"),
        "options" => json!({"num_predict": 3}),
        "options.num_predict" => json!(3),
        "options.frequency_penalty" | "options.presence_penalty" => json!(2),
        "options.repeat_penalty" => json!(50),
        "options.temperature" => json!(0),
        "options.top_k" => json!(1),
        "options.top_p" => json!(0.01),
        "options.min_p" => json!(1),
        "options.seed" => json!(6),
        "options.stop" => json!(["a"]),
        "messages.thinking" => json!("hm"),
        // The template shows neither calls nor the tools of results.
        "messages.tool_name" | "messages.tool_call_id" if path == "/api/chat" => json!(5.5),
        "normalize" | "use_activation" => json!(false),
        "embd_normalize" => json!(-1),
        "prompt_name" => json!("query"),
        // What a conversation holds does not show in its description.
        field if path == "/v1/conversations" && field.starts_with("items") => json!(5.5),
        "tool_choice" if path == "/v1/responses/input_tokens" => {
            return (
                json!("none"),
                json!({"tools": [{"type": "function", "name": "f"}]}),
            );
        }
        "tool_choice" if is_count => {
            let tools = json!([{"name": "f", "input_schema": {}}]);
            return (json!({"type": "none"}), json!({"tools": tools}));
        }
        "tools" if path == "/v1/responses/input_tokens" => {
            json!([{"type": "function", "name": "f"}])
        }
        "tools" if is_count => json!([{"name": "f", "input_schema": {}}]),
        "messages" if is_count => json!([{"role": "user", "content": "Hohoho"}]),
        // These fields belong to another kind of block, item or choice than the body has.
        "messages.content.name" | "messages.content.content"
            if path.starts_with("/v1/messages") =>
        {
            json!(5.5)
        }
        "tool_choice.name" | "input.name" => json!(5.5),
        "n_predict" => return (json!(3), json!({"max_tokens": null})),
        "n" => json!(2),
        "temperature" if path == "/v1/messages" => json!(50),
        "top_p" if path == "/v1/messages" => return (json!(2), json!({})),
        "top_k" if path == "/v1/messages" => return (json!(-5), json!({})),
        "temperature" => json!(0),
        "top_p" => json!(0.01),
        "top_k" => json!(1),
        "min_p" => json!(1),
        "frequency_penalty" | "presence_penalty" if path.starts_with("/api/") => json!(2),
        "frequency_penalty" | "presence_penalty" => return (json!(2), greedy),
        "repetition_penalty" | "repeat_penalty" => return (json!(50), greedy),
        "logit_bias" => json!({"97": 100}),
        "seed" => json!(6),
        "ignore_eos" => return (json!(true), json!({"logit_bias": {"258": 100}})),
        "lora" => json!([{"name": "one", "scale": 50}]),
        "lora.name" => json!("none"),
        "lora.scale" => json!(50),
        "stream" | "echo" | "with_pieces" | "stream_options.include_usage" => json!(true),
        "stream_options.continuous_usage_stats" => {
            return (
                json!(true),
                json!({"stream_options": {"include_usage": true}}),
            );
        }
        "stream_options" if path == "/v1/responses" => json!(5.5),
        "stream_options" => return (json!({"include_usage": true}), json!({"stream": true})),
        "response_format" => json!({"type": "json_object"}),
        "response_format.type" => json!("text"),
        "response_format.json_schema" => json!({"schema": {"enum": ["b"]}}),
        "structured_outputs" => json!({"choice": ["b"]}),
        "structured_outputs.choice" | "guided_choice" => json!(["b"]),
        "structured_outputs.json_object" => json!(true),
        "structured_outputs.regex" | "guided_regex" => json!("b+c"),
        "structured_outputs.grammar" | "guided_grammar" => json!("start: \"b\""),
        "tool_choice" if path == "/v1/messages" => {
            return (
                json!({"type": "any"}),
                json!({"tools": [{"name": "f", "input_schema": {}}]}),
            );
        }
        "tool_choice" => {
            // The choice in the format of each of OpenAI's APIs.
            let schema = json!({"type": "object", "properties": {}});
            let function = json!({"name": "f", "parameters": schema});
            let tools = if path == "/v1/responses" {
                json!([{"type": "function", "name": "f", "parameters": schema}])
            } else {
                json!([{"type": "function", "function": function}])
            };
            return (json!("required"), json!({"tools": tools}));
        }
        "logprobs" if path == "/v1/completions" => json!(1),
        "logprobs" => json!(true),
        "top_logprobs" if path == "/v1/responses" => {
            let include = json!({"include": ["message.output_text.logprobs"]});
            return (json!(2), include);
        }
        "top_logprobs" => return (json!(2), json!({"logprobs": true})),
        "best_of" => json!(2),
        "parse_special" => {
            let text = "a<|turn|>";
            return (json!(false), json!({path_of_text(path): text}));
        }
        "chat_template_kwargs" if path == "/tokenize" => {
            return (json!({"enable_thinking": false}), messages);
        }
        "chat_template_kwargs" => json!({"enable_thinking": false}),
        "thinking" => json!({"type": "disabled"}),
        "enable_thinking" if path == "/tokenize" => return (json!(false), messages),
        "enable_thinking" => json!(false),
        "include_reasoning" | "store" | "id" => json!(5.5),
        "conversation" => json!("conv_x"),
        "thinking.type" => json!("enabled"),
        "add_generation_prompt" => {
            return (
                json!(false),
                if path == "/tokenize" {
                    messages
                } else {
                    json!({})
                },
            );
        }
        "continue_final_message" => {
            let messages =
                json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]);
            return (json!(true), json!({"content": null, "messages": messages}));
        }
        "documents" => {
            return (
                json!([{"text": "d"}]),
                if path == "/tokenize" {
                    messages
                } else {
                    json!({})
                },
            );
        }
        "reasoning_effort" => {
            return (
                json!("high"),
                if path == "/tokenize" {
                    messages
                } else {
                    json!({})
                },
            );
        }
        "reasoning" => json!({"effort": "high"}),
        "reasoning.effort" => json!("high"),
        "metadata" => json!({"a": "b"}),
        "text" => json!({"format": {"type": "json_object"}}),
        "text.format" | "output_config.format" | "output_format" => json!({"type": "json_object"}),
        "output_config" => json!({"format": {"type": "json_object"}}),
        "system" | "instructions" => json!("a"),
        "encoding_format" => json!("base64"),
        "pooling" => json!("last"),
        "prompt" if path == "/tokenize" => return (json!("Ho"), json!({"content": null})),
        "content" if path == "/v1/embeddings" => return (json!("Ho"), json!({"input": null})),
        "tokens" => json!([98]),
        "messages" if path == "/tokenize" => {
            return (
                json!([{"role": "user", "content": "Hi"}]),
                json!({"content": null}),
            );
        }
        "messages" => json!([{"role": "user", "content": "Ho"}]),
        "tools" if path == "/tokenize" => return (functions(), messages),
        "tools" if path == "/v1/messages" => json!([{"name": "f", "input_schema": {}}]),
        "tools" if path == "/v1/responses" => json!([{"type": "function", "name": "f"}]),
        "tools" => functions(),
        "tools.function" => json!({"name": "g"}),
        "tool_choice.function" | "tool_choice.allowed_tools.tools.function" => {
            json!({"name": "g"})
        }
        "tool_choice.allowed_tools.tools.function.name" | "tool_choice.tools.name" => json!("g"),
        "max_tokens" | "max_completion_tokens" | "max_output_tokens" => json!(3),
        // A text, or a value that is refused with the field's name.
        field => match field.rsplit('.').next().unwrap() {
            "role" => json!("system"),
            "content" | "text" | "name" | "description" | "input" | "prompt"
            | "reasoning_content" | "reasoning" => {
                json!(if is_count { "Hohoho" } else { "Ho" })
            }
            "schema" | "json_schema" | "guided_json" | "json" => json!({"enum": ["b"]}),
            "parameters" | "input_schema" => {
                json!({"type": "object", "properties": {"a": {"type": "integer"}}})
            }
            _ => json!(5.5),
        },
    };
    (value, json!({}))
}

/// Returns the name of the field with the text.
fn path_of_text(path: &str) -> &'static str {
    match path {
        "/v1/completions" | "/completion" => "prompt",
        "/v1/embeddings" => "input",
        _ => "content",
    }
}

/// Returns the reply without values that vary between equal requests.
pub fn same(reply: &Reply) -> (u16, Value) {
    fn strip(value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(strip),
            Value::Object(fields) => {
                let varying = [
                    "id",
                    "created",
                    "created_at",
                    "total_duration",
                    "load_duration",
                    "prompt_eval_duration",
                    "eval_duration",
                    "prompt_eval_count",
                    "timings",
                    "call_id",
                    "request_id",
                    "item_id",
                    "first_id",
                    "last_id",
                    "cached_tokens",
                    "tokens_cached",
                    "input_tokens",
                ];
                fields.retain(|name, value| {
                    let is_echo = name == "text" && value.is_object();
                    !varying.contains(&name.as_str())
                        && !is_echo
                        && name != "cache_read_input_tokens"
                });
                fields.values_mut().for_each(strip);
            }
            _ => {}
        }
    }
    let mut value = if reply.headers.contains("text/event-stream") {
        reply
            .body
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
            .collect()
    } else if reply.headers.contains("application/x-ndjson") {
        let lines = reply.body.lines();
        lines
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .collect()
    } else {
        reply.json()
    };
    // The number that a count returns is all of its response.
    let counted = value.get("input_tokens").cloned();
    strip(&mut value);
    if let (Some(counted), Value::Object(fields)) = (counted, &mut value) {
        fields.insert("counted".into(), counted);
    }
    (reply.status, value)
}

/// Sets a field of a body. Null removes it.
pub fn set(Body { mut body, place }: Body, name: &str, value: Value, more: Value) -> Value {
    add(&mut body, more);
    let parent = body.pointer_mut(place).unwrap_or_else(|| panic!("{place}"));
    let Value::Object(fields) = parent else {
        panic!("{parent}")
    };
    fields.insert(name.to_owned(), value);
    body
}

/// Returns the message of an error. Ollama's errors are texts.
pub fn message(reply: &Reply) -> String {
    let error = &reply.json()["error"];
    let message = error["message"].as_str().or(error.as_str());
    message.unwrap_or_default().to_owned()
}

struct Sweep<'a> {
    server: &'a Server,
    path: &'static str,
    failed: Vec<String>,
}

impl Sweep<'_> {
    fn reply(&self, body: &Value) -> Reply {
        self.server.post(self.path, body)
    }

    fn check(&mut self, parent: &str, field: &Field) {
        let name = if parent.is_empty() {
            field.name.to_owned()
        } else {
            format!("{parent}.{}", field.name)
        };
        let plain = |more: Value| {
            let mut plain = body(self.path, parent).body;
            add(&mut plain, more);
            plain
        };
        let with =
            |value: Value, more: Value| set(body(self.path, parent), field.name, value, more);
        let nothing = || json!({});
        match field.effect {
            Effect::Followed => {
                let (mut value, more) = other(self.path, &name);
                let before = same(&self.reply(&plain(more.clone())));
                if field.name.starts_with("stop") {
                    let text = before
                        .1
                        .pointer("/choices/0/message/content")
                        .or(before.1.pointer("/choices/0/text"));
                    let text = text
                        .or(before.1.pointer("/message/content"))
                        .or(before.1.pointer("/response"))
                        .or(before.1.pointer("/content").filter(|it| it.is_string()))
                        .or(before.1.pointer("/output/0/content/0/text"))
                        .or(before.1.pointer("/content/0/text"));
                    value = json!([text
                        .unwrap()
                        .as_str()
                        .unwrap()
                        .chars()
                        .next()
                        .unwrap()
                        .to_string()]);
                }
                let after = same(&self.reply(&with(value.clone(), more)));
                if before == after {
                    self.failed.push(format!(
                        "{} {name}: {value} changes nothing: {after:?}",
                        self.path
                    ));
                }
                field
                    .inner
                    .iter()
                    .for_each(|inner| self.check(&name, inner));
            }
            Effect::Ignored => {
                let value = match field.name {
                    "name" => json!("a"),
                    "strict" | "include_usage" => json!(true),
                    _ => json!({"a": [1]}),
                };
                let (before, after) = (
                    self.reply(&plain(nothing())),
                    self.reply(&with(value, nothing())),
                );
                if same(&before) != same(&after) {
                    self.failed.push(format!(
                        "{} {name}: {} is not {}",
                        self.path, after.body, before.body
                    ));
                }
            }
            Effect::Refused(neutral) => {
                let refused = self.reply(&with(json!({"other": 7}), nothing()));
                // Errors in Anthropic's format have the field's name in the message.
                let error = message(&refused);
                let named = error
                    .split(':')
                    .next()
                    .unwrap_or_default()
                    .replace(|c: char| "[]0123456789".contains(c), "");
                if refused.status != 400 || named != name.replace(|c: char| c.is_ascii_digit(), "")
                {
                    self.failed
                        .push(format!("{} {name}: {}", self.path, refused.body));
                }
                let before = same(&self.reply(&plain(nothing())));
                for value in neutral
                    .iter()
                    .map(|text| serde_json::from_str(text).unwrap())
                {
                    let after = self.reply(&with(value, nothing()));
                    if same(&after) != before {
                        self.failed
                            .push(format!("{} {name}, neutral: {}", self.path, after.body));
                    }
                }
            }
        }
    }
}

/// Starts a server of a model for the endpoint.
pub fn server(path: &str) -> Server {
    if path == "/infill" {
        Server::for_infill()
    } else if ["/rerank", "/predict"].contains(&path) {
        let name = match path {
            "/rerank" => "rerank-bert",
            _ => "classes-bert",
        };
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/encoders");
        let golden = golden.join(name);
        Server::of_model_with(&golden, |options| options.strict_models = true)
    } else {
        Server::with(|options| options.strict_models = true)
    }
}

#[track_caller]
fn sweep(path: &str) {
    let server = server(path);
    let request = requests()
        .into_iter()
        .find(|request| request.path == path)
        .unwrap();
    let mut sweep = Sweep {
        server: &server,
        path: request.path,
        failed: Vec::new(),
    };
    request.fields().for_each(|field| sweep.check("", field));
    assert!(sweep.failed.is_empty(), "{}", sweep.failed.join("\n"));
}

#[test]
fn each_field_of_a_chat_is_followed_without_effect_or_refused() {
    sweep("/v1/chat/completions");
}

#[test]
fn each_field_of_a_completion_is_followed_without_effect_or_refused() {
    sweep("/v1/completions");
}

#[test]
fn each_field_of_a_response_is_followed_without_effect_or_refused() {
    sweep("/v1/responses");
}

#[test]
fn each_field_of_a_message_is_followed_without_effect_or_refused() {
    sweep("/v1/messages");
}

#[test]
fn each_field_of_counts_and_conversations_is_followed_without_effect_or_refused() {
    for path in [
        "/v1/messages/count_tokens",
        "/v1/responses/input_tokens",
        "/v1/conversations",
    ] {
        sweep(path);
    }
}

#[test]
fn each_field_of_texts_is_followed_without_effect_or_refused() {
    for path in [
        "/v1/embeddings",
        "/embed",
        "/rerank",
        "/predict",
        "/mcp/call",
        "/tokenize",
        "/detokenize",
    ] {
        sweep(path);
    }
}

#[test]
fn each_field_of_llama_cpps_endpoints_is_followed_without_effect_or_refused() {
    sweep("/completion");
    sweep("/infill");
}

#[test]
fn each_field_of_ollamas_api_is_followed_without_effect_or_refused() {
    for path in [
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        "/api/show",
        "/api/pull",
    ] {
        sweep(path);
    }
}

#[test]
fn a_field_of_no_api_is_refused_by_its_name_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = folder.path().to_owned();
    let (engine, own) = engine(None);
    let library = Library::new(&engine);
    let server = Server::with(|options| {
        options.sessions = Some(sessions);
        options.library = Some(library);
    });
    drop(own);
    let mut nested = 0;
    let mut check = |request: &RequestFields, parent: &str| {
        let path = request.path.replace("{name}", "a").replace("{id}", "a");
        let send = |body: &Value| match &*path {
            "/api/delete" => server.send(&delete(&path, &body.to_string())),
            _ => server.post(&path, body),
        };
        let reply = send(&set(
            body(request.path, parent),
            "temprature",
            json!(1),
            json!({}),
        ));
        let message = message(&reply);
        assert!(
            reply.status == 400 && message.contains("temprature: "),
            "{} {parent}: {message}",
            request.path
        );
        // A null value is the same as a missing field.
        let body = set(
            body(request.path, parent),
            "temprature",
            Value::Null,
            json!({}),
        );
        assert!(
            !send(&body).body.contains("temprature"),
            "{} {parent}",
            request.path
        );
        nested += 1;
    };
    for request in requests() {
        check(request, "");
        let mut open: Vec<_> = request
            .fields()
            .map(|field| (field.name.to_owned(), field))
            .collect();
        let names: BTreeSet<_> = request.fields().map(|field| field.name).collect();
        assert_eq!(
            names.len(),
            open.len(),
            "{}: a field has two rows",
            request.path
        );
        while let Some((name, field)) = open.pop() {
            if !field.inner.is_empty() {
                check(request, &name);
                open.extend(
                    field
                        .inner
                        .iter()
                        .map(|inner| (format!("{name}.{}", inner.name), inner)),
                );
            }
        }
    }
    assert!(nested > 30, "{nested}");
    // The names in a schema, in template variables and in metadata are arbitrary.
    let free = Map::from_iter([("anything".to_owned(), json!({"at": "all"}))]);
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "metadata": free,
                      "chat_template_kwargs": free});
    server.post("/v1/chat/completions", &body).good();
}

#[test]
fn the_page_of_fields_is_what_the_tables_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/request-fields.md");
    let page = document();
    if std::env::var_os("TRIAD_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/request-fields.md differs from the tables: TRIAD_WRITE_DOCS=1 writes it"
    );
}
