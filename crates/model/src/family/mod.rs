//! From the names and flags of a model file to a [`ModelDescription`] and a [`TensorMap`].
//!
//! A family is one constant in [`traits`]: what all its models have in common and no file contains. Two
//! readers fill in what a file does say: [`hugging_face`] from `config.json`, [`gguf`] from GGUF
//! metadata. Both end in a [`draft`], which checks the numbers and writes the description out block by
//! block; [`tensors`] then finds every tensor by its [name](names) and checks its shape; [`modules`] finds the linear
//! layers that an adapter is for. [`shapes`] holds the descriptions of well-known models for benchmarks on random weights.
//!
//! **To add a family**: a constant in [`traits`], its tensor names in [`names`] if they are new, and
//! one line in each reader's list of names.
//!
//! Nothing is guessed. A model whose numbers would depend on something that Triad does not implement
//! (another RoPE type, experts, a tensor without a part to play) is refused by name.

mod config;
mod config_rope;
mod draft;
mod gguf;
mod hugging_face;
mod modules;
mod names;
mod rope;
mod shapes;
mod tensors;
#[cfg(test)]
mod tests;
mod traits;

use std::collections::BTreeMap;

use crate::description::ModelDescription;
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::Metadata;
use crate::tensor::TensorInfo;
use crate::tensor_map::TensorMap;

pub(crate) use modules::Modules;
pub use shapes::{SHAPES, shape};

/// The kinds of attention that a `config.json` gives its blocks.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Reads one tensor of a file, dequantized: some families store RoPE's divisors as a tensor.
pub type ReadF32<'a> = dyn Fn(&TensorInfo) -> Result<Vec<f32>> + 'a;

/// Returns whether two tensors of the same shape hold the same numbers.
pub type AreEqual<'a> = dyn Fn(&TensorInfo, &TensorInfo) -> bool + 'a;

/// Describes a Hugging Face checkpoint by its `config.json` and its tensors. `are_equal` is asked only if the file has an
/// output matrix that its configuration ties to the embedding.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for a model type, RoPE type, activation or feature that Triad does not
/// run, [`ErrorKind::Missing`] for an absent field or tensor, [`ErrorKind::Malformed`] for a value that
/// makes no sense or a tensor of another shape than the configuration demands.
pub fn from_hugging_face(
    config: &serde_json::Value,
    tensors: &BTreeMap<String, TensorInfo>,
    are_equal: &AreEqual<'_>,
) -> Result<(ModelDescription, TensorMap)> {
    let (family, description) = hugging_face::describe(config)?;
    let map = tensors::hugging_face(family, &description, tensors, are_equal)?;
    Ok((description, map))
}

/// Describes a GGUF file by its metadata and its tensors.
///
/// # Errors
///
/// As [`from_hugging_face`], and those of `read_f32`.
pub fn from_gguf(
    metadata: &Metadata,
    tensors: &BTreeMap<String, TensorInfo>,
    read_f32: &ReadF32<'_>,
) -> Result<(ModelDescription, TensorMap)> {
    let (family, description) = gguf::describe(metadata, tensors, read_f32)?;
    let map = tensors::gguf(family, &description, tensors)?;
    Ok((description, map))
}

fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

fn missing(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Missing, message)
}

fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}
