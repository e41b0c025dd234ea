//! Reads untrusted bytes as everything that Triad reads from files: each kind of input is accepted, or refused with an
//! error. The fuzz targets of `fuzz/` call these functions, and so does a test with mutated seeds.

pub mod adapter;
pub mod config;
pub mod gguf;
pub mod package;
pub mod picture;
pub mod quantized;
pub mod safetensors_header;
pub mod schema;
pub mod session;
pub mod template;
pub mod tokenizer;

/// A kind of input: its name, which is that of its fuzz target and of its folder of seeds, and the function that reads it.
pub type Kind = (&'static str, fn(&[u8]));

/// All kinds of inputs.
pub const KINDS: [Kind; 11] = [
    ("adapter", adapter::read),
    ("config", config::read),
    ("gguf", gguf::read),
    ("package", package::read),
    ("picture", picture::read),
    ("quantized", quantized::read),
    ("safetensors_header", safetensors_header::read),
    ("schema", schema::read),
    ("session", session::read),
    ("template", template::read),
    ("tokenizer", tokenizer::read),
];
