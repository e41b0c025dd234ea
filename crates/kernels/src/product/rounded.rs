//! Rounded activations for products with weights in INT8, INT4 and blocks, on processors that multiply bf16 or INT16
//! faster than f32.
//!
//! In INT16, each [`PART`] of a row has its own unit, so that a few large numbers only reduce the precision of their
//! neighbours. Columns of a weight have units in the same way: sums over a part are exact, and are added in f32.

use std::cell::RefCell;
use std::ops::Range;

use super::operand::Arithmetic;
use super::pack::{Source, Wide, pack};
use super::{Write, panels};
use crate::Matrix;
use crate::aligned_buf::AlignedBuf;
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::kernel::panel::pairs::Purpose;
use crate::kernel::panel::{LANES, PANEL, PairKernel, Panel};
use crate::output::{OutputMut, SharedOutput};
use crate::vectorize::vectorize;

/// Numbers of a row that share a unit: a multiple of INT4's groups and of the elements of a block.
pub(crate) const PART: usize = 512;
/// Rows of sums that the first-level cache holds until they are added to the output.
const ROWS: usize = 64;
/// Rows that one task rounds.
const TASK_ROWS: usize = 16;

/// Rows in bf16 or INT16.
pub(crate) struct RoundedRows {
    arithmetic: Arithmetic,
    /// `[rows, in_features / 2]`, rounded up.
    words: AlignedBuf<u32>,
    /// `[rows, parts]`: the scale of each part in INT16; 1 in bf16.
    units: Vec<f32>,
    in_features: usize,
}

#[derive(Default)]
struct Scratch {
    wide: Wide,
    /// Weights of a part and some columns, in f32.
    widened: Vec<f32>,
    /// The same weights as pairs, `[columns, words]`.
    words: Vec<u32>,
    /// Unit of each column.
    units: Vec<f32>,
    units_of_some: Vec<f32>,
    /// The packed panel, `[words, PANEL]`.
    panel: AlignedBuf<u32>,
    /// Sums in i32, `[ROWS, columns]`.
    sums: AlignedBuf<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Returns the range of each part of a row.
fn parts(in_features: usize) -> impl Iterator<Item = Range<usize>> {
    (0..in_features)
        .step_by(PART)
        .map(move |start| start..(start + PART).min(in_features))
}

impl RoundedRows {
    /// Rounds `x[rows, in_features]`; returns `None` if products with it are computed in f32.
    pub(crate) fn new(x: &[f32], in_features: usize) -> Option<Self> {
        let arithmetic = Arithmetic::rounded();
        if let Arithmetic::F32(_) = arithmetic {
            return None;
        }
        let (rows, depth, parts) = (
            x.len() / in_features,
            in_features.div_ceil(2),
            in_features.div_ceil(PART),
        );
        let (mut words, mut units) = (AlignedBuf::default(), vec![1.0; rows * parts]);
        words.resize(rows * depth);
        let chunks = (
            chunks_mut(&mut words, TASK_ROWS * depth),
            chunks_mut(&mut units, TASK_ROWS * parts),
        );
        for_each_chunk(chunks, 1, |task, (words, units)| {
            let x = x[task * TASK_ROWS * in_features..].chunks_exact(in_features);
            let mut some = Vec::new();
            for ((x, words), units) in x
                .zip(words.chunks_exact_mut(depth))
                .zip(units.chunks_exact_mut(parts))
            {
                match arithmetic {
                    Arithmetic::Int16(kernel) => round_row(kernel, x, words, units, &mut some),
                    _ => arithmetic.to_words(x, in_features, words, &mut some),
                }
            }
        });
        Some(Self {
            arithmetic,
            words,
            units,
            in_features,
        })
    }

    /// Computes `out[.., columns] = self[rows, in_features] · weightᵀ` for all rows of `out`, with a weight `[columns,
    /// in_features]`, which is rounded as the rows are; bf16 represents INT8 exactly.
    ///
    /// # Safety
    /// No other thread may access these columns of `out` during the call.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn product(&self, weight: Matrix, out: SharedOutput, columns: Range<usize>) {
        let depth = self.in_features.div_ceil(2);
        let kernel = match self.arithmetic {
            Arithmetic::F32(_) => unreachable!("rows in f32 are not rounded"),
            Arithmetic::Bf16(kernel) => kernel,
            // SAFETY: as the caller promises.
            Arithmetic::Int16(kernel) => unsafe {
                return self.by_parts(kernel, weight, out, columns);
            },
        };
        let source = match weight {
            Matrix::Int8 { values, .. } => Source::Int8(values, self.in_features),
            weight => Source::Bf16(kernel, weight, self.in_features),
        };
        // SAFETY: as the caller promises.
        unsafe {
            panels(
                kernel,
                &self.words,
                depth,
                source,
                out,
                columns.clone(),
                Write::Replace,
            );
        };
        if let Matrix::Int8 { scales, .. } = weight {
            for row in 0..out.rows() {
                // SAFETY: as the caller promises.
                let out = unsafe { out.row(row, columns.clone()) };
                out.iter_mut()
                    .zip(scales)
                    .for_each(|(out, scale)| *out *= scale);
            }
        }
    }

