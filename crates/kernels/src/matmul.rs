//! `out = x · Wᵀ + bias`, the work of every linear layer.
//!
//! Prefill has many rows: the output is cut into blocks of columns, one task each, and the block's weights are
//! packed for a `product`; with weights in INT8, which bf16 represents exactly, activations are rounded to bf16 where
//! the processor multiplies that faster. Decode has one row: each output is one scalar product, with weights in INT8 and
//! INT4 one of integers, and memory bandwidth is the limit.

use std::cell::RefCell;

use crate::dot::{dot, dot_bf16};
use crate::int4::{self, SplitRows};
use crate::int16::Int16Rows;
use crate::product::{self, Bf16Rows, PANEL, Write, product};
use crate::shared_output::SharedOutput;
use crate::vectorize::vectorize_fused;
use crate::{Matrix, pool};

/// From this many rows on, packing the weights pays.
const PRODUCT_ROWS: usize = 4;
/// Weights read by one task with few rows, at least.
const DOT_WEIGHTS: usize = 1 << 17;

thread_local! {
    static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static FORMS: RefCell<Forms> = RefCell::default();
}

/// `out[rows, out_features] = x[rows, in_features] · weightᵀ + bias`.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn matmul(x: &[f32], rows: usize, weight: Matrix, out_features: usize, bias: Option<&[f32]>, out: &mut [f32]) {
    if rows > 0 && out_features > 0 {
        matmul_each(x, rows, &mut [Product::new(weight, out_features, bias, out)]);
    }
}

/// One of several products of the same activations.
pub struct Product<'a> {
    weight: Matrix<'a>,
    bias: Option<&'a [f32]>,
    out: SharedOutput<'a>,
}

impl<'a> Product<'a> {
    /// With a weight `[out_features, in_features]` and a bias `[out_features]`, for `out[rows, out_features]`.
    ///
    /// # Panics
    /// If there are no output features, or `out` has no whole rows of them.
    pub fn new(weight: Matrix<'a>, out_features: usize, bias: Option<&'a [f32]>, out: &'a mut [f32]) -> Self {
        Self { weight, bias, out: SharedOutput::new(out, out_features) }
    }

    fn check(&self, rows: usize, in_features: usize) {
        let (weight, out_features) = (self.weight, self.out.columns());
        assert_eq!(weight.len(), out_features * in_features, "weight is [{out_features}, {in_features}]");
        weight.check(out_features, in_features);
        assert_eq!(self.out.rows(), rows, "output is [{rows}, {out_features}]");
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), out_features, "bias is [{out_features}]");
        }
    }

    /// Columns of one task.
    fn task_columns(&self, rows: usize, in_features: usize) -> usize {
        if rows >= PRODUCT_ROWS {
            return PANEL;
        }
        // Long stretches, which the processor fetches ahead, and two for each thread, in case one has less of its core.
        DOT_WEIGHTS.max(self.weight.len() / (2 * pool::threads())).div_ceil(in_features)
    }
}

/// [`matmul`] of `x[rows, in_features]` with several weights as one operator: activations are made ready once, and
/// threads meet once.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn matmul_each(x: &[f32], rows: usize, products: &mut [Product]) {
    if rows == 0 {
        return;
    }
    assert!(x.len().is_multiple_of(rows), "{} activations in {rows} rows", x.len());
    let in_features = x.len() / rows;
    assert!(in_features > 0, "a linear layer reads something");
    products.iter().for_each(|product| product.check(rows, in_features));
    let products = &*products;
    let mut forms = FORMS.take();
    forms.fill(x, rows, in_features, products);
    let counts = products.iter().map(|product| product.out.columns().div_ceil(product.task_columns(rows, in_features)));
    pool::for_each_of(&counts, |index, task| {
        let Product { weight, bias, out } = products[index];
        let task_columns = products[index].task_columns(rows, in_features);
        let columns = task * task_columns..((task + 1) * task_columns).min(out.columns());
        let weight = weight.rows(columns.start, columns.len(), in_features);
        let task = Task { x, forms: &forms, rows, in_features, weight, columns, out };
        if rows < PRODUCT_ROWS {
            task.by_dot();
        } else {
            task.by_product();
        }
        if let Some(bias) = bias {
            task.add_bias(bias);
        }
    });
    // As large as a prompt's activations: not kept.
    forms.bf16 = None;
    FORMS.set(forms);
}

/// The name of the kernel that products of many rows use on this processor.
pub fn kernel_name() -> &'static str {
    product::kernel_name()
}

/// The name of the kernel that products of few rows with weights in INT8 use on this processor.
pub fn int16_kernel_name() -> &'static str {
    Int16Rows::default().kernel_name()
}

/// The name of the kernel that products in bf16 use on this processor; `None` if they are made in f32.
pub fn bf16_kernel_name() -> Option<&'static str> {
    product::bf16_kernel_name()
}

