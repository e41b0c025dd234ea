//! The fields of `/v1/embeddings`.

use super::{Field, followed, ignored, noted, refused};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "OVL"),
    followed("input", "OVL"),
    noted("content", "L", "alias of input"),
    followed("encoding_format", "OVL"),
    noted("dimensions", "OV", "the model's own number, else refused"),
    noted("pooling", "T", "mean or last"),
    noted(
        "parse_special",
        "T",
        "false tokenizes names of control tokens as plain text",
    ),
    noted("add_special_tokens", "V", "false adds no BOS before a text"),
    ignored("user", "OV", "for accounts of hosted services"),
    ignored("priority", "V", "it affects only speed"),
    ignored("request_id", "V", "the server generates response ids"),
    ignored("mm_processor_kwargs", "V", "only text models are supported"),
    refused("messages", "V", &[], "expected input"),
    refused(
        "truncate_prompt_tokens",
        "V",
        &["-1"],
        "texts are never truncated",
    ),
    refused("truncation_side", "V", &[], "texts are never truncated"),
    refused("normalize", "V", &["true"], "vectors have length 1"),
    refused("use_activation", "V", &["true"], "vectors have length 1"),
    refused("embd_normalize", "L", &["2"], "vectors have length 1"),
    refused(
        "embed_dtype",
        "V",
        &["\"float32\""],
        "vectors are numbers in f32",
    ),
    refused(
        "endianness",
        "V",
        &["\"native\"", "\"little\""],
        "vectors are little-endian",
    ),
    refused(
        "cache_salt",
        "V",
        &["\"\""],
        "cached prompts are separated by API key",
    ),
];
