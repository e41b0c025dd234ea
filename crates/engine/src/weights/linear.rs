//! The weights of a linear layer.

use triad_model::mapped::MappedBytes;

use super::{Int8Matrix, WeightMatrix};

/// One linear layer.
#[derive(Clone)]
pub struct Linear {
    /// `[out_features, in_features]`.
    pub weight: Weight,
    /// The same weights in fewer bytes, for decode.
    pub decode_weight: Option<WeightMatrix>,
    /// `[out_features]`.
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    /// Returns the parts of mapped files with the weights.
    pub(super) fn in_files(&self) -> impl Iterator<Item = &MappedBytes> {
        let weight = match &self.weight {
            Weight::Float(matrix) => matrix.in_file(),
            Weight::Int8(matrix) => matrix.in_file(),
        };
        let decode_weight = self.decode_weight.as_ref().and_then(WeightMatrix::in_file);
        weight.into_iter().chain(decode_weight)
    }
}

/// The weights of one linear layer.
#[derive(Clone)]
pub enum Weight {
    /// Multiplied with float activations.
    Float(WeightMatrix),
    /// Multiplied with INT8 activations.
    Int8(Int8Matrix),
}

impl Weight {
    /// Returns the number of rows.
    pub fn out_features(&self) -> usize {
        match self {
            Self::Float(matrix) => matrix.out_features(),
            Self::Int8(matrix) => matrix.out_features(),
        }
    }

    /// Returns the bytes of the values.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Float(matrix) => matrix.bytes(),
            Self::Int8(matrix) => matrix.bytes(),
        }
    }
}
