//! AMX: `tdpbf16ps` adds the products of sixteen rows of 32 numbers in bf16 by sixteen columns to 256 sums in f32.

use std::ops::Range;

use super::avx512_bf16::Avx512Bf16;
use super::{Bf16Kernel, LANES, Panel, PanelKernel, Powers};
use crate::amx::{BYTES, Native, Operands, Place, ROWS, Ready, Sums, Tiles};

/// Words per row of a tile.
const WORDS: usize = BYTES / size_of::<u32>();

/// The kernel; operations other than products are those of the AVX-512 kernel.
pub(in crate::kernel) struct AmxBf16<T> {
    tiles: T,
    vectors: Avx512Bf16,
}

impl AmxBf16<Native> {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Some(Self {
            tiles: Native::new()?,
            vectors: Avx512Bf16::new()?,
        })
    }
}

#[cfg(test)]
impl AmxBf16<crate::amx::Emulated> {
    /// Returns the kernel on a matrix unit in plain Rust.
    pub(in crate::kernel) fn emulated() -> Option<Self> {
        Some(Self {
            tiles: crate::amx::Emulated,
            vectors: Avx512Bf16::new()?,
        })
    }
}

impl<T: Tiles> PanelKernel for AmxBf16<T> {
    fn name(&self) -> &'static str {
        "amx-tdpbf16ps"
    }

    fn multiply(&self, panel: &Panel) {
        panel.check();
        multiply(&self.tiles.ready(), panel);
    }

    fn step(&self) -> usize {
        2 * WORDS
    }

    /// Returns whole pairs of tiles, with more scores than the first-level cache holds: keys are then loaded fewer
    /// times.
    fn strip(&self) -> usize {
        6 * ROWS
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        self.vectors.transpose(from, from_stride, to, to_stride);
    }
}

impl<T: Tiles> Bf16Kernel for AmxBf16<T> {
    fn to_bf16(&self, row: &[f32], words: &mut [u32]) {
        self.vectors.to_bf16(row, words);
    }

    fn interleave(&self, even: &[f32], odd: &[f32], words: &mut [u32]) {
        self.vectors.interleave(even, odd, words);
    }

    fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        before: f32,
        words: &mut [u32],
    ) -> Powers {
        self.vectors.exp2_and_sum(exponents, visible, before, words)
    }
}

/// Computes two tiles of rows by two blocks of columns at a time; the last tiles of rows overlap those before them. A
/// row's products are added in the same order whatever other rows are in the batch.
fn multiply<T: Tiles>(tiles: &Ready<T>, panel: &Panel) {
    let (rows, width) = (panel.out.rows(), panel.columns.len());
    let last_tile = rows.saturating_sub(ROWS);
    for column in (0..width).step_by(2 * LANES) {
        // A single last block is multiplied twice.
        let blocks = [
            column,
            if column + LANES < width {
                column + LANES
            } else {
                column
            },
        ];
        for row in (0..rows).step_by(2 * ROWS) {
            let from = [row, row + ROWS];
            let tile = Tile {
                panel,
                rows: from.map(|row| row.min(last_tile)),
                from,
                blocks,
            };
            tile.multiply(tiles);
        }
    }
}

/// Two tiles of rows and two blocks of columns of a panel.
struct Tile<'a> {
    panel: &'a Panel<'a>,
    /// Start of each tile of rows.
    rows: [usize; 2],
    /// First row of each tile that is written; the rows before it belong to another tile.
    from: [usize; 2],
    /// Start of each block within the panel.
    blocks: [usize; 2],
}

