//! The plain reference: layers with unpacked weights, random numbers, and matmuls by definition.

use std::sync::Arc;

use triad_kernels::activation::Activation;
use triad_kernels::int8::{Int8Weight, QuantizedRows, pack, packed_len, row_sums};
use triad_processors::Layer;

/// Reproducible pseudorandom numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number from −1 to 1.
    pub fn float(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, count: usize, largest: f32) -> Vec<f32> {
        (0..count).map(|_| self.float() * largest).collect()
    }
}

/// A linear layer.
pub struct Plain {
    pub out_features: usize,
    pub in_features: usize,
    /// `[out_features, in_features]`.
    pub weight: Vec<i8>,
    pub scales: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    packed: Vec<i8>,
    sums: Vec<i32>,
}

impl Plain {
    pub fn new(weight: Vec<i8>, scales: Vec<f32>, bias: Option<Vec<f32>>) -> Arc<Self> {
        let (out_features, in_features) = (scales.len(), weight.len() / scales.len());
        let mut packed = vec![0; packed_len(out_features, in_features).unwrap()];
        pack(&weight, out_features, in_features, &mut packed);
        let mut sums = vec![0; out_features];
        row_sums(&weight, in_features, &mut sums);
        Arc::new(Self {
            out_features,
            in_features,
            weight,
            scales,
            bias,
            packed,
            sums,
        })
    }

    /// Returns weights over the whole INT8 range, scaled so that sums of `in_features` products stay near 1.
    pub fn random(
        random: &mut Random,
        out_features: usize,
        in_features: usize,
        bias: bool,
    ) -> Arc<Self> {
        let weight = (0..out_features * in_features)
            .map(|_| (random.float() * 127.0) as i8)
            .collect();
        let scale = 3.0 / (127.0 * (in_features as f32).sqrt());
        let scales = (0..out_features)
            .map(|_| scale * (1.5 + random.float()))
            .collect();
        let bias = bias.then(|| random.floats(out_features, 2.0));
        Self::new(weight, scales, bias)
    }

    /// Computes the layer for one row of numbers by definition. Returns each output with the magnitude that rounding is
    /// relative to.
    pub fn product(&self, values: &[i8], scale: f32) -> Vec<(f32, f32)> {
        let rows = self
            .weight
            .chunks_exact(self.in_features)
            .zip(&self.scales)
            .enumerate();
        rows.map(|(index, (weight, weight_scale))| {
            let sum: i64 = weight
                .iter()
                .zip(values)
                .map(|(weight, value)| i64::from(*weight) * i64::from(*value))
                .sum();
            let product = sum as f32 * (scale * weight_scale);
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[index]);
            (product + bias, product.abs() + bias.abs())
        })
        .collect()
    }
}

impl Layer for Plain {
    fn weight(&self) -> Int8Weight<'_> {
        Int8Weight {
            out_features: self.out_features,
            in_features: self.in_features,
            packed: &self.packed,
            scales: &self.scales,
            sums: &self.sums,
        }
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }
}

/// Quantizes `x` with a static scale.
pub fn quantized(x: &[f32], in_features: usize, scale: f32) -> QuantizedRows {
    let mut rows = QuantizedRows::default();
    rows.quantize_static(x, in_features, scale, None, false);
    rows
}

/// Returns the numbers of one row.
pub fn values(input: &QuantizedRows, row: usize) -> Vec<i8> {
    input.view().values(row).collect()
}

/// Asserts that `out`, `[rows, out_features]`, is the layer applied to the rows, up to the rounding of f32.
pub fn assert_product(out: &[f32], layer: &Plain, rows: &[Vec<i8>], scale: f32, what: &str) {
    for (row, (out, values)) in out.chunks_exact(layer.out_features).zip(rows).enumerate() {
        for (column, (out, (expected, magnitude))) in
            out.iter().zip(layer.product(values, scale)).enumerate()
        {
            let tolerance = 4.0 * f32::EPSILON * magnitude;
            assert!(
                (out - expected).abs() <= tolerance,
                "{what}: [{row}, {column}] is {out}, expected {expected}"
            );
        }
    }
}

/// Computes the activation by definition.
pub fn activation(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044_715 * x * x * x)).tanh())
        }
        Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::ReluSquared => x.max(0.0).powi(2),
    }
}
