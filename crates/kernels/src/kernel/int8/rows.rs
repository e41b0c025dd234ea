//! Activations in INT8 as kernels read them, with the outliers that INT8 cannot hold.

use std::ops::Range;

use super::weight::QUAD;

/// Rows that one task quantizes, and whose outliers are stored together.
pub(crate) const PART_ROWS: usize = 16;
/// The offset of stored numbers: x86's dot-product instruction takes unsigned bytes; ARM's takes signed ones.
pub(crate) const OFFSET: u8 = if cfg!(target_arch = "aarch64") {
    0
} else {
    128
};

/// Returns a number without its offset.
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

/// The outliers of up to [`PART_ROWS`] rows.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// The end of each row's outliers.
    pub ends: Vec<usize>,
    /// The outliers, with their remainders.
    pub outliers: Outliers,
    /// Scratch for one row, as it is computed, or without its outlier columns.
    pub rest: Vec<f32>,
}

/// All or some rows of a [`QuantizedRows`](crate::int8::QuantizedRows), for products and shadows. A row has the same
/// bits in every view.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedView<'a> {
    pub(crate) in_features: usize,
    /// `[rows, stride]`.
    pub(crate) bytes: &'a [u8],
    pub(crate) scales: &'a [f32],
    /// The parts that contain the rows.
    pub(crate) parts: &'a [Part],
    /// Rows of the first part that precede those of the view.
    pub(crate) rows_before: usize,
    pub(crate) outlier_columns: &'a [u32],
}

impl<'a> QuantizedView<'a> {
    /// Returns the number of rows.
    pub fn rows(self) -> usize {
        self.scales.len()
    }

    /// Returns the number of features per row.
    pub fn in_features(self) -> usize {
        self.in_features
    }

    /// Returns the scale of each row, `[rows]`.
    pub fn scales(self) -> &'a [f32] {
        self.scales
    }

    /// Returns a view of some rows, which it counts from zero.
    ///
    /// # Panics
    /// If the range exceeds the rows.
    #[must_use]
    pub fn rows_view(self, rows: Range<usize>) -> Self {
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

    /// Returns the stored numbers of all rows, for a processor that reads them in place: rows are
    /// [`stride`](Self::stride) bytes apart, and [`QuantizedRows::ZERO`](crate::int8::QuantizedRows::ZERO) represents
    /// zero.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes per row: the features, padded with zeros to a multiple of four.
    pub fn stride(self) -> usize {
        stride(self.in_features)
    }

    /// Returns the bytes of the rows: numbers, scales and outliers.
    pub fn size(self) -> usize {
        size_of_val(self.bytes) + size_of_val(self.scales) + self.outlier_bytes()
    }

    /// Returns the bytes of the outliers of all rows: a channel and a number for each.
    pub fn outlier_bytes(self) -> usize {
        self.outliers() * (size_of::<u32>() + size_of::<f32>())
    }

    /// Returns the number of outliers in all rows.
    pub fn outliers(self) -> usize {
        self.outliers_of_parts().map(|(_, range)| range.len()).sum()
    }

    /// Returns the outliers of a row: channels, ascending, and for each the remainder that its quantized number lacks.
    pub fn outliers_of(self, row: usize) -> (&'a [u32], &'a [f32]) {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        let row = self.rows_before + row;
        let (part, row) = (&self.parts[row / PART_ROWS], row % PART_ROWS);
        let range = part.end(row)..part.ends[row];
        let Outliers { channels, numbers } = &part.outliers;
        (&channels[range.clone()], &numbers[range])
    }

    /// Returns the columns that [`quantize_dynamic`](crate::int8::QuantizedRows::quantize_dynamic) left out, ascending.
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

    /// Returns the outliers of each part, and the range of those that belong to rows of this view.
    fn outliers_of_parts(self) -> impl Iterator<Item = (&'a Outliers, Range<usize>)> {
        let end = self.rows_before + self.rows();
        self.parts.iter().enumerate().map(move |(index, part)| {
            let first = if index == 0 { self.rows_before } else { 0 };
            let range = part.end(first)..part.end((end - index * PART_ROWS).min(PART_ROWS));
            (&part.outliers, range)
        })
    }
}

/// Returns the bytes of a row of this many numbers.
pub(crate) fn stride(in_features: usize) -> usize {
    in_features.next_multiple_of(QUAD)
}

impl Part {
    /// Returns the end of the outliers of the first `rows` rows.
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

    /// Reserves capacity for `more` outliers.
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
