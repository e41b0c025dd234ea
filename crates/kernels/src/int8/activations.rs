//! Activations in INT8, with those that INT8 cannot hold beside them.

mod gated;

use std::ops::Range;
use std::sync::Mutex;

use super::weight::scale_for;
use crate::chunks::{Chunks, Nothing, chunks_mut, for_each_chunk};
use crate::fixed_point::FixedPoint;
use crate::kernel::best;
use crate::kernel::int8::quantize::ActivationRow;
use crate::kernel::int8::rows::{OFFSET, Outliers, PART_ROWS, Part, QuantizedView, stride};
use crate::kernel::int8::{Int8Kernel, LARGEST, MAX_IN_FEATURES};
use crate::lines::Lines;
use crate::magnitude::largest_magnitude;
use crate::vectorize::vectorize;

pub use gated::Gated;

/// Fewer activations than this are quantized before another thread wakes up.
const PARALLEL: usize = 1 << 15;
/// The input of linear layers, `[rows, in_features]`, quantized to INT8: symmetric, with a scale for each
/// row and a list of outliers. Its memory is used again by the next input.
///
/// A row with an activation that is not finite gets the scale NaN, which makes all outputs of the row NaN.
#[derive(Debug, Default)]
pub struct QuantizedRows {
    in_features: usize,
    /// `[rows, stride]`, where the stride is the next multiple of four. Tiles of a matrix unit are read from it in place, much
    /// slower where they straddle cache lines.
    values: Lines<u8>,
    scales: Vec<f32>,
    parts: Vec<Part>,
    outlier_columns: OutlierColumns,
    /// Of each part, what tasks that make some columns of its rows found.
    found: Vec<Mutex<Vec<gated::Outlier>>>,
}

/// Columns that LLM.int8() keeps in float.
#[derive(Debug, Default)]
struct OutlierColumns {
    /// For each column the bits of an activation that stay: all, or none where it is an outlier.
    keep: Vec<u32>,
    channels: Vec<u32>,
}

impl QuantizedRows {
    /// The byte that represents zero: 128 where numbers are stored unsigned, 0 where they are stored as they are.
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
        let row = StaticRow::new(in_features, scale, smoothing, shadow);
        self.outlier_columns.channels.clear();
        self.each_row(x, in_features, |x, values, part| {
            row.quantize(x, values, part)
        });
    }

    /// Rows that one task of [`QuantizedRows::quantize_made`] makes.
    pub const TASK_ROWS: usize = PART_ROWS;

    /// As [`QuantizedRows::quantize_static`], of rows that `make` makes one by one, so that each is quantized while it is in
    /// a core's cache: it is called with what a task takes of `source`, whose chunks are of
    /// [`TASK_ROWS`](Self::TASK_ROWS) rows, with the number of a row among all, and with `[in_features]` numbers to write.
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
            "something to make {rows} rows of"
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

    /// Quantizes `x`, `[rows, in_features]`, with a scale for each row, its largest magnitude / 127.
    ///
    /// With a threshold, a column in which any |x| of this call exceeds it is left out, as in LLM.int8():
    /// zero in the quantized numbers, and in full among the outliers of each row.
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
            // What is no number, if anything: allocates only then.
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

    /// Takes the numbers of `fixed`, with the static scale of what reads them, from the sums of up and, of a gated feed-forward, of
    /// gate, both `[rows, width]`. A row whose input has the scale NaN, in `of_input`, `[rows]`, has it, too.
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
            "as many sums of gate as of up"
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
        QuantizedView {
            in_features: self.in_features,
            bytes: &self.values,
            parts: &self.parts[..self.rows().div_ceil(PART_ROWS)],
            rows_before: 0,
            scales: &self.scales,
            outlier_columns: &self.outlier_columns.channels,
        }
    }

    /// Returns some rows, which the view counts from zero.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn rows_view(&self, rows: Range<usize>) -> QuantizedView<'_> {
        self.view().rows_view(rows)
    }

    /// Has `quantize` fill each row's numbers and outliers and return its scale.
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

    /// Has `fill` write each row's numbers and outliers and return its scale.
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

    /// As [`QuantizedRows::each_row`], where `quantize` is called with a part's chunk of `source` and the number of a row.
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

    /// Makes room for rows; those that stay have the numbers that they had. Returns their stride.
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

/// How rows are quantized with a static scale.
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

    /// Writes the numbers of some columns of a row, and adds those that are beyond the limit or no numbers to `outliers`, their
    /// channels counted from the first column.
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

    /// Makes outliers from the one at `first` on, which are those of a row, what clipping took from them. Returns the row's scale.
    fn end(&self, first: usize, values: &mut [u8], outliers: &mut Outliers) -> f32 {
        let Self { scale, clip, .. } = *self;
        if outliers.numbers[first..].iter().all(|x| x.is_finite()) {
            outliers.numbers[first..]
                .iter_mut()
                .for_each(|x| *x -= clip.copysign(*x));
            return scale;
        }
        // The whole row is no number.
        outliers.channels[first..]
            .iter()
            .for_each(|channel| values[*channel as usize] = OFFSET);
        outliers.truncate(first);
        f32::NAN
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
        self.channels
            .extend(outliers.map(|(channel, _)| channel as u32));
    }
}
