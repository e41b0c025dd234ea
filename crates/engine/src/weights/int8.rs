//! Linear layers that read INT8 activations.

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
    /// The weights before they were quantized, where outlier channels are multiplied with those (LLM.int8()).
    float: Option<WeightMatrix>,
}

impl Int8Matrix {
    /// Quantizes `weight`. `smoothing` are the factors on the activations, whose inverse goes to the weights.
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

    /// The same, with the float weights kept for the channels that are computed with those.
    pub fn with_float(self, weight: &WeightMatrix) -> Self {
        Self {
            float: Some(weight.clone()),
            ..self
        }
    }

    /// Packed weights of a mapped file. `None` if the lengths contradict the shape.
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

    /// Rows.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// The values.
    pub fn view(&self) -> Int8Weight<'_> {
        Int8Weight {
            out_features: self.out_features,
            in_features: self.in_features,
            packed: self.packed.get(),
            scales: &self.scales,
            sums: &self.sums,
        }
    }

    /// The float weights, where they are kept.
    pub fn float(&self) -> Option<&WeightMatrix> {
        self.float.as_ref()
    }

    /// Lets the system drop the values from memory where they are of a mapped file.
    pub fn release(&self) {
        if let Values::Mapped(bytes) = &self.packed {
            bytes.release();
        }
    }

    /// Bytes of the values and their scales.
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
