//! What the quantized activations lack, times the weights: added to the outputs of the INT8 matmul.

use super::layout::{BLOCK, QUAD};
use super::{Int8Weight, QuantizedRows};
use crate::activation::add;
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::product::{PANEL, Write, product};
use crate::shared_output::SharedOutput;
use crate::vectorize::vectorize;
use crate::{Matrix, pool};

/// Output channels of one task: four registers of sums, independent of each other.
const LANES: usize = 4 * BLOCK;
/// Output channels of one task with weights in float.
const FLOAT_COLUMNS: usize = PANEL;
/// Fewer products than this are computed before another thread wakes up.
const PARALLEL: usize = 1 << 16;

/// `out[row, o] += scales[o] · Σ remainder · w[o, channel]` over the outliers of each row, channels ascending.
///
/// With the outliers that [`QuantizedRows::quantize_static`] records this makes the product of clipped
/// activations that of unclipped ones. The weights are read where they lie, in the packed layout.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn shadow(x: &QuantizedRows, weight: Int8Weight, out: &mut [f32]) {
    each_shadow(x, weight, out, |out, shadow| *out += shadow);
}

/// As [`shadow`], but for a product that is not there yet: writes what there is to add to the rows that have outliers, and
/// leaves the others as they are. [`join_shadow`] adds it.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn shadow_apart(x: &QuantizedRows, weight: Int8Weight, out: &mut [f32]) {
    each_shadow(x, weight, out, |out, shadow| *out = shadow);
}

/// Adds what [`shadow_apart`] wrote of `x`, `[rows, out_features]`, to a product: `out` gets the bits that [`shadow`] gives.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn join_shadow(x: &QuantizedRows, shadow: &[f32], out_features: usize, out: &mut [f32]) {
    assert_eq!(Some(out.len()), x.rows().checked_mul(out_features), "output is [{}, {out_features}]", x.rows());
    assert_eq!(out.len(), shadow.len(), "a shadow of every output");
    if out_features == 0 {
        return;
    }
    let grain = PARALLEL.div_ceil(out_features);
    for_each_chunk(chunks_mut(out, out_features), grain, |row, out| {
        if !x.outliers_of(row).0.is_empty() {
            add(out, &shadow[row * out_features..][..out_features]);
        }
    });
}

/// Has `write` take the shadow of each output of the rows that have outliers.
#[inline(always)]
fn each_shadow(x: &QuantizedRows, weight: Int8Weight, out: &mut [f32], write: impl Fn(&mut f32, f32) + Sync) {
    weight.check();
    each_piece(
        x,
        weight.in_features,
        weight.out_features,
        out,
        #[inline(always)]
        |channels, remainders, first, out| {
            let mut sums = [[0.0; BLOCK]; LANES / BLOCK];
            for (index, sums) in sums.iter_mut().take(out.len().div_ceil(BLOCK)).enumerate() {
                let block = weight.block(first / BLOCK + index);
                for (channel, remainder) in channels.iter().zip(remainders) {
                    let channel = *channel as usize;
                    let (quads, _) = block[channel / QUAD].as_chunks::<QUAD>();
                    let shift = 24 - 8 * (channel % QUAD);
                    for lane in 0..BLOCK {
                        let quad = i32::from_le_bytes(quads[lane].map(|byte| byte as u8));
                        sums[lane] += remainder * (quad << shift >> 24) as f32;
                    }
                }
            }
            for ((out, sum), scale) in out.iter_mut().zip(sums.as_flattened()).zip(&weight.scales[first..]) {
                write(out, sum * scale);
            }
        },
    );
}

/// `out[row, o] += Σ x[row, channel] · w[o, channel]` over the outlier columns of
/// [`QuantizedRows::quantize_dynamic`], with weights in float, `[out_features, in_features]`: the full-precision
/// part of LLM.int8().
///
/// # Panics
/// If a slice's length contradicts the shapes, or the rows have outliers that are not whole columns.
pub fn shadow_float(x: &QuantizedRows, weight: Matrix, out_features: usize, out: &mut [f32]) {
    let (rows, in_features) = (x.rows(), x.in_features());
    assert_eq!(Some(weight.len()), out_features.checked_mul(in_features), "weight is [{out_features}, {in_features}]");
    weight.check(out_features, in_features);
    assert_eq!(out.len(), rows * out_features, "output is [{rows}, {out_features}]");
    let channels = x.outlier_columns();
    let depth = channels.len();
    assert_eq!(x.outliers(), rows * depth, "outliers are whole columns");
    if x.outliers() == 0 || out_features == 0 {
        return;
    }
    let left = x.remainders();
    let out = SharedOutput::new(out, out_features);
    let task = |task: usize| {
        let columns = task * FLOAT_COLUMNS..((task + 1) * FLOAT_COLUMNS).min(out_features);
        let mut row = Vec::new();
        let mut right = Vec::with_capacity(columns.len() * depth);
        for column in columns.clone() {
            let weight = weight.rows(column, 1, in_features).as_f32(&mut row);
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

/// Calls `add` for pieces of the rows that have outliers: with those, the first output channel and the outputs.
fn each_piece(
    x: &QuantizedRows,
    in_features: usize,
    out_features: usize,
    out: &mut [f32],
    add: impl Fn(&[u32], &[f32], usize, &mut [f32]) + Sync,
) {
    let rows = x.rows();
    assert_eq!(out.len(), rows * out_features, "output is [{rows}, {out_features}]");
    let outliers = x.outliers();
    if outliers == 0 || out_features == 0 {
        return;
    }
    assert_eq!(x.in_features(), in_features, "activations of as many features as the weight reads");
    let out = SharedOutput::new(out, out_features);
    let task = |task: usize| {
        let columns = task * LANES..((task + 1) * LANES).min(out_features);
        vectorize(
            #[inline(always)]
            || {
                for row in 0..rows {
                    let (channels, remainders) = x.outliers_of(row);
                    if !channels.is_empty() {
                        // SAFETY: these columns belong to this task alone.
                        #[allow(unsafe_code)]
                        let out = unsafe { out.row(row, columns.clone()) };
                        add(channels, remainders, columns.start, out);
                    }
                }
            },
        );
    };
    pool::for_each(out_features.div_ceil(LANES), PARALLEL.div_ceil(outliers * LANES), task);
}
