//! Runs a subgraph in submissions of limited length. Each is submitted when the previous one is complete. Dispatches
//! share a submission as long as they fit. A matmul that does not fit alone is split into pieces of its rows. Sums are
//! exact, so slices change no bit of the results.

use std::ops::Range;
use std::sync::PoisonError;
use std::time::Instant;

use super::context::{UNIFORM, WORD};
use super::program::{Dispatch, GpuProgram, Kind, ProductUniforms};
use super::scratch::Buffers;
use crate::error::Result;

/// Rows of a piece are a multiple of this. Offsets of inputs are then multiples of 256 bytes, which every GPU accepts,
/// and no tile is cut.
const PIECE_ROWS: usize = 64;

impl GpuProgram {
    /// Runs all dispatches on `rows` rows.
    ///
    /// # Errors
    /// If the GPU fails.
    pub(super) fn run_in_slices(&self, rows: usize, buffers: &Buffers) -> Result<()> {
        let (mut batch, mut of_batch, mut expected) = (Vec::new(), Vec::new(), 0.0);
        for dispatch in self.dispatches() {
            let (kind, of_row) = self.units(dispatch);
            let seconds = self.paced(|pace| pace.seconds(kind, of_row * rows as f64));
            let fits = |seconds| self.paced(|pace| pace.fits(seconds));
            let is_cut = kind == Kind::Multiply && !fits(seconds);
            if !batch.is_empty() && (is_cut || !fits(expected + seconds)) {
                self.submit(self.encode(&batch, rows), &of_batch)?;
                (expected, batch, of_batch) = (0.0, Vec::new(), Vec::new());
            }
            match dispatch {
                Dispatch::Product(product) if is_cut => {
                    let mut row = 0;
                    while row < rows {
                        let count =
                            self.paced(|pace| pace.count(kind, of_row, rows - row, PIECE_ROWS));
                        let encoder = self.encode_rows(product, row..row + count, rows, buffers);
                        self.submit(encoder, &[(kind, of_row * count as f64)])?;
                        row += count;
                    }
                }
                _ => {
                    batch.push(dispatch);
                    of_batch.push((kind, of_row * rows as f64));
                    expected += seconds;
                }
            }
        }
        self.submit(self.encode(&batch, rows), &of_batch)
    }

    fn submit(&self, encoder: wgpu::CommandEncoder, units: &[(Kind, f64)]) -> Result<()> {
        let start = Instant::now();
        self.shared.context.run_without_outputs(encoder)?;
        self.paced(|pace| pace.learn(units, start.elapsed().as_secs_f64()));
        Ok(())
    }

    fn paced<T>(&self, act: impl FnOnce(&mut super::pace::Pace<Kind>) -> T) -> T {
        let pace = self
            .shared
            .pace
            .as_ref()
            .expect("a program in slices has a pace");
        act(&mut pace.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the kind of a dispatch, and its approximate number of multiplications and additions per row.
    fn units(&self, dispatch: Dispatch) -> (Kind, f64) {
        match dispatch {
            Dispatch::Product(index) => {
                let product = &self.products[index];
                (
                    Kind::Multiply,
                    2.0 * (product.columns * product.quads * WORD) as f64,
                )
            }
            Dispatch::Activate => (Kind::Activate, 16.0 * self.width() as f64),
        }
    }

    /// Encodes a matmul on some of `all` rows. It has its own uniforms and its own offset of the input.
    fn encode_rows(
        &self,
        index: usize,
        rows: Range<usize>,
        all: usize,
        buffers: &Buffers,
    ) -> wgpu::CommandEncoder {
        let (context, product) = (&self.shared.context, &self.products[index]);
        let uniforms = ProductUniforms {
            rows: rows.len() as u32,
            first: (all * product.columns_before + rows.start * product.columns) as u32,
            ..product.uniforms(all)
        };
        // They follow the uniforms of all dispatches.
        let at = self.dispatches().count();
        context.queue.write_buffer(
            &self.uniforms.0,
            UNIFORM * at as u64,
            bytemuck::bytes_of(&uniforms),
        );
        let offset = rows.start * product.quads * WORD;
        let group = self.group_of_product(index, at, offset as u64, buffers);
        self.encode_with(&[(Dispatch::Product(index), &group)], rows.len())
    }
}
