//! The backends of linear layers: a trait, and our own kernels.

use smallvec::SmallVec;
use triad_kernels::activation::Activation;
use triad_kernels::int8::{Gated, Int8Product, QuantizedRows, QuantizedView, matmul_int8_each};
use triad_kernels::{Phase, Product, matmul_each};
use triad_model::description::Linear;
use triad_model::role::Role;

use super::{LinearOutput, MAX_READERS, Shadows, StaticInput};
use crate::error::Result;
use crate::weights::{Block, Int8Matrix, Weight, WeightMatrix};

/// A backend that multiplies activations with weights, both in INT8 or in other formats: our kernels, or the programs of
/// a device.
pub trait Backend: Send {
    /// Computes the linear layers of `role` in `block`, with biases, for the activations `x`. Returns whether shadows
    /// were added as well, which is only allowed if they are inline.
    ///
    /// # Errors
    /// If the processor fails; the content of the outputs is then arbitrary.
    fn multiply(
        &mut self,
        block: usize,
        role: Role,
        x: QuantizedView,
        outs: &mut [LinearOutput],
        shadows: Shadows,
    ) -> Result<bool>;

    /// Computes the linear layers of `role` in `block`, with biases, for the float activations `x[rows, channels]`.
    ///
    /// # Errors
    /// If the processor fails; the content of the outputs is then arbitrary.
    fn multiply_floats(
        &mut self,
        block: usize,
        role: Role,
        x: FloatRows,
        outs: &mut [LinearOutput],
    ) -> Result<()>;

    /// Computes gate and up of a gated feed-forward of `block` on `x`, with their shadows, and the input of down:
    /// writes `activation(gate) · up` to `inner` in INT8 with a static scale, smoothing and shadow
    /// ([`QuantizedRows::quantize_gated`]). Returns `false`, and writes nothing, if the backend computes them
    /// separately.
    fn gated(
        &mut self,
        block: usize,
        x: QuantizedView,
        activation: Activation,
        how: StaticInput,
        inner: &mut QuantizedRows,
    ) -> bool {
        let _ = (block, x, activation, how, inner);
        false
    }

    /// Computes the whole feed-forward of `block` on `x`, from gate and up to the output of down in
    /// `out[rows, hidden]`. Writes the input of down, before smoothing, to `inner[rows, width]` if down keeps its
    /// shadow. Returns `false`, and writes nothing, if the backend computes gate, up and down separately.
    ///
    /// # Errors
    /// If the processor fails; the content of `out` and `inner` is then arbitrary.
    fn feed_forward(
        &mut self,
        block: usize,
        x: QuantizedView,
        out: &mut [f32],
        inner: &mut [f32],
    ) -> Result<bool> {
        let _ = (block, x, out, inner);
        Ok(false)
    }
}

/// Float activations of some rows.
#[derive(Clone, Copy)]
pub struct FloatRows<'a> {
    /// `[rows, channels]`.
    pub x: &'a [f32],
    /// The number of rows.
    pub rows: usize,
    /// The phase, which selects the order of sums.
    pub phase: Phase,
}

/// Our own kernels on the weights of blocks, on the installed threads.
pub struct CpuBackend<'a>(pub &'a [Block]);

