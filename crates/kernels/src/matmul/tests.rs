//! Compares both phases with the definition in f64 and with themselves.

use super::*;
use std::ops::Range;

use crate::int4;
use crate::kernel::tested;
use crate::product::PART;
use crate::testing::{blocks, values};
use crate::{BlockArithmetic, BlockFormat};
use half::{bf16, f16};
use proptest::prelude::*;

/// Computes the definition, in f64.
fn reference(
    x: &[f32],
    rows: usize,
    weight: &[f32],
    columns: usize,
    bias: Option<&[f32]>,
) -> Vec<f64> {
    let depth = x.len() / rows;
    let mut out = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            let products = (0..depth)
                .map(|i| f64::from(x[row * depth + i]) * f64::from(weight[column * depth + i]));
            out.push(products.sum::<f64>() + bias.map_or(0.0, |bias| f64::from(bias[column])));
        }
    }
    out
}

const PHASES: [Phase; 2] = [Phase::Prefill, Phase::Decode];

/// Multiplies by `matrix` and compares with the definition on the numbers that it and `x` represent.
fn compare(
    x: &[f32],
    multiplied: &[f32],
    rows: usize,
    matrix: Matrix,
    exact: &[f32],
    bias: Option<&[f32]>,
    phase: Phase,
) -> Result<(), TestCaseError> {
    let depth = x.len() / rows;
    let columns = exact.len() / depth;
    let mut out = vec![f32::NAN; rows * columns];
    matmul(x, matrix, bias, phase, OutputMut::new(&mut out, columns));
    for (out, expected) in out
        .iter()
        .zip(reference(multiplied, rows, exact, columns, bias))
    {
        prop_assert!(
            (f64::from(*out) - expected).abs() < 1e-5 * depth as f64,
            "{} is not {}",
            out,
            expected
        );
    }
    Ok(())
}

/// A weight `[columns, depth]` in every format.
struct Owned {
    wide: Vec<f32>,
    half: Vec<f16>,
    brain: Vec<bf16>,
    bytes: Vec<i8>,
    /// Scale of each column, `[columns]`.
    scales: Vec<f32>,
    packed: Vec<u8>,
    group_scales: Vec<f16>,
    /// Blocks in Q5_1.
    blocks: Vec<u8>,
}

impl Owned {
    fn new(depth: usize, columns: usize, seed: u64) -> Self {
        let wide = values(columns * depth, seed ^ 0xabcd);
        let (mut packed, mut group_scales) = (
            vec![0; wide.len() / 2],
            vec![f16::ZERO; wide.len() / int4::GROUP],
        );
        int4::quantize_int4(&wide, &mut packed, &mut group_scales);
        Self {
            half: wide.iter().map(|x| f16::from_f32(*x)).collect(),
            brain: wide.iter().map(|x| bf16::from_f32(*x)).collect(),
            bytes: wide.iter().map(|x| (x * 127.0) as i8).collect(),
            scales: values(columns, seed ^ 0x77),
            wide,
            packed,
            group_scales,
            blocks: blocks(BlockFormat::Q5_1, columns * depth / 32, seed),
        }
    }

    fn formats(&self) -> [(&'static str, Matrix<'_>); 7] {
        let blocks = Blocks {
            format: BlockFormat::Q5_1,
            bytes: &self.blocks,
            arithmetic: BlockArithmetic::Rounded,
        };
        [
            ("f32", Matrix::F32(&self.wide)),
            ("f16", Matrix::F16(&self.half)),
            ("bf16", Matrix::Bf16(&self.brain)),
            (
                "INT8",
                Matrix::Int8 {
                    values: &self.bytes,
                    scales: &self.scales,
                },
            ),
            (
                "INT4",
                Matrix::Int4 {
                    values: &self.packed,
                    scales: &self.group_scales,
                },
            ),
            ("Q5_1", Matrix::Blocks(blocks)),
            (
                "Q5_1 in f32",
                Matrix::Blocks(Blocks {
                    arithmetic: BlockArithmetic::Exact,
                    ..blocks
                }),
            ),
        ]
    }
}

/// Returns `x` after rounding to INT16.
fn in_int16(x: &[f32], depth: usize) -> Vec<f32> {
    let mut rows = Int16Rows::default();
    rows.fill(x, depth);
    rows.to_f32()
}

/// Returns `x`, rows of activations or columns of a weight, after the rounding of prefill.
fn in_prefill(x: &[f32], depth: usize) -> Vec<f32> {
    RoundedRows::new(x, depth).map_or_else(|| x.to_vec(), |rows| rows.to_f32())
}

