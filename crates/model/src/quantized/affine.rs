//! Integers or floats of few bits with a scale, and a zero point or an offset, for each group of a row.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use triad_blocks::BlockFormat;

use super::Representation;
use super::part::{File, Part, float, word};
use crate::tensor::Format;

/// Consecutive weights that share a scale in the formats of the kernels.
const KERNEL_GROUP: usize = 32;
/// Columns that are unpacked together if the words of a column are far apart.
const TILE: usize = 16;
/// The place in a word of AWQ for each of eight consecutive rows.
const AWQ_ORDER: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix `[out_features, in_features]`: element = (code − zero) · scale + offset, with one rounding after each step
/// that can round.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Affine {
    pub(super) codes: Codes,
    pub(super) scales: Grid,
    pub(super) zeros: Zeros,
    /// Numbers that are added, in the layout of the scales.
    pub(super) offsets: Option<Part>,
    pub(super) columns: Columns,
    /// A factor of every element after the scale.
    pub(super) factor: Option<f32>,
    /// The type in which the reference computes.
    pub(super) rounding: Format,
}

/// The codes of all elements.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Codes {
    /// Signed bytes, row by row.
    Signed(Part),
    /// FP8 with four bits of exponent and three of fraction, row by row.
    Float8(Part),
    /// Unsigned integers of 4 or 8 bits, row by row; a row begins at a word.
    Rows { part: Part, bits: u32 },
    /// Unsigned integers; a word has consecutive elements of one row, and consecutive words are of consecutive rows.
    Columns { part: Part, bits: u32 },
    /// Unsigned integers of 4 bits; a word has one column of eight rows.
    Awq(Part),
}

/// Scales of groups.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grid {
    pub(super) part: Part,
    /// Rows that share scales.
    pub(super) row_block: usize,
    /// Distance of the scales of consecutive blocks of rows.
    pub(super) row_stride: usize,
    /// Distance of the scales of consecutive groups.
    pub(super) group_stride: usize,
    pub(super) groups: usize,
}

impl Grid {
    pub(super) fn index(&self, row: usize, group: usize) -> usize {
        row / self.row_block * self.row_stride + group * self.group_stride
    }
}

/// Zero points of groups.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Zeros {
    /// The same for all.
    Constant(i16),
    /// Signed bytes in the layout of the scales.
    Signed(Part),
    /// A word has one group of consecutive rows. `added` is to be added to each.
    ByGroup {
        part: Part,
        bits: u32,
        added: i16,
        awq: bool,
    },
    /// A word has consecutive rows of one group, and consecutive words are of consecutive groups.
    ByRows { part: Part, bits: u32 },
}

/// The groups of the columns.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Columns {
    /// Consecutive columns; the last group may have fewer.
    Runs(usize),
    /// The group of each column, checked to be one of those of the grid.
    Indexed(Vec<u32>),
}

impl Columns {
    /// Returns the groups that `index` names, as runs of `size` if it names those.
    pub(super) fn from_index(index: Vec<u32>, size: usize) -> Self {
        let is_plain = index
            .iter()
            .enumerate()
            .all(|(column, group)| column / size == *group as usize);
        match is_plain {
            true => Self::Runs(size),
            false => Self::Indexed(index),
        }
    }
}

impl Codes {
    pub(super) fn part(&self) -> &Part {
        match self {
            Self::Signed(part) | Self::Float8(part) | Self::Awq(part) => part,
            Self::Rows { part, .. } | Self::Columns { part, .. } => part,
        }
    }

    fn bits(&self) -> Option<u32> {
        match self {
            Self::Signed(_) => Some(8),
            Self::Float8(_) => None,
            Self::Rows { bits, .. } | Self::Columns { bits, .. } => Some(*bits),
            Self::Awq(_) => Some(4),
        }
    }

