//! Right operands that several products share, packed once for all.

use std::ops::Range;

use super::DEPTH;
use super::pack::{Source, Wide, pack};
use crate::Matrix;
use crate::aligned_buf::AlignedBuf;
use crate::kernel::best;
use crate::kernel::panel::pairs::{self, Purpose, ValueUnits, WEIGHTS};
use crate::kernel::panel::{
    Bf16Kernel, PANEL, PairKernel, Panel, PanelKernel, Powers, powers_of_two,
};
use crate::output::OutputMut;

/// The number format of a product's operands, with the kernel that multiplies it. Operands of every format are 32-bit
/// words: numbers in f32, or pairs. Every row that is rounded to INT16 has a unit, its scale.
#[derive(Clone, Copy)]
pub(crate) enum Arithmetic {
    /// f32.
    F32(&'static dyn PanelKernel),
    /// Pairs of bf16.
    Bf16(&'static dyn Bf16Kernel),
    /// Pairs of INT16.
    Int16(&'static dyn PairKernel),
}

/// The left operand of a product.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    /// `[rows, words]`.
    pub words: &'a [u32],
    /// The unit of each row.
    pub units: &'a [f32],
}

impl Arithmetic {
    /// Returns f32 arithmetic.
    pub(crate) fn exact() -> Self {
        Self::F32(best().float)
    }

    /// Returns the arithmetic of this processor for products that may be rounded.
    pub(crate) fn rounded() -> Self {
        let kernels = best();
        match (kernels.rounded_pairs(), kernels.bf16) {
            (Some(kernel), _) => Self::Int16(kernel),
            (None, Some(kernel)) => Self::Bf16(kernel),
            (None, None) => Self::F32(kernels.float),
        }
    }

    /// Returns how many numbers of the depth kernels multiply at once: up to a multiple, more keys cost nothing.
    pub(crate) fn step(self) -> usize {
        self.kernel().step()
    }

    /// Returns how many rows of the left operand attention multiplies at once: their scores stay in a core's caches.
    pub(crate) fn strip(self) -> usize {
        self.kernel().strip()
    }

    fn kernel(self) -> &'static dyn PanelKernel {
        match self {
            Self::F32(kernel) => kernel,
            Self::Bf16(kernel) => kernel,
            Self::Int16(kernel) => kernel,
        }
    }

    /// Returns the number of words for a row of `numbers` numbers.
    pub(crate) fn words(self, numbers: usize) -> usize {
        if matches!(self, Self::F32(_)) {
            numbers
        } else {
            numbers.div_ceil(2)
        }
    }

    /// Converts rows of `width` numbers to words, for a product with a [transposed](Operand::pack_transposed) operand,
    /// and replaces `units` by their units, which are 1 except in INT16.
    ///
    /// # Panics
    /// If the number of words is not that of [`Arithmetic::words`] for all rows.
    pub(crate) fn to_words(
        self,
        rows: &[f32],
        width: usize,
        words: &mut [u32],
        units: &mut Vec<f32>,
    ) {
        let words_of_row = self.words(width);
        assert_eq!(
            words.len(),
            rows.len() / width * words_of_row,
            "expected words for all rows"
        );
        match self {
            Self::F32(_) => words.copy_from_slice(bytemuck::cast_slice(rows)),
            Self::Bf16(kernel) => rows
                .chunks_exact(width)
                .zip(words.chunks_exact_mut(words_of_row))
                .for_each(|(row, words)| kernel.to_bf16(row, words)),
            Self::Int16(kernel) => {
                return kernel.round(rows, width, Purpose::Products, words, units);
            }
        }
        units.clear();
        units.resize(rows.len() / width, 1.0);
    }
}

/// The right operand of products, `[depth, columns]`. Packing another matrix reuses the memory.
#[derive(Default)]
pub(crate) struct Operand {
    arithmetic: Option<Arithmetic>,
    words: AlignedBuf<u32>,
    /// Depth in words.
    depth: usize,
    columns: usize,
    wide: Wide,
    widened: Vec<f32>,
    /// Rows in INT16, padded to an even number.
    rounded: Vec<u32>,
    /// Units of these rows, which are the columns of a transposed operand.
    units: Vec<f32>,
    /// For each row, the largest unit of it and all rows before it.
    largest_units: Vec<f32>,
    /// Sums in i32, as kernels write them.
    sums: AlignedBuf<f32>,
}

impl Operand {
    /// Reserves the memory that [`Operand::pack_transposed`] needs for this many columns.
    pub(crate) fn reserve(&mut self, arithmetic: Arithmetic, columns: usize, depth: usize) {
        let words = columns.next_multiple_of(PANEL) * arithmetic.words(depth);
        self.words.reserve(words);
    }

