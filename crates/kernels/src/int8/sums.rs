//! Sums of products in i32: converts a device's sums to outputs, and computes sums by our own kernels.

use super::{Int8Weight, QuantizedView, matmul_int8};
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::kernel::int8::output;
use crate::kernel::int8::weight::{BLOCK, QUAD};
use crate::output::OutputMut;
use crate::pool;
use crate::vectorize::vectorize;

/// Minimum number of outputs per task.
const PARALLEL: usize = 1 << 14;

/// Computes `out[row, o] = sums[row, o] · (scale(row) · scales[o]) + bias[o]`, with the same bits as
/// [`matmul_int8`](super::matmul_int8) has for these sums. `sums` is `[rows, out_features]`.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn scale_sums(
    sums: &[i32],
    scale: impl Fn(usize) -> f32 + Sync,
    weight: Int8Weight,
    bias: Option<&[f32]>,
    out: OutputMut,
) {
    let (rows, columns, out) = (out.rows(), out.columns(), out.into_shared());
    assert_eq!(
        sums.len(),
        rows * columns,
        "expected a sum for every output"
    );
    let scales = weight.scales;
    assert_eq!(
        scales.len(),
        columns,
        "expected one scale per output channel"
    );
    assert!(
        bias.is_none_or(|bias| bias.len() == columns),
        "bias is [{columns}]"
    );
    pool::for_each(rows, PARALLEL.div_ceil(columns.max(1)), |row| {
        // SAFETY: this row belongs to this task alone.
        #[allow(unsafe_code)]
        let out = unsafe { out.row(row, 0..columns) };
        let (sums, scale) = (&sums[row * columns..][..columns], scale(row));
        vectorize(
            #[inline(always)]
            || match bias {
                Some(bias) => {
                    for (((out, sum), weight_scale), bias) in
                        out.iter_mut().zip(sums).zip(scales).zip(bias)
                    {
                        *out = output(*sum, scale, *weight_scale, *bias);
                    }
                }
                None => {
                    for ((out, sum), weight_scale) in out.iter_mut().zip(sums).zip(scales) {
                        *out = output(*sum, scale, *weight_scale, 0.0);
                    }
                }
            },
        );
    });
}

/// The largest number up to which f32 represents every integer.
const EXACT: f32 = (1 << f32::MANTISSA_DIGITS) as f32;

/// Computes the sums of products without scales, `sums[rows, out_features]`, in i32. `numbers` is scratch memory.
///
/// Kernels convert each sum to f32, which is exact below 2²⁴. Larger ones, sums of more than a thousand large products,
/// are computed again.
///
/// # Panics
/// If the shapes contradict each other.
pub fn matmul_sums(
    x: QuantizedView,
    weight: Int8Weight,
    numbers: &mut Vec<f32>,
    sums: &mut Vec<i32>,
) {
    let (rows, columns) = (x.rows(), weight.out_features);
    let (of_rows, of_columns) = (vec![1.0; rows], vec![1.0; columns]);
    numbers.resize(rows * columns, 0.0);
    sums.resize(rows * columns, 0);
    if rows == 0 {
        return;
    }
    let out = OutputMut::new(numbers, columns);
    matmul_int8(
        QuantizedView {
            scales: &of_rows,
            ..x
        },
        Int8Weight {
            scales: &of_columns,
            ..weight
        },
        None,
        out,
    );
    for_each_chunk(
        chunks_mut(sums, columns),
        PARALLEL.div_ceil(columns),
        |row, sums| {
            let numbers = &numbers[row * columns..][..columns];
            let mut largest = 0f32;
            for (sum, number) in sums.iter_mut().zip(numbers) {
                *sum = *number as i32;
                largest = largest.max(number.abs());
            }
            if largest >= EXACT {
                let inexact = sums
                    .iter_mut()
                    .zip(numbers)
                    .enumerate()
                    .filter(|(_, (_, number))| number.abs() >= EXACT);
                inexact.for_each(|(column, (sum, _))| *sum = sum_of(x, row, weight, column));
            }
        },
    );
}

