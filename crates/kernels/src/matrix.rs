//! Weight matrices in their storage formats.

use std::ops::Range;

use half::{bf16, f16};

use triad_blocks::{BlockFormat, dequantize};

use crate::dot::{widen_bf16, widen_f16};
use crate::int4;
use crate::vectorize::vectorize;

/// A weight matrix `[out_features, in_features]`, row-major, in its storage format.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE half floats.
    F16(&'a [f16]),
    /// Brain floats.
    Bf16(&'a [bf16]),
    /// INT8 with one scale per row. Activations are rounded to INT16 or bf16; for INT8 activations see
    /// [`int8`](crate::int8).
    Int8 {
        /// `[out_features, in_features]`, row-major.
        values: &'a [i8],
        /// Scale of each row, `[out_features]`.
        scales: &'a [f32],
    },
    /// INT4 with one scale for each group of 32 consecutive numbers of a row, as quantized by
    /// [`quantize_int4`](int4::quantize_int4). Rows have a multiple of 32 columns. Activations are rounded to INT16 or
    /// bf16, and in prefill so are the weights.
    Int4 {
        /// `[out_features, in_features / 2]`, two numbers per byte.
        values: &'a [u8],
        /// Scale of each group, `[out_features, in_features / 32]`.
        scales: &'a [f16],
    },
    /// Quantized blocks of GGUF.
    Blocks(Blocks<'a>),
}

/// A weight matrix in quantized blocks of GGUF, with the bytes of its file.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// Format of all blocks; rows are whole blocks.
    pub format: BlockFormat,
    /// `[out_features, in_features / elements of a block]` blocks.
    pub bytes: &'a [u8],
    /// The arithmetic of products with these blocks.
    pub arithmetic: BlockArithmetic,
}

/// The arithmetic of products with quantized blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockArithmetic {
    /// Activations are rounded to INT16 in decode. In prefill, activations and weights are rounded to INT16 or bf16 if
    /// the processor multiplies that faster than f32, as with INT4.
    #[default]
    Rounded,
    /// f32, as if the weights were widened to it: slower, and the reference.
    Exact,
}

impl Blocks<'_> {
    /// Returns the number of elements.
    pub fn elements(self) -> usize {
        self.bytes.len() / self.format.bytes() * self.format.elements()
    }

    /// Returns some blocks; the range, in elements, consists of whole blocks.
    fn part(self, elements: Range<usize>) -> Self {
        let place = |elements: usize| elements / self.format.elements() * self.format.bytes();
        Self {
            bytes: &self.bytes[place(elements.start)..place(elements.end)],
            ..self
        }
    }
}

