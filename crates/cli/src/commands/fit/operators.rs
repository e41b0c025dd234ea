//! The operators of a block, run on synthetic numbers and timed.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use half::f16;
use triad_engine::forward::{delta_net_kernel, mamba2_kernel};
use triad_engine::weights::MixerWeights;
use triad_kernels::activation::{Activation, activate, activate_and_multiply, add};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::int8::{Int8Product, Int8Weight, QuantizedRows, matmul_int8_each, packed_len};
use triad_kernels::mixer::{ShortConv, scratch_rows};
use triad_kernels::norm::{layer_norm, rms_norm, rms_norm_in_place};
use triad_kernels::rope::{Angles, Pairing, rope};
use triad_kernels::{OutputMut, Phase, Product as Multiplied, matmul_each, narrow_f16};
use triad_model::description::{self, Attention, BlockDescription, Mixer, MixerWeight, NormKind};

use super::arena::Arena;
use super::forms::{Group, Product};

/// Approximate operations of one run. Of a larger matrix, only some of the columns are measured.
pub const OPERATIONS: usize = 600_000_000;
/// Approximate bytes of weights that one run of decode reads.
const BYTES: usize = 8 << 20;
/// The number of out features of a measured part is a multiple of this.
const COLUMNS: usize = 64;
/// Sizes of the tasks of elementwise operators, as in the engine's subgraphs.
const TASK_ROWS: usize = 16;
const TASK_NUMBERS: usize = 1 << 14;
const EPSILON: f32 = 1e-5;

/// The linear layers of one group. Each run takes other weights from the arena.
pub struct Prepared {
    product: Product,
    /// The measured part of the group, and its share of the whole.
    part: Group,
    share: f64,
    rows: usize,
    phase: Phase,
    x: Vec<f32>,
    quantized: QuantizedRows,
    outs: Vec<Vec<f32>>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl Prepared {
    pub fn new(product: Product, group: &Group, rows: usize, phase: Phase) -> Self {
        let (part, share) = match phase {
            Phase::Prefill => part(group, OPERATIONS / (2 * rows)),
            Phase::Decode => part(
                group,
                group.weights() * BYTES / of_group(product, group).max(1),
            ),
        };
        let widest = part.out_features.iter().copied().max().unwrap_or(0);
        Self {
            product,
            share,
            rows,
            phase,
            x: numbers(rows * part.in_features),
            quantized: QuantizedRows::default(),
            outs: part
                .out_features
                .iter()
                .map(|columns| vec![0.0; rows * columns])
                .collect(),
            scales: vec![0.01; widest],
            sums: vec![0; widest],
            part,
        }
    }

    /// Runs the measured part, and returns the seconds of the whole group.
    pub fn run(&mut self, arena: &mut Arena) -> f64 {
        let Self {
            product,
            part,
            rows,
            phase,
            x,
            quantized,
            outs,
            scales,
            sums,
            ..
        } = self;
        let (in_features, columns) = (part.in_features, &part.out_features);
        // In a run, the operator before has just written the input on this thread.
        x.iter_mut().for_each(|x| *x = -*x);
        let seconds = if let Product::Weights(format) = *product {
            let weights: Vec<_> = columns
                .iter()
                .map(|columns| arena.matrix(format, columns * in_features))
                .collect();
            let each = columns.iter().zip(&mut *outs).zip(&weights);
            let mut products: Vec<_> = each
                .map(|((columns, out), weight)| {
                    let weight = arena.view(format, weight, &scales[..*columns]);
                    Multiplied::new(weight, None, OutputMut::new(out, *columns))
                })
                .collect();
            seconds_of(|| matmul_each(x, *rows, *phase, &mut products))
        } else {
            quantized.quantize_static(x, in_features, 1.0 / 127.0, None, false);
            let lengths = columns
                .iter()
                .map(|columns| packed_len(*columns, in_features).unwrap_or(0));
            let packed: Vec<_> = lengths.map(|length| arena.take(length)).collect();
            let each = columns.iter().zip(&mut *outs).zip(&packed);
            let mut products: Vec<_> = each
                .map(|((columns, out), packed)| {
                    let weight = int8_weight(arena, packed, part, *columns, scales, sums);
                    Int8Product::new(weight, None, OutputMut::new(out, *columns))
                })
                .collect();
            seconds_of(|| matmul_int8_each(quantized.view(), &mut products))
        };
        // In a run, the next operator reads the output on this thread.
        black_box(outs.iter().flatten().sum::<f32>());
        seconds / self.share
    }
}

pub fn int8_weight<'a>(
    arena: &'a Arena,
    packed: &Range<usize>,
    group: &Group,
    columns: usize,
    scales: &'a [f32],
    sums: &'a [i32],
) -> Int8Weight<'a> {
    Int8Weight {
        out_features: columns,
        in_features: group.in_features,
        packed: bytemuck::cast_slice(arena.bytes(packed)),
        scales: &scales[..columns],
        sums: &sums[..columns],
    }
}

