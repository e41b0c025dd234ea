//! Words in the order in which kernels read them: panels of the right operand `[steps, PANEL]`, and rows of bf16.

use std::ops::Range;

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
        let words = words(source, rows.start + first, count, depth, wide);
        turn(kernel, &words[steps.start..], depth, count, steps.len(), &mut panel[first..]);
    }
    panel
}

/// Rows `first..first + count` of a weight as words: where they are, or in `wide`.
fn words<'w>(source: Source<'w>, first: usize, count: usize, depth: usize, wide: &'w mut Vec<f32>) -> &'w [u32] {
    let grown = |wide: &'w mut Vec<f32>| {
        wide.resize(wide.len().max(LANES * depth), 0.0);
        wide
    };
    match source {
        Source::Plain(_) => unreachable!("its columns are not turned"),
        Source::Weight(matrix) => match matrix.rows(first, count, depth) {
            Matrix::F32(values) => bytemuck::cast_slice(values),
            rows => {
                let wide = grown(wide);
                wide.chunks_exact_mut(depth).take(count).enumerate().for_each(|(row, wide)| rows.widen_row(row, wide));
                bytemuck::cast_slice(wide)
            }
        },
        Source::Bf16 { values, in_features } => {
            let words: &mut [u32] = bytemuck::cast_slice_mut(grown(wide));
            let rows = values[first * in_features..(first + count) * in_features].chunks_exact(in_features);
            vectorize(
                #[inline(always)]
                || {
                    for (row, words) in rows.clone().zip(words.chunks_exact_mut(depth)) {
                        pairs(row, words, |value| (f32::from(value).to_bits() >> 16) as u16);
                    }
                },
            );
            words
        }
    }
}

/// `panel[step * PANEL + row] = words[row * depth + step]`.
fn turn(kernel: &dyn Kernel, words: &[u32], depth: usize, rows: usize, steps: usize, panel: &mut [u32]) {
    let mut step = 0;
    while rows == LANES && step + LANES <= steps {
        kernel.transpose(&words[step..], depth, &mut panel[step * PANEL..], PANEL);
        step += LANES;
    }
    for step in step..steps {
        for row in 0..rows {
            panel[step * PANEL + row] = words[row * depth + step];
        }
    }
}

/// `x[rows, in_features]` rounded to bf16, to the even neighbour where two are as near: pairs `[rows, in_features / 2]`,
/// a zero in the last one of an odd row.
pub(super) fn bf16_rows(x: &[f32], in_features: usize) -> Vec<u32> {
    let depth = in_features.div_ceil(2);
    let mut words = vec![0; x.len() / in_features * depth];
    vectorize(
        #[inline(always)]
        || {
            for (row, words) in x.chunks_exact(in_features).zip(words.chunks_exact_mut(depth)) {
                pairs(row, words, round_to_bf16);
            }
        },
    );
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

#[inline(always)]
fn round_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // What is not a number stays none.
    (if x.is_nan() { bits | 0x40_0000 } else { rounded } >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn rows_are_rounded_as_the_half_crate_rounds_and_padded_with_zero() {
        let x: Vec<f32> = (0..70_000u32)
            .map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)))
            .chain([f32::NAN, f32::INFINITY, f32::MAX, -f32::MIN_POSITIVE])
            .collect();
        for in_features in [1, 7, 8] {
            let x = &x[..x.len() / in_features * in_features];
            let words = bf16_rows(x, in_features);
            let found = words.chunks_exact(in_features.div_ceil(2)).flat_map(|row| {
                let halves = row.iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]).collect::<Vec<_>>();
                assert!(halves[in_features..].iter().all(|padding| *padding == 0));
                halves.into_iter().take(in_features)
            });
            for (found, x) in found.zip(x) {
                assert_eq!(bf16::from_bits(found).to_bits(), bf16::from_f32(*x).to_bits(), "{x}");
            }
        }
    }
}