impl<'a> Matrix<'a> {
    /// Returns the number of elements.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::Int8 { values, .. } => values.len(),
            Self::Int4 { values, .. } => values.len() * 2,
            Self::Blocks(blocks) => blocks.elements(),
        }
    }

    /// Asserts that scales and columns match the elements. The caller must check the number of elements.
    pub(crate) fn check(self, rows: usize, columns: usize) {
        match self {
            Self::F32(_) | Self::F16(_) | Self::Bf16(_) => {}
            Self::Int8 { scales, .. } => assert_eq!(scales.len(), rows, "one scale per row"),
            Self::Int4 { values, scales } => {
                assert!(
                    columns.is_multiple_of(int4::GROUP),
                    "{columns} columns in groups of {}",
                    int4::GROUP
                );
                int4::check(values, scales);
            }
            Self::Blocks(Blocks { format, bytes, .. }) => {
                assert!(
                    columns.is_multiple_of(format.elements()),
                    "{columns} columns in blocks of {}",
                    format.elements()
                );
                assert!(
                    bytes.len().is_multiple_of(format.bytes()),
                    "{} bytes in blocks of {format}",
                    bytes.len()
                );
            }
        }
    }

    /// Returns whether activations are rounded for products with this matrix.
    pub fn rounds_activations(self) -> bool {
        match self {
            Self::F32(_) | Self::F16(_) | Self::Bf16(_) => false,
            Self::Int8 { .. } | Self::Int4 { .. } => true,
            Self::Blocks(blocks) => blocks.arithmetic == BlockArithmetic::Rounded,
        }
    }

    /// Returns a range of rows of a matrix with this many columns, without a copy. Rows of a weight are output
    /// features, that is, columns of the output.
    ///
    /// # Panics
    /// If the range exceeds the rows.
    pub fn rows(self, rows: Range<usize>, columns: usize) -> Self {
        let per = |divisor: usize| rows.start * columns / divisor..rows.end * columns / divisor;
        match self {
            Self::F32(values) => Self::F32(&values[per(1)]),
            Self::F16(values) => Self::F16(&values[per(1)]),
            Self::Bf16(values) => Self::Bf16(&values[per(1)]),
            Self::Int8 { values, scales } => Self::Int8 {
                values: &values[per(1)],
                scales: &scales[rows],
            },
            Self::Int4 { values, scales } => Self::Int4 {
                values: &values[per(2)],
                scales: &scales[per(int4::GROUP)],
            },
            Self::Blocks(blocks) => Self::Blocks(blocks.part(per(1))),
        }
    }

    /// Returns columns of one row of a matrix with this many columns; groups of INT4 and blocks must be whole.
    pub(crate) fn part(self, row: usize, part: Range<usize>, columns: usize) -> Self {
        let range = |divisor: usize| {
            (row * columns + part.start) / divisor..(row * columns + part.end) / divisor
        };
        match self {
            Self::F32(values) => Self::F32(&values[range(1)]),
            Self::F16(values) => Self::F16(&values[range(1)]),
            Self::Bf16(values) => Self::Bf16(&values[range(1)]),
            Self::Int8 { values, scales } => Self::Int8 {
                values: &values[range(1)],
                scales: &scales[row..=row],
            },
            Self::Int4 { values, scales } => Self::Int4 {
                values: &values[range(2)],
                scales: &scales[range(int4::GROUP)],
            },
            Self::Blocks(blocks) => Self::Blocks(blocks.part(range(1))),
        }
    }

    /// Writes one row, as f32, to `wide`, which has the length of a row.
    ///
    /// # Panics
    /// If the matrix has no such row of this length.
    pub fn widen_row(self, row: usize, wide: &mut [f32]) {
        self.rows(row..row + 1, wide.len()).widen_into(wide);
    }

    /// Returns the values as f32: in place, or widened into `scratch`.
    pub(crate) fn as_f32<'s>(self, scratch: &'s mut Vec<f32>) -> &'s [f32]
    where
        'a: 's,
    {
        if let Self::F32(values) = self {
            return values;
        }
        let wide = first(scratch, self.len());
        self.widen_into(wide);
        wide
    }

    /// Writes the values as f32.
    pub(crate) fn widen_into(self, wide: &mut [f32]) {
        match self {
            Self::F32(values) => wide.copy_from_slice(values),
            Self::F16(values) => widen_f16(values, wide),
            Self::Bf16(values) => vectorize(
                #[inline(always)]
                || widen_bf16(values, wide),
            ),
            Self::Int8 { values, scales } => vectorize(
                #[inline(always)]
                || widen_int8(values, scales, wide),
            ),
            Self::Int4 { values, scales } => vectorize(
                #[inline(always)]
                || int4::widen(values, scales, wide),
            ),
            Self::Blocks(Blocks { format, bytes, .. }) => vectorize(
                #[inline(always)]
                || dequantize(format, bytes, wide),
            ),
        }
    }
}

#[inline(always)]
fn widen_int8(values: &[i8], scales: &[f32], wide: &mut [f32]) {
    let columns = values.len() / scales.len().max(1);
    let rows = values
        .chunks_exact(columns.max(1))
        .zip(wide.chunks_exact_mut(columns.max(1)));
    for ((values, wide), scale) in rows.zip(scales) {
        for (value, wide) in values.iter().zip(wide) {
            *wide = f32::from(*value) * scale;
        }
    }
}

/// Returns the first `count` elements of `scratch`, after extending it if needed.
fn first(scratch: &mut Vec<f32>, count: usize) -> &mut [f32] {
    if scratch.len() < count {
        scratch.resize(count, 0.0);
    }
    &mut scratch[..count]
}
