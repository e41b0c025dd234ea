//! The fields of `/v1/messages`.

use super::chat::{CACHE, DATA_URL, EFFORT, FORMAT, OTHER_TOOL};
use super::shared::LORA;
use super::{Field, followed, ignored, noted, refused, with};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "A"),
    with("messages", "A", MESSAGE),
    with("system", "A", SYSTEM),
    followed("max_tokens", "A"),
    followed("temperature", "A"),
    followed("top_p", "A"),
    followed("top_k", "A"),
    followed("stop_sequences", "A"),
    followed("stream", "A"),
    Field { apis: "T", ..LORA },
    with("tools", "A", TOOL),
    with("tool_choice", "A", CHOICE),
    with(
        "output_config",
        "A",
        &[
            with("format", "A", FORMAT),
            noted("effort", "A", EFFORT),
            refused("task_budget", "A", &[], "expected max_tokens"),
        ],
    ),
    with("output_format", "A", FORMAT),
    with("thinking", "A", THINKING),
    noted(
        "chat_template_kwargs",
        "VL",
        "variables of the model's template",
    ),
    ignored("cache_control", "A", CACHE),
    ignored("metadata", "A", "for accounts of hosted services"),
    ignored("service_tier", "A", "for accounts of hosted services"),
    ignored("inference_geo", "A", "for accounts of hosted services"),
    ignored("user_profile_id", "A", "for accounts of hosted services"),
    ignored("workspace_id", "A", "for accounts of hosted services"),
    ignored("billing_policy", "A", "for accounts of hosted services"),
    ignored(
        "fallback_credit_token",
        "A",
        "for accounts of hosted services",
    ),
    ignored(
        "diagnostics",
        "A",
        "about the cache: the usage has the cached tokens",
    ),
    refused(
        "fallbacks",
        "A",
        &["[]", "\"default\""],
        "a request is answered by its model alone",
    ),
    refused(
        "compaction",
        "A",
        &[],
        "conversations are never summarized: expected the whole conversation as messages",
    ),
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
        NO_EDITS,
        "conversations are never truncated",
    ),
];

/// Values of `context_management` that leave the conversation as it is.
const NO_EDITS: &[&str] = &[
    "{}",
    "{\"edits\": []}",
    "{\"edits\": [{\"type\": \"clear_thinking_20251015\", \"keep\": \"all\"}]}",
];

/// A client may send the request that it is about to send.
const ANSWER: &str = "for the answer, which is not computed";

/// The fields of `/v1/messages/count_tokens`.
pub(super) const COUNT: &[Field] = &[
    followed("model", "A"),
    with("messages", "A", MESSAGE),
    with("system", "A", SYSTEM),
    with("tools", "A", TOOL),
    with("tool_choice", "A", CHOICE),
    with("thinking", "A", THINKING),
    noted(
        "chat_template_kwargs",
        "VL",
        "variables of the model's template",
    ),
    ignored("output_config", "A", "the prompt does not show the schema"),
    ignored("output_format", "A", "the prompt does not show the schema"),
    ignored("cache_control", "A", CACHE),
    ignored("max_tokens", "A", ANSWER),
    ignored("temperature", "A", ANSWER),
    ignored("top_p", "A", ANSWER),
    ignored("top_k", "A", ANSWER),
    ignored("stop_sequences", "A", ANSWER),
    ignored("stream", "A", ANSWER),
    ignored("metadata", "A", ANSWER),
    ignored("speed", "A", ANSWER),
    ignored("user_profile_id", "A", ANSWER),
    ignored("workspace_id", "A", ANSWER),
    ignored("billing_policy", "A", ANSWER),
    ignored(
        "compaction",
        "A",
        "the conversation is counted as it is sent",
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
        NO_EDITS,
        "conversations are never truncated",
    ),
];

const MESSAGE: &[Field] = &[
    followed("role", "A"),
    with("content", "A", BLOCK),
    ignored("cache_control", "A", CACHE),
];

const TOOL: &[Field] = &[
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
    ignored("max_uses", "A", OTHER_TOOL),
    ignored("allowed_domains", "A", OTHER_TOOL),
    ignored("blocked_domains", "A", OTHER_TOOL),
    ignored("user_location", "A", OTHER_TOOL),
    ignored("citations", "A", OTHER_TOOL),
    ignored("max_content_tokens", "A", OTHER_TOOL),
    ignored("max_characters", "A", OTHER_TOOL),
    ignored("display_width_px", "A", OTHER_TOOL),
    ignored("display_height_px", "A", OTHER_TOOL),
    ignored("display_number", "A", OTHER_TOOL),
    ignored("mcp_server_name", "A", OTHER_TOOL),
    ignored("default_config", "A", OTHER_TOOL),
    ignored("configs", "A", OTHER_TOOL),
];

const CHOICE: &[Field] = &[
    followed("type", "A"),
    followed("name", "A"),
    followed("disable_parallel_tool_use", "A"),
];

const THINKING: &[Field] = &[
    noted(
        "type",
        "A",
        "models that do not mark their reasoning answer without it",
    ),
    noted(
        "budget_tokens",
        "A",
        "tokens of reasoning, less than max_tokens",
    ),
    followed("display", "A"),
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
    with("source", "A", SOURCE),
    refused("title", "A", &[], "only text and pictures are read"),
    refused("context", "A", &[], "only text and pictures are read"),
    noted("thinking", "A", "if the template reads reasoning_content"),
    ignored("signature", "A", "this server needs none"),
    ignored(
        "data",
        "A",
        "only the service that encrypted it can read it",
    ),
];

/// The fields of a block in a system message.
const SYSTEM: &[Field] = &[
    followed("type", "A"),
    followed("text", "A"),
    ignored("cache_control", "A", CACHE),
    refused("citations", "A", &["[]"], "expected text"),
    refused("source", "A", &[], "expected text"),
];

/// The fields of a block in the result of a tool call.
const TEXT: &[Field] = &[
    followed("type", "A"),
    followed("text", "A"),
    ignored("cache_control", "A", CACHE),
    refused("citations", "A", &["[]"], "expected text"),
    with("source", "A", SOURCE),
];

/// The fields of a picture.
const SOURCE: &[Field] = &[
    noted("type", "A", "base64 or url"),
    ignored("media_type", "A", "the bytes say what they are"),
    followed("data", "A"),
    noted("url", "A", DATA_URL),
    refused("file_id", "A", &[], "files are not stored: expected base64"),
];
