//! Whole models on a GPU: embeddings in, logits or residual stream out.
//!
//! A [`GpuModel`] keeps the weights of a [`DeviceModel`] in the GPU's memory, in the same formats as the CPU
//! (`weights`). Shaders widen them to f32 and compute in f32. W8A8 layers quantize their input to INT8 and sum in i32;
//! the clipped part of outliers is multiplied separately and added (llm.npu, §3.3). The KV cache of sequences is in f16
//! pages that stay on the GPU (`pages`). A chunk of a prompt or a decode step is one submission, or several if the
//! length of submissions is limited (`slices`). Every call runs the same dispatches (`steps`) on the same buffers
//! (`buffers`). Matmuls have one kernel for few rows and one for many (`kernels`). The first shader variant that
//! computes every step correctly is used (`self_test`).
//!
//! A row's values depend on the other rows only by rounding: kernels for few and for many rows sum in different orders.

mod buffers;
mod call;
mod description;
mod dispatch;
mod divided;
mod encode;
mod gpu_model;
mod item;
mod kernels;
mod linear;
mod logits;
mod outer;
mod outer_division;
mod outer_run;
mod outer_times;
mod outer_worker;
mod outers;
mod pages;
mod pipelines;
mod program;
mod self_test;
mod slices;
mod steps;
mod uniforms;
mod variant;
mod weight_format;
mod weights;

use std::sync::Arc;

use bytemuck::{bytes_of, cast_slice};
use triad_kernels::Phase;

pub use gpu_model::{GpuModel, GpuSegment};
pub(super) use linear::{FloatKernels, GpuFloatProgram};
pub use pages::GpuSequence;
pub(super) use program::GpuModelProgram;
pub use variant::ModelVariant;

use super::context::{Context, UNIFORM};
use super::kernels::VariantState;
use super::pace::Pace;
use crate::device::ModelOptions;
use crate::error::{Error, Result};
use crate::model::{DeviceModel, OutputRows, Outputs};
use crate::multiplier::Multiplier;
use buffers::{Buffers, Place, WORD, returned_words};
use call::Call;
use description::attention_of;
use dispatch::{kernels_of, product_kernels};
use gpu_model::Travelling;
use item::Item;
use kernels::Kernel;
use outers::Outers;
use pages::Pages;
use slices::Chunk;
use steps::{Step, StepBuffer, Work, steps};
use weight_format::WeightFormat;
use weights::MAX_GROUPS;

impl GpuModel {
    /// Copies a model to a GPU, and compiles and tests its kernels. The shader `variants` are tried in this order.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`with_multiplier`](Self::with_multiplier).
    pub(super) fn copied(
        context: Arc<Context>,
        model: &DeviceModel,
        options: &ModelOptions,
        variants: &[ModelVariant],
        multiplier: Option<Multiplier>,
    ) -> Result<Self> {
        model.check(&context.name)?;
        let mut outers = Outers::new(multiplier)?;
        if outers.are_running() && context.slice.is_some() {
            return Err(Error::GpuModel {
                gpu: context.name.clone(),
                reason: "submissions of limited length are for a GPU that computes alone or next to a CPU".to_owned(),
            });
        }
        let ModelOptions { rows, outputs } = *options;
        let (rows, outputs) = (rows.clamp(1, MAX_GROUPS), outputs.max(1));
        let (steps, parameters) = steps(&context, model, rows, &mut outers.list)?;
        outers.check(&context, rows)?;
        let (pipelines, variants) = self_test::choose(&context, variants, &kernels_of(&steps))?;
        context.keep_pipelines();
        let mut buffers = Buffers::new(&context, model, &parameters, (rows, outputs))?;
        let (_, written) = outers.words(rows);
        buffers.reserve(&context, Place::Computed, written)?;
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let uniforms = (
            context.buffer("uniforms", size_of::<Call>() as u64, usage)?,
            context.buffer("uniforms", UNIFORM * steps.len() as u64, usage)?,
        );
        for (index, step) in steps.iter().enumerate() {
            context
                .queue
                .write_buffer(&uniforms.1, UNIFORM * index as u64, &step.uniforms);
        }
        let pages = Arc::new(Pages::new(&context, model.description)?);
        let rotations = model
            .rotations
            .iter()
            .map(|one| (one.frequencies.to_vec(), one.factor))
            .collect();
        let tile_rows = model.description.blocks.iter().map(|block| {
            let (queries, _) = Kernel::attention_tile(attention_of(block).head_dim);
            queries / (attention_of(block).heads / attention_of(block).kv_heads).min(queries)
        });
        let tile_rows = tile_rows.min().unwrap_or(1);
        let groups = (None, Vec::new());
        let pace = context.slice.map(Pace::new);
        let piece = context.buffer("uniforms", 2 * UNIFORM, usage)?;
        let description = model.description.clone();
        let made = Self {
            context,
            description,
            rows,
            outputs,
            variants,
            pipelines,
            steps,
            uniforms,
            buffers,
            pages,
            groups,
            rotations,
            tile_rows,
            pace,
            piece,
            outers,
            travelling: Travelling::default(),
            written: 0,
            read: 0,
            operations: 0.0,
        };
        made.context.flush()?;
        Ok(made)
    }

