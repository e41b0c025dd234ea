//! Self-test of quantization to INT8, and of INT8 matmuls with their shadow products. The reference is the CPU.

use bytemuck::Zeroable;
use triad_kernels::OutputMut;
use triad_kernels::int8::{
    Int8Weight, QuantizedRows, QuantizedView, matmul_int8, pack, packed_len, row_sums, shadow,
};

use super::super::Call;
use super::super::buffers::QUAD;
use super::super::dispatch::JOIN_THREADS;
use super::super::uniforms::{JoinUniforms, NONE, ProductUniforms, QuantizeUniforms};
use super::super::weights::{Layer, upload};
use super::{Checked, Trial, ensure, near, numbers};

/// Not a multiple of any tile, and more than the largest tile.
const COLUMNS: usize = 70;
/// First column of the results in a row of the output, which is wider.
const FIRST: usize = 3;
const STRIDE: usize = COLUMNS + 5;
/// Features of matmuls: more than a workgroup loads at a time, and not a multiple of that.
const FEATURES: usize = 100;
/// Features of quantization: more quads than a workgroup has invocations, but fewer than twice as many.
const WIDE: usize = 4 * 100;
/// Quantization step of the input. It puts an eighth of the range −1 to 1 beyond the clip threshold.
const SCALE: f32 = 0.007;
/// Relative tolerance of a term that is multiplied and summed in f32.
const TOLERANCE: f32 = 1e-5;

/// Tests with and without smoothing, with and without a shadow, and with rows that contain NaN or infinity.
pub(super) fn check_quantize(trial: &mut Trial) -> Checked {
    let smoothing: Vec<_> = numbers(WIDE, 11)
        .into_iter()
        .map(|x| 1.0 + 0.5 * x)
        .collect();
    let mut x = numbers(4 * WIDE, 12);
    // Values halfway between two INT8 numbers, and zeros of either sign.
    x[..4].copy_from_slice(&[0.5 * SCALE, 1.5 * SCALE, 0.0, -0.0]);
    x[2 * WIDE + 70] = f32::NAN;
    x[3 * WIDE + WIDE - 1] = f32::NEG_INFINITY;
    let input = trial.buffer(&x)?;
    // Padding: the smoothing factors are not at offset 0.
    let parameters = trial.buffer(&[&[f32::NAN; QUAD][..], &smoothing].concat())?;
    for (case, smoothing, has_shadow) in [
        ("clipped", None, false),
        ("with its outliers", None, true),
        ("smoothed, with its outliers", Some(&smoothing[..]), true),
    ] {
        let mut expected = QuantizedRows::default();
        expected.quantize_static(&x, WIDE, SCALE, smoothing, has_shadow);
        let expected = expected.view();
        let uniforms = QuantizeUniforms {
            quads: (WIDE / QUAD) as u32,
            smoothing_at: if smoothing.is_some() { 1 } else { NONE },
            scale: SCALE,
            inverse_scale: SCALE.recip(),
            has_shadow: u32::from(has_shadow),
            unused: [0; 3],
        };
        let rows = expected.rows();
        let call = Call {
            rows: rows as u32,
            ..Call::zeroed()
        };
        let quantized = trial.buffer(&vec![0u32; rows * (WIDE / QUAD + 1)])?;
        let outliers = trial.buffer(&vec![[0u32; 2]; rows * (1 + WIDE)])?;
        let found = trial.run(
            &call,
            &uniforms,
            &[&input, &parameters, &quantized, &outliers],
            2,
            [rows, 1, 1],
        )?;
        for row in 0..rows {
            let of_row = &found[1][2 * row * (1 + WIDE)..][..2 * (1 + WIDE)];
            let scale = found[0][rows * WIDE / QUAD + row];
            if scale.to_bits() != of_row[0].to_bits() {
                return Ok(Err(format!(
                    "{case}: row {row}: two scales, {scale} and {}",
                    of_row[0]
                )));
            }
            ensure!(
                same_row(
                    expected,
                    row,
                    &found[0][row * WIDE / QUAD..][..WIDE / QUAD],
                    of_row
                )
                .map_err(|reason| format!("{case}: row {row}: {reason}"))
            );
        }
    }
    Ok(Ok(()))
}