/// Returns whether prefill rounds to INT16.
fn to_int16() -> bool {
    RoundedRows::new(&[1.0], 1).is_some_and(|rows| rows.are_int16())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_format_agrees_with_the_definition(
        rows in 1usize..40, depth in prop_oneof![9 => 1usize..300, 1 => 2040usize..2100], columns in 1usize..420,
        seed: u64, with_bias: bool,
    ) {
        let x = values(rows * depth, seed);
        let wide = values(columns * depth, seed ^ 0xabcd);
        let half: Vec<f16> = wide.iter().map(|x| f16::from_f32(*x)).collect();
        let brain: Vec<bf16> = wide.iter().map(|x| bf16::from_f32(*x)).collect();
        let bytes: Vec<i8> = wide.iter().map(|x| (x * 127.0) as i8).collect();
        let scales: Vec<f32> = values(columns, seed ^ 0x77).iter().map(|x| x / 127.0).collect();
        let scaled = bytes.iter().enumerate().map(|(index, x)| f32::from(*x) * scales[index / depth]);
        let bias = with_bias.then(|| values(columns, seed ^ 0x1234));
        for (matrix, exact) in [
            (Matrix::F32(&wide), wide.clone()),
            (Matrix::F16(&half), half.iter().map(|x| x.to_f32()).collect()),
            (Matrix::Bf16(&brain), brain.iter().map(|x| x.to_f32()).collect()),
        ] {
            for phase in PHASES {
                compare(&x, &x, rows, matrix, &exact, bias.as_deref(), phase)?;
            }
        }
        // With INT8, activations are rounded to INT16 in decode and, depending on the processor, also in prefill; bf16
        // represents these weights exactly.
        let (matrix, exact) = (Matrix::Int8 { values: &bytes, scales: &scales }, scaled.collect::<Vec<_>>());
        let weight = if to_int16() { in_prefill(&exact, depth) } else { exact.clone() };
        compare(&x, &in_prefill(&x, depth), rows, matrix, &weight, bias.as_deref(), Phase::Prefill)?;
        compare(&x, &in_int16(&x, depth), rows, matrix, &exact, bias.as_deref(), Phase::Decode)?;
    }

    #[test]
    fn quantized_blocks_agree_with_the_definition(
        rows in 1usize..41, count in prop_oneof![4 => 1usize..4, 1 => 8usize..10], columns in 1usize..140, seed: u64,
        with_bias: bool,
    ) {
        let format = BlockFormat::ALL[(seed % BlockFormat::ALL.len() as u64) as usize];
        let depth = count * format.elements();
        let bytes = blocks(format, columns * count, seed);
        let mut exact = vec![f32::NAN; columns * depth];
        triad_blocks::dequantize(format, &bytes, &mut exact);
        let x = values(rows * depth, seed ^ 3);
        let bias = with_bias.then(|| values(columns, seed ^ 0x1234));
        let matrix = |arithmetic| Matrix::Blocks(Blocks { format, bytes: &bytes, arithmetic });
        for phase in PHASES {
            let mut out = vec![f32::NAN; rows * columns];
            matmul(&x, matrix(BlockArithmetic::Exact), bias.as_deref(), phase, OutputMut::new(&mut out, columns));
            let mut widened = vec![f32::NAN; rows * columns];
            matmul(&x, Matrix::F32(&exact), bias.as_deref(), phase, OutputMut::new(&mut widened, columns));
            prop_assert!(out == widened, "{} in {:?}: exact products are those with f32", format, phase);
        }
        let rounded = matrix(BlockArithmetic::Rounded);
        compare(&x, &in_int16(&x, depth), rows, rounded, &exact, bias.as_deref(), Phase::Decode)?;
        let (x_of_prefill, weight) = (in_prefill(&x, depth), in_prefill(&exact, depth));
        compare(&x, &x_of_prefill, rows, rounded, &weight, bias.as_deref(), Phase::Prefill)?;
    }

    #[test]
    fn groups_of_int4_agree_with_the_definition(
        rows in 1usize..41, groups in prop_oneof![4 => 1usize..10, 1 => 31usize..40, 1 => 63usize..68],
        columns in 1usize..200, seed: u64, with_bias: bool,
    ) {
        let depth = groups * int4::GROUP;
        let bytes: Vec<u8> = values(columns * depth / 2, seed).iter().map(|x| (x * 128.0) as i8 as u8).collect();
        let scales = values(columns * groups, seed ^ 0x77);
        let scales: Vec<f16> = scales.iter().map(|x| f16::from_f32(x / 8.0)).collect();
        let exact: Vec<f32> = (0..columns * depth).map(|index| {
            let (group, place) = (index / 32, index % 32);
            let shift = if place < 16 { 0 } else { 4 };
            let number = i16::from(bytes[group * 16 + place % 16] >> shift & 15) - 8;
            f32::from(number) * scales[group].to_f32()
        }).collect();
        let x = values(rows * depth, seed ^ 3);
        let bias = with_bias.then(|| values(columns, seed ^ 0x1234));
        let matrix = Matrix::Int4 { values: &bytes, scales: &scales };
        let (x_of_prefill, weight) = (in_prefill(&x, depth), in_prefill(&exact, depth));
        compare(&x, &x_of_prefill, rows, matrix, &weight, bias.as_deref(), Phase::Prefill)?;
        compare(&x, &in_int16(&x, depth), rows, matrix, &exact, bias.as_deref(), Phase::Decode)?;
    }

    #[test]
    fn every_kernel_that_rounds_agrees_with_what_it_rounded(
        rows in prop_oneof![4 => 1usize..20, 1 => 60usize..140], groups in prop_oneof![1usize..10, 15usize..20],
        columns in 1usize..140, seed: u64,
    ) {
        let depth = groups * int4::GROUP;
        let owned = Owned::new(depth, columns, seed);
        let x = values(rows * depth, seed ^ 3);
        for kernels in tested() {
            kernels.install(|| {
                let matrix = Matrix::Int4 { values: &owned.packed, scales: &owned.group_scales };
                let mut exact = vec![0.0; columns * depth];
                matrix.widen_into(&mut exact);
                compare(&x, &in_prefill(&x, depth), rows, matrix, &in_prefill(&exact, depth), None, Phase::Prefill)
            })?;
        }
    }

    #[test]
    fn rounding_to_int16_costs_little_where_some_numbers_are_a_thousand_times_the_others(
        rows in 1usize..4, depth in 1usize..1200, seed: u64, outlier: usize,
    ) {
        let mut x = values(rows * depth, seed);
        x[outlier % (rows * depth)] *= 1000.0;
        for kernels in tested().filter(|kernels| kernels.rounded_pairs().is_some()) {
            let rounded = kernels.install(|| in_prefill(&x, depth));
            for (rounded, x) in rounded.chunks_exact(depth).zip(x.chunks_exact(depth)) {
                for (rounded, x) in rounded.chunks(PART).zip(x.chunks(PART)) {
                    // A unit is at most 1/32,000 of a part's length as a vector, which bounds the sums.
                    let length = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                    for (rounded, x) in rounded.iter().zip(x) {
                        prop_assert!(f64::from(rounded - x).abs() <= length / 64_000.0, "{} is not {}", rounded, x);
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_with_others_on_any_threads(
        rows in prop_oneof![2usize..20, 60usize..70], columns in prop_oneof![4 => 1usize..300, 1 => 2500usize..3000],
        groups in 1usize..6, seed: u64, threads in 1usize..4, split: usize,
    ) {
        let depth = groups * int4::GROUP;
        let x = values(rows * depth, seed);
        let owned = Owned::new(depth, columns, seed);
        let split = 1 + split % (rows - 1);
        for (name, matrix) in owned.formats() {
            for phase in PHASES {
                let run = |rows: Range<usize>, threads| {
                    let mut out = vec![f32::NAN; rows.len() * columns];
                    let x = &x[rows.start * depth..rows.end * depth];
                    let bias = (seed % 2 == 0).then_some(&owned.scales[..]);
                    let multiply = || matmul(x, matrix, bias, phase, OutputMut::new(&mut out, columns));
                    pool::Pool::new(threads).unwrap().install(multiply);
                    out
                };
                let together = run(0..rows, threads);
                let parts = [run(0..split, 1), run(split..rows, threads)].concat();
                prop_assert!(together == parts, "{} in {:?}, {} rows and the others", name, phase, split);
                let one = split - 1;
                let alone = run(one..one + 1, 1);
                prop_assert!(together[one * columns..][..columns] == alone, "{} in {:?}, row {}", name, phase, one);
            }
        }
    }

    #[test]
    fn products_together_have_the_bits_of_each_alone(
        rows in 1usize..10, columns in prop::collection::vec(1usize..200, 0..5), seed: u64, threads in 1usize..4,
    ) {
        const DEPTH: usize = 96;
        let x = values(rows * DEPTH, seed);
        let numbered = columns.iter().enumerate();
        let owned: Vec<_> = numbered.map(|(index, columns)| Owned::new(DEPTH, *columns, seed ^ index as u64)).collect();
        let parts = owned.iter().enumerate().map(|(index, owned)| {
            let (_, matrix) = owned.formats()[(seed as usize + index) % 7];
            (matrix, owned.scales.len(), (index % 2 == 0).then_some(&owned.scales[..]))
        });
        for phase in PHASES {
            let mut outs: Vec<_> = columns.iter().map(|columns| vec![f32::NAN; rows * columns]).collect();
            let products = parts.clone().zip(&mut outs);
            let mut products: Vec<_> = products
                .map(|((matrix, columns, bias), out)| Product::new(matrix, bias, OutputMut::new(out, columns)))
                .collect();
            pool::Pool::new(threads).unwrap().install(|| matmul_each(&x, rows, phase, &mut products));
            for ((matrix, columns, bias), out) in parts.clone().zip(outs) {
                let mut alone = vec![f32::NAN; rows * columns];
                matmul(&x, matrix, bias, phase, OutputMut::new(&mut alone, columns));
                prop_assert_eq!(out, alone);
            }
        }
    }
}

#[test]
#[should_panic(expected = "weight is [3, 2]")]
fn a_wrong_shape_is_named() {
    matmul(
        &[0.0; 2],
        Matrix::F32(&[0.0; 5]),
        None,
        Phase::Decode,
        OutputMut::new(&mut [0.0; 3], 3),
    );
}
