//! `/v1/messages`.

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
    noted("lora", "T", "by name"),
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
                "arguments are sent as they are computed",
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
                "models here have no degrees of it",
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
                "disabled, by templates that read enable_thinking; others are refused",
            ),
            refused("budget_tokens", "A", &[], "models here have no such budget"),
            ignored("display", "A", "answers have no thinking apart"),
        ],
    ),
    noted(
        "chat_template_kwargs",
        "VL",
        "variables of the model's template",
    ),
    ignored("cache_control", "A", CACHE),
    ignored("metadata", "A", "it is for the accounts of a service"),
    ignored("service_tier", "A", "it is for the accounts of a service"),
    ignored("inference_geo", "A", "it is for the accounts of a service"),
    ignored("speed", "A", "it changes times alone"),
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
        "conversations are read whole",
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
    refused("source", "A", &[], "models here read texts"),
    refused("title", "A", &[], "models here read texts"),
    refused("context", "A", &[], "models here read texts"),
    refused(
        "thinking",
        "A",
        &[],
        "expected text: thinking is not sent back",
    ),
    refused(
        "signature",
        "A",
        &[],
        "expected text: thinking is not sent back",
    ),
    refused("data", "A", &[], "expected text: thinking is not sent back"),
];

/// Blocks of a system message, and of the result of a call.
const TEXT: &[Field] = &[
    followed("type", "A"),
    followed("text", "A"),
    ignored("cache_control", "A", CACHE),
    refused("citations", "A", &["[]"], "expected text"),
    refused("source", "A", &[], "models here read texts"),
];