    /// Packs the transpose of `matrix[columns, depth]`.
    pub(crate) fn pack_transposed(&mut self, arithmetic: Arithmetic, matrix: Matrix, depth: usize) {
        self.columns = matrix.len() / depth;
        self.depth = arithmetic.words(depth);
        self.arithmetic = Some(arithmetic);
        assert!(self.depth <= DEPTH, "{depth} numbers in a panel");
        self.words
            .resize(self.columns.div_ceil(PANEL) * PANEL * self.depth);
        if let Arithmetic::Int16(kernel) = arithmetic {
            self.round(kernel, matrix, depth, Purpose::Products);
        }
        let source = match arithmetic {
            Arithmetic::F32(_) => Source::F32(matrix),
            Arithmetic::Bf16(kernel) => Source::Bf16(kernel, matrix, depth),
            Arithmetic::Int16(_) => Source::Words(&self.rounded[..self.columns * self.depth]),
        };
        for (index, panel) in self.words.chunks_exact_mut(PANEL * self.depth).enumerate() {
            let columns = index * PANEL..((index + 1) * PANEL).min(self.columns);
            pack(
                arithmetic.kernel(),
                source,
                self.depth,
                0..self.depth,
                columns,
                &mut self.wide,
                panel,
            );
        }
    }

    /// Packs `matrix[depth, columns]`, padded with zeros to a multiple of [`Arithmetic::step`], for products with
    /// [powers](Operand::exp2_and_sum).
    pub(crate) fn pack(&mut self, arithmetic: Arithmetic, matrix: Matrix, columns: usize) {
        let depth = (matrix.len() / columns).next_multiple_of(arithmetic.step());
        self.columns = columns;
        self.depth = arithmetic.words(depth);
        self.arithmetic = Some(arithmetic);
        self.words
            .resize(columns.div_ceil(PANEL) * PANEL * self.depth);
        if let Arithmetic::Int16(kernel) = arithmetic {
            return self.pack_rounded(kernel, matrix, columns);
        }
        let wide = &mut self.widened;
        // The last of an odd number of rows is paired with zeros.
        let padded = depth.next_multiple_of(2) * columns;
        wide.resize(wide.len().max(padded), 0.0);
        matrix.widen_into(&mut wide[..matrix.len()]);
        wide[matrix.len()..padded].fill(0.0);
        for (index, panel) in self.words.chunks_exact_mut(PANEL * self.depth).enumerate() {
            let of_panel = index * PANEL..((index + 1) * PANEL).min(columns);
            for (step, words) in panel.chunks_exact_mut(PANEL).enumerate() {
                let row = |row: usize| &wide[row * columns..][of_panel.clone()];
                let words = &mut words[..of_panel.len()];
                match arithmetic {
                    Arithmetic::Bf16(kernel) => {
                        kernel.interleave(row(2 * step), row(2 * step + 1), words);
                    }
                    _ => words.copy_from_slice(bytemuck::cast_slice(row(step))),
                }
            }
        }
    }

    fn pack_rounded(&mut self, kernel: &dyn PairKernel, matrix: Matrix, columns: usize) {
        self.round(kernel, matrix, columns, Purpose::Values);
        let mut largest = 0.0f32;
        self.largest_units.clear();
        self.largest_units.extend(self.units.iter().map(|unit| {
            // Keeps NaN.
            largest = if largest.is_nan() || *unit <= largest {
                largest
            } else {
                *unit
            };
            largest
        }));
        for (index, panel) in self.words.chunks_exact_mut(PANEL * self.depth).enumerate() {
            let of_panel = index * PANEL..((index + 1) * PANEL).min(columns);
            pairs::interleave(&self.rounded, columns.div_ceil(2), of_panel, panel);
        }
    }

    /// Rounds rows of `width` numbers to INT16.
    fn round(&mut self, kernel: &dyn PairKernel, matrix: Matrix, width: usize, purpose: Purpose) {
        let rows = matrix.len() / width;
        let words = width.div_ceil(2);
        self.widened
            .resize(matrix.len().max(self.widened.len()), 0.0);
        self.rounded.resize(
            (rows.next_multiple_of(2) * words).max(self.rounded.len()),
            0,
        );
        let (wide, (rounded, rest)) = (
            &mut self.widened[..matrix.len()],
            self.rounded.split_at_mut(rows * words),
        );
        matrix.widen_into(wide);
        kernel.round(wide, width, purpose, rounded, &mut self.units);
        // Padding for an odd number of rows.
        rest[..(rows.next_multiple_of(2) - rows) * words].fill(0);
    }

