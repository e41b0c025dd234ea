//! Runs a chunk in submissions of limited length. Each is submitted when the previous one is complete. Steps share a
//! submission as long as they fit. A matmul or an attention step that does not fit alone is split into pieces. Pieces
//! use the same kernel as the whole step, and one workgroup computes each output, so that slices change no bit of the
//! results.

use std::ops::Range;
use std::time::Instant;

use bytemuck::{bytes_of, pod_read_unaligned};
use wgpu::BufferBinding;

use super::super::context::UNIFORM;
use super::super::pace::Pace;
use super::buffers::WORD;
use super::call::Call;
use super::gpu_model::GpuModel;
use super::item::Item;
use super::kernels::Kernel;
use super::steps::{StepBuffer, Work};
use super::uniforms::{NONE, ProductUniforms};
use super::weight_format::WeightFormat;
use crate::error::Result;

/// Rows and columns of a piece of a matmul are multiples of these. All buffer offsets are then multiples of 256 bytes,
/// which every GPU accepts, and no tile is cut.
const PIECE_ROWS: usize = 64;
const PIECE_COLUMNS: usize = 128;

/// The call that is being run, without its steps.
pub(super) struct Chunk<'a> {
    pub call: Call,
    pub table: &'a [u32],
    pub tiles: usize,
    /// Maximum number of rows in a tile.
    pub tile_rows: usize,
}

/// A part of a step.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Product {
        rows: Range<usize>,
        columns: Range<usize>,
    },
    Attention {
        tiles: Range<usize>,
    },
}

impl GpuModel {
    /// Runs `steps`, given by index, except the last ones. These are returned, so that they are submitted together with
    /// the copies of outputs.
    ///
    /// # Errors
    /// If the GPU fails.
    pub(super) fn run_in_slices(
        &mut self,
        pace: &mut Pace<Kernel>,
        steps: &[usize],
        chunk: &Chunk,
    ) -> Result<Vec<usize>> {
        let (mut batch, mut of_batch, mut expected) = (Vec::new(), Vec::new(), 0.0);
        for &step in steps {
            let (kernel, _) = self.dispatch(step, chunk);
            let units = self.units(step, chunk);
            let seconds = pace.seconds(kernel, units);
            let is_cut = !pace.fits(seconds) && self.steps[step].work.has_pieces();
            if !batch.is_empty() && (is_cut || !pace.fits(expected + seconds)) {
                self.submit_steps(pace, &batch, &of_batch, chunk)?;
                (expected, batch, of_batch) = (0.0, Vec::new(), Vec::new());
            }
            if is_cut {
                self.run_in_pieces(pace, step, kernel, units, chunk)?;
            } else {
                batch.push(step);
                of_batch.push((kernel, units));
                expected += pace.seconds(kernel, units);
            }
        }
        Ok(batch)
    }

