//! The computation of one number, in operations that an integer vector unit has: `hexagon/fixed.c` has the same ones,
//! in the same order.

/// Parameters per channel.
pub(super) const PARTS: usize = 9;

/// 1 as a significand, or the nearest there is.
const ONE: i32 = i32::MAX;

/// The largest argument of the power of two, 60 with 24 fractional bits, and of GELU, 7.5 with 27.
pub(super) const ARGUMENT_MOST: i32 = 60 << 24;

/// Coefficients of 2⁻ʳ for r from 0 to 1, minimax for a relative error of 2⁻²³·⁶⁷, highest power first, times 2³¹.
const POWER: [i32; 6] = [
    -2_016_033,
    19_732_393,
    -118_712_300,
    515_765_849,
    -1_488_511_653,
    2_147_483_487,
];
/// Coefficients of 1 / (1 + e) for e from 0 to 1, minimax for a relative error of 2⁻⁹·¹⁷.
const RECIPROCAL: [i32; 4] = [-476_391_520, 1_429_174_560, -2_024_663_959, 2_143_761_839];
/// log₂ e · √(8/π), with 27 fractional bits.
const GELU_FIRST: i32 = 308_997_154;
/// log₂ e · √(8/π) · 0.044715, with 34 fractional bits.
const GELU_THIRD: i32 = 1_768_551_389;

/// The parameters of a channel.
pub(super) struct Parameters(pub [i32; PARTS]);

/// A number with 16 fractional bits, in steps of INT8, at most 2²⁹.
#[derive(Clone, Copy)]
pub(super) struct Steps(pub i32);

impl Steps {
    /// Rounds to the nearest integer, ties upwards, from −127 to 127.
    #[inline(always)]
    pub fn rounded(self) -> i8 {
        ((self.0 + (1 << 15)) >> 16).clamp(-127, 127) as i8
    }
}

/// The computation with or without a gate, and with GELU or SiLU.
pub(super) struct Number<const GATED: bool, const GELU: bool>;

impl<const GATED: bool, const GELU: bool> Number<GATED, GELU> {
    /// Computes the number from the sum of up and the sum of the activated layer, which is the same if there is no
    /// gate.
    #[inline(always)]
    pub fn steps(parameters: &Parameters, up: i32, activated: i32) -> Steps {
        let [
            shift,
            bias,
            limit,
            limit_shift,
            argument,
            up_shift,
            up_bias,
            factor,
            exponent,
        ] = parameters.0;
        let x = shift_left(activated, shift).wrapping_add(bias);
        let magnitude = x
            .saturating_abs()
            .min(limit)
            .wrapping_shl(limit_shift as u32);
        let of_power = multiply(magnitude, argument);
        let of_power = if GELU {
            gelu_argument(of_power)
        } else {
            of_power
        };
        // e^−|t| = 2⁻ⁿ · 2⁻ʳ
        let (whole, rest) = (of_power >> 24, (of_power & 0xff_ffff) << 7);
        let power = polynomial(POWER, rest);
        let inverse = reciprocal(power >> whole.min(31));
        let is_below = x < 0;
        let (power, whole) = if is_below { (power, whole) } else { (ONE, 0) };
        let x_bits = spare_bits(x);
        let mut significand = x.wrapping_shl(x_bits as u32);
        let mut right = whole.wrapping_add(exponent).wrapping_add(x_bits);
        if GATED {
            let up = shift_left(up, up_shift).wrapping_add(up_bias);
            let up_bits = spare_bits(up);
            significand = multiply(significand, up.wrapping_shl(up_bits as u32));
            right = right.wrapping_add(up_bits);
        }
        significand = multiply(significand, inverse);
        significand = multiply(significand, power);
        significand = multiply(significand, factor);
        // A significand that is not 0 is at least 2²⁶, so two bits are enough to exceed ±127.
        Steps(significand >> right.clamp(2, 31))
    }
}

/// Computes a · b / 2³¹, rounded to nearest, ties upwards; returns the largest number if both are −2³¹.
#[inline(always)]
pub(super) fn multiply(a: i32, b: i32) -> i32 {
    let product = (i64::from(a) * i64::from(b) + (1 << 30)) >> 31;
    product.min(i64::from(i32::MAX)) as i32
}

/// Computes x · 2ⁿ for n from −31 to 31, rounded towards −∞.
#[inline(always)]
fn shift_left(x: i32, n: i32) -> i32 {
    if n >= 0 {
        x.wrapping_shl(n as u32)
    } else {
        x.wrapping_shr(n.wrapping_neg() as u32)
    }
}

/// Returns the number of leading bits equal to the sign bit, not counting the sign bit itself.
#[inline(always)]
fn spare_bits(x: i32) -> i32 {
    ((x ^ (x >> 31)).leading_zeros() as i32) - 1
}

/// Evaluates a polynomial of significands by Horner's rule.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: [i32; N], x: i32) -> i32 {
    let mut sum = coefficients[0];
    for coefficient in &coefficients[1..] {
        sum = multiply(sum, x).wrapping_add(*coefficient);
    }
    sum
}

/// Computes 1 / (1 + e) for e from 0 to 1: y by a polynomial, then, with the residual h = 1 − (1 + e) · y, y · (1 + h +
/// h²).
#[inline(always)]
pub(super) fn reciprocal(e: i32) -> i32 {
    let y = polynomial(RECIPROCAL, e);
    let lacks = i32::MIN.wrapping_sub(y).wrapping_sub(multiply(e, y));
    let lacks = lacks.wrapping_add(multiply(lacks, lacks));
    y.wrapping_add(multiply(y, lacks))
}

/// Computes log₂ e · √(8/π) · (x + 0.044715 · x³) with 24 fractional bits from x with 27, at most 7.5.
#[inline(always)]
fn gelu_argument(x: i32) -> i32 {
    let twice = x.wrapping_add(x);
    // With 24 fractional bits.
    let square = multiply(twice, x);
    // With 27 fractional bits, so that the product with 28 has 24.
    let slope = multiply(square, GELU_THIRD).wrapping_add(GELU_FIRST);
    multiply(twice, slope)
}
