//! The formats of linear layers that devices multiply.

use std::fmt;

use triad_kernels::Matrix;

/// A format of linear layers: of their weights and of the activations that they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerFormat {
    /// INT8 weights and INT8 activations, with sums in i32.
    W8a8,
    /// INT4 weights with a scale for each group of a row, and float activations.
    W4a16,
    /// Float activations, and weights in another format: f32, f16, bf16, INT8 with a scale for each row, or quantized
    /// blocks of GGUF.
    Float,
}

impl LayerFormat {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::W8a8, Self::W4a16, Self::Float];

    /// Returns the format of layers with this weight, which read float activations.
    pub fn with_float_inputs(weight: Matrix) -> Self {
        match weight {
            Matrix::Int4 { .. } => Self::W4a16,
            _ => Self::Float,
        }
    }
}

impl fmt::Display for LayerFormat {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::W8a8 => "INT8 (W8A8)",
            Self::W4a16 => "INT4 with float activations (W4A16)",
            Self::Float => "float",
        })
    }
}
