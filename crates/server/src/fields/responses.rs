//! The fields of `/v1/responses`.

use super::chat::{CACHE, DATA_URL, EFFORT, FORMAT, OTHER_TOOL, RESOLUTION};
use super::{Field, followed, ignored, noted, refused, with};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "OV"),
    with("input", "OV", ITEM),
    followed("instructions", "OV"),
    followed("max_output_tokens", "OV"),
    with(
        "text",
        "OV",
        &[
            with("format", "OV", FORMAT),
            refused(
                "verbosity",
                "O",
                &["\"medium\""],
                "models here have no levels of it: expected instructions",
            ),
        ],
    ),
    with("tools", "OV", TOOL),
    with("tool_choice", "OV", CHOICE),
    followed("parallel_tool_calls", "OV"),
    with("reasoning", "OV", REASONING),
    with(
        "stream_options",
        "OV",
        &[
            ignored("include_usage", "V", "the last event has the usage"),
            ignored("include_obfuscation", "O", "streams are never padded"),
        ],
    ),
    ignored("client_metadata", "O", "nothing of it is stored"),
    noted(
        "metadata",
        "OV",
        "the response repeats it: 16 texts of at most 512 characters",
    ),
    noted(
        "chat_template_kwargs",
        "V",
        "variables of the model's template",
    ),
    refused(
        "chat_template",
        "V",
        &[],
        "the model's own template is used",
    ),
    noted("previous_response_id", "OV", KEPT),
    with("conversation", "O", &[noted("id", "O", KEPT)]),
    refused(
        "prompt",
        "O",
        &[],
        "prompts are not stored: expected instructions and input",
    ),
    refused(
        "background",
        "OV",
        &["false"],
        "responses are computed while the client waits: expected stream",
    ),
    refused(
        "background_options",
        "O",
        &["{}"],
        "responses are computed while the client waits: expected stream",
    ),
    refused(
        "image",
        "O",
        &[
            "{}",
            "{\"context_compression\": \"auto\"}",
            "{\"context_compression\": \"disabled\"}",
        ],
        "pictures are not compressed",
    ),
    ignored("access_programs", "O", "for accounts of hosted services"),
    noted(
        "include",
        "OV",
        "message.output_text.logprobs; responses have no parts with the other names of the API",
    ),
    noted("truncation", "OV", TRUNCATION),
    noted(
        "top_logprobs",
        "OV",
        "it needs message.output_text.logprobs in include",
    ),
    refused(
        "context_management",
        "O",
        &["[]"],
        "a conversation that is too long is an error",
    ),
    noted(
        "store",
        "OV",
        "true keeps the response in memory for a time",
    ),
    ignored(
        "max_tool_calls",
        "OV",
        "it concerns tools that a hosted service runs",
    ),
    refused(
        "moderation",
        "O",
        &[],
        "the model's output is returned unchanged",
    ),
    refused(
        "enable_response_messages",
        "V",
        &["false"],
        "/apply-template shows the prompt",
    ),
    refused(
        "previous_input_messages",
        "V",
        &["[]"],
        "expected the whole conversation as input",
    ),
    refused("structured_outputs", "V", &[], "expected text.format"),
    refused(
        "include_reasoning",
        "V",
        &["true"],
        "the reasoning is an item of its own",
    ),
    refused("max_tokens", "OVL", &[], "expected max_output_tokens"),
    refused("n", "OVL", &["1"], "a response has one completion"),
    refused(
        "logprobs",
        "OVL",
        &["false"],
        "expected message.output_text.logprobs in include",
    ),
    refused("response_format", "OVL", &[], "expected text.format"),
];

const TRUNCATION: &str = "auto or disabled; with both, a conversation that is too long is an error";

const KEPT: &str = "if the same key made it lately, else refused";

/// The fields of `/v1/responses/input_tokens`.
pub(super) const COUNT: &[Field] = &[
    followed("model", "OV"),
    with("input", "OV", ITEM),
    followed("instructions", "OV"),
    with("tools", "OV", TOOL),
    with("tool_choice", "OV", CHOICE),
    noted("parallel_tool_calls", "OV", "the count is the same"),
    with("reasoning", "OV", REASONING),
    noted("previous_response_id", "OV", KEPT),
    with("conversation", "O", &[noted("id", "O", KEPT)]),
    noted(
        "chat_template_kwargs",
        "V",
        "variables of the model's template",
    ),
    ignored("text", "O", "the prompt does not show the schema"),
    refused(
        "personality",
        "O",
        &[],
        "models here have no styles of their own: expected instructions",
    ),
    noted("truncation", "O", TRUNCATION),
];

/// Items of a conversation.
pub(super) const ITEMS: &[Field] = &[with("items", "O", ITEM)];

/// The metadata of a conversation.
pub(super) const METADATA: &[Field] = &[noted(
    "metadata",
    "O",
    "the description repeats it: 16 texts of at most 512 characters",
)];

