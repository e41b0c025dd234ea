//! Activations in INT8 as kernels read them, with those that INT8 cannot hold beside them.

use std::ops::Range;

use super::weight::QUAD;

/// Rows quantized by one task, whose outliers are stored together.
pub(crate) const PART_ROWS: usize = 16;
/// Numbers are stored this much too large, unsigned, as the dot-product instruction of x86 takes them; those of ARM
/// take them as they are.
pub(crate) const OFFSET: u8 = if cfg!(target_arch = "aarch64") {
    0
} else {
    128
};

/// A number as it is.
#[inline(always)]
pub(crate) fn signed(stored: u8) -> i8 {
    (stored ^ OFFSET) as i8
}

/// Channels, ascending within a row, and a number for each.
#[derive(Debug, Default)]
pub(crate) struct Outliers {
    pub channels: Vec<u32>,
    pub numbers: Vec<f32>,
}

/// Outliers of up to [`PART_ROWS`] rows.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Where each row's outliers end.
    pub ends: Vec<usize>,
    /// With their remainders.
    pub outliers: Outliers,
    /// One row as it is made, or without its outlier columns.
    pub rest: Vec<f32>,
}

/// Rows of a [`QuantizedRows`](crate::int8::QuantizedRows), all or some of them: what products and shadows read. A row has the same bits in every view.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedView<'a> {
    pub(crate) in_features: usize,
    /// `[rows, stride]`.
    pub(crate) bytes: &'a [u8],
    pub(crate) scales: &'a [f32],
    /// Those that contain the rows.
    pub(crate) parts: &'a [Part],
    /// Rows of the first part that are before those of the view.
    pub(crate) rows_before: usize,
    pub(crate) outlier_columns: &'a [u32],
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

    /// Returns some rows, which the view counts from zero.
    ///
    /// # Panics
    /// If there are no such rows.
    pub(crate) fn rows_view(self, rows: Range<usize>) -> Self {
        let stride = self.stride();
        let (begin, end) = (self.rows_before + rows.start, self.rows_before + rows.end);
        let first = begin / PART_ROWS;
        Self {
            bytes: &self.bytes[rows.start * stride..rows.end * stride],
            scales: &self.scales[rows],
            parts: &self.parts[first..end.div_ceil(PART_ROWS).max(first)],
            rows_before: begin % PART_ROWS,
            ..self
        }
    }

    /// Returns the quantized numbers of a row, from −127 to 127.
    pub fn values(self, row: usize) -> impl ExactSizeIterator<Item = i8> + use<'a> {
        self.quads(row).as_flattened()[..self.in_features]
            .iter()
            .map(|value| signed(*value))
    }

    /// The numbers of all rows as they are stored, for a processor that reads them in place: each row begins at a
    /// multiple of [`stride`](Self::stride), and [`QuantizedRows::ZERO`](crate::int8::QuantizedRows::ZERO) represents
    /// zero.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes from one row to the next: the features, and zeros up to a multiple of four.
    pub fn stride(self) -> usize {
        stride(self.in_features)
    }

    /// Bytes of all there is of the rows: numbers, scales and outliers.
    pub fn size(self) -> usize {
        size_of_val(self.bytes) + size_of_val(self.scales) + self.outlier_bytes()
    }

    /// Bytes of the outliers of all rows: a channel and a number for each.
    pub fn outlier_bytes(self) -> usize {
        self.outliers() * (size_of::<u32>() + size_of::<f32>())
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

    /// The columns that [`quantize_dynamic`](crate::int8::QuantizedRows::quantize_dynamic) left out, ascending.
    pub(crate) fn outlier_columns(self) -> &'a [u32] {
        self.outlier_columns
    }

    /// Returns the remainders of all outliers, row by row.
    pub(crate) fn remainders(self) -> Vec<f32> {
        self.outliers_of_parts()
            .flat_map(|(outliers, range)| &outliers.numbers[range])
            .copied()
            .collect()
    }

    /// Returns the stored numbers of a row ([`signed`]), four by four; the last four are padded with zeros.
    pub(crate) fn quads(self, row: usize) -> &'a [[u8; QUAD]] {
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

/// Bytes of a row of so many numbers.
pub(crate) fn stride(in_features: usize) -> usize {
    in_features.next_multiple_of(QUAD)
}

impl Part {
    /// Returns where the outliers of the first `rows` rows end.
    pub fn end(&self, rows: usize) -> usize {
        if rows == 0 { 0 } else { self.ends[rows - 1] }
    }

    pub fn clear(&mut self) {
        self.ends.clear();
        self.outliers.truncate(0);
    }
}

impl Outliers {
    pub fn push(&mut self, channel: usize, number: f32) {
        self.channels.push(channel as u32);
        self.numbers.push(number);
    }

    /// Makes room for so many more.
    #[cfg(target_arch = "x86_64")]
    pub fn reserve(&mut self, more: usize) {
        self.channels.reserve(more);
        self.numbers.reserve(more);
    }

    pub fn truncate(&mut self, count: usize) {
        self.channels.truncate(count);
        self.numbers.truncate(count);
    }
}
