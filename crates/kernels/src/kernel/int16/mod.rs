//! Activations in INT16, for scalar products with weights in INT8, INT4 and quantized blocks of GGUF. Sums of integers
//! are exact, twice as fast as widening every weight to a float, and INT16 is closer to the activations than bf16.
//!
//! A kernel loads and widens a vector of weights once for several rows. It processes all rows while the weights of some
//! columns are in the first-level cache, so that weights are read from memory once. `steps` defines the order of
//! activations for weights in INT4.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_vnni;
mod blocks;
mod columns;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod reference;
mod registers;
mod simple_blocks;
mod steps;
mod super_blocks;
#[cfg(test)]
mod tests;
mod tiled;
mod tiles;
mod vector;

use half::f16;

use crate::aligned_buf::AlignedBuf;
use crate::int4::{self, GROUP};
use crate::magnitude::largest_magnitude;
use crate::vectorize::vectorize;
pub(crate) use columns::{BlockColumns, Int4Columns, Int8Columns, Int16Kernel};
#[cfg(target_arch = "x86_64")]
use steps::ByteStep;
use steps::{GROUPS, Step};
use triad_blocks::super_block::{PARTS, SUPER_BLOCK};

/// Bytes between the weights that are multiplied and those that are prefetched; 1 KiB gave half the memory bandwidth.
const AHEAD: usize = 8192;
/// Bytes per prefetch.
const FETCHED: usize = 64;

/// Prefetches weights that are needed later, on x86. A prefetch past the end of the weights is useless but harmless.
#[inline(always)]
fn prefetch_ahead<T>(place: *const T, ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        // SAFETY: a prefetch never faults, wherever it points.
        #[allow(unsafe_code)]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(place.wrapping_byte_add(ahead).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (place, ahead);
}

/// Rows of activations, each with a scale small enough that neither a number nor a sum of products overflows.
#[derive(Debug, Default)]
pub(crate) struct Int16Rows {
    in_features: usize,
    /// `[rows, stride]`.
    values: AlignedBuf<i16>,
    scales: Vec<f32>,
    /// `[rows, steps_of_row]`, by [`fill_steps`](Self::fill_steps).
    steps: Vec<Step>,
    /// `[steps_of_row]`, by [`fill_steps`](Self::fill_steps), if there is one row.
    #[cfg(target_arch = "x86_64")]
    byte_steps: Vec<ByteStep>,
    /// `[rows, in_features / PART]`, by [`fill_sums`](Self::fill_sums).
    sums: Vec<i32>,
}

/// Numbers per cache line.
const LINE: usize = 32;
/// Numbers per part of a block.
const PART: usize = SUPER_BLOCK / PARTS;
/// The largest magnitude of a number: 256 times that of a byte.
const LARGEST: f32 = 32512.0;
/// Maximum number of features per row: with more, rounding alone could overflow sums of products.
const MAX_FEATURES: usize = 1 << 23;
/// The largest magnitude of a weight in INT8; one more than Triad itself produces.
const LARGEST_WEIGHT: f64 = 128.0;

impl Int16Rows {
    /// Replaces the contents by `x`, `[rows, in_features]`.
    ///
    /// # Panics
    /// If a row has so many features that sums could overflow: more than eight million.
    pub(crate) fn fill(&mut self, x: &[f32], in_features: usize) {
        assert!(in_features <= MAX_FEATURES, "{in_features} input features");
        self.in_features = in_features;
        let stride = self.stride();
        self.values.resize(x.len() / in_features * stride);
        self.scales.clear();
        self.steps.clear();
        self.sums.clear();
        for (x, values) in x
            .chunks_exact(in_features)
            .zip(self.values.chunks_exact_mut(stride))
        {
            self.scales.push(quantize(x, &mut values[..in_features]));
        }
    }

    /// Also stores the numbers in the order for weights in INT4; a single row also in bytes.
    ///
    /// # Panics
    /// If a row is no whole number of groups.
    pub(crate) fn fill_steps(&mut self) {
        assert!(
            self.in_features.is_multiple_of(GROUP),
            "{} features in groups of {GROUP}",
            self.in_features
        );
        self.steps.clear();
        for row in self.values.chunks_exact(self.stride()) {
            Step::append(&row[..self.in_features], &mut self.steps);
        }
        #[cfg(target_arch = "x86_64")]
        {
            self.byte_steps.clear();
            if self.rows() == 1 {
                ByteStep::append(&self.values[..self.in_features], &mut self.byte_steps);
            }
        }
    }