    /// Returns the name of the GPU.
    pub fn name(&self) -> &str {
        &self.context.name
    }

    /// Returns the result of each shader variant.
    pub fn variants(&self) -> &[(ModelVariant, VariantState)] {
        &self.variants
    }

    /// Returns an empty sequence.
    pub fn sequence(&self) -> GpuSequence {
        self.pages.sequence()
    }

    /// Runs a chunk through all layers. `x[rows, hidden]` are the token embeddings, already multiplied by the
    /// description's scale. `segments` cover its rows in order; each sequence grows by the rows of its segment. `read`
    /// is called with the `wanted` outputs.
    ///
    /// # Errors
    /// If there are more rows than the model was prepared for, there is no memory for keys and values, or the GPU fails
    /// or takes too long. The sequences then keep their previous state.
    pub fn forward(
        &mut self,
        x: &[f32],
        segments: &mut [GpuSegment],
        wanted: &OutputRows,
        read: impl FnOnce(Outputs),
    ) -> Result<()> {
        self.context.check()?;
        let rows = self.check(x, segments, wanted)?;
        for GpuSegment { sequence, rows } in segments.iter_mut() {
            sequence.reserve(sequence.length() + *rows)?;
        }
        let (call, table) = self.table(rows, segments, wanted);
        let tiles = (call.outputs_at - call.tiles_at) as usize / 4;
        self.buffers
            .reserve(&self.context, Place::Table, table.len())?;
        if call.splits > 1 {
            let of_head = |block: &triad_model::description::BlockDescription| {
                attention_of(block).heads * (attention_of(block).head_dim + 4)
            };
            let widest = self
                .description
                .blocks
                .iter()
                .map(of_head)
                .max()
                .unwrap_or(0);
            self.buffers.reserve(
                &self.context,
                Place::Parts,
                rows * widest * call.splits as usize,
            )?;
        }
        let width = if wanted.logits {
            self.description.vocab
        } else {
            self.description.hidden
        };
        let values = wanted.rows.len() * width;
        let returned = if wanted.keys_and_values {
            returned_words(&self.description, rows)
        } else {
            0
        };
        let (read_between, _) = self.outers.words(rows);
        let staged = (values + returned).max(read_between);
        self.buffers
            .reserve(&self.context, Place::Staging, staged)?;
        self.bind();
        let queue = &self.context.queue;
        queue.write_buffer(&self.uniforms.0, 0, bytes_of(&call));
        queue.write_buffer(self.buffers.get(Place::Table), 0, cast_slice(&table));
        queue.write_buffer(self.buffers.get(Place::Stream), 0, cast_slice(x));
        self.write_angles(rows, &table);
        self.written += (size_of_val(&table[..]) + size_of_val(x)) as u64;
        let steps = self.steps_of(&call, wanted);
        let chunk = Chunk {
            call,
            table: &table,
            tiles,
            tile_rows: self.tile_rows,
        };
        self.operations += self.operations_of(&steps, &chunk);
        let is_divided = self.outers.are_running() && wanted.phase == Phase::Prefill;
        let items = if is_divided {
            match self.run_with_outers(&steps, &chunk) {
                Ok(rest) => rest,
                Err(error) => {
                    self.lose_outer(error)?;
                    // The GPU computes the chunk from its beginning, alone.
                    let stream = self.buffers.get(Place::Stream);
                    self.context.queue.write_buffer(stream, 0, cast_slice(x));
                    let steps = self.steps_of(&call, wanted);
                    self.operations += self.operations_of(&steps, &chunk);
                    steps.into_iter().map(Item::Step).collect()
                }
            }
        } else {
            let rest = self.run_slices(steps, &chunk)?;
            rest.into_iter().map(Item::Step).collect()
        };
        let mut encoder = self.encode(items, &chunk)?;
        self.copy_outputs(&mut encoder, &call, wanted);
        if values + returned == 0 {
            self.context.run_without_outputs(encoder)?;
        } else {
            let bytes = ((values + returned) * WORD) as u64;
            self.read += bytes;
            self.context
                .run(encoder, self.buffers.get(Place::Staging), bytes, |bytes| {
                    let (values, keys_and_values) = bytes.split_at(values * WORD);
                    read(Outputs {
                        values: cast_slice(values),
                        keys_and_values: cast_slice(keys_and_values),
                    });
                })?;
        }
        segments
            .iter_mut()
            .for_each(|segment| segment.sequence.advance(segment.rows));
        Ok(())
    }

