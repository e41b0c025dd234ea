//! The first half of a gated feed-forward: gate and up, the activation, and the quantized input of down, one panel of
//! features at a time. The f32 products stay in a core's caches; only the INT8 numbers are written to memory.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::PoisonError;

use super::super::matmul::for_each_rectangle;
use super::{Outliers, PART_ROWS, QuantizedRows, StaticRow};
use crate::activation::{Activation, activate_and_multiply};
use crate::aligned_buf::AlignedBuf;
use crate::chunks::chunks_mut;
use crate::kernel::best;
use crate::kernel::int8::Rectangle;
use crate::kernel::int8::rows::QuantizedView;
use crate::kernel::int8::shadow::ShadowColumns;
use crate::kernel::int8::weight::Int8Weight;
use crate::output::SharedOutput;

/// Gate and up of a feed-forward.
#[derive(Clone, Copy, Debug)]
pub struct Gated<'a> {
    /// `[width, in_features]`.
    pub gate: Int8Weight<'a>,
    /// Bias of gate, `[width]`.
    pub gate_bias: Option<&'a [f32]>,
    /// `[width, in_features]`.
    pub up: Int8Weight<'a>,
    /// Bias of up, `[width]`.
    pub up_bias: Option<&'a [f32]>,
    /// The activation of gate's outputs, which are then multiplied by up's.
    pub activation: Activation,
    /// Whether both products include the contribution of the input's outliers.
    pub has_shadow: bool,
}

/// An outlier that a task found.
#[derive(Debug)]
pub(super) struct Outlier {
    row: usize,
    channel: usize,
    number: f32,
}

/// Buffers of a task.
#[derive(Default)]
struct Scratch {
    /// Products of gate and of up, `[rows, columns]`.
    products: [AlignedBuf<f32>; 2],
    outliers: Outliers,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Gated<'_> {
    fn check(&self, x: QuantizedView) {
        let width = self.gate.out_features;
        for (weight, bias) in [(self.gate, self.gate_bias), (self.up, self.up_bias)] {
            weight.check();
            assert_eq!(
                x.in_features(),
                weight.in_features,
                "expected as many features per activation row as the weight has"
            );
            assert_eq!(
                weight.out_features, width,
                "expected as many features of up as of gate"
            );
            assert!(
                bias.is_none_or(|bias| bias.len() == width),
                "bias is [{width}]"
            );
        }
    }

    /// Computes some columns of both products, for all rows of `x`.
    fn multiply(
        &self,
        x: QuantizedView,
        columns: &Range<usize>,
        products: &mut [AlignedBuf<f32>; 2],
    ) {
        let (kernel, width) = (best().int8, columns.len());
        let layers = [(self.gate, self.gate_bias), (self.up, self.up_bias)];
        for ((weight, bias), out) in layers.into_iter().zip(products) {
            let (weight, bias) = (
                weight.columns(columns.clone()),
                bias.map(|bias| &bias[columns.clone()]),
            );
            out.resize(x.rows() * width);
            let out = SharedOutput::new(&mut out[..], width);
            kernel.multiply(&Rectangle {
                x,
                rows: 0..x.rows(),
                weight,
                columns: 0..width,
                bias,
                out,
            });
            if self.has_shadow {
                kernel.shadow(&ShadowColumns {
                    x,
                    rows: 0..x.rows(),
                    weight,
                    columns: 0..width,
                    out,
                    add: true,
                });
            }
        }
    }
}

impl QuantizedRows {
    /// Quantizes `activation(gate) · up`, both `[rows, width]` products of `x`, as [`QuantizedRows::quantize_static`]
    /// does. The bits are those of the separate operators in sequence.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes, or as [`QuantizedRows::quantize_static`].
    pub fn quantize_gated(
        &mut self,
        x: QuantizedView,
        gated: &Gated,
        (scale, smoothing, shadow): (f32, Option<&[f32]>, bool),
    ) {
        gated.check(x);
        let (rows, width) = (x.rows(), gated.gate.out_features);
        let row = StaticRow::new(width, scale, smoothing, shadow);
        self.outlier_columns.channels.clear();
        let stride = self.resize(rows, width);
        let mut found = std::mem::take(&mut self.found);
        found.iter_mut().for_each(|found| {
            found
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        });
        found.resize_with(found.len().max(rows.div_ceil(PART_ROWS)), Default::default);
        let values = SharedOutput::new(&mut self.values, stride);
        for_each_rectangle(x, &[width], |_, rows, columns| {
            SCRATCH.with_borrow_mut(|Scratch { products, outliers }| {
                gated.multiply(x.rows_view(rows.clone()), &columns, products);
                let [gate, up] = products;
                activate_and_multiply(gate, up, gated.activation);
                for (index, x) in rows.zip(gate.chunks_exact(columns.len())) {
                    // SAFETY: only this task writes these columns of its rows.
                    #[allow(unsafe_code)]
                    let values = unsafe { values.row(index, columns.clone()) };
                    outliers.truncate(0);
                    row.quantize_columns(x, columns.clone(), values, outliers);
                    if !outliers.channels.is_empty() {
                        let new = outliers.channels.iter().zip(&outliers.numbers).map(
                            |(channel, number)| {
                                let channel = columns.start + *channel as usize;
                                Outlier {
                                    row: index,
                                    channel,
                                    number: *number,
                                }
                            },
                        );
                        found[index / PART_ROWS]
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .extend(new);
                    }
                }
            });
        });
        self.each(
            rows,
            width,
            chunks_mut(&mut found, 1),
            |found, index, values, part| {
                let found = found[0].get_mut().unwrap_or_else(PoisonError::into_inner);
                if index.is_multiple_of(PART_ROWS) {
                    found.sort_unstable_by_key(|one| one.channel);
                }
                let first = part.outliers.channels.len();
                let of_row = found.iter().filter(|one| one.row == index);
                of_row.for_each(|one| part.outliers.push(one.channel, one.number));
                row.end(first, values, &mut part.outliers)
            },
        );
        self.found = found;
    }
}