    /// Also sums the numbers of each part of a block, for minimums.
    ///
    /// # Panics
    /// If a row is no whole number of parts.
    pub(crate) fn fill_sums(&mut self) {
        assert!(
            self.in_features.is_multiple_of(PART),
            "{} features in parts of {PART}",
            self.in_features
        );
        self.sums.clear();
        for row in self.values.chunks_exact(self.stride()) {
            let parts = row[..self.in_features].as_chunks::<PART>().0;
            self.sums.extend(
                parts
                    .iter()
                    .map(|part| part.iter().map(|x| i32::from(*x)).sum::<i32>()),
            );
        }
    }

    /// Returns the activations that the numbers represent.
    #[cfg(test)]
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        let rows = (0..self.rows()).map(|row| (self.row(row), self.scales[row]));
        rows.flat_map(|(row, scale)| row.iter().map(move |x| f32::from(*x) * scale))
            .collect()
    }

    /// Returns the number of features per row.
    fn in_features(&self) -> usize {
        self.in_features
    }

    /// Returns the distance between rows: an odd number of cache lines, so that the same feature of several rows does
    /// not map to one set of the cache.
    fn stride(&self) -> usize {
        (self.in_features.div_ceil(LINE) | 1) * LINE
    }

    /// Returns the number of rows.
    fn rows(&self) -> usize {
        self.scales.len()
    }

    /// Returns the numbers of a row, from −32512 to 32512 (127 · 256).
    fn row(&self, row: usize) -> &[i16] {
        &self.values[row * self.stride()..][..self.in_features]
    }

    /// Returns the sums of a row's parts, if they were filled.
    fn sums(&self, row: usize) -> &[i32] {
        let parts = self.in_features / PART;
        &self.sums[row * parts..][..parts]
    }

    /// Returns the scale of each row `[rows]`; NaN for a row with an activation that is not finite.
    fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Returns the number of steps per row, if they were filled.
    fn steps_of_row(&self) -> usize {
        self.in_features.div_ceil(GROUPS * GROUP)
    }
}

/// Asserts that the weights and scales of `columns` in INT4 have the right lengths.
fn check_int4(in_features: usize, columns: usize, weights: &[u8], scales: &[f16]) {
    assert_eq!(
        scales.len(),
        columns * in_features / GROUP,
        "weights are [{columns}, {in_features}]"
    );
    int4::check(weights, scales);
}

/// Rounds one row to the nearest numbers, and returns its scale.
fn quantize(x: &[f32], values: &mut [i16]) -> f32 {
    let largest = largest_magnitude(x);
    if !largest.is_finite() {
        values.fill(0);
        return f32::NAN;
    }
    // Ensures Σ |q| · 128 < 2³¹, where rounding adds at most half a unit to each |q|.
    let sum = f64::from(i32::MAX) / LARGEST_WEIGHT - x.len() as f64;
    let total = if x.len() as f64 * f64::from(LARGEST) < sum {
        0.0
    } else {
        sum_of_magnitudes(x)
    };
    let scale = (largest / LARGEST).max((total / sum) as f32 * 1.000_001);
    if !scale.is_normal() {
        values.fill(0);
        return 1.0;
    }
    let inverse = scale.recip();
    vectorize(
        #[inline(always)]
        || {
            for (x, value) in x.iter().zip(&mut *values) {
                *value = (x * inverse).round_ties_even() as i16;
            }
        },
    );
    scale
}

/// Computes Σ |x|.
fn sum_of_magnitudes(x: &[f32]) -> f64 {
    const LANES: usize = 16;
    vectorize(
        #[inline(always)]
        || {
            let mut sums = [0.0f64; LANES];
            let (blocks, rest) = x.as_chunks::<LANES>();
            for block in blocks {
                for (sum, x) in sums.iter_mut().zip(block) {
                    *sum += f64::from(x.abs());
                }
            }
            for (sum, x) in sums.iter_mut().zip(rest) {
                *sum += f64::from(x.abs());
            }
            sums.iter().sum()
        },
    )
}
