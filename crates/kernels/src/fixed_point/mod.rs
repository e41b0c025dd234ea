//! The middle of a feed-forward in integers: from the sums of gate and up to the INT8 numbers that down reads. Devices
//! without floating point follow this definition bit for bit; it is the same on every machine.
//!
//! [`FixedPoint`] is prepared once from the scales of a feed-forward, in f64; after that it reads and writes integers
//! only. From the sums of gate and up, both in i32, it computes for each channel the number, in steps of the scale of
//! down's input,
//!
//! ```text
//! y = activation(g) · u · smoothing / inner_scale      g = input_scale · scale · sum + bias, u as g
//! ```
//!
//! **Method.** Sums are shifted left as far as they fit, and biases are added in that unit, so that only the bias is
//! rounded. The activation is g · sigmoid(t), where t is g for SiLU and √(8/π) · (g + 0.044715 · g³) for GELU in its
//! tanh form. sigmoid(t) is 1 or e⁻ᵗ over 1 + e⁻ᵗ for |t|: a power of two by a polynomial, and a reciprocal by a
//! polynomial and one step of Halley's method. All factors of y are multiplied as significands of 31 bits
//! ([`multiply`](number::multiply)), and their exponents added. One shift leaves 16 fractional bits (lower bits are
//! dropped). The result is rounded to the nearest integer, ties upwards, and clamped to ±127.
//!
//! **Error.** Before rounding, the number differs from y by at most [`RELATIVE_ERROR`] · |y| + [`DROPPED`] steps. This
//! is at most 2⁻¹³ of a step where the number isn't clamped, which is less than 2⁻²⁰ of the range of INT8. So the INT8
//! number differs from the rounded y only where y is within 2⁻¹³ steps of a tie, and then by 1. There are two further
//! errors. A bias is rounded to 2⁻³⁰ of the largest possible sum. SiLU below −41 and GELU below −7.5 are computed as
//! about g · 2⁻⁶⁰, which is 0 unless g · u is 2⁴⁵ times the range of INT8.

mod number;
#[cfg(test)]
mod tests;

use crate::activation::Activation;
use crate::vectorize::vectorize;
use number::{ARGUMENT_MOST, Number, PARTS, Parameters};

/// Lanes of a vector unit of 1,024 bits: the parameters of this many channels are stored together.
const LANES: usize = 32;
/// Bits of a significand.
const BITS: i32 = 31;
/// Fractional bits of the argument of the power of two, and of GELU's input.
const ARGUMENT_BITS: [i32; 2] = [24, 27];

/// Maximum relative error of a number before it is rounded.
pub const RELATIVE_ERROR: f64 = 1.0 / (1 << 21) as f64;
/// Maximum additional error, in steps: fractional bits after the 16th are dropped.
pub const DROPPED: f64 = 1.0 / (1 << 16) as f64;

/// The middle of a feed-forward: the input of [`FixedPoint::new`].
#[derive(Clone, Copy, Debug)]
pub struct Middle<'a> {
    /// Scale of the input of gate and up.
    pub input_scale: f32,
    /// The layer whose output is multiplied by the activation, or is activated if there is no gate.
    pub up: Scales<'a>,
    /// The layer whose output is activated.
    pub gate: Option<Scales<'a>>,
    /// The activation function.
    pub activation: Activation,
    /// Factors `[width]` on the input of down.
    pub smoothing: Option<&'a [f32]>,
    /// Static scale of the input of down.
    pub inner_scale: f32,
}

/// The numbers that convert an INT8 layer's sums to its outputs.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    /// Products per sum.
    pub in_features: usize,
    /// Scale of each output channel.
    pub scales: &'a [f32],
    /// Bias `[out_features]`, if the layer has one.
    pub bias: Option<&'a [f32]>,
}

/// The reason why a feed-forward has no middle in fixed point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// GELU with the error function.
    Activation,
    /// A scale that is not positive and finite, or a bias or factor that is not finite.
    Numbers,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Activation => "GELU with the error function is computed only in float",
            Self::Numbers => "a scale is not positive and finite, or a bias or a factor of smoothing is not finite",
        })
    }
}

impl std::error::Error for Unfit {}

/// The prepared middle of a feed-forward in fixed point.
#[derive(Clone, Debug)]
pub struct FixedPoint {
    width: usize,
    is_gated: bool,
    is_gelu: bool,
    /// `[width / LANES][PARTS][LANES]`. Parameters after the last channel are zeros, which produce zeros.
    parameters: Vec<i32>,
}