/// Computes one sum, by definition.
fn sum_of(x: QuantizedView, row: usize, weight: Int8Weight, column: usize) -> i32 {
    let quads = weight.in_features.div_ceil(QUAD);
    let of_block = &weight.packed[column / BLOCK * quads * BLOCK * QUAD..];
    let weights =
        (0..quads).flat_map(|quad| &of_block[(quad * BLOCK + column % BLOCK) * QUAD..][..QUAD]);
    x.values(row)
        .zip(weights)
        .map(|(value, weight)| i32::from(value) * i32::from(*weight))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::int8::{QuantizedRows, pack, packed_len, row_sums};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn outputs_have_the_bits_of_the_product(
            (rows, inputs, outputs) in (1usize..9, 1usize..40, 1usize..70),
            has_bias: bool,
            seed in 1u32..1000,
        ) {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            let weight: Vec<i8> = (0..outputs * inputs).map(|_| (127.0 * next()) as i8).collect();
            let scales: Vec<f32> = (0..outputs).map(|_| 0.01 * next()).collect();
            let bias: Vec<f32> = (0..outputs).map(|_| next()).collect();
            let x: Vec<f32> = (0..rows * inputs).map(|_| next()).collect();
            let (mut packed, mut of_rows) = (vec![0; packed_len(outputs, inputs).unwrap()], vec![0; outputs]);
            pack(&weight, outputs, inputs, &mut packed);
            row_sums(&weight, inputs, &mut of_rows);
            let packed = Int8Weight {
                out_features: outputs,
                in_features: inputs,
                packed: &packed,
                scales: &scales,
                sums: &of_rows,
            };
            let bias = has_bias.then_some(&bias[..]);
            let mut quantized = QuantizedRows::default();
            quantized.quantize_static(&x, inputs, 0.013, None, false);
            let (mut expected, mut found) = (vec![0.0; rows * outputs], vec![0.0; rows * outputs]);
            matmul_int8(quantized.view(), packed, bias, OutputMut::new(&mut expected, outputs));
            let values: Vec<Vec<i8>> = (0..rows).map(|row| quantized.view().values(row).collect()).collect();
            let sum = |values: &[i8], weight: &[i8]| -> i32 {
                values.iter().zip(weight).map(|(value, weight)| i32::from(*value) * i32::from(*weight)).sum()
            };
            let sums = values.iter().flat_map(|values| weight.chunks_exact(inputs).map(|weight| sum(values, weight)));
            let sums: Vec<i32> = sums.collect();
            let mut of_kernels = Vec::new();
            matmul_sums(quantized.view(), packed, &mut Vec::new(), &mut of_kernels);
            prop_assert_eq!(&of_kernels, &sums);
            let scales = quantized.view().scales();
            scale_sums(&sums, |row| scales[row], packed, bias, OutputMut::new(&mut found, outputs));
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&found), bits(&expected));
        }
    }

    #[test]
    fn sums_that_f32_does_not_have_are_exact() {
        // 1,101 products of 127 by 127 exceed 2²⁴ and are odd; other sums are below it, negative, or in another block.
        let (rows, inputs, outputs) = (3, 1101, 19);
        let weight: Vec<i8> = (0..outputs * inputs)
            .map(|index| [127, -125, 1, 126][index / inputs % 4] - (index % inputs % 2) as i8 * 2)
            .collect();
        let (mut packed, mut of_rows) = (
            vec![0; packed_len(outputs, inputs).unwrap()],
            vec![0; outputs],
        );
        pack(&weight, outputs, inputs, &mut packed);
        row_sums(&weight, inputs, &mut of_rows);
        let scales = vec![0.5; outputs];
        let packed = Int8Weight {
            out_features: outputs,
            in_features: inputs,
            packed: &packed,
            scales: &scales,
            sums: &of_rows,
        };
        let x: Vec<f32> = (0..rows * inputs)
            .map(|index| [127.0, 125.0, -127.0][index / inputs])
            .collect();
        let mut quantized = QuantizedRows::default();
        quantized.quantize_static(&x, inputs, 1.0, None, false);
        let mut found = vec![7];
        matmul_sums(quantized.view(), packed, &mut Vec::new(), &mut found);
        let sum = |row: usize, column: usize| -> i32 {
            let weight = &weight[column * inputs..][..inputs];
            weight
                .iter()
                .map(|weight| i32::from(*weight) * [127, 125, -127][row])
                .sum()
        };
        let expected: Vec<_> = (0..rows * outputs)
            .map(|index| sum(index / outputs, index % outputs))
            .collect();
        assert!(
            expected
                .iter()
                .any(|sum| sum.abs() > 1 << 24 && sum % 2 != 0)
        );
        assert_eq!(found, expected);
    }
}
