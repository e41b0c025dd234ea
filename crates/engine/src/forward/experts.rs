//! Mixtures of experts: a router chooses some experts for each row. The rows of an expert are gathered, so that its
//! weights are read once for all of them, and only if a row chose it.

use std::ops::Range;

use smallvec::SmallVec;
use triad_kernels::activation::{activate, activate_and_multiply, add};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::norm::rms_norm_in_place;
use triad_kernels::{OutputMut, lock, matmul};
use triad_model::description::{ExpertGroups, Experts, GroupScore, Linear, Routing};
use triad_model::role::Role;

use super::buffers::{Chosen, ExpertBuffers};
use super::subgraphs::{Chunk, ForwardContext, MatmulContext, TASK_ROWS, activation};
use crate::error::Result;
use crate::linear::{LinearOutput, QuantizedInput, Shadows, multiply};
use crate::linear_input::LinearInput;
use crate::statistics::{Bytes, Operator};
use crate::weights::{ExpertMemory, Norm, Router};

impl ForwardContext<'_> {
    /// Computes the shared expert, if there is one, and adds the output of each row's experts in the order of their
    /// numbers, so that a row's sum does not depend on the other rows.
    ///
    /// # Errors
    /// If the linear layers fail.
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
        let mut of_branch = std::mem::take(&mut buffers.branch);
        let [routed, input, sums] = &mut of_branch;
        let (routed, input, sums) = match &router.branch {
            None => (&normed[..], &normed[..], &mut projected[..]),
            Some(branch) => {
                let x = chunk.buffers.x.read(hidden, 0..rows);
                self.normalize(&branch.router_norm, &x, routed);
                self.normalize(&branch.norm, &x, input);
                resize(sums, x.len());
                sums.fill(0.0);
                (&routed[..], &input[..], &mut sums[..])
            }
        };
        self.route(router, routed, rows, buffers);
        match &router.shared_gate {
            Some(gate) => {
                for (x, out) in normed
                    .chunks_exact(hidden)
                    .zip(sums.chunks_exact_mut(hidden))
                {
                    let factor = sigmoid(x.iter().zip(gate).map(|(x, gate)| x * gate).sum());
                    out.iter_mut().for_each(|value| *value *= factor);
                }
            }
            None if is_shared => {}
            None => sums.fill(0.0),
        }
        // The buffers of an expert are written while these are read.
        let chosen = std::mem::take(&mut buffers.chosen);
        let (memory, mut done) = (self.weights.expert_memory.as_ref(), 0);
        if let Some(memory) = memory {
            memory.chosen(index, by_expert(&chosen).map(|of| of[0].expert));
        }
        for of_expert in by_expert(&chosen) {
            let expert = of_expert[0].expert;
            if let Some(memory) = memory {
                let next = by_expert(&chosen[done..]);
                memory.compute(
                    index,
                    next.map(|of_expert| (of_expert[0].expert, of_expert.len())),
                );
                if done == 0 {
                    self.foresee(memory, index + 1, chunk, buffers);
                }
                done += of_expert.len();
            }
            gather(input, hidden, of_expert, &mut buffers.x);
            self.expert((index, expert), of_expert.len(), buffers, multiplier)?;
            let outs = buffers.out.chunks_exact(hidden);
            for (Chosen { row, weight, .. }, out) in of_expert.iter().zip(outs) {
                let sum = &mut sums[row * hidden..][..hidden];
                sum.iter_mut()
                    .zip(out)
                    .for_each(|(sum, out)| *sum += weight * out);
            }
        }
        buffers.chosen = chosen;
        if let Some(branch) = &router.branch {
            let [.., sums] = &mut of_branch;
            for (x, norm) in [
                (&mut projected[..], &branch.dense_norm),
                (sums, &branch.post_norm),
            ] {
                rms_norm_in_place(x, &norm.weight, norm.epsilon);
            }
            add(&mut projected, sums);
        }
        buffers.branch = of_branch;
        Ok(())
    }

    /// Requests the experts that the router of block `index` would choose now. Between two blocks the residual stream
    /// changes little, so that it chooses most of them when the block is reached.
    fn foresee(
        &self,
        memory: &ExpertMemory,
        index: usize,
        chunk: Chunk,
        buffers: &mut ExpertBuffers,
    ) {
        let block = self.weights.blocks.get(index);
        let router = block.and_then(|block| block.router.as_ref());
        let (Some(block), Some(router)) = (block, router) else {
            return;
        };
        let (hidden, rows) = (self.description.hidden, chunk.rows());
        if !memory.reads_ahead() || rows > FORESEEN_ROWS {
            return;
        }
        let x = chunk.buffers.x.read(hidden, 0..rows);
        let mut normed = std::mem::take(&mut buffers.foreseen);
        let of_branch = router.branch.as_ref().map(|branch| &branch.router_norm);
        match of_branch.or(block.feed_forward_norm.as_ref()) {
            Some(norm) => self.normalize(norm, &x, &mut normed),
            None => {
                normed.clear();
                normed.extend_from_slice(&x);
            }
        }
        self.route(router, &normed, rows, buffers);
        memory.foresee(index, by_expert(&buffers.chosen).map(|of| of[0].expert));
        buffers.foreseen = normed;
    }

    /// Writes a norm of rows.
    fn normalize(&self, norm: &Norm, x: &[f32], out: &mut Vec<f32>) {
        let begun = self.counters.begin();
        resize(out, x.len());
        norm.normalize(x, out);
        self.counters.end(begun, Operator::Norm, || {
            Bytes::new(size_of_val(x), size_of_val(&out[..]), norm.bytes())
        });
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
        if let Some(branch) = &router.branch {
            for chosen in &mut buffers.chosen {
                chosen.weight *= branch.factors[chosen.expert];
            }
        }
        buffers
            .chosen
            .sort_unstable_by_key(|chosen| (chosen.expert, chosen.row));
        self.counters.end(begun, Operator::Router, || {
            Bytes::new(
                size_of_val(x),
                size_of_val(&buffers.scores[..]),
                router.bytes(),
            )
        });
    }

    /// Computes one expert for `buffers.x[rows, hidden]`: writes `buffers.out[rows, hidden]`.
    ///
    /// # Errors
    /// If the linear layers fail.
    fn expert(
        &self,
        (index, expert): (usize, usize),
        rows: usize,
        buffers: &mut ExpertBuffers,
        multiplier: &mut MatmulContext,
    ) -> Result<()> {
        let (hidden, number) = (self.description.hidden, expert as u16);
        let experts = self.description.blocks[index].feed_forward.experts;
        let width = experts.map_or(0, |it| it.width);
        let ExpertBuffers {
            x,
            input,
            gate,
            up,
            out,
            ..
        } = buffers;
        resize(gate, rows * width);
        resize(up, rows * width);
        resize(out, rows * hidden);
        let (gate_layer, up_layer) = (Linear::ExpertGate(number), Linear::ExpertUp(number));
        let gated = self.description.blocks[index].feed_forward.gated;
        let of_expert = (index, LinearInput::FeedForward);
        if gated {
            let mut outs = [
                output(gate_layer, OutputMut::new(gate, width)),
                output(up_layer, OutputMut::new(up, width)),
            ];
            self.expert_layers(of_expert, (x, rows), input, &mut outs, multiplier)?;
            self.expert_activation(index, gate, up);
        } else {
            let mut outs = [output(up_layer, OutputMut::new(gate, width))];
            self.expert_layers(of_expert, (x, rows), input, &mut outs, multiplier)?;
            self.ungated_activation(index, gate);
        }
        multiplier.observe(index, LinearInput::ExpertDown, gate);
        let mut outs = [output(
            Linear::ExpertDown(number),
            OutputMut::new(out, hidden),
        )];
        let of_expert = (index, LinearInput::ExpertDown);
        self.expert_layers(of_expert, (gate, rows), input, &mut outs, multiplier)
    }

    /// Computes layers of an expert that read `x`, after quantizing it if they read INT8.
    fn expert_layers(
        &self,
        (index, input): (usize, LinearInput),
        (x, rows): (&[f32], usize),
        quantized: &mut QuantizedInput,
        outs: &mut [LinearOutput],
        multiplier: &mut MatmulContext,
    ) -> Result<()> {
        let block = self.block(index);
        quantized.quantize(block, input, (x, rows), self.phase, self.counters);
        let activations = quantized.activations(x, x.len() / rows, &(0..rows));
        let place = (index, block, Role::FeedForward);
        let (backend, shadows) = (&mut *multiplier.backend, Shadows::Inline);
        multiply(place, &activations, backend, shadows, outs, self.counters)
    }

    /// Computes the activation of up alone.
    fn ungated_activation(&self, index: usize, up: &mut [f32]) {
        let described = &self.description.blocks[index].feed_forward;
        let (begun, activation) = (self.counters.begin(), activation(described.activation));
        let width = described.experts.map_or(1, |it| it.width);
        for_each_chunk(chunks_mut(up, TASK_ROWS * width), 1, |_, up| {
            activate(up, activation);
        });
        self.counters.end(begun, Operator::Activation, || {
            let bytes = size_of_val(up);
            Bytes::new(bytes, bytes, 0)
        });
    }

    /// Writes the activation times up to `gate`.
    fn expert_activation(&self, index: usize, gate: &mut [f32], up: &[f32]) {
        let described = &self.description.blocks[index].feed_forward;
        let (begun, activation) = (self.counters.begin(), activation(described.activation));
        let (width, clamp) = described
            .experts
            .map_or((1, None), |it| (it.width, it.clamp));
        let task = TASK_ROWS * width;
        for_each_chunk(chunks_mut(gate, task), 1, |index, gate| {
            let up = &up[index * task..][..gate.len()];
            match clamp {
                Some(limit) => clamped(gate, up, limit),
                None => activate_and_multiply(gate, up, activation),
            }
        });
        self.counters.end(begun, Operator::Activation, || {
            let bytes = size_of_val(up);
            Bytes::new(2 * bytes, bytes, 0)
        });
    }
}