/// Compares the scale and, where they are used, the INT8 numbers and the outliers of a row with the CPU's.
fn same_row(
    expected: QuantizedView,
    row: usize,
    words: &[f32],
    outliers: &[f32],
) -> Result<(), String> {
    let (scale, count) = (outliers[0], outliers[1].to_bits() as usize);
    if expected.scales()[row].is_nan() {
        return if scale.is_nan() && count == 0 {
            Ok(())
        } else {
            Err(format!("scale {scale}, expected NaN"))
        };
    }
    let numbers: Vec<_> = words
        .iter()
        .flat_map(|word| word.to_bits().to_le_bytes())
        .map(|byte| byte as i8)
        .collect();
    let values = expected.values(row);
    if let Some((index, (found, expected))) = numbers
        .into_iter()
        .zip(values)
        .enumerate()
        .find(|(_, (found, expected))| found != expected)
    {
        return Err(format!("number {index} is {found}, expected {expected}"));
    }
    let (channels, left) = expected.outliers_of(row);
    if (scale, count) != (SCALE, channels.len()) {
        return Err(format!(
            "scale {scale} and {count} outliers, expected {SCALE} and {}",
            channels.len()
        ));
    }
    let pairs = outliers[2..].chunks_exact(2).zip(channels.iter().zip(left));
    for (index, (found, (channel, left))) in pairs.enumerate() {
        let (found_channel, found_left) = (found[0].to_bits(), found[1]);
        if found_channel != *channel || (found_left - left).abs() > TOLERANCE {
            return Err(format!(
                "outlier {index} is {found_left} of {found_channel}, expected {left} of {channel}"
            ));
        }
    }
    Ok(())
}

/// Returns rows of which some have no outliers.
fn input(rows: usize) -> QuantizedRows {
    let size = |index: usize| if index / FEATURES % 3 == 1 { 0.8 } else { 1.0 };
    let values = numbers(rows * FEATURES, 13).into_iter().enumerate();
    let values: Vec<_> = values.map(|(index, x)| x * size(index)).collect();
    let mut x = QuantizedRows::default();
    x.quantize_static(&values, FEATURES, SCALE, None, true);
    x
}

/// Returns the table of outliers of rows. What no shader may read is unusable.
fn outliers(x: QuantizedView) -> Vec<[u32; 2]> {
    let mut outliers = vec![[u32::MAX; 2]; x.rows() * (1 + FEATURES)];
    for (row, of_row) in outliers.chunks_exact_mut(1 + FEATURES).enumerate() {
        let (channels, left) = x.outliers_of(row);
        of_row[0] = [x.scales()[row].to_bits(), channels.len() as u32];
        of_row[1..]
            .iter_mut()
            .zip(channels.iter().zip(left))
            .for_each(|(to, (channel, left))| {
                *to = [*channel, left.to_bits()];
            });
    }
    outliers
}

/// Tests that results of another processor, and their shadows, are added to the output or written, and that other
/// columns stay as they are.
pub(super) fn check_join(trial: &mut Trial) -> Checked {
    const ROWS: usize = 5;
    /// The first column that the other processor computed, of the concatenated ones.
    const COMPUTED_FROM: usize = FIRST + 16;
    /// Its columns: not all that follow.
    const COMPUTED_COLUMNS: usize = 40;
    /// Numbers before the rectangle.
    const COMPUTED_AT: usize = 7;
    let weight = Weight::new();
    let x = input(ROWS);
    let mut product = vec![0.0; ROWS * COLUMNS];
    shadow(
        x.view(),
        weight.view(),
        OutputMut::new(&mut product, COLUMNS),
    );
    let (computed, before) = (
        numbers(COMPUTED_AT + ROWS * COMPUTED_COLUMNS, 18),
        numbers(ROWS * STRIDE, 15),
    );
    let slabs = upload(trial.context, &[Layer::W8a8(weight.view())], FEATURES)?;
    let [slab] = &slabs[..] else {
        unreachable!("a small weight is in one part")
    };
    let (computed_buffer, outliers) =
        (trial.buffer(&computed)?, trial.buffer(&outliers(x.view()))?);
    // Padding: the scales are not at offset 0.
    let parameters = trial.buffer(&[&[f32::NAN; QUAD][..], &weight.scales].concat())?;
    for (case, adds) in [("added to the output", true), ("alone", false)] {
        let mut expected = before.clone();
        for row in 0..ROWS {
            for column in COMPUTED_FROM..COMPUTED_FROM + COMPUTED_COLUMNS {
                let at = COMPUTED_AT + row * COMPUTED_COLUMNS + column - COMPUTED_FROM;
                let computed = computed[at];
                let value = computed + product[row * COLUMNS + column - FIRST];
                let expected = &mut expected[row * STRIDE + column];
                *expected = if adds { *expected + value } else { value };
            }
        }
        let uniforms = JoinUniforms {
            units: (FEATURES / QUAD) as u32,
            columns: COLUMNS as u32,
            first: FIRST as u32,
            stride: STRIDE as u32,
            computed_from: COMPUTED_FROM as u32,
            computed_columns: COMPUTED_COLUMNS as u32,
            computed_at: COMPUTED_AT as u32,
            adds: u32::from(adds),
            scales_at: QUAD as u32,
            unused: [0; 3],
        };
        let out = trial.buffer(&before)?;
        let found = trial.run(
            &Call::zeroed(),
            &uniforms,
            &[&computed_buffer, &slab.weight, &outliers, &parameters, &out],
            1,
            [COLUMNS.div_ceil(JOIN_THREADS), ROWS, 1],
        )?;
        ensure!(near(case, &found[0], &expected, |index| TOLERANCE
            * (1.0 + expected[index].abs())));
    }
    Ok(Ok(()))
}

