//! The fields of `/tokenize`, `/detokenize` and `/sessions`. `/apply-template` has the fields of `/v1/chat/completions`.

use super::chat::{MESSAGE, TOOL};
use super::{Field, followed, noted, refused, with};

pub(super) const TOKENIZE: &[Field] = &[
    followed("model", "V"),
    followed("content", "L"),
    noted("prompt", "V", "alias of content"),
    with("messages", "V", MESSAGE),
    with("tools", "V", TOOL),
    noted(
        "parse_special",
        "L",
        "false tokenizes names of control tokens as plain text",
    ),
    noted(
        "add_special",
        "L",
        "whether BOS is added before a text; the default is false with content, else true",
    ),
    noted("add_special_tokens", "V", "alias of add_special"),
    noted("with_pieces", "L", "with content in tokens, else in pieces"),
    refused("return_token_strs", "V", &["false"], "expected with_pieces"),
    refused(
        "mm_processor_kwargs",
        "V",
        &["{}"],
        "the model's own processor, and --max-image-patches of the server",
    ),
];

pub(super) const DETOKENIZE: &[Field] = &[followed("model", "V"), followed("tokens", "VL")];

pub(super) const SAVE: &[Field] = &[
    followed("model", "T"),
    with("messages", "T", MESSAGE),
    with("tools", "T", TOOL),
    noted("prompt", "T", "a text instead of messages"),
    refused("lora", "T", &["[]"], "files keep prompts without adapters"),
];

pub(super) const RESTORE: &[Field] = &[followed("model", "T")];
