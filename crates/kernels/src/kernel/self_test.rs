//! Small products that test every kernel before this process uses it: a processor may report instructions and compute
//! wrongly with them, and some kernels use instructions that no developer's machine has.
//!
//! Products are compared with the plain kernels, conversions with their definition. A kernel that differs is refused,
//! and that of the next instruction set is used instead. All tests together take about three milliseconds.

mod blocks;
mod plain;

use std::fmt::Display;
use std::ops::Range;

use half::{bf16, f16};

use super::int8::quantize::ActivationRow;
use super::int8::rows::{Outliers, Part, QuantizedView, stride};
use super::int8::shadow::ShadowColumns;
use super::int8::weight::{BLOCK, Int8Weight, QUAD, STEP, block_len};
use super::int8::{self, Int8Kernel, Rectangle};
use super::int16::{self, BlockColumns, Int4Columns, Int8Columns, Int16Kernel, Int16Rows};
use super::panel::pairs::ValueUnits;
use super::panel::portable::Portable;
use super::panel::{Bf16Kernel, LANES, PANEL, PairKernel, Panel, PanelKernel, Powers};
use crate::BlockFormat;
use crate::int4::GROUP;
use crate::output::{OutputMut, SharedOutput};
use plain::{Integers, Pairs};

/// The result of a test: an error describes what a kernel computes wrongly.
type Outcome = Result<(), String>;

/// Rows of products: one, few, a tile of a matrix unit, and some more.
const ROWS: [usize; 4] = [1, 3, 16, 37];
/// Rows of products in decode: one, and a tile plus one.
const FEW_ROWS: [usize; 2] = [1, 5];
/// Output features of these products, which are computed one by one.
const FEW_COLUMNS: usize = 10;
/// Output features: not a multiple of any tile.
const COLUMNS: usize = 72;
/// Input features of products in INT8 and float: not a multiple of any step.
const FEATURES: usize = 154;
/// Input features of products with groups and blocks.
const BLOCK_FEATURES: usize = 512;
/// Maximum difference of sums in another order, relative to the sum of all magnitudes.
const ROUNDING: f32 = 1e-5;

/// Tests products and shadows, which must have the bits of the plain kernel, and quantization.
pub(super) fn int8(kernel: &dyn Int8Kernel) -> Outcome {
    let plain = &int8::reference::Reference;
    let x = numbers(ROWS[3] * FEATURES, 1);
    let quantize = |kernel: &dyn Int8Kernel| {
        let (mut bytes, mut part) = (Vec::new(), Part::default());
        for x in x.chunks_exact(FEATURES) {
            // One in ten exceeds the limit.
            let row = ActivationRow {
                x,
                smoothing: None,
                inverse: 127.0 / 0.9,
                limit: 0.9,
            };
            let (mut numbers, mut outliers) = (vec![0; FEATURES], Outliers::default());
            kernel.quantize(&row, &mut numbers, &mut outliers);
            numbers.resize(stride(FEATURES), int8::rows::OFFSET);
            bytes.extend(numbers);
            for (channel, number) in outliers.channels.iter().zip(outliers.numbers) {
                part.outliers.push(*channel as usize, number);
            }
            part.ends.push(part.outliers.channels.len());
        }
        (bytes, part)
    };
    let (bytes, part) = quantize(plain);
    let (found, found_part) = quantize(kernel);
    if bytes != found {
        return Err("activations in INT8 differ".into());
    }
    let list = |part: &Part| {
        (
            part.ends.clone(),
            part.outliers.channels.clone(),
            part.outliers.numbers.clone(),
        )
    };
    if list(&part) != list(&found_part) {
        return Err("the outliers of activations differ".into());
    }
    let integers: Vec<i8> = numbers(COLUMNS * FEATURES, 2)
        .iter()
        .map(|x| (x * 127.0).round() as i8)
        .collect();
    let mut packed = vec![0; COLUMNS.div_ceil(BLOCK) * block_len(FEATURES)];
    for (column, row) in integers.chunks_exact(FEATURES).enumerate() {
        for (feature, integer) in row.iter().enumerate() {
            let step = column / BLOCK * block_len(FEATURES) + feature / QUAD * STEP;
            packed[step + column % BLOCK * QUAD + feature % QUAD] = *integer;
        }
    }
    let of_row = |row: &[i8]| row.iter().map(|integer| i32::from(*integer)).sum();
    let sums: Vec<i32> = integers.chunks_exact(FEATURES).map(of_row).collect();
    let (scales, bias) = (numbers(COLUMNS, 3), numbers(COLUMNS, 4));
    let weight = Int8Weight {
        out_features: COLUMNS,
        in_features: FEATURES,
        packed: &packed,
        scales: &scales,
        sums: &sums,
    };
    let row_scales = numbers(ROWS[3], 5);
    let parts = [part];
    for rows in ROWS {
        let x = QuantizedView {
            in_features: FEATURES,
            bytes: &bytes[..rows * stride(FEATURES)],
            scales: &row_scales[..rows],
            parts: &parts,
            rows_before: 0,
            outlier_columns: &[],
        };
        for bias in [None, Some(&bias[..])] {
            let product = |kernel: &dyn Int8Kernel| {
                output(rows, |out| {
                    kernel.multiply(&Rectangle {
                        x,
                        rows: 0..rows,
                        weight,
                        columns: 0..COLUMNS,
                        bias,
                        out,
                    });
                })
            };
            same(
                &format!("a product of {rows} rows in INT8"),
                &product(plain),
                &product(kernel),
            )?;
        }
    }
    let few = ROWS[2];
    let x = QuantizedView {
        in_features: FEATURES,
        bytes: &bytes[..few * stride(FEATURES)],
        scales: &row_scales[..few],
        parts: &parts,
        rows_before: 0,
        outlier_columns: &[],
    };
    let shadow = |kernel: &dyn Int8Kernel| {
        output(few, |out| {
            kernel.shadow(&ShadowColumns {
                x,
                rows: 0..few,
                weight,
                columns: 0..COLUMNS,
                out,
                add: false,
            });
        })
    };
    near("a shadow", &shadow(plain), &shadow(kernel), 30.0)
}

