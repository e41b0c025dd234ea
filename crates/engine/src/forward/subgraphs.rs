//! The subgraphs of a block ([`Role`]), cut where the number format changes. A float subgraph begins by adding a shadow
//! that was computed apart, and ends by quantizing the input of the INT8 subgraph after it. Each subgraph works on the
//! buffers of one chunk; attention also on the cache of its block.

use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use smallvec::SmallVec;
use triad_kernels::Phase;
use triad_kernels::activation::{Activation, activate, activate_and_multiply, activated_product};
use triad_kernels::chunks::{Nothing, chunks_mut, for_each_chunk};
use triad_kernels::int8::QuantizedRows;
use triad_kernels::lease::ReadLease;
use triad_kernels::lock;
use triad_kernels::streams::cut_off;
use triad_model::description::{self, Linear, ModelDescription, Residual};
use triad_model::role::Role;

use super::{Buffers, Rotation, Segment};
use crate::error::Result;
use crate::linear::{
    Backend, Layers, LinearOutput, MAX_READERS, Observer, Shadows, add_shadow, columns_of, layers,
    multiply, scales, shadow_apart, shadow_bytes,
};
use crate::linear_input::LinearInput;
use crate::outlier_cache::OutlierWeightCache;
use crate::pictures::Pictures;
use crate::statistics::{Bytes, Counters, Operator};
use crate::weights::{Block, Weights};

/// The rows of one task of an elementwise operator.
pub(super) const TASK_ROWS: usize = QuantizedRows::TASK_ROWS;

/// The data that all chunks of a forward pass share.
#[derive(Clone, Copy)]
pub struct ForwardContext<'a> {
    /// The description of the model.
    pub description: &'a ModelDescription,
    /// Its weights.
    pub weights: &'a Weights,
    /// The parts of RoPE that depend on no token.
    pub rotation: &'a Rotation,
    /// The arithmetic of the pass.
    pub phase: Phase,
    /// The source of weights for shadows that are computed apart and do not read their weights in place.
    pub outlier_cache: Option<&'a OutlierWeightCache>,
    /// Counts times and bytes of operators.
    pub counters: &'a Counters,
    /// The rows of pictures.
    pub(crate) pictures: &'a Pictures,
}

/// The rows that a subgraph computes, with their segments and buffers.
#[derive(Clone, Copy)]
pub struct Chunk<'a> {
    /// Cover the rows in order.
    pub segments: &'a [Segment<'a>],
    /// The activations.
    pub buffers: &'a Buffers,
}

impl Chunk<'_> {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.segments.last().map_or(0, |segment| segment.rows.end)
    }
}

/// The backend of the linear layers, and the observer of their inputs.
pub struct MatmulContext<'a, 'o> {
    /// Multiplies.
    pub backend: &'a mut dyn Backend,
    /// When shadows are computed.
    pub shadows: Shadows,
    /// Called with the inputs of linear layers.
    pub observer: Option<Observer<'o>>,
}

impl<'a> MatmulContext<'a, '_> {
    /// Creates a context that computes shadows together with the linear layers.
    pub fn new(backend: &'a mut dyn Backend) -> Self {
        Self {
            backend,
            shadows: Shadows::Inline,
            observer: None,
        }
    }

    /// Returns whether something other than the linear layers reads their input in float.
    pub(super) fn reads_floats(&self, chunk: Chunk) -> bool {
        self.observer.is_some() || chunk.has_adapters()
    }

    pub(super) fn observe(&mut self, block: usize, input: LinearInput, x: &[f32]) {
        if let Some(observer) = &mut self.observer {
            observer(block, input, x);
        }
    }
}

