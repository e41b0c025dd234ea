//! GGUF, versions 2 and 3: metadata, tensor table and tensor data in one file.
//!
//! [`read`] checks a whole file and returns its [`Metadata`] and its tensors. A model may be in several files, which have
//! a [`PartName`] each.

mod cursor;
mod metadata;
mod reader;
mod split;
mod types;

pub use metadata::{Metadata, Value};
pub use reader::{Gguf, read};
pub use split::PartName;

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
