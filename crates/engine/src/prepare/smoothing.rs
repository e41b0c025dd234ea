//! Smoothing of inputs without a shadow: channels with outliers are scaled down, and the weights that read them up.
//!
//! An input that keeps its shadow computes outliers beside the clipped rest. One that loses it would cut them off, or
//! clip so far out that everything else gets coarse steps; the paper takes that loss. Here each channel that reaches
//! beyond the clip threshold is scaled down first, and the weights that read it are scaled up, as SmoothQuant does with
//! all channels (Xiao et al. 2023).

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::calibration::statistics::InputStatistics;

/// How far a channel that reaches beyond the clip threshold is brought back, on a logarithmic scale: 1 would bring it all
/// the way, and leave the weights of the other channels with few steps.
pub const STRENGTH: f32 = 0.7;

/// Factors are 2 to the power of −n / 16, with n from 0 to 255.
const STEPS_OF_OCTAVE: f32 = 16.0;

/// How far each channel of an input is scaled down, in sixteenths of an octave. In files a string with two hexadecimal
/// digits for each channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Smoothing(Vec<u8>);

impl Smoothing {
    /// So that a channel reaching n octaves beyond `clip` is brought back by `strength` · n.
    pub fn new(statistics: &InputStatistics, clip: f32, strength: f32) -> Self {
        // A channel within the threshold comes out below zero, which no byte is.
        let steps = |largest: &f32| ((largest / clip).log2() * strength * STEPS_OF_OCTAVE).round() as u8;
        Self(statistics.largest().iter().map(steps).collect())
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.0.len()
    }

    /// What each channel is multiplied by `[channels]`; `None` if that is 1 for all.
    pub fn factors(&self) -> Option<Vec<f32>> {
        let factors = || self.0.iter().map(|steps| (-f32::from(*steps) / STEPS_OF_OCTAVE).exp2()).collect();
        self.0.iter().any(|steps| *steps > 0).then(factors)
    }
}

impl Serialize for Smoothing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digits: String = self.0.iter().map(|steps| format!("{steps:02x}")).collect();
        serializer.serialize_str(&digits)
    }
}

impl<'de> Deserialize<'de> for Smoothing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let steps = pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8));
        match steps.collect::<Option<Vec<u8>>>() {
            Some(steps) if rest.is_empty() => Ok(Self(steps)),
            _ => Err(serde::de::Error::custom("expected two hexadecimal digits for each channel")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_within_the_clip_threshold_stay_and_others_come_back_by_the_strength() {
        let mut statistics = InputStatistics::new(5);
        statistics.add(&[0.0, 2.0, -8.0, 32.0, f32::MAX]);
        assert_eq!(Smoothing::new(&statistics, 2.0, 1.0).0, [0, 0, 2 * 16, 4 * 16, 255]);
        assert_eq!(Smoothing::new(&statistics, 2.0, 0.5).0, [0, 0, 16, 2 * 16, 255]);
        assert_eq!(Smoothing::new(&statistics, 2.0, 0.5).factors().unwrap()[..4], [1.0, 1.0, 0.5, 0.25]);
        assert_eq!(Smoothing::new(&statistics, f32::MAX, 0.7).factors(), None);
        assert_eq!(Smoothing::new(&statistics, 2.0, 0.0).factors(), None);
    }

    #[test]
    fn a_file_has_two_digits_for_each_channel() {
        let smoothing = Smoothing(vec![0, 3, 255]);
        assert_eq!(serde_json::to_string(&smoothing).unwrap(), "\"0003ff\"");
        assert_eq!(serde_json::from_str::<Smoothing>("\"0003ff\"").unwrap(), smoothing);
        for wrong in ["\"000g\"", "\"000\"", "\"0é\"", "3"] {
            let error = serde_json::from_str::<Smoothing>(wrong).unwrap_err().to_string();
            assert!(error.contains("hexadecimal") || error.contains("expected a string"), "{wrong}: {error}");
        }
    }

    #[test]
    fn an_input_with_a_hot_channel_errs_less_when_it_is_smoothed() {
        use crate::prepare::threshold::{self, ClipOptions, ThresholdRule};

        let channels = 64;
        let mut statistics = InputStatistics::new(channels);
        let value = |index: usize| ((index * 37 % 101) as f32 - 50.0) / 50.0;
        let x: Vec<f32> = (0..200 * channels).map(|i| value(i) * if i % channels == 5 { 60.0 } else { 1.0 }).collect();
        statistics.add(&x);
        let options = ClipOptions { rule: ThresholdRule::LeastError, shadow: false, outlier_share: 0.0 };
        let error = |statistics: &InputStatistics, energy: &[f64]| {
            threshold::squared_error(statistics, energy, threshold::clip(statistics, energy, options), false)
        };
        let factors = Smoothing::new(&statistics, 1.0, STRENGTH).factors().unwrap();
        let energy: Vec<f64> = factors.iter().map(|factor| f64::from(*factor).powi(-2)).collect();
        let (cut, smoothed) = (error(&statistics, &vec![1.0; channels]), error(&statistics.scaled(&factors), &energy));
        assert!(smoothed < cut / 10.0, "{smoothed} of {cut}");
    }
}
