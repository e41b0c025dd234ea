//! Right operands that several products share, brought into the form that kernels read once.

use std::ops::Range;

use super::kernel::{Bf16Kernel, Kernel, LANES, Panel, available, bf16};
use super::pack::{Source, Wide, pack};
use super::{DEPTH, PANEL};
use crate::Matrix;
use crate::activation::exp2;
use crate::log_softmax::largest;
use crate::shared_output::SharedOutput;
use crate::vectorize::vectorize_fused;

/// How numbers are multiplied: in f32, or as pairs of bf16. Either way what is multiplied lies in words of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Multiplier {
    kernel: &'static dyn Kernel,
    bf16: Option<&'static dyn Bf16Kernel>,
}

impl Multiplier {
    /// In bf16 if `fast`, and if this processor has instructions for it; in f32 otherwise.
    pub(crate) fn new(fast: bool) -> Self {
        let bf16 = if fast { bf16() } else { None };
        let kernel = bf16.map_or(&*available()[0], |bf16| bf16 as &dyn Kernel);
        Self { kernel, bf16 }
    }

    /// Words of `numbers` numbers in a row.
    pub(crate) fn words(self, numbers: usize) -> usize {
        if self.bf16.is_some() { numbers.div_ceil(2) } else { numbers }
    }

    /// A row of numbers as words.
    ///
    /// # Panics
    /// If there are not as many words as [`Multiplier::words`] says.
    pub(crate) fn narrow(self, numbers: &[f32], words: &mut [u32]) {
        assert_eq!(words.len(), self.words(numbers.len()), "words of a row");
        match self.bf16 {
            Some(bf16) => bf16.narrow(numbers, words),
            None => words.copy_from_slice(bytemuck::cast_slice(numbers)),
        }
    }

    /// 2 to the power of each exponent in `visible` less the largest of them and of `largest`, and zero for all others, as
    /// words. Answers the largest, which a number that is none never is, and the sum of the powers before they are
    /// rounded. Powers that become bf16 are exact to 2⁻¹³. What is not visible is spoiled.
    ///
    /// # Panics
    /// As [`Multiplier::narrow`], and if `visible` reaches beyond the exponents.
    pub(crate) fn powers(
        self,
        exponents: &mut [f32],
        visible: Range<usize>,
        largest: f32,
        words: &mut [u32],
    ) -> (f32, f32) {
        assert_eq!(words.len(), self.words(exponents.len()), "words of a row");
        match self.bf16 {
            Some(bf16) => bf16.powers(exponents, visible, largest, words),
            None => powers(exponents, visible, largest, bytemuck::cast_slice_mut(words)),
        }
    }
}

fn powers(exponents: &[f32], visible: Range<usize>, before: f32, powers: &mut [f32]) -> (f32, f32) {
    powers[..visible.start].fill(0.0);
    powers[visible.end..].fill(0.0);
    // Lanes are counted from a place that does not depend on what is visible.
    let first = visible.start / LANES * LANES;
    powers[first..visible.end].copy_from_slice(&exponents[first..visible.end]);
    powers[first..visible.start].fill(f32::MIN);
    let powers = &mut powers[first..visible.end];
    vectorize_fused(
        #[inline(always)]
        |fused| {
            let largest = largest(powers).max(before);
            let mut sums = [0.0f32; LANES];
            let (blocks, rest) = powers.as_chunks_mut::<LANES>();
            for block in blocks {
                for lane in 0..LANES {
                    block[lane] = exp2(block[lane] - largest, fused);
                    sums[lane] += block[lane];
                }
            }
            for (power, sum) in rest.iter_mut().zip(&mut sums) {
                *power = exp2(*power - largest, fused);
                *sum += *power;
            }
            (largest, sums.iter().sum())
        },
    )
}

/// The right operand of products, `[depth, columns]`. Its memory is used again by the next one.
#[derive(Default)]
pub(crate) struct Operand {
    multiplier: Option<Multiplier>,
    words: Vec<u32>,
    /// Words of the depth.
    depth: usize,
    columns: usize,
    wide: Wide,
    standing: Vec<f32>,
}

impl Operand {
    /// Allocates what [`Operand::turn`] needs for so many columns.
    pub(crate) fn reserve(&mut self, multiplier: Multiplier, columns: usize, depth: usize) {
        let words = columns.next_multiple_of(PANEL) * multiplier.words(depth);
        self.words.reserve(words.saturating_sub(self.words.len()));
    }

    /// Takes `matrix[columns, depth]`, which has its columns in rows.
    pub(crate) fn turn(&mut self, multiplier: Multiplier, matrix: Matrix, depth: usize) {
        self.columns = matrix.len() / depth;
        self.depth = multiplier.words(depth);
        self.multiplier = Some(multiplier);
        assert!(self.depth <= DEPTH, "{depth} numbers in a panel");
        self.words.resize(self.columns.div_ceil(PANEL) * PANEL * self.depth, 0);
        let source = match multiplier.bf16 {
            Some(bf16) => Source::Bf16(bf16, matrix, depth),
            None => Source::F32(matrix),
        };
        for (index, panel) in self.words.chunks_exact_mut(PANEL * self.depth).enumerate() {
            let columns = index * PANEL..((index + 1) * PANEL).min(self.columns);
            pack(multiplier.kernel, source, self.depth, 0..self.depth, columns, &mut self.wide, panel);
        }
    }

    /// Takes `matrix[depth, columns]`.
    pub(crate) fn stand(&mut self, multiplier: Multiplier, matrix: Matrix, columns: usize) {
        let depth = matrix.len() / columns;
        self.columns = columns;
        self.depth = multiplier.words(depth);
        self.multiplier = Some(multiplier);
        let wide = &mut self.standing;
        wide.resize(wide.len().max(matrix.len() + columns), 0.0);
        matrix.widen_into(&mut wide[..matrix.len()]);
        // Beside the last row of an odd number of them stand zeros.
        wide[matrix.len()..matrix.len() + columns].fill(0.0);
        let panels = columns.div_ceil(PANEL);
        self.words.resize(panels * PANEL * self.depth, 0);
        for (index, panel) in self.words.chunks_exact_mut(PANEL * self.depth).enumerate() {
            let of_panel = index * PANEL..((index + 1) * PANEL).min(columns);
            for (step, words) in panel.chunks_exact_mut(PANEL).enumerate() {
                let row = |row: usize| &wide[row * columns..][of_panel.clone()];
                let words = &mut words[..of_panel.len()];
                match multiplier.bf16 {
                    Some(bf16) => bf16.interleave(row(2 * step), row(2 * step + 1), words),
                    None => words.copy_from_slice(bytemuck::cast_slice(row(step))),
                }
            }
        }
    }

    /// `out[rows, columns] = left[rows, depth] · self`, or `+=`: with the first rows of this operand if the left one,
    /// in words, is less deep, and its first columns.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub(crate) fn multiply(&self, left: &[u32], columns: usize, out: &mut [f32], add: bool) {
        let multiplier = self.multiplier.expect("an operand that took something");
        assert!((1..=self.columns).contains(&columns), "{columns} columns of {}", self.columns);
        let out = SharedOutput::new(out, columns);
        let steps = left.len() / out.rows();
        assert_eq!(left.len(), steps * out.rows(), "left operand has {} rows", out.rows());
        assert!((1..=self.depth).contains(&steps), "{steps} of {}", self.depth);
        for first in (0..columns).step_by(PANEL) {
            let columns: Range<usize> = first..(first + PANEL).min(columns);
            multiplier.kernel.multiply(&Panel {
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
