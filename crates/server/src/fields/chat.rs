//! The fields of `/v1/chat/completions`.

use super::{Field, followed, ignored, noted, refused, with};

/// The choice among the tools.
pub(super) const CHOICE: &[Field] = &[
    followed("type", "OVL"),
    with("function", "OVL", &[followed("name", "OVL")]),
    with(
        "allowed_tools",
        "O",
        &[followed("mode", "O"), with("tools", "O", ALLOWED_TOOL)],
    ),
];

/// The note of the amount of reasoning.
pub(super) const EFFORT: &str =
    "none, or an effort that has no effect if the template reads none: a header says so";

pub(super) const CACHE: &str = "common prefixes of prompts are always cached";
const TEXTS: &str = "models of this server read text and pictures, and write text";

pub(super) const FIELDS: &[Field] = &[
    followed("model", "OVL"),
    with("messages", "OVL", MESSAGE),
    noted(
        "max_completion_tokens",
        "OVL",
        "-1 means no limit, as in llama.cpp's server",
    ),
    followed("logprobs", "OVL"),
    followed("top_logprobs", "OVL"),
    with("tools", "OVL", TOOL),
    with("tool_choice", "OVL", CHOICE),
    followed("parallel_tool_calls", "OVL"),
    refused("functions", "O", &["[]"], "expected tools"),
    refused(
        "function_call",
        "O",
        &["\"auto\"", "\"none\""],
        "expected tool_choice",
    ),
    refused("modalities", "O", &["[\"text\"]"], TEXTS),
    refused("audio", "O", &[], TEXTS),
    refused(
        "web_search_options",
        "O",
        &[],
        "this server has no tools of its own",
    ),
    refused(
        "verbosity",
        "O",
        &["\"medium\""],
        "models here have no levels of it: expected a message that asks for it",
    ),
    refused(
        "moderation",
        "O",
        &[],
        "the model's output is returned unchanged",
    ),
    ignored("prediction", "O", "it affects only speed"),
    ignored("store", "O", "nothing is stored"),
    ignored("metadata", "O", "nothing is stored"),
    refused("echo", "V", &["false"], "expected the messages themselves"),
    refused(
        "add_special_tokens",
        "V",
        &["false"],
        "the template writes the control tokens",
    ),
    noted(
        "include_reasoning",
        "V",
        "false returns no reasoning_content",
    ),
    noted(
        "thinking_token_budget",
        "V",
        "tokens of reasoning; refused for models that do not mark it",
    ),
    noted(
        "reasoning_format",
        "L",
        "auto, deepseek, or none for reasoning in the content",
    ),
    noted(
        "reasoning_in_content",
        "L",
        "true means reasoning_format none",
    ),
    noted(
        "reasoning_budget",
        "L",
        "alias of thinking_token_budget; -1 means no limit",
    ),
    refused(
        "thinking_forced_open",
        "L",
        &["false"],
        "the template opens the reasoning",
    ),
    refused(
        "parse_tool_calls",
        "L",
        &["true"],
        "expected tool_choice none",
    ),
    ignored("chat_format", "L", "the template determines it"),
];

/// Fields that control how a conversation becomes a prompt.
pub(super) const PROMPT: &[Field] = &[
    noted(
        "chat_template_kwargs",
        "VL",
        "variables of the model's template",
    ),
    noted(
        "add_generation_prompt",
        "VL",
        "false ends the prompt after the last message",
    ),
    noted(
        "continue_final_message",
        "V",
        "generation continues the last message of the assistant",
    ),
    noted(
        "documents",
        "V",
        "if the model's template reads them, else refused",
    ),
    noted("reasoning_effort", "OVL", EFFORT),
    noted(
        "enable_thinking",
        "T",
        "alias of chat_template_kwargs.enable_thinking",
    ),
    refused(
        "chat_template",
        "V",
        &[],
        "the model's own template is used",
    ),
];

pub(super) const MESSAGE: &[Field] = &[
    followed("role", "OVL"),
    with("content", "OVL", PART),
    noted("name", "OVL", "if the template reads it"),
    with(
        "tool_calls",
        "OVL",
        &[
            followed("id", "OVL"),
            followed("type", "OVL"),
            ignored("index", "OVL", "the order of the calls counts"),
            with(
                "function",
                "OVL",
                &[
                    followed("name", "OVL"),
                    followed("arguments", "OVL"),
                    ignored(
                        "parsed_arguments",
                        "O",
                        "a copy of the arguments, which clients add",
                    ),
                ],
            ),
        ],
    ),
    followed("tool_call_id", "OVL"),
    noted("reasoning_content", "VL", "if the template reads it"),
    noted("reasoning", "V", "alias of reasoning_content"),
    ignored("annotations", "O", "copied from responses, and not used"),
    ignored("parsed", "O", "a copy of the content, which clients add"),
    ignored("cache_control", "A", CACHE),
    refused("refusal", "O", &["\"\""], "expected content"),
    refused("audio", "O", &[], TEXTS),
    refused("function_call", "O", &[], "expected tool_calls"),
];

const PART: &[Field] = &[
    followed("type", "OVL"),
    followed("text", "OVL"),
    ignored("role", "O", "a copy of the message's role"),
    ignored("cache_control", "A", CACHE),
    ignored("prompt_cache_breakpoint", "O", CACHE),
    ignored("annotations", "O", "copied from responses, and not used"),
    with("image_url", "OVL", IMAGE),
    refused("input_audio", "OVL", &[], TEXTS),
    refused("file", "O", &[], TEXTS),
    refused("video_url", "V", &[], TEXTS),
    refused("audio_url", "V", &[], TEXTS),
    refused("refusal", "O", &[], "expected text"),
];

/// The fields of a picture's URL.
const IMAGE: &[Field] = &[
    noted("url", "OVL", DATA_URL),
    ignored("detail", "OVL", RESOLUTION),
];

/// The URLs of pictures that are read.
pub(super) const DATA_URL: &str = "a data: URL, or one of a host that --allow-image-urls names";
/// The reason why the resolution that a client asks for has no effect.
pub(super) const RESOLUTION: &str = "the model decides in which resolution it reads a picture";

pub(super) const TOOL: &[Field] = &[
    followed("type", "OVL"),
    with(
        "function",
        "OVL",
        &[
            followed("name", "OVL"),
            followed("description", "OVL"),
            followed("parameters", "OVL"),
            followed("strict", "OVL"),
        ],
    ),
    ignored("custom", "O", OTHER_TOOL),
    ignored("cache_control", "A", CACHE),
];

/// The fields of a tool that may be called, out of those of the request.
const ALLOWED_TOOL: &[Field] = &[
    followed("type", "O"),
    with("function", "O", &[followed("name", "O")]),
];

/// The reason why fields of other tools have no effect.
pub(super) const OTHER_TOOL: &str =
    "of tools that this server does not run: they are left out, or refused if a call is required";

/// The fields of an output format in `/v1/responses` and `/v1/messages`.
pub(super) const FORMAT: &[Field] = &[
    followed("type", "OA"),
    ignored("name", "O", "it does not appear in the response"),
    ignored("description", "O", "the prompt does not show the schema"),
    followed("schema", "OA"),
    ignored("strict", "O", "the output always conforms to the schema"),
];
