//! The fields of `/predict`.

use super::{Field, followed, ignored, noted, refused};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "T"),
    noted(
        "inputs",
        "T",
        "a text, `[text]`, `[text, second text]`, or an array of such arrays; at most 1024",
    ),
    noted(
        "raw_scores",
        "T",
        "true returns the classifier's outputs, else scores are the softmax of them, or the function that the model states",
    ),
    noted(
        "parse_special",
        "T",
        "false tokenizes names of control tokens as plain text",
    ),
    refused("parameters", "T", &["{}"], "expected raw_scores"),
    refused("truncate", "T", &["false"], "texts are never truncated"),
    ignored("truncation_direction", "T", "texts are never truncated"),
];
