//! A product that is cut by rows and columns has the bits of the whole, in every number format and with every kernel:
//! when several processors compute parts of one matrix, the result does not depend on the division.

use std::ops::Range;

use half::{bf16, f16};
use proptest::prelude::*;

use crate::int8::{
    Int8Product, Int8Weight, QuantizedRows, QuantizedView, matmul_int8_each, pack, packed_len,
    row_sums, shadow, shadow_apart, shadow_float,
};
use crate::kernel::tested;
use crate::testing::{bits, blocks, values};
use crate::{
    BlockArithmetic, BlockFormat, Blocks, Matrix, OutputMut, Phase, Product, int4, matmul_each,
    pool,
};

/// Rows and columns of a part.
type Part = (Range<usize>, Range<usize>);

/// Cuts `count` at pseudo-random multiples of `step`.
fn cut(count: usize, step: usize, places: &[usize]) -> Vec<Range<usize>> {
    let mut ends: Vec<_> = places
        .iter()
        .map(|place| place % (count / step + 1) * step)
        .chain([0, count])
        .collect();
    ends.sort_unstable();
    ends.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

/// Returns the parts of `[rows, columns]` that both cuts make; the parts of one range of columns follow each other.
fn parts(rows: &[Range<usize>], columns: &[Range<usize>]) -> Vec<Part> {
    columns
        .iter()
        .flat_map(|columns| rows.iter().map(move |rows| (rows.clone(), columns.clone())))
        .collect()
}

/// Calls `compute` to write each part of `[rows, columns]` in place, and returns the bits.
fn in_parts(
    before: &[f32],
    columns: usize,
    parts: &[Part],
    mut compute: impl FnMut(&Part, OutputMut),
) -> Vec<u32> {
    let mut out = before.to_vec();
    for part in parts {
        let (rows, of_part) = part;
        let (view, _) = OutputMut::new(&mut out, columns).split_at_row(rows.end);
        let (_, view) = view.split_at_row(rows.start);
        let (view, _) = view.split_at_column(of_part.end);
        let (_, view) = view.split_at_column(of_part.start);
        compute(part, view);
    }
    bits(&out)
}

/// A weight in INT8.
struct Owned {
    in_features: usize,
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl Owned {
    fn new(out_features: usize, in_features: usize, seed: u64) -> Self {
        let row_major: Vec<i8> = values(out_features * in_features, seed)
            .iter()
            .map(|x| (x * 127.0) as i8)
            .collect();
        let mut packed = vec![0; packed_len(out_features, in_features).unwrap()];
        pack(&row_major, out_features, in_features, &mut packed);
        let mut sums = vec![0; out_features];
        row_sums(&row_major, in_features, &mut sums);
        Self {
            in_features,
            packed,
            scales: values(out_features, seed ^ 3),
            sums,
        }
    }

    fn view(&self) -> Int8Weight<'_> {
        let Self {
            in_features,
            packed,
            scales,
            sums,
        } = self;
        Int8Weight {
            out_features: scales.len(),
            in_features: *in_features,
            packed,
            scales,
            sums,
        }
    }
}

/// Returns numbers of which some exceed 1.
fn activations(count: usize, seed: u64) -> Vec<f32> {
    let beyond = values(count, seed ^ 0x99);
    values(count, seed)
        .iter()
        .zip(beyond)
        .map(|(x, beyond)| if beyond > 0.9 { x * 40.0 } else { *x })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn parts_of_int8_products_and_shadows_have_the_bits_of_the_whole(
        rows in 1usize..70, in_features in 1usize..200, out_features in 1usize..400, seed: u64, threads in 1usize..3,
        row_cuts in prop::collection::vec(any::<usize>(), 0..3), column_cuts in prop::collection::vec(any::<usize>(), 0..3),
    ) {
        let x = activations(rows * in_features, seed);
        let mut quantized = QuantizedRows::default();
        quantized.quantize_static(&x, in_features, 1.0 / 127.0, None, true);
        let (weight, bias) = (Owned::new(out_features, in_features, seed), values(out_features, seed ^ 5));
        let before = values(rows * out_features, seed ^ 7);
        let row_cuts = cut(rows, 1, &row_cuts);
        let parts = parts(&row_cuts, &cut(out_features, Int8Weight::COLUMNS, &column_cuts));
        let whole = [(0..rows, 0..out_features)];
        let views: Vec<QuantizedView> = row_cuts.iter().map(|rows| quantized.rows_view(rows.clone())).collect();
        prop_assert_eq!(views.iter().map(|view| view.outliers()).sum::<usize>(), quantized.outliers());
        type Compute = fn(QuantizedView, Int8Weight, &[f32], OutputMut);
        let product: Compute =
            |x, weight, bias, out| matmul_int8_each(x, &mut [Int8Product::new(weight, Some(bias), out)]);
        let of_shadow: Compute = |x, weight, _, out| shadow(x, weight, out);
        let apart: Compute = |x, weight, _, out| shadow_apart(x, weight, out);
        let pool = pool::Pool::new(threads).unwrap();
        for (index, compute) in [product, of_shadow, apart].into_iter().enumerate() {
            let run = |parts: &[Part]| {
                in_parts(&before, out_features, parts, |(rows, columns), out| {
                    let (x, weight) = (quantized.rows_view(rows.clone()), weight.view().columns(columns.clone()));
                    compute(x, weight, &bias[columns.clone()], out);
                })
            };
            for kernels in tested() {
                let (expected, found) = kernels.install(|| (run(&whole), pool.install(|| run(&parts))));
                prop_assert_eq!(found, expected, "operator {}, {}", index, kernels.int8.name());
            }
        }
    }

    #[test]
    fn parts_of_outlier_columns_have_the_bits_of_the_whole(
        rows in 1usize..70, in_features in 1usize..100, out_features in 1usize..200, seed: u64,
        row_cuts in prop::collection::vec(any::<usize>(), 0..3), column_cuts in prop::collection::vec(any::<usize>(), 0..3),
    ) {
        let x = activations(rows * in_features, seed);
        let mut quantized = QuantizedRows::default();
        quantized.quantize_dynamic(&x, in_features, Some(30.0));
        let weight = values(out_features * in_features, seed ^ 5);
        let before = values(rows * out_features, seed ^ 7);
        let run = |parts: &[Part]| {
            in_parts(&before, out_features, parts, |(rows, columns), out| {
                let weight = Matrix::F32(&weight).rows(columns.clone(), in_features);
                shadow_float(quantized.rows_view(rows.clone()), weight, out);
            })
        };
        let parts = parts(&cut(rows, 1, &row_cuts), &cut(out_features, 1, &column_cuts));
        for kernels in tested() {
            let (expected, found) = kernels.install(|| (run(&[(0..rows, 0..out_features)]), run(&parts)));
            prop_assert_eq!(found, expected, "{}", kernels.float.name());
        }
    }

    #[test]
    fn parts_of_products_have_the_bits_of_the_whole_in_every_format_and_phase(
        rows in prop_oneof![3 => 1usize..20, 1 => 60usize..70], groups in 1usize..6, out_features in 1usize..400,
        seed: u64, threads in 1usize..3,
        row_cuts in prop::collection::vec(any::<usize>(), 0..3), column_cuts in prop::collection::vec(any::<usize>(), 0..3),
    ) {
        let in_features = groups * int4::GROUP;
        let (x, wide) = (values(rows * in_features, seed), values(out_features * in_features, seed ^ 5));
        let (scales, bias) = (values(out_features, seed ^ 11), values(out_features, seed ^ 13));
        let half: Vec<f16> = wide.iter().map(|x| f16::from_f32(*x)).collect();
        let brain: Vec<bf16> = wide.iter().map(|x| bf16::from_f32(*x)).collect();
        let bytes: Vec<i8> = wide.iter().map(|x| (x * 127.0) as i8).collect();
        let (mut nibbles, mut of_groups) = (vec![0; wide.len() / 2], vec![f16::ZERO; wide.len() / int4::GROUP]);
        int4::quantize_int4(&wide, &mut nibbles, &mut of_groups);
        let in_blocks = blocks(BlockFormat::Q5_1, out_features * groups, seed ^ 7);
        let in_blocks = Blocks { format: BlockFormat::Q5_1, bytes: &in_blocks, arithmetic: BlockArithmetic::Rounded };
        let formats = [
            ("f32", Matrix::F32(&wide)),
            ("f16", Matrix::F16(&half)),
            ("bf16", Matrix::Bf16(&brain)),
            ("INT8", Matrix::Int8 { values: &bytes, scales: &scales }),
            ("INT4", Matrix::Int4 { values: &nibbles, scales: &of_groups }),
            ("Q5_1", Matrix::Blocks(in_blocks)),
            ("Q5_1 in f32", Matrix::Blocks(Blocks { arithmetic: BlockArithmetic::Exact, ..in_blocks })),
        ];
        let before = vec![f32::NAN; rows * out_features];
        let parts = parts(&cut(rows, 1, &row_cuts), &cut(out_features, 1, &column_cuts));
        let pool = pool::Pool::new(threads).unwrap();
        for (name, weight) in formats {
            for phase in [Phase::Prefill, Phase::Decode] {
                let run = |parts: &[Part]| {
                    in_parts(&before, out_features, parts, |(rows, columns), out| {
                        let x = &x[rows.start * in_features..rows.end * in_features];
                        let weight = weight.rows(columns.clone(), in_features);
                        let product = Product::new(weight, Some(&bias[columns.clone()]), out);
                        matmul_each(x, rows.len(), phase, &mut [product]);
                    })
                };
                let whole = [(0..rows, 0..out_features)];
                for kernels in tested() {
                    let (expected, found) = kernels.install(|| (run(&whole), pool.install(|| run(&parts))));
                    prop_assert_eq!(found, expected, "{} in {:?}, {}", name, phase, kernels.float.name());
                }
            }
        }
    }
}
