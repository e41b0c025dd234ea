//! AMX: `tdpbusd` adds the products of sixteen rows of 64 unsigned bytes by sixteen columns of 64 signed ones to 256 sums.

use std::arch::x86_64::{
    __m512i, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_epi32,
    _mm512_mul_ps, _mm512_set1_ps, _mm512_slli_epi32, _mm512_sub_epi32,
};
use std::ops::Range;

use super::avx512_vnni::Avx512Vnni;
use super::quantize::ActivationRow;
use super::rows::Outliers;
use super::shadow::ShadowColumns;
use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle};
use crate::amx::{BYTES, LANES, Native, Operands, ROWS, Ready, Sums, Tiles};
use crate::kernel::avx512::{lanes, load};

/// The kernel. Fewer rows than a tile has are multiplied by `vpdpbusd`, and what is no product is AVX-512's.
pub(in crate::kernel) struct Amx<T> {
    tiles: T,
    vectors: Avx512Vnni,
}

impl Amx<Native> {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Some(Self { tiles: Native::new()?, vectors: Avx512Vnni::new()? })
    }
}

#[cfg(test)]
impl Amx<crate::amx::Emulated> {
    /// The kernel on a matrix unit in plain Rust.
    pub(in crate::kernel) fn emulated() -> Option<Self> {
        Some(Self { tiles: crate::amx::Emulated, vectors: Avx512Vnni::new()? })
    }
}

impl<T: Tiles> Int8Kernel for Amx<T> {
    fn name(&self) -> &'static str {
        "amx-tdpbusd"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        if rectangle.rows.len() < ROWS {
            self.vectors.multiply(rectangle);
            return;
        }
        // SAFETY: `vectors` proves that the processor has AVX-512.
        #[allow(unsafe_code)]
        unsafe {
            multiply(&self.tiles.ready(), rectangle);
        }
    }

    fn quantize(&self, row: &ActivationRow, numbers: &mut [u8], outliers: &mut Outliers) {
        self.vectors.quantize(row, numbers, outliers);
    }

    fn shadow(&self, columns: &ShadowColumns) {
        self.vectors.shadow(columns);
    }
}

/// Two tiles of rows by two blocks of columns at a time. Rows are tiles of sixteen; the last ones overlap those before them,
/// and what is computed twice has the same bits.
#[target_feature(enable = "avx512f")]
fn multiply<T: Tiles>(tiles: &Ready<T>, rectangle: &Rectangle) {
    let Range { start, end } = rectangle.rows;
    let last_tile = end - ROWS;
    let mut sums = Sums([[[[0; LANES]; ROWS]; 2]; 2]);
    for column in rectangle.columns.clone().step_by(2 * BLOCK) {
        let second = column + BLOCK;
        // Where there is one block alone, it is multiplied twice.
        let blocks = [column, if second < rectangle.columns.end { second } else { column }];
        for row in (start..end).step_by(2 * ROWS) {
            let of_rows = [row.min(last_tile), (row + ROWS).min(last_tile)];
            add_products(tiles, rectangle, of_rows, blocks, &mut sums);
            for (row, sums) in of_rows.into_iter().zip(&sums.0) {
                for (column, sums) in blocks.into_iter().zip(sums) {
                    write(rectangle, row, column, sums);
                }
            }
        }
    }
}

/// Sums of all products of two tiles of rows, and of two blocks that begin with columns.
fn add_products<T: Tiles>(
    tiles: &Ready<T>,
    rectangle: &Rectangle,
    rows: [usize; 2],
    columns: [usize; 2],
    sums: &mut Sums<i32>,
) {
    let stride = rectangle.x.stride();
    let weights = columns.map(|column| rectangle.weight.block(column / BLOCK));
    let x = rows.map(|row| &rectangle.x.bytes()[row * stride..][..ROWS * stride]);
    let whole = stride / BYTES;
    assert!(weights.iter().all(|block| block.len() == stride / QUAD), "as many steps as activations have quads");
    if whole > 0 {
        let operands = Operands {
            rows: x.map(<[u8]>::as_ptr),
            row_stride: stride,
            columns: weights.map(|block| block.as_ptr().cast()),
            column_stride: STEP,
            steps: whole,
        };
        // SAFETY: the slices are sixteen rows of `stride` bytes, and a step for each quad of these.
        #[allow(unsafe_code)]
        unsafe {
            tiles.add_int8(&operands, sums, true);
        }
    }
    if !stride.is_multiple_of(BYTES) {
        // The end of each row, and zeros behind it.
        let (mut x_rest, mut weights_rest) = ([[[0u8; BYTES]; ROWS]; 2], [[[0i8; STEP]; ROWS]; 2]);
        let rest = stride - whole * BYTES;
        for (x_rest, x) in x_rest.iter_mut().zip(x) {
            for (to, row) in x_rest.iter_mut().zip(x.chunks_exact(stride)) {
                to[..rest].copy_from_slice(&row[whole * BYTES..]);
            }
        }
        for (weights_rest, block) in weights_rest.iter_mut().zip(weights) {
            weights_rest[..rest / QUAD].copy_from_slice(&block[whole * ROWS..]);
        }
        let operands = Operands {
            rows: x_rest.each_ref().map(|tile| tile.as_ptr().cast()),
            row_stride: BYTES,
            columns: weights_rest.each_ref().map(|tile| tile.as_ptr().cast()),
            column_stride: STEP,
            steps: 1,
        };
        // SAFETY: the arrays are whole tiles.
        #[allow(unsafe_code)]
        unsafe {
            tiles.add_int8(&operands, sums, whole == 0);
        }
    }
}

/// Ends the outputs of a tile, in the order of operations of [`output`](super::output).
#[target_feature(enable = "avx512f")]
fn write(rectangle: &Rectangle, row: usize, column: usize, sums: &[[i32; LANES]; ROWS]) {
    let columns = column..(column + BLOCK).min(rectangle.columns.end);
    let mask = lanes(columns.len());
    let load_i32 = |values: &[i32]| -> __m512i {
        // SAFETY: the mask covers the slice's length.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_maskz_loadu_epi32(lanes(values.len()), values.as_ptr())
        }
    };
    // Activations are stored 128 too large.
    let excess = _mm512_slli_epi32::<7>(load_i32(&rectangle.weight.sums[columns.clone()]));
    let scales = load(&rectangle.weight.scales[columns.clone()]);
    let biases = load(rectangle.bias.map_or(&[][..], |bias| &bias[columns.clone()]));
    let row_scales = rectangle.x.scales()[row..].first_chunk::<ROWS>().expect("a scale for each row");
    for ((index, sums), row_scale) in sums.iter().enumerate().zip(row_scales) {
        // SAFETY: sixteen sums are a register; the rectangle belongs to this task alone, and the mask covers the slice's
        // length.
        #[allow(unsafe_code)]
        unsafe {
            let sum = _mm512_sub_epi32(_mm512_loadu_si512(sums.as_ptr().cast()), excess);
            let value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(_mm512_set1_ps(*row_scale), scales));
            let out = rectangle.out.row(row + index, columns.clone());
            _mm512_mask_storeu_ps(out.as_mut_ptr(), mask, _mm512_add_ps(value, biases));
        }
    }
}
