//! Selects clip thresholds: the largest activation that INT8 represents (llm.npu, §3.3).
//!
//! A small clip threshold gives fine steps and many outliers, a large one coarse steps and few outliers. The cost of an
//! outlier depends on whether the input keeps its shadow: with a shadow, it is exact and takes time; without one, it is
//! cut off.

use triad_engine::quantization::{INT8_MAX, usable_clip};

use super::calibration::statistics::{BINS, InputStatistics, edge};

pub use triad_engine::package::preparation::ThresholdRule;

/// The options for selecting a clip threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipOptions {
    /// The rule.
    pub rule: ThresholdRule,
    /// Whether the input keeps its shadow.
    pub shadow: bool,
    /// Maximum share of all values that may exceed the threshold if there is a shadow.
    pub outlier_share: f64,
}

/// Returns the clip threshold of one input: the lower edge of a histogram bin, or the largest magnitude.
///
/// `energy[channel]` is the sum of the squared weights of the channel, by which its squared error is multiplied.
pub fn clip(statistics: &InputStatistics, energy: &[f64], options: ClipOptions) -> f32 {
    let largest = statistics.largest_of_all();
    let percentile = || {
        let counts = statistics.weighed_counts(&vec![1.0; statistics.channels()]);
        let most = counts.iter().sum::<f64>() * options.outlier_share;
        let mut beyond = 0.0;
        let first = (0..BINS).rev().find(|bin| {
            beyond += counts[*bin];
            beyond > most
        });
        first.map_or(largest, |bin| edge(bin + 1)).min(largest)
    };
    let clip = match (options.rule, options.shadow) {
        (ThresholdRule::MaxMin, _) => largest,
        (ThresholdRule::Percentile, _) | (ThresholdRule::LeastError, true) => percentile(),
        (ThresholdRule::LeastError, false) => {
            let candidates = (0..BINS)
                .map(edge)
                .filter(|edge| *edge < largest)
                .chain([largest]);
            let errors =
                candidates.map(|clip| (clip, squared_error(statistics, energy, clip, false)));
            errors
                .min_by(|a, b| a.1.total_cmp(&b.1))
                .map_or(largest, |(clip, _)| clip)
        }
    };
    usable_clip(clip)
}

/// Returns the expected squared error of the layers' outputs, summed over the calibration text, if this input is
/// clipped at `clip`: the rounding error of values within, and, without a shadow, the clipping error of values beyond.
/// Errors of different channels are assumed independent.
pub fn squared_error(statistics: &InputStatistics, energy: &[f64], clip: f32, shadow: bool) -> f64 {
    let scale = f64::from(clip / INT8_MAX);
    let clip = f64::from(clip);
    let counts = statistics.weighed_counts(energy);
    let error = |(bin, count): (usize, &f64)| {
        let (low, high) = (
            f64::from(if bin == 0 { 0.0 } else { edge(bin) }),
            f64::from(edge(bin + 1)),
        );
        let middle = (low + high) / 2.0;
        let of_one = if middle > clip {
            if shadow { 0.0 } else { (middle - clip).powi(2) }
        } else if middle < scale / 2.0 {
            middle.powi(2)
        } else {
            scale.powi(2) / 12.0
        };
        of_one * count
    };
    counts.iter().enumerate().map(error).sum()
}

/// Returns the sum of squares of the layers' outputs over the calibration text, under the assumptions of
/// [`squared_error`].
pub fn output_energy(statistics: &InputStatistics, energy: &[f64]) -> f64 {
    let counts = statistics.weighed_counts(energy);
    let square =
        |(bin, count): (usize, &f64)| count * (f64::from(edge(bin) + edge(bin + 1)) / 2.0).powi(2);
    counts.iter().enumerate().map(square).sum()
}
