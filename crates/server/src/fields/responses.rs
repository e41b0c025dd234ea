//! The fields of `/v1/responses`.

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
                "a copy of the arguments, which clients add",
            ),
            with("output", "OV", PART),
            ignored("id", "OV", "nothing is stored"),
            ignored("cache_control", "A", CACHE),
            ignored("status", "OV", "items of earlier responses are complete"),
            refused(
                "summary",
                "OV",
                &["[]"],
                "expected messages: reasoning is not returned",
            ),
            refused(
                "encrypted_content",
                "OV",
                &[],
                "expected messages: reasoning is not returned",
            ),
            ignored("phase", "O", "templates have no variable for it"),
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
                "models here have no levels of it: expected instructions",
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
                "if the template reads reasoning_effort, else refused; none is always accepted",
            ),
            ignored("summary", "O", "responses have no reasoning part"),
            ignored("generate_summary", "O", "responses have no reasoning part"),
        ],
    ),
    with(
        "stream_options",
        "OV",
        &[
            ignored("include_usage", "V", "the last event has the usage"),
            ignored("include_obfuscation", "O", "streams are never padded"),
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
        "responses have no such parts",
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
        "the whole output of the model is returned",
    ),
    refused("max_tokens", "OVL", &[], "expected max_output_tokens"),
    refused("n", "OVL", &["1"], "a response has one completion"),
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
    ignored("parsed", "O", "a copy of the text, which clients add"),
    ignored("annotations", "OV", "copied from responses, and not used"),
    ignored("logprobs", "OV", "copied from responses, and not used"),
    refused("refusal", "O", &[], "expected text"),
    refused("image_url", "OV", &[], "only text models are supported"),
    refused("file_id", "O", &[], "only text models are supported"),
    refused("file_data", "O", &[], "only text models are supported"),
    refused("file_url", "O", &[], "only text models are supported"),
    refused("filename", "O", &[], "only text models are supported"),
    refused("detail", "OV", &[], "only text models are supported"),
    refused("input_audio", "O", &[], "only text models are supported"),
];
