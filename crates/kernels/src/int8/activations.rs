//! Activations in INT8, with the outliers that INT8 cannot hold.

mod gated;

use std::ops::Range;
use std::sync::Mutex;

use super::weight::scale_for;
use crate::aligned_buf::AlignedBuf;
use crate::chunks::{Chunks, Nothing, chunks_mut, for_each_chunk};
use crate::fixed_point::FixedPoint;
use crate::kernel::best;
use crate::kernel::int8::quantize::ActivationRow;
use crate::kernel::int8::rows::{OFFSET, Outliers, PART_ROWS, Part, QuantizedView, stride};
use crate::kernel::int8::{Int8Kernel, LARGEST, MAX_IN_FEATURES};
use crate::magnitude::largest_magnitude;
use crate::vectorize::vectorize;

pub use gated::Gated;

/// With fewer activations than this, one thread quantizes all.
const PARALLEL: usize = 1 << 15;
/// The input of linear layers, `[rows, in_features]`, quantized to INT8: symmetric, with a scale per row and a list of
/// outliers. Quantizing the next input reuses its memory.
///
/// A row with an activation that is not finite gets the scale NaN, which makes all outputs of the row NaN.
#[derive(Debug, Default)]
pub struct QuantizedRows {
    in_features: usize,
    /// `[rows, stride]`, where the stride is the next multiple of four. A matrix unit loads tiles from it in place,
    /// which is much slower if they straddle cache lines.
    values: AlignedBuf<u8>,
    scales: Vec<f32>,
    parts: Vec<Part>,
    outlier_columns: OutlierColumns,
    /// For each part, the outliers found by tasks that compute some columns of its rows.
    found: Vec<Mutex<Vec<gated::Outlier>>>,
}

/// Columns that LLM.int8() keeps in float.
#[derive(Debug, Default)]
struct OutlierColumns {
    /// For each column, a mask of the bits of an activation that are kept: all, or none if the column is an outlier.
    keep: Vec<u32>,
    channels: Vec<u32>,
}

impl QuantizedRows {
    /// The byte that represents zero: 128 if numbers are stored unsigned, 0 if they are stored signed.
    pub const ZERO: u8 = OFFSET;

    /// Quantizes `x`, `[rows, in_features]`, with the static scale of the layer:
    /// `clamp(round(x · (1 / scale)), −127, 127)`, rounding half to even.
    ///
    /// `x` is first multiplied by `smoothing`, `[in_features]`. With `shadow`, the clipped remainder of each |x| > 127
    /// · scale, x − sign(x) · 127 · scale, is recorded as an outlier.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes, or the scale is not positive, or its reciprocal not finite.
    pub fn quantize_static(
        &mut self,
        x: &[f32],
        in_features: usize,
        scale: f32,
        smoothing: Option<&[f32]>,
        shadow: bool,
    ) {
        let row = StaticRow::new(in_features, scale, smoothing, shadow);
        self.outlier_columns.channels.clear();
        self.each_row(x, in_features, |x, values, part| {
            row.quantize(x, values, part)
        });
    }

    /// Rows per task of [`QuantizedRows::quantize_made`].
    pub const TASK_ROWS: usize = PART_ROWS;

    /// Does the same as [`QuantizedRows::quantize_static`] for rows that `make` computes one by one, so that each row
    /// is quantized while it is in a core's cache. `make` is called with the task's chunk of `source` (chunks are of
    /// [`TASK_ROWS`](Self::TASK_ROWS) rows), the row's index among all rows, and `[in_features]` numbers to write.
    ///
    /// # Panics
    /// If there are fewer chunks than rows need, or as [`QuantizedRows::quantize_static`].
    pub fn quantize_made<C: Chunks>(
        &mut self,
        (rows, in_features): (usize, usize),
        (scale, smoothing, shadow): (f32, Option<&[f32]>, bool),
        source: C,
        make: impl Fn(&mut C::Chunk, usize, &mut [f32]) + Sync,
    ) {
        assert!(
            source.count() >= rows.div_ceil(PART_ROWS),
            "expected chunks for {rows} rows"
        );
        let row = StaticRow::new(in_features, scale, smoothing, shadow);
        self.outlier_columns.channels.clear();
        self.each(rows, in_features, source, |chunk, index, values, part| {
            let mut x = std::mem::take(&mut part.rest);
            x.resize(in_features, 0.0);
            make(chunk, index, &mut x);
            let scale = row.quantize(&x, values, part);
            part.rest = x;
            scale
        });
    }

