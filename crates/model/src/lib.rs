//! What a model is: its file, its description, its tokenizer, its chat template.
//!
//! Start at [`checkpoint`]: it opens a GGUF file ([`gguf`]) or a safetensors folder ([`safetensors`]),
//! memory-mapped ([`mapped`]), and has [`family`] turn names and flags into one
//! [`description::ModelDescription`], the only thing the engine reads. [`dequantize`] turns stored
//! formats into f32. [`tokenizer`] and [`template`] turn a conversation into tokens and back;
//! [`fetch`] finds a model by name. [`adapter`] reads what a model was fine-tuned by, where that is kept apart from it.
//! All of them open their files by [`files`]. [`output`] is how every file of Triad is written,
//! [`seal`] how a machine recognizes what it made itself.

pub mod adapter;
mod cache_folder;
pub mod checkpoint;
pub mod dequantize;
pub mod description;
pub mod error;
pub mod family;
#[cfg(feature = "fetch")]
pub mod fetch;
pub mod files;
pub mod gguf;
pub mod mapped;
pub mod output;
pub mod safetensors;
pub mod seal;
pub mod template;
pub mod tensor;
pub mod tensor_map;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tokenizer;

pub use error::{Error, ErrorKind, Result};
