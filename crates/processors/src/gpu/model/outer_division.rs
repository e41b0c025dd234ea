//! Products that a GPU and another processor compute together, as dispatches for a number of rows.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{bytes_of, pod_read_unaligned};
use wgpu::BufferBinding;

use super::super::context::UNIFORM;
use super::buffers::WORD;
use super::call::Call;
use super::divided::Divided;
use super::gpu_model::GpuModel;
use super::item::PieceDispatch;
use super::kernels::Kernel;
use super::outer::Parts;
use super::slices::Piece;
use super::steps::{StepBuffer, Work};
use super::uniforms::JoinUniforms;
use crate::error::Result;
use crate::multiplier::ProductPart;

/// Maximum numbers of rows whose divisions are kept: those of chunks, and of the last ones of a few prompts.
const MAX_KEPT: usize = 16;

/// A dispatch whose bindings are not made yet.
struct Unbound {
    step: usize,
    kernel: Kernel,
    groups: [usize; 3],
    rows: usize,
    uniforms: Vec<u8>,
    /// Bytes at which the binding of each buffer begins.
    offsets: [usize; 5],
}

impl GpuModel {
    /// Returns the divided products for `rows` rows. They are made if they are not known, or if buffers have changed.
    ///
    /// # Errors
    /// If a product cannot be divided at these rows, or there is no memory.
    pub(super) fn divided(&mut self, rows: usize) -> Result<Arc<Vec<Divided>>> {
        let generation = self.groups.0;
        if self.outers.generation != generation || self.outers.divided.len() >= MAX_KEPT {
            self.outers.divided.clear();
            self.outers.generation = generation;
        }
        if let Some(known) = self.outers.divided.get(&rows) {
            return Ok(Arc::clone(known));
        }
        let made = (0..self.outers.list.len()).map(|outer| self.divide(outer, rows));
        let made = Arc::new(made.collect::<Result<Vec<_>>>()?);
        self.outers.divided.insert(rows, Arc::clone(&made));
        Ok(made)
    }

    fn divide(&mut self, outer: usize, rows: usize) -> Result<Divided> {
        let Parts { own, other } = self.outers.list[outer].divide(&self.context, rows)?;
        self.divide_into(outer, &own, other)
    }

    /// Returns the dispatches of parts of the GPU and of the other processor; the latter have the index of a program.
    ///
    /// # Errors
    /// If a part begins where no buffer can, or there is no memory.
    pub(super) fn divide_into(
        &mut self,
        outer: usize,
        own: &[ProductPart],
        other: Vec<(ProductPart, usize)>,
    ) -> Result<Divided> {
        let outer = &self.outers.list[outer];
        let (in_features, stride) = (outer.in_features, outer.columns());
        let operations = |parts: &mut dyn Iterator<Item = &ProductPart>| {
            let outputs: usize = parts.map(|part| part.rows.len() * part.columns.len()).sum();
            2.0 * outputs as f64 * in_features as f64
        };
        let operations = (
            operations(&mut own.iter()),
            operations(&mut other.iter().map(|(part, _)| part)),
        );
        let read = other.iter().map(|(part, _)| part.rows.clone());
        let read = read.reduce(|one, two| one.start.min(two.start)..one.end.max(two.end));
        let widths = other
            .iter()
            .map(|(part, _)| outer.widths_of(&part.columns))
            .collect();
        let mut unbound = Vec::new();
        for part in own {
            unbound.extend(
                outer
                    .product_steps
                    .clone()
                    .filter_map(|step| self.own_part(step, part)),
            );
        }
        let of_own = unbound.len();
        let mut computed_at = 0;
        for (part, _) in &other {
            let joins = outer.join_steps.clone();
            unbound.extend(
                joins.filter_map(|step| self.join(step, part, computed_at, in_features, stride)),
            );
            computed_at += part.rows.len() * part.columns.len();
        }
        let mut dispatches = self.bind_pieces(unbound)?;
        let joins = dispatches.split_off(of_own);
        let (other, programs) = other.into_iter().unzip();
        Ok(Divided {
            own: dispatches,
            joins,
            read: read.unwrap_or(0..0),
            other,
            programs,
            widths,
            operations,
        })
    }

    /// Returns the columns of a step's slab that are in a part, counted from the slab's first one.
    fn in_slab(
        &self,
        first: usize,
        slab_columns: usize,
        part: &ProductPart,
    ) -> Option<Range<usize>> {
        let start = part.columns.start.max(first);
        let end = part.columns.end.min(first + slab_columns);
        (start < end).then(|| start - first..end - first)
    }