impl Tile<'_> {
    fn multiply<T: Tiles>(&self, tiles: &Ready<T>) {
        let Self {
            panel,
            rows,
            from,
            blocks,
        } = *self;
        let columns = panel.columns.start + blocks[0]..panel.columns.start + blocks[0] + 2 * LANES;
        // Both tiles are loaded before one is stored, so rows that both contain are added to once. Rows that another
        // pair of tiles also contains would be added to twice.
        let once = rows[0] == from[0] || !panel.add;
        if once && panel.out.rows() >= ROWS && columns.end <= panel.columns.end {
            // The sums are accumulated in the output itself.
            let tiles_of_out = rows.map(|row| panel.out.pointer(row, columns.start));
            let place = Place {
                tiles: tiles_of_out,
                stride: panel.out.stride(),
            };
            // SAFETY: only this task writes this panel's columns, and there are sixteen rows from each of these on.
            #[allow(unsafe_code)]
            unsafe {
                self.add_products(tiles, place, panel.add);
            }
            return;
        }
        let mut sums = Sums::new();
        if panel.add {
            self.each_row(|out, sums| sums.copy_from_slice(out), &mut sums);
        }
        let place = sums.place();
        // SAFETY: the place has whole tiles.
        #[allow(unsafe_code)]
        unsafe {
            self.add_products(tiles, place, panel.add);
        }
        self.each_row(|out, sums| out.copy_from_slice(sums), &mut sums);
    }

    /// Calls `copy` with the outputs and sums of each row that is written, block by block.
    fn each_row(&self, copy: impl Fn(&mut [f32], &mut [f32]), sums: &mut Sums<f32>) {
        let Self {
            panel,
            rows,
            from,
            blocks,
        } = *self;
        let count = 1 + usize::from(blocks[0] != blocks[1]);
        for (sums, (row, from)) in sums
            .0
            .as_chunks_mut::<ROWS>()
            .0
            .iter_mut()
            .zip(rows.into_iter().zip(from))
        {
            for (row, sums) in (row..panel.out.rows())
                .zip(sums)
                .filter(|(row, _)| *row >= from)
            {
                for (block, sums) in blocks
                    .into_iter()
                    .zip(sums.as_chunks_mut::<LANES>().0)
                    .take(count)
                {
                    let start = panel.columns.start + block;
                    let columns = start..(start + LANES).min(panel.columns.end);
                    let width = columns.len();
                    // SAFETY: only this task writes this panel's columns.
                    #[allow(unsafe_code)]
                    let out = unsafe { panel.out.row(row, columns) };
                    copy(out, &mut sums[..width]);
                }
            }
        }
    }

    /// Adds all products to the sums, or to zero if not `add`. Missing rows and steps are zeros.
    ///
    /// # Safety
    /// All sums must be readable and writable.
    #[allow(unsafe_code)]
    unsafe fn add_products<T: Tiles>(&self, tiles: &Ready<T>, sums: Place<f32>, add: bool) {
        let Self {
            panel,
            rows,
            blocks,
            ..
        } = *self;
        let right = |step: usize| {
            blocks.map(|block| {
                panel.right[step * panel.right_stride + block..]
                    .as_ptr()
                    .cast::<u8>()
            })
        };
        let whole = if panel.out.rows() >= ROWS {
            panel.steps / WORDS
        } else {
            0
        };
        if whole > 0 {
            let operands = Operands {
                rows: rows.map(|row| panel.left[row * panel.left_stride..].as_ptr().cast()),
                row_stride: panel.left_stride * size_of::<u32>(),
                columns: right(0),
                column_stride: panel.right_stride * size_of::<u32>(),
                steps: whole,
            };
            // SAFETY: `check` verified that the slices have whole blocks of every step, and every step of every row;
            // sums are as the caller promises.
            unsafe { tiles.add_bf16(&operands, sums, !add) };
        }
        // The remaining steps, copied and padded to a whole step of the unit.
        for first in (whole * WORDS..panel.steps).step_by(WORDS) {
            let steps = first..(first + WORDS).min(panel.steps);
            let (mut left, mut columns) = ([[[0u32; WORDS]; ROWS]; 2], [[[0u32; LANES]; WORDS]; 2]);
            for (left, row) in left.iter_mut().zip(rows) {
                for (to, row) in left.iter_mut().zip(row..panel.out.rows()) {
                    let row = &panel.left[row * panel.left_stride..];
                    to[..steps.len()].copy_from_slice(&row[steps.clone()]);
                }
            }
            for (columns, block) in columns.iter_mut().zip(blocks) {
                for (to, step) in columns.iter_mut().zip(steps.clone()) {
                    to.copy_from_slice(&panel.right[step * panel.right_stride + block..][..LANES]);
                }
            }
            let operands = Operands {
                rows: left.each_ref().map(|tile| tile.as_ptr().cast()),
                row_stride: BYTES,
                columns: columns.each_ref().map(|tile| tile.as_ptr().cast()),
                column_stride: BYTES,
                steps: 1,
            };
            // SAFETY: the arrays are whole tiles; sums as the caller promises.
            unsafe { tiles.add_bf16(&operands, sums, first == 0 && !add) };
        }
    }
}
