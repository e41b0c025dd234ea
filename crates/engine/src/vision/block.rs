//! The blocks of a vision encoder. Their operators are those of texts: attention without an order, which never stores more
//! scores than those of a tile, linear layers in float or in INT8 with outlier correction, norms, RoPE. The feed-forward runs
//! on tiles of rows, so that memory grows with patches times the width of the residual stream.

use std::ops::Range;

use smallvec::SmallVec;
use triad_kernels::activation::add;
use triad_kernels::attention::{Precision, Shape, attention_within};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::int8::QuantizedRows;
use triad_kernels::norm::rms_norm_in_place;
use triad_kernels::rope::{Angles, Pairing, rope};
use triad_kernels::{OutputMut, Phase};
use triad_model::description::Linear;
use triad_model::role::Role;
use triad_model::vision::{VisionDescription, VisionPairs};

use super::VisionModel;
use super::activation::{activate_all, activate_row, gate_all, kernel};
use super::bounds::{clamp_all, clamp_row, groups};
use super::weights::VisionWeights;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::linear::{
    Backend, LinearOutput, MAX_READERS, Observer, QuantizedInput, Shadows, multiply,
};
use crate::linear_input::LinearInput;
use crate::statistics::Counters;
use crate::weights::{Block, Norm, Weight};

/// Rows of one task of an operator on rows.
const TASK_ROWS: usize = QuantizedRows::TASK_ROWS;
/// Rows of the feed-forward that are computed at once.
const TILE_ROWS: usize = 1024;