/// Activations in the forms that products want them in.
#[derive(Default)]
struct Forms {
    /// For many rows and weights in INT8, where the processor multiplies bf16.
    bf16: Option<Bf16Rows>,
    /// For few rows and weights in INT8 and INT4.
    int16: Int16Rows,
    /// For few rows and INT4, where the processor multiplies it as integers.
    split: Option<SplitRows>,
}

impl Forms {
    /// Takes `x`, `[rows, in_features]`.
    fn fill(&mut self, x: &[f32], rows: usize, in_features: usize, products: &[Product]) {
        let any = |is: fn(&Matrix) -> bool| products.iter().any(|product| is(&product.weight));
        let (int8, int4) =
            (any(|weight| matches!(weight, Matrix::Int8 { .. })), any(|weight| matches!(weight, Matrix::Int4 { .. })));
        if rows >= PRODUCT_ROWS {
            if int8 {
                self.bf16 = Bf16Rows::new(x, in_features);
            }
            return;
        }
        if int4 {
            self.split = self.split.take().or_else(SplitRows::new);
        }
        if int8 || int4 && self.split.is_some() {
            self.int16.fill(x, in_features);
        }
        if let Some(split) = self.split.as_mut().filter(|_| int4) {
            split.fill(&self.int16);
        }
    }
}

/// One block of output columns; the tasks of one matmul write disjoint columns.
struct Task<'a> {
    x: &'a [f32],
    forms: &'a Forms,
    rows: usize,
    in_features: usize,
    weight: Matrix<'a>,
    columns: std::ops::Range<usize>,
    out: SharedOutput<'a>,
}