const ITEM: &[Field] = &[
    followed("type", "OV"),
    followed("role", "OV"),
    with("content", "OV", PART),
    followed("call_id", "OV"),
    followed("name", "OV"),
    followed("arguments", "OV"),
    ignored(
        "parsed_arguments",
        "O",
        "a copy of the arguments, which clients add",
    ),
    with("output", "OV", PART),
    noted("id", "OV", "the item that an item_reference stands for"),
    ignored("cache_control", "A", CACHE),
    ignored("status", "OV", "items of earlier responses are complete"),
    with("summary", "OV", TEXT_PART),
    ignored(
        "encrypted_content",
        "OV",
        "only the service that encrypted it can read it",
    ),
    ignored("phase", "O", "templates have no variable for it"),
    ignored("action", "O", OTHER_ITEM),
    ignored("queries", "O", OTHER_ITEM),
    ignored("results", "O", OTHER_ITEM),
    ignored("result", "O", OTHER_ITEM),
    ignored("code", "O", OTHER_ITEM),
    ignored("outputs", "O", OTHER_ITEM),
    ignored("container_id", "O", OTHER_ITEM),
    ignored("server_label", "O", OTHER_ITEM),
    ignored("tools", "O", OTHER_ITEM),
    ignored("error", "O", OTHER_ITEM),
    ignored("approval_request_id", "O", OTHER_ITEM),
    ignored("approve", "O", OTHER_ITEM),
    ignored("reason", "O", OTHER_ITEM),
    ignored("revised_prompt", "O", OTHER_ITEM),
    ignored("background", "O", OTHER_ITEM),
    ignored("output_format", "O", OTHER_ITEM),
    ignored("quality", "O", OTHER_ITEM),
    ignored("size", "O", OTHER_ITEM),
    ignored("input", "O", OTHER_ITEM),
    ignored("namespace", "O", OTHER_ITEM),
    ignored("operation", "O", OTHER_ITEM),
    ignored("environment", "O", OTHER_ITEM),
    ignored("max_output_length", "O", OTHER_ITEM),
    ignored("pending_safety_checks", "O", OTHER_ITEM),
    ignored("acknowledged_safety_checks", "O", OTHER_ITEM),
    ignored("execution", "O", OTHER_ITEM),
    ignored("created_by", "O", OTHER_ITEM),
];

const OTHER_ITEM: &str = "of items of other types: those of tools that a service ran are left out, others are refused by their type";

const TOOL: &[Field] = &[
    followed("type", "OV"),
    followed("name", "OV"),
    followed("description", "OV"),
    followed("parameters", "OV"),
    followed("strict", "OV"),
    ignored("cache_control", "A", CACHE),
    refused(
        "defer_loading",
        "O",
        &["false"],
        "the prompt lists all functions",
    ),
    ignored("search_context_size", "O", OTHER_TOOL),
    ignored("user_location", "O", OTHER_TOOL),
    ignored("external_web_access", "O", OTHER_TOOL),
    ignored("search_content_types", "O", OTHER_TOOL),
    ignored("filters", "O", OTHER_TOOL),
    ignored("vector_store_ids", "O", OTHER_TOOL),
    ignored("max_num_results", "O", OTHER_TOOL),
    ignored("ranking_options", "O", OTHER_TOOL),
    ignored("server_label", "O", OTHER_TOOL),
    ignored("server_url", "O", OTHER_TOOL),
    ignored("server_description", "O", OTHER_TOOL),
    ignored("connector_id", "O", OTHER_TOOL),
    ignored("authorization", "O", OTHER_TOOL),
    ignored("headers", "O", OTHER_TOOL),
    ignored("allowed_tools", "O", OTHER_TOOL),
    ignored("require_approval", "O", OTHER_TOOL),
    ignored("container", "O", OTHER_TOOL),
    ignored("display_width", "O", OTHER_TOOL),
    ignored("display_height", "O", OTHER_TOOL),
    ignored("environment", "O", OTHER_TOOL),
    ignored("format", "O", OTHER_TOOL),
    ignored("tools", "O", OTHER_TOOL),
    ignored("execution", "O", OTHER_TOOL),
    ignored("size", "O", OTHER_TOOL),
    ignored("quality", "O", OTHER_TOOL),
    ignored("background", "O", OTHER_TOOL),
    ignored("output_format", "O", OTHER_TOOL),
    ignored("partial_images", "O", OTHER_TOOL),
];

const CHOICE: &[Field] = &[
    followed("type", "OV"),
    followed("name", "OV"),
    with("function", "OV", &[followed("name", "OV")]),
    followed("mode", "O"),
    with(
        "tools",
        "O",
        &[followed("type", "O"), followed("name", "O")],
    ),
];

const REASONING: &[Field] = &[
    noted("effort", "OV", EFFORT),
    ignored("summary", "O", "responses have the reasoning itself"),
    ignored(
        "generate_summary",
        "O",
        "responses have the reasoning itself",
    ),
];

const PART: &[Field] = &[
    followed("type", "OV"),
    followed("text", "OV"),
    ignored("cache_control", "A", CACHE),
    ignored("prompt_cache_breakpoint", "O", CACHE),
    ignored("parsed", "O", "a copy of the text, which clients add"),
    ignored("annotations", "OV", "copied from responses, and not used"),
    ignored("logprobs", "OV", "copied from responses, and not used"),
    refused("refusal", "O", &[], "expected text"),
    noted("image_url", "OV", DATA_URL),
    refused("file_id", "O", &[], "only text and pictures are read"),
    refused("file_data", "O", &[], "only text and pictures are read"),
    refused("file_url", "O", &[], "only text and pictures are read"),
    refused("filename", "O", &[], "only text and pictures are read"),
    ignored("detail", "OV", RESOLUTION),
    refused("input_audio", "O", &[], "only text and pictures are read"),
];

/// A part that is text.
const TEXT_PART: &[Field] = &[followed("type", "OV"), followed("text", "OV")];
