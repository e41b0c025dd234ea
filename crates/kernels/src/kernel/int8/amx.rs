//! AMX: `tdpbusd` adds the products of sixteen rows of 64 unsigned bytes by sixteen columns of 64 signed ones to 256
//! sums.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_epi32, _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi32, _mm512_sub_epi32,
};
use std::ops::Range;

use super::avx512_vnni::Avx512Vnni;
use super::quantize::ActivationRow;
use super::rows::Outliers;
use super::shadow::ShadowColumns;
use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle};
use crate::amx::{AHEAD, BYTES, LANES, Native, Operands, ROWS, Ready, Sums, Tiles};
use crate::kernel::avx512::{lanes, load};

/// Bytes of the rows of one task: a core's second-level cache holds them together with weights.
const TASK_BYTES: usize = 768 << 10;
/// Maximum number of rows per task.
const TASK_ROWS: usize = 512;

/// The kernel. `vpdpbusd` multiplies fewer rows than a tile has; operations other than products are those of the
/// AVX-512 kernel.
pub(in crate::kernel) struct Amx<T> {
    tiles: T,
    vectors: Avx512Vnni,
}

impl Amx<Native> {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Some(Self {
            tiles: Native::new()?,
            vectors: Avx512Vnni::new()?,
        })
    }
}

#[cfg(test)]
impl Amx<crate::amx::Emulated> {
    /// Returns the kernel on a matrix unit in plain Rust.
    pub(in crate::kernel) fn emulated() -> Option<Self> {
        Some(Self {
            tiles: crate::amx::Emulated,
            vectors: Avx512Vnni::new()?,
        })
    }
}

