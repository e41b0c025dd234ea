//! Right operands that several products share, packed once for all of them.

use std::ops::Range;

use super::DEPTH;
use super::pack::{Source, Wide, pack};
use crate::Matrix;
use crate::kernel::best;
use crate::kernel::float::{Bf16Kernel, FloatKernel, PANEL, Panel, powers_of_two};
use crate::lines::Lines;
use crate::output::OutputMut;

/// The number format of a product's operands, f32 or pairs of bf16, with the kernel that multiplies it. Operands of
/// either format are words of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Arithmetic {
    kernel: &'static dyn FloatKernel,
    bf16: Option<&'static dyn Bf16Kernel>,
}

impl Arithmetic {
    /// bf16 if `fast` is set and this processor has instructions for it, f32 otherwise.
    pub(crate) fn new(fast: bool) -> Self {
        let bf16 = if fast { best().bf16 } else { None };
        let kernel = bf16.map_or(best().float, |bf16| bf16 as &dyn FloatKernel);
        Self { kernel, bf16 }
    }

    /// Number of words for a row of `numbers` numbers.
    pub(crate) fn words(self, numbers: usize) -> usize {
        if self.bf16.is_some() { numbers.div_ceil(2) } else { numbers }
    }

    /// Converts a row of numbers to words.
    ///
    /// # Panics
    /// If the number of words is not that of [`Arithmetic::words`].
    pub(crate) fn to_words(self, numbers: &[f32], words: &mut [u32]) {
        assert_eq!(words.len(), self.words(numbers.len()), "words of a row");
        match self.bf16 {
            Some(bf16) => bf16.to_bf16(numbers, words),
            None => words.copy_from_slice(bytemuck::cast_slice(numbers)),
        }
    }

    /// Writes, as words, 2^(x − m) for each x of the exponents in `visible`, and zero for all others, where m is the
    /// largest of those exponents and of `largest`. Returns m, which is never NaN, and the sum of the powers before they
    /// are rounded. Powers in bf16 are exact to 2⁻¹³. Overwrites the exponents.
    ///
    /// # Panics
    /// As [`Arithmetic::to_words`], and if `visible` reaches beyond the exponents.
    pub(crate) fn exp2_and_sum(
        self,
        exponents: &mut [f32],
        visible: Range<usize>,
        largest: f32,
        words: &mut [u32],
    ) -> (f32, f32) {
        assert_eq!(words.len(), self.words(exponents.len()), "words of a row");
        match self.bf16 {
            Some(bf16) => bf16.exp2_and_sum(exponents, visible, largest, words),
            None => exp2_and_sum(exponents, visible, largest, bytemuck::cast_slice_mut(words)),
        }
    }
}

/// As [`Arithmetic::exp2_and_sum`], in f32.
fn exp2_and_sum(exponents: &[f32], visible: Range<usize>, before: f32, exponentials: &mut [f32]) -> (f32, f32) {
    exponentials[visible.clone()].copy_from_slice(&exponents[visible.clone()]);
    powers_of_two(exponentials, visible, before)
}

/// The right operand of products, `[depth, columns]`. Packing another matrix reuses the memory.
#[derive(Default)]
pub(crate) struct Operand {
    arithmetic: Option<Arithmetic>,
    words: Lines<u32>,
    /// Words of the depth.
    depth: usize,
    columns: usize,
    wide: Wide,
    widened: Vec<f32>,
}

impl Operand {
    /// Allocates the memory that [`Operand::pack_transposed`] needs for so many columns.
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
        self.words.resize(self.columns.div_ceil(PANEL) * PANEL * self.depth);
        let source = match arithmetic.bf16 {
            Some(bf16) => Source::Bf16(bf16, matrix, depth),
            None => Source::F32(matrix),
        };
        for (index, panel) in self.words.chunks_exact_mut(PANEL * self.depth).enumerate() {
            let columns = index * PANEL..((index + 1) * PANEL).min(self.columns);
            pack(arithmetic.kernel, source, self.depth, 0..self.depth, columns, &mut self.wide, panel);
        }
    }

    /// Packs `matrix[depth, columns]`.
    pub(crate) fn pack(&mut self, arithmetic: Arithmetic, matrix: Matrix, columns: usize) {
        let depth = matrix.len() / columns;
        self.columns = columns;
        self.depth = arithmetic.words(depth);
        self.arithmetic = Some(arithmetic);
        let wide = &mut self.widened;
        wide.resize(wide.len().max(matrix.len() + columns), 0.0);
        matrix.widen_into(&mut wide[..matrix.len()]);
        // The last of an odd number of rows is paired with zeros.
        wide[matrix.len()..matrix.len() + columns].fill(0.0);
        let panels = columns.div_ceil(PANEL);
        self.words.resize(panels * PANEL * self.depth);
        for (index, panel) in self.words.chunks_exact_mut(PANEL * self.depth).enumerate() {
            let of_panel = index * PANEL..((index + 1) * PANEL).min(columns);
            for (step, words) in panel.chunks_exact_mut(PANEL).enumerate() {
                let row = |row: usize| &wide[row * columns..][of_panel.clone()];
                let words = &mut words[..of_panel.len()];
                match arithmetic.bf16 {
                    Some(bf16) => bf16.interleave(row(2 * step), row(2 * step + 1), words),
                    None => words.copy_from_slice(bytemuck::cast_slice(row(step))),
                }
            }
        }
    }

    /// `out[rows, columns] = left[rows, depth] · self`, or `+=` if `add`. Reads the first `columns` columns of this operand
    /// and, if the rows of `left`, in words, are shorter, its first rows.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub(crate) fn multiply(&self, left: &[u32], columns: usize, out: &mut [f32], add: bool) {
        let arithmetic = self.arithmetic.expect("a packed operand");
        assert!((1..=self.columns).contains(&columns), "{columns} columns of {}", self.columns);
        let out = OutputMut::new(out, columns).into_shared();
        let steps = left.len() / out.rows();
        assert_eq!(left.len(), steps * out.rows(), "left operand has {} rows", out.rows());
        assert!((1..=self.depth).contains(&steps), "{steps} of {}", self.depth);
        for first in (0..columns).step_by(PANEL) {
            let columns: Range<usize> = first..(first + PANEL).min(columns);
            arithmetic.kernel.multiply(&Panel {
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
