//! Words in the order in which kernels read them: panels of the right operand `[steps, PANEL]`, and rows of bf16.

use std::ops::Range;

use half::bf16;

use super::kernel::{Kernel, LANES};
use super::{DEPTH, PANEL};
use crate::Matrix;
use crate::vectorize::vectorize;

/// Where a panel's words come from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// `[depth, columns]`.
    Plain(&'a [u32]),
    /// `[columns, depth]`, a weight as f32.
    Weight(Matrix<'a>),
    /// `[columns, depth]`, a weight in INT8 as pairs of bf16; rows of this many numbers.
    Bf16 { values: &'a [i8], in_features: usize },
}

impl Source<'_> {
    /// Words of all columns and the whole depth.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Plain(words) => words.len(),
            Self::Weight(matrix) => matrix.len(),
            Self::Bf16 { values, in_features } => values.len() / in_features * in_features.div_ceil(2),
        }
    }
}

/// Words `steps` of `rows` of `source[.., depth]`, turned; for [`Source::Plain`] columns `rows` of `source[depth, width]`.
pub(super) fn pack<'p>(
    kernel: &dyn Kernel,
    source: Source,
    (depth, width): (usize, usize),
    steps: Range<usize>,
    rows: Range<usize>,
    wide: &mut Vec<f32>,
    panel: &'p mut Vec<u32>,
) -> &'p [u32] {
    panel.resize(DEPTH * PANEL, 0);
    if let Source::Plain(words) = source {
        let lines = words[steps.start * width..steps.end * width].chunks_exact(width);
        for (line, packed) in lines.zip(panel.chunks_exact_mut(PANEL)) {
            packed[..rows.len()].copy_from_slice(&line[rows.clone()]);
        }
        return panel;
    }
    for first in (0..rows.len()).step_by(LANES) {
        let count = LANES.min(rows.len() - first);
        let (words, stride) = words(source, rows.start + first, count, depth, steps.clone(), wide);
        turn(kernel, words, stride, count, steps.len(), &mut panel[first..]);
    }
    panel
}

/// Words `steps` of rows `first..first + count` of a weight, and the distance between rows: where they are, or in `wide`.
fn words<'w>(
    source: Source<'w>,
    first: usize,
    count: usize,
    depth: usize,
    steps: Range<usize>,
    wide: &'w mut Vec<f32>,
) -> (&'w [u32], usize) {
    if let Source::Weight(Matrix::F32(values)) = source {
        return (&bytemuck::cast_slice(values)[first * depth + steps.start..], depth);
    }
    let stride = steps.len();
    wide.resize(wide.len().max(LANES * stride), 0.0);
    match source {
        Source::Plain(_) => unreachable!("its columns are not turned"),
        Source::Weight(matrix) => {
            for (row, wide) in wide.chunks_exact_mut(stride).take(count).enumerate() {
                matrix.part(first + row, steps.clone(), depth).widen_into(wide);
            }
        }
        Source::Bf16 { values, in_features } => vectorize(
            #[inline(always)]
            || {
                for (row, wide) in wide.chunks_exact_mut(stride).take(count).enumerate() {
                    let row = &values[(first + row) * in_features..][..in_features];
                    let part = &row[2 * steps.start..in_features.min(2 * steps.end)];
                    pairs(part, bytemuck::cast_slice_mut(wide), |value| (f32::from(value).to_bits() >> 16) as u16);
                }
            },
        ),
    }
    (bytemuck::cast_slice(wide), stride)
}

/// `panel[step * PANEL + row] = words[row * stride + step]`.
fn turn(kernel: &dyn Kernel, words: &[u32], stride: usize, rows: usize, steps: usize, panel: &mut [u32]) {
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

/// `x[rows, in_features]` rounded to bf16, to the even neighbour where two are as near: pairs `[rows, in_features / 2]`,
/// a zero in the last one of an odd row.
pub(super) fn bf16_rows(x: &[f32], in_features: usize) -> Vec<u32> {
    let depth = in_features.div_ceil(2);
    let mut words = vec![0; x.len() / in_features * depth];
    for (row, words) in x.chunks_exact(in_features).zip(words.chunks_exact_mut(depth)) {
        pairs(row, words, |x| bf16::from_f32(x).to_bits());
    }
    words
}

#[inline(always)]
fn pairs<T: Copy>(row: &[T], words: &mut [u32], narrow: impl Fn(T) -> u16) {
    let (whole, rest) = row.as_chunks::<2>();
    for ([low, high], word) in whole.iter().zip(&mut *words) {
        *word = u32::from(narrow(*low)) | u32::from(narrow(*high)) << 16;
    }
    if let ([low], Some(word)) = (rest, words.last_mut()) {
        *word = u32::from(narrow(*low));
    }
}
