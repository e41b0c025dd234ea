//! `/v1/embeddings`.

use super::{Field, followed, ignored, noted, refused};

pub(super) const FIELDS: &[Field] = &[
    followed("model", "OVL"),
    followed("input", "OVL"),
    noted("content", "L", "as input"),
    followed("encoding_format", "OVL"),
    noted("dimensions", "OV", "the model's own number, else refused"),
    noted("pooling", "T", "mean or last"),
    noted(
        "parse_special",
        "T",
        "false keeps names of control tokens letters",
    ),
    noted("add_special_tokens", "V", "false puts no BOS before a text"),
    ignored("user", "OV", "it is for the accounts of a service"),
    ignored("priority", "V", "it changes times alone"),
    ignored("request_id", "V", "answers have names of this server"),
    ignored("mm_processor_kwargs", "V", "models here read texts"),
    refused("messages", "V", &[], "expected input"),
    refused(
        "truncate_prompt_tokens",
        "V",
        &["-1"],
        "texts are read whole",
    ),
    refused("truncation_side", "V", &[], "texts are read whole"),
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
        "prompts are kept apart by the keys of clients",
    ),
];
