//! `out = x · Wᵀ + bias` in INT8: checks the shapes and cuts the output into tasks.

use super::kernel::{Kernel, Rectangle, available};
use super::{Int8Weight, QuantizedRows};
use crate::pool;
use crate::shared_output::SharedOutput;

/// Output columns of the widest tile of a kernel.
const PANEL: usize = 64;
/// Rows of one task: enough that a panel of weights, once in the cache, is used well.
const TASK_ROWS: usize = 96;
/// Products of one task, at least; waking a thread costs as much as some ten thousand.
const TASK_PRODUCTS: usize = 1 << 17;

/// `out[rows, out_features] = scale(row) · scales[o] · Σ x · w + bias`, with the sums in i32.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn matmul_int8(x: &QuantizedRows, weight: Int8Weight, bias: Option<&[f32]>, out: &mut [f32]) {
    matmul_with(&*available()[0], x, weight, bias, out);
}

/// [`matmul_int8`] by one kernel of the table.
pub(super) fn matmul_with(
    kernel: &dyn Kernel,
    x: &QuantizedRows,
    weight: Int8Weight,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    weight.check();
    let (rows, out_features) = (x.rows(), weight.out_features);
    assert_eq!(out.len(), rows * out_features, "output is [{rows}, {out_features}]");
    if out.is_empty() {
        return;
    }
    assert_eq!(x.in_features(), weight.in_features, "activations of as many features as the weight reads");
    if let Some(bias) = bias {
        assert_eq!(bias.len(), out_features, "bias is [{out_features}]");
    }
    let out = SharedOutput::new(out, out_features);
    let task_rows = rows.min(TASK_ROWS);
    let panel_products = PANEL * weight.in_features * task_rows;
    let task_columns = PANEL * (TASK_PRODUCTS / panel_products).max(1);
    let (down, across) = (rows.div_ceil(task_rows), out_features.div_ceil(task_columns));
    let run = |task: usize| {
        // Neighbouring tasks share their weights, which the cache of the thread may still hold.
        let (row, column) = (task % down * task_rows, task / down * task_columns);
        let rows = row..(row + task_rows).min(rows);
        let columns = column..(column + task_columns).min(out_features);
        kernel.multiply(&Rectangle { x, rows, weight, columns, bias, out });
    };
    pool::for_each(down * across, 1, run);
}