    /// Returns the matmul of a part by a slab, if the slab has some of its columns.
    fn own_part(&self, step: usize, part: &ProductPart) -> Option<Unbound> {
        let product = self.product_uniforms(step);
        let columns = self.in_slab(product.first as usize, product.columns as usize, part)?;
        let rows = part.rows.len();
        let tile = self.pipelines.variant.tile();
        let (kernel, _) = self.steps[step].work.dispatch(rows, 1, 1, tile);
        let piece = Piece::Product {
            rows: part.rows.clone(),
            columns: columns.clone(),
        };
        let (uniforms, offsets) = self.product_piece(step, &piece);
        Some(Unbound {
            step,
            kernel,
            groups: Work::groups_of_product(kernel, rows, columns.len(), tile),
            rows,
            uniforms,
            offsets,
        })
    }

    /// Returns the join of another processor's part with a slab, if the slab has some of its columns.
    fn join(
        &self,
        step: usize,
        part: &ProductPart,
        computed_at: usize,
        in_features: usize,
        stride: usize,
    ) -> Option<Unbound> {
        let template: JoinUniforms = pod_read_unaligned(&self.steps[step].uniforms);
        self.in_slab(template.first as usize, template.columns as usize, part)?;
        let uniforms = JoinUniforms {
            computed_from: part.columns.start as u32,
            computed_columns: part.columns.len() as u32,
            computed_at: computed_at as u32,
            ..template
        };
        let rows = part.rows.len();
        let (kernel, groups) =
            self.steps[step]
                .work
                .dispatch(rows, 1, 1, self.pipelines.variant.tile());
        let outliers = part.rows.start * 2 * WORD * (1 + in_features);
        let out = part.rows.start * stride * WORD;
        Some(Unbound {
            step,
            kernel,
            groups,
            rows,
            uniforms: bytes_of(&uniforms).to_vec(),
            offsets: [0, 0, outliers, 0, out],
        })
    }

    /// Writes the uniforms of dispatches, and binds their buffers.
    fn bind_pieces(&mut self, unbound: Vec<Unbound>) -> Result<Vec<PieceDispatch>> {
        let Self {
            context,
            steps,
            pipelines,
            buffers,
            pages,
            ..
        } = self;
        let alignment = context.device.limits().min_storage_buffer_offset_alignment as usize;
        if let Some(wrong) = unbound
            .iter()
            .find(|one| one.offsets.iter().any(|at| !at.is_multiple_of(alignment)))
        {
            let reason = format!(
                "a part of a product begins where no buffer of this GPU can: {:?} is no multiple of {alignment} bytes",
                wrong.offsets
            );
            return Err(crate::error::Error::GpuModel {
                gpu: context.name.clone(),
                reason,
            });
        }
        if unbound.is_empty() {
            return Ok(Vec::new());
        }
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let own = context.buffer("uniforms", 2 * UNIFORM * unbound.len() as u64, usage)?;
        let pages = pages.lock();
        let mut dispatches = Vec::with_capacity(unbound.len());
        for (
            index,
            Unbound {
                step,
                kernel,
                groups,
                rows,
                uniforms,
                offsets,
            },
        ) in (0..).zip(unbound)
        {
            let at = 2 * UNIFORM * index;
            let call = Call {
                rows: rows as u32,
                ..bytemuck::Zeroable::zeroed()
            };
            context.queue.write_buffer(&own, at, bytes_of(&call));
            context.queue.write_buffer(&own, at + UNIFORM, &uniforms);
            let size = |bytes: usize| std::num::NonZeroU64::new(bytes.next_multiple_of(16) as u64);
            let of_call = BufferBinding {
                buffer: &own,
                offset: at,
                size: size(size_of::<Call>()),
            };
            let of_step = BufferBinding {
                buffer: &own,
                offset: at + UNIFORM,
                size: size(uniforms.len()),
            };
            let bound = steps[step]
                .buffers
                .iter()
                .zip(offsets)
                .map(|(buffer, offset)| {
                    let buffer = match buffer {
                        StepBuffer::Of(place) => buffers.get(*place),
                        StepBuffer::Cache(block) => &pages.buffers[*block],
                        StepBuffer::Weights(buffer) => buffer,
                    };
                    BufferBinding {
                        buffer,
                        offset: offset as u64,
                        size: None,
                    }
                });
            let bindings =
                pipelines.group_at(context, kernel, [of_call, of_step].into_iter().chain(bound));
            dispatches.push(PieceDispatch {
                kernel,
                groups,
                bindings,
            });
        }
        Ok(dispatches)
    }
}
