//! Norms over rows.

use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::int8::QuantizedRows;
use triad_kernels::norm::{layer_norm, rms_norm};
use triad_model::description::{self, NormKind};

/// One norm, with the description's offset already added to its weight.
#[derive(Clone)]
pub struct Norm {
    /// Factor of every feature.
    pub weight: Vec<f32>,
    /// Bias of every feature; `Some` for every norm that subtracts the mean, zeros if it has no bias.
    pub bias: Option<Vec<f32>>,
    /// Added to the mean square or the variance.
    pub epsilon: f32,
}

impl Norm {
    /// Returns a norm whose weights are 1.
    pub(crate) fn of_ones(norm: &description::Norm, features: usize) -> Self {
        Self {
            weight: vec![1.0; features],
            bias: (norm.kind != NormKind::Rms).then(|| vec![0.0; features]),
            epsilon: norm.epsilon,
        }
    }

    /// Returns the norm on the values of a block.
    pub(crate) fn of_values(block: &description::BlockDescription) -> Option<Self> {
        let attention = block.attention()?;
        Some(Self {
            weight: vec![1.0; attention.head_dim],
            bias: None,
            epsilon: attention.value_norm?,
        })
    }

    /// Returns the bytes of factors and biases.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.weight[..]) + self.bias.as_ref().map_or(0, |bias| size_of_val(&bias[..]))
    }

    /// Computes the norm of each row of `x`, on the installed threads.
    pub(crate) fn normalize(&self, x: &[f32], out: &mut [f32]) {
        let task = QuantizedRows::TASK_ROWS * self.weight.len();
        for_each_chunk(chunks_mut(out, task), 1, |index, out| {
            self.normalize_rows(&x[index * task..][..out.len()], out);
        });
    }

    /// Returns the norm of each row of `x`.
    pub(crate) fn normalized(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        self.normalize(x, &mut out);
        out
    }

    /// Computes [`Norm::normalize`] on the calling thread.
    pub(crate) fn normalize_rows(&self, x: &[f32], out: &mut [f32]) {
        match &self.bias {
            None => rms_norm(x, &self.weight, self.epsilon, out),
            Some(bias) => layer_norm(x, &self.weight, bias, self.epsilon, out),
        }
    }
}
