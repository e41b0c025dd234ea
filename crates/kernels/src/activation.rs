//! Elementwise operators: activations, soft cap and addition, with the exponentials that they use.

use crate::vectorize::{Fused, vectorize, vectorize_fused};

/// The feed-forward's nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU with the error function.
    Gelu,
    /// `max(x, 0)²`.
    ReluSquared,
}

/// Computes `x = activation(x)`.
pub fn activate(x: &mut [f32], activation: Activation) {
    vectorize_fused(
        #[inline(always)]
        |fused| match activation {
            Activation::Silu => each(x, |x| silu(x, fused)),
            Activation::GeluTanh => each(x, |x| gelu_tanh(x, fused)),
            Activation::Gelu => each(x, gelu),
            Activation::ReluSquared => each(x, relu_squared),
        },
    );
}

/// Computes `gate = activation(gate) · up`.
///
/// # Panics
/// If the lengths differ.
pub fn activate_and_multiply(gate: &mut [f32], up: &[f32], activation: Activation) {
    assert_eq!(gate.len(), up.len(), "gate and up have one shape");
    vectorize_fused(
        #[inline(always)]
        |fused| match activation {
            Activation::Silu => each_product(gate, up, |x| silu(x, fused)),
            Activation::GeluTanh => each_product(gate, up, |x| gelu_tanh(x, fused)),
            Activation::Gelu => each_product(gate, up, gelu),
            Activation::ReluSquared => each_product(gate, up, relu_squared),
        },
    );
}

/// Computes `out = activation(gate) · up`, with the same bits as [`activate_and_multiply`].
///
/// # Panics
/// If the lengths differ.
pub fn activated_product(gate: &[f32], up: &[f32], activation: Activation, out: &mut [f32]) {
    assert!(
        gate.len() == up.len() && gate.len() == out.len(),
        "gate, up and their product have one shape"
    );
    vectorize_fused(
        #[inline(always)]
        |fused| match activation {
            Activation::Silu => product(gate, up, out, |x| silu(x, fused)),
            Activation::GeluTanh => product(gate, up, out, |x| gelu_tanh(x, fused)),
            Activation::Gelu => product(gate, up, out, gelu),
            Activation::ReluSquared => product(gate, up, out, relu_squared),
        },
    );
}

/// Returns whether activations on this processor round a product and a sum once (fused), rather than twice. Another
/// processor needs this to compute the same bits.
pub fn rounds_once() -> bool {
    vectorize_fused(Fused::rounds_once)
}

#[inline(always)]
fn each(x: &mut [f32], of: impl Fn(f32) -> f32) {
    for x in x {
        *x = of(*x);
    }
}

#[inline(always)]
fn each_product(gate: &mut [f32], up: &[f32], of: impl Fn(f32) -> f32) {
    for (x, up) in gate.iter_mut().zip(up) {
        *x = of(*x) * up;
    }
}

#[inline(always)]
fn product(gate: &[f32], up: &[f32], out: &mut [f32], of: impl Fn(f32) -> f32) {
    for ((x, up), out) in gate.iter().zip(up).zip(out) {
        *out = of(*x) * up;
    }
}

/// Computes `x = cap · tanh(x / cap)`.
pub fn soft_cap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * (*x / cap).tanh();
    }
}

/// Computes `x += y`.
///
/// # Panics
/// If the lengths differ.
pub fn add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "summands have one shape");
    vectorize(
        #[inline(always)]
        || x.iter_mut().zip(y).for_each(|(x, y)| *x += y),
    );
}

#[inline(always)]
pub(crate) fn silu(x: f32, fused: Fused) -> f32 {
    x / (1.0 + exp(-x, fused))
}

/// Computes ½ · x · (1 + tanh(u)) with u = √(2/π) · (x + 0.044715 · x³), which is x · sigmoid(2u).
#[inline(always)]
fn gelu_tanh(x: f32, fused: Fused) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let u = SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x);
    x / (1.0 + exp(-2.0 * u, fused))
}