impl ForwardContext<'_> {
    /// Runs one subgraph of `block` on a chunk that has begun and has been through all earlier subgraphs.
    ///
    /// # Errors
    /// If the linear layers fail. The content of the buffers is then invalid.
    pub fn subgraph(
        &self,
        block: usize,
        role: Role,
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) -> Result<()> {
        match role {
            Role::AttentionNorm => self.attention_norm(block, chunk, multiplier),
            Role::Attention => return self.mix(block, chunk, multiplier),
            // The next subgraph adds the output of a mixer that is alone.
            Role::FeedForwardNorm | Role::FeedForward if !self.has_feed_forward(block) => {}
            Role::FeedForwardNorm => self.feed_forward_norm(block, chunk, multiplier),
            Role::FeedForward => return self.feed_forward(block, chunk, multiplier),
            Role::Activation => self.activation(block, chunk, multiplier),
            Role::QueryKeyValue | Role::AttentionOutput | Role::GateUp | Role::Down => {
                let features = self
                    .layers(block, role)
                    .iter()
                    .map(|(_, features)| features)
                    .sum();
                let part = (0..chunk.rows(), 0..features);
                return self.products((block, role), chunk, &part, multiplier);
            }
        }
        Ok(())
    }

    /// Computes a part of the output of a subgraph of linear layers with one input ([`Role::is_product`]): some rows,
    /// and some columns of the concatenated outputs.
    ///
    /// # Errors
    /// If the linear layers fail. The content of the part is then arbitrary; nothing else has changed.
    pub fn products(
        &self,
        (index, role): (usize, Role),
        chunk: Chunk,
        (rows, columns): &(Range<usize>, Range<usize>),
        multiplier: &mut MatmulContext,
    ) -> Result<()> {
        let (block, buffers) = (self.block(index), chunk.buffers);
        let layers = self.layers(index, role);
        let width = |linear: Linear| {
            layers
                .iter()
                .find(|layer| layer.0 == linear)
                .map_or(0, |layer| layer.1)
        };
        let columns = columns_of(&layers, columns);
        let leases = columns.iter().map(|(linear, columns)| {
            let columns = (width(*linear), columns.clone());
            self.outputs_of_rows((index, *linear), columns, rows.clone(), buffers)
        });
        let mut leases: SmallVec<[_; MAX_READERS]> = leases.collect();
        let outs = columns.iter().zip(&mut leases);
        let outs = outs.map(|((linear, columns), lease)| LinearOutput {
            linear: *linear,
            columns: columns.clone(),
            out: lease.output(),
        });
        let mut outs: SmallVec<[_; MAX_READERS]> = outs.collect();
        let (x, channels) = self.input(index, role, chunk);
        let input = read(&buffers.input);
        let activations = input.activations(&x, channels, rows);
        let MatmulContext {
            backend, shadows, ..
        } = multiplier;
        multiply(
            (index, block, role),
            &activations,
            *backend,
            *shadows,
            &mut outs,
            self.counters,
        )
    }

    /// Returns the input of a role's layers, in float, and its channels.
    pub(super) fn input<'b>(
        &self,
        index: usize,
        role: Role,
        chunk: Chunk<'b>,
    ) -> (ReadLease<'b>, usize) {
        let description = &self.description.blocks[index];
        let Buffers {
            normed,
            attended,
            gate,
            up,
            ..
        } = chunk.buffers;
        let (x, channels) = match role {
            Role::AttentionOutput => (attended, description.mixer.width()),
            Role::Down if description.feed_forward.gated => (gate, description.feed_forward.width),
            Role::Down => (up, description.feed_forward.width),
            _ => (normed, self.description.hidden),
        };
        (x.read(channels, 0..chunk.rows()), channels)
    }

    /// Computes the outlier correction of a subgraph's linear layers apart from them, and keeps it until the next
    /// subgraph adds it. For a whole feed-forward it is that of down, whose gate and up have already run.
    pub fn shadow(&self, index: usize, role: Role, chunk: Chunk) {
        let (block, Chunk { buffers, .. }) = (self.block(index), chunk);
        let rows = chunk.rows();
        if role == Role::FeedForward && !read(&buffers.input).holds(LinearInput::Down) {
            // A program returned the input of down in the buffer of up.
            let width = self.description.blocks[index].feed_forward.width;
            let inner = buffers.up.read(width, 0..rows);
            self.quantize(index, LinearInput::Down, &inner, chunk);
        }
        let layers = self.layers(index, products_of(role));
        let input = read(&buffers.input);
        let int8 = input.int8(0..rows).filter(|x| x.outliers() > 0);
        if let Some(x) = int8 {
            let features: usize = layers.iter().map(|(_, features)| features).sum();
            let mut out = buffers.shadows.write(1, 0..rows * features);
            let requested = lock(&buffers.requested).take();
            let from_rows = self.outlier_cache.is_some_and(|outlier_cache| {
                let (begun, place) = (
                    self.counters.begin(),
                    (index, LinearInput::read_by(layers[0].0)),
                );
                let is_done =
                    outlier_cache.shadow(place, x, requested, &scales(block, &layers), &mut out);
                if is_done {
                    let bytes = || shadow_bytes(block, x, layers.iter().copied());
                    self.counters.end(begun, Operator::Shadows, bytes);
                }
                is_done
            });
            if !from_rows {
                shadow_apart(block, &layers, x, &mut out, self.counters);
            }
            *lock(&buffers.shadow_of) = Some((index, role));
        }
    }

    /// Adds a shadow that was computed apart to the outputs of its linear layers.
    pub(super) fn join_shadow(&self, rows: usize, buffers: &Buffers) {
        let Some((index, role)) = lock(&buffers.shadow_of).take() else {
            return;
        };
        let layers = self.layers(index, products_of(role));
        let features: usize = layers.iter().map(|(_, features)| features).sum();
        let (input, shadows) = (
            read(&buffers.input),
            buffers.shadows.read(1, 0..rows * features),
        );
        let x = input.int8(0..rows).expect("a shadow is of INT8 rows");
        let mut shadows = &shadows[..];
        for (linear, features) in &layers {
            let shadow = shadows
                .split_off(..rows * features)
                .expect("a shadow of all layers");
            let columns = (*features, 0..*features);
            let mut out = self.outputs_of_rows((index, *linear), columns, 0..rows, buffers);
            add_shadow(x, shadow, out.output(), self.counters);
        }
    }

    /// Adds the residual of the block before; computes the norm; quantizes it.
    fn attention_norm(&self, index: usize, chunk: Chunk, multiplier: &mut MatmulContext) {
        self.join_shadow(chunk.rows(), chunk.buffers);
        let before = index.checked_sub(1);
        if let Some(before) = before {
            self.add_last_adapters(before, chunk);
        }
        // The steps after the residual addition need all of the stream.
        let ended = before.filter(|before| self.has_steps_at_end(*before, chunk.buffers));
        if let Some(before) = ended {
            self.end_block(before, chunk);
        }
        self.predict_streams(index, chunk.rows(), chunk.buffers);
        if self.description.blocks[index].residual == Residual::SecondMixer {
            if let Some(before) = before.filter(|_| ended.is_none()) {
                self.add_output(self.last_addition(before), chunk.rows(), chunk.buffers);
            }
            return self.quantize_normed((index, LinearInput::Attention), chunk, multiplier);
        }
        let residual = before.filter(|_| ended.is_none());
        let residual = residual.map(|before| self.last_addition(before));
        // The norm that both halves of a block use is read a second time.
        let is_kept = self.description.blocks[index].residual == Residual::Parallel
            || self.has_second_mixer(index)
            || self.description.streams.is_some();
        let norm = self.block(index).attention_norm.as_ref();
        self.norm(
            (index, LinearInput::Attention),
            (residual, norm),
            is_kept,
            chunk,
            multiplier,
        );
        self.layers_next_to_attention(index, chunk);
    }

    /// Adds the residual; computes the norm, if there is one and both halves do not use that of attention; quantizes it.
    fn feed_forward_norm(&self, index: usize, chunk: Chunk, multiplier: &mut MatmulContext) {
        let (block, rows, buffers) = (self.block(index), chunk.rows(), chunk.buffers);
        self.join_shadow(rows, buffers);
        self.add_adapters(index, Role::AttentionOutput, chunk);
        let place = (index, LinearInput::FeedForward);
        let addition = self.mixer_addition(index);
        if self.description.blocks[index].residual != Residual::Parallel {
            let norm = block.feed_forward_norm.as_ref();
            let is_kept = block.router.is_some();
            let is_added = self.add_layers_next_to_attention(index, chunk);
            let addition = (!is_added).then_some(addition);
            return self.norm(place, (addition, norm), is_kept, chunk, multiplier);
        }
        self.add_output(addition, rows, buffers);
        self.quantize_normed(place, chunk, multiplier);
    }

    /// Computes the activation of gate, or of up alone; requantizes it.
    pub(super) fn activation(&self, index: usize, chunk: Chunk, multiplier: &mut MatmulContext) {
        let (feed_forward, rows, buffers) = (
            &self.description.blocks[index].feed_forward,
            chunk.rows(),
            chunk.buffers,
        );
        self.join_shadow(rows, buffers);
        self.add_adapters(index, Role::GateUp, chunk);
        let (width, activation) = (feed_forward.width, activation(feed_forward.activation));
        if feed_forward.gated && feed_forward.gate_scale != 1.0 {
            let mut gate = buffers.gate.write(width, 0..rows);
            gate.iter_mut()
                .for_each(|value| *value *= feed_forward.gate_scale);
        }
        if let Some(deviations) = feed_forward.cutoff {
            let mut gate = buffers.gate.write(width, 0..rows);
            let tasks = chunks_mut(&mut gate, TASK_ROWS * width);
            for_each_chunk(tasks, 1, |_, gates| {
                let rows = gates.chunks_exact_mut(width);
                rows.for_each(|row| cut_off(row, deviations));
            });
        }
        let begun = self.counters.begin();
        if feed_forward.gated && !multiplier.reads_floats(chunk) {
            let (gate, up) = (
                buffers.gate.read(width, 0..rows),
                buffers.up.read(width, 0..rows),
            );
            let make = |(): &mut (), row: usize, inner: &mut [f32]| {
                let row = row * width..(row + 1) * width;
                activated_product(&gate[row.clone()], &up[row], activation, inner);
            };
            if self.quantize_made(
                (index, LinearInput::Down),
                width,
                Nothing(rows.div_ceil(TASK_ROWS)),
                make,
                chunk,
            ) {
                let read = size_of_val(&gate[..]) + size_of_val(&up[..]);
                self.end_made(begun, Operator::Activation, (index, chunk), || {
                    Bytes::new(read, 0, 0)
                });
                return;
            }
        }
        let task = TASK_ROWS * width;
        let inner = if feed_forward.gated {
            let (mut gate, up) = (
                buffers.gate.write(width, 0..rows),
                buffers.up.read(width, 0..rows),
            );
            for_each_chunk(chunks_mut(&mut gate, task), 1, |index, gate| {
                activate_and_multiply(gate, &up[index * task..][..gate.len()], activation);
            });
            gate
        } else {
            let mut up = buffers.up.write(width, 0..rows);
            for_each_chunk(chunks_mut(&mut up, task), 1, |_, up| {
                activate(up, activation);
            });
            up
        };
        self.counters.end(begun, Operator::Activation, || {
            let bytes = size_of_val(&inner[..]);
            Bytes::new(if feed_forward.gated { 2 * bytes } else { bytes }, bytes, 0)
        });
        multiplier.observe(index, LinearInput::Down, &inner);
        self.quantize(index, LinearInput::Down, &inner, chunk);
    }

    pub(super) fn block(&self, index: usize) -> &Block {
        &self.weights.blocks[index]
    }

    pub(super) fn layers(&self, index: usize, role: Role) -> Layers {
        layers(
            &self.description.blocks[index],
            self.description.hidden,
            role,
        )
    }
}

/// Returns the role of the last linear layers of a subgraph.
fn products_of(role: Role) -> Role {
    if role == Role::FeedForward {
        Role::Down
    } else {
        role
    }
}

pub(super) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the kernel of an activation.
pub fn activation(described: description::Activation) -> Activation {
    match described {
        description::Activation::Silu => Activation::Silu,
        description::Activation::GeluTanh => Activation::GeluTanh,
        description::Activation::Gelu => Activation::Gelu,
        description::Activation::ReluSquared => Activation::ReluSquared,
    }
}