    /// Writes, as words for a product with the first rows of this operand, 2^(x − m) for each exponent x in `visible`,
    /// and zero for all others, where m is the maximum of `before` and these exponents, and never NaN. Powers are exact
    /// to 2⁻¹³, or to f32 in f32 arithmetic. Also returns the unit of the words, which is 1 except in INT16. Overwrites
    /// the exponents.
    ///
    /// # Panics
    /// If the number of words is not that of [`Arithmetic::words`], or `visible` exceeds the exponents.
    pub(crate) fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        before: f32,
        words: &mut [u32],
    ) -> (Powers, f32) {
        let arithmetic = self.arithmetic.expect("the operand is packed");
        assert_eq!(
            words.len(),
            arithmetic.words(exponents.len()),
            "expected the words of a row"
        );
        match arithmetic {
            Arithmetic::F32(_) => {
                let exponentials = bytemuck::cast_slice_mut(words);
                exponentials[visible.clone()].copy_from_slice(&exponents[visible.clone()]);
                (powers_of_two(exponentials, visible, before), 1.0)
            }
            Arithmetic::Bf16(kernel) => {
                (kernel.exp2_and_sum(exponents, visible, before, words), 1.0)
            }
            Arithmetic::Int16(kernel) => {
                assert!(
                    exponents.len() <= WEIGHTS,
                    "{} weights of a row",
                    exponents.len()
                );
                let largest_unit = self.largest_units[..visible.end]
                    .last()
                    .copied()
                    .unwrap_or_default();
                let units = ValueUnits {
                    each: &self.units,
                    largest: largest_unit,
                };
                kernel.exp2_and_sum(exponents, visible, before, units, words)
            }
        }
    }

    /// Computes `out[rows, columns] = left[rows, depth] · self` for a [transposed](Operand::pack_transposed) operand.
    /// Reads the first `columns` columns of this operand. Columns may exceed those of its matrix, up to a multiple of
    /// [`Arithmetic::step`]; their outputs are unspecified.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub(crate) fn multiply(&self, left: Left, columns: usize, out: &mut [f32]) {
        self.multiply_words(left.words, columns, out, false);
        if let Some(Arithmetic::Int16(_)) = self.arithmetic {
            pairs::scale(out, columns, left.units, &self.units);
        }
    }

    /// Computes `out[rows, columns] += left[rows, depth] · self` for an operand [packed](Operand::pack) in rows. If the
    /// rows of `left` are shorter, reads the first rows of this operand.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub(crate) fn multiply_and_add(&mut self, left: Left, out: &mut [f32]) {
        let columns = self.columns;
        if !matches!(self.arithmetic, Some(Arithmetic::Int16(_))) {
            return self.multiply_words(left.words, columns, out, true);
        }
        let mut sums = std::mem::take(&mut self.sums);
        sums.resize(out.len());
        self.multiply_words(left.words, columns, &mut sums, false);
        pairs::add_scaled(&sums, columns, left.units, out);
        self.sums = sums;
    }

    /// Multiplies words.
    fn multiply_words(&self, left: &[u32], columns: usize, out: &mut [f32], add: bool) {
        let arithmetic = self.arithmetic.expect("the operand is packed");
        let most = self.columns.next_multiple_of(arithmetic.step());
        assert!(
            (1..=most).contains(&columns),
            "{columns} columns of {}",
            self.columns
        );
        let out = OutputMut::new(out, columns).into_shared();
        let steps = left.len() / out.rows();
        assert_eq!(
            left.len(),
            steps * out.rows(),
            "left operand has {} rows",
            out.rows()
        );
        assert!(
            (1..=self.depth).contains(&steps),
            "{steps} of {}",
            self.depth
        );
        for first in (0..columns).step_by(PANEL) {
            let columns: Range<usize> = first..(first + PANEL).min(columns);
            arithmetic.kernel().multiply(&Panel {
                left,
                left_stride: steps,
                steps,
                right: &self.words[first * self.depth..][..self.depth * PANEL],
                right_stride: PANEL,
                out,
                columns,
                add,
            });
        }
    }
}
