//! The fields of `/rerank`.

use super::{Field, followed, ignored, noted, refused};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "VL"),
    noted("query", "VL", "a text"),
    noted(
        "documents",
        "VL",
        "texts, or objects with a `text`; at most 1024",
    ),
    noted(
        "texts",
        "L",
        "documents, whose answer is an array of `index` and `score`",
    ),
    noted("top_n", "VL", "the number of results; the default is all"),
    noted("top_k", "T", "alias of top_n"),
    noted(
        "return_documents",
        "T",
        "true returns each document with its score",
    ),
    noted("return_text", "L", "alias of return_documents"),
    noted(
        "raw_scores",
        "T",
        "true returns the classifier's output, else scores are the function of it that the model states, or its sigmoid",
    ),
    noted(
        "use_activation",
        "V",
        "false returns the classifier's output",
    ),
    noted(
        "parse_special",
        "T",
        "false tokenizes names of control tokens as plain text",
    ),
    refused(
        "add_special_tokens",
        "V",
        &["true"],
        "the model's tokens are around the two texts",
    ),
    ignored("user", "V", "for accounts of hosted services"),
    ignored("priority", "V", "it affects only speed"),
    ignored("request_id", "V", "the server generates response ids"),
    ignored("mm_processor_kwargs", "V", "only texts are read"),
    refused(
        "truncate_prompt_tokens",
        "V",
        &["-1"],
        "texts are never truncated",
    ),
    refused("truncate", "T", &["false"], "texts are never truncated"),
    refused("truncation", "T", &["false"], "texts are never truncated"),
    refused("truncation_side", "V", &[], "texts are never truncated"),
    refused(
        "max_tokens_per_doc",
        "T",
        &[],
        "documents are never truncated",
    ),
    refused("max_chunks_per_doc", "T", &["1"], "documents are never cut"),
    refused("rank_fields", "T", &[], "documents are texts"),
    noted(
        "instruction",
        "V",
        "the task, for models whose prompt has a place for it",
    ),
    refused(
        "cache_salt",
        "V",
        &["\"\""],
        "cached prompts are separated by API key",
    ),
];