    /// Writes the codes of some rows as floats.
    fn read(&self, files: &[File], shape: [usize; 2], rows: Range<usize>, out: &mut [f32]) {
        let [out_features, width] = shape;
        let bytes = self.part().bytes(files);
        let of_rows = |row_bytes: usize| &bytes[rows.start * row_bytes..rows.end * row_bytes];
        match self {
            Self::Signed(_) => {
                for (out, byte) in out.iter_mut().zip(of_rows(width)) {
                    *out = f32::from(byte.cast_signed());
                }
            }
            Self::Float8(_) => {
                for (out, byte) in out.iter_mut().zip(of_rows(width)) {
                    *out = FLOAT8[usize::from(*byte)];
                }
            }
            Self::Rows { bits, .. } => {
                let row_bytes = bytes.len() / out_features;
                let rows = of_rows(row_bytes).chunks_exact(row_bytes);
                for (out, bytes) in out.chunks_exact_mut(width).zip(rows) {
                    if *bits == 8 {
                        for (out, byte) in out.iter_mut().zip(bytes) {
                            *out = f32::from(*byte);
                        }
                        continue;
                    }
                    for (out, byte) in out.chunks_mut(2).zip(bytes) {
                        out[0] = f32::from(byte & 15);
                        if let Some(second) = out.get_mut(1) {
                            *second = f32::from(byte >> 4);
                        }
                    }
                }
            }
            Self::Columns { bits, .. } => {
                let per_word = (32 / bits) as usize;
                let mask = (1 << bits) - 1;
                for first in (0..width).step_by(per_word) {
                    let of_columns = first / per_word * out_features;
                    let last = (first + per_word).min(width);
                    for (row, out) in rows.clone().zip(out.chunks_exact_mut(width)) {
                        let mut codes = word(bytes, of_columns + row);
                        for out in &mut out[first..last] {
                            *out = (codes & mask) as f32;
                            codes >>= bits;
                        }
                    }
                }
            }
            Self::Awq(_) => {
                let words = out_features / 8;
                for first in (0..width).step_by(TILE) {
                    for (row, out) in rows.clone().zip(out.chunks_exact_mut(width)) {
                        let shift = 4 * AWQ_ORDER[row % 8];
                        let last = (first + TILE).min(width);
                        for (column, out) in (first..last).zip(&mut out[first..last]) {
                            *out = (word(bytes, column * words + row / 8) >> shift & 15) as f32;
                        }
                    }
                }
            }
        }
    }
}

impl Zeros {
    pub(super) fn part(&self) -> Option<&Part> {
        match self {
            Self::Constant(_) => None,
            Self::Signed(part) | Self::ByGroup { part, .. } | Self::ByRows { part, .. } => {
                Some(part)
            }
        }
    }

    fn get(&self, bytes: &[u8], grid: &Grid, row: usize, group: usize) -> i16 {
        match self {
            Self::Constant(zero) => *zero,
            Self::Signed(_) => i16::from(bytes[grid.index(row, group)].cast_signed()),
            Self::ByGroup {
                part,
                bits,
                added,
                awq,
            } => {
                let per_word = (32 / bits) as usize;
                let word = word(bytes, group * part.shape[1] + row / per_word);
                let place = match awq {
                    true => AWQ_ORDER[row % 8],
                    false => (row % per_word) as u32,
                };
                (word >> (bits * place) & ((1 << bits) - 1)) as i16 + added
            }
            Self::ByRows { part, bits } => {
                let per_word = (32 / bits) as usize;
                let word = word(bytes, row / per_word * part.shape[1] + group);
                (word >> (bits * (row % per_word) as u32) & ((1 << bits) - 1)) as i16
            }
        }
    }
}

