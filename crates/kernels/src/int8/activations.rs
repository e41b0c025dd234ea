//! Activations in INT8, with those that INT8 cannot hold beside them.

use std::ops::Range;

use super::kernel::available;
use super::layout::QUAD;
use super::weight::{largest_magnitude, scale_for};
use super::{LARGEST, MAX_IN_FEATURES};
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::vectorize::vectorize;

/// Rows quantized by one task, whose outliers lie together.
const PART_ROWS: usize = 16;
/// Fewer activations than this are quantized before another thread wakes up.
const PARALLEL: usize = 1 << 15;
/// Activations that are quantized at once.
const LANES: usize = 64;
/// Numbers are stored this much too large, unsigned, as the dot-product instruction of x86 wants them; those of ARM take
/// them as they are.
pub(super) const OFFSET: u8 = if cfg!(target_arch = "aarch64") { 0 } else { 128 };

/// A number as it is.
#[inline(always)]
pub(super) fn signed(stored: u8) -> i8 {
    (stored ^ OFFSET) as i8
}

/// The input of linear layers, `[rows, in_features]`, quantized to INT8: symmetric, with a scale for each
/// row and a list of outliers. Its memory is used again by the next input.
///
/// A row with an activation that is not finite gets the scale NaN, which makes all outputs of the row NaN.
#[derive(Debug, Default)]
pub struct QuantizedRows {
    in_features: usize,
    /// `[rows, stride]`, where the stride is the next multiple of four.
    values: Vec<u8>,
    scales: Vec<f32>,
    parts: Vec<Part>,
    outlier_columns: OutlierColumns,
}

/// Outliers of up to [`PART_ROWS`] rows.
#[derive(Debug, Default)]
struct Part {
    /// Where each row's outliers end.
    ends: Vec<usize>,
    /// With their remainders.
    outliers: Outliers,
    /// One row without its outlier columns.
    rest: Vec<f32>,
}

/// Channels, ascending within a row, and a number for each.
#[derive(Debug, Default)]
pub(super) struct Outliers {
    pub channels: Vec<u32>,
    pub numbers: Vec<f32>,
}

/// One row of activations on its way to INT8.
pub(super) struct ActivationRow<'a> {
    pub x: &'a [f32],
    /// What `x` is multiplied with first.
    pub smoothing: Option<&'a [f32]>,
    /// 1 / scale.
    pub inverse: f32,
    /// Magnitudes beyond it, and what is not a number, are outliers.
    pub limit: f32,
}

/// Columns that LLM.int8() keeps in float.
#[derive(Debug, Default)]
struct OutlierColumns {
    /// For each column the bits of an activation that stay: all, or none where it is an outlier.
    keep: Vec<u32>,
    channels: Vec<u32>,
}

/// Rows of a [`QuantizedRows`], all or some of them: what products and shadows read. A row has the same bits in every view.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedView<'a> {
    in_features: usize,
    /// `[rows, stride]`.
    bytes: &'a [u8],
    scales: &'a [f32],
    /// Those that contain the rows.
    parts: &'a [Part],
    /// Rows of the first part that lie before those of the view.
    rows_before: usize,
    outlier_columns: &'a [u32],
}

impl<'a> QuantizedView<'a> {
    /// Number of rows.
    pub fn rows(self) -> usize {
        self.scales.len()
    }

    /// Number of features of a row.
    pub fn in_features(self) -> usize {
        self.in_features
    }

