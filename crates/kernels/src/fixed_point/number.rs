//! One number, in operations that a vector unit of integers has: `hexagon/fixed.c` has the same, in the same order.

/// 1 as a significand, or as near as there is.
const ONE: i32 = i32::MAX;

/// The largest argument of the power of two, 60 with 24 bits behind the point; and of GELU, 7.5 with 27.
pub(super) const ARGUMENT_MOST: i32 = 60 << 24;

/// 2⁻ʳ for r from 0 to 1, minimax of its relative error, 2⁻²³·⁶⁷: from the highest power on, times 2³¹.
const POWER: [i32; 6] = [
    -2_016_033,
    19_732_393,
    -118_712_300,
    515_765_849,
    -1_488_511_653,
    2_147_483_487,
];
/// 1 / (1 + e) for e from 0 to 1, minimax of its relative error, 2⁻⁹·¹⁷.
const RECIPROCAL: [i32; 4] = [-476_391_520, 1_429_174_560, -2_024_663_959, 2_143_761_839];
/// log₂ e · √(8/π), with 27 bits behind the point.
const GELU_FIRST: i32 = 308_997_154;
/// log₂ e · √(8/π) · 0.044715, with 34.
const GELU_THIRD: i32 = 1_768_551_389;

/// Of a channel.
pub(super) struct Parameters(pub [i32; super::PARTS]);

/// A number with 16 bits behind the point, in steps of INT8, at most 2²⁹.
#[derive(Clone, Copy)]
pub(super) struct Steps(pub i32);

impl Steps {
    /// The nearest integer, ties upwards, from −127 to 127.
    #[inline(always)]
    pub fn rounded(self) -> i8 {
        ((self.0 + (1 << 15)) >> 16).clamp(-127, 127) as i8
    }
}

/// With or without a gate, and with GELU or SiLU.
pub(super) struct Number<const GATED: bool, const GELU: bool>;

impl<const GATED: bool, const GELU: bool> Number<GATED, GELU> {
    /// From the sum of up and that of the layer which is activated: the same one where there is no gate.
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
        // At least 2²⁶, if it is not 0, so that two bits are enough to be beyond ±127.
        Steps(significand >> right.clamp(2, 31))
    }
}

/// a · b / 2³¹, rounded to the nearest, ties upwards; of two −2³¹ the largest number.
#[inline(always)]
pub(super) fn multiply(a: i32, b: i32) -> i32 {
    let product = (i64::from(a) * i64::from(b) + (1 << 30)) >> 31;
    product.min(i64::from(i32::MAX)) as i32
}

/// x · 2ⁿ, n from −31 to 31, towards −∞.
#[inline(always)]
fn shift_left(x: i32, n: i32) -> i32 {
    if n >= 0 {
        x.wrapping_shl(n as u32)
    } else {
        x.wrapping_shr(n.wrapping_neg() as u32)
    }
}

/// Bits before the first that is not the sign's, without the sign.
#[inline(always)]
fn spare_bits(x: i32) -> i32 {
    ((x ^ (x >> 31)).leading_zeros() as i32) - 1
}

/// Horner's rule, of significands.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: [i32; N], x: i32) -> i32 {
    let mut sum = coefficients[0];
    for coefficient in &coefficients[1..] {
        sum = multiply(sum, x).wrapping_add(*coefficient);
    }
    sum
}

/// 1 / (1 + e), e from 0 to 1: a polynomial, and from what it lacks, h = 1 − (1 + e) · y, y · (1 + h + h²).
#[inline(always)]
pub(super) fn reciprocal(e: i32) -> i32 {
    let y = polynomial(RECIPROCAL, e);
    let lacks = i32::MIN.wrapping_sub(y).wrapping_sub(multiply(e, y));
    let lacks = lacks.wrapping_add(multiply(lacks, lacks));
    y.wrapping_add(multiply(y, lacks))
}

/// log₂ e · √(8/π) · (x + 0.044715 · x³) with 24 bits behind the point, of x with 27, at most 7.5.
#[inline(always)]
fn gelu_argument(x: i32) -> i32 {
    let twice = x.wrapping_add(x);
    // With 24 bits.
    let square = multiply(twice, x);
    // With 27, so that the product with 28 has 24.
    let slope = multiply(square, GELU_THIRD).wrapping_add(GELU_FIRST);
    multiply(twice, slope)
}