impl Task<'_> {
    fn by_dot(&self) {
        for row in 0..self.rows {
            // SAFETY: these columns belong to this task alone.
            #[allow(unsafe_code)]
            let out = unsafe { self.out.row(row, self.columns.clone()) };
            match (self.weight, &self.forms.split) {
                (Matrix::Int8 { values, scales }, _) => self.forms.int16.dots_int8(row, values, scales, out),
                (Matrix::Int4 { values, scales }, Some(split)) => split.dots(row, values, scales, out),
                _ => return self.by_float_dot(),
            }
        }
    }

    fn by_float_dot(&self) {
        WIDENED.with_borrow_mut(|scratch| {
            vectorize_fused(
                #[inline(always)]
                |fused| {
                    for (index, column) in self.columns.clone().enumerate() {
                        let weight = match self.weight.rows(index, 1, self.in_features) {
                            half @ Matrix::F16(_) => Matrix::F32(half.as_f32(scratch)),
                            weight => weight,
                        };
                        for (row, x) in self.x.chunks_exact(self.in_features).enumerate() {
                            // SAFETY: this column belongs to this task alone.
                            #[allow(unsafe_code)]
                            let out = unsafe { self.out.row(row, column..column + 1) };
                            out[0] = match weight {
                                Matrix::F32(weight) => dot(x, weight, fused),
                                Matrix::Bf16(weight) => dot_bf16(x, weight, fused),
                                Matrix::Int4 { values, scales } => int4::dot(x, values, scales),
                                Matrix::F16(_) | Matrix::Int8 { .. } => unreachable!("widened above, or integers"),
                            };
                        }
                    }
                },
            );
        });
    }

    fn by_product(&self) {
        let (out, columns) = (self.out, self.columns.clone());
        let (Some(x), Matrix::Int8 { values, scales }) = (&self.forms.bf16, self.weight) else {
            // SAFETY: these columns belong to this task alone.
            #[allow(unsafe_code)]
            return unsafe {
                product(self.x, self.in_features, self.weight, out, columns, Write::Replace);
            };
        };
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            x.product(values, out, columns);
        }
        self.each_row(|row| row.iter_mut().zip(scales).for_each(|(out, scale)| *out *= scale));
    }

    fn add_bias(&self, bias: &[f32]) {
        let bias = &bias[self.columns.clone()];
        self.each_row(|row| row.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias));
    }

    /// The outputs of this task.
    fn each_row(&self, change: impl Fn(&mut [f32])) {
        for row in 0..self.rows {
            // SAFETY: these columns belong to this task alone.
            #[allow(unsafe_code)]
            change(unsafe { self.out.row(row, self.columns.clone()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// The definition, in f64.
    fn reference(x: &[f32], rows: usize, weight: &[f32], columns: usize, bias: Option<&[f32]>) -> Vec<f64> {
        let depth = x.len() / rows;
        let mut out = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let products =
                    (0..depth).map(|i| f64::from(x[row * depth + i]) * f64::from(weight[column * depth + i]));
                out.push(products.sum::<f64>() + bias.map_or(0.0, |bias| f64::from(bias[column])));
            }
        }
        out
    }

    /// Multiplies by `matrix` and compares with the definition on the numbers that it and `x` stand for.
    fn compare(
        x: &[f32],
        multiplied: &[f32],
        rows: usize,
        matrix: Matrix,
        exact: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<(), TestCaseError> {
        let depth = x.len() / rows;
        let columns = exact.len() / depth;
        let mut out = vec![f32::NAN; rows * columns];
        matmul(x, rows, matrix, columns, bias, &mut out);
        for (out, expected) in out.iter().zip(reference(multiplied, rows, exact, columns, bias)) {
            prop_assert!((f64::from(*out) - expected).abs() < 1e-5 * depth as f64, "{} is not {}", out, expected);
        }
        Ok(())
    }

    /// What is left of `x` in INT16.
    fn in_int16(x: &[f32], depth: usize) -> Vec<f32> {
        let mut rows = Int16Rows::default();
        rows.fill(x, depth);
        rows.to_f32()
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
                compare(&x, &x, rows, matrix, &exact, bias.as_deref())?;
            }
            // A product with INT8 rounds few rows of activations to INT16 and many, perhaps, to bf16.
            let multiplied = if rows < PRODUCT_ROWS {
                in_int16(&x, depth)
            } else if Bf16Rows::new(&x, depth).is_some() {
                x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect()
            } else {
                x.clone()
            };
            let matrix = Matrix::Int8 { values: &bytes, scales: &scales };
            compare(&x, &multiplied, rows, matrix, &scaled.collect::<Vec<_>>(), bias.as_deref())?;
        }

        #[test]
        fn groups_of_int4_agree_with_the_definition(
            rows in 1usize..10, groups in prop_oneof![1usize..10, 31usize..40], columns in 1usize..200, seed: u64,
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
            let integers = rows < PRODUCT_ROWS && SplitRows::new().is_some();
            let multiplied = if integers { in_int16(&x, depth) } else { x.clone() };
            compare(&x, &multiplied, rows, Matrix::Int4 { values: &bytes, scales: &scales }, &exact, None)?;
        }

        #[test]
        fn the_number_of_threads_does_not_change_a_bit(rows in 1usize..20, columns in 1usize..2500, seed: u64) {
            let (x, weight) = (values(rows * 64, seed), values(columns * 64, seed ^ 1));
            let (bytes, scales): (Vec<_>, Vec<_>) = (weight.iter().map(|x| (x * 127.0) as i8).collect(), values(columns, 2));
            let (mut packed, mut group_scales) = (vec![0; columns * 32], vec![f16::ZERO; columns * 2]);
            int4::quantize_int4(&weight, &mut packed, &mut group_scales);
            for matrix in [
                Matrix::F32(&weight),
                Matrix::Int8 { values: &bytes, scales: &scales },
                Matrix::Int4 { values: &packed, scales: &group_scales },
            ] {
                let run = |threads| {
                    let pool = pool::Pool::new(threads).unwrap();
                    let mut out = vec![0.0; rows * columns];
                    pool.install(|| matmul(&x, rows, matrix, columns, None, &mut out));
                    out
                };
                prop_assert_eq!(run(1), run(3));
            }
        }

        #[test]
        fn products_together_have_the_bits_of_each_alone(
            rows in 1usize..10, columns in prop::collection::vec(1usize..200, 0..5), seed: u64, threads in 1usize..4,
        ) {
            const DEPTH: usize = 96;
            let x = values(rows * DEPTH, seed);
            let owned: Vec<_> = columns.iter().enumerate().map(|(index, columns)| {
                let weight = values(columns * DEPTH, seed ^ index as u64);
                let bytes: Vec<i8> = weight.iter().map(|x| (x * 127.0) as i8).collect();
                let (mut packed, mut scales) = (vec![0; weight.len() / 2], vec![f16::ZERO; weight.len() / int4::GROUP]);
                int4::quantize_int4(&weight, &mut packed, &mut scales);
                (weight, bytes, values(*columns, seed ^ 7), packed, scales)
            }).collect();
            let parts = owned.iter().enumerate().map(|(index, (weight, bytes, scales, packed, group_scales))| {
                let matrix = match (seed as usize + index) % 3 {
                    0 => Matrix::F32(weight),
                    1 => Matrix::Int8 { values: bytes, scales },
                    _ => Matrix::Int4 { values: packed, scales: group_scales },
                };
                (matrix, scales.len(), (index % 2 == 0).then_some(&scales[..]))
            });
            let mut outs: Vec<_> = columns.iter().map(|columns| vec![f32::NAN; rows * columns]).collect();
            let products = parts.clone().zip(&mut outs);
            let mut products: Vec<_> = products
                .map(|((matrix, columns, bias), out)| Product::new(matrix, columns, bias, out))
                .collect();
            pool::Pool::new(threads).unwrap().install(|| matmul_each(&x, rows, &mut products));
            for ((matrix, columns, bias), out) in parts.zip(outs) {
                let mut alone = vec![f32::NAN; rows * columns];
                matmul(&x, rows, matrix, columns, bias, &mut alone);
                prop_assert_eq!(out, alone);
            }
        }
    }

    #[test]
    #[should_panic(expected = "weight is [3, 2]")]
    fn a_wrong_shape_is_named() {
        matmul(&[0.0; 2], 1, Matrix::F32(&[0.0; 5]), 3, None, &mut [0.0; 3]);
    }
}
