//! Whole models on a GPU: embeddings in, logits or residual stream out.
//!
//! A [`GpuModel`] keeps the weights of a [`DeviceModel`] in the GPU's memory, in the same formats as the CPU
//! (`weights`). Shaders widen them to f32 and compute in f32. W8A8 layers quantize their input to INT8 and sum in i32;
//! the clipped part of outliers is multiplied separately and added (llm.npu, §3.3). The KV cache of sequences is in f16
//! pages that stay on the GPU (`pages`). A chunk of a prompt or a decode step is one submission, or several if the
//! length of submissions is limited (`slices`). Every call runs the same dispatches (`steps`) on the same buffers
//! (`buffers`). Matmuls have one kernel for few rows and one for many (`kernels`). The first shader variant that
//! computes every step correctly is used (`proof`).
//!
//! A row's values depend on the other rows only by rounding: kernels for few and for many rows sum in different orders.

mod buffers;
mod description;
mod kernels;
mod pages;
mod program;
mod proof;
mod slices;
mod steps;
mod weights;

use std::sync::Arc;

use bytemuck::{Pod, Zeroable, bytes_of, cast_slice};
use triad_kernels::attention::PAGE;
use triad_model::description::ModelDescription;

pub use kernels::ModelVariant;
pub use pages::GpuSequence;
pub(super) use program::GpuModelProgram;

use super::context::{Context, UNIFORM};
use super::pace::Pace;
use super::{Gpu, VariantState};
use crate::device::ModelOptions;
use crate::error::{Error, Result};
use crate::model::{DeviceModel, Outputs, Wanted};
use buffers::{Buffers, Place, WORD, returned_words};
use description::attention_of;
use kernels::{ACTIVATE_THREADS, Kernel, Pipelines, WeightFormat};
use pages::Pages;
use slices::Chunk;
use steps::{Step, StepBuffer, Work, steps};
use weights::MAX_GROUPS;

/// Maximum number of rows for the few-rows kernel.
const FEW_ROWS: usize = 8;
/// Rows per workgroup of that kernel, unless there is a single row.
const ROWS_TOGETHER: u32 = 4;
/// Workgroups that keep a GPU busy. Attention splits pages among workgroups until there are this many.
const BUSY: usize = 256;
/// Pages per workgroup on software: llvmpipe ends all loops of an invocation after 65,535 iterations in total.
const PAGES_OF_SOFTWARE: usize = 4;

/// A model that is loaded on a GPU.
#[derive(Debug)]
pub struct GpuModel {
    context: Arc<Context>,
    description: ModelDescription,
    rows: usize,
    outputs: usize,
    variants: Vec<(ModelVariant, VariantState)>,
    pipelines: Pipelines,
    steps: Vec<Step>,
    /// Uniforms of the call, and uniforms of all steps.
    uniforms: (wgpu::Buffer, wgpu::Buffer),
    buffers: Buffers,
    pages: Arc<Pages>,
    /// Bind groups of all steps, and the generations of buffers and pages for which they were made.
    groups: (Option<(u64, u64)>, Vec<wgpu::BindGroup>),
    /// Frequencies and attention factor of each rotation.
    rotations: Vec<(Vec<f32>, f32)>,
    /// Rows of an attention tile.
    tile_rows: usize,
    /// Cost estimates that limit the length of submissions; `None` for one submission per chunk.
    pace: Option<Pace<Kernel>>,
    /// Uniforms for a piece of a step: those of the call, and those of the step [`UNIFORM`] bytes later.
    piece: wgpu::Buffer,
}

/// Rows of one sequence in a chunk, appended to the positions that the sequence holds.
#[derive(Debug)]
pub struct GpuSegment<'a> {
    /// The sequence.
    pub sequence: &'a mut GpuSequence,
    /// Number of rows.
    pub rows: usize,
}

/// Matches `Call` in `call.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Call {
    rows: u32,
    outputs: u32,
    splits: u32,
    pages_of_split: u32,
    tiles_at: u32,
    outputs_at: u32,
    returns: u32,
    unused: u32,
}

