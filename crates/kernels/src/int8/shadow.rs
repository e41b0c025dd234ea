//! The shadow: what quantization removed from activations, times the weights. It is added to the outputs of the INT8
//! matmul.

use super::{Int8Weight, QuantizedView};
use crate::activation::add;
use crate::kernel::best;
use crate::kernel::int8::shadow::ShadowColumns;
use crate::kernel::int8::weight::BLOCK;
use crate::kernel::panel::PANEL;
use crate::output::OutputMut;
use crate::product::{Write, product};
use crate::vectorize::vectorize;
use crate::{Matrix, pool};

/// Output channels per task.
const COLUMNS: usize = 8 * BLOCK;
/// Output channels per task with weights in float.
const FLOAT_COLUMNS: usize = PANEL;
/// Output channels that are summed at once if weights are read by channel.
const CHANNEL_COLUMNS: usize = 512;
/// With fewer products than this, one thread computes all.
const PARALLEL: usize = 1 << 16;

/// Computes `out[row, o] += scales[o] · Σ remainder · w[o, channel]` over the outliers of each row, channels ascending.
///
/// With the outliers that [`quantize_static`](super::QuantizedRows::quantize_static) records, the product of clipped
/// activations becomes that of unclipped ones. The weights are read in place, in the packed layout.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn shadow(x: QuantizedView, weight: Int8Weight, out: OutputMut) {
    write_shadow(x, weight, out, true);
}

/// Computes the same as [`shadow`] separately from the product: writes the addends for rows that have outliers, and
/// leaves other rows as they are. [`join_shadow`] adds them.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn shadow_apart(x: QuantizedView, weight: Int8Weight, out: OutputMut) {
    write_shadow(x, weight, out, false);
}

/// Computes the same bits as [`shadow_apart`] from weights that are not packed, of only the channels that have
/// outliers. `weights` returns the weights of a channel, `[out_features]`, which is a row of the transposed matrix.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn shadow_of_channels<'w>(
    x: QuantizedView,
    weights: impl Fn(u32) -> &'w [i8] + Sync,
    scales: &[f32],
    out: OutputMut,
) {
    let (out_features, out) = (scales.len(), out.into_shared());
    out.check(x.rows(), out_features);
    let outliers = x.outliers();
    if outliers == 0 || out_features == 0 {
        return;
    }
    let per_row = outliers.div_ceil(x.rows()) * out_features;
    pool::for_each(x.rows(), PARALLEL.div_ceil(per_row), |row| {
        let (channels, remainders) = x.outliers_of(row);
        if channels.is_empty() {
            return;
        }
        // SAFETY: this row belongs to this task alone.
        #[allow(unsafe_code)]
        let out = unsafe { out.row(row, 0..out_features) };
        let weights: Vec<&[i8]> = channels.iter().map(|channel| weights(*channel)).collect();
        assert!(
            weights.iter().all(|weights| weights.len() == out_features),
            "expected [out_features] weights of each channel"
        );
        vectorize(
            #[inline(always)]
            || sum_channels(&weights, remainders, scales, out),
        );
    });
}

/// Writes the contribution of some channels to a row, `scale · Σ remainder · weight`, with each product and each sum
/// rounded. `weights` are `[channels, out_features]`.
#[inline(always)]
fn sum_channels(weights: &[&[i8]], remainders: &[f32], scales: &[f32], out: &mut [f32]) {
    // As many columns at a time as stay in the first-level cache, each summed in the order of the channels, as in a
    // kernel.
    for (block, out) in out.chunks_mut(CHANNEL_COLUMNS).enumerate() {
        let columns = block * CHANNEL_COLUMNS..block * CHANNEL_COLUMNS + out.len();
        let mut sums = [0.0f32; CHANNEL_COLUMNS];
        let sums = &mut sums[..out.len()];
        for (weights, remainder) in weights.iter().zip(remainders) {
            for (sum, weight) in sums.iter_mut().zip(&weights[columns.clone()]) {
                *sum += remainder * f32::from(*weight);
            }
        }
        for ((out, sum), scale) in out.iter_mut().zip(sums).zip(&scales[columns]) {
            *out = *sum * scale;
        }
    }
}

