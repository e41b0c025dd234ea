//! `/v1/completions`.

use super::{Field, followed, noted, refused};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "OVL"),
    followed("prompt", "OVL"),
    followed("echo", "OV"),
    followed("logprobs", "OV"),
    noted("best_of", "OV", "as many as n, else refused"),
    noted(
        "parse_special",
        "T",
        "false keeps names of control tokens letters",
    ),
    noted("add_special_tokens", "V", "false puts no BOS before a text"),
    refused(
        "suffix",
        "OV",
        &["\"\""],
        "texts are continued, not filled in",
    ),
    refused("prompt_embeds", "V", &[], "expected texts or tokens"),
    refused(
        "input_prefix",
        "L",
        &["\"\""],
        "texts are continued, not filled in",
    ),
    refused(
        "input_suffix",
        "L",
        &["\"\""],
        "texts are continued, not filled in",
    ),
    refused(
        "input_extra",
        "L",
        &["[]"],
        "texts are continued, not filled in",
    ),
];
