//! Compares every kernel with the definition.

use half::f16;
use proptest::prelude::*;
use triad_blocks::{BlockFormat, dequantize};

use super::steps::INT4_OFFSET;
use super::*;
use crate::OutputMut;
use crate::dot::sum;
use crate::int4::HALF;
use crate::isa::Isa;
use crate::kernel::{Kernels, tested};
use crate::testing::{blocks, values, with_scales};

/// Computes all rows of a product with weights in INT8 `[columns, in_features]`.
fn int8(kernel: &dyn Int16Kernel, x: &Int16Rows, weights: &[i8], scales: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.rows() * scales.len()];
    let (columns, shared) = (
        0..scales.len(),
        OutputMut::new(&mut out, scales.len()).into_shared(),
    );
    Int8Columns {
        x,
        weights,
        scales,
        columns,
        out: shared,
    }
    .multiply(kernel);
    out
}

/// Computes all rows of a product with weights in INT4 `[columns, in_features / 2]`.
fn int4(kernel: &dyn Int16Kernel, x: &Int16Rows, weights: &[u8], scales: &[f16]) -> Vec<f32> {
    let columns = weights.len() * 2 / x.in_features;
    let mut out = vec![f32::NAN; x.rows() * columns];
    let shared = OutputMut::new(&mut out, columns).into_shared();
    Int4Columns {
        x,
        weights,
        scales,
        columns: 0..columns,
        out: shared,
    }
    .multiply(kernel);
    out
}

/// Computes all rows of a product with weights in quantized blocks.
fn in_blocks(
    kernel: &dyn Int16Kernel,
    x: &Int16Rows,
    format: BlockFormat,
    bytes: &[u8],
) -> Vec<f32> {
    let columns = bytes.len() / format.bytes_for(x.in_features);
    let mut out = vec![f32::NAN; x.rows() * columns];
    let shared = OutputMut::new(&mut out, columns).into_shared();
    BlockColumns {
        x,
        format,
        bytes,
        columns: 0..columns,
        out: shared,
    }
    .multiply(kernel);
    out
}

/// Returns rows in INT16 with the sums that blocks need.
fn rows_for_blocks(x: &[f32], depth: usize) -> Int16Rows {
    let mut rows = Int16Rows::default();
    rows.fill(x, depth);
    rows.fill_sums();
    rows
}

/// Returns whether an output is the sum of products of `x` and `weights`, up to rounding in f32.
fn is_near(out: f32, x: &[f32], weights: &[f32]) -> bool {
    let products = || {
        x.iter()
            .zip(weights)
            .map(|(x, weight)| f64::from(*x) * f64::from(*weight))
    };
    (f64::from(out) - products().sum::<f64>()).abs() <= 1e-5 * products().map(f64::abs).sum::<f64>()
}

/// Computes one output of a row and a column in INT4, as [`Int16Kernel`] defines it.
fn int4_definition(x: &[i16], unit: f32, weights: &[u8], scales: &[f16], fused: bool) -> f32 {
    let mut sums = [0.0f32; 16];
    for (group, (x, bytes)) in x
        .as_chunks::<GROUP>()
        .0
        .iter()
        .zip(weights.as_chunks::<HALF>().0)
        .enumerate()
    {
        let number = |index: usize| {
            let byte = bytes[index % HALF];
            i32::from(if index < HALF { byte & 15 } else { byte >> 4 })
        };
        let offset: i32 = x.iter().map(|x| -INT4_OFFSET * i32::from(*x)).sum();
        for quad in 0..4 {
            let places = (4 * quad..4 * quad + 4).flat_map(|place| [place, place + HALF]);
            let products: i32 = places
                .map(|place| i32::from(x[place]) * number(place))
                .sum();
            let exact = products + if quad == 0 { offset } else { 0 };
            let (sum, scale) = (&mut sums[group % GROUPS * 4 + quad], scales[group].to_f32());
            *sum = if fused {
                (exact as f32).mul_add(scale, *sum)
            } else {
                exact as f32 * scale + *sum
            };
        }
    }
    sum(sums) * unit
}

