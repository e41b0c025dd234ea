//! The activations of encoders.

use triad_kernels::activation::{Activation, activate, activate_and_multiply};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_model::vision::VisionActivation;

/// The factor in the sigmoid of `QuickGelu`.
const QUICK_GELU: f32 = 1.702;
/// Elements of one task of an activation.
const ELEMENTS: usize = 1 << 14;

/// Returns the kernel of an activation, and the factor on its input that its output is divided by.
pub(super) fn kernel(activation: VisionActivation) -> (Activation, f32) {
    match activation {
        VisionActivation::Gelu => (Activation::Gelu, 1.0),
        VisionActivation::GeluTanh => (Activation::GeluTanh, 1.0),
        VisionActivation::Silu => (Activation::Silu, 1.0),
        // x · sigmoid(c · x) is silu(c · x) / c.
        VisionActivation::QuickGelu => (Activation::Silu, QUICK_GELU),
    }
}

/// Computes an activation on the calling thread.
pub(super) fn activate_row(x: &mut [f32], activation: VisionActivation) {
    let (kernel, factor) = kernel(activation);
    if factor != 1.0 {
        x.iter_mut().for_each(|value| *value *= factor);
    }
    activate(x, kernel);
    if factor != 1.0 {
        x.iter_mut().for_each(|value| *value /= factor);
    }
}

/// Computes an activation on the installed threads.
pub(super) fn activate_all(x: &mut [f32], activation: VisionActivation) {
    for_each_chunk(chunks_mut(x, ELEMENTS), 1, |_, x| {
        activate_row(x, activation);
    });
}

/// Computes `activation(gate) · up` in place of `gate`, on the installed threads.
pub(super) fn gate_all(gate: &mut [f32], up: &[f32], activation: VisionActivation) {
    let (kernel, factor) = kernel(activation);
    for_each_chunk(chunks_mut(gate, ELEMENTS), 1, |task, gate| {
        let up = &up[task * ELEMENTS..][..gate.len()];
        if factor == 1.0 {
            return activate_and_multiply(gate, up, kernel);
        }
        activate_row(gate, activation);
        gate.iter_mut().zip(up).for_each(|(gate, up)| *gate *= up);
    });
}
