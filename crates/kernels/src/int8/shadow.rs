//! What the quantized activations lack, times the weights: added to the outputs of the INT8 matmul.

use std::ops::Range;

use super::kernel::{Kernel, available};
use super::layout::{BLOCK, QUAD};
use super::{Int8Weight, QuantizedView};
use crate::activation::add;
use crate::output::{OutputMut, SharedOutput};
use crate::product::{PANEL, Write, product};
use crate::vectorize::vectorize;
use crate::{Matrix, pool};

/// Output channels of one task.
const COLUMNS: usize = 8 * BLOCK;
/// Output channels of one task with weights in float.
const FLOAT_COLUMNS: usize = PANEL;
/// Fewer products than this are computed before another thread wakes up.
const PARALLEL: usize = 1 << 16;

/// `out[row, o] += scales[o] · Σ remainder · w[o, channel]` over the outliers of each row, channels ascending.
///
/// With the outliers that [`quantize_static`](super::QuantizedRows::quantize_static) records this makes the product of clipped
/// activations that of unclipped ones. The weights are read where they lie, in the packed layout.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn shadow(x: QuantizedView, weight: Int8Weight, out: OutputMut) {
    shadow_with(&*available()[0], x, weight, out, true);
}

/// As [`shadow`], but for a product that is not there yet: writes what there is to add to the rows that have outliers, and
/// leaves the others as they are. [`join_shadow`] adds it.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn shadow_apart(x: QuantizedView, weight: Int8Weight, out: OutputMut) {
    shadow_with(&*available()[0], x, weight, out, false);
}

/// Adds what [`shadow_apart`] wrote of `x`, `[rows, out_features]`, to a product: `out` gets the bits that [`shadow`] gives.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn join_shadow(x: QuantizedView, shadow: &[f32], out: OutputMut) {
    let (rows, out_features, out) = (out.rows(), out.columns(), out.into_shared());
    out.check(x.rows(), out_features);
    assert_eq!(shadow.len(), rows * out_features, "a shadow of every output");
    pool::for_each(rows, PARALLEL.div_ceil(out_features.max(1)), |row| {
        if !x.outliers_of(row).0.is_empty() {
            // SAFETY: this row belongs to this task alone.
            #[allow(unsafe_code)]
            let out = unsafe { out.row(row, 0..out_features) };
            add(out, &shadow[row * out_features..][..out_features]);
        }
    });
}

/// Shadows of the rows that have outliers, by one kernel of the table; they are added, or take the place of what is there.
pub(super) fn shadow_with(kernel: &dyn Kernel, x: QuantizedView, weight: Int8Weight, out: OutputMut, add: bool) {
    weight.check();
    let (out_features, out) = (weight.out_features, out.into_shared());
    out.check(x.rows(), out_features);
    let outliers = x.outliers();
    if outliers == 0 || out_features == 0 {
        return;
    }
    assert_eq!(x.in_features(), weight.in_features, "activations of as many features as the weight reads");
    pool::for_each(out_features.div_ceil(COLUMNS), PARALLEL.div_ceil(outliers * COLUMNS), |task| {
        let columns = task * COLUMNS..((task + 1) * COLUMNS).min(out_features);
        kernel.shadow(&ShadowColumns { x, weight, columns, out, add });
    });
}

/// Columns of an output matrix that belong to one task alone, in the rows that have outliers.
pub(super) struct ShadowColumns<'a> {
    pub x: QuantizedView<'a>,
    pub weight: Int8Weight<'a>,
    /// Output channels, from a multiple of sixteen on.
    pub columns: Range<usize>,
    pub out: SharedOutput<'a>,
    /// The shadow is added to what is there, instead of taking its place.
    pub add: bool,
}

impl ShadowColumns<'_> {
    /// The rows that have outliers, with the channels of these and their remainders.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &[u32], &[f32])> {
        let rows = (0..self.x.rows()).map(|row| (row, self.x.outliers_of(row)));
        rows.filter(|(_, (channels, _))| !channels.is_empty())
            .map(|(row, (channels, numbers))| (row, channels, numbers))
    }

    /// In plain Rust: see [`Kernel::shadow`].
    pub(super) fn compute(&self) {
        for first in self.columns.clone().step_by(BLOCK) {
            let columns = first..(first + BLOCK).min(self.columns.end);
            let block = self.weight.block(first / BLOCK);
            let scales = &self.weight.scales[columns.clone()];
            vectorize(
                #[inline(always)]
                || {
                    for (row, channels, remainders) in self.rows() {
                        let mut sums = [0.0; BLOCK];
                        for (channel, remainder) in channels.iter().zip(remainders) {
                            let channel = *channel as usize;
                            let (quads, _) = block[channel / QUAD].as_chunks::<QUAD>();
                            let shift = 24 - 8 * (channel % QUAD);
                            for lane in 0..BLOCK {
                                let quad = i32::from_le_bytes(quads[lane].map(|byte| byte as u8));
                                sums[lane] += remainder * (quad << shift >> 24) as f32;
                            }
                        }
                        // SAFETY: these columns belong to this task alone.
                        #[allow(unsafe_code)]
                        let out = unsafe { self.out.row(row, columns.clone()) };
                        for ((out, sum), scale) in out.iter_mut().zip(sums).zip(scales) {
                            *out = if self.add { *out + sum * scale } else { sum * scale };
                        }
                    }
                },
            );
        }
    }
}

/// `out[row, o] += Σ x[row, channel] · w[o, channel]` over the outlier columns of
/// [`quantize_dynamic`](super::QuantizedRows::quantize_dynamic), with weights in float, `[out_features, in_features]`: the full-precision
/// part of LLM.int8().
///
/// # Panics
/// If a slice's length contradicts the shapes, or the rows have outliers that are not whole columns.
pub fn shadow_float(x: QuantizedView, weight: Matrix, out: OutputMut) {
    let (rows, in_features) = (x.rows(), x.in_features());
    let (out_features, out) = (out.columns(), out.into_shared());
    assert_eq!(Some(weight.len()), out_features.checked_mul(in_features), "weight is [{out_features}, {in_features}]");
    weight.check(out_features, in_features);
    out.check(rows, out_features);
    let channels = x.outlier_columns();
    let depth = channels.len();
    assert_eq!(x.outliers(), rows * depth, "outliers are whole columns");
    if x.outliers() == 0 || out_features == 0 {
        return;
    }
    let left = x.remainders();
    let task = |task: usize| {
        let columns = task * FLOAT_COLUMNS..((task + 1) * FLOAT_COLUMNS).min(out_features);
        let mut row = Vec::new();
        let mut right = Vec::with_capacity(columns.len() * depth);
        for column in columns.clone() {
            let weight = weight.rows(column..column + 1, in_features).as_f32(&mut row);
            right.extend(channels.iter().map(|channel| weight[*channel as usize]));
        }
        let right = Matrix::F32(&right);
        // SAFETY: these columns belong to this task alone.
        #[allow(unsafe_code)]
        unsafe {
            product(&left, depth, right, out, columns, Write::Add);
        }
    };
    pool::for_each(out_features.div_ceil(FLOAT_COLUMNS), PARALLEL.div_ceil(rows * depth * FLOAT_COLUMNS), task);
}
