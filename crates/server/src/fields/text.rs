//! `/tokenize` and `/detokenize`. `/apply-template` has the fields of `/v1/chat/completions`.

use super::chat::{MESSAGE, TOOL};
use super::{Field, followed, ignored, noted, refused, with};

pub(super) const TOKENIZE: &[Field] = &[
    followed("model", "V"),
    followed("content", "L"),
    noted("prompt", "V", "as content"),
    with("messages", "V", MESSAGE),
    with("tools", "V", TOOL),
    noted(
        "parse_special",
        "L",
        "false keeps names of control tokens letters",
    ),
    noted("add_special", "L", "false puts no BOS before a text"),
    noted("add_special_tokens", "V", "as add_special"),
    followed("with_pieces", "L"),
    refused("return_token_strs", "V", &["false"], "expected with_pieces"),
    ignored("mm_processor_kwargs", "V", "models here read texts"),
];

pub(super) const DETOKENIZE: &[Field] = &[followed("model", "V"), followed("tokens", "VL")];