    /// What one unit of a row's numbers is worth, `[rows]`.
    pub fn scales(self) -> &'a [f32] {
        self.scales
    }

    /// Returns the quantized numbers of a row, from −127 to 127.
    pub fn values(self, row: usize) -> impl ExactSizeIterator<Item = i8> + use<'a> {
        self.quads(row).as_flattened()[..self.in_features].iter().map(|value| signed(*value))
    }

    /// The numbers of all rows as they are stored, for a processor that reads them where they lie: each row begins at a
    /// multiple of [`stride`](Self::stride), and [`QuantizedRows::ZERO`] stands for zero.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes from one row to the next: the features, and zeros up to a multiple of four.
    pub fn stride(self) -> usize {
        stride(self.in_features)
    }

    /// Number of outliers in all rows.
    pub fn outliers(self) -> usize {
        self.outliers_of_parts().map(|(_, range)| range.len()).sum()
    }

    /// Returns the outliers of a row: channels, ascending, and for each what the quantized number lacks.
    pub fn outliers_of(self, row: usize) -> (&'a [u32], &'a [f32]) {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        let row = self.rows_before + row;
        let (part, row) = (&self.parts[row / PART_ROWS], row % PART_ROWS);
        let range = part.end(row)..part.ends[row];
        let Outliers { channels, numbers } = &part.outliers;
        (&channels[range.clone()], &numbers[range])
    }

    /// The columns that [`quantize_dynamic`](QuantizedRows::quantize_dynamic) left out, ascending.
    pub(super) fn outlier_columns(self) -> &'a [u32] {
        self.outlier_columns
    }

    /// Returns the remainders of all outliers, row by row.
    pub(super) fn remainders(self) -> Vec<f32> {
        self.outliers_of_parts().flat_map(|(outliers, range)| &outliers.numbers[range]).copied().collect()
    }

    /// Returns the stored numbers of a row ([`signed`]), four by four; the last four are padded with zeros.
    pub(super) fn quads(self, row: usize) -> &'a [[u8; QUAD]] {
        let quads = self.in_features.div_ceil(QUAD);
        &self.bytes.as_chunks().0[row * quads..][..quads]
    }

    /// Returns the outliers of each part, and which of them are of rows of this view.
    fn outliers_of_parts(self) -> impl Iterator<Item = (&'a Outliers, Range<usize>)> {
        let end = self.rows_before + self.rows();
        self.parts.iter().enumerate().map(move |(index, part)| {
            let first = if index == 0 { self.rows_before } else { 0 };
            let range = part.end(first)..part.end((end - index * PART_ROWS).min(PART_ROWS));
            (&part.outliers, range)
        })
    }
}

impl QuantizedRows {
    /// The byte that stands for zero: 128 where numbers are stored unsigned, 0 where they are stored as they are.
    pub const ZERO: u8 = OFFSET;

    /// Quantizes `x`, `[rows, in_features]`, with the static scale of the layer:
    /// `clamp(round(x · (1 / scale)), −127, 127)`, rounding half to even.
    ///
    /// `smoothing`, `[in_features]`, is multiplied to `x` first. With `shadow`, what clipping
    /// takes from each |x| > 127 · scale, x − sign(x) · 127 · scale, is recorded as an outlier.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes, or the scale is not a positive number to divide by.
    pub fn quantize_static(
        &mut self,
        x: &[f32],
        in_features: usize,
        scale: f32,
        smoothing: Option<&[f32]>,
        shadow: bool,
    ) {
        let clip = LARGEST * scale;
        assert!(scale.is_normal() && scale > 0.0 && clip.is_finite(), "scale {scale} is not positive and finite");
        if let Some(smoothing) = smoothing {
            assert_eq!(smoothing.len(), in_features, "smoothing is [{in_features}]");
        }
        let limit = if shadow { clip } else { f32::MAX };
        self.outlier_columns.channels.clear();
        let inverse = scale.recip();
        let kernel = &available()[0];
        self.each_row(x, in_features, |x, values, part| {
            let outliers = &mut part.outliers;
            let first = outliers.channels.len();
            kernel.quantize(&ActivationRow { x, smoothing, inverse, limit }, values, outliers);
            if outliers.numbers[first..].iter().all(|x| x.is_finite()) {
                outliers.numbers[first..].iter_mut().for_each(|x| *x -= clip.copysign(*x));
                return scale;
            }
            // The whole row is no number.
            outliers.channels[first..].iter().for_each(|channel| values[*channel as usize] = OFFSET);
            outliers.truncate(first);
            f32::NAN
        });
    }

