//! Mixtures of experts: a router chooses some experts for each row. The rows of an expert are gathered, so that its
//! weights are read once for all of them, and only if a row chose it.

use std::ops::Range;

use triad_kernels::activation::activate_and_multiply;
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::{OutputMut, Product, lock, matmul, matmul_each};
use triad_model::description::{Experts, Linear, Routing};

use super::buffers::{Chosen, ExpertBuffers};
use super::subgraphs::{Chunk, ForwardContext, MatmulContext, TASK_ROWS, activation};
use crate::error::Result;
use crate::statistics::{Bytes, Operator};
use crate::weights::{Router, Weight, WeightMatrix};

impl ForwardContext<'_> {
    /// Computes the shared expert, if there is one, and adds the output of each row's experts in the order of their
    /// numbers, so that a row's sum does not depend on the other rows.
    ///
    /// # Errors
    /// If the linear layers of the shared expert fail.
    pub(super) fn experts(
        &self,
        index: usize,
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) -> Result<()> {
        let (block, hidden, rows) = (self.block(index), self.description.hidden, chunk.rows());
        let router = block.router.as_ref().expect("a block with experts");
        let is_shared = self.description.blocks[index].feed_forward.width > 0;
        if is_shared {
            self.dense(index, chunk, multiplier)?;
        }
        let buffers = &mut *lock(&chunk.buffers.experts);
        let normed = chunk.buffers.normed.read(hidden, 0..rows);
        let mut projected = chunk.buffers.projected.write(hidden, 0..rows);
        self.route(router, &normed, rows, buffers);
        match &router.shared_gate {
            Some(gate) => {
                for (x, out) in normed
                    .chunks_exact(hidden)
                    .zip(projected.chunks_exact_mut(hidden))
                {
                    let factor = sigmoid(x.iter().zip(gate).map(|(x, gate)| x * gate).sum());
                    out.iter_mut().for_each(|value| *value *= factor);
                }
            }
            None if is_shared => {}
            None => projected.fill(0.0),
        }
        let chosen = std::mem::take(&mut buffers.chosen);
        for of_expert in chosen.chunk_by(|one, other| one.expert == other.expert) {
            let expert = of_expert[0].expert;
            gather(&normed, hidden, of_expert, &mut buffers.x);
            self.expert((index, expert), of_expert.len(), buffers);
            let outs = buffers.out.chunks_exact(hidden);
            for (Chosen { row, weight, .. }, out) in of_expert.iter().zip(outs) {
                let sum = &mut projected[row * hidden..][..hidden];
                sum.iter_mut()
                    .zip(out)
                    .for_each(|(sum, out)| *sum += weight * out);
            }
        }
        buffers.chosen = chosen;
        Ok(())
    }

    /// Computes the scores of all experts for `x[rows, hidden]`, and chooses.
    fn route(&self, router: &Router, x: &[f32], rows: usize, buffers: &mut ExpertBuffers) {
        let (begun, count) = (self.counters.begin(), router.experts.count);
        resize(&mut buffers.scores, rows * count);
        let out = OutputMut::new(&mut buffers.scores, count);
        matmul(
            x,
            router.weight.view(),
            router.bias.as_deref(),
            self.phase,
            out,
        );
        buffers.chosen.clear();
        for (row, scores) in buffers.scores.chunks_exact_mut(count).enumerate() {
            choose(
                &router.experts,
                router.correction.as_deref(),
                (row, scores),
                &mut buffers.chosen,
            );
        }
        buffers
            .chosen
            .sort_unstable_by_key(|chosen| (chosen.expert, chosen.row));
        self.counters.end(begun, Operator::Router, || {
            Bytes::of(
                size_of_val(x),
                size_of_val(&buffers.scores[..]),
                router.bytes(),
            )
        });
    }

    /// Computes one expert for `buffers.x[rows, hidden]`: writes `buffers.out[rows, hidden]`.
    fn expert(&self, (index, expert): (usize, usize), rows: usize, buffers: &mut ExpertBuffers) {
        let described = &self.description.blocks[index].feed_forward;
        let (begun, hidden) = (self.counters.begin(), self.description.hidden);
        let (width, clamp) = described
            .experts
            .map_or((0, None), |it| (it.width, it.clamp));
        let ExpertBuffers {
            x, gate, up, out, ..
        } = buffers;
        resize(gate, rows * width);
        resize(up, rows * width);
        resize(out, rows * hidden);
        let number = expert as u16;
        let layers = [
            Linear::ExpertGate(number),
            Linear::ExpertUp(number),
            Linear::ExpertDown(number),
        ]
        .map(|linear| self.expert_layer(index, linear));
        let [gate_layer, up_layer, down_layer] = layers;
        let mut products = [
            Product::new(
                gate_layer.0.view(),
                gate_layer.1,
                OutputMut::new(gate, width),
            ),
            Product::new(up_layer.0.view(), up_layer.1, OutputMut::new(up, width)),
        ];
        matmul_each(x, rows, self.phase, &mut products);
        let (task, activation) = (TASK_ROWS * width, activation(described.activation));
        for_each_chunk(chunks_mut(gate, task), 1, |index, gate| {
            let up = &up[index * task..][..gate.len()];
            match clamp {
                Some(limit) => clamped(gate, up, limit),
                None => activate_and_multiply(gate, up, activation),
            }
        });
        matmul(
            gate,
            down_layer.0.view(),
            down_layer.1,
            self.phase,
            OutputMut::new(out, hidden),
        );
        self.counters.end(begun, Operator::Experts, || {
            let inner = size_of_val(&gate[..]) + size_of_val(&up[..]);
            Bytes::of(
                size_of_val(&x[..]) + inner,
                inner + size_of_val(&out[..]),
                layers.iter().map(|(weight, _)| weight.bytes()).sum(),
            )
        });
    }

    /// Returns the weight and the bias of a layer of an expert.
    fn expert_layer(&self, index: usize, linear: Linear) -> (&WeightMatrix, Option<&[f32]>) {
        let layer = &self.block(index).linears[&linear];
        match &layer.weight {
            Weight::Float(weight) => (weight, layer.bias.as_deref()),
            Weight::Int8(_) => unreachable!("experts read floats"),
        }
    }
}