/// Tests products of activations in INT16 with weights in INT8, INT4 and every kind of block.
pub(super) fn int16(kernel: &dyn Int16Kernel) -> Outcome {
    let plain = &int16::reference::Reference;
    for rows in &FEW_ROWS {
        let x = numbers(rows * BLOCK_FEATURES, 6);
        let mut in_order = Int16Rows::default();
        in_order.fill(&x, BLOCK_FEATURES);
        in_order.fill_steps();
        in_order.fill_sums();
        let integers: Vec<i8> = numbers(FEW_COLUMNS * BLOCK_FEATURES, 7)
            .iter()
            .map(|x| (x * 127.0) as i8)
            .collect();
        let scales = numbers(FEW_COLUMNS, 8);
        let product = |kernel: &dyn Int16Kernel| {
            output(*rows, |out| {
                let (weights, scales, columns) = (&integers[..], &scales[..], 0..FEW_COLUMNS);
                Int8Columns {
                    x: &in_order,
                    weights,
                    scales,
                    columns,
                    out,
                }
                .multiply(kernel);
            })
        };
        let largest = BLOCK_FEATURES as f32;
        let name = format!("a product of {rows} rows with weights in INT8");
        near(&name, &product(plain), &product(kernel), 127.0 * largest)?;

        let nibbles: Vec<u8> = (0..FEW_COLUMNS * BLOCK_FEATURES / 2)
            .map(|index| (index * 37) as u8)
            .collect();
        let scales: Vec<f16> = numbers(FEW_COLUMNS * BLOCK_FEATURES / GROUP, 9)
            .iter()
            .map(|scale| f16::from_f32(*scale))
            .collect();
        let product = |kernel: &dyn Int16Kernel| {
            output(*rows, |out| {
                let (weights, scales, columns) = (&nibbles[..], &scales[..], 0..FEW_COLUMNS);
                Int4Columns {
                    x: &in_order,
                    weights,
                    scales,
                    columns,
                    out,
                }
                .multiply(kernel);
            })
        };
        near(
            &format!("a product of {rows} rows with weights in INT4"),
            &product(plain),
            &product(kernel),
            8.0 * largest,
        )?;

        for format in BlockFormat::ALL {
            let bytes = blocks::numbers(format, FEW_COLUMNS * BLOCK_FEATURES);
            let product = |kernel: &dyn Int16Kernel| {
                output(*rows, |out| {
                    BlockColumns {
                        x: &in_order,
                        format,
                        bytes: &bytes,
                        columns: 0..FEW_COLUMNS,
                        out,
                    }
                    .multiply(kernel);
                })
            };
            let name = format!("a product of {rows} rows with weights in {format}");
            near(
                &name,
                &product(plain),
                &product(kernel),
                64.0 * 64.0 * largest,
            )?;
        }
    }
    Ok(())
}

