//! The tensors of a GGUF file that predict more than one token (MTP). Triad does not use them.

use std::collections::BTreeMap;

use crate::description::ModelDescription;
use crate::tensor::TensorInfo;

/// A tensor of each block that predicts more than one token, in GGUF.
const NEXT_TOKENS: &str = "nextn.eh_proj.weight";

/// Returns the names of the tensors that predict more than one token (MTP), which are in blocks after those of the model.
pub(super) fn more_tokens<'a>(
    description: &ModelDescription,
    tensors: &'a BTreeMap<String, TensorInfo>,
) -> impl Iterator<Item = &'a String> {
    let is_one = |block: &usize| tensors.contains_key(&format!("blk.{block}.{NEXT_TOKENS}"));
    let prefixes = (description.blocks.len()..)
        .take_while(is_one)
        .map(|block| format!("blk.{block}."));
    let prefixes: Vec<String> = prefixes.collect();
    let names = tensors.keys();
    names.filter(move |name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
}