/// Appends the experts of a row. `scores` are the router's outputs; of equal scores the expert of the lower number is
/// chosen.
fn choose(
    experts: &Experts,
    correction: Option<&[f32]>,
    (row, scores): (usize, &mut [f32]),
    chosen: &mut Vec<Chosen>,
) {
    match experts.routing {
        Routing::Softmax => softmax(scores),
        Routing::Sigmoid => scores.iter_mut().for_each(|score| *score = sigmoid(*score)),
    }
    let rank = |expert: usize| scores[expert] + correction.map_or(0.0, |it| it[expert]);
    let first = chosen.len();
    for _ in 0..experts.used {
        let is_left = |expert: &usize| chosen[first..].iter().all(|one| one.expert != *expert);
        let left = (0..experts.count).filter(is_left);
        // `max_by` returns the last of equal experts.
        let best = left
            .rev()
            .max_by(|one, other| rank(*one).total_cmp(&rank(*other)));
        let Some(expert) = best else { break };
        chosen.push(Chosen {
            expert,
            row,
            weight: scores[expert],
        });
    }
    let chosen = &mut chosen[first..];
    let sum: f32 = chosen.iter().map(|one| one.weight).sum();
    let sum = (sum + experts.sum_offset).max(experts.sum_floor);
    let divisor = if experts.normalized { sum } else { 1.0 };
    for one in chosen {
        one.weight = one.weight / divisor * experts.scale;
    }
}

/// Computes the activation of gpt-oss: writes `(up + 1) · gate · sigmoid(1.702 · gate)` to `gate`, of numbers within
/// `limit`.
fn clamped(gate: &mut [f32], up: &[f32], limit: f32) {
    for (gate, up) in gate.iter_mut().zip(up) {
        // `f32::min` would turn a NaN into a number.
        let bounded = if *gate > limit { limit } else { *gate };
        let up = up.clamp(-limit, limit);
        *gate = (up + 1.0) * bounded * sigmoid(1.702 * bounded);
    }
}

fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores
        .iter_mut()
        .for_each(|score| *score = (*score - largest).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Copies the rows of an expert out of `x[rows, hidden]`.
fn gather(x: &[f32], hidden: usize, rows: &[Chosen], out: &mut Vec<f32>) {
    out.clear();
    for Chosen { row, .. } in rows {
        let row: Range<usize> = row * hidden..(row + 1) * hidden;
        out.extend_from_slice(&x[row]);
    }
}

/// Changes the length of a buffer whose content is overwritten.
fn resize(buffer: &mut Vec<f32>, length: usize) {
    buffer.resize(length, 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERTS: Experts = Experts {
        count: 4,
        used: 2,
        width: 8,
        routing: Routing::Softmax,
        normalized: false,
        sum_offset: 0.0,
        sum_floor: 0.0,
        scale: 1.0,
        correction: false,
        bias: false,
        clamp: None,
        shared_gate: false,
    };

    fn chosen(
        experts: Experts,
        correction: Option<&[f32]>,
        outputs: [f32; 4],
    ) -> Vec<(usize, f32)> {
        let (mut scores, mut chosen) = (outputs, Vec::new());
        choose(&experts, correction, (0, &mut scores), &mut chosen);
        chosen.iter().map(|one| (one.expert, one.weight)).collect()
    }

    #[test]
    fn a_row_takes_its_highest_scores_and_the_lower_number_of_equal_ones() {
        let logs = [1f32, 4.0, 4.0, 1.0].map(f32::ln);
        let close = |found: &[(usize, f32)], expected: [(usize, f32); 2]| {
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(found.0, expected.0);
                assert!(
                    (found.1 - expected.1).abs() < 1e-6,
                    "{found:?} {expected:?}"
                );
            }
            assert_eq!(found.len(), 2);
        };
        close(&chosen(EXPERTS, None, logs), [(1, 0.4), (2, 0.4)]);
        let normalized = Experts {
            normalized: true,
            scale: 3.0,
            ..EXPERTS
        };
        close(&chosen(normalized, None, logs), [(1, 1.5), (2, 1.5)]);
        close(&chosen(EXPERTS, None, [0.0; 4]), [(0, 0.25), (1, 0.25)]);
    }

    #[test]
    fn a_correction_changes_the_choice_and_not_the_weights() {
        let sigmoid = Experts {
            routing: Routing::Sigmoid,
            ..EXPERTS
        };
        let correction = [0.0, 0.0, 0.0, 2.0];
        let found = chosen(sigmoid, Some(&correction), [0.0, 1.0, -1.0, -1.0]);
        assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), [3, 1]);
        assert!((found[0].1 - 0.268_941_4).abs() < 1e-6);
    }

    #[test]
    fn weights_are_divided_by_their_sum_with_its_summand_and_lower_bound() {
        let normalized = Experts {
            routing: Routing::Sigmoid,
            normalized: true,
            ..EXPERTS
        };
        let first = |experts: Experts, output: f32| chosen(experts, None, [output; 4])[0].1;
        let offset = Experts {
            sum_offset: 0.5,
            ..normalized
        };
        assert!((first(offset, 0.0) - 0.5 / 1.5).abs() < 1e-6);
        let floor = Experts {
            sum_floor: 4.0,
            ..normalized
        };
        assert!((first(floor, 0.0) - 0.5 / 4.0).abs() < 1e-6);
        // Scores may all be 0: the sum of LFM2 is not.
        let offset = Experts {
            sum_offset: 1e-6,
            ..normalized
        };
        assert_eq!(first(offset, -1e4), 0.0);
    }

    #[test]
    fn scores_that_are_no_numbers_choose_the_demanded_number_of_experts() {
        assert_eq!(chosen(EXPERTS, None, [f32::NAN; 4]).len(), 2);
    }
}
