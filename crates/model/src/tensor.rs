//! A tensor as it stands in a model file: name, shape, format and bytes.

use std::ops::Range;

/// Element format of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the field's own")]
#[expect(non_camel_case_types, reason = "GGUF writes them so")]
pub enum Format {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

/// Where a tensor lies in a checkpoint and what it is. Checked when the file is opened: `bytes` lies
/// inside the file and its length is what `shape` and `format` demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Row-major, outermost dimension first: `[out_features, in_features]` for a linear layer.
    pub shape: Vec<usize>,
    /// Element format.
    pub format: Format,
    /// Which file of the checkpoint (more than one if sharded).
    pub file: usize,
    /// Byte range in that file.
    pub bytes: Range<usize>,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}
