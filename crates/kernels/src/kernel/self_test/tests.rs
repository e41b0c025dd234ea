//! Tests that a kernel with one wrong output or conversion is refused, and that no kernel of this processor is.

use super::*;
use crate::isa::Isa;
use crate::kernel::{IsaKernels, isas, table};

/// A kernel that computes the same as another one, except for one number.
struct Wrong<K>(K, Place);

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Product,
    Quantize,
    Shadow,
    Int4,
    Blocks,
    Transpose,
    Round,
    Interleave,
    Power,
}

/// Changes the last output of these columns.
fn plant(out: SharedOutput, columns: &Range<usize>) {
    // SAFETY: no other slice of it exists.
    #[allow(unsafe_code)]
    let row = unsafe { out.row(out.rows() - 1, columns.clone()) };
    *row.last_mut().unwrap() += 50.0;
}

impl Int8Kernel for Wrong<&'static dyn Int8Kernel> {
    fn name(&self) -> &'static str {
        "avx2-wrong"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        self.0.multiply(rectangle);
        // Simulates an instruction that is wrong in large tiles only.
        if self.1 == Place::Product && rectangle.rows.len() > 16 {
            plant(rectangle.out, &rectangle.columns);
        }
    }

    fn quantize(&self, row: &ActivationRow, numbers: &mut [u8], outliers: &mut Outliers) {
        self.0.quantize(row, numbers, outliers);
        if self.1 == Place::Quantize {
            *numbers.last_mut().unwrap() ^= 1;
        }
    }

    fn shadow(&self, columns: &ShadowColumns) {
        self.0.shadow(columns);
        if self.1 == Place::Shadow {
            plant(columns.out, &columns.columns);
        }
    }
}

impl Int16Kernel for Wrong<&'static dyn Int16Kernel> {
    fn name(&self) -> &'static str {
        "avx2-wrong"
    }

    fn multiply_int8(&self, columns: &Int8Columns) {
        self.0.multiply_int8(columns);
        if self.1 == Place::Product {
            plant(columns.out, &columns.columns);
        }
    }

    fn multiply_int4(&self, columns: &Int4Columns) {
        self.0.multiply_int4(columns);
        if self.1 == Place::Int4 {
            plant(columns.out, &columns.columns);
        }
    }

    fn multiply_blocks(&self, columns: &BlockColumns) {
        self.0.multiply_blocks(columns);
        if self.1 == Place::Blocks && columns.format == BlockFormat::Q6_K {
            plant(columns.out, &columns.columns);
        }
    }
}

impl<K: PanelKernel + ?Sized> PanelKernel for Wrong<&'static K> {
    fn name(&self) -> &'static str {
        "avx2-wrong"
    }

    fn multiply(&self, panel: &Panel) {
        self.0.multiply(panel);
        if self.1 == Place::Product && panel.add {
            plant(panel.out, &panel.columns);
        }
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        self.0.transpose(from, from_stride, to, to_stride);
        if self.1 == Place::Transpose {
            to[1] ^= 1;
        }
    }
}

impl PairKernel for Wrong<&'static dyn PairKernel> {
    fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        before: f32,
        units: ValueUnits,
        words: &mut [u32],
    ) -> (Powers, f32) {
        let (powers, unit) = self
            .0
            .exp2_and_sum(exponents, visible, before, units, words);
        if self.1 == Place::Power {
            *words.last_mut().unwrap() ^= 1 << 8;
        }
        (powers, unit)
    }
}

impl Bf16Kernel for Wrong<&'static dyn Bf16Kernel> {
    fn to_bf16(&self, row: &[f32], words: &mut [u32]) {
        self.0.to_bf16(row, words);
        if self.1 == Place::Round {
            *words.last_mut().unwrap() ^= 1;
        }
    }

    fn interleave(&self, even: &[f32], odd: &[f32], words: &mut [u32]) {
        self.0.interleave(even, odd, words);
        if self.1 == Place::Interleave {
            *words.last_mut().unwrap() ^= 1 << 16;
        }
    }

    fn exp2_and_sum(
        &self,
        exponents: &mut [f32],
        visible: Range<usize>,
        before: f32,
        words: &mut [u32],
    ) -> Powers {
        let powers = self.0.exp2_and_sum(exponents, visible, before, words);
        Powers {
            sum: if self.1 == Place::Power {
                powers.sum * 1.001
            } else {
                powers.sum
            },
            ..powers
        }
    }
}

#[test]
fn every_kernel_of_this_processor_is_right() {
    let (rows, refused) = table(isas());
    assert_eq!(refused, []);
    assert_eq!(
        rows.iter().map(|row| row.isa).collect::<Vec<_>>(),
        isas().iter().map(|(isa, _)| *isa).collect::<Vec<_>>()
    );
}

#[test]
fn one_wrong_number_of_a_kernel_is_found() {
    let best = crate::kernel::best();
    let refused = |result: Outcome, what: &str| {
        let reason = result.expect_err(what);
        assert!(reason.contains(what), "{reason} is not about {what}");
    };
    refused(
        int8(&Wrong(best.int8, Place::Product)),
        "a product of 37 rows in INT8",
    );
    refused(
        int8(&Wrong(best.int8, Place::Quantize)),
        "activations in INT8",
    );
    refused(int8(&Wrong(best.int8, Place::Shadow)), "a shadow");
    refused(
        int16(&Wrong(best.int16, Place::Product)),
        "a product of 1 rows with weights in INT8",
    );
    refused(int16(&Wrong(best.int16, Place::Int4)), "weights in INT4");
    refused(int16(&Wrong(best.int16, Place::Blocks)), "weights in Q6_K");
    refused(
        float(&Wrong(best.float, Place::Product)),
        "a product of 1 rows",
    );
    refused(float(&Wrong(best.float, Place::Transpose)), "transposed");
    if let Some(kernel) = best.pairs {
        refused(pairs(&Wrong(kernel, Place::Product)), "a product of 1 rows");
        refused(pairs(&Wrong(kernel, Place::Transpose)), "transposed");
        refused(pairs(&Wrong(kernel, Place::Power)), "powers of two");
    }
    if let Some(kernel) = best.bf16 {
        refused(bf16(&Wrong(kernel, Place::Product)), "a product of 1 rows");
        refused(bf16(&Wrong(kernel, Place::Round)), "rounded to bf16");
        refused(bf16(&Wrong(kernel, Place::Interleave)), "pairs of numbers");
        refused(bf16(&Wrong(kernel, Place::Power)), "powers of two");
    }
}

#[test]
fn a_kernel_that_is_wrong_is_named_and_the_next_isa_takes_its_place() {
    let best = crate::kernel::best();
    let wrong: &'static dyn Int8Kernel = Box::leak(Box::new(Wrong(best.int8, Place::Product)));
    let plain = isas().pop().expect("plain Rust");
    let (rows, refused) = table(vec![
        (
            Isa::Avx2,
            IsaKernels {
                int8: Some(wrong),
                float: Some(best.float),
                ..IsaKernels::default()
            },
        ),
        plain,
    ]);
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (rows[0].int8.name(), rows[0].float.name()),
        ("reference", best.float.name())
    );
    let [refused] = &refused[..] else {
        panic!("{refused:?}")
    };
    assert_eq!(refused.kernel, "avx2-wrong");
    assert!(
        refused
            .reason
            .starts_with("a product of 37 rows in INT8 has "),
        "{}",
        refused.reason
    );
}
