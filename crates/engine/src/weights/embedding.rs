//! Matrices of which single rows are read: the embedding, and the table of inputs by token.

use triad_model::dequantize::dequantize;
use triad_model::mapped::MappedBytes;
use triad_model::tensor::Format;

use super::WeightMatrix;

/// The embedding: rows are read one at a time, so they stay as stored.
#[derive(Clone)]
pub enum Embedding {
    /// In the model file.
    Stored {
        /// The rows, one after the other.
        bytes: MappedBytes,
        /// Bytes of one row.
        row_bytes: usize,
        /// Format of the rows.
        format: Format,
    },
    /// The output matrix, which is also the embedding (random weights).
    Output,
    /// A matrix in memory, which may be the output matrix: of quantized safetensors, or random.
    Matrix(WeightMatrix),
}

impl Embedding {
    /// Writes the row of `token` to `out`.
    ///
    /// # Panics
    /// If it is the output matrix, or the token is not within the vocabulary.
    pub(crate) fn row(&self, token: u32, out: &mut [f32]) {
        let row = token as usize;
        match self {
            Self::Stored {
                bytes,
                row_bytes,
                format,
            } => {
                dequantize(*format, &bytes[row * row_bytes..][..*row_bytes], out);
            }
            Self::Output => unreachable!("the output matrix reads float activations"),
            Self::Matrix(matrix) => matrix.row(row, out),
        }
    }

    /// Returns the bytes of the values, 0 if they are the output matrix's.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Stored { bytes, .. } => bytes.len(),
            Self::Output => 0,
            Self::Matrix(matrix) => matrix.bytes(),
        }
    }

    /// Returns the bytes of a row if it has `rows` rows.
    pub(crate) fn row_bytes(&self, rows: usize) -> usize {
        match self {
            Self::Stored { row_bytes, .. } => *row_bytes,
            other => other.bytes() / rows.max(1),
        }
    }
}