    /// Quantizes `x`, `[rows, in_features]`, with a scale per row: its largest magnitude / 127.
    ///
    /// With a threshold, a column in which any |x| of this call exceeds it is an outlier, as in LLM.int8(): it is zero
    /// in the quantized numbers, and its full values are among the outliers of each row.
    ///
    /// # Panics
    /// If the length of `x` contradicts the shape.
    pub fn quantize_dynamic(
        &mut self,
        x: &[f32],
        in_features: usize,
        outlier_threshold: Option<f32>,
    ) {
        let mut columns = std::mem::take(&mut self.outlier_columns);
        columns.find(x, in_features, outlier_threshold);
        self.each_row(x, in_features, |x, values, part| {
            let outliers = &mut part.outliers;
            outliers.channels.extend_from_slice(&columns.channels);
            outliers
                .numbers
                .extend(columns.channels.iter().map(|channel| x[*channel as usize]));
            let mut rest = std::mem::take(&mut part.rest);
            rest.clear();
            rest.extend(
                x.iter()
                    .zip(&columns.keep)
                    .map(|(x, keep)| f32::from_bits(x.to_bits() & keep)),
            );
            let scale = scale_for(largest_magnitude(&rest));
            let row = ActivationRow {
                x: &rest,
                smoothing: None,
                inverse: scale.recip(),
                limit: f32::MAX,
            };
            // Collects NaN and infinity, if there are any; allocates only then.
            let mut none = Outliers::default();
            row.quantize(values, &mut none);
            none.channels
                .iter()
                .for_each(|channel| values[*channel as usize] = OFFSET);
            part.rest = rest;
            scale
        });
        self.outlier_columns = columns;
    }

    /// Stores the INT8 numbers that `fixed` computes from the sums of up and, for a gated feed-forward, of gate, both
    /// `[rows, width]`. `scale` is the static scale of the next layer. A row whose input scale in `of_input`, `[rows]`,
    /// is NaN gets the scale NaN.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub fn requantize(
        &mut self,
        fixed: &FixedPoint,
        (up, gate): (&[i32], &[i32]),
        scale: f32,
        of_input: &[f32],
    ) {
        let (rows, width) = (of_input.len(), fixed.width());
        assert_eq!(
            up.len(),
            rows * width,
            "sums of {rows} rows of {width} channels"
        );
        assert!(
            !fixed.is_gated() || gate.len() == up.len(),
            "expected as many sums of gate as of up"
        );
        self.outlier_columns.channels.clear();
        self.fill(rows, width, |row, values, _| {
            let range = row * width..(row + 1) * width;
            let gate = if fixed.is_gated() {
                &gate[range.clone()]
            } else {
                &[]
            };
            fixed.requantize(&up[range], gate, OFFSET, values);
            if of_input[row].is_nan() {
                f32::NAN
            } else {
                scale
            }
        });
    }

    /// Stores INT8 numbers `[rows, in_features]` that another processor quantized, with the scale of each row, `[rows]`.
    /// The rows have no outliers.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub fn store(&mut self, numbers: &[i8], in_features: usize, scales: &[f32]) {
        let rows = scales.len();
        assert_eq!(
            numbers.len(),
            rows * in_features,
            "{rows} rows of {in_features}"
        );
        self.outlier_columns.channels.clear();
        self.fill(rows, in_features, |row, values, _| {
            let numbers = &numbers[row * in_features..][..in_features];
            let pairs = values.iter_mut().zip(numbers);
            pairs.for_each(|(value, number)| *value = (*number as u8).wrapping_add(OFFSET));
            scales[row]
        });
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.scales.len()
    }

    /// Returns the number of features per row.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Returns the number of outliers in all rows.
    pub fn outliers(&self) -> usize {
        self.view().outliers()
    }

    /// Returns a view of all rows.
    pub fn view(&self) -> QuantizedView<'_> {
        QuantizedView {
            in_features: self.in_features,
            bytes: &self.values,
            parts: &self.parts[..self.rows().div_ceil(PART_ROWS)],
            rows_before: 0,
            scales: &self.scales,
            outlier_columns: &self.outlier_columns.channels,
        }
    }

    /// Returns a view of some rows, which it counts from zero.
    ///
    /// # Panics
    /// If the range exceeds the rows.
    pub fn rows_view(&self, rows: Range<usize>) -> QuantizedView<'_> {
        self.view().rows_view(rows)
    }

    /// Calls `quantize` for each row, which fills its numbers and outliers and returns its scale.
    fn each_row(
        &mut self,
        x: &[f32],
        in_features: usize,
        quantize: impl Fn(&[f32], &mut [u8], &mut Part) -> f32 + Sync,
    ) {
        assert!(
            (1..=MAX_IN_FEATURES).contains(&in_features),
            "{in_features} input features"
        );
        assert!(
            x.len().is_multiple_of(in_features),
            "{} activations in rows of {in_features}",
            x.len()
        );
        self.fill(x.len() / in_features, in_features, |row, values, part| {
            quantize(&x[row * in_features..][..in_features], values, part)
        });
    }

    /// Calls `fill` for each row, which writes its numbers and outliers and returns its scale.
    fn fill(
        &mut self,
        rows: usize,
        in_features: usize,
        fill: impl Fn(usize, &mut [u8], &mut Part) -> f32 + Sync,
    ) {
        self.each(
            rows,
            in_features,
            Nothing(rows.div_ceil(PART_ROWS)),
            |(), row, values, part| fill(row, values, part),
        );
    }

    /// Does the same as [`QuantizedRows::each_row`], but calls `quantize` with a part's chunk of `source` and the index
    /// of a row.
    fn each<C: Chunks>(
        &mut self,
        rows: usize,
        in_features: usize,
        source: C,
        quantize: impl Fn(&mut C::Chunk, usize, &mut [u8], &mut Part) -> f32 + Sync,
    ) {
        let stride = self.resize(rows, in_features);
        let numbers = (
            chunks_mut(&mut self.values, PART_ROWS * stride),
            chunks_mut(&mut self.scales, PART_ROWS),
        );
        let parts = ((numbers, source), chunks_mut(&mut self.parts, 1));
        for_each_chunk(
            parts,
            PARALLEL.div_ceil(PART_ROWS * in_features),
            |index, (((values, scales), mut source), part)| {
                let part = &mut part[0];
                part.clear();
                let rows = values.chunks_exact_mut(stride).zip(scales).enumerate();
                for (row, (values, scale)) in rows {
                    values[in_features..].fill(OFFSET);
                    *scale = quantize(
                        &mut source,
                        index * PART_ROWS + row,
                        &mut values[..in_features],
                        part,
                    );
                    part.ends.push(part.outliers.channels.len());
                }
            },
        );
    }

    /// Resizes the buffers; rows that remain keep their numbers. Returns the stride.
    fn resize(&mut self, rows: usize, in_features: usize) -> usize {
        assert!(
            (1..=MAX_IN_FEATURES).contains(&in_features),
            "{in_features} input features"
        );
        self.in_features = in_features;
        let stride = stride(in_features);
        self.values.resize(rows * stride);
        self.scales.resize(rows, 1.0);
        if self.parts.len() < rows.div_ceil(PART_ROWS) {
            self.parts
                .resize_with(rows.div_ceil(PART_ROWS), Part::default);
        }
        stride
    }
}