impl GpuModel {
    /// Copies a model to `gpu`, and compiles and tests its kernels. The shader `variants` are tried in this order.
    ///
    /// # Errors
    /// If the model's parts are inconsistent or have shapes that no shader supports ([`Error::GpuModel`]), there is no
    /// memory for it, or no shader variant passes the self-test.
    pub fn new(
        gpu: &Gpu,
        model: &DeviceModel,
        options: &ModelOptions,
        variants: &[ModelVariant],
    ) -> Result<Self> {
        let context = Arc::clone(&gpu.shared.context);
        model.check(&context.name)?;
        let ModelOptions { rows, outputs } = *options;
        let (rows, outputs) = (rows.clamp(1, MAX_GROUPS), outputs.max(1));
        let (steps, parameters) = steps(&context, model, rows)?;
        let (pipelines, variants) = proof::choose(&context, variants, &kernels_of(&steps))?;
        context.keep_pipelines();
        let buffers = Buffers::new(&context, model, &parameters, (rows, outputs))?;
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
        wanted: &Wanted,
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
        self.buffers
            .reserve(&self.context, Place::Staging, values + returned)?;
        self.bind();
        let queue = &self.context.queue;
        queue.write_buffer(&self.uniforms.0, 0, bytes_of(&call));
        queue.write_buffer(self.buffers.get(Place::Table), 0, cast_slice(&table));
        queue.write_buffer(self.buffers.get(Place::Stream), 0, cast_slice(x));
        self.write_angles(rows, &table);
        let mut steps = self.steps_of(&call, wanted);
        let chunk = Chunk {
            call,
            table: &table,
            tiles,
            tile_rows: self.tile_rows,
        };
        if let Some(mut pace) = self.pace.take() {
            let rest = self.run_in_slices(&mut pace, &steps, &chunk);
            self.pace = Some(pace);
            steps = rest?;
        }
        let mut encoder = self.encode(&steps, &chunk)?;
        self.copy_outputs(&mut encoder, &call, wanted);
        if values + returned == 0 {
            self.context.run_without_outputs(encoder)?;
        } else {
            let bytes = ((values + returned) * WORD) as u64;
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

    /// Checks that a chunk can be run, and returns its number of rows.
    fn check(&self, x: &[f32], segments: &[GpuSegment], wanted: &Wanted) -> Result<usize> {
        let hidden = self.description.hidden;
        let rows: usize = segments.iter().map(|segment| segment.rows).sum();
        if rows == 0 || rows > self.rows {
            return Err(Error::Rows {
                rows,
                prepared: self.rows,
            });
        }
        let outputs = if wanted.logits {
            self.outputs
        } else {
            self.rows
        };
        if wanted.rows.len() > outputs {
            return Err(Error::Rows {
                rows: wanted.rows.len(),
                prepared: outputs,
            });
        }
        let refused = |reason: String| {
            Err(Error::GpuModel {
                gpu: self.context.name.clone(),
                reason,
            })
        };
        if x.len() != rows * hidden {
            return refused(format!(
                "{} numbers were given for {rows} rows of {hidden}",
                x.len()
            ));
        }
        if let Some(row) = wanted.rows.iter().find(|row| **row >= rows) {
            return refused(format!("row {row} is wanted of {rows}"));
        }
        if segments
            .iter()
            .any(|segment| segment.rows == 0 || !segment.sequence.is_of(&self.pages))
        {
            return refused(
                "a segment has no rows, or its sequence is of another model".to_owned(),
            );
        }
        Ok(rows)
    }

    /// Returns the uniforms and the table of a call.
    fn table(&self, rows: usize, segments: &[GpuSegment], wanted: &Wanted) -> (Call, Vec<u32>) {
        let mut tiles: Vec<[usize; 4]> = Vec::new();
        let tiles_of = |segment: &GpuSegment| segment.rows.div_ceil(self.tile_rows);
        let (tiles_at, count) = (2 * rows, segments.iter().map(tiles_of).sum::<usize>());
        let outputs_at = tiles_at + 4 * count;
        let mut pages_at = outputs_at + wanted.rows.len();
        let (mut table, mut pages, mut row, mut most_pages) = (Vec::new(), Vec::new(), 0, 0);
        for GpuSegment { sequence, rows } in segments {
            let first = sequence.length();
            for position in first..first + rows {
                table.extend([position as u32, pages_at as u32]);
            }
            for before in (0..*rows).step_by(self.tile_rows) {
                tiles.push([
                    row + before,
                    (rows - before).min(self.tile_rows),
                    pages_at,
                    first + before,
                ]);
            }
            let used = &sequence.pages()[..(first + rows).div_ceil(PAGE)];
            pages.extend_from_slice(used);
            (row, pages_at, most_pages) = (
                row + rows,
                pages_at + used.len(),
                most_pages.max(used.len()),
            );
        }
        table.extend(tiles.as_flattened().iter().map(|value| *value as u32));
        table.extend(wanted.rows.iter().map(|row| *row as u32));
        table.extend(pages);
        let blocks = self.description.blocks.iter();
        let kv_heads = blocks.map(|block| attention_of(block).kv_heads).min();
        let kv_heads = kv_heads.unwrap_or(1);
        let wanted_splits = BUSY.div_ceil(tiles.len() * kv_heads).clamp(1, most_pages);
        let most = if self.context.is_software {
            PAGES_OF_SOFTWARE
        } else {
            most_pages
        };
        let pages_of_split = most_pages.div_ceil(wanted_splits).min(most);
        let call = Call {
            rows: rows as u32,
            outputs: wanted.rows.len() as u32,
            splits: most_pages.div_ceil(pages_of_split) as u32,
            pages_of_split: pages_of_split as u32,
            tiles_at: tiles_at as u32,
            outputs_at: outputs_at as u32,
            returns: u32::from(wanted.keys_and_values),
            unused: 0,
        };
        (call, table)
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
    fn steps_of(&self, call: &Call, wanted: &Wanted) -> Vec<usize> {
        let is_needed = |index: &usize| {
            let Step {
                work,
                of_outputs,
                phase,
                ..
            } = &self.steps[*index];
            let is_wanted = !of_outputs || (wanted.logits && call.outputs > 0);
            let is_split = !matches!(work, Work::Combine { .. }) || call.splits > 1;
            is_wanted && is_split && phase.is_none_or(|phase| phase == wanted.phase)
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
            &chunk.call,
            self.pipelines.variant.tile(),
        )
    }

    /// Encodes the dispatches of some steps in one compute pass.
    fn encode(&mut self, steps: &[usize], chunk: &Chunk) -> Result<wgpu::CommandEncoder> {
        let mut encoder = self
            .context
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for &step in steps {
                let (kernel, groups) = self.dispatch(step, chunk);
                pass.set_pipeline(self.pipelines.get(&self.context, kernel)?);
                pass.set_bind_group(0, &self.groups.1[step], &[]);
                let [x, y, z] = groups.map(|count| count as u32);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        Ok(encoder)
    }

    /// Encodes the copies of the outputs that the CPU reads.
    fn copy_outputs(&self, encoder: &mut wgpu::CommandEncoder, call: &Call, wanted: &Wanted) {
        let Self {
            buffers,
            description,
            ..
        } = self;
        let staging = buffers.get(Place::Staging);
        let bytes = |words: usize| (words * WORD) as u64;
        let mut at = 0;
        if wanted.logits {
            at = bytes(wanted.rows.len() * description.vocab);
            if at > 0 {
                encoder.copy_buffer_to_buffer(buffers.get(Place::Logits), 0, staging, 0, at);
            }
        } else {
            // Copies adjacent rows together.
            for run in wanted.rows.chunk_by(|row, next| row + 1 == *next) {
                let (first, size) = (
                    bytes(run[0] * description.hidden),
                    bytes(run.len() * description.hidden),
                );
                encoder.copy_buffer_to_buffer(buffers.get(Place::Stream), first, staging, at, size);
                at += size;
            }
        }
        if wanted.keys_and_values {
            let size = bytes(returned_words(description, call.rows as usize));
            encoder.copy_buffer_to_buffer(buffers.get(Place::Returned), 0, staging, at, size);
        }
    }
}

/// Tests each variant on the kernels of models with usual head dimensions and all weight formats.
///
/// # Errors
/// If no variant passes, or the GPU fails.
pub(super) fn prove_all(
    context: &Context,
    variants: &[ModelVariant],
) -> Result<Vec<(ModelVariant, VariantState)>> {
    let mut kernels = vec![Kernel::Quantize, Kernel::Norm, Kernel::Activate];
    kernels.extend(WeightFormat::ALL.into_iter().flat_map(product_kernels));
    for head_dim in [64, 128] {
        let dim = head_dim as u32;
        let (most, _) = Kernel::attention_tile(head_dim);
        kernels.extend([Kernel::Rope(dim), Kernel::Combine(dim)]);
        kernels.extend([1, most as u32].map(|queries| Kernel::Attention(dim, queries)));
    }
    Ok(proof::choose(context, variants, &kernels)?.1)
}

impl Work {
    /// Returns the kernels that may compute this work.
    fn kernels(self) -> impl Iterator<Item = Kernel> {
        let kernels = match self {
            Self::Norm => vec![Kernel::Norm],
            Self::Quantize { .. } => vec![Kernel::Quantize],
            Self::Product { format, .. } => product_kernels(format).into(),
            Self::Rope { head_dim, .. } => vec![Kernel::Rope(head_dim as u32)],
            Self::Attention {
                head_dim,
                heads,
                kv_heads,
            } => [1, 2]
                .map(|rows| attention_kernel(head_dim, heads / kv_heads, rows))
                .into(),
            Self::Combine { head_dim, .. } => vec![Kernel::Combine(head_dim as u32)],
            Self::Activate { .. } => vec![Kernel::Activate],
        };
        kernels.into_iter()
    }

    /// Returns the number of workgroups of a matmul with this kernel.
    fn groups_of_product(kernel: Kernel, rows: usize, columns: usize, tile: usize) -> [usize; 3] {
        match kernel {
            Kernel::Rows(format, together) => [
                columns.div_ceil(format.rows_columns()),
                rows.div_ceil(together as usize),
                1,
            ],
            _ => [columns.div_ceil(tile), rows.div_ceil(tile), 1],
        }
    }

    /// Returns the kernel for `rows` rows, and the number of workgroups of its dispatch.
    fn dispatch(self, rows: usize, tiles: usize, call: &Call, tile: usize) -> (Kernel, [usize; 3]) {
        match self {
            Self::Norm => (Kernel::Norm, [rows, 1, 1]),
            Self::Quantize { .. } => (Kernel::Quantize, [rows, 1, 1]),
            Self::Product { format, columns } => {
                let [one, few, many] = product_kernels(format);
                let kernel = match rows {
                    1 => one,
                    2..=FEW_ROWS => few,
                    _ => many,
                };
                (kernel, Self::groups_of_product(kernel, rows, columns, tile))
            }
            Self::Rope { head_dim, heads } => (Kernel::Rope(head_dim as u32), [heads, rows, 1]),
            Self::Attention {
                head_dim,
                heads,
                kv_heads,
            } => {
                let of_key_head = heads / kv_heads;
                let kernel = attention_kernel(head_dim, of_key_head, rows.div_ceil(tiles));
                let (queries, _) = Kernel::attention_tile(head_dim);
                (
                    kernel,
                    [
                        kv_heads * of_key_head.div_ceil(of_key_head.min(queries)),
                        tiles,
                        call.splits as usize,
                    ],
                )
            }
            Self::Combine { head_dim, heads } => {
                (Kernel::Combine(head_dim as u32), [heads, rows, 1])
            }
            Self::Activate { quads } => (
                Kernel::Activate,
                [quads.div_ceil(ACTIVATE_THREADS), rows, 1],
            ),
        }
    }
}

/// Returns the kernels for one row, few rows and many rows.
fn product_kernels(format: WeightFormat) -> [Kernel; 3] {
    [
        Kernel::Rows(format, 1),
        Kernel::Rows(format, ROWS_TOGETHER),
        Kernel::Tile(format),
    ]
}

/// Returns the attention kernel. Tiles of one row only have as many queries as query heads per key head.
fn attention_kernel(head_dim: usize, of_key_head: usize, tile_rows: usize) -> Kernel {
    let (most, _) = Kernel::attention_tile(head_dim);
    let queries = if tile_rows == 1 {
        of_key_head.min(most).next_power_of_two()
    } else {
        most
    };
    Kernel::Attention(head_dim as u32, queries as u32)
}

/// Returns the kernels that a chunk may need, without duplicates.
fn kernels_of(steps: &[Step]) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for kernel in steps.iter().flat_map(|step| step.work.kernels()) {
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
    }
    kernels
}
