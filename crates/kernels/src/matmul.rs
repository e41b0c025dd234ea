//! `out = x · Wᵀ + bias`, the operation of every linear layer.
//!
//! The [`Phase`] of a call decides how it is computed, whatever the number of rows. Prefill has many rows: each task
//! computes a block of output columns, and packs the block's weights for a `product`. With weights in INT8, INT4 and
//! blocks of GGUF, activations are rounded to bf16 or INT16 if the processor multiplies that faster. These weights are
//! rounded too, except INT8, which bf16 represents exactly. Decode has few rows: each output is one scalar product, of
//! integers with weights in INT8, INT4 and blocks. Memory bandwidth limits its speed, so each weight is read from
//! memory once for all rows. [`BlockArithmetic::Exact`] keeps to f32.

use std::cell::RefCell;

use crate::dot::{dot, dot_bf16};
use crate::kernel::int16::{BlockColumns, Int4Columns, Int8Columns, Int16Rows};
use crate::kernel::panel::PANEL;
use crate::kernel::{Kernels, best};
use crate::output::{OutputMut, SharedOutput};
use crate::product::{RoundedRows, Write, product};
use crate::vectorize::vectorize_fused;
use crate::{BlockArithmetic, Blocks, Matrix, Phase, pool};

/// Minimum number of weights that one task of scalar products reads.
const DOT_WEIGHTS: usize = 1 << 17;

thread_local! {
    static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static FORMS: RefCell<Forms> = RefCell::default();
}

/// Computes `out[rows, out_features] = x[rows, in_features] · weightᵀ + bias`, in the arithmetic of `phase`.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn matmul(x: &[f32], weight: Matrix, bias: Option<&[f32]>, phase: Phase, out: OutputMut) {
    matmul_each(x, out.rows(), phase, &mut [Product::new(weight, bias, out)]);
}

/// One of several products of the same activations.
pub struct Product<'a> {
    weight: Matrix<'a>,
    bias: Option<&'a [f32]>,
    out: SharedOutput<'a>,
}

impl<'a> Product<'a> {
    /// Creates a product with a weight `[out_features, in_features]` and a bias `[out_features]`, for `out[rows,
    /// out_features]`.
    ///
    /// A product of a range of output features ([`Matrix::rows`]) or of some rows has the same bits as that part of the
    /// whole product.
    pub fn new(weight: Matrix<'a>, bias: Option<&'a [f32]>, out: OutputMut<'a>) -> Self {
        Self {
            weight,
            bias,
            out: out.into_shared(),
        }
    }

    fn check(&self, rows: usize, in_features: usize) {
        let (weight, out_features) = (self.weight, self.out.columns());
        assert_eq!(
            weight.len(),
            out_features * in_features,
            "weight is [{out_features}, {in_features}]"
        );
        weight.check(out_features, in_features);
        self.out.check(rows, out_features);
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), out_features, "bias is [{out_features}]");
        }
    }

    /// Returns the columns per task.
    fn task_columns(&self, phase: Phase, in_features: usize) -> usize {
        if phase == Phase::Prefill {
            return PANEL;
        }
        // Long stretches, which the processor prefetches; two per thread, in case a thread gets less time on its core.
        DOT_WEIGHTS
            .max(self.weight.len() / (2 * pool::threads()))
            .div_ceil(in_features)
    }
}

/// Computes [`matmul`] of `x[rows, in_features]` with several weights as one operator: activations are converted once,
/// and threads synchronize once.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn matmul_each(x: &[f32], rows: usize, phase: Phase, products: &mut [Product]) {
    if rows == 0 {
        return;
    }
    assert!(
        x.len().is_multiple_of(rows),
        "{} activations in {rows} rows",
        x.len()
    );
    let in_features = x.len() / rows;
    assert!(in_features > 0, "expected at least one input feature");
    products
        .iter()
        .for_each(|product| product.check(rows, in_features));
    let (products, kernels) = (&*products, best());
    let mut forms = FORMS.take();
    forms.fill(x, phase, in_features, products);
    let counts = products.iter().map(|product| {
        product
            .out
            .columns()
            .div_ceil(product.task_columns(phase, in_features))
    });
    pool::for_each_of(&counts, |index, task| {
        let Product { weight, bias, out } = products[index];
        let task_columns = products[index].task_columns(phase, in_features);
        let columns = task * task_columns..((task + 1) * task_columns).min(out.columns());
        let weight = weight.rows(columns.clone(), in_features);
        let task = Task {
            kernels,
            x,
            forms: &forms,
            rows,
            in_features,
            weight,
            columns,
            out,
        };
        match phase {
            Phase::Prefill => task.by_product(),
            Phase::Decode => task.by_dot(),
        }
        if let Some(bias) = bias {
            task.add_bias(bias);
        }
    });
    // Not kept, since it is as large as a prompt's activations.
    forms.rounded = None;
    FORMS.set(forms);
}