    fn submit_steps(
        &mut self,
        pace: &mut Pace<Kernel>,
        steps: &[usize],
        units: &[(Kernel, f64)],
        chunk: &Chunk,
    ) -> Result<()> {
        let encoder = self.encode(steps.iter().copied().map(Item::Step), chunk)?;
        let start = Instant::now();
        self.context.run_without_outputs(encoder)?;
        pace.learn(units, start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Runs one step of `units` units of work in pieces.
    fn run_in_pieces(
        &mut self,
        pace: &mut Pace<Kernel>,
        step: usize,
        kernel: Kernel,
        units: f64,
        chunk: &Chunk,
    ) -> Result<()> {
        match self.steps[step].work {
            Work::Product { columns, .. } => {
                let rows = self.rows_of(step, chunk);
                let of_row = units / rows as f64;
                let mut row = 0;
                while row < rows {
                    let count = pace.count(kernel, of_row, rows - row, PIECE_ROWS);
                    let of_column = of_row * count as f64 / columns as f64;
                    let mut column = 0;
                    while column < columns {
                        let taken = pace.count(kernel, of_column, columns - column, PIECE_COLUMNS);
                        let piece = Piece::Product {
                            rows: row..row + count,
                            columns: column..column + taken,
                        };
                        self.submit_piece(
                            pace,
                            step,
                            (kernel, of_column * taken as f64),
                            &piece,
                            chunk,
                        )?;
                        column += taken;
                    }
                    row += count;
                }
            }
            Work::Attention {
                heads, head_dim, ..
            } => {
                let mut tile = 0;
                while tile < chunk.tiles {
                    let first = tile;
                    let mut of_piece = 0.0;
                    // A piece has at least one tile.
                    while tile < chunk.tiles {
                        let more = chunk.units_of_tile(tile, heads * head_dim);
                        if tile > first && !pace.fits(pace.seconds(kernel, of_piece + more)) {
                            break;
                        }
                        of_piece += more;
                        tile += 1;
                    }
                    self.submit_piece(
                        pace,
                        step,
                        (kernel, of_piece),
                        &Piece::Attention { tiles: first..tile },
                        chunk,
                    )?;
                }
            }
            _ => unreachable!("{:?} has no pieces", self.steps[step].work),
        }
        Ok(())
    }

    fn submit_piece(
        &mut self,
        pace: &mut Pace<Kernel>,
        step: usize,
        (kernel, units): (Kernel, f64),
        piece: &Piece,
        chunk: &Chunk,
    ) -> Result<()> {
        let encoder = self.encode_piece(step, kernel, piece, chunk)?;
        let start = Instant::now();
        self.context.run_without_outputs(encoder)?;
        pace.learn(&[(kernel, units)], start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Encodes a piece. It has its own uniforms and its own offsets into the buffers.
    fn encode_piece(
        &mut self,
        index: usize,
        kernel: Kernel,
        piece: &Piece,
        chunk: &Chunk,
    ) -> Result<wgpu::CommandEncoder> {
        let mut call = chunk.call;
        let tile = self.pipelines.variant.tile();
        let work = self.steps[index].work;
        let (uniforms, offsets, groups) = match piece {
            Piece::Product { rows, columns } => {
                if self.steps[index].of_outputs {
                    call.outputs = rows.len() as u32;
                } else {
                    call.rows = rows.len() as u32;
                }
                let (uniforms, offsets) = self.product_piece(index, piece);
                let groups = Work::groups_of_product(kernel, rows.len(), columns.len(), tile);
                (uniforms, offsets, groups)
            }
            Piece::Attention { tiles } => {
                call.tiles_at += 4 * tiles.start as u32;
                let splits = call.splits as usize;
                let (_, groups) = work.dispatch(call.rows as usize, chunk.tiles, splits, tile);
                let groups = [groups[0], tiles.len(), groups[2]];
                (self.steps[index].uniforms.clone(), [0; 5], groups)
            }
        };
        let Self {
            context,
            steps,
            pipelines,
            buffers,
            pages,
            piece: own,
            ..
        } = self;
        let step = &steps[index];
        context.queue.write_buffer(own, 0, bytes_of(&call));
        context.queue.write_buffer(own, UNIFORM, &uniforms);
        let pages = pages.lock();
        let bound = step.buffers.iter().zip(offsets).map(|(buffer, offset)| {
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
        let size = |bytes: usize| std::num::NonZeroU64::new(bytes.next_multiple_of(16) as u64);
        let of_call = BufferBinding {
            buffer: own,
            offset: 0,
            size: size(size_of::<Call>()),
        };
        let of_step = BufferBinding {
            buffer: own,
            offset: UNIFORM,
            size: size(uniforms.len()),
        };
        let group =
            pipelines.group_at(context, kernel, [of_call, of_step].into_iter().chain(bound));
        drop(pages);
        let mut encoder = context
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(pipelines.get(context, kernel)?);
            pass.set_bind_group(0, &group, &[]);
            let [x, y, z] = groups.map(|count| count as u32);
            pass.dispatch_workgroups(x, y, z);
        }
        Ok(encoder)
    }

    /// Returns the uniforms of a matmul's step.
    pub(super) fn product_uniforms(&self, index: usize) -> ProductUniforms {
        pod_read_unaligned(&self.steps[index].uniforms)
    }

    /// Returns the uniforms of a piece of a matmul, and the bytes at which its buffers begin.
    pub(super) fn product_piece(&self, index: usize, piece: &Piece) -> (Vec<u8>, [usize; 5]) {
        let (Piece::Product { rows, columns }, Work::Product { format, .. }) =
            (piece, self.steps[index].work)
        else {
            unreachable!("{piece:?} of {:?}", self.steps[index].work)
        };
        let mut product = self.product_uniforms(index);
        let in_features = product.units as usize * format.unit();
        let stride = product.stride as usize;
        product.columns = columns.len() as u32;
        product.first += columns.start as u32;
        product.scales_at += columns.start as u32;
        if product.bias_at != NONE {
            product.bias_at += columns.start as u32;
        }
        let (row_bytes, scale_bytes) = format.bytes(in_features);
        let [input, scales] = match format {
            // INT8 numbers, and outliers of each row.
            WeightFormat::W8a8 => [
                rows.start * in_features,
                rows.start * 2 * WORD * (1 + in_features),
            ],
            _ => [rows.start * in_features * WORD, columns.start * scale_bytes],
        };
        let offsets = [
            input,
            columns.start * row_bytes,
            scales,
            0,
            rows.start * stride * WORD,
        ];
        (bytes_of(&product).to_vec(), offsets)
    }

    /// Returns the approximate number of multiplications and additions of a step. The time per unit is learnt for each
    /// kernel separately.
    pub(super) fn units(&self, index: usize, chunk: &Chunk) -> f64 {
        let step = &self.steps[index];
        let rows = self.rows_of(index, chunk) as f64;
        match step.work {
            Work::Norm => 8.0 * rows * self.description.hidden as f64,
            Work::Product { format, columns } => {
                let product: ProductUniforms = pod_read_unaligned(&step.uniforms);
                2.0 * rows * columns as f64 * (product.units as usize * format.unit()) as f64
            }
            Work::Quantize { quads } => 16.0 * rows * quads as f64,
            // Parts of products are counted where they are divided.
            Work::Join { .. } => 0.0,
            Work::Rope { head_dim, heads } => 8.0 * rows * (head_dim * heads) as f64,
            Work::Attention {
                head_dim, heads, ..
            } => (0..chunk.tiles)
                .map(|tile| chunk.units_of_tile(tile, heads * head_dim))
                .sum(),
            Work::Combine { head_dim, heads } => {
                4.0 * rows * (head_dim * heads) as f64 * f64::from(chunk.call.splits)
            }
            Work::Activate { quads } => 64.0 * rows * quads as f64,
        }
    }
}

impl Chunk<'_> {
    /// Returns the units of an attention tile. A tile computes all its rows, including absent ones, with every position
    /// up to its last.
    fn units_of_tile(&self, tile: usize, width: usize) -> f64 {
        let at = self.call.tiles_at as usize + 4 * tile;
        let positions = self.table[at + 3] as usize + self.tile_rows;
        4.0 * (self.tile_rows * positions * width) as f64
    }
}

impl Work {
    fn has_pieces(self) -> bool {
        matches!(self, Self::Product { .. } | Self::Attention { .. })
    }
}

impl WeightFormat {
    /// Returns the bytes of a row of `in_features` weights, and of its scales.
    fn bytes(self, in_features: usize) -> (usize, usize) {
        match self {
            Self::F32 => (4 * in_features, 0),
            Self::F16 | Self::Bf16 => (2 * in_features, 0),
            Self::Int8 => (in_features, WORD),
            Self::W8a8 => (in_features, 0),
            Self::Int4 => (
                in_features / 2,
                2 * in_features / triad_kernels::int4::GROUP,
            ),
        }
    }
}
