//! Panels of the right operand, in the order in which kernels read them: `[steps, PANEL]`.

use std::ops::Range;

use super::kernel::{Kernel, LANES};
use super::{DEPTH, PANEL};
use crate::Matrix;

/// Columns `columns` of rows `steps` of `values[.., width]`.
pub(super) fn plain<'p>(
    values: &[f32],
    width: usize,
    steps: Range<usize>,
    columns: Range<usize>,
    panel: &'p mut Vec<f32>,
) -> &'p [f32] {
    panel.resize(DEPTH * PANEL, 0.0);
    let rows = values[steps.start * width..steps.end * width].chunks_exact(width);
    for (row, packed) in rows.zip(panel.chunks_exact_mut(PANEL)) {
        packed[..columns.len()].copy_from_slice(&row[columns.clone()]);
    }
    panel
}

/// Columns `steps` of `matrix[up to PANEL, depth]`, turned.
pub(super) fn transposed<'p>(
    kernel: &dyn Kernel,
    matrix: Matrix,
    depth: usize,
    steps: Range<usize>,
    wide: &mut Vec<f32>,
    panel: &'p mut Vec<f32>,
) -> &'p [f32] {
    panel.resize(DEPTH * PANEL, 0.0);
    let rows = matrix.len() / depth;
    for first in (0..rows).step_by(LANES) {
        let count = LANES.min(rows - first);
        let block = matrix.rows(first, count, depth);
        let (values, stride) = match block {
            Matrix::F32(values) => (&values[steps.start..], depth),
            _ => {
                // Groups of INT4 may begin before the first step: whole rows are widened.
                wide.resize(LANES * depth, 0.0);
                for row in 0..count {
                    block.widen_row(row, &mut wide[row * depth..(row + 1) * depth]);
                }
                (&wide[steps.start..], depth)
            }
        };
        let mut step = 0;
        if count == LANES {
            while step + LANES <= steps.len() {
                kernel.transpose(&values[step..], stride, &mut panel[step * PANEL + first..], PANEL);
                step += LANES;
            }
        }
        for step in step..steps.len() {
            for row in 0..count {
                panel[step * PANEL + first + row] = values[row * stride + step];
            }
        }
    }
    panel
}
