//! The fields of llama.cpp's own endpoints.

use super::{Field, followed, ignored, noted, refused, with};

pub(super) const COMPLETION: &[Field] = &[
    noted(
        "prompt",
        "L",
        "a text, tokens, or an array of both, which is joined",
    ),
    noted(
        "parse_special",
        "T",
        "false tokenizes names of control tokens as plain text",
    ),
    noted("add_special_tokens", "V", "false adds no BOS before a text"),
];

pub(super) const INFILL: &[Field] = &[
    noted(
        "input_prefix",
        "L",
        "refused for models without tokens for filling in the middle",
    ),
    followed("input_suffix", "L"),
    with(
        "input_extra",
        "L",
        &[
            followed("filename", "L"),
            followed("text", "L"),
            ignored("time", "L", "the time at which an editor read the part"),
        ],
    ),
    noted("prompt", "L", "more text after input_prefix"),
];

/// The fields that both endpoints have.
pub(super) const HOW: &[Field] = &[
    followed("model", "L"),
    noted("n_predict", "L", "-1 means no limit, which is the default"),
    noted("max_tokens", "L", "alias of n_predict"),
    refused("n", "L", &["1"], "expected /v1/completions"),
    refused("n_cmpl", "L", &["1"], "expected /v1/completions"),
    noted(
        "samplers",
        "L",
        "steps that are not named are off; the order is fixed: penalties, temperature, top_k, top_p, min_p, but temperature \
         may come after top_k; infill has no step of its own, since end tokens of fill-in-the-middle end the completion",
    ),
    noted(
        "t_max_predict_ms",
        "L",
        "counts from the first token, and ends the completion after its first line end",
    ),
    ignored(
        "t_max_prompt_ms",
        "L",
        "llama.cpp's server does not follow it either",
    ),
    noted(
        "n_indent",
        "L",
        "ends the completion before a line with less indentation",
    ),
    noted(
        "response_fields",
        "L",
        "at most 64 paths with /; as in llama.cpp, what the response does not have is left out",
    ),
    noted("seed", "L", "-1 means a different seed for each request"),
    refused(
        "n_probs",
        "L",
        &["0"],
        "/v1/completions returns log probabilities",
    ),
];