/// Computes blocks of one view.
pub(super) struct BlockPass<'a, 'o> {
    description: &'a VisionDescription,
    weights: &'a VisionWeights,
    angles: &'a Option<Angles>,
    backend: &'a mut dyn Backend,
    observer: Option<Observer<'o>>,
    cancel: &'a Cancel,
    counters: Counters,
    input: QuantizedInput,
    normed: Vec<f32>,
    /// Queries, keys and values.
    parts: [Vec<f32>; 3],
    attended: Vec<f32>,
    projected: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl<'a, 'o> BlockPass<'a, 'o> {
    pub(super) fn new(
        model: &'a VisionModel,
        angles: &'a Option<Angles>,
        backend: &'a mut dyn Backend,
        (observer, cancel): (Option<Observer<'o>>, &'a Cancel),
    ) -> Self {
        Self {
            description: &model.description,
            weights: &model.weights,
            angles,
            backend,
            observer,
            cancel,
            counters: Counters::default(),
            input: QuantizedInput::default(),
            normed: Vec::new(),
            parts: Default::default(),
            attended: Vec::new(),
            projected: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
        }
    }

    /// Computes a block on the residual stream `x[rows, hidden]`, whose rows read those of their range of `reach`.
    pub(super) fn block(
        &mut self,
        index: usize,
        reach: &[Range<usize>],
        x: &mut [f32],
    ) -> Result<()> {
        let scales = &self.weights.scales[index];
        self.attention(index, reach, x)?;
        let block = &self.weights.blocks[index];
        self.norm_output(block.attention_post_norm.as_ref());
        add_scaled(x, &self.projected, scales.attention.as_deref());
        for x in x.chunks_mut(TILE_ROWS * self.description.hidden) {
            self.cancel.check()?;
            self.feed_forward(index, x)?;
            self.norm_output(block.feed_forward_post_norm.as_ref());
            add_scaled(x, &self.projected, scales.feed_forward.as_deref());
        }
        Ok(())
    }

    /// Computes attention of all rows into `projected`.
    fn attention(&mut self, index: usize, reach: &[Range<usize>], x: &mut [f32]) -> Result<()> {
        let (hidden, heads) = (self.description.hidden, self.description.heads);
        let (rows, head_dim) = (x.len() / hidden, self.description.head_dim());
        let block = &self.weights.blocks[index];
        self.attended.resize(x.len(), 0.0);
        self.projected.resize(x.len(), 0.0);
        self.parts
            .iter_mut()
            .for_each(|part| part.resize(x.len(), 0.0));
        let norm = block.attention_norm.as_ref();
        let layers = [Linear::Query, Linear::Key, Linear::Value];
        for (bounds, members) in groups(&layers, &self.weights.bounds[index]) {
            self.norm((index, LinearInput::Attention), (norm, bounds), x);
            let outs = layers.into_iter().zip(&mut self.parts);
            let outs = outs.filter(|(linear, _)| members.contains(linear));
            let outs = outs.map(|(linear, out)| output(linear, hidden, out));
            let mut outs: SmallVec<[_; MAX_READERS]> = outs.collect();
            product(
                (index, block, Role::QueryKeyValue),
                (&self.input, &self.normed, rows),
                (&mut outs, self.backend, &self.counters),
            )?;
        }
        self.cancel.check()?;
        for (linear, part) in layers.iter().zip(&mut self.parts) {
            clamp_all(part, output_bounds(self.weights, index, *linear));
        }
        let [queries, keys, values] = &mut self.parts;
        let pairing = match self.description.rope_pairs {
            VisionPairs::RowThenColumn => Pairing::Halves,
            VisionPairs::ColumnHalfThenRowHalf => Pairing::HalvesOfHalves,
        };
        let task = TASK_ROWS * hidden;
        for (x, norm, angles) in [
            (&mut *queries, &block.query_norm, self.angles.as_ref()),
            (&mut *keys, &block.key_norm, self.angles.as_ref()),
            (&mut *values, &block.value_norm, None),
        ] {
            if norm.is_none() && angles.is_none() {
                continue;
            }
            for_each_chunk(chunks_mut(x, task), 1, |task, x| {
                if let Some(norm) = norm {
                    rms_norm_in_place(x, &norm.weight, norm.epsilon);
                }
                if let Some(angles) = angles {
                    rope(x, head_dim, heads, angles, task * TASK_ROWS, pairing);
                }
            });
        }
        let is_float = |linear: &Linear| match &block.linears[linear].weight {
            Weight::Float(weight) => weight.is_float(),
            Weight::Int8(_) => false,
        };
        let shape = Shape {
            heads,
            kv_heads: heads,
            head_dim,
            scale: (self.description.attention_scale)
                .unwrap_or_else(|| (head_dim as f32).sqrt().recip()),
            window: None,
            soft_cap: None,
            sinks: None,
            precision: match layers.iter().all(is_float) {
                true => Precision::Exact,
                false => Precision::Fast,
            },
        };
        assert_eq!(
            reach.last().map(|range| range.end),
            Some(rows),
            "rows of attention"
        );
        attention_within(
            queries,
            (&keys[..], &values[..]),
            reach,
            &shape,
            &mut self.attended,
        );
        self.cancel.check()?;
        let place = (index, LinearInput::AttentionOutput);
        let bounds = self.weights.bounds[index].get(&Linear::AttentionOutput);
        clamp_all(&mut self.attended, bounds.map(|bounds| bounds.input));
        if let Some(observe) = &mut self.observer {
            observe(index, place.1, &self.attended);
        }
        self.input.quantize(
            block,
            place.1,
            (&self.attended, rows),
            Phase::Prefill,
            &self.counters,
        );
        let out = output(Linear::AttentionOutput, hidden, &mut self.projected);
        product(
            (index, block, Role::AttentionOutput),
            (&self.input, &self.attended, rows),
            (&mut [out], self.backend, &self.counters),
        )?;
        clamp_all(&mut self.projected, bounds.map(|bounds| bounds.output));
        Ok(())
    }

    /// Computes the norm on the output of half a block, if there is one, in place of `projected`.
    fn norm_output(&mut self, norm: Option<&Norm>) {
        if let Some(norm) = norm {
            self.normed.resize(self.projected.len(), 0.0);
            norm.normalize(&self.projected, &mut self.normed);
            std::mem::swap(&mut self.projected, &mut self.normed);
        }
    }

    /// Computes the feed-forward of some rows of `x` into `projected`.
    fn feed_forward(&mut self, index: usize, x: &mut [f32]) -> Result<()> {
        let (hidden, inner) = (self.description.hidden, self.description.inner);
        let (rows, activation) = (x.len() / hidden, self.description.activation);
        let block = &self.weights.blocks[index];
        self.projected.resize(x.len(), 0.0);
        let norm = block.feed_forward_norm.as_ref();
        let is_gated = self.description.gated;
        let layers: &[Linear] = match is_gated {
            true => &[Linear::Gate, Linear::Up],
            false => &[Linear::Up],
        };
        let mut is_fused = false;
        for (bounds, members) in groups(layers, &self.weights.bounds[index]) {
            self.norm((index, LinearInput::FeedForward), (norm, bounds), x);
            if is_gated && self.gated(index, rows) {
                is_fused = true;
                break;
            }
            self.up.resize(rows * inner, 0.0);
            self.gate
                .resize(if is_gated { rows * inner } else { 0 }, 0.0);
            let outs = [(Linear::Gate, &mut self.gate), (Linear::Up, &mut self.up)];
            let outs = outs.into_iter();
            let outs = outs.filter(|(linear, _)| members.contains(linear));
            let outs = outs.map(|(linear, out)| output(linear, inner, out));
            let mut outs: SmallVec<[_; MAX_READERS]> = outs.collect();
            product(
                (index, block, Role::GateUp),
                (&self.input, &self.normed, rows),
                (&mut outs, self.backend, &self.counters),
            )?;
        }
        if !is_fused {
            let bounds = |linear| output_bounds(self.weights, index, linear);
            clamp_all(&mut self.up, bounds(Linear::Up));
            if is_gated {
                clamp_all(&mut self.gate, bounds(Linear::Gate));
                gate_all(&mut self.gate, &self.up, activation);
                std::mem::swap(&mut self.gate, &mut self.up);
            }
            self.down_input(index, rows);
        }
        let out = output(Linear::Down, hidden, &mut self.projected);
        product(
            (index, block, Role::Down),
            (&self.input, &self.up, rows),
            (&mut [out], self.backend, &self.counters),
        )?;
        let bounds = output_bounds(self.weights, index, Linear::Down);
        clamp_all(&mut self.projected, bounds);
        Ok(())
    }

    /// Computes gate, up, the activation and quantizing as one operator. Returns whether that was done: only in INT8.
    fn gated(&mut self, index: usize, rows: usize) -> bool {
        let (activation, factor) = kernel(self.description.activation);
        let has_bounds = !self.weights.bounds[index].is_empty();
        if factor != 1.0 || self.observer.is_some() || has_bounds {
            return false;
        }
        let (block, backend) = (&self.weights.blocks[index], &mut *self.backend);
        self.input.make_gated(block, rows, |x, how, inner| {
            backend.gated(index, x, activation, how, inner)
        })
    }

    /// Makes the input of down from `up[rows, inner]`: the activation, unless a gate has it.
    fn down_input(&mut self, index: usize, rows: usize) {
        let (block, inner) = (&self.weights.blocks[index], self.description.inner);
        let activation = (!self.description.gated).then_some(self.description.activation);
        let bounds = self.weights.bounds[index].get(&Linear::Down);
        let bounds = bounds.map(|bounds| bounds.input);
        if self.observer.is_none() {
            let source = chunks_mut(&mut self.up, TASK_ROWS * inner);
            let make = |up: &mut &mut [f32], row: usize, out: &mut [f32]| {
                out.copy_from_slice(&up[row % TASK_ROWS * inner..][..inner]);
                if let Some(activation) = activation {
                    activate_row(out, activation);
                }
                clamp_row(out, bounds);
            };
            let (input, shape) = (LinearInput::Down, (rows, inner));
            if self
                .input
                .quantize_made(block, input, shape, Phase::Prefill, source, make)
            {
                return;
            }
        }
        if let Some(activation) = activation {
            activate_all(&mut self.up, activation);
        }
        clamp_all(&mut self.up, bounds);
        if let Some(observe) = &mut self.observer {
            observe(index, LinearInput::Down, &self.up);
        }
        self.input.quantize(
            block,
            LinearInput::Down,
            (&self.up, rows),
            Phase::Prefill,
            &self.counters,
        );
    }

    /// Computes the norm before half a block, within bounds if there are some, in INT8 or into `normed`.
    fn norm(
        &mut self,
        (index, input): (usize, LinearInput),
        (norm, bounds): (Option<&'a Norm>, Option<[f32; 2]>),
        x: &mut [f32],
    ) {
        let (block, hidden) = (&self.weights.blocks[index], self.description.hidden);
        let (rows, norm) = (x.len() / hidden, norm.expect("blocks have both norms"));
        if self.observer.is_none() {
            let source = chunks_mut(x, TASK_ROWS * hidden);
            let make = |x: &mut &mut [f32], row: usize, out: &mut [f32]| {
                norm.normalize_rows(&x[row % TASK_ROWS * hidden..][..hidden], out);
                clamp_row(out, bounds);
            };
            let shape = (rows, hidden);
            if self
                .input
                .quantize_made(block, input, shape, Phase::Prefill, source, make)
            {
                return;
            }
        }
        self.normed.resize(x.len(), 0.0);
        norm.normalize(x, &mut self.normed);
        clamp_all(&mut self.normed, bounds);
        if let Some(observe) = &mut self.observer {
            observe(index, input, &self.normed);
        }
        self.input.quantize(
            block,
            input,
            (&self.normed, rows),
            Phase::Prefill,
            &self.counters,
        );
    }
}

/// Returns the bounds of the output of a layer, if it has some.
fn output_bounds(weights: &VisionWeights, index: usize, linear: Linear) -> Option<[f32; 2]> {
    let bounds = weights.bounds[index].get(&linear)?;
    Some(bounds.output)
}

/// Returns all output features of a layer, in `out[rows, features]`.
fn output(linear: Linear, features: usize, out: &mut [f32]) -> LinearOutput<'_> {
    LinearOutput {
        linear,
        columns: 0..features,
        out: OutputMut::new(out, features),
    }
}

/// Computes the layers of a role that read `input`, or `x[rows, channels]` if they compute in float.
fn product(
    place: (usize, &Block, Role),
    (input, x, rows): (&QuantizedInput, &[f32], usize),
    (outs, backend, counters): (&mut [LinearOutput], &mut dyn Backend, &Counters),
) -> Result<()> {
    let activations = input.activations(x, x.len() / rows, &(0..rows));
    multiply(
        place,
        &activations,
        backend,
        Shadows::Inline,
        outs,
        counters,
    )
}

/// Adds `y[rows, channels]` to `x`, times a factor for each channel, on the installed threads.
fn add_scaled(x: &mut [f32], y: &[f32], scale: Option<&[f32]>) {
    let channels = scale.map_or(x.len().max(1), <[f32]>::len);
    let task = match scale {
        Some(_) => TASK_ROWS * channels,
        None => 1 << 14,
    };
    for_each_chunk(chunks_mut(x, task), 1, |index, x| {
        let y = &y[index * task..][..x.len()];
        let Some(scale) = scale else {
            return add(x, y);
        };
        for (x, y) in x.chunks_exact_mut(channels).zip(y.chunks_exact(channels)) {
            for ((x, y), scale) in x.iter_mut().zip(y).zip(scale) {
                *x += y * scale;
            }
        }
    });
}
