//! Predicts the time of a prompt and a token: the sum of the kernels' times over the operators of the forward pass.

use serde::Serialize;
use triad_kernels::attention::Precision;
use triad_model::description::{BlockDescription, ModelDescription};

use super::forms::{Group, Numbers, Product, WeightFormat, groups};
use super::rates::Rates;
use crate::commands::bench::limit::seen;

/// Seconds of each part of the computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    /// Linear layers, without outlier corrections.
    pub linear: f64,
    /// Shadows: the correction of outliers in the linear layers.
    pub shadows: f64,
    pub attention: f64,
    /// Norms, residuals, RoPE, activation, quantization; the operators of mixers other than attention.
    pub between: f64,
    /// Logits of one token.
    pub output: f64,
}

impl Parts {
    pub fn total(&self) -> f64 {
        let Self {
            linear,
            shadows,
            attention,
            between,
            output,
        } = self;
        linear + shadows + attention + between + output
    }
}

/// A predictor for one model on this machine's CPU.
pub struct Predictor<'a> {
    pub description: &'a ModelDescription,
    pub rates: Rates,
    /// Tokens of a chunk.
    pub chunk: usize,
}

impl Predictor<'_> {
    /// Predicts a prompt of `tokens` tokens, up to the logits of its last token.
    pub fn prefill(&mut self, form: &WeightFormat, tokens: usize) -> Parts {
        let mut parts = Parts {
            output: self.output(form),
            ..Parts::default()
        };
        for block in &self.description.blocks {
            for first in (0..tokens).step_by(self.chunk.max(1)) {
                let rows = self.chunk.min(tokens - first);
                self.add_chunk(form, block, first, rows, &mut parts);
            }
        }
        parts
    }

    fn add_chunk(
        &mut self,
        form: &WeightFormat,
        block: &BlockDescription,
        first: usize,
        rows: usize,
        parts: &mut Parts,
    ) {
        let hidden = self.description.hidden;
        for (group, shadows) in groups(block, hidden).iter().zip(form.shadows) {
            parts.linear += self.rates.products(form.prefill, group).at(rows as f64);
            parts.shadows += shadows.0 * self.rates.shadow(group, shadows.1, false).at(rows as f64);
        }
        if let Some(attention) = block.attention() {
            let attention = self.rates.attention(attention, form.precision());
            let positions: usize = (first + 1..=first + rows)
                .map(|position| seen(block, position))
                .sum();
            parts.attention += attention.fixed * rows as f64 + attention.each * positions as f64;
        }
        parts.between += self
            .rates
            .between(block, hidden, form.prefill == Product::W8a8)
            .at(rows as f64);
    }

    /// Predicts one decode step of one sequence with `context` tokens in the KV cache.
    pub fn decode(&mut self, form: &WeightFormat, context: usize) -> Parts {
        let hidden = self.description.hidden;
        let mut parts = Parts {
            output: self.output(form),
            ..Parts::default()
        };
        for block in &self.description.blocks {
            let step = self.rates.step(form.decode, block, hidden);
            parts.linear += step.products.iter().sum::<f64>();
            parts.between += step.between;
            if form.decode == Product::W8a8 {
                for (group, (share, outliers)) in groups(block, hidden).iter().zip(form.shadows) {
                    parts.shadows += share * self.rates.shadow(group, outliers, true).at(1.0);
                }
            }
            if let Some(attention) = block.attention() {
                let attention = self.rates.attention_step(attention, form.precision());
                parts.attention += attention.at(seen(block, context + 1) as f64);
            }
        }
        parts
    }

    fn output(&mut self, form: &WeightFormat) -> f64 {
        let group = Group {
            in_features: self.description.hidden,
            out_features: vec![self.description.vocab],
        };
        self.rates.output(Product::Weights(form.output), &group)
    }
}

impl WeightFormat {
    /// Returns the precision of attention. Where linear layers round their inputs, attention may round too.
    fn precision(&self) -> Precision {
        match self.prefill {
            Product::W8a8 | Product::Weights(Numbers::Int4 | Numbers::Blocks(_)) => Precision::Fast,
            Product::Weights(_) => Precision::Exact,
        }
    }

    /// Returns the bytes of weights that a decode step reads.
    pub fn bytes_per_token(&self, description: &ModelDescription) -> usize {
        let linears = description
            .blocks
            .iter()
            .flat_map(|block| block.linears(description.hidden));
        let linears: usize = linears
            .map(|shape| self.decode.bytes(shape.in_features, shape.out_features))
            .sum();
        linears + Product::Weights(self.output).bytes(description.hidden, description.vocab)
    }
}