impl<T: Tiles> Int8Kernel for Amx<T> {
    fn name(&self) -> &'static str {
        "amx-tdpbusd"
    }

    /// Returns as many rows as fit: loading weights from memory takes longer than multiplying them, so each load should
    /// serve as many rows as possible.
    fn task_rows(&self, in_features: usize) -> usize {
        (TASK_BYTES / in_features / (2 * ROWS) * (2 * ROWS)).clamp(2 * ROWS, TASK_ROWS)
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

/// Computes two tiles of rows by two blocks of columns at a time. Rows are tiles of sixteen; the last ones overlap
/// those before them, and outputs that are computed twice have the same bits.
#[target_feature(enable = "avx512f")]
fn multiply<T: Tiles>(tiles: &Ready<T>, rectangle: &Rectangle) {
    let Range { start, end } = rectangle.rows;
    let last_tile = end - ROWS;
    let weight = rectangle.weight;
    let mut sums = Sums::new();
    for column in rectangle.columns.clone().step_by(2 * BLOCK) {
        let blocks = Blocks::new(rectangle, column);
        // The weights of the following blocks are prefetched into the second-level cache.
        let mut ahead = weight.blocks(column / BLOCK + 2, 2).as_flattened();
        for row in (start..end).step_by(2 * ROWS) {
            let rows = [row.min(last_tile), (row + ROWS).min(last_tile)];
            let now = ahead
                .split_off(..ahead.len().min(weight.in_features / BYTES * AHEAD))
                .unwrap_or_default();
            add_products(tiles, rectangle, rows, &blocks, now, &mut sums);
            for (row, sums) in rows.into_iter().zip(sums.0.as_chunks().0) {
                blocks.write(rectangle, row, sums);
            }
        }
    }
}

/// Two blocks of columns, and the numbers that convert their sums to outputs. A single last block is multiplied twice.
struct Blocks<'a> {
    weights: [&'a [[i8; STEP]]; 2],
    columns: [Range<usize>; 2],
    /// The excess of the sums, due to the offset of activations.
    excess: [__m512i; 2],
    scales: [__m512; 2],
    biases: [__m512; 2],
}

impl<'a> Blocks<'a> {
    /// Creates the blocks from `column` on.
    #[target_feature(enable = "avx512f")]
    fn new(rectangle: &Rectangle<'a>, column: usize) -> Self {
        let (weight, end) = (rectangle.weight, rectangle.columns.end);
        let second = if column + BLOCK < end {
            column + BLOCK
        } else {
            column
        };
        let firsts = [column, second];
        let columns = firsts.map(|first| first..(first + BLOCK).min(end));
        let (mut excess, mut scales) = ([_mm512_setzero_si512(); 2], [_mm512_setzero_ps(); 2]);
        let mut biases = scales;
        for (index, columns) in columns.iter().enumerate() {
            // Activations are stored 128 too large.
            excess[index] = _mm512_slli_epi32::<7>(load_i32(&weight.sums[columns.clone()]));
            scales[index] = load(&weight.scales[columns.clone()]);
            if let Some(bias) = rectangle.bias {
                biases[index] = load(&bias[columns.clone()]);
            }
        }
        Self {
            weights: firsts.map(|first| weight.block(first / BLOCK)),
            columns,
            excess,
            scales,
            biases,
        }
    }

    /// Writes the outputs of a tile of rows, in the order of operations of [`output`](super::output).
    #[target_feature(enable = "avx512f")]
    fn write(&self, rectangle: &Rectangle, row: usize, sums: &[[i32; 2 * LANES]; ROWS]) {
        let masks = self.columns.each_ref().map(|columns| lanes(columns.len()));
        let row_scales = rectangle.x.scales()[row..]
            .first_chunk::<ROWS>()
            .expect("every row has a scale");
        for (index, (sums, row_scale)) in sums.iter().zip(row_scales).enumerate() {
            for (block, sums) in sums.as_chunks::<LANES>().0.iter().enumerate() {
                // SAFETY: sixteen sums are a register; only this task writes the rectangle, and the mask covers the
                // slice's length.
                #[allow(unsafe_code)]
                unsafe {
                    let sum = _mm512_sub_epi32(
                        _mm512_loadu_si512(sums.as_ptr().cast()),
                        self.excess[block],
                    );
                    let scale = _mm512_mul_ps(_mm512_set1_ps(*row_scale), self.scales[block]);
                    let value = _mm512_add_ps(
                        _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale),
                        self.biases[block],
                    );
                    let out = rectangle.out.row(row + index, self.columns[block].clone());
                    _mm512_mask_storeu_ps(out.as_mut_ptr(), masks[block], value);
                }
            }
        }
    }
}

/// Loads at most sixteen numbers; the other lanes are zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_i32(values: &[i32]) -> __m512i {
    // SAFETY: the mask covers the slice's length.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_maskz_loadu_epi32(lanes(values.len()), values.as_ptr())
    }
}

/// Computes the sums of all products of two tiles of rows and two blocks of columns. Prefetches `ahead`.
fn add_products<T: Tiles>(
    tiles: &Ready<T>,
    rectangle: &Rectangle,
    rows: [usize; 2],
    blocks: &Blocks,
    ahead: &[i8],
    sums: &mut Sums<i32>,
) {
    let stride = rectangle.x.stride();
    let weights = blocks.weights;
    let x = rows.map(|row| &rectangle.x.bytes()[row * stride..][..ROWS * stride]);
    let whole = stride / BYTES;
    assert!(
        weights.iter().all(|block| block.len() == stride / QUAD),
        "expected as many steps as activations have quads"
    );
    if whole > 0 {
        // If nothing is left to prefetch, prefetches the weights that are being multiplied.
        let ahead = if ahead.len() < whole * AHEAD {
            weights[0].as_flattened()
        } else {
            ahead
        };
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
            tiles.add_int8(&operands, ahead.as_ptr().cast(), sums.place(), true);
        }
    }
    if !stride.is_multiple_of(BYTES) {
        // The rest of each row, padded with zeros.
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
            tiles.add_int8(&operands, operands.columns[0], sums.place(), whole == 0);
        }
    }
}
