//! `out = left · right` with sums in f32, on the calling thread: the building block of matmul and attention.
//!
//! Kernels multiply 32-bit words: numbers in f32, or pairs of bf16 or INT16. The right operand is packed (`pack`) in
//! panels of 64 columns and a depth of [`DEPTH`] words, which a core's second-level cache holds while all rows of the
//! left operand are multiplied. Every output is the sum of its products in the order of the depth, whatever the number
//! of rows and columns.

mod operand;
mod pack;
mod rounded;

use std::cell::RefCell;
use std::ops::Range;

use crate::Matrix;
use crate::aligned_buf::AlignedBuf;
use crate::kernel::panel::{PANEL, Panel, PanelKernel};
use crate::output::SharedOutput;
pub(crate) use operand::{Arithmetic, Left, Operand};
use pack::{Source, Wide};
#[cfg(test)]
pub(crate) use rounded::PART;
pub(crate) use rounded::RoundedRows;

/// Maximum number of rows per panel: 256 KiB of packed words.
const DEPTH: usize = 1024;

/// The way in which a product is written to the output.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Write {
    /// The product replaces the output.
    Replace,
    /// The product is added to the output.
    Add,
}

#[derive(Default)]
struct Scratch {
    wide: Wide,
    /// The packed panel, `[DEPTH, PANEL]`.
    panel: AlignedBuf<u32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Computes `out[.., columns] = left[rows, depth] · weightᵀ`, or `+=`, for all rows of `out`, with `weight[columns,
/// depth]`.
///
/// # Safety
/// No other thread may access these columns of `out` during the call.
///
/// # Panics
/// If a slice's length contradicts the shapes.
#[allow(unsafe_code)]
pub(crate) unsafe fn product(
    kernel: &dyn PanelKernel,
    left: &[f32],
    depth: usize,
    weight: Matrix,
    out: SharedOutput,
    columns: Range<usize>,
    write: Write,
) {
    // SAFETY: as the caller promises.
    unsafe {
        panels(
            kernel,
            bytemuck::cast_slice(left),
            depth,
            Source::F32(weight),
            out,
            columns,
            write,
        );
    };
}

/// Computes one panel after the other; `depth` is in words.
///
/// # Safety
/// As for [`product`].
#[allow(unsafe_code)]
unsafe fn panels(
    kernel: &dyn PanelKernel,
    left: &[u32],
    depth: usize,
    right: Source,
    out: SharedOutput,
    columns: Range<usize>,
    write: Write,
) {
    assert!(depth > 0, "expected a positive depth");
    assert_eq!(
        left.len(),
        out.rows() * depth,
        "left operand is [{}, {depth}]",
        out.rows()
    );
    let count = columns.len();
    assert_eq!(
        right.len(),
        depth * count,
        "right operand has {count} columns"
    );
    SCRATCH.with_borrow_mut(|Scratch { wide, panel }| {
        panel.resize(DEPTH * PANEL);
        for first in (0..count).step_by(PANEL) {
            let of_panel = first..(first + PANEL).min(count);
            for start in (0..depth).step_by(DEPTH) {
                let steps = start..(start + DEPTH).min(depth);
                pack::pack(
                    kernel,
                    right,
                    depth,
                    steps.clone(),
                    of_panel.clone(),
                    wide,
                    panel,
                );
                kernel.multiply(&Panel {
                    left: &left[start..],
                    left_stride: depth,
                    steps: steps.len(),
                    right: panel,
                    right_stride: PANEL,
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
    use crate::OutputMut;
    use crate::kernel::panel::Powers;
    use crate::kernel::{best, tested};
    use crate::testing::values;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_kernel_agrees_with_the_definition_in_its_columns_and_leaves_the_others(
            rows in 1usize..30, depth in prop_oneof![1usize..80, DEPTH - 2..DEPTH + 40],
            before in 0usize..5, count in 1usize..150, after in 0usize..5, seed: u64,
        ) {
            let (left, right) = (values(rows * depth, seed), values(depth * count, seed ^ 5));
            for kernel in tested().map(|kernels| kernels.float) {
                let width = before + count + after;
                let mut out = vec![7.0; rows * width];
                // SAFETY: only this thread has `out`.
                #[allow(unsafe_code)]
                unsafe {
                    let out = OutputMut::new(&mut out, width).into_shared();
                    let (left, columns) = (bytemuck::cast_slice(&left), before..before + count);
                    panels(kernel, left, depth, Source::F32(Matrix::F32(&right)), out, columns, Write::Replace);
                }
                for (index, out) in out.iter().enumerate() {
                    let (row, column) = (index / width, index % width);
                    if (before..before + count).contains(&column) {
                        let column = column - before;
                        let at = |i| right[column * depth + i];
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
            for kernel in tested().map(|kernels| kernels.float) {
                let run = |left: &[f32], right: &[f32]| {
                    let count = right.len() / depth;
                    let mut out = vec![0.0; left.len() / depth * count];
                    // SAFETY: only this thread has `out`.
                    #[allow(unsafe_code)]
                    unsafe {
                        let out = OutputMut::new(&mut out, count).into_shared();
                        let (left, right) = (bytemuck::cast_slice(left), Source::F32(Matrix::F32(right)));
                        panels(kernel, left, depth, right, out, 0..count, Write::Replace);
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_kernel_of_bf16_agrees_with_the_definition_and_rows_computed_alone_have_the_same_bits(
            rows in 1usize..70, depth in prop_oneof![1usize..150, DEPTH - 2..DEPTH + 40], count in 1usize..140,
            twice: bool, seed: u64,
        ) {
            for kernel in tested().filter_map(|kernels| kernels.bf16) {
                let (left, right) = (values(rows * 2 * depth, seed), values(2 * depth * count, seed ^ 5));
                let mut pairs = vec![0; rows * depth];
                kernel.to_bf16(&left, &mut pairs);
                let run = |left: &[u32]| {
                    let mut out = vec![7.0; left.len() / depth * count];
                    for write in [Write::Replace, Write::Add].into_iter().take(1 + usize::from(twice)) {
                        let out = OutputMut::new(&mut out, count).into_shared();
                        let source = Source::Bf16(kernel, Matrix::F32(&right), 2 * depth);
                        // SAFETY: only this thread has `out`.
                        #[allow(unsafe_code)]
                        unsafe { panels(kernel, left, depth, source, out, 0..count, write) };
                    }
                    out
                };
                let whole = run(&pairs);
                let rounded = |x: f32| half::bf16::from_f32(x).to_f64();
                let times = if twice { 2.0 } else { 1.0 };
                for (index, out) in whole.iter().enumerate() {
                    let (row, column) = (index / count, index % count);
                    let pairs = left[row * 2 * depth..].iter().zip(&right[column * 2 * depth..]).take(2 * depth);
                    let sum = times * pairs.map(|(x, weight)| rounded(*x) * rounded(*weight)).sum::<f64>();
                    prop_assert!((f64::from(*out) - sum).abs() < 2e-6 * times * (2 * depth) as f64, "{}: {} is not {}", kernel.name(), out, sum);
                }
                let row = seed as usize % rows;
                let alone = run(&pairs[row * depth..][..depth]);
                prop_assert_eq!(&alone[..], &whole[row * count..][..count], "{}", kernel.name());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_kernel_of_int16_makes_exact_sums(
            rows in 1usize..30, depth in 1usize..150, count in 1usize..140, twice: bool, seed: u64,
        ) {
            // Small enough that no sum overflows.
            let words = |count: usize, seed: u64| -> Vec<u32> {
                let numbers: Vec<i16> = values(2 * count, seed).iter().map(|x| (x * 1800.0) as i16).collect();
                bytemuck::cast_slice(&numbers).to_vec()
            };
            let (left, right) = (words(rows * depth, seed), words(depth * count, seed ^ 5));
            let of_row = |words: &[u32], row: usize| -> Vec<i32> {
                let numbers: &[i16] = bytemuck::cast_slice(&words[row * depth..][..depth]);
                numbers.iter().map(|number| i32::from(*number)).collect()
            };
            for kernel in tested().filter_map(|kernels| kernels.pairs) {
                let mut out = vec![7.0; rows * count];
                for write in [Write::Replace, Write::Add].into_iter().take(1 + usize::from(twice)) {
                    let out = OutputMut::new(&mut out, count).into_shared();
                    // SAFETY: only this thread has `out`.
                    #[allow(unsafe_code)]
                    unsafe { panels(kernel, &left, depth, Source::Words(&right), out, 0..count, write) };
                }
                for (index, sum) in out.iter().map(|sum| sum.to_bits() as i32).enumerate() {
                    let (left, right) = (of_row(&left, index / count), of_row(&right, index % count));
                    let expected: i32 = left.iter().zip(right).map(|(a, b)| a * b).sum();
                    prop_assert_eq!(sum, expected * if twice { 2 } else { 1 }, "{}", kernel.name());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn bf16_is_the_nearest_with_the_even_of_two_as_near(row in prop::collection::vec(any::<f32>(), 1..80)) {
            let Some(kernel) = best().bf16 else { return Ok(()) };
            // Subnormal numbers become zero.
            let row: Vec<f32> = row.into_iter().filter(|x| x.is_normal()).chain([1.5]).collect();
            let expected: Vec<u16> = row.iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect();
            let mut words = vec![7; row.len().div_ceil(2)];
            kernel.to_bf16(&row, &mut words);
            let halves: &[u16] = bytemuck::cast_slice(&words);
            prop_assert_eq!(&halves[..row.len()], &expected[..]);
            prop_assert!(halves[row.len()..].iter().all(|half| *half == 0));
            let mut words = vec![7; row.len()];
            kernel.interleave(&row, &vec![1.0; row.len()], &mut words);
            let low: Vec<u16> = words.iter().map(|word| *word as u16).collect();
            prop_assert_eq!(low, expected);
            prop_assert!(words.iter().all(|word| word >> 16 == 0x3f80));
        }

        #[test]
        fn exp2_is_as_exact_as_bf16(
            exponents in prop::collection::vec(-40f32..3.0, 1..200), before in -50f32..5.0, ends: [usize; 2],
        ) {
            let Some(kernel) = best().bf16 else { return Ok(()) };
            let ends = ends.map(|end| end % (exponents.len() + 1));
            let visible = ends[0].min(ends[1])..ends[0].max(ends[1]);
            let mut words = vec![7; exponents.len().div_ceil(2)];
            let Powers { largest, sum, .. } =
                kernel.exp2_and_sum(&mut exponents.clone(), visible.clone(), before, &mut words);
            prop_assert_eq!(largest, exponents[visible.clone()].iter().copied().fold(before, f32::max));
            let power = |(index, x): (usize, &f32)| if visible.contains(&index) { f64::from(x - largest).exp2() } else { 0.0 };
            let exact: Vec<f64> = exponents.iter().enumerate().map(power).collect();
            let (sum, total) = (f64::from(sum), exact.iter().sum::<f64>());
            prop_assert!((sum - total).abs() <= total * 2f64.powi(-13), "{} is not {}", sum, total);
            let halves: &[half::bf16] = bytemuck::cast_slice(&words);
            for (half, exact) in halves.iter().zip(&exact) {
                prop_assert!((half.to_f64() - exact).abs() <= exact * 2f64.powf(-7.9), "{} is not {}", half, exact);
            }
            prop_assert!(halves[exponents.len()..].iter().all(|half| half.to_f32() == 0.0));
        }
    }
}