/// Returns the bytes of a group's weights.
fn of_group(product: Product, group: &Group) -> usize {
    group
        .out_features
        .iter()
        .map(|columns| product.bytes(group.in_features, *columns))
        .sum()
}

/// Returns a group with as many columns of every layer as make about `weights` weights, and its share of the whole
/// group. If the group has no more weights, it is returned whole.
pub fn part(group: &Group, weights: usize) -> (Group, f64) {
    let share = weights as f64 / group.weights() as f64;
    if share >= 1.0 {
        return (group.clone(), 1.0);
    }
    let fewer = |columns: &usize| {
        ((*columns as f64 * share) as usize)
            .next_multiple_of(COLUMNS)
            .min(*columns)
    };
    let part = Group {
        in_features: group.in_features,
        out_features: group.out_features.iter().map(fewer).collect(),
    };
    let share = part.weights() as f64 / group.weights() as f64;
    (part, share)
}

/// The operators between the linear layers of a block, for some rows.
pub struct Between<'a> {
    block: &'a BlockDescription,
    hidden: usize,
    int8: bool,
    x: Vec<f32>,
    projected: Vec<f32>,
    normed: Vec<f32>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    /// Inputs, state, weights and intermediate values of a mixer with a state.
    mixed: Vec<f32>,
    state: Vec<f32>,
    weights: MixerWeights,
    scratch: Vec<f32>,
    attended: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    cached: Vec<f16>,
    angles: Angles,
    quantized: QuantizedRows,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl<'a> Between<'a> {
    pub fn new(block: &'a BlockDescription, hidden: usize, int8: bool, rows: usize) -> Self {
        let attention = block.attention();
        let heads = |of: fn(&Attention) -> usize| attention.map_or(0, of);
        let query = heads(|attention| attention.heads * attention.head_dim);
        let key_value = heads(|attention| attention.kv_heads * attention.head_dim);
        let width = block.feed_forward.width;
        let size = block.mixer.state();
        let weights = block.mixer.weights().into_iter();
        let mut weights: MixerWeights = weights
            .map(|(weight, shape)| (weight, numbers(shape.iter().product())))
            .collect();
        if let Some(decay) = weights.get_mut(&MixerWeight::Decay) {
            decay.fill(-1.0);
        }
        let scratch = match &block.mixer {
            Mixer::DeltaNet(net) => {
                let shape = delta_net_kernel(net, &weights).shape();
                scratch_rows(rows) * shape.scratch_len()
            }
            Mixer::Mamba2(mamba) => {
                let shape = mamba2_kernel(mamba, &weights).shape();
                scratch_rows(rows) * shape.scratch_len()
            }
            Mixer::Attention(_) | Mixer::ShortConv(_) => 0,
        };
        let frequencies: Vec<_> = (0..heads(|attention| attention.rope.dims) / 2)
            .map(|pair| 1.0 / (pair + 1) as f32)
            .collect();
        let mut angles = Angles::default();
        angles.fill(0..rows, &frequencies, 1.0);
        Self {
            block,
            hidden,
            int8,
            x: numbers(rows * hidden),
            projected: numbers(rows * hidden),
            normed: vec![0.0; rows * hidden],
            queries: numbers(rows * query),
            keys: numbers(rows * key_value),
            mixed: numbers(size.map_or(0, |size| rows * size.row)),
            state: numbers(size.map_or(0, |size| size.state)),
            weights,
            scratch: numbers(scratch),
            attended: numbers(rows * block.mixer.width()),
            gate: numbers(rows * width),
            up: numbers(rows * width),
            cached: vec![f16::ZERO; rows * key_value],
            angles,
            quantized: QuantizedRows::default(),
            weight: vec![1.0; hidden.max(heads(|attention| attention.head_dim))],
            bias: vec![0.0; hidden],
        }
    }

    pub fn run(&mut self) -> f64 {
        // Values that are updated in place would vanish or grow over many runs: each run starts from the same numbers.
        self.gate.copy_from_slice(&self.up);
        self.x.copy_from_slice(&self.projected);
        let residual = self.block.residual;
        let posts = if residual.has_post_norms() { 2 } else { 0 };
        let norms = residual.norms() - posts;
        seconds_of(|| {
            (0..2).for_each(|_| {
                for_each_chunk(chunks_mut(&mut self.x, TASK_NUMBERS), 1, |task, x| {
                    add(x, &self.projected[task * TASK_NUMBERS..][..x.len()]);
                });
            });
            (0..norms).for_each(|_| self.norm());
            (0..posts).for_each(|_| {
                for_each_chunk(
                    chunks_mut(&mut self.projected, TASK_ROWS * self.hidden),
                    1,
                    |_, x| {
                        rms_norm_in_place(x, &self.weight[..self.hidden], EPSILON);
                    },
                );
            });
            match &self.block.mixer {
                Mixer::Attention(attention) => self.rotate(attention),
                Mixer::ShortConv(conv) => {
                    let taps = &self.weights[&MixerWeight::Convolution];
                    let kernel = ShortConv::new(taps, None, conv.channels);
                    kernel.compute(&self.state, &self.mixed, &mut self.attended);
                    kernel.advance(&mut self.state, &self.mixed);
                }
                Mixer::DeltaNet(net) => {
                    let out = Some(&mut self.attended[..]);
                    let kernel = delta_net_kernel(net, &self.weights);
                    kernel.run(&mut self.state, &self.mixed, out, &mut self.scratch);
                }
                Mixer::Mamba2(mamba) => {
                    let out = Some(&mut self.attended[..]);
                    let kernel = mamba2_kernel(mamba, &self.weights);
                    kernel.run(&mut self.state, &self.mixed, out, &mut self.scratch);
                }
            }
            self.activate();
            if self.int8 {
                let query = self.block.mixer.width();
                let (normed, hidden, width) =
                    (&self.normed, self.hidden, self.block.feed_forward.width);
                for (x, channels) in [
                    (normed, hidden),
                    (&self.attended, query),
                    (normed, hidden),
                    (&self.up, width),
                ] {
                    self.quantized
                        .quantize_static(x, channels, 1.0 / 127.0, None, false);
                }
            }
        })
    }

    fn norm(&mut self) {
        let Self {
            block,
            hidden,
            x,
            normed,
            weight,
            bias,
            ..
        } = self;
        let task_numbers = TASK_ROWS * *hidden;
        for_each_chunk(chunks_mut(normed, task_numbers), 1, |task, out| {
            let x = &x[task * task_numbers..][..out.len()];
            match block.norm.kind {
                NormKind::Rms => rms_norm(x, &weight[..*hidden], EPSILON, out),
                NormKind::Layer | NormKind::Centered => {
                    layer_norm(x, &weight[..*hidden], bias, EPSILON, out);
                }
            }
        });
    }

    /// Applies RoPE, and writes keys and values to the cache.
    fn rotate(&mut self, attention: &Attention) {
        let Self {
            queries,
            keys,
            cached,
            angles,
            weight,
            ..
        } = self;
        let dim = attention.head_dim;
        for (x, heads) in [(queries, attention.heads), (&mut *keys, attention.kv_heads)] {
            for_each_chunk(chunks_mut(x, TASK_ROWS * heads * dim), 1, |task, x| {
                if attention.qk_norm.is_some() {
                    rms_norm_in_place(x, &weight[..dim], EPSILON);
                }
                rope(x, dim, heads, angles, task * TASK_ROWS, Pairing::Halves);
            });
        }
        let task_numbers = TASK_ROWS * attention.kv_heads * dim;
        for _ in 0..2 {
            for_each_chunk(chunks_mut(cached, task_numbers), 1, |task, cached| {
                narrow_f16(&keys[task * task_numbers..][..cached.len()], cached);
            });
        }
    }

    fn activate(&mut self) {
        let Self {
            block, gate, up, ..
        } = self;
        let feed_forward = &block.feed_forward;
        let activation = match feed_forward.activation {
            description::Activation::Silu => Activation::Silu,
            description::Activation::GeluTanh => Activation::GeluTanh,
            description::Activation::Gelu => Activation::Gelu,
            description::Activation::ReluSquared => Activation::ReluSquared,
        };
        let task_numbers = TASK_ROWS * feed_forward.width;
        for_each_chunk(chunks_mut(gate, task_numbers), 1, |task, gate| {
            if feed_forward.gated {
                activate_and_multiply(gate, &up[task * task_numbers..][..gate.len()], activation);
            } else {
                activate(gate, activation);
            }
        });
    }
}

/// Returns synthetic numbers from −1 to 1.
pub fn numbers(count: usize) -> Vec<f32> {
    (0..count)
        .map(|index| (index * 7919 % 2003) as f32 / 1001.0 - 1.0)
        .collect()
}

pub fn seconds_of(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_product_is_some_columns_of_each_layer_and_known_by_its_share() {
        let group = Group {
            in_features: 64,
            out_features: vec![1024, 256],
        };
        assert_eq!(part(&group, usize::MAX), (group.clone(), 1.0));
        let (part, share) = part(&group, 64 * 640);
        assert_eq!((part.out_features, share), (vec![512, 128], 0.5));
    }
}