    /// Quantizes `x`, `[rows, in_features]`, with a scale for each row, its largest magnitude / 127.
    ///
    /// With a threshold, a column in which any |x| of this call exceeds it is left out, as in LLM.int8():
    /// zero in the quantized numbers, and in full among the outliers of each row.
    ///
    /// # Panics
    /// If the length of `x` contradicts the shape.
    pub fn quantize_dynamic(&mut self, x: &[f32], in_features: usize, outlier_threshold: Option<f32>) {
        let mut columns = std::mem::take(&mut self.outlier_columns);
        columns.find(x, in_features, outlier_threshold);
        self.each_row(x, in_features, |x, values, part| {
            let outliers = &mut part.outliers;
            outliers.channels.extend_from_slice(&columns.channels);
            outliers.numbers.extend(columns.channels.iter().map(|channel| x[*channel as usize]));
            let mut rest = std::mem::take(&mut part.rest);
            rest.clear();
            rest.extend(x.iter().zip(&columns.keep).map(|(x, keep)| f32::from_bits(x.to_bits() & keep)));
            let scale = scale_for(largest_magnitude(&rest));
            let row = ActivationRow { x: &rest, smoothing: None, inverse: scale.recip(), limit: f32::MAX };
            // What is no number, if anything: allocates only then.
            let mut none = Outliers::default();
            row.quantize(values, &mut none);
            none.channels.iter().for_each(|channel| values[*channel as usize] = OFFSET);
            part.rest = rest;
            scale
        });
        self.outlier_columns = columns;
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.scales.len()
    }

    /// Number of features of a row.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Number of outliers in all rows.
    pub fn outliers(&self) -> usize {
        self.view().outliers()
    }

    /// Returns all rows.
    pub fn view(&self) -> QuantizedView<'_> {
        self.rows_view(0..self.rows())
    }

    /// Returns some rows, which the view counts from zero.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn rows_view(&self, rows: Range<usize>) -> QuantizedView<'_> {
        let first_part = rows.start / PART_ROWS;
        let stride = stride(self.in_features);
        QuantizedView {
            in_features: self.in_features,
            bytes: &self.values[rows.start * stride..rows.end * stride],
            parts: &self.parts[first_part..rows.end.div_ceil(PART_ROWS).max(first_part)],
            rows_before: rows.start % PART_ROWS,
            scales: &self.scales[rows],
            outlier_columns: &self.outlier_columns.channels,
        }
    }

    /// Has `quantize` fill each row's numbers and outliers and return its scale.
    fn each_row(
        &mut self,
        x: &[f32],
        in_features: usize,
        quantize: impl Fn(&[f32], &mut [u8], &mut Part) -> f32 + Sync,
    ) {
        assert!((1..=MAX_IN_FEATURES).contains(&in_features), "{in_features} input features");
        assert!(x.len().is_multiple_of(in_features), "{} activations in rows of {in_features}", x.len());
        self.in_features = in_features;
        let (rows, stride) = (x.len() / in_features, stride(in_features));
        self.values.resize(rows * stride, OFFSET);
        self.scales.resize(rows, 1.0);
        if self.parts.len() < rows.div_ceil(PART_ROWS) {
            self.parts.resize_with(rows.div_ceil(PART_ROWS), Part::default);
        }
        let numbers = (chunks_mut(&mut self.values, PART_ROWS * stride), chunks_mut(&mut self.scales, PART_ROWS));
        let parts = (numbers, chunks_mut(&mut self.parts, 1));
        for_each_chunk(parts, PARALLEL.div_ceil(PART_ROWS * in_features), |index, ((values, scales), part)| {
            let part = &mut part[0];
            part.clear();
            let x = x[index * PART_ROWS * in_features..].chunks_exact(in_features);
            let rows = x.zip(values.chunks_exact_mut(stride)).zip(scales);
            for ((x, values), scale) in rows {
                values[in_features..].fill(OFFSET);
                *scale = quantize(x, &mut values[..in_features], part);
                part.ends.push(part.outliers.channels.len());
            }
        });
    }
}

/// Bytes of a row of so many numbers.
fn stride(in_features: usize) -> usize {
    in_features.next_multiple_of(QUAD)
}

impl Part {
    /// Returns where the outliers of the first `rows` rows end.
    fn end(&self, rows: usize) -> usize {
        if rows == 0 { 0 } else { self.ends[rows - 1] }
    }

    fn clear(&mut self) {
        self.ends.clear();
        self.outliers.truncate(0);
    }
}

impl Outliers {
    fn push(&mut self, channel: usize, number: f32) {
        self.channels.push(channel as u32);
        self.numbers.push(number);
    }

    /// Makes room for so many more.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn reserve(&mut self, more: usize) {
        self.channels.reserve(more);
        self.numbers.reserve(more);
    }

    fn truncate(&mut self, count: usize) {
        self.channels.truncate(count);
        self.numbers.truncate(count);
    }
}

