//! `out = left · right` with sums in f32, on the thread that asks: what matmul and attention are made of.
//!
//! Kernels multiply words of 32 bits: numbers in f32, or pairs of bf16. The right operand is packed (`pack`) in panels
//! of 64 columns, a depth of [`DEPTH`] words at a time, which a core's second-level cache holds while all rows of the
//! left operand pass by. `kernel` holds the table of kernels, best first. Every output is the sum of its products in
//! the order of the depth, whatever the number of rows and columns.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod kernel;
mod pack;
mod portable;

use std::cell::RefCell;
use std::ops::Range;

use crate::Matrix;
use crate::shared_output::SharedOutput;
use kernel::{Kernel, Panel};
use pack::Source;

/// Columns of a panel: those of the widest tile of a kernel.
pub(crate) const PANEL: usize = 64;
/// Rows of a panel, at most: 256 KiB of packed words.
const DEPTH: usize = 1024;

/// The right operand of a product in f32.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// `[depth, columns]`.
    Plain(&'a [f32]),
    /// `[columns, depth]`: a weight.
    Transposed(Matrix<'a>),
}

impl<'a> Right<'a> {
    fn source(self) -> Source<'a> {
        match self {
            Self::Plain(values) => Source::Plain(bytemuck::cast_slice(values)),
            Self::Transposed(matrix) => Source::Weight(matrix),
        }
    }
}

/// What a product does with the output.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Write {
    /// Takes its place.
    Replace,
    /// Is added to it.
    Add,
}

#[derive(Default)]
struct Scratch {
    /// Sixteen rows of a weight, as deep as a panel.
    wide: Vec<f32>,
    /// A panel `[DEPTH, PANEL]`.
    panel: Vec<u32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The name of the kernel that [`product`] uses on this processor.
pub(crate) fn kernel_name() -> &'static str {
    kernel::available()[0].name()
}

/// `out[.., columns] = left[rows, depth] · right[depth, columns]`, or `+=`, for all rows of `out`.
///
/// # Safety
/// No other thread reads or writes these columns of `out` meanwhile.
///
/// # Panics
/// If a slice's length contradicts the shapes.
#[allow(unsafe_code)]
pub(crate) unsafe fn product(
    left: &[f32],
    depth: usize,
    right: Right,
    out: SharedOutput,
    columns: Range<usize>,
    write: Write,
) {
    let kernel = &*kernel::available()[0];
    // SAFETY: as the caller promises.
    unsafe { panels(kernel, bytemuck::cast_slice(left), depth, right.source(), out, columns, write) };
}

/// Activations rounded to bf16, for products with weights that bf16 represents exactly.
pub(crate) struct Bf16Rows {
    words: Vec<u32>,
    in_features: usize,
    kernel: &'static dyn Kernel,
}

impl Bf16Rows {
    /// `x[rows, in_features]`; `None` if this processor has no instructions for bf16.
    pub(crate) fn new(x: &[f32], in_features: usize) -> Option<Self> {
        let kernel = kernel::bf16()?;
        Some(Self { words: pack::bf16_rows(x, in_features), in_features, kernel })
    }

    /// `out[.., columns] = self[rows, in_features] · weightᵀ` for all rows of `out`, with a weight
    /// `[columns, in_features]` in INT8.
    ///
    /// # Safety
    /// No other thread reads or writes these columns of `out` meanwhile.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn product(&self, weight: &[i8], out: SharedOutput, columns: Range<usize>) {
        let source = Source::Bf16 { values: weight, in_features: self.in_features };
        let depth = self.in_features.div_ceil(2);
        // SAFETY: as the caller promises.
        unsafe { panels(self.kernel, &self.words, depth, source, out, columns, Write::Replace) };
    }
}

