//! The fields of `/v1/messages`.

use super::chat::{CACHE, FORMAT};
use super::{Field, followed, ignored, noted, refused, with};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "A"),
    with(
        "messages",
        "A",
        &[
            followed("role", "A"),
            with("content", "A", BLOCK),
            ignored("cache_control", "A", CACHE),
        ],
    ),
    with("system", "A", TEXT),
    followed("max_tokens", "A"),
    followed("temperature", "A"),
    followed("top_p", "A"),
    followed("top_k", "A"),
    followed("stop_sequences", "A"),
    followed("stream", "A"),
    noted("lora", "T", "adapters are selected by name"),
    with(
        "tools",
        "A",
        &[
            followed("type", "A"),
            followed("name", "A"),
            followed("description", "A"),
            followed("input_schema", "A"),
            followed("strict", "A"),
            ignored("cache_control", "A", CACHE),
            ignored(
                "eager_input_streaming",
                "A",
                "arguments are sent as they are generated",
            ),
            refused(
                "input_examples",
                "A",
                &["[]"],
                "expected a description with the examples",
            ),
            refused(
                "defer_loading",
                "A",
                &["false"],
                "the prompt lists all functions",
            ),
            refused(
                "allowed_callers",
                "A",
                &["[\"direct\"]"],
                "the model calls functions itself",
            ),
        ],
    ),
    with(
        "tool_choice",
        "A",
        &[
            followed("type", "A"),
            followed("name", "A"),
            followed("disable_parallel_tool_use", "A"),
        ],
    ),
    with(
        "output_config",
        "A",
        &[
            with("format", "A", FORMAT),
            refused(
                "effort",
                "A",
                &["\"high\""],
                "models here have no levels of it",
            ),
            refused("task_budget", "A", &[], "expected max_tokens"),
        ],
    ),
    refused("output_format", "A", &[], "expected output_config.format"),
    with(
        "thinking",
        "A",
        &[
            noted(
                "type",
                "A",
                "disabled, if the template reads enable_thinking; other values are refused",
            ),
            refused("budget_tokens", "A", &[], "models here have no such budget"),
            ignored("display", "A", "responses have no separate thinking"),
        ],
    ),
    noted(
        "chat_template_kwargs",
        "VL",
        "variables of the model's template",
    ),
    ignored("cache_control", "A", CACHE),
    ignored("metadata", "A", "for accounts of hosted services"),
    ignored("service_tier", "A", "for accounts of hosted services"),
    ignored("inference_geo", "A", "for accounts of hosted services"),
    ignored("speed", "A", "it affects only speed"),
    refused("container", "A", &[], "this server has no tools of its own"),
    refused(
        "thread",
        "A",
        &[],
        "threads are not stored: expected the whole conversation as messages",
    ),
    refused(
        "mcp_servers",
        "A",
        &["[]"],
        "this server has no tools of its own",
    ),
    refused(
        "context_management",
        "A",
        &[
            "{}",
            "{\"edits\": []}",
            "{\"edits\": [{\"type\": \"clear_thinking_20251015\", \"keep\": \"all\"}]}",
        ],
        "conversations are never truncated",
    ),
];

const BLOCK: &[Field] = &[
    followed("type", "A"),
    followed("text", "A"),
    followed("id", "A"),
    followed("name", "A"),
    followed("input", "A"),
    followed("tool_use_id", "A"),
    with("content", "A", TEXT),
    followed("is_error", "A"),
    ignored("cache_control", "A", CACHE),
    ignored("caller", "A", "the model calls functions itself"),
    refused("citations", "A", &["[]"], "expected text"),
    refused("source", "A", &[], "only text models are supported"),
    refused("title", "A", &[], "only text models are supported"),
    refused("context", "A", &[], "only text models are supported"),
    refused(
        "thinking",
        "A",
        &[],
        "expected text: thinking is not returned",
    ),
    refused(
        "signature",
        "A",
        &[],
        "expected text: thinking is not returned",
    ),
    refused("data", "A", &[], "expected text: thinking is not returned"),
];

/// The fields of a block in a system message or in the result of a tool call.
const TEXT: &[Field] = &[
    followed("type", "A"),
    followed("text", "A"),
    ignored("cache_control", "A", CACHE),
    refused("citations", "A", &["[]"], "expected text"),
    refused("source", "A", &[], "only text models are supported"),
];
