//! Model files: their weights, description, tokenizer and chat template.
//!
//! Start at [`checkpoint`]: it opens a GGUF file ([`gguf`]) or a safetensors folder ([`safetensors`]), memory-mapped
//! ([`mapped`]), and uses [`family`] to convert names and flags to a [`description::ModelDescription`], the only thing
//! that the engine reads. [`dequantize`] converts stored formats to f32. [`tokenizer`] and [`template`] convert a
//! conversation to tokens and back. [`fetch`] finds a model by name. [`adapter`] reads LoRA adapters. All of them open
//! their files by [`files`]. [`output`] writes every file of Triad, and [`seal`] lets a machine recognize files that it
//! made itself.

pub mod adapter;
mod cache_folder;
pub mod checkpoint;
pub mod dequantize;
pub mod description;
pub mod environment;
pub mod error;
pub mod family;
#[cfg(feature = "fetch")]
pub mod fetch;
pub mod file_lock;
pub mod files;
pub mod gguf;
pub mod mapped;
pub mod output;
pub mod quantized;
pub mod role;
pub mod safetensors;
pub mod seal;
pub mod template;
pub mod tensor;
pub mod tensor_map;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tokenizer;
pub mod vision;

pub use error::{Error, ErrorKind, Result};