/// Returns whether a kernel rounds once where it multiplies and adds.
fn fuses(kernels: &Kernels) -> bool {
    kernels.isa != Isa::Reference || Isa::supported().next() != Some(Isa::Reference)
}

proptest! {
    #[test]
    fn int8_sums_are_exact_on_every_kernel(
        rows in prop_oneof![1usize..20, 60usize..66], depth in 1usize..700, columns in 1usize..14, seed: u64,
        exponent in -30i32..30, outlier in 0f32..1e4,
    ) {
        let mut x: Vec<f32> = values(rows * depth, seed).iter().map(|x| x * 2f32.powi(exponent)).collect();
        x[seed as usize % (rows * depth)] *= outlier;
        let weights: Vec<i8> = values(columns * depth, seed ^ 1).iter().map(|x| (x * 128.0) as i8).collect();
        let scales = values(columns, seed ^ 2);
        let mut x16 = Int16Rows::default();
        x16.fill(&x, depth);
        for ((x, value), index) in x.iter().zip(x16.to_f32()).zip(0..) {
            prop_assert!((x - value).abs() <= 0.505 * x16.scales[index / depth], "{} is not {}", value, x);
        }
        for kernels in tested() {
            let out = int8(kernels.int16, &x16, &weights, &scales);
            for (index, out) in out.iter().enumerate() {
                let (row, column) = (index / columns, index % columns);
                let weights = &weights[column * depth..][..depth];
                let products = x16.row(row).iter().zip(weights).map(|(x, weight)| i64::from(*x) * i64::from(*weight));
                let expected = products.sum::<i64>() as f32 * (x16.scales[row] * scales[column]);
                prop_assert_eq!(*out, expected, "{}, row {}, column {}", kernels.int16.name(), row, column);
            }
        }
    }

    #[test]
    fn int4_outputs_have_the_bits_of_the_definition_on_every_kernel(
        rows in prop_oneof![1usize..20, 60usize..66], groups in 1usize..20, columns in 1usize..14, seed: u64,
        exponent in -20i32..20,
    ) {
        let depth = groups * GROUP;
        let x: Vec<f32> = values(rows * depth, seed).iter().map(|x| x * 2f32.powi(exponent)).collect();
        let weights: Vec<u8> = values(columns * depth / 2, seed ^ 1).iter().map(|x| (x * 128.0) as i8 as u8).collect();
        let scales = values(columns * groups, seed ^ 2);
        let scales: Vec<f16> = scales.iter().map(|x| f16::from_f32(*x)).collect();
        let mut x16 = Int16Rows::default();
        x16.fill(&x, depth);
        x16.fill_steps();
        for kernels in tested() {
            let out = int4(kernels.int16, &x16, &weights, &scales);
            for (index, out) in out.iter().enumerate() {
                let (row, column) = (index / columns, index % columns);
                let weights = &weights[column * groups * HALF..][..groups * HALF];
                let scales = &scales[column * groups..][..groups];
                let expected =
                    int4_definition(x16.row(row), x16.scales[row], weights, scales, fuses(kernels));
                prop_assert_eq!(*out, expected, "{}, row {}, column {}", kernels.int16.name(), row, column);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn products_with_blocks_agree_with_those_with_their_values_and_a_row_alone_has_the_same_bits(
        rows in prop_oneof![1usize..12, 60usize..66], count in 1usize..5, columns in 1usize..14, seed: u64,
    ) {
        let format = BlockFormat::ALL[(seed % BlockFormat::ALL.len() as u64) as usize];
        let depth = count * format.elements();
        let bytes = blocks(format, columns * count, seed ^ 1);
        let mut weights = vec![f32::NAN; columns * depth];
        dequantize(format, &bytes, &mut weights);
        let x = values(rows * depth, seed);
        let x16 = rows_for_blocks(&x, depth);
        let rounded = x16.to_f32();
        let row = seed as usize % rows;
        let alone = rows_for_blocks(&x[row * depth..][..depth], depth);
        for kernel in tested().map(|kernels| kernels.int16) {
            let out = in_blocks(kernel, &x16, format, &bytes);
            for (index, out) in out.iter().enumerate() {
                let (x, weights) = (&rounded[index / columns * depth..], &weights[index % columns * depth..]);
                prop_assert!(
                    is_near(*out, &x[..depth], &weights[..depth]),
                    "{}, {}, output {}: {}", kernel.name(), format, index, out
                );
            }
            let alone = in_blocks(kernel, &alone, format, &bytes);
            prop_assert_eq!(&alone[..], &out[row * columns..][..columns], "{}, {}", kernel.name(), format);
        }
    }
}

#[test]
fn no_sum_overflows_with_the_largest_numbers_of_all_blocks() {
    for format in BlockFormat::ALL {
        // Bytes that give numbers and scales of the largest magnitudes, with either sign.
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let mut bytes = vec![byte; 2 * format.bytes()];
            if format == BlockFormat::Q6_K {
                bytes[192..208].fill(0x80);
            }
            let (bytes, depth) = (with_scales(format, bytes, 3), 2 * format.elements());
            let mut weights = vec![f32::NAN; depth];
            dequantize(format, &bytes, &mut weights);
            for sign in [1.0, -1.0] {
                let x16 = rows_for_blocks(&vec![sign; depth], depth);
                for kernel in tested().map(|kernels| kernels.int16) {
                    let out = in_blocks(kernel, &x16, format, &bytes)[0];
                    assert!(
                        is_near(out, &x16.to_f32(), &weights),
                        "{}, {format}, {byte:#x}: {out}",
                        kernel.name()
                    );
                }
            }
        }
    }
}

#[test]
fn no_sum_overflows_with_the_largest_numbers_of_all() {
    for depth in [1, 516, 517, 576, 2048, 65_536] {
        for sign in [1.0, -1.0] {
            for kernels in tested() {
                for rows in [1, 2] {
                    let mut x = Int16Rows::default();
                    x.fill(&vec![sign * 3.0; rows * depth], depth);
                    for sum in int8(kernels.int16, &x, &vec![-128; 5 * depth], &[1.0; 5]) {
                        let expected = -384.0 * sign * depth as f32;
                        assert!(
                            (sum - expected).abs() < 1e-3 * expected.abs(),
                            "{sum} is not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn no_sum_overflows_with_the_largest_numbers_of_all_in_int4() {
    for depth in [32, 544, 2048, 65_536] {
        for sign in [1.0, -1.0] {
            // Stored as 0 and 15.
            for (byte, weight) in [(0x00, -8.0), (0xff, 7.0)] {
                let (weights, scales) =
                    (vec![byte; 5 * depth / 2], vec![f16::ONE; 5 * depth / GROUP]);
                for (kernels, rows) in tested().flat_map(|kernels| [(kernels, 1), (kernels, 2)]) {
                    let mut x = Int16Rows::default();
                    x.fill(&vec![sign * 3.0; rows * depth], depth);
                    x.fill_steps();
                    for sum in int4(kernels.int16, &x, &weights, &scales) {
                        let expected = 3.0 * sign * weight * depth as f32;
                        assert!(
                            (sum - expected).abs() < 1e-3 * expected.abs(),
                            "{sum} is not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_number_that_is_not_finite_shows_and_zeros_are_zeros() {
    let mut rows = Int16Rows::default();
    rows.fill(
        &[1.0, f32::NAN, f32::INFINITY, 2.0, 0.0, -0.0, 1e-44, 0.0],
        2,
    );
    for kernels in tested() {
        let sums = int8(kernels.int16, &rows, &[1, 1], &[1.0]);
        assert!(sums[0].is_nan() && sums[1].is_nan());
        assert_eq!(sums[2..], [0.0, 0.0]);
    }
}
