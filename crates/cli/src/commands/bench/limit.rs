//! The limit of this machine: lower bounds of the times of all programs that use these number formats.

use serde::Serialize;
use triad_engine::{KvFormat, Model};
use triad_kernels::peak;
use triad_model::description::{BlockDescription, ModelDescription};
use triad_processors::Peaks;

use triad_console::arithmetic::Arithmetic;
use triad_console::measure::{Measurement, Test};

/// The peaks of a number of threads, or of a GPU.
#[derive(Clone, Serialize)]
pub struct Limit {
    /// The GPU, as its driver describes it. Operations that it does not compute in INT8 are in f32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    #[serde(flatten)]
    pub arithmetic: Arithmetic,
    pub bytes_read_per_second: f64,
}

impl Limit {
    /// Measures the peaks of the CPU. Bandwidth is measured by reading `bytes` bytes repeatedly: as many as a decode
    /// step reads, part of which may stay in a cache.
    pub fn measure(threads: usize, bytes: usize) -> Self {
        Self {
            processor: None,
            arithmetic: Arithmetic::measure(threads),
            bytes_read_per_second: peak::bytes_read_per_second(threads, bytes.min(peak::MEMORY)),
        }
    }

    /// Returns the higher of both peaks, for each peak.
    pub fn max(self, other: &Self) -> Self {
        Self {
            processor: self.processor,
            arithmetic: self.arithmetic.max(other.arithmetic),
            bytes_read_per_second: self.bytes_read_per_second.max(other.bytes_read_per_second),
        }
    }

    /// Returns the limit of a GPU. `threads` CPU threads drive it.
    pub fn of_gpu(peaks: Peaks, threads: usize) -> Self {
        let arithmetic = Arithmetic {
            threads,
            int8_operations_per_second: Some(peaks.int8_operations_per_second),
            int16_operations_per_second: None,
            bf16_operations_per_second: None,
            f32_operations_per_second: peaks.f32_operations_per_second,
        };
        Self {
            processor: Some(peaks.processor),
            arithmetic,
            bytes_read_per_second: peaks.bytes_read_per_second,
        }
    }

    /// Returns the least time that this test can take; `None` where the limit is not known.
    pub fn seconds(
        &self,
        measured: &Measurement,
        model: &Model,
        kv_format: KvFormat,
    ) -> Option<f64> {
        match measured.test {
            Test::Prefill => self.prefill_seconds(model, measured.tokens),
            Test::Decode => {
                let weights = model.weights().bytes_per_token() * measured.tokens;
                let cache = cache_bytes(
                    model.description(),
                    measured.tokens,
                    measured.context,
                    kv_format,
                );
                // Each step reads every weight once, and the keys and values of each sequence so far.
                let reading =
                    (weights + measured.sequences * cache) as f64 / self.bytes_read_per_second;
                let rows = measured.tokens * measured.sequences;
                let linear = rows as f64 * Operations::of_prefill(model.description(), 1).linear;
                // A CPU multiplies INT8 and INT4 weights in INT16, which is no faster than INT8.
                let weights = model.weights();
                let is_integer = match self.processor {
                    Some(_) => weights.is_int8(),
                    None => weights.rounds_activations(),
                };
                let peak = if is_integer {
                    self.arithmetic.int8_operations_per_second
                } else {
                    None
                };
                let multiplying =
                    linear / peak.unwrap_or(self.arithmetic.f32_operations_per_second);
                // Where the peak of these numbers is not known, only the reads count: arithmetic never limits a single
                // row.
                Some(if is_integer && peak.is_none() {
                    reading
                } else {
                    reading.max(multiplying)
                })
            }
        }
    }

    /// Returns the time of linear layers and attention at the peaks of their number formats.
    fn prefill_seconds(&self, model: &Model, tokens: usize) -> Option<f64> {
        let operations = Operations::of_prefill(model.description(), tokens);
        let f32 = self.arithmetic.f32_operations_per_second;
        let rounded = self.arithmetic.rounded_operations_per_second();
        let (linear, attention) = if model.weights().is_int8() {
            (self.arithmetic.int8_operations_per_second?, rounded)
        } else if model.weights().rounds_activations() {
            (rounded, rounded)
        } else {
            (f32, f32)
        };
        Some(operations.linear / linear + operations.attention / attention)
    }
}

/// Returns the bytes of keys and values that `tokens` tokens after `context` others read.
pub fn cache_bytes(
    description: &ModelDescription,
    tokens: usize,
    context: usize,
    format: KvFormat,
) -> usize {
    let positions = (1..=tokens).map(|position| context + position);
    let of_block = |block: &BlockDescription| {
        let row = block.attention().map_or(0, |attention| {
            2 * attention.kv_heads * format.bytes(attention.head_dim)
        });
        row * positions
            .clone()
            .map(|position| seen(block, position))
            .sum::<usize>()
    };
    description.blocks.iter().map(of_block).sum()
}

/// Returns the positions that the token at `position`, counted from 1, attends to: none without attention.
pub fn seen(block: &BlockDescription, position: usize) -> usize {
    match block.attention() {
        Some(attention) => attention
            .window
            .map_or(position, |window| window.min(position)),
        None => 0,
    }
}

/// Multiplications and additions of a prompt.
#[derive(Debug, PartialEq)]
pub struct Operations {
    /// Linear layers, and the logits of one token.
    pub linear: f64,
    /// Query · key and score · value over the positions that each token attends to.
    pub attention: f64,
}

impl Operations {
    pub fn of_prefill(description: &ModelDescription, tokens: usize) -> Self {
        let weights = |block: &BlockDescription| -> usize {
            block
                .linears(description.hidden)
                .iter()
                .map(|linear| linear.out_features * linear.in_features)
                .sum()
        };
        let weights: usize = description.blocks.iter().map(weights).sum();
        let attention = |block: &BlockDescription| {
            let seen: usize = (1..=tokens).map(|position| seen(block, position)).sum();
            4.0 * block.mixer.width() as f64 * seen as f64
        };
        Self {
            linear: 2.0
                * (weights as f64 * tokens as f64
                    + (description.vocab * description.hidden) as f64),
            attention: description.blocks.iter().map(attention).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_of_a_prefill_are_two_a_weight_and_token_and_attention() {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        // 106,168,320 weights in linear layers, 28,311,552 in the output matrix; heads are 576 wide together, in 30
        // blocks.
        let expected = Operations {
            linear: 2.0 * (106_168_320.0 * 2.0 + 28_311_552.0),
            attention: 4.0 * 576.0 * 30.0 * 3.0,
        };
        assert_eq!(Operations::of_prefill(&description, 2), expected);
    }

    #[test]
    fn decode_reads_the_keys_and_values_of_every_position_so_far() {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        // Three heads of 64 in 30 blocks; keys and values of two bytes; 65 and 66 positions.
        assert_eq!(
            cache_bytes(&description, 2, 64, KvFormat::F16),
            30 * 2 * 3 * 64 * 2 * (65 + 66)
        );
        // One byte for each value, and a scale of four bytes for each key and value.
        assert_eq!(
            cache_bytes(&description, 2, 64, KvFormat::Int8),
            30 * 2 * 3 * 68 * (65 + 66)
        );
    }
}