/// Tests products in f32, and transposition.
pub(super) fn float(kernel: &dyn PanelKernel) -> Outcome {
    let (left, right) = (words(ROWS[3] * FEATURES, 10), words(FEATURES * PANEL, 11));
    products(kernel, &Portable, &left, &right, near_products)?;
    transposes(kernel)
}

/// Tests products of pairs of bf16, against sums of exact products, and conversions.
pub(super) fn bf16(kernel: &dyn Bf16Kernel) -> Outcome {
    let x = numbers(2 * (ROWS[3] + PANEL) * FEATURES, 12);
    let mut pairs = vec![0; x.len() / 2];
    kernel.to_bf16(&x, &mut pairs);
    let pair = |pair: &[f32]| {
        u32::from(bf16::from_f32(pair[0]).to_bits())
            | u32::from(bf16::from_f32(pair[1]).to_bits()) << 16
    };
    if x.chunks_exact(2).map(pair).ne(pairs.iter().copied()) {
        return Err("numbers rounded to bf16 differ".into());
    }
    let (even, odd) = x.split_at(pairs.len());
    let mut interleaved = vec![0; pairs.len()];
    kernel.interleave(even, odd, &mut interleaved);
    if even
        .iter()
        .zip(odd)
        .map(|(even, odd)| pair(&[*even, *odd]))
        .ne(interleaved.iter().copied())
    {
        return Err("pairs of numbers rounded to bf16 differ".into());
    }
    let (left, right) = pairs.split_at(ROWS[3] * FEATURES);
    products(kernel, &Pairs, left, right, near_products)?;
    transposes(kernel)?;

    powers(|exponents, visible, before| {
        let mut words = vec![0; FEATURES.div_ceil(2)];
        let powers = kernel.exp2_and_sum(exponents, visible, before, &mut words);
        let halves = words
            .iter()
            .flat_map(|word| [*word as u16, (word >> 16) as u16]);
        (
            powers,
            halves.map(|half| bf16::from_bits(half).to_f32()).collect(),
            0.0,
        )
    })
}

/// Tests products of pairs of INT16, which must be exact, and transposition.
pub(super) fn pairs(kernel: &dyn PairKernel) -> Outcome {
    // Small enough that no sum overflows, including the output's bits.
    let words = |count: usize, seed: usize| {
        let integers: Vec<i16> = numbers(2 * count, seed)
            .iter()
            .map(|x| (x * 1023.0).round() as i16)
            .collect();
        bytemuck::cast_slice::<i16, u32>(&integers).to_vec()
    };
    let (left, right) = (words(ROWS[3] * FEATURES, 15), words(FEATURES * PANEL, 16));
    products(kernel, &Integers, &left, &right, |what, expected, found| {
        let sums = |out: &[f32]| bytemuck::cast_slice::<f32, i32>(out).to_vec();
        let (expected, found) = (sums(expected), sums(found));
        let different = expected
            .iter()
            .zip(&found)
            .find(|(expected, found)| expected != found);
        different.map_or(Ok(()), |(expected, found)| {
            Err(difference(what, expected, found))
        })
    })?;
    transposes(kernel)?;
    powers(|exponents, visible, before| {
        let (each, mut words) = (vec![0.5; FEATURES], vec![0; FEATURES.div_ceil(2)]);
        let units = ValueUnits {
            each: &each,
            largest: 0.5,
        };
        let (powers, unit) = kernel.exp2_and_sum(exponents, visible, before, units, &mut words);
        let unit = unit / 0.5;
        let numbers: &[i16] = bytemuck::cast_slice(&words);
        (
            powers,
            numbers
                .iter()
                .map(|number| f32::from(*number) * unit)
                .collect(),
            unit,
        )
    })
}