impl FixedPoint {
    /// Prepares the parameters of each channel.
    ///
    /// # Errors
    /// If fixed point has no such activation, or a number is not finite.
    ///
    /// # Panics
    /// If the slices' lengths differ.
    pub fn new(middle: &Middle) -> Result<Self, Unfit> {
        let is_gelu = match middle.activation {
            Activation::Silu => false,
            Activation::GeluTanh => true,
            Activation::Gelu | Activation::ReluSquared => return Err(Unfit::Activation),
        };
        let width = middle.up.scales.len();
        let layers = [Some(middle.up), middle.gate];
        for Scales { scales, bias, .. } in layers.into_iter().flatten() {
            assert_eq!(scales.len(), width, "expected gate and up of equal width");
            assert!(
                bias.is_none_or(|bias| bias.len() == width),
                "bias is [{width}]"
            );
        }
        assert!(
            middle
                .smoothing
                .is_none_or(|smoothing| smoothing.len() == width),
            "smoothing is [{width}]"
        );
        let is_gated = middle.gate.is_some();
        let mut parameters = vec![0; width.div_ceil(LANES) * PARTS * LANES];
        for channel in 0..width {
            let of_channel = of_channel(middle, is_gelu, channel).ok_or(Unfit::Numbers)?;
            let first = channel / LANES * PARTS * LANES + channel % LANES;
            let places = parameters[first..].iter_mut().step_by(LANES);
            places
                .zip(of_channel)
                .for_each(|(place, parameter)| *place = parameter);
        }
        Ok(Self {
            width,
            is_gated,
            is_gelu,
            parameters,
        })
    }

    /// Returns the number of channels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns whether there is a gate.
    pub fn is_gated(&self) -> bool {
        self.is_gated
    }

    /// Returns the parameters that a device needs for each channel, `[width / 32][9][32]`: see `hexagon/fixed.c`.
    pub fn parameters(&self) -> &[i32] {
        &self.parameters
    }

    /// Computes the INT8 numbers of one row, `out[width]`, from the sums `up[width]` and, for a gated feed-forward,
    /// `gate[width]`. Stores their bits XOR `zero`.
    ///
    /// # Panics
    /// If a slice's length contradicts the shape.
    pub fn requantize(&self, up: &[i32], gate: &[i32], zero: u8, out: &mut [u8]) {
        assert_eq!(
            [up.len(), out.len()],
            [self.width; 2],
            "a row of {} channels",
            self.width
        );
        let activated = if self.is_gated { gate } else { up };
        assert_eq!(
            activated.len(),
            self.width,
            "a row of {} channels",
            self.width
        );
        let (kind, sums) = ((self.is_gated, self.is_gelu), (up, activated));
        vectorize(
            #[inline(always)]
            || match kind {
                (true, false) => each::<true, false>(&self.parameters, sums, zero, out),
                (true, true) => each::<true, true>(&self.parameters, sums, zero, out),
                (false, false) => each::<false, false>(&self.parameters, sums, zero, out),
                (false, true) => each::<false, true>(&self.parameters, sums, zero, out),
            },
        );
    }
}

/// Computes all channels of a row by one of the four variants.
#[inline(always)]
fn each<const GATED: bool, const GELU: bool>(
    parameters: &[i32],
    (up, activated): (&[i32], &[i32]),
    zero: u8,
    out: &mut [u8],
) {
    let sums = up.chunks(LANES).zip(activated.chunks(LANES));
    let blocks = parameters
        .as_chunks::<LANES>()
        .0
        .chunks_exact(PARTS)
        .zip(sums.zip(out.chunks_mut(LANES)));
    for (parameters, ((up, activated), out)) in blocks {
        let parameters: &[[i32; LANES]; PARTS] =
            parameters.try_into().expect("a block has all parts");
        let mut numbers = [0; LANES];
        match (up.try_into(), activated.try_into()) {
            (Ok(up), Ok(activated)) => {
                block::<GATED, GELU>(parameters, up, activated, zero, &mut numbers);
            }
            _ => {
                let padded = |sums: &[i32]| {
                    let mut padded = [0; LANES];
                    padded[..sums.len()].copy_from_slice(sums);
                    padded
                };
                block::<GATED, GELU>(
                    parameters,
                    &padded(up),
                    &padded(activated),
                    zero,
                    &mut numbers,
                );
            }
        }
        out.copy_from_slice(&numbers[..out.len()]);
    }
}

