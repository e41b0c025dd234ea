//! Matrices of linear layers that read INT8 activations.

use std::sync::Arc;

use triad_kernels::int8::{self, Int8Weight};
use triad_model::mapped::MappedBytes;

use super::WeightMatrix;
use super::matrix::Values;
use crate::quantization::WeightScales;

/// A matrix `[out_features, in_features]` in INT8, packed for the kernels. Clones share the values.
#[derive(Clone)]
pub struct Int8Matrix {
    out_features: usize,
    in_features: usize,
    packed: Values<i8>,
    /// `[out_features]`.
    scales: Arc<[f32]>,
    /// Sum of each row `[out_features]`.
    sums: Arc<[i32]>,
    /// The weights before quantization, if outlier channels are multiplied with those (LLM.int8()).
    float: Option<WeightMatrix>,
}

impl Int8Matrix {
    /// Quantizes `weight`. `smoothing` are the factors on the activations; the weights are divided by them.
    pub fn quantize(
        weight: &WeightMatrix,
        scales: WeightScales,
        smoothing: Option<&[f32]>,
    ) -> Self {
        let (out_features, in_features) = (weight.out_features(), weight.in_features());
        let mut values = weight.to_f32();
        if let Some(smoothing) = smoothing {
            for row in values.chunks_exact_mut(in_features) {
                row.iter_mut()
                    .zip(smoothing)
                    .for_each(|(weight, factor)| *weight /= factor);
            }
        }
        let mut row_major = vec![0; values.len()];
        let mut row_scales = vec![0.0; out_features];
        match scales {
            WeightScales::Channel => {
                int8::quantize_weight_rows(&values, in_features, &mut row_scales, &mut row_major);
            }
            WeightScales::Tensor => {
                int8::quantize_weight_tensor(&values, in_features, &mut row_scales, &mut row_major);
            }
        }
        drop(values);
        let length =
            int8::packed_len(out_features, in_features).expect("the float weights are larger");
        let mut packed = vec![0; length];
        int8::pack(&row_major, out_features, in_features, &mut packed);
        let mut sums = vec![0; out_features];
        int8::row_sums(&row_major, in_features, &mut sums);
        Self {
            out_features,
            in_features,
            packed: Values::Owned(packed.into()),
            scales: row_scales.into(),
            sums: sums.into(),
            float: None,
        }
    }

    /// Returns the matrix with the float weights, for the channels that are computed with those.
    pub fn with_float(self, weight: &WeightMatrix) -> Self {
        Self {
            float: Some(weight.clone()),
            ..self
        }
    }

    /// Creates a matrix of packed weights in a mapped file. Returns `None` if the lengths contradict the shape.
    pub fn mapped(
        out_features: usize,
        in_features: usize,
        packed: MappedBytes,
        scales: Vec<f32>,
        sums: Vec<i32>,
    ) -> Option<Self> {
        let fits = int8::packed_len(out_features, in_features) == Some(packed.len())
            && scales.len() == out_features
            && sums.len() == out_features;
        let packed = Values::Mapped(packed);
        let (scales, sums) = (scales.into(), sums.into());
        fits.then_some(Self {
            out_features,
            in_features,
            packed,
            scales,
            sums,
            float: None,
        })
    }

    /// Returns the number of rows.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Returns a view of the values.
    pub fn view(&self) -> Int8Weight<'_> {
        Int8Weight {
            out_features: self.out_features,
            in_features: self.in_features,
            packed: self.packed.get(),
            scales: &self.scales,
            sums: &self.sums,
        }
    }

    /// Returns the float weights, if they are kept.
    pub fn float(&self) -> Option<&WeightMatrix> {
        self.float.as_ref()
    }

    /// Returns the part of a mapped file with the values, if they are in one.
    pub(super) fn in_file(&self) -> Option<&MappedBytes> {
        match &self.packed {
            Values::Mapped(bytes) => Some(bytes),
            Values::Owned(_) => None,
        }
    }

    /// Allows the system to drop the values from memory if they are in a mapped file.
    pub fn release(&self) {
        if let Some(bytes) = self.in_file() {
            bytes.release();
        }
    }

    /// Returns the bytes of the values and their scales.
    pub fn bytes(&self) -> usize {
        let Int8Weight {
            packed,
            scales,
            sums,
            ..
        } = self.view();
        packed.len() + size_of_val(scales) + size_of_val(sums)
    }
}
