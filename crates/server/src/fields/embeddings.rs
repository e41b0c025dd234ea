//! The fields of `/v1/embeddings`.

use super::{Field, followed, ignored, noted, refused};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "OVL"),
    followed("input", "OVL"),
    noted("content", "L", "alias of input"),
    followed("encoding_format", "OVL"),
    noted("dimensions", "OV", "leading components, of length 1 again"),
    noted(
        "pooling",
        "T",
        "mean, last or first; the default is what the model's files state, else mean",
    ),
    noted(
        "prompt_name",
        "T",
        "a prompt of the model's files, such as query, which is put before texts",
    ),
    noted(
        "parse_special",
        "T",
        "false tokenizes names of control tokens as plain text",
    ),
    noted("add_special_tokens", "V", "false adds no BOS before a text"),
    ignored("user", "OV", "for accounts of hosted services"),
    ignored("priority", "V", "it affects only speed"),
    ignored("request_id", "V", "the server generates response ids"),
    ignored("mm_processor_kwargs", "V", "only texts are read"),
    refused("messages", "V", &[], "expected input"),
    refused(
        "truncate_prompt_tokens",
        "V",
        &["-1"],
        "texts are never truncated",
    ),
    refused("truncation_side", "V", &[], "texts are never truncated"),
    noted("normalize", "V", "false returns vectors as they are pooled"),
    noted("use_activation", "V", "alias of normalize"),
    noted(
        "embd_normalize",
        "L",
        "2, or -1 for vectors as they are pooled",
    ),
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

/// The fields of text-embeddings-inference.
pub(super) const EMBED: &[Field] = &[
    followed("model", "T"),
    noted("inputs", "T", "a text, or an array of texts or of tokens"),
    noted("normalize", "T", "false returns vectors as they are pooled"),
    noted(
        "truncate",
        "T",
        "true cuts texts that are too long at their end; by default they are refused",
    ),
    refused(
        "truncation_direction",
        "T",
        &["\"right\"", "\"Right\""],
        "texts are cut at their end",
    ),
    noted(
        "prompt_name",
        "T",
        "a prompt of the model's files, such as query, which is put before texts",
    ),
    noted("dimensions", "T", "leading components, of length 1 again"),
];
