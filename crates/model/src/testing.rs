//! For tests only (feature `testing`): writes valid and invalid GGUF files.
//!
//! ```
//! use triad_model::gguf::{self, Value};
//! use triad_model::testing::GgufBuilder;
//!
//! let bytes = GgufBuilder::new()
//!     .field("general.architecture", Value::String("llama".into()))
//!     .tensor_f32("output_norm.weight", &[3], &[1.0, 2.0, 3.0])
//!     .build();
//! assert_eq!(gguf::read(&bytes).unwrap().tensors["output_norm.weight"].shape, [3]);
//! ```

use crate::gguf::{MAGIC, Value};
use crate::tensor::{BlockFormat, Format};

/// Builds a GGUF file. Public fields can be set to anything, for files that must be refused.
#[derive(Clone, Debug)]
pub struct GgufBuilder {
    /// Version of the format.
    pub version: u32,
    /// Written instead of the true number of tensors.
    pub tensor_count: Option<u64>,
    /// Written instead of the true number of metadata fields.
    pub field_count: Option<u64>,
    /// Alignment of tensors; if it isn't 32, a field `general.alignment` must state it.
    pub alignment: usize,
    /// The tensor table.
    pub entries: Vec<TableEntry>,
    fields: Vec<u8>,
    fields_written: u64,
    data: Vec<u8>,
}

/// An entry of the tensor table, as it is written.
#[derive(Clone, Debug)]
pub struct TableEntry {
    /// Name.
    pub name: String,
    /// Innermost dimension first.
    pub dimensions: Vec<u64>,
    /// GGML's number of the tensor type.
    pub type_id: u32,
    /// First byte, counted from the start of the tensor data.
    pub offset: u64,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufBuilder {
    /// Creates an empty file of version 3.
    pub fn new() -> Self {
        Self {
            version: 3,
            tensor_count: None,
            field_count: None,
            alignment: 32,
            entries: Vec::new(),
            fields: Vec::new(),
            fields_written: 0,
            data: Vec::new(),
        }
    }

    /// Adds a metadata field; integers and floats have the narrowest of the usual widths.
    #[must_use]
    pub fn field(self, key: &str, value: Value) -> Self {
        let (value_type, bytes) = match value {
            Value::Integer(value) => match (u32::try_from(value), i64::try_from(value)) {
                (Ok(value), _) => (4, value.to_le_bytes().to_vec()),
                (_, Ok(value)) => (11, value.to_le_bytes().to_vec()),
                _ => (10, (value as u64).to_le_bytes().to_vec()),
            },
            Value::Float(value) if f64::from(value as f32) == value => {
                (6, (value as f32).to_le_bytes().to_vec())
            }
            Value::Float(value) => (12, value.to_le_bytes().to_vec()),
            Value::Bool(value) => (7, vec![value.into()]),
            Value::String(value) => (8, string(&value)),
            Value::Integers(values) => {
                (9, array(11, values.iter().map(|value| value.to_le_bytes())))
            }
            Value::Floats(values) => (9, array(6, values.iter().map(|value| value.to_le_bytes()))),
            Value::Bools(values) => (9, array(7, values.iter().map(|&value| [value.into()]))),
            Value::Strings(values) => (9, array(8, values.iter().map(|value| string(value)))),
        };
        self.raw_field(key, value_type, &bytes)
    }

    /// Adds a metadata field of any type number and any bytes.
    #[must_use]
    pub fn raw_field(mut self, key: &str, value_type: u32, bytes: &[u8]) -> Self {
        self.fields.extend(string(key));
        self.fields.extend(value_type.to_le_bytes());
        self.fields.extend(bytes);
        self.fields_written += 1;
        self
    }

    /// Adds a tensor of `shape` (outermost dimension first) whose stored form is `bytes`.
    #[must_use]
    pub fn tensor(mut self, name: &str, shape: &[usize], format: Format, bytes: &[u8]) -> Self {
        self.data
            .resize(self.data.len().next_multiple_of(self.alignment), 0);
        self.entries.push(TableEntry {
            name: name.to_owned(),
            dimensions: shape.iter().rev().map(|&size| size as u64).collect(),
            type_id: format.ggml_type(),
            offset: self.data.len() as u64,
        });
        self.data.extend(bytes);
        self
    }

    /// Adds a tensor of f32 values.
    #[must_use]
    pub fn tensor_f32(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.tensor(name, shape, Format::F32, &bytes)
    }

    /// Returns the file's bytes.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(
            self.tensor_count
                .unwrap_or(self.entries.len() as u64)
                .to_le_bytes(),
        );
        bytes.extend(
            self.field_count
                .unwrap_or(self.fields_written)
                .to_le_bytes(),
        );
        bytes.extend(&self.fields);
        for entry in &self.entries {
            bytes.extend(string(&entry.name));
            bytes.extend((entry.dimensions.len() as u32).to_le_bytes());
            bytes.extend(entry.dimensions.iter().flat_map(|size| size.to_le_bytes()));
            bytes.extend(entry.type_id.to_le_bytes());
            bytes.extend(entry.offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(&self.data);
        bytes
    }
}

/// Returns a string in GGUF's format: its length, then its bytes.
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn array<Element: AsRef<[u8]>>(
    element_type: u32,
    elements: impl ExactSizeIterator<Item = Element>,
) -> Vec<u8> {
    let mut bytes = element_type.to_le_bytes().to_vec();
    bytes.extend((elements.len() as u64).to_le_bytes());
    for element in elements {
        bytes.extend(element.as_ref());
    }
    bytes
}

/// Returns a safetensors file: the header with its length, then `data`.
pub fn safetensors_file(header: &str, data: &[u8]) -> Vec<u8> {
    [string(header).as_slice(), data].concat()
}

/// Returns a valid model of the smallest size, without a tokenizer: one block of width 32, four tokens, norms of 1,
/// linear weights of 0.
pub fn tiny_llama() -> GgufBuilder {
    let numbers = [
        ("embedding_length", 32),
        ("block_count", 1),
        ("feed_forward_length", 32),
        ("context_length", 16),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ];
    let matrices = [
        ("token_embd", 4),
        ("blk.0.attn_q", 32),
        ("blk.0.attn_k", 16),
        ("blk.0.attn_v", 16),
        ("blk.0.attn_output", 32),
        ("blk.0.ffn_gate", 32),
        ("blk.0.ffn_up", 32),
        ("blk.0.ffn_down", 32),
    ];
    let mut builder = GgufBuilder::new()
        .field("general.architecture", Value::String("llama".to_owned()))
        .field("llama.attention.layer_norm_rms_epsilon", Value::Float(1e-5));
    for (field, number) in numbers {
        builder = builder.field(&format!("llama.{field}"), Value::Integer(number));
    }
    for norm in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
        builder = builder.tensor_f32(&format!("{norm}.weight"), &[32], &[1.0; 32]);
    }
    for (matrix, rows) in matrices {
        let bytes = vec![0; rows * BlockFormat::Q4_0.bytes()];
        builder = builder.tensor(
            &format!("{matrix}.weight"),
            &[rows, 32],
            Format::Blocks(BlockFormat::Q4_0),
            &bytes,
        );
    }
    builder
}
