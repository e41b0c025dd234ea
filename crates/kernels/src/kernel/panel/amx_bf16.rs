//! AMX: `tdpbf16ps` adds the products of sixteen rows of 32 numbers in bf16 by sixteen columns to 256 sums in f32.

use std::ops::Range;

use super::avx512_bf16::Avx512Bf16;
use super::{Bf16Kernel, LANES, Panel, PanelKernel, Powers};
use crate::amx::{BYTES, Native, Operands, ROWS, Ready, Sums, Tiles};

/// Words of a row of a tile.
const WORDS: usize = BYTES / size_of::<u32>();

/// The kernel; what is no product is AVX-512's.
pub(in crate::kernel) struct AmxBf16<T> {
    tiles: T,
    vectors: Avx512Bf16,
}

impl AmxBf16<Native> {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Some(Self { tiles: Native::new()?, vectors: Avx512Bf16::new()? })
    }
}

#[cfg(test)]
impl AmxBf16<crate::amx::Emulated> {
    /// The kernel on a matrix unit in plain Rust.
    pub(in crate::kernel) fn emulated() -> Option<Self> {
        Some(Self { tiles: crate::amx::Emulated, vectors: Avx512Bf16::new()? })
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

    fn exp2_and_sum(&self, exponents: &mut [f32], visible: Range<usize>, before: f32, words: &mut [u32]) -> Powers {
        self.vectors.exp2_and_sum(exponents, visible, before, words)
    }
}

/// Two tiles of rows by two blocks of columns at a time. A row's products are summed in one order, whatever rows are beside
/// it.
fn multiply<T: Tiles>(tiles: &Ready<T>, panel: &Panel) {
    let (rows, width) = (panel.out.rows(), panel.columns.len());
    let mut sums = Sums([[[[0.0; LANES]; ROWS]; 2]; 2]);
    for column in (0..width).step_by(2 * LANES) {
        // Where there is one block alone, it is multiplied twice.
        let blocks = [column, if column + LANES < width { column + LANES } else { column }];
        for row in (0..rows).step_by(2 * ROWS) {
            add_products(tiles, panel, [row, row + ROWS], blocks, &mut sums);
            for (row, sums) in [row, row + ROWS].into_iter().zip(&sums.0) {
                for (column, sums) in blocks.iter().take(1 + usize::from(blocks[0] != blocks[1])).zip(sums) {
                    write(panel, row, *column, sums);
                }
            }
        }
    }
}

/// Sums of all products of two tiles of rows and two blocks of columns. Rows and steps that are missing are zeros.
fn add_products<T: Tiles>(tiles: &Ready<T>, panel: &Panel, rows: [usize; 2], blocks: [usize; 2], sums: &mut Sums<f32>) {
    let whole_rows = rows[1] + ROWS <= panel.out.rows();
    let right =
        |step: usize| blocks.map(|block| panel.right[step * panel.right_stride + block..].as_ptr().cast::<u8>());
    let whole = if whole_rows { panel.steps / WORDS } else { 0 };
    if whole > 0 {
        let operands = Operands {
            rows: rows.map(|row| panel.left[row * panel.left_stride..].as_ptr().cast()),
            row_stride: panel.left_stride * size_of::<u32>(),
            columns: right(0),
            column_stride: panel.right_stride * size_of::<u32>(),
            steps: whole,
        };
        // SAFETY: `check` found whole blocks of every step, and every step of every row, in the slices.
        #[allow(unsafe_code)]
        unsafe {
            tiles.add_bf16(&operands, sums, true);
        }
    }
    // A step of the unit at a time, by copies.
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
        // SAFETY: the arrays are whole tiles.
        #[allow(unsafe_code)]
        unsafe {
            tiles.add_bf16(&operands, sums, first == 0);
        }
    }
}

/// Writes the sums of a block for rows from `row` on, as many as there are, or adds them.
fn write(panel: &Panel, row: usize, block: usize, sums: &[[f32; LANES]; ROWS]) {
    let start = panel.columns.start + block;
    let columns = start..(start + LANES).min(panel.columns.end);
    for (row, sums) in (row..panel.out.rows()).zip(sums) {
        // SAFETY: this panel's columns belong to this task alone.
        #[allow(unsafe_code)]
        let out = unsafe { panel.out.row(row, columns.clone()) };
        if panel.add {
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        } else {
            out.copy_from_slice(&sums[..columns.len()]);
        }
    }
}