/// Tests powers of two of exponents of which some are visible, with the previous maximum. `compute` returns them
/// rounded, and the maximum error of that rounding.
fn powers(
    compute: impl FnOnce(&mut [f32], Range<usize>, f32) -> (Powers, Vec<f32>, f32),
) -> Outcome {
    let exponents: Vec<f32> = numbers(FEATURES, 13).iter().map(|x| 8.0 * x).collect();
    let visible = 5..FEATURES - 7;
    let (
        Powers {
            of_visible,
            largest,
            sum,
        },
        found,
        rounding,
    ) = compute(&mut exponents.clone(), visible.clone(), 9.0);
    let expected = exponents[visible.clone()]
        .iter()
        .copied()
        .fold(f32::MIN, f32::max);
    let power = |(index, x): (usize, &f32)| {
        if visible.contains(&index) {
            (x - 9.0).exp2()
        } else {
            0.0
        }
    };
    let powers: Vec<f32> = exponents.iter().enumerate().map(power).collect();
    let all_near = found
        .iter()
        .zip(&powers)
        .all(|(found, power)| (found - power).abs() <= 0.005 * power + rounding);
    let total: f32 = powers.iter().sum();
    if of_visible != expected || largest != 9.0 || (sum - total).abs() > 2e-4 * total || !all_near {
        return Err("powers of two differ".into());
    }
    Ok(())
}

/// Tests products of all rows, also added to previous outputs, against `plain` by `compare`.
fn products(
    kernel: &dyn PanelKernel,
    plain: &dyn PanelKernel,
    left: &[u32],
    right: &[u32],
    compare: impl Fn(&str, &[f32], &[f32]) -> Outcome,
) -> Outcome {
    for rows in ROWS {
        for add in [false, true] {
            let product = |kernel: &dyn PanelKernel| {
                output(rows, |out| {
                    let columns = 3..3 + PANEL - 2;
                    let (left_stride, right_stride) = (FEATURES, PANEL);
                    kernel.multiply(&Panel {
                        left,
                        left_stride,
                        steps: FEATURES,
                        right,
                        right_stride,
                        out,
                        columns,
                        add,
                    });
                })
            };
            compare(
                &format!("a product of {rows} rows in {}", kernel.name()),
                &product(plain),
                &product(kernel),
            )?;
        }
    }
    Ok(())
}

fn transposes(kernel: &dyn PanelKernel) -> Outcome {
    let from = words(LANES * LANES, 14);
    let mut to = vec![0; LANES * LANES];
    kernel.transpose(&from, LANES, &mut to, LANES);
    let expected = (0..LANES * LANES).map(|index| from[index % LANES * LANES + index / LANES]);
    if expected.eq(to) {
        Ok(())
    } else {
        Err("a transposed square differs".into())
    }
}

/// Returns the result of `write` on `[rows, COLUMNS]` ones.
fn output(rows: usize, write: impl FnOnce(SharedOutput)) -> Vec<f32> {
    let mut out = vec![1.0; rows * COLUMNS];
    write(OutputMut::new(&mut out, COLUMNS).into_shared());
    out
}

fn same(what: &str, expected: &[f32], found: &[f32]) -> Outcome {
    let differs = |(expected, found): &(&f32, &f32)| expected.to_bits() != found.to_bits();
    expected
        .iter()
        .zip(found)
        .find(differs)
        .map_or(Ok(()), |(expected, found)| {
            Err(difference(what, *expected, *found))
        })
}

/// Compares sums of magnitude up to `largest`.
fn near(what: &str, expected: &[f32], found: &[f32], largest: f32) -> Outcome {
    let differs = |(expected, found): &(&f32, &f32)| {
        let distance = (*expected - *found).abs();
        distance.is_nan() || distance > ROUNDING * largest
    };
    expected
        .iter()
        .zip(found)
        .find(differs)
        .map_or(Ok(()), |(expected, found)| {
            Err(difference(what, *expected, *found))
        })
}

/// Compares sums of products of two numbers from −1 to 1, at most two products per feature.
fn near_products(what: &str, expected: &[f32], found: &[f32]) -> Outcome {
    near(what, expected, found, 2.0 * FEATURES as f32)
}

fn difference(what: &str, expected: impl Display, found: impl Display) -> String {
    format!("{what} has {found}, expected {expected}")
}

/// Returns arbitrary numbers from −1 to 1, both included.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|index| ((index + seed) * 7919 % 2003) as f32 / 1001.0 - 1.0)
        .collect()
}

/// Returns the bits of such numbers.
fn words(count: usize, seed: usize) -> Vec<u32> {
    numbers(count, seed).into_iter().map(f32::to_bits).collect()
}

#[cfg(test)]
mod tests;
