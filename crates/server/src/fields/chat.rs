//! `/v1/chat/completions`, and how its conversation becomes a prompt.

use super::{Field, followed, ignored, noted, refused, with};

pub(super) const CACHE: &str = "what prompts have in common is computed once anyway";
const TEXTS: &str = "models here read and write texts";

pub(super) const FIELDS: &[Field] = &[
    followed("model", "OVL"),
    with("messages", "OVL", MESSAGE),
    noted(
        "max_completion_tokens",
        "OVL",
        "-1 is no limit, as in llama.cpp's server",
    ),
    followed("logprobs", "OVL"),
    followed("top_logprobs", "OVL"),
    with("tools", "OVL", TOOL),
    with(
        "tool_choice",
        "OVL",
        &[
            followed("type", "OVL"),
            with("function", "OVL", &[followed("name", "OVL")]),
        ],
    ),
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
        "models here have no degrees of it: expected a message that asks for it",
    ),
    ignored("prediction", "O", "it changes times alone"),
    ignored("store", "O", "nothing is stored"),
    ignored("metadata", "O", "nothing is stored"),
    refused("echo", "V", &["false"], "expected the messages themselves"),
    refused(
        "add_special_tokens",
        "V",
        &["false"],
        "the template writes the control tokens",
    ),
    refused(
        "include_reasoning",
        "V",
        &["true"],
        "answers are sent whole",
    ),
    refused("thinking_token_budget", "V", &[], "expected max_tokens"),
    refused(
        "reasoning_format",
        "L",
        &["\"none\""],
        "answers are sent as the model writes them",
    ),
    refused(
        "reasoning_in_content",
        "L",
        &["true"],
        "answers are sent as the model writes them",
    ),
    refused("reasoning_budget", "L", &["-1"], "expected max_tokens"),
    refused(
        "thinking_forced_open",
        "L",
        &["false"],
        "answers are sent as the model writes them",
    ),
    refused(
        "parse_tool_calls",
        "L",
        &["true"],
        "expected tool_choice none",
    ),
    ignored("chat_format", "L", "the template decides it"),
];

/// The prompt of a conversation.
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
        "the answer goes on with the last message of the assistant",
    ),
    noted(
        "documents",
        "V",
        "by templates that read them, else refused",
    ),
    noted(
        "reasoning_effort",
        "OVL",
        "by templates that read it, else refused; none is taken by all",
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
    noted("name", "OVL", "by templates that read it"),
    with(
        "tool_calls",
        "OVL",
        &[
            followed("id", "OVL"),
            followed("type", "OVL"),
            ignored("index", "OVL", "calls come in their order"),
            with(
                "function",
                "OVL",
                &[
                    followed("name", "OVL"),
                    followed("arguments", "OVL"),
                    ignored(
                        "parsed_arguments",
                        "O",
                        "a copy of the arguments, which clients make",
                    ),
                ],
            ),
        ],
    ),
    followed("tool_call_id", "OVL"),
    noted("reasoning_content", "VL", "by templates that read it"),
    noted("reasoning", "V", "as reasoning_content"),
    ignored("annotations", "O", "answers have it, and it says nothing"),
    ignored("parsed", "O", "a copy of the content, which clients make"),
    ignored("cache_control", "A", CACHE),
    refused("refusal", "O", &["\"\""], "expected content"),
    refused("audio", "O", &[], TEXTS),
    refused("function_call", "O", &[], "expected tool_calls"),
];

const PART: &[Field] = &[
    followed("type", "OVL"),
    followed("text", "OVL"),
    ignored("role", "O", "a copy of the message's, which clients make"),
    ignored("cache_control", "A", CACHE),
    ignored("annotations", "O", "answers have it, and it says nothing"),
    refused("image_url", "OVL", &[], TEXTS),
    refused("input_audio", "OVL", &[], TEXTS),
    refused("file", "O", &[], TEXTS),
    refused("video_url", "V", &[], TEXTS),
    refused("audio_url", "V", &[], TEXTS),
    refused("refusal", "O", &[], "expected text"),
];

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
    refused("custom", "O", &[], "expected a function"),
    ignored("cache_control", "A", CACHE),
];

/// The fields of a form in the newer APIs.
pub(super) const FORMAT: &[Field] = &[
    followed("type", "OA"),
    ignored("name", "O", "nothing in the answer has it"),
    ignored("description", "O", "the prompt does not show the schema"),
    followed("schema", "OA"),
    ignored("strict", "O", "answers always keep to the schema"),
];
