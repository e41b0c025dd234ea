//! Prints measurements: as JSON, whose form later versions keep, or as a table.

use anyhow::Result;
use serde::Serialize;
use triad_kernels::peak;
use triad_model::description::ModelDescription;

use super::measure::{Measurement, Test};
use crate::output;

/// All that was measured. Serialized, it is what `bench --json` prints.
#[derive(Serialize)]
pub struct Report {
    pub model: String,
    pub results: Vec<Measurement>,
    pub load_seconds: f64,
    pub peak_resident_bytes: Option<u64>,
}

impl Report {
    /// Prints a table for people, with the f32 peak of the machine for each of `threads`.
    pub fn print(&self, description: &ModelDescription, threads: &[usize]) -> Result<()> {
        let peaks: Vec<_> = threads.iter().map(|count| (*count, peak::f32_operations_per_second(*count))).collect();
        let peak =
            |threads: usize| peaks.iter().find(|(count, _)| *count == threads).map_or(f64::NAN, |(_, peak)| *peak);
        let mut lines = vec![
            format!(
                "{}: {} parameters, loaded in {:.2} s",
                self.model,
                output::count(description.parameters()),
                self.load_seconds
            ),
            format!(
                "{:>7}  {:7}  {:>6}  {:>10}  {:>10}  {:>10}  {:>11}",
                "threads", "test", "tokens", "min tok/s", "median", "max", "of f32 peak"
            ),
        ];
        for Measurement { threads, test, tokens, tokens_per_second: rate } in &self.results {
            let share = match test {
                Test::Prefill => {
                    let per_token = prefill_operations(description, *tokens) / *tokens as f64;
                    format!("{:.0} %", 100.0 * rate.median * per_token / peak(*threads))
                }
                Test::Decode => "-".into(),
            };
            let test = match test {
                Test::Prefill => "prefill",
                Test::Decode => "decode",
            };
            lines.push(format!(
                "{threads:>7}  {test:7}  {tokens:>6}  {:>10.1}  {:>10.1}  {:>10.1}  {share:>11}",
                rate.min, rate.median, rate.max
            ));
        }
        for (threads, peak) in &peaks {
            lines.push(format!(
                "f32 peak on {threads} threads: {:.1} Gop/s (a fused multiply-add counts two)",
                peak / 1e9
            ));
        }
        lines.push(format!("peak memory {}", output::known_bytes(self.peak_resident_bytes)));
        output::text(&lines.join("\n"))
    }
}

/// Multiplications and additions of a prefill of `tokens` tokens: linear layers, query · key and score ·
/// value over the positions that each token sees, and the logits of the last one.
fn prefill_operations(description: &ModelDescription, tokens: usize) -> f64 {
    let block = |block: &triad_model::description::BlockDescription| {
        let weights: usize =
            block.linears(description.hidden).iter().map(|linear| linear.out_features * linear.in_features).sum();
        let attention = &block.attention;
        let seen: usize =
            (1..=tokens).map(|position| attention.window.map_or(position, |window| window.min(position))).sum();
        2.0 * weights as f64 * tokens as f64 + 4.0 * (attention.heads * attention.head_dim) as f64 * seen as f64
    };
    description.blocks.iter().map(block).sum::<f64>() + 2.0 * (description.vocab * description.hidden) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_of_a_prefill_are_two_a_weight_and_token_and_attention() {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        // 106,168,320 weights in linear layers, 28,311,552 in the output matrix, 576 wide heads in 30 blocks.
        let expected = 2.0 * (106_168_320.0 * 2.0 + 28_311_552.0) + 4.0 * 576.0 * 30.0 * 3.0;
        assert_eq!(prefill_operations(&description, 2), expected);
    }
}
