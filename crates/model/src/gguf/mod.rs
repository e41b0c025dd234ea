//! GGUF, versions 2 and 3: metadata, tensor table and tensor data in one file.
//!
//! [`read`] checks a whole file and returns its [`Metadata`] and its tensors.

mod cursor;
mod metadata;
mod reader;
mod types;

pub use metadata::{Metadata, Value};
pub use reader::{Gguf, read};

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