/// Tests matmuls with as many rows as the kernel is for, added to bias and output, and written alone.
pub(super) fn check(trial: &mut Trial) -> Checked {
    let (rows, groups) = trial.product(COLUMNS);
    let weight = Weight::new();
    let x = input(rows);
    let x = x.view();
    let words: Vec<_> = (0..rows)
        .flat_map(|row| x.values(row))
        .map(|number| number as u8)
        .collect();
    let outliers = outliers(x);
    let mut product = vec![0.0; rows * COLUMNS];
    matmul_int8(
        x,
        weight.view(),
        None,
        OutputMut::new(&mut product, COLUMNS),
    );
    shadow(x, weight.view(), OutputMut::new(&mut product, COLUMNS));
    let (bias, before) = (numbers(STRIDE, 14), numbers(rows * STRIDE, 15));
    let slabs = upload(trial.context, &[Layer::W8a8(weight.view())], FEATURES)?;
    let [slab] = &slabs[..] else {
        unreachable!("a small weight is in one part")
    };
    let (input, outliers) = (trial.buffer(&words)?, trial.buffer(&outliers)?);
    // The scales follow the bias.
    let parameters = trial.buffer(&[&bias[..], &weight.scales].concat())?;
    for (case, adds) in [("added to bias and output", true), ("alone", false)] {
        let mut expected = before.clone();
        for (index, product) in product.iter().enumerate() {
            let (row, column) = (index / COLUMNS, FIRST + index % COLUMNS);
            let expected = &mut expected[row * STRIDE + column];
            *expected = if adds {
                *expected + product + bias[column]
            } else {
                *product
            };
        }
        let uniforms = ProductUniforms {
            units: (FEATURES / QUAD) as u32,
            columns: COLUMNS as u32,
            first: FIRST as u32,
            stride: STRIDE as u32,
            bias_at: if adds { FIRST as u32 } else { NONE },
            adds: u32::from(adds),
            of_outputs: 0,
            scales_at: STRIDE as u32,
        };
        let call = Call {
            rows: rows as u32,
            ..Call::zeroed()
        };
        let out = trial.buffer(&before)?;
        let found = trial.run(
            &call,
            &uniforms,
            &[&input, &slab.weight, &outliers, &parameters, &out],
            1,
            groups,
        )?;
        ensure!(near(case, &found[0], &expected, |index| TOLERANCE
            * (1.0 + expected[index].abs())));
    }
    Ok(Ok(()))
}

/// A weight `[COLUMNS, FEATURES]` with values over the whole INT8 range.
struct Weight {
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl Weight {
    fn new() -> Self {
        let numbers_of: Vec<_> = numbers(COLUMNS * FEATURES, 16)
            .into_iter()
            .map(|x| (x * 127.9) as i8)
            .collect();
        let length = packed_len(COLUMNS, FEATURES).expect("a small weight");
        let (mut packed, mut sums) = (vec![0; length], vec![0; COLUMNS]);
        pack(&numbers_of, COLUMNS, FEATURES, &mut packed);
        row_sums(&numbers_of, FEATURES, &mut sums);
        let scales = numbers(COLUMNS, 17)
            .into_iter()
            .map(|x| 0.002 + 0.001 * x)
            .collect();
        Self {
            packed,
            scales,
            sums,
        }
    }

    fn view(&self) -> Int8Weight<'_> {
        let Self {
            packed,
            scales,
            sums,
        } = self;
        Int8Weight {
            out_features: COLUMNS,
            in_features: FEATURES,
            packed,
            scales,
            sums,
        }
    }
}
