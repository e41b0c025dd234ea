//! The fields of `/v1/completions`.

use super::{Field, followed, noted, refused};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "OVL"),
    followed("prompt", "OVL"),
    followed("echo", "OV"),
    followed("logprobs", "OV"),
    noted("best_of", "OV", "must be equal to n, else refused"),
    noted(
        "parse_special",
        "T",
        "false tokenizes names of control tokens as plain text; with suffix, true is refused",
    ),
    noted(
        "add_special_tokens",
        "V",
        "false adds no BOS before a text; with suffix, false is refused",
    ),
    noted(
        "suffix",
        "OV",
        "the text after the completion; refused for models without tokens for filling in the middle",
    ),
    refused("prompt_embeds", "V", &[], "expected texts or tokens"),
    refused(
        "input_prefix",
        "L",
        &["\"\""],
        "expected /infill, or suffix",
    ),
    refused(
        "input_suffix",
        "L",
        &["\"\""],
        "expected /infill, or suffix",
    ),
    refused("input_extra", "L", &["[]"], "expected /infill, or suffix"),
];