/// Computes the channels whose parameters are stored together. The arrays have a fixed length, so that the loop is
/// vectorized without bounds checks.
#[inline(always)]
fn block<const GATED: bool, const GELU: bool>(
    parameters: &[[i32; LANES]; PARTS],
    up: &[i32; LANES],
    activated: &[i32; LANES],
    zero: u8,
    out: &mut [u8; LANES],
) {
    for lane in 0..LANES {
        let of_lane = Parameters(std::array::from_fn(|part| parameters[part][lane]));
        let number = Number::<GATED, GELU>::steps(&of_lane, up[lane], activated[lane]).rounded();
        out[lane] = number.cast_unsigned() ^ zero;
    }
}

/// Returns the parameters of a channel, in the order of [`Parameters`]; `None` if a number is not finite.
fn of_channel(middle: &Middle, is_gelu: bool, channel: usize) -> Option<[i32; PARTS]> {
    let Middle {
        input_scale,
        up,
        gate,
        smoothing,
        inner_scale,
        ..
    } = *middle;
    let unit = |layer: Scales| {
        Unit::new(
            f64::from(input_scale) * f64::from(layer.scales[channel]),
            layer,
            channel,
        )
    };
    let (activated, up) = (unit(gate.unwrap_or(up))?, unit(up)?);
    let inner = f64::from(inner_scale);
    let smoothing = smoothing.map_or(1.0, |smoothing| f64::from(smoothing[channel]));
    if !(inner.is_finite() && inner > 0.0 && smoothing.is_finite()) {
        return None;
    }
    // For the argument: the value of one unit, the sum from which it saturates, and the remaining shift.
    let bits = ARGUMENT_BITS[usize::from(is_gelu)];
    let rate = activated.unit
        * if is_gelu {
            1.0
        } else {
            std::f64::consts::LOG2_E
        }
        * power_of_two(bits);
    let limit = (f64::from(ARGUMENT_MOST) / rate)
        .floor()
        .clamp(1.0, f64::from(i32::MAX)) as i32;
    let limit_shift = limit.leading_zeros().cast_signed() - 1;
    let argument = (rate * power_of_two(BITS - limit_shift))
        .round()
        .min(2.0 * f64::from(ARGUMENT_MOST)) as i32;
    // There are 16 fractional bits; a second significand adds its own 31 bits.
    let (of_up, bits) = if gate.is_some() {
        (up.unit, 16 + BITS)
    } else {
        (1.0, 16)
    };
    let (factor, exponent) = significand(activated.unit * of_up * smoothing / inner);
    Some([
        activated.shift,
        activated.bias,
        limit,
        limit_shift,
        argument,
        up.shift,
        up.bias,
        factor,
        -exponent - bits,
    ])
}

/// The unit of a shifted sum, and the bias in that unit.
struct Unit {
    unit: f64,
    /// Number of bits by which sums are shifted left.
    shift: i32,
    bias: i32,
}

impl Unit {
    /// Chooses the shift so that the largest sum plus the bias stays below 2³⁰.
    fn new(scale: f64, layer: Scales, channel: usize) -> Option<Self> {
        let bias = layer.bias.map_or(0.0, |bias| f64::from(bias[channel]));
        if !(scale.is_finite() && scale > 0.0 && bias.is_finite()) {
            return None;
        }
        let most = layer.in_features as f64 * f64::from(127 * 127) + bias.abs() / scale;
        let shift = BITS - 1 - exponent(most);
        let unit = scale * power_of_two(-shift);
        // A sum below one unit becomes 0 or −1.
        Some(Self {
            unit,
            shift: shift.max(-BITS),
            bias: (bias / unit).round() as i32,
        })
    }
}

/// Returns s · 2³¹ and e of x = s · 2ᵉ with |s| from ½ to 1.
fn significand(x: f64) -> (i32, i32) {
    if x == 0.0 {
        return (0, 0);
    }
    let exponent = exponent(x);
    let largest = f64::from(i32::MAX);
    (
        (x * power_of_two(BITS - exponent))
            .round()
            .clamp(-largest, largest) as i32,
        exponent,
    )
}

/// Returns e of a normal number |x| = s · 2ᵉ with s from ½ to 1.
fn exponent(x: f64) -> i32 {
    (x.to_bits() >> 52 & 0x7ff) as i32 - 1022
}

/// Computes 2ⁿ for n from −1022 to 1023.
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((n.clamp(-1022, 1023) + 1023) as u64) << 52)
}