/// The parameters of quantization with a static scale.
struct StaticRow<'a> {
    scale: f32,
    clip: f32,
    limit: f32,
    inverse: f32,
    smoothing: Option<&'a [f32]>,
    kernel: &'static dyn Int8Kernel,
}

impl<'a> StaticRow<'a> {
    fn new(in_features: usize, scale: f32, smoothing: Option<&'a [f32]>, shadow: bool) -> Self {
        let clip = LARGEST * scale;
        assert!(
            scale.is_normal() && scale > 0.0 && clip.is_finite(),
            "scale {scale} is not positive and finite"
        );
        if let Some(smoothing) = smoothing {
            assert_eq!(smoothing.len(), in_features, "smoothing is [{in_features}]");
        }
        let limit = if shadow { clip } else { f32::MAX };
        Self {
            scale,
            clip,
            limit,
            inverse: scale.recip(),
            smoothing,
            kernel: best().int8,
        }
    }

    /// Writes a row's numbers and adds its outliers to those of the part. Returns the row's scale.
    fn quantize(&self, x: &[f32], values: &mut [u8], part: &mut Part) -> f32 {
        let first = part.outliers.channels.len();
        self.quantize_columns(x, 0..x.len(), values, &mut part.outliers);
        self.end(first, values, &mut part.outliers)
    }

    /// Writes the numbers of some columns of a row, and adds to `outliers` the activations that exceed the limit or are
    /// NaN, with channels counted from the first column.
    fn quantize_columns(
        &self,
        x: &[f32],
        columns: Range<usize>,
        values: &mut [u8],
        outliers: &mut Outliers,
    ) {
        let Self {
            limit,
            inverse,
            smoothing,
            kernel,
            ..
        } = *self;
        let smoothing = smoothing.map(|smoothing| &smoothing[columns]);
        kernel.quantize(
            &ActivationRow {
                x,
                smoothing,
                inverse,
                limit,
            },
            values,
            outliers,
        );
    }

    /// Converts the activations of a row in `outliers`, from `first` on, to what clipping took from them. Returns the
    /// row's scale.
    fn end(&self, first: usize, values: &mut [u8], outliers: &mut Outliers) -> f32 {
        let Self { scale, clip, .. } = *self;
        if outliers.numbers[first..].iter().all(|x| x.is_finite()) {
            outliers.numbers[first..]
                .iter_mut()
                .for_each(|x| *x -= clip.copysign(*x));
            return scale;
        }
        // The whole row becomes NaN.
        outliers.channels[first..]
            .iter()
            .for_each(|channel| values[*channel as usize] = OFFSET);
        outliers.truncate(first);
        f32::NAN
    }
}

impl OutlierColumns {
    /// Finds the columns of `x` that contain a magnitude above `threshold` or a NaN.
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
        self.channels
            .extend(outliers.map(|(channel, _)| channel as u32));
    }
}