/// Activations in the formats that products need.
#[derive(Default)]
struct Forms {
    /// For prefill with weights that require rounded activations, if the processor multiplies these faster.
    rounded: Option<RoundedRows>,
    /// For decode with these weights.
    int16: Int16Rows,
}

impl Forms {
    /// Converts `x`, `[rows, in_features]`.
    fn fill(&mut self, x: &[f32], phase: Phase, in_features: usize, products: &[Product]) {
        let any = |is: fn(&Matrix) -> bool| products.iter().any(|product| is(&product.weight));
        if !any(|weight| weight.rounds_activations()) {
            return;
        }
        if phase == Phase::Prefill {
            self.rounded = RoundedRows::new(x, in_features);
            return;
        }
        self.int16.fill(x, in_features);
        if any(|weight| matches!(weight, Matrix::Int4 { .. })) {
            self.int16.fill_steps();
        }
        if any(|weight| matches!(weight, Matrix::Blocks(_))) {
            self.int16.fill_sums();
        }
    }
}

/// One block of output columns; the tasks of one matmul write disjoint columns.
struct Task<'a> {
    kernels: &'a Kernels,
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
        let (x, columns, out, kernel) = (
            &self.forms.int16,
            self.columns.clone(),
            self.out,
            self.kernels.int16,
        );
        match self.weight {
            Matrix::Int8 {
                values: weights,
                scales,
            } => {
                Int8Columns {
                    x,
                    weights,
                    scales,
                    columns,
                    out,
                }
                .multiply(kernel);
            }
            Matrix::Int4 {
                values: weights,
                scales,
            } => {
                Int4Columns {
                    x,
                    weights,
                    scales,
                    columns,
                    out,
                }
                .multiply(kernel);
            }
            Matrix::Blocks(Blocks {
                format,
                bytes,
                arithmetic: BlockArithmetic::Rounded,
            }) => {
                BlockColumns {
                    x,
                    format,
                    bytes,
                    columns,
                    out,
                }
                .multiply(kernel);
            }
            Matrix::F32(_) | Matrix::F16(_) | Matrix::Bf16(_) | Matrix::Blocks(_) => {
                self.by_float_dot();
            }
        }
    }

    fn by_float_dot(&self) {
        WIDENED.with_borrow_mut(|scratch| {
            vectorize_fused(
                #[inline(always)]
                |fused| {
                    for (index, column) in self.columns.clone().enumerate() {
                        let weight = match self.weight.rows(index..index + 1, self.in_features) {
                            narrow @ (Matrix::F16(_) | Matrix::Blocks(_)) => {
                                Matrix::F32(narrow.as_f32(scratch))
                            }
                            weight => weight,
                        };
                        for (row, x) in self.x.chunks_exact(self.in_features).enumerate() {
                            // SAFETY: only this task writes this column.
                            #[allow(unsafe_code)]
                            let out = unsafe { self.out.row(row, column..column + 1) };
                            out[0] = match weight {
                                Matrix::F32(weight) => dot(x, weight, fused),
                                Matrix::Bf16(weight) => dot_bf16(x, weight, fused),
                                _ => unreachable!("widened above, or multiplied as integers"),
                            };
                        }
                    }
                },
            );
        });
    }

    fn by_product(&self) {
        let (out, columns) = (self.out, self.columns.clone());
        let Some(x) = self
            .forms
            .rounded
            .as_ref()
            .filter(|_| self.weight.rounds_activations())
        else {
            // SAFETY: only this task writes these columns.
            #[allow(unsafe_code)]
            return unsafe {
                product(
                    self.kernels.float,
                    self.x,
                    self.in_features,
                    self.weight,
                    out,
                    columns,
                    Write::Replace,
                );
            };
        };
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            x.product(self.weight, out, columns);
        }
    }

    fn add_bias(&self, bias: &[f32]) {
        let bias = &bias[self.columns.clone()];
        for row in 0..self.rows {
            // SAFETY: only this task writes these columns.
            #[allow(unsafe_code)]
            let out = unsafe { self.out.row(row, self.columns.clone()) };
            out.iter_mut()
                .zip(bias)
                .for_each(|(out, bias)| *out += bias);
        }
    }
}

#[cfg(test)]
mod tests;
