//! Sums of products that a device rounds to 16 bits ([`Formulation::RoundedSums`](super::Formulation)).
//!
//! The sum of a column is divided by the smallest power of two with which 16 bits hold every sum that the column's
//! weights allow. So no output saturates, its error is at most half of the power, and no calibration is needed. Small
//! sums are exact. Qualcomm's NPUs multiply the sum of each column by a factor of about ten bits. Other factors than
//! powers of two have been seen to be off by up to 30 units of the output, and factors below [`MIN_FACTOR`] to return
//! sums that are wrong altogether.

use triad_kernels::int8::{Int8Weight, unpack};

use crate::error::{Error, Result};
use crate::subgraph::{DeviceSubgraph, Layer};

/// The zero point of numbers in 16 bits.
pub(super) const MIDDLE: u16 = 1 << 15;
/// The largest magnitude of an input. Clipping leaves no −128, but the type has it.
const LARGEST_INPUT: u64 = 128;
/// The largest magnitude of an output.
const LARGEST_OUTPUT: u64 = (1 << 15) - 1;
/// The smallest factor by which the device multiplies a sum of inputs in 16 bits, as a power of two.
const MIN_FACTOR: i32 = -23;
/// The largest power of two that divides sums: the input in 16 bits has 8 more bits.
const MAX_SHIFT: u32 = (-MIN_FACTOR - 8) as u32;

/// Returns the exponent of the power of two that divides the sums of each column.
pub(super) fn shifts(name: &str, weight: Int8Weight) -> Result<Vec<u32>> {
    let mut row_major = vec![0; weight.out_features * weight.in_features];
    unpack(weight, &mut row_major);
    let columns = row_major.chunks_exact(weight.in_features);
    let shift = |column: &[i8]| {
        let weights: u64 = column.iter().map(|q| u64::from(q.unsigned_abs())).sum();
        let largest = LARGEST_INPUT * weights;
        let shift = largest
            .div_ceil(LARGEST_OUTPUT)
            .max(1)
            .next_power_of_two()
            .ilog2();
        if shift <= MAX_SHIFT {
            return Ok(shift);
        }
        Err(Error::Subgraph {
            part: format!("sums of {name}"),
            found: format!("up to {largest}"),
            expected: format!(
                "at most {}, which the device divides",
                LARGEST_OUTPUT << MAX_SHIFT
            ),
        })
    };
    columns.map(shift).collect()
}

/// Returns the scales of a weight's columns with which the unit of the graph's outputs is 1.
pub(super) fn graph_scales(name: &str, weight: Int8Weight) -> Result<Vec<f32>> {
    let shifts = shifts(name, weight)?;
    Ok(shifts
        .into_iter()
        .map(|shift| power(shift).recip())
        .collect())
}

fn power(shift: u32) -> f32 {
    (1u32 << shift) as f32
}

/// The step from rounded sums of a layer to its outputs: scales and bias, in the order in which Triad's kernels round.
#[derive(Debug)]
pub(super) struct Epilogue {
    /// The value of one unit of each output.
    factors: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Epilogue {
    /// Returns the epilogue of each layer of `subgraph`.
    pub fn of_layers(subgraph: &DeviceSubgraph) -> Result<Vec<Self>> {
        let scale = subgraph.input_scale();
        let layers = subgraph.layers();
        layers
            .map(|(name, layer)| Self::new(&name, layer, scale))
            .collect()
    }

    fn new(name: &str, layer: &dyn Layer, input_scale: f32) -> Result<Self> {
        let weight = layer.weight();
        let factor = |(shift, scale): (u32, &f32)| power(shift) * (input_scale * scale);
        let factors = shifts(name, weight)?.into_iter().zip(weight.scales);
        Ok(Self {
            factors: factors.map(factor).collect(),
            bias: layer.bias().map(<[f32]>::to_vec),
        })
    }

    /// Converts a row of rounded sums to outputs.
    pub fn apply(&self, sums: &[u16], out: &mut [f32]) {
        let scaled = sums.iter().zip(&self.factors);
        for (out, (sum, factor)) in out.iter_mut().zip(scaled) {
            *out = (f32::from(*sum) - f32::from(MIDDLE)) * factor;
        }
        for (out, bias) in out.iter_mut().zip(self.bias.iter().flatten()) {
            *out += bias;
        }
    }
}

#[cfg(test)]
mod tests {
    use triad_kernels::int8::{pack, packed_len, row_sums};

    use super::*;

    struct Column {
        packed: Vec<i8>,
        sums: Vec<i32>,
        in_features: usize,
    }

    impl Column {
        /// Creates a layer with one output, whose weights are all `q`.
        fn new(q: i8, in_features: usize) -> Self {
            let row_major = vec![q; in_features];
            let mut packed = vec![0; packed_len(1, in_features).unwrap()];
            pack(&row_major, 1, in_features, &mut packed);
            let mut sums = vec![0];
            row_sums(&row_major, in_features, &mut sums);
            Self {
                packed,
                sums,
                in_features,
            }
        }
    }

    impl Layer for Column {
        fn weight(&self) -> Int8Weight<'_> {
            Int8Weight {
                out_features: 1,
                in_features: self.in_features,
                packed: &self.packed,
                scales: &[0.5],
                sums: &self.sums,
            }
        }
    }

    #[test]
    fn no_sum_that_the_weights_allow_saturates_and_no_smaller_power_would_do() {
        for (q, in_features) in [
            (1, 1),
            (-1, 255),
            (1, 256),
            (127, 576),
            (-127, 5632),
            (0, 9),
        ] {
            let layer = Column::new(q, in_features);
            let [shift] = shifts("layer", layer.weight()).unwrap()[..] else {
                panic!()
            };
            let largest = 128 * u64::from(q.unsigned_abs()) * in_features as u64;
            assert!(largest <= 32767 << shift);
            assert!(shift == 0 || largest > 32767 << (shift - 1));
        }
    }

    #[test]
    fn sums_beyond_what_the_device_divides_are_refused() {
        let weights = (32767u64 << 15) / 128 / 127;
        assert!(shifts("layer", Column::new(127, weights as usize).weight()).is_ok());
        let refused = shifts("layer", Column::new(-127, weights as usize + 1).weight());
        let error = refused.unwrap_err().to_string();
        assert!(
            error.starts_with("sums of layer of the subgraph: up to "),
            "{error}"
        );
    }

    #[test]
    fn scales_are_applied_to_the_sums_and_not_to_their_codes() {
        let layer = Column::new(127, 576);
        let epilogue = Epilogue::new("layer", &layer, 0.25).unwrap();
        let [shift] = shifts("layer", layer.weight()).unwrap()[..] else {
            panic!()
        };
        let mut out = [0.0; 3];
        for (code, sum) in [(32768, 0.0), (32769, 1.0), (0, -32768.0)] {
            epilogue.apply(&[code], &mut out[..1]);
            assert_eq!(out[0], sum * (1u32 << shift) as f32 * 0.125);
        }
    }
}
