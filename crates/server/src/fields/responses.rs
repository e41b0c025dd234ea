//! `/v1/responses`.

use super::chat::{CACHE, FORMAT};
use super::{Field, followed, ignored, noted, refused, with};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "OV"),
    with(
        "input",
        "OV",
        &[
            followed("type", "OV"),
            followed("role", "OV"),
            with("content", "OV", PART),
            followed("call_id", "OV"),
            followed("name", "OV"),
            followed("arguments", "OV"),
            ignored(
                "parsed_arguments",
                "O",
                "a copy of the arguments, which clients make",
            ),
            with("output", "OV", PART),
            ignored("id", "OV", "nothing is stored"),
            ignored("cache_control", "A", CACHE),
            ignored("status", "OV", "items of earlier answers are whole"),
            refused(
                "summary",
                "OV",
                &["[]"],
                "expected messages: reasoning is not sent back",
            ),
            refused(
                "encrypted_content",
                "OV",
                &[],
                "expected messages: reasoning is not sent back",
            ),
            ignored("phase", "O", "templates have no word for it"),
        ],
    ),
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
                "models here have no degrees of it: expected instructions",
            ),
        ],
    ),
    with(
        "tools",
        "OV",
        &[
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
        ],
    ),
    with(
        "tool_choice",
        "OV",
        &[
            followed("type", "OV"),
            followed("name", "OV"),
            with("function", "OV", &[followed("name", "OV")]),
        ],
    ),
    followed("parallel_tool_calls", "OV"),
    with(
        "reasoning",
        "OV",
        &[
            noted(
                "effort",
                "OV",
                "by templates that read reasoning_effort, else refused; none is taken by all",
            ),
            ignored("summary", "O", "answers have no reasoning apart"),
            ignored("generate_summary", "O", "answers have no reasoning apart"),
        ],
    ),
    with(
        "stream_options",
        "OV",
        &[
            ignored("include_usage", "V", "the last event has the usage"),
            ignored("include_obfuscation", "O", "streams here have no padding"),
        ],
    ),
    noted("metadata", "OV", "the response repeats it"),
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
    refused(
        "previous_response_id",
        "OV",
        &[],
        "responses are not stored: expected the whole conversation as input",
    ),
    refused(
        "conversation",
        "O",
        &[],
        "conversations are not stored: expected the whole conversation as input",
    ),
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
        "responses are not stored: expected stream",
    ),
    refused(
        "include",
        "OV",
        &["[]", "[\"reasoning.encrypted_content\"]"],
        "answers have no such parts",
    ),
    refused(
        "truncation",
        "OV",
        &["\"disabled\""],
        "a conversation that is too long is an error",
    ),
    refused(
        "top_logprobs",
        "OV",
        &["0"],
        "expected /v1/chat/completions",
    ),
    refused(
        "context_management",
        "O",
        &["[]"],
        "a conversation that is too long is an error",
    ),
    ignored("store", "OV", "nothing is stored"),
    ignored(
        "max_tool_calls",
        "OV",
        "it is of tools that a service runs itself",
    ),
    refused(
        "moderation",
        "O",
        &[],
        "answers are sent as the model writes them",
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
        "answers are sent whole",
    ),
    refused("max_tokens", "OVL", &[], "expected max_output_tokens"),
    refused("n", "OVL", &["1"], "a response has one answer"),
    refused(
        "logprobs",
        "OVL",
        &["false"],
        "expected /v1/chat/completions",
    ),
    refused("response_format", "OVL", &[], "expected text.format"),
];

const PART: &[Field] = &[
    followed("type", "OV"),
    followed("text", "OV"),
    ignored("cache_control", "A", CACHE),
    ignored("parsed", "O", "a copy of the text, which clients make"),
    ignored("annotations", "OV", "answers have it, and it says nothing"),
    ignored("logprobs", "OV", "answers have it, and it says nothing"),
    refused("refusal", "O", &[], "expected text"),
    refused("image_url", "OV", &[], "models here read texts"),
    refused("file_id", "O", &[], "models here read texts"),
    refused("file_data", "O", &[], "models here read texts"),
    refused("file_url", "O", &[], "models here read texts"),
    refused("filename", "O", &[], "models here read texts"),
    refused("detail", "OV", &[], "models here read texts"),
    refused("input_audio", "O", &[], "models here read texts"),
];
