//! Outputs from sums of products that a device computed in i32.

use super::Int8Weight;
use crate::kernel::int8::output;
use crate::output::OutputMut;
use crate::pool;
use crate::vectorize::vectorize;

/// Outputs that are worth a task.
const PARALLEL: usize = 1 << 14;

/// `out[row, o] = sums[row, o] · (scale(row) · scales[o]) + bias[o]`: what [`matmul_int8`](super::matmul_int8) makes of the
/// same sums, bit for bit. `sums` is `[rows, out_features]`.
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
    assert_eq!(sums.len(), rows * columns, "a sum for every output");
    let scales = weight.scales;
    assert_eq!(scales.len(), columns, "one scale for each output channel");
    assert!(bias.is_none_or(|bias| bias.len() == columns), "bias is [{columns}]");
    pool::for_each(rows, PARALLEL.div_ceil(columns.max(1)), |row| {
        // SAFETY: this row belongs to this task alone.
        #[allow(unsafe_code)]
        let out = unsafe { out.row(row, 0..columns) };
        let (sums, scale) = (&sums[row * columns..][..columns], scale(row));
        vectorize(
            #[inline(always)]
            || match bias {
                Some(bias) => {
                    for (((out, sum), weight_scale), bias) in out.iter_mut().zip(sums).zip(scales).zip(bias) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::int8::{QuantizedRows, matmul_int8, pack, packed_len, row_sums};
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
            let scales = quantized.view().scales();
            scale_sums(&sums, |row| scales[row], packed, bias, OutputMut::new(&mut found, outputs));
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&found), bits(&expected));
        }
    }
}