/// Adds the addends of `x`, `[rows, out_features]`, that [`shadow_apart`] wrote: `out` gets the bits that [`shadow`]
/// gives.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn join_shadow(x: QuantizedView, shadow: &[f32], out: OutputMut) {
    let (rows, out_features, out) = (out.rows(), out.columns(), out.into_shared());
    out.check(x.rows(), out_features);
    assert_eq!(
        shadow.len(),
        rows * out_features,
        "expected a shadow of every output"
    );
    pool::for_each(rows, PARALLEL.div_ceil(out_features.max(1)), |row| {
        if !x.outliers_of(row).0.is_empty() {
            // SAFETY: this row belongs to this task alone.
            #[allow(unsafe_code)]
            let out = unsafe { out.row(row, 0..out_features) };
            add(out, &shadow[row * out_features..][..out_features]);
        }
    });
}

/// Computes the shadows of the rows that have outliers; adds them to `out` or overwrites it.
fn write_shadow(x: QuantizedView, weight: Int8Weight, out: OutputMut, add: bool) {
    weight.check();
    let (out_features, out) = (weight.out_features, out.into_shared());
    out.check(x.rows(), out_features);
    let outliers = x.outliers();
    if outliers == 0 || out_features == 0 {
        return;
    }
    assert_eq!(
        x.in_features(),
        weight.in_features,
        "expected as many features per activation row as the weight has"
    );
    let kernel = best().int8;
    pool::for_each(
        out_features.div_ceil(COLUMNS),
        PARALLEL.div_ceil(outliers * COLUMNS),
        |task| {
            let columns = task * COLUMNS..((task + 1) * COLUMNS).min(out_features);
            kernel.shadow(&ShadowColumns {
                x,
                rows: 0..x.rows(),
                weight,
                columns,
                out,
                add,
            });
        },
    );
}

/// Computes `out[row, o] += Σ x[row, channel] · w[o, channel]` over the outlier columns of
/// [`quantize_dynamic`](super::QuantizedRows::quantize_dynamic), with weights in float, `[out_features, in_features]`:
/// the full-precision part of LLM.int8().
///
/// # Panics
/// If a slice's length contradicts the shapes, or the rows have outliers that are not whole columns.
pub fn shadow_float(x: QuantizedView, weight: Matrix, out: OutputMut) {
    let (rows, in_features) = (x.rows(), x.in_features());
    let (out_features, out) = (out.columns(), out.into_shared());
    assert_eq!(
        Some(weight.len()),
        out_features.checked_mul(in_features),
        "weight is [{out_features}, {in_features}]"
    );
    weight.check(out_features, in_features);
    out.check(rows, out_features);
    let channels = x.outlier_columns();
    let depth = channels.len();
    assert_eq!(x.outliers(), rows * depth, "outliers are whole columns");
    if x.outliers() == 0 || out_features == 0 {
        return;
    }
    let (left, kernel) = (x.remainders(), best().float);
    let task = |task: usize| {
        let columns = task * FLOAT_COLUMNS..((task + 1) * FLOAT_COLUMNS).min(out_features);
        let mut row = Vec::new();
        let mut right = Vec::with_capacity(columns.len() * depth);
        for column in columns.clone() {
            let weight = weight
                .rows(column..column + 1, in_features)
                .as_f32(&mut row);
            right.extend(channels.iter().map(|channel| weight[*channel as usize]));
        }
        let right = Matrix::F32(&right);
        // SAFETY: only this task writes these columns.
        #[allow(unsafe_code)]
        unsafe {
            product(kernel, &left, depth, right, out, columns, Write::Add);
        }
    };
    pool::for_each(
        out_features.div_ceil(FLOAT_COLUMNS),
        PARALLEL.div_ceil(rows * depth * FLOAT_COLUMNS),
        task,
    );
}