    /// Runs `steps` in submissions of limited length, if there is a limit. Returns those that are not run yet.
    fn run_slices(&mut self, steps: Vec<usize>, chunk: &Chunk) -> Result<Vec<usize>> {
        let Some(mut pace) = self.pace.take() else {
            return Ok(steps);
        };
        let rest = self.run_in_slices(&mut pace, &steps, chunk);
        self.pace = Some(pace);
        rest
    }

    /// Writes the cosines and sines of the positions of all rows.
    fn write_angles(&self, rows: usize, table: &[u32]) {
        let mut at = 0;
        for (frequencies, factor) in &self.rotations {
            let positions = table[..2 * rows].iter().step_by(2);
            let angles = positions
                .flat_map(|position| frequencies.iter().map(move |one| *position as f32 * one));
            let angles: Vec<[f32; 2]> = angles
                .map(|angle| {
                    let (sine, cosine) = angle.sin_cos();
                    [cosine * factor, sine * factor]
                })
                .collect();
            self.context.queue.write_buffer(
                self.buffers.get(Place::Angles),
                at,
                cast_slice(&angles),
            );
            at += (self.rows * frequencies.len() * size_of::<[f32; 2]>()) as u64;
        }
    }

    /// Creates the bind groups of all steps, if the buffers have changed since the last call.
    fn bind(&mut self) {
        let pages = self.pages.lock();
        let generation = Some((self.buffers.generation, pages.generation));
        if self.groups.0 == generation {
            return;
        }
        let mut groups = Vec::with_capacity(self.steps.len());
        for (index, step) in self.steps.iter().enumerate() {
            let buffers: Vec<_> = step
                .buffers
                .iter()
                .map(|buffer| match buffer {
                    StepBuffer::Of(place) => self.buffers.get(*place),
                    StepBuffer::Cache(block) => &pages.buffers[*block],
                    StepBuffer::Weights(buffer) => buffer,
                })
                .collect();
            let kernel = step.work.kernels().next().expect("a step has a kernel");
            let uniforms = (
                &self.uniforms.1,
                UNIFORM * index as u64,
                step.uniforms.len() as u64,
            );
            groups.push(self.pipelines.group(
                &self.context,
                kernel,
                &self.uniforms.0,
                uniforms,
                &buffers,
            ));
        }
        self.groups = (generation, groups);
    }

    /// Returns the steps that a call has to run.
    fn steps_of(&self, call: &Call, wanted: &OutputRows) -> Vec<usize> {
        let is_needed = |index: &usize| {
            let Step {
                work,
                of_outputs,
                phase,
                outer,
                ..
            } = &self.steps[*index];
            // Only markers where another processor's parts are joined.
            let is_running = self.outers.are_running();
            let is_wanted = !of_outputs || (wanted.logits && call.outputs > 0);
            let is_split = !matches!(work, Work::Combine { .. }) || call.splits > 1;
            is_wanted
                && is_split
                && phase.is_none_or(|phase| phase == wanted.phase)
                && outer.is_none_or(|outer| outer == is_running)
        };
        (0..self.steps.len()).filter(is_needed).collect()
    }

    fn rows_of(&self, step: usize, chunk: &Chunk) -> usize {
        (if self.steps[step].of_outputs {
            chunk.call.outputs
        } else {
            chunk.call.rows
        }) as usize
    }

    fn dispatch(&self, step: usize, chunk: &Chunk) -> (Kernel, [usize; 3]) {
        let rows = self.rows_of(step, chunk);
        self.steps[step].work.dispatch(
            rows,
            chunk.tiles,
            chunk.call.splits as usize,
            self.pipelines.variant.tile(),
        )
    }
}

/// Tests each variant on the kernels of models with usual head dimensions and all weight formats.
///
/// # Errors
/// If no variant passes, or the GPU fails.
pub(super) fn check_all(
    context: &Context,
    variants: &[ModelVariant],
) -> Result<Vec<(ModelVariant, VariantState)>> {
    let mut kernels = vec![
        Kernel::Quantize,
        Kernel::Join,
        Kernel::Norm,
        Kernel::Activate,
    ];
    kernels.extend(WeightFormat::ALL.into_iter().flat_map(product_kernels));
    for head_dim in [64, 128] {
        let dim = head_dim as u32;
        let (most, _) = Kernel::attention_tile(head_dim);
        kernels.extend([Kernel::Rope(dim), Kernel::Combine(dim)]);
        kernels.extend([1, most as u32].map(|queries| Kernel::Attention(dim, queries)));
    }
    Ok(self_test::choose(context, variants, &kernels)?.1)
}
