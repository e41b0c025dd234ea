//! GGUF, versions 2 and 3: metadata, tensor table, tensor data in one file.

mod metadata;

pub use metadata::{Metadata, Value};