impl Affine {
    /// Returns all parts.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        [self.codes.part(), &self.scales.part]
            .into_iter()
            .chain(self.zeros.part())
            .chain(&self.offsets)
    }

    /// Writes some rows as the reference dequantizes them.
    pub(super) fn dequantize(
        &self,
        files: &[File],
        shape: [usize; 2],
        rows: Range<usize>,
        out: &mut [f32],
    ) {
        self.integers(files, shape, rows.clone(), out);
        let mut scales = vec![0.0; self.scales.groups];
        for (row, out) in rows.zip(out.chunks_exact_mut(shape[1])) {
            self.scales(files, row, &mut scales);
            self.for_groups(&scales, out, |value, scale| value * scale);
            round(self.rounding, out);
            if let Some(factor) = self.factor {
                out.iter_mut().for_each(|value| *value *= factor);
                round(self.rounding, out);
            }
            if self.offsets.is_some() {
                self.offsets(files, row, &mut scales);
                self.for_groups(&scales, out, |value, offset| value + offset);
                round(self.rounding, out);
            }
        }
    }

    /// Writes code − zero for some rows.
    pub(super) fn integers(
        &self,
        files: &[File],
        shape: [usize; 2],
        rows: Range<usize>,
        out: &mut [f32],
    ) {
        self.codes.read(files, shape, rows.clone(), out);
        if self.zeros == Zeros::Constant(0) {
            return;
        }
        let bytes = self.zero_bytes(files);
        let mut zeros = vec![0.0; self.scales.groups];
        for (row, out) in rows.zip(out.chunks_exact_mut(shape[1])) {
            for (group, zero) in zeros.iter_mut().enumerate() {
                *zero = f32::from(self.zeros.get(bytes, &self.scales, row, group));
            }
            self.for_groups(&zeros, out, |code, zero| code - zero);
        }
    }

    /// Writes the scales of all groups of a row.
    pub(super) fn scales(&self, files: &[File], row: usize, out: &mut [f32]) {
        self.grid(&self.scales.part, files, row, out);
    }

    /// Repeats the numbers of all groups, times the factor, for each `size` columns of a row.
    pub(super) fn repeat(&self, of_groups: &[f32], size: usize, out: &mut [f32]) {
        let Columns::Runs(run) = self.columns else {
            panic!("groups of consecutive columns")
        };
        for (index, out) in out.iter_mut().enumerate() {
            *out = of_groups[index * size / run] * self.factor.unwrap_or(1.0);
        }
    }

    /// Writes the offsets of all groups of a row.
    pub(super) fn offsets(&self, files: &[File], row: usize, out: &mut [f32]) {
        if let Some(part) = &self.offsets {
            self.grid(part, files, row, out);
        }
    }

    fn grid(&self, part: &Part, files: &[File], row: usize, out: &mut [f32]) {
        let bytes = part.bytes(files);
        for (group, out) in out.iter_mut().enumerate() {
            *out = float(part.element, bytes, self.scales.index(row, group));
        }
    }

    fn for_groups(&self, numbers: &[f32], row: &mut [f32], with: impl Fn(f32, f32) -> f32) {
        match &self.columns {
            Columns::Runs(size) => {
                for (values, number) in row.chunks_mut(*size).zip(numbers) {
                    values
                        .iter_mut()
                        .for_each(|value| *value = with(*value, *number));
                }
            }
            Columns::Indexed(groups) => {
                for (value, group) in row.iter_mut().zip(groups) {
                    *value = with(*value, numbers[*group as usize]);
                }
            }
        }
    }

    fn zero_bytes<'a>(&self, files: &[File<'a>]) -> &'a [u8] {
        self.zeros.part().map_or(&[], |part| part.bytes(files))
    }

    /// Returns the format of the kernels that has the same integers and scales, or that of the dequantized values.
    pub(super) fn representation(&self, files: &[File], shape: [usize; 2]) -> Representation {
        let wide = Representation::Float(self.rounding);
        let (Columns::Runs(run), Some(bits)) = (&self.columns, self.codes.bits()) else {
            return wide;
        };
        let run = (*run).min(shape[1]);
        let by_channel = run == shape[1];
        let by_blocks = run.is_multiple_of(KERNEL_GROUP)
            && shape[1].is_multiple_of(KERNEL_GROUP)
            && self.are_f16(&self.scales.part, files);
        if let Some(offsets) = &self.offsets {
            return match bits {
                4 if by_blocks && self.are_f16(offsets, files) => {
                    Representation::Blocks(BlockFormat::Q4_1)
                }
                _ => wide,
            };
        }
        // The zero point of integers that are symmetric around it.
        let middle = match self.codes {
            Codes::Signed(_) => 0,
            _ => 1 << (bits - 1),
        };
        let are_symmetric = self.zeros_are(files, shape, |zero| zero == middle);
        match bits {
            8 if are_symmetric && by_channel => Representation::Int8,
            8 if are_symmetric && by_blocks => Representation::Blocks(BlockFormat::Q8_0),
            4 if are_symmetric && by_blocks => Representation::Int4,
            // Differences of −15 to 15 fit five bits.
            4 if by_blocks && self.zeros_are(files, shape, |zero| (0..16).contains(&zero)) => {
                Representation::Blocks(BlockFormat::Q5_0)
            }
            _ => wide,
        }
    }

    /// Returns whether all numbers of `part` are finite numbers of f16.
    fn are_f16(&self, part: &Part, files: &[File]) -> bool {
        if self.factor.is_some() {
            return false;
        }
        let bytes = part.bytes(files);
        (0..part.elements()).all(|index| {
            let number = float(part.element, bytes, index);
            number.is_finite() && f16::from_f32(number).to_f32() == number
        })
    }

    fn zeros_are(&self, files: &[File], shape: [usize; 2], is: impl Fn(i16) -> bool) -> bool {
        if let Zeros::Constant(zero) = self.zeros {
            return is(zero);
        }
        let bytes = self.zero_bytes(files);
        (0..shape[0]).all(|row| {
            (0..self.scales.groups).all(|group| is(self.zeros.get(bytes, &self.scales, row, group)))
        })
    }
}

/// Rounds numbers to a type of floats.
pub(super) fn round(to: Format, values: &mut [f32]) {
    match to {
        Format::F16 => {
            let mut halves = [f16::ZERO; 256];
            for values in values.chunks_mut(halves.len()) {
                let halves = &mut halves[..values.len()];
                halves.convert_from_f32_slice(values);
                halves.convert_to_f32_slice(values);
            }
        }
        Format::Bf16 => values
            .iter_mut()
            .for_each(|value| *value = bf16::from_f32(*value).to_f32()),
        Format::F32 | Format::Blocks(_) => {}
    }
}

/// The values of all codes of FP8 (E4M3, without infinities).
static FLOAT8: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = float8(code as u8);
        code += 1;
    }
    values
};

const fn float8(code: u8) -> f32 {
    let sign = (code as u32 >> 7) << 31;
    let (exponent, fraction) = ((code >> 3) as u32 & 15, code as u32 & 7);
    let magnitude = match (exponent, fraction) {
        (15, 7) => f32::NAN,
        // Multiples of 2⁻⁹.
        (0, _) => fraction as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | fraction << 20),
    };
    f32::from_bits(magnitude.to_bits() | sign)
}
