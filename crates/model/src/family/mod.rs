//! Conversion of the names and flags of a model file to a [`ModelDescription`] and a [`TensorMap`].
//!
//! A family is one constant in [`traits`]: the properties that all its models share and that no file contains. Two
//! readers add the contents of a file: [`hugging_face`] from `config.json`, [`gguf`] from GGUF metadata. Both produce a
//! [`draft`], which checks the numbers and expands the description block by block. Then [`tensors`] finds every tensor
//! by its [name](names) and checks its shape, and [`modules`] finds the linear layers that an adapter is for.
//! [`shapes`] holds the descriptions of well-known models for benchmarks with random weights.
//!
//! **To add a family**: add a constant in [`traits`], its tensor names in [`names`] if they are new, and one line in
//! each reader's list of names and in that of [`modules`]. `docs/adding/a-family.md` has all steps.
//!
//! Nothing is guessed. A model that needs something that Triad does not implement (another RoPE type, experts, a tensor
//! without a role) is refused by name.

mod classifier;
mod config;
mod config_rope;
mod config_windows;
mod draft;
mod encoder;
mod encoder_families;
mod expert_families;
mod expert_names;
mod expert_tensors;
mod experts;
mod gemma3n;
mod gemma4;
mod gemma_families;
mod gguf;
mod gguf_families;
mod gguf_rope;
mod gguf_windows;
mod hugging_face;
mod kinds;
mod latent;
mod layout;
mod mixer;
mod mixer_families;
mod mixer_names;
mod mixer_tensors;
mod modules;
mod mtp;
mod multipliers;
mod names;
mod next_tokens;
mod ollama;
mod parts;
mod picture_rope;
mod rope;
mod shapes;
mod stream_names;
mod stream_tensors;
mod tensors;
#[cfg(test)]
mod tests;
mod token_tensors;
mod traits;

use std::collections::BTreeMap;

use crate::description::ModelDescription;
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::Metadata;
use crate::tensor::TensorInfo;
use crate::tensor_map::TensorMap;

pub(crate) use classifier::torch_activation;
pub(crate) use config::Config;
pub(crate) use modules::Modules;
pub use shapes::{SHAPES, shape};

/// The names of the two kinds of attention in a `config.json`.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// A function that reads one tensor of a file, dequantized: some families store RoPE's divisors as a tensor.
pub type ReadF32<'a> = dyn Fn(&TensorInfo) -> Result<Vec<f32>> + 'a;

/// A function that returns whether two tensors of the same shape hold the same numbers.
pub type AreEqual<'a> = dyn Fn(&TensorInfo, &TensorInfo) -> bool + 'a;

/// A function that returns whether the tensor of this name is quantized: matrices of several experts are then the rows
/// of one matrix.
pub type IsQuantized<'a> = dyn Fn(&str) -> bool + 'a;

/// Describes a Hugging Face checkpoint by its `config.json` and its tensors. `are_equal` is only called if the file has
/// an output matrix that its configuration ties to the embedding.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for a model type, RoPE type, activation or feature that Triad does not support,
/// [`ErrorKind::Missing`] for an absent field or tensor, [`ErrorKind::Malformed`] for an invalid value or a tensor
/// whose shape does not match the configuration.
pub fn from_hugging_face(
    config: &serde_json::Value,
    (tensors, is_quantized): (&BTreeMap<String, TensorInfo>, &IsQuantized<'_>),
    are_equal: &AreEqual<'_>,
) -> Result<(ModelDescription, TensorMap)> {
    let (family, mut description) = hugging_face::describe(config)?;
    description.head = classifier::head(family, &description, config, tensors)?;
    if !description.writes() {
        // A classifier has no output matrix.
        description.tied_output = true;
    }
    description.check()?;
    description.picture_rope = picture_rope::of_config(family, &description, config)?;
    let predicted = hugging_face::more_tokens(config)?;
    let are_equal = (is_quantized, are_equal);
    let mut map = tensors::hugging_face(family, &description, (tensors, predicted), are_equal)?;
    mtp::add_hugging_face(family, (&mut description, &mut map), tensors, is_quantized);
    Ok((description, map))
}

/// Describes a GGUF file by its metadata and its tensors.
///
/// # Errors
///
/// As for [`from_hugging_face`], and those of `read_f32`.
pub fn from_gguf(
    metadata: &Metadata,
    tensors: &BTreeMap<String, TensorInfo>,
    read_f32: &ReadF32<'_>,
) -> Result<(ModelDescription, TensorMap)> {
    let (family, mut description) = gguf::describe(metadata, tensors, read_f32)?;
    description.head = classifier::gguf_head(family, metadata, &description, tensors)?;
    description.check()?;
    description.picture_rope = picture_rope::of_gguf(family, &description, metadata)?;
    let mut map = tensors::gguf(family, &description, tensors)?;
    mtp::add_gguf(family, (&mut description, &mut map), tensors);
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
