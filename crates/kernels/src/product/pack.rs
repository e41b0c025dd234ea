//! Packs words in the order in which kernels read them: panels of the right operand `[steps, PANEL]`.

use std::ops::Range;

use crate::Matrix;
use crate::kernel::panel::{Bf16Kernel, LANES, PANEL, PanelKernel};
use crate::vectorize::vectorize;

/// The matrix to pack: `[columns, depth]`, the transpose of the right operand.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Numbers, as f32.
    F32(Matrix<'a>),
    /// Words, without conversion.
    Words(&'a [u32]),
    /// Numbers, rounded to pairs of bf16; rows of this many numbers.
    Bf16(&'static dyn Bf16Kernel, Matrix<'a>, usize),
    /// INT8 without a scale, as pairs of bf16, which represent it exactly; rows of this many numbers.
    Int8(&'a [i8], usize),
}

impl Source<'_> {
    /// Returns the number of words in all columns and the whole depth.
    pub(super) fn len(self) -> usize {
        let pairs = |len: usize, in_features: usize| len / in_features * in_features.div_ceil(2);
        match self {
            Self::F32(matrix) => matrix.len(),
            Self::Words(words) => words.len(),
            Self::Bf16(_, matrix, in_features) => pairs(matrix.len(), in_features),
            Self::Int8(values, in_features) => pairs(values.len(), in_features),
        }
    }
}

/// Packs words `steps` of rows `rows` of `source[.., depth]`, transposed, as `panel[steps, PANEL]`.
pub(super) fn pack(
    kernel: &dyn PanelKernel,
    source: Source,
    depth: usize,
    steps: Range<usize>,
    rows: Range<usize>,
    wide: &mut Wide,
    panel: &mut [u32],
) {
    for first in (0..rows.len()).step_by(LANES) {
        let count = LANES.min(rows.len() - first);
        let (words, stride) = words(
            source,
            rows.start + first,
            count,
            depth,
            steps.clone(),
            wide,
        );
        transpose(
            kernel,
            words,
            stride,
            count,
            steps.len(),
            &mut panel[first..],
        );
    }
}

/// Buffers for sixteen rows of a matrix, converted to words.
#[derive(Default)]
pub(super) struct Wide {
    words: Vec<u32>,
    /// One row in f32, before it is rounded to bf16.
    row: Vec<f32>,
}

/// Returns words `steps` of rows `first..first + count`, and the distance between rows. F32 and words are returned in
/// place, other sources are converted in `wide`.
fn words<'w>(
    source: Source<'w>,
    first: usize,
    count: usize,
    depth: usize,
    steps: Range<usize>,
    wide: &'w mut Wide,
) -> (&'w [u32], usize) {
    let in_place = match source {
        Source::F32(Matrix::F32(values)) => Some(bytemuck::cast_slice(values)),
        Source::Words(words) => Some(words),
        _ => None,
    };
    if let Some(words) = in_place {
        return (&words[first * depth + steps.start..], depth);
    }
    let stride = steps.len();
    let Wide { words, row: wide } = wide;
    words.resize(words.len().max(LANES * stride), 0);
    let rows = words.chunks_exact_mut(stride).take(count).enumerate();
    match source {
        Source::Words(_) => unreachable!("words are in place"),
        Source::F32(matrix) => rows.for_each(|(row, words)| {
            matrix
                .part(first + row, steps.clone(), depth)
                .widen_into(bytemuck::cast_slice_mut(words));
        }),
        Source::Bf16(kernel, matrix, in_features) => rows.for_each(|(row, words)| {
            let part = 2 * steps.start..in_features.min(2 * steps.end);
            wide.resize(part.len(), 0.0);
            matrix.part(first + row, part, in_features).widen_into(wide);
            kernel.to_bf16(wide, words);
        }),
        Source::Int8(values, in_features) => rows.for_each(|(row, words)| {
            let row = &values[(first + row) * in_features..][..in_features];
            exact_pairs(&row[2 * steps.start..in_features.min(2 * steps.end)], words);
        }),
    }
    (words, stride)
}

/// Writes `panel[step * PANEL + row] = words[row * stride + step]`.
fn transpose(
    kernel: &dyn PanelKernel,
    words: &[u32],
    stride: usize,
    rows: usize,
    steps: usize,
    panel: &mut [u32],
) {
    let mut step = 0;
    while rows == LANES && step + LANES <= steps {
        kernel.transpose(&words[step..], stride, &mut panel[step * PANEL..], PANEL);
        step += LANES;
    }
    for step in step..steps {
        for row in 0..rows {
            panel[step * PANEL + row] = words[row * stride + step];
        }
    }
}

/// Converts INT8 to pairs of bf16, exactly; the last of an odd number is paired with zero.
fn exact_pairs(row: &[i8], words: &mut [u32]) {
    vectorize(
        #[inline(always)]
        || {
            let to_bf16 = |value: i8| f32::from(value).to_bits() >> 16;
            let (whole, rest) = row.as_chunks::<2>();
            for ([low, high], word) in whole.iter().zip(&mut *words) {
                *word = to_bf16(*low) | to_bf16(*high) << 16;
            }
            if let ([low], Some(word)) = (rest, words.last_mut()) {
                *word = to_bf16(*low);
            }
        },
    );
}
