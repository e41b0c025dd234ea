//! The names of the tensors of a file that predict more than one token (MTP). They are no part of the model; the
//! [head](super::mtp) of some families is used.

use std::collections::BTreeMap;

use crate::description::ModelDescription;
use crate::tensor::TensorInfo;

/// A tensor of each block that predicts more than one token, in GGUF.
const OF_GGUF: &str = "nextn.eh_proj.weight";
/// The same tensor in GLM's checkpoints.
const OF_GLM: &str = "eh_proj.weight";
/// The beginnings of such names in other checkpoints: outside the model, and in ERNIE's.
pub(super) const OUTSIDE: &str = "mtp.";
const OF_ERNIE: [&str; 4] = [
    "mtp_block.",
    "mtp_emb_norm.",
    "mtp_hidden_norm.",
    "mtp_linear_proj.",
];

type Tensors = BTreeMap<String, TensorInfo>;

/// Returns the names of such tensors in a GGUF file, which are in blocks after those of the model.
pub(super) fn gguf(description: &ModelDescription, tensors: &Tensors) -> Vec<String> {
    let blocks = description.blocks.len()..;
    in_blocks("blk.", blocks, (OF_GGUF, tensors))
}

/// Returns the names of such tensors in a checkpoint with this root, whose configuration states that so many blocks are
/// for that.
pub(super) fn hugging_face(
    description: &ModelDescription,
    (root, predicted): (&str, usize),
    tensors: &Tensors,
) -> Vec<String> {
    let blocks = description.blocks.len();
    let blocks = blocks..blocks.saturating_add(predicted);
    let mut names = in_blocks(&format!("{root}layers."), blocks, (OF_GLM, tensors));
    let is_of_ernie = |name: &str| {
        let name = name.strip_prefix(root).unwrap_or_default();
        description.family.starts_with("ernie") && OF_ERNIE.iter().any(|it| name.starts_with(it))
    };
    let others = tensors.keys();
    let others = others.filter(|name| name.starts_with(OUTSIDE) || is_of_ernie(name));
    names.extend(others.cloned());
    names
}

/// Returns the names in consecutive blocks that have this tensor.
fn in_blocks(
    prefix: &str,
    blocks: impl Iterator<Item = usize>,
    (tensor, tensors): (&str, &Tensors),
) -> Vec<String> {
    let is_one = |block: &usize| tensors.contains_key(&format!("{prefix}{block}.{tensor}"));
    let prefixes = blocks.take_while(is_one);
    let prefixes: Vec<String> = prefixes.map(|block| format!("{prefix}{block}.")).collect();
    let names = tensors.keys();
    let names = names.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    names.cloned().collect()
}
