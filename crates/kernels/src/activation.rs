//! Elementwise operators: activations, soft cap, addition; and the exponential beneath them.

use crate::vectorize::vectorize;

/// The feed-forward's nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU with the error function.
    Gelu,
}

/// `x = activation(x)`.
pub fn activate(x: &mut [f32], activation: Activation) {
    vectorize(
        #[inline(always)]
        || match activation {
            Activation::Silu => x.iter_mut().for_each(|x| *x = silu(*x)),
            Activation::GeluTanh => x.iter_mut().for_each(|x| *x = gelu_tanh(*x)),
            Activation::Gelu => x.iter_mut().for_each(|x| *x = gelu(*x)),
        },
    );
}

/// `gate = activation(gate) · up`.
pub fn activate_and_multiply(gate: &mut [f32], up: &[f32], activation: Activation) {
    assert_eq!(gate.len(), up.len(), "gate and up have one shape");
    activate(gate, activation);
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate *= up;
    }
}

/// `x = cap · tanh(x / cap)`.
pub fn soft_cap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * (*x / cap).tanh();
    }
}

/// `x += y`.
pub fn add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "summands have one shape");
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// ½ · x · (1 + tanh(u)) with u = √(2/π) · (x + 0.044715 · x³), which is x · sigmoid(2u).
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let u = SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x);
    x / (1.0 + exp(-2.0 * u))
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// eˣ to within two units in the last place, without branches, so that the compiler can vectorize it:
/// x = n · ln 2 + r with |r| ≤ ½ ln 2, and eˣ = 2ⁿ · eʳ with eʳ from its Taylor polynomial.
/// Zero below the smallest normal number; saturates at the largest finite one.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding and subtracting 1.5 · 2²³ rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const SMALLEST: f32 = -87.336_54;
    const LARGEST: f32 = 88.376_26;
    let bounded = x.clamp(SMALLEST, LARGEST);
    let n = (bounded * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (bounded - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + coefficient;
    }
    let power = f32::from_bits(((n as i32 + 127) << 23) as u32);
    if x < SMALLEST { 0.0 } else { series * power }
}

/// 2ˣ, as [`exp`] is eˣ; zero below the smallest normal number, for x up to 127.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const SMALLEST: f32 = -126.0;
    let bounded = if x < SMALLEST { SMALLEST } else { x };
    let n = (bounded + ROUND) - ROUND;
    let r = (bounded - n) * std::f32::consts::LN_2;
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + coefficient;
    }
    let power = f32::from_bits(((n as i32 + 127) << 23) as u32);
    if x < SMALLEST { 0.0 } else { series * power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        fn activations_are_their_definitions(x in -30f32..30.0) {
            let x64 = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x64 + 0.044_715 * x64.powi(3));
            let expected = [
                (Activation::Silu, x64 / (1.0 + (-x64).exp())),
                (Activation::GeluTanh, 0.5 * x64 * (1.0 + u.tanh())),
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