/// The number of groups of experts that need no allocation: that of DeepSeek-V3.
const GROUPS: usize = 8;

/// The maximum number of rows whose experts are foreseen: more of them choose most of the experts.
const FORESEEN_ROWS: usize = 4;

/// Returns the rows of each expert.
fn by_expert(chosen: &[Chosen]) -> impl Iterator<Item = &[Chosen]> {
    chosen.chunk_by(|one, other| one.expert == other.expert)
}

/// Returns all features of a layer, with their buffer.
fn output(linear: Linear, out: OutputMut) -> LinearOutput {
    LinearOutput {
        linear,
        columns: 0..out.columns(),
        out,
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
    let groups = experts.groups.map(|groups| {
        let of_group = experts.count / groups.count;
        (of_group, best_groups(groups, of_group, rank))
    });
    let is_allowed = |expert: usize| {
        let groups = groups.as_ref();
        groups.is_none_or(|(of_group, best)| best.contains(&(expert / of_group)))
    };
    let first = chosen.len();
    for _ in 0..experts.used {
        let is_left = |expert: &usize| chosen[first..].iter().all(|one| one.expert != *expert);
        let left = (0..experts.count).filter(|expert| is_allowed(*expert) && is_left(expert));
        let Some(expert) = best(left, rank) else {
            break;
        };
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

/// Returns the one of the highest rank; of equal ones the first.
fn best(all: impl DoubleEndedIterator<Item = usize>, rank: impl Fn(usize) -> f32) -> Option<usize> {
    // `max_by` returns the last of equal ones.
    all.rev()
        .max_by(|one, other| rank(*one).total_cmp(&rank(*other)))
}

/// Returns the groups of experts from which a row's experts come.
fn best_groups(
    groups: ExpertGroups,
    of_group: usize,
    rank: impl Fn(usize) -> f32,
) -> SmallVec<[usize; GROUPS]> {
    let score = |group: usize| {
        let members = group * of_group..(group + 1) * of_group;
        let first = best(members.clone(), &rank).unwrap_or(members.start);
        match groups.score {
            GroupScore::Best => rank(first),
            GroupScore::BestTwo => {
                let second = best(members.filter(|it| *it != first), &rank);
                rank(first) + second.map_or(0.0, &rank)
            }
        }
    };
    let scores: SmallVec<[f32; GROUPS]> = (0..groups.count).map(score).collect();
    let mut chosen = SmallVec::new();
    for _ in 0..groups.used {
        let left = (0..groups.count).filter(|group| !chosen.contains(group));
        chosen.extend(best(left, |group| scores[group]));
    }
    chosen
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
        branch: false,
        groups: None,
    };

    #[test]
    fn experts_come_from_the_groups_with_the_best_scores() {
        let groups = |score| Experts {
            routing: Routing::Sigmoid,
            groups: Some(ExpertGroups {
                count: 2,
                used: 1,
                score,
            }),
            ..EXPERTS
        };
        // The best expert is in the first group, the better two are in the second.
        let outputs = [3.0, -3.0, 2.0, 1.0];
        let numbers = |score| {
            let chosen = chosen(groups(score), None, outputs);
            chosen.iter().map(|(expert, _)| *expert).collect::<Vec<_>>()
        };
        assert_eq!(numbers(GroupScore::Best), [0, 1]);
        assert_eq!(numbers(GroupScore::BestTwo), [2, 3]);
        // The summands count for groups, too, but not for weights.
        let corrected = chosen(
            groups(GroupScore::Best),
            Some(&[0.0, 0.0, 1.0, 0.0]),
            outputs,
        );
        assert_eq!(corrected[0], (2, sigmoid(2.0)));
    }

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