impl OutlierColumns {
    /// The columns of `x` with a magnitude beyond `threshold`, or that is not a number.
    fn find(&mut self, x: &[f32], in_features: usize, threshold: Option<f32>) {
        self.keep.clear();
        self.keep.resize(in_features, u32::MAX);
        self.channels.clear();
        let Some(threshold) = threshold else { return };
        vectorize(
            #[inline(always)]
            || {
                for x in x.chunks_exact(in_features) {
                    for (x, keep) in x.iter().zip(&mut self.keep) {
                        *keep &= if x.abs() <= threshold { u32::MAX } else { 0 };
                    }
                }
            },
        );
        let outliers = self.keep.iter().enumerate().filter(|(_, keep)| **keep == 0);
        self.channels.extend(outliers.map(|(channel, _)| channel as u32));
    }
}

impl ActivationRow<'_> {
    /// In plain Rust: see [`Kernel::quantize`](super::kernel::Kernel::quantize).
    pub(super) fn quantize(&self, numbers: &mut [u8], outliers: &mut Outliers) {
        let Self { x, smoothing, inverse, limit } = *self;
        vectorize(
            #[inline(always)]
            || {
                let (whole, rest) = numbers.as_chunks_mut::<LANES>();
                let (whole_x, rest_x) = x.as_chunks::<LANES>();
                let first_of_rest = whole.len() * LANES;
                let (whole_smoothing, rest_smoothing) =
                    smoothing.map_or((&[][..], &[][..]), |all| all.as_chunks::<LANES>());
                for (index, (numbers, x)) in whole.iter_mut().zip(whole_x).enumerate() {
                    // Activations stay in registers: only where one exceeds the limit are they needed in memory.
                    let exceeds = match whole_smoothing.get(index) {
                        None => quantize_lanes(|lane| x[lane], inverse, limit, numbers),
                        Some(smoothing) => quantize_lanes(|lane| x[lane] * smoothing[lane], inverse, limit, numbers),
                    };
                    if exceeds {
                        let x = whole_smoothing.get(index).map_or(*x, |smoothing| smoothed(x, smoothing));
                        report(&x, limit, index * LANES, outliers);
                    }
                }
                if !rest.is_empty() {
                    let x = padded(rest_x);
                    let x = if smoothing.is_some() { smoothed(&x, &padded(rest_smoothing)) } else { x };
                    let mut numbers = [0; LANES];
                    quantize_lanes(|lane| x[lane], inverse, limit, &mut numbers);
                    rest.copy_from_slice(&numbers[..rest.len()]);
                    report(&x[..rest.len()], limit, first_of_rest, outliers);
                }
            },
        );
    }
}

/// Adds those of `x`, which begins with channel `first`, that exceed `limit`.
fn report(x: &[f32], limit: f32, first: usize, outliers: &mut Outliers) {
    for (lane, x) in x.iter().enumerate() {
        if exceeds(*x, limit) {
            outliers.push(first + lane, *x);
        }
    }
}

#[inline(always)]
fn smoothed(x: &[f32; LANES], smoothing: &[f32; LANES]) -> [f32; LANES] {
    let mut lanes = *x;
    for (x, smoothing) in lanes.iter_mut().zip(smoothing) {
        *x *= smoothing;
    }
    lanes
}

/// The end of a row, and zeros beyond it.
#[inline(always)]
fn padded(values: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

/// Writes the numbers of `x`, and returns whether one of them exceeds `limit`.
#[inline(always)]
fn quantize_lanes(x: impl Fn(usize) -> f32, inverse: f32, limit: f32, values: &mut [u8; LANES]) -> bool {
    /// Adding 1.5 · 2²³ leaves the rounded number in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let mut any = false;
    for (lane, value) in values.iter_mut().enumerate() {
        let x = x(lane);
        any |= exceeds(x, limit);
        let scaled = x * inverse;
        let above = if scaled < -LARGEST { -LARGEST } else { scaled };
        let clipped = if above > LARGEST { LARGEST } else { above };
        *value = (clipped + ROUND).to_bits() as u8 ^ OFFSET;
    }
    any
}

/// Whether `x` lies beyond `limit` or is not a number.
#[inline(always)]
fn exceeds(x: f32, limit: f32) -> bool {
    x.abs() > limit || x.is_nan()
}