impl Backend for CpuBackend<'_> {
    fn multiply(
        &mut self,
        block: usize,
        _role: Role,
        x: QuantizedView,
        outs: &mut [LinearOutput],
        shadows: Shadows,
    ) -> Result<bool> {
        let block = &self.0[block];
        let are_packed = outs
            .iter()
            .all(|out| int8(block, out.linear).float().is_none());
        let adds_shadows = shadows == Shadows::Inline && are_packed && x.outliers() > 0;
        let products = outs.iter_mut().map(
            |LinearOutput {
                 linear,
                 columns,
                 out,
             }| {
                let weight = int8(block, *linear).view().columns(columns.clone());
                let bias = block.linears[linear]
                    .bias
                    .as_deref()
                    .map(|bias| &bias[columns.clone()]);
                let product = Int8Product::new(weight, bias, out.reborrow());
                if adds_shadows {
                    product.with_shadow()
                } else {
                    product
                }
            },
        );
        let mut products: SmallVec<[_; MAX_READERS]> = products.collect();
        matmul_int8_each(x, &mut products);
        Ok(adds_shadows)
    }

    fn multiply_floats(
        &mut self,
        block: usize,
        _role: Role,
        FloatRows { x, rows, phase }: FloatRows,
        outs: &mut [LinearOutput],
    ) -> Result<()> {
        let block = &self.0[block];
        let in_features = x.len() / rows.max(1);
        let products = outs.iter_mut().map(
            |LinearOutput {
                 linear,
                 columns,
                 out,
             }| {
                let bias = block.linears[linear]
                    .bias
                    .as_deref()
                    .map(|bias| &bias[columns.clone()]);
                let weight = float(block, *linear).view();
                Product::new(
                    weight.rows(columns.clone(), in_features),
                    bias,
                    out.reborrow(),
                )
            },
        );
        let mut products: SmallVec<[_; MAX_READERS]> = products.collect();
        matmul_each(x, rows, phase, &mut products);
        Ok(())
    }

    fn gated(
        &mut self,
        block: usize,
        x: QuantizedView,
        activation: Activation,
        how: StaticInput,
        inner: &mut QuantizedRows,
    ) -> bool {
        let block = &self.0[block];
        let [gate, up] = [Linear::Gate, Linear::Up].map(|linear| int8(block, linear));
        if gate.float().is_some() || up.float().is_some() {
            return false;
        }
        let bias = |linear: Linear| block.linears[&linear].bias.as_deref();
        let gated = Gated {
            gate: gate.view(),
            gate_bias: bias(Linear::Gate),
            up: up.view(),
            up_bias: bias(Linear::Up),
            activation,
            has_shadow: x.outliers() > 0,
        };
        inner.quantize_gated(x, &gated, how);
        true
    }
}

impl<B: Backend + ?Sized> Backend for &mut B {
    fn multiply(
        &mut self,
        block: usize,
        role: Role,
        x: QuantizedView,
        outs: &mut [LinearOutput],
        shadows: Shadows,
    ) -> Result<bool> {
        (**self).multiply(block, role, x, outs, shadows)
    }

    fn multiply_floats(
        &mut self,
        block: usize,
        role: Role,
        x: FloatRows,
        outs: &mut [LinearOutput],
    ) -> Result<()> {
        (**self).multiply_floats(block, role, x, outs)
    }

    fn gated(
        &mut self,
        block: usize,
        x: QuantizedView,
        activation: Activation,
        how: StaticInput,
        inner: &mut QuantizedRows,
    ) -> bool {
        (**self).gated(block, x, activation, how, inner)
    }

    fn feed_forward(
        &mut self,
        block: usize,
        x: QuantizedView,
        out: &mut [f32],
        inner: &mut [f32],
    ) -> Result<bool> {
        (**self).feed_forward(block, x, out, inner)
    }
}

/// Returns the weight of a layer that reads floats.
pub(super) fn float(block: &Block, linear: Linear) -> &WeightMatrix {
    let layer = &block.linears[&linear];
    match (&layer.weight, &layer.decode_weight) {
        (Weight::Float(weight), _) | (Weight::Int8(_), Some(weight)) => weight,
        (Weight::Int8(_), None) => unreachable!("INT8 layers read INT8 but in decode"),
    }
}

/// Returns the weight of a layer that reads INT8.
pub(super) fn int8(block: &Block, linear: Linear) -> &Int8Matrix {
    let Weight::Int8(weight) = &block.linears[&linear].weight else {
        unreachable!("what reads INT8 has INT8 weights")
    };
    weight
}
