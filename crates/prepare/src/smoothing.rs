//! Smoothing of inputs without a shadow: channels with outliers are scaled down, and the weights for them are scaled
//! up.
//!
//! An input with a shadow computes outliers separately from the clipped rest. Without a shadow, outliers are cut off,
//! or the clip threshold is so large that all other values get coarse steps; the paper accepts that loss. Here each
//! channel that exceeds the clip threshold is scaled down first, and the weights for it are scaled up, as SmoothQuant
//! does with all channels (Xiao et al. 2023).

use triad_engine::package::preparation::Smoothing;

use super::calibration::statistics::InputStatistics;

/// Returns the smoothing that reduces a channel n octaves above `clip` by `strength` · n octaves.
pub fn smoothing(statistics: &InputStatistics, clip: f32, strength: f32) -> Smoothing {
    // A channel within the threshold gives a negative number, and does not change.
    Smoothing::by_octaves(
        statistics
            .largest()
            .iter()
            .map(|largest| (largest / clip).log2() * strength),
    )
}

#[cfg(test)]
mod tests {
    use triad_engine::package::preparation::SMOOTHING_STRENGTH;

    use super::*;

    #[test]
    fn channels_within_the_clip_threshold_stay_and_others_come_back_by_the_strength() {
        let mut statistics = InputStatistics::new(5);
        statistics.add(&[0.0, 2.0, -8.0, 32.0, f32::MAX]);
        let factors = |clip, strength| smoothing(&statistics, clip, strength).factors();
        let least = 2f32.powf(-255.0 / 16.0);
        assert_eq!(
            factors(2.0, 1.0).unwrap(),
            [1.0, 1.0, 0.25, 2f32.powi(-4), least]
        );
        assert_eq!(factors(2.0, 0.5).unwrap(), [1.0, 1.0, 0.5, 0.25, least]);
        assert_eq!(factors(f32::MAX, 0.7), None);
        assert_eq!(factors(2.0, 0.0), None);
    }

    #[test]
    fn an_input_with_a_hot_channel_errs_less_when_it_is_smoothed() {
        use crate::threshold::{self, ClipOptions, ThresholdRule};

        let channels = 64;
        let mut statistics = InputStatistics::new(channels);
        let value = |index: usize| ((index * 37 % 101) as f32 - 50.0) / 50.0;
        let x: Vec<f32> = (0..200 * channels)
            .map(|i| value(i) * if i % channels == 5 { 60.0 } else { 1.0 })
            .collect();
        statistics.add(&x);
        let options = ClipOptions {
            rule: ThresholdRule::LeastError,
            shadow: false,
            outlier_share: 0.0,
        };
        let error = |statistics: &InputStatistics, energy: &[f64]| {
            threshold::squared_error(
                statistics,
                energy,
                threshold::clip(statistics, energy, options),
                false,
            )
        };
        let factors = smoothing(&statistics, 1.0, SMOOTHING_STRENGTH)
            .factors()
            .unwrap();
        let energy: Vec<f64> = factors
            .iter()
            .map(|factor| f64::from(*factor).powi(-2))
            .collect();
        let (cut, smoothed) = (
            error(&statistics, &vec![1.0; channels]),
            error(&statistics.scaled(&factors), &energy),
        );
        assert!(smoothed < cut / 10.0, "{smoothed} of {cut}");
    }
}