    /// Computes [`product`](Self::product) in INT16, one panel of one part after the other.
    ///
    /// # Safety
    /// As for [`product`](Self::product).
    #[allow(unsafe_code)]
    unsafe fn by_parts(
        &self,
        kernel: &dyn PairKernel,
        weight: Matrix,
        out: SharedOutput,
        columns: Range<usize>,
    ) {
        assert_eq!(
            weight.len(),
            columns.len() * self.in_features,
            "a weight of {} columns",
            columns.len()
        );
        let depth = self.in_features.div_ceil(2);
        assert_eq!(
            self.words.len(),
            out.rows() * depth,
            "left operand is [{}, {depth}]",
            out.rows()
        );
        SCRATCH.with_borrow_mut(|scratch| {
            for first in (0..columns.len()).step_by(PANEL) {
                let of_panel = first..(first + PANEL).min(columns.len());
                for (index, part) in parts(self.in_features).enumerate() {
                    self.pack(kernel, weight, of_panel.clone(), part.clone(), scratch);
                    let of_out = columns.start + of_panel.start..columns.start + of_panel.end;
                    for row in (0..out.rows()).step_by(ROWS) {
                        let rows = row..(row + ROWS).min(out.rows());
                        // SAFETY: as the caller promises.
                        unsafe {
                            self.add_part(
                                kernel,
                                (index, &part),
                                scratch,
                                out,
                                rows,
                                of_out.clone(),
                            );
                        };
                    }
                }
            }
        });
    }

    /// Packs a part of some columns of a weight, which fit in a panel.
    fn pack(
        &self,
        kernel: &dyn PairKernel,
        weight: Matrix,
        columns: Range<usize>,
        part: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let Scratch {
            wide,
            widened,
            words,
            units,
            units_of_some,
            panel,
            ..
        } = scratch;
        let (width, steps) = (part.len(), part.len().div_ceil(2));
        widened.resize(LANES * PART, 0.0);
        words.resize(PANEL * PART / 2, 0);
        panel.resize(PANEL * PART / 2);
        units.clear();
        for first in columns.clone().step_by(LANES) {
            let some = first..(first + LANES).min(columns.end);
            let widened = &mut widened[..some.len() * width];
            for (column, widened) in some.clone().zip(widened.chunks_exact_mut(width)) {
                weight
                    .part(column, part.clone(), self.in_features)
                    .widen_into(widened);
            }
            let words = &mut words[(first - columns.start) * steps..][..some.len() * steps];
            kernel.round(widened, width, Purpose::Products, words, units_of_some);
            units.extend_from_slice(units_of_some);
        }
        let source = Source::Words(&words[..columns.len() * steps]);
        pack(
            kernel,
            source,
            steps,
            0..steps,
            0..columns.len(),
            wide,
            panel,
        );
    }

    /// Adds the products of a part of `rows` with the packed panel to `out`; those of the first part replace it.
    ///
    /// # Safety
    /// No other thread may access these columns of `out` during the call.
    #[allow(unsafe_code)]
    unsafe fn add_part(
        &self,
        kernel: &dyn PairKernel,
        (index, part): (usize, &Range<usize>),
        scratch: &mut Scratch,
        out: SharedOutput,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        let Scratch {
            panel, sums, units, ..
        } = scratch;
        let (count, depth, parts) = (
            columns.len(),
            self.in_features.div_ceil(2),
            self.in_features.div_ceil(PART),
        );
        sums.resize(rows.len() * count);
        kernel.multiply(&Panel {
            left: &self.words[rows.start * depth + part.start / 2..],
            left_stride: depth,
            steps: part.len().div_ceil(2),
            right: panel,
            right_stride: PANEL,
            out: OutputMut::new(sums, count).into_shared(),
            columns: 0..count,
            add: false,
        });
        let of_rows = self
            .units
            .iter()
            .skip(rows.start * parts + index)
            .step_by(parts);
        vectorize(
            #[inline(always)]
            || {
                for ((row, sums), of_row) in rows
                    .clone()
                    .zip(sums.chunks_exact(count))
                    .zip(of_rows.clone())
                {
                    // SAFETY: as the caller promises.
                    let out = unsafe { out.row(row, columns.clone()) };
                    if index == 0 {
                        out.fill(0.0);
                    }
                    add_scaled(sums, *of_row, units, out);
                }
            },
        );
    }

    /// Returns the rows after rounding.
    #[cfg(test)]
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        let rows = self.words.chunks_exact(self.in_features.div_ceil(2));
        let units = self.units.chunks_exact(self.in_features.div_ceil(PART));
        let row = |(words, units): (&[u32], &[f32])| -> Vec<f32> {
            let halves: &[u16] = bytemuck::cast_slice(words);
            let number = |(index, half): (usize, &u16)| match self.arithmetic {
                Arithmetic::Int16(_) => f32::from(*half as i16) * units[index / PART],
                _ => half::bf16::from_bits(*half).to_f32(),
            };
            halves[..self.in_features]
                .iter()
                .enumerate()
                .map(number)
                .collect()
        };
        rows.zip(units).flat_map(row).collect()
    }

    /// Returns whether rows are in INT16.
    #[cfg(test)]
    pub(crate) fn are_int16(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::Int16(_))
    }
}

/// Adds sums in i32, times the units of their row and column.
#[inline(always)]
fn add_scaled(sums: &[f32], of_row: f32, of_columns: &[f32], out: &mut [f32]) {
    for ((out, sum), of_column) in out.iter_mut().zip(sums).zip(of_columns) {
        *out += sum.to_bits() as i32 as f32 * (of_row * of_column);
    }
}

/// Rounds one row to INT16: its whole parts, and the rest.
fn round_row(
    kernel: &dyn PairKernel,
    x: &[f32],
    words: &mut [u32],
    units: &mut [f32],
    some: &mut Vec<f32>,
) {
    let whole = x.len() / PART * PART;
    let ((parts, rest), (of_parts, of_rest)) = (x.split_at(whole), words.split_at_mut(whole / 2));
    kernel.round(parts, PART, Purpose::Products, of_parts, some);
    units[..some.len()].copy_from_slice(some);
    if let [.., last] = units
        && !rest.is_empty()
    {
        kernel.round(rest, rest.len(), Purpose::Products, of_rest, some);
        *last = some[0];
    }
}
