//! What is between the products of a feed-forward in integers: from sums of gate and up to the INT8 numbers that down reads.
//! The definition that devices without floating point follow bit for bit, the same on every machine.
//!
//! [`FixedPoint`] is prepared once from the scales of a feed-forward, in f64, and then reads and writes integers alone. With the
//! sums of gate and up, both in i32, a channel's number is, in steps of the scale of what down reads,
//!
//! ```text
//! y = activation(g) · u · smoothing / inner_scale      g = input_scale · scale · sum + bias, u as g
//! ```
//!
//! **How.** Sums are shifted left as far as they fit, and biases added in that unit, so that nothing is rounded but the bias. The
//! activation is g · sigmoid(t), where t is g for SiLU and √(8/π) · (g + 0.044715 · g³) for GELU in its tanh form, and
//! sigmoid(t) is 1 or e⁻ᵗ over 1 + e⁻ᵗ for |t|: a power of two by a polynomial, a reciprocal by a polynomial and one step of
//! Halley's. All factors of y are multiplied as significands of 31 bits ([`multiply`](number::multiply)), their exponents added, and one shift
//! leaves 16 bits behind the point (dropping what is less), which are rounded to the nearest integer, ties upwards, and clamped
//! to ±127.
//!
//! **Error.** Before it is rounded, the number differs from y by at most [`RELATIVE_ERROR`] · |y| + [`DROPPED`] steps, at
//! most 2⁻¹³ of a step where it isn't clamped, which is less than 2⁻²⁰ of the range of INT8. So the INT8 number differs from y rounded only where y is within
//! 2⁻¹³ steps of a tie, and then by 1. Two things are beside that. A bias is rounded to 2⁻³⁰ of the most that a sum may be. And
//! SiLU below −41, GELU below −7.5, is taken as g · 2⁻⁶⁰ or so, which is 0 unless g · u is 2⁴⁵ times what INT8 holds.

mod number;
#[cfg(test)]
mod tests;

use crate::activation::Activation;
use crate::vectorize::vectorize;
use number::{ARGUMENT_MOST, Number, Parameters};

/// Lanes of a vector unit of 1,024 bits: channels whose parameters are stored together.
const LANES: usize = 32;
/// Parameters of a channel.
const PARTS: usize = 9;
/// Bits of a significand.
const BITS: i32 = 31;
/// Bits behind the point of the argument of the power of two, and of GELU's number.
const ARGUMENT_BITS: [i32; 2] = [24, 27];

/// How much a number may differ from the exact one before it is rounded, of its magnitude.
pub const RELATIVE_ERROR: f64 = 1.0 / (1 << 21) as f64;
/// And how much beside that, in steps: what is behind the point is dropped after 16 bits.
pub const DROPPED: f64 = 1.0 / (1 << 16) as f64;

/// The middle of a feed-forward, as [`FixedPoint::new`] takes it.
#[derive(Clone, Copy, Debug)]
pub struct Middle<'a> {
    /// Of what gate and up read.
    pub input_scale: f32,
    /// The layer whose output is multiplied by the activation, or is activated where there is no gate.
    pub up: Scales<'a>,
    /// The layer whose output is activated.
    pub gate: Option<Scales<'a>>,
    /// Between them.
    pub activation: Activation,
    /// Factors `[width]` on what down reads.
    pub smoothing: Option<&'a [f32]>,
    /// Static scale of what down reads.
    pub inner_scale: f32,
}

/// What turns the sums of an INT8 layer into numbers.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    /// Products of a sum.
    pub in_features: usize,
    /// Of each output channel.
    pub scales: &'a [f32],
    /// `[out_features]`, if it has one.
    pub bias: Option<&'a [f32]>,
}

/// Why a feed-forward has no middle in fixed point.
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
            Self::Activation => "GELU with the error function is computed in float alone",
            Self::Numbers => "a scale is not positive and finite, or a bias or a factor of smoothing is not finite",
        })
    }
}

impl std::error::Error for Unfit {}

/// The middle of a feed-forward in fixed point.
#[derive(Clone, Debug)]
pub struct FixedPoint {
    width: usize,
    is_gated: bool,
    is_gelu: bool,
    /// `[width / LANES][PARTS][LANES]`, with zeros behind the last channel, which make zeros.
    parameters: Vec<i32>,
}

impl FixedPoint {
    /// Prepares the parameters of each channel.
    ///
    /// # Errors
    /// If fixed point has no such activation, or a number is not finite.
    ///
    /// # Panics
    /// If slices are not equally long.
    pub fn new(middle: &Middle) -> Result<Self, Unfit> {
        let is_gelu = match middle.activation {
            Activation::Silu => false,
            Activation::GeluTanh => true,
            Activation::Gelu => return Err(Unfit::Activation),
        };
        let width = middle.up.scales.len();
        let layers = [Some(middle.up), middle.gate];
        for Scales { scales, bias, .. } in layers.into_iter().flatten() {
            assert_eq!(scales.len(), width, "gate and up are equally wide");
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

    /// Channels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether there is a gate.
    pub fn is_gated(&self) -> bool {
        self.is_gated
    }

    /// What a device needs to know of each channel, `[width / 32][9][32]`: see `hexagon/fixed.c`.
    pub fn parameters(&self) -> &[i32] {
        &self.parameters
    }

    /// The INT8 numbers of one row, `out[width]`, from the sums `up[width]` and, of a gated feed-forward, `gate[width]`. What is
    /// stored is their bits, with those of `zero` flipped.
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

/// All channels of a row, by one of the four programs.
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
            parameters.try_into().expect("all parts of a block");
        let mut numbers = [0; LANES];
        match (up.try_into(), activated.try_into()) {
            (Ok(up), Ok(activated)) => {
                block::<GATED, GELU>(parameters, up, activated, zero, &mut numbers)
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

/// Channels whose parameters are stored together: arrays of one length, without a check, so that the loop becomes vectors.
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

/// The parameters of a channel, in the order of [`Parameters`]; `None` if a number is not finite.
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
    // Of the argument: what a unit is in it, from where on it stays the same, and what is left to shift.
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
    // Behind the point there are 16 bits; a second significand takes its 31 bits along.
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

/// What a sum is, shifted, and the bias beside it.
struct Unit {
    unit: f64,
    /// To the left.
    shift: i32,
    bias: i32,
}

impl Unit {
    /// So that the largest sum and the bias stay below 2³⁰.
    fn new(scale: f64, layer: Scales, channel: usize) -> Option<Self> {
        let bias = layer.bias.map_or(0.0, |bias| f64::from(bias[channel]));
        if !(scale.is_finite() && scale > 0.0 && bias.is_finite()) {
            return None;
        }
        let most = layer.in_features as f64 * f64::from(127 * 127) + bias.abs() / scale;
        let shift = BITS - 1 - exponent(most);
        let unit = scale * power_of_two(-shift);
        // A sum that is no unit is 0 or −1.
        Some(Self {
            unit,
            shift: shift.max(-BITS),
            bias: (bias / unit).round() as i32,
        })
    }
}

/// x = s · 2ᵉ, |s| from ½ to 1, as s · 2³¹ and e.
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

/// e of |x| = s · 2ᵉ, s from ½ to 1, of a normal number.
fn exponent(x: f64) -> i32 {
    (x.to_bits() >> 52 & 0x7ff) as i32 - 1022
}

/// 2ⁿ, for n from −1022 to 1023.
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((n.clamp(-1022, 1023) + 1023) as u64) << 52)
}