/// One panel after the other; `depth` in words.
///
/// # Safety
/// As for [`product`].
#[allow(unsafe_code)]
unsafe fn panels(
    kernel: &dyn Kernel,
    left: &[u32],
    depth: usize,
    right: Source,
    out: SharedOutput,
    columns: Range<usize>,
    write: Write,
) {
    assert!(depth > 0, "a product of something");
    assert_eq!(left.len(), out.rows() * depth, "left operand is [{}, {depth}]", out.rows());
    let count = columns.len();
    assert_eq!(right.len(), depth * count, "right operand has {count} columns");
    SCRATCH.with_borrow_mut(|Scratch { wide, panel }| {
        for first in (0..count).step_by(PANEL) {
            let of_panel = first..(first + PANEL).min(count);
            for start in (0..depth).step_by(DEPTH) {
                let steps = start..(start + DEPTH).min(depth);
                let (right, right_stride) = match right {
                    // Whole registers can be read from where the words are.
                    Source::Plain(words) if of_panel.len().is_multiple_of(kernel::LANES) => {
                        (&words[steps.start * count + first..], count)
                    }
                    right => {
                        let shape = (depth, count);
                        (pack::pack(kernel, right, shape, steps.clone(), of_panel.clone(), wide, panel), PANEL)
                    }
                };
                kernel.multiply(&Panel {
                    left: &left[start..],
                    left_stride: depth,
                    steps: steps.len(),
                    right,
                    right_stride,
                    out,
                    columns: columns.start + of_panel.start..columns.start + of_panel.end,
                    add: start > 0 || write == Write::Add,
                });
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_kernel_agrees_with_the_definition_in_its_columns_and_leaves_the_others(
            rows in 1usize..30, depth in prop_oneof![1usize..80, DEPTH - 2..DEPTH + 40],
            before in 0usize..5, count in 1usize..150, after in 0usize..5, seed: u64, transposed: bool,
        ) {
            let (left, right) = (values(rows * depth, seed), values(depth * count, seed ^ 5));
            for kernel in kernel::available() {
                let width = before + count + after;
                let mut out = vec![7.0; rows * width];
                let operand = if transposed { Right::Transposed(Matrix::F32(&right)) } else { Right::Plain(&right) };
                // SAFETY: `out` is this thread's alone.
                #[allow(unsafe_code)]
                unsafe {
                    let out = SharedOutput::new(&mut out, width);
                    let (left, columns) = (bytemuck::cast_slice(&left), before..before + count);
                    panels(&**kernel, left, depth, operand.source(), out, columns, Write::Replace);
                }
                for (index, out) in out.iter().enumerate() {
                    let (row, column) = (index / width, index % width);
                    if (before..before + count).contains(&column) {
                        let column = column - before;
                        let at = |i| if transposed { right[column * depth + i] } else { right[i * count + column] };
                        let sum: f64 = (0..depth).map(|i| f64::from(left[row * depth + i]) * f64::from(at(i))).sum();
                        prop_assert!(
                            (f64::from(*out) - sum).abs() < 1e-6 * depth as f64,
                            "{}: {} is not {}", kernel.name(), out, sum
                        );
                    } else {
                        prop_assert_eq!(*out, 7.0);
                    }
                }
            }
        }

        #[test]
        fn rows_and_columns_computed_alone_have_the_same_bits(
            rows in 1usize..20, depth in 1usize..1200, count in 1usize..140, seed: u64,
        ) {
            let (left, right) = (values(rows * depth, seed), values(depth * count, seed ^ 5));
            for kernel in kernel::available() {
                let run = |left: &[f32], right: &[f32]| {
                    let count = right.len() / depth;
                    let mut out = vec![0.0; left.len() / depth * count];
                    // SAFETY: `out` is this thread's alone.
                    #[allow(unsafe_code)]
                    unsafe {
                        let out = SharedOutput::new(&mut out, count);
                        let (left, right) = (bytemuck::cast_slice(left), Right::Transposed(Matrix::F32(right)));
                        panels(&**kernel, left, depth, right.source(), out, 0..count, Write::Replace);
                    }
                    out
                };
                let whole = run(&left, &right);
                let (row, column) = (seed as usize % rows, (seed >> 20) as usize % count);
                let alone = run(&left[row * depth..(row + 1) * depth], &right[column * depth..(column + 1) * depth]);
                prop_assert_eq!(alone[0], whole[row * count + column], "{}", kernel.name());
            }
        }
    }
}