#[inline(always)]
fn relu_squared(x: f32) -> f32 {
    // `f32::max` would turn a NaN into a number.
    let x = if x < 0.0 { 0.0 } else { x };
    x * x
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Computes eˣ to within a few units in the last place, without branches, so that the compiler can vectorize it: x = n
/// · ln 2 + r with |r| ≤ ½ ln 2, and eˣ = 2ⁿ · eʳ. Returns zero below the smallest normal number; saturates at the
/// largest finite one.
#[inline(always)]
pub(crate) fn exp(x: f32, fused: Fused) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const SMALLEST: f32 = -87.336_54;
    const LARGEST: f32 = 88.376_26;
    let bounded = x.clamp(SMALLEST, LARGEST);
    let shifted = fused.multiply_add(bounded, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fused.multiply_add(n, -LN_2_LOW, fused.multiply_add(n, -LN_2_HIGH, bounded));
    if x < SMALLEST {
        0.0
    } else {
        exp_of_rest(r, fused) * power_of_two(shifted)
    }
}

/// Computes 2ˣ in the same way as [`exp`]. Returns zero below the smallest normal number; x is at most 127.
#[inline(always)]
pub(crate) fn exp2(x: f32, fused: Fused) -> f32 {
    const SMALLEST: f32 = -126.0;
    let bounded = if x < SMALLEST { SMALLEST } else { x };
    let shifted = bounded + ROUND;
    let r = (bounded - (shifted - ROUND)) * std::f32::consts::LN_2;
    if x < SMALLEST {
        0.0
    } else {
        exp_of_rest(r, fused) * power_of_two(shifted)
    }
}

/// Adding 1.5 · 2²³ to a number leaves its rounded integer in the lowest bits.
const ROUND: f32 = 12_582_912.0;

/// Computes eʳ for |r| ≤ ½ ln 2 by its Taylor polynomial.
#[inline(always)]
fn exp_of_rest(r: f32, fused: Fused) -> f32 {
    let mut series = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = fused.multiply_add(series, r, coefficient);
    }
    series
}

/// Computes 2ⁿ from n + [`ROUND`].
#[inline(always)]
fn power_of_two(shifted: f32) -> f32 {
    f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exp(x: f32) -> f32 {
        vectorize_fused(|fused| super::exp(x, fused))
    }

    fn exp2(x: f32) -> f32 {
        vectorize_fused(|fused| super::exp2(x, fused))
    }

    proptest! {
        #[test]
        fn exp_is_the_exponential(x in -87f32..88.0) {
            let exact = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) - exact).abs() <= 3e-7 * exact, "exp({}) = {} not {}", x, exp(x), exact);
        }

        #[test]
        fn exp2_is_the_power_of_two(x in -126f32..0.0) {
            let exact = f64::from(x).exp2();
            prop_assert!((f64::from(exp2(x)) - exact).abs() <= 3e-7 * exact, "exp2({}) = {} not {}", x, exp2(x), exact);
        }

        #[test]
        fn a_product_that_is_written_apart_has_the_bits_of_one_in_place(
            pairs in prop::collection::vec((-9f32..9.0, -9f32..9.0), 0..99),
        ) {
            let (gate, up): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            for activation in [
                Activation::Silu,
                Activation::GeluTanh,
                Activation::Gelu,
                Activation::ReluSquared,
            ] {
                let (mut in_place, mut out) = (gate.clone(), vec![0.0; gate.len()]);
                activate_and_multiply(&mut in_place, &up, activation);
                activated_product(&gate, &up, activation, &mut out);
                prop_assert_eq!(&out, &in_place);
            }
        }

        #[test]
        fn activations_are_their_definitions(x in -30f32..30.0) {
            let x64 = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x64 + 0.044_715 * x64.powi(3));
            let expected = [
                (Activation::Silu, x64 / (1.0 + (-x64).exp())),
                (Activation::GeluTanh, 0.5 * x64 * (1.0 + u.tanh())),
                (Activation::ReluSquared, x64.max(0.0).powi(2)),
                (Activation::Gelu, 0.5 * x64 * (1.0 + libm::erf(x64 / std::f64::consts::SQRT_2))),
            ];
            for (activation, expected) in expected {
                let mut value = [x];
                activate(&mut value, activation);
                prop_assert!((f64::from(value[0]) - expected).abs() <= 1e-6 * (1.0 + expected.abs()));
            }
        }
    }

    #[test]
    fn exp_is_sane_at_the_ends() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(1000.0).is_finite() && exp(1000.0) > 2e38);
        assert!(exp(f32::NAN).is_nan());
    }
}
