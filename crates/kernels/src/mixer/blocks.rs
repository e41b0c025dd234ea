//! The steps that operators with a matrix for each head have in common: rows go through a short convolution, then through
//! the matrices of all heads, then each row's outputs are finished.

use super::convolution::Convolution;
use super::{BLOCK, PARALLEL, TASK_ROWS};
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::vectorize::{Fused, vectorize_fused};

/// An operator with a convolution and a matrix for each head. Its state holds the convolution's inputs
/// `[taps − 1, channels]` of the latest positions, the earliest first, and then the matrices.
pub(super) trait Matrices: Sync {
    /// Returns its convolution.
    fn convolution(&self) -> Convolution<'_>;

    /// Returns the values of all matrices.
    fn matrices_len(&self) -> usize;

    /// Returns the width of the outputs of a row.
    fn width(&self) -> usize;

    /// Changes the output of the convolution for one row.
    #[inline(always)]
    fn prepare(&self, _convolved: &mut [f32], _fused: Fused) {}

    /// Runs the convolved rows of a block through the matrices. Writes `[heads, rows, width of a head]`.
    fn scan(&self, matrices: &mut [f32], rows: &[f32], convolved: &[f32], out: &mut [f32]);

    /// Finishes the outputs of one of `count` rows of a block, with this index and these inputs, from the outputs of
    /// [`Matrices::scan`].
    fn finish(&self, mixed: &[f32], count: usize, row: (usize, &[f32]), out: &mut [f32]);
}

/// Brings `state` from before `rows` to after them, and writes their outputs `[rows, width]` to `out`, if that is wanted.
/// The number of rows in `scratch` changes no bit.
///
/// # Panics
/// If a length differs, or `scratch` has less than a row.
pub(super) fn run(
    operator: &impl Matrices,
    state: &mut [f32],
    rows: &[f32],
    mut out: Option<&mut [f32]>,
    scratch: &mut [f32],
) {
    let (convolution, width) = (operator.convolution(), operator.width());
    let (row_len, channels) = (convolution.row_len, convolution.channels);
    let (count, history) = (rows.len() / row_len, convolution.history());
    assert_eq!(
        state.len(),
        history + operator.matrices_len(),
        "expected a whole state"
    );
    assert_eq!(rows.len(), count * row_len, "expected whole rows");
    if let Some(out) = &out {
        assert_eq!(out.len(), count * width, "expected an output for each row");
    }
    let block = (scratch.len() / (channels + width)).min(BLOCK);
    assert!(block > 0, "expected scratch memory for a row");
    let (history, matrices) = state.split_at_mut(history);
    let (convolved, mixed) = scratch.split_at_mut(block * channels);
    for first in (0..count).step_by(block) {
        let block = first..count.min(first + block);
        let convolved = &mut convolved[..block.len() * channels];
        let mixed = &mut mixed[..block.len() * width];
        convolve(operator, history, (rows, first), convolved);
        operator.scan(matrices, &rows[first * row_len..], convolved, mixed);
        if let Some(out) = &mut out {
            let out = &mut out[block.start * width..block.end * width];
            finish(operator, &rows[first * row_len..], mixed, out);
        }
    }
    convolution.remember(history, rows);
}

/// Computes the convolution of rows from `first` on.
fn convolve(
    operator: &impl Matrices,
    history: &[f32],
    (rows, first): (&[f32], usize),
    out: &mut [f32],
) {
    let convolution = operator.convolution();
    let channels = convolution.channels;
    let grain = if out.len() < PARALLEL { usize::MAX } else { 1 };
    for_each_chunk(chunks_mut(out, TASK_ROWS * channels), grain, |task, out| {
        vectorize_fused(
            #[inline(always)]
            |fused| {
                for (index, out) in out.chunks_exact_mut(channels).enumerate() {
                    let row = first + task * TASK_ROWS + index;
                    convolution.compute(history, rows, row, out, fused);
                    operator.prepare(out, fused);
                }
            },
        );
    });
}

/// Finishes the outputs of the rows of a block.
fn finish(operator: &impl Matrices, rows: &[f32], mixed: &[f32], out: &mut [f32]) {
    let (row_len, width) = (operator.convolution().row_len, operator.width());
    let count = out.len() / width;
    let grain = if out.len() < PARALLEL { usize::MAX } else { 1 };
    for_each_chunk(chunks_mut(out, TASK_ROWS * width), grain, |task, out| {
        for (index, out) in out.chunks_exact_mut(width).enumerate() {
            let row = task * TASK_ROWS + index;
            let inputs = &rows[row * row_len..][..row_len];
            operator.finish(mixed, count, (row, inputs), out);
        }
    });
}
