//! Computes a plan from a calibration: clip thresholds, outliers, importance, which shadows to keep, hot channels.

use std::borrow::Cow;

use triad_engine::{Inputs, LinearInput};

use super::calibration::Calibration;
use super::calibration::statistics::InputStatistics;
use super::smoothing::smoothing;
use super::threshold::{self, ClipOptions};
use super::weight_statistics::ChannelWeights;

pub use triad_engine::package::preparation::{
    InputSummary, OUTLIER_SHARE, PlanOptions, quantization,
};

/// Returns everything that calibration decides, before pruning.
///
/// The inputs are in the order of the blocks and of [`LinearInput::ALL`].
pub fn summarize(
    calibration: &Calibration,
    weights: &[Inputs<ChannelWeights>],
    options: &PlanOptions,
) -> Vec<InputSummary> {
    let of_input = |(block, input, statistics): (usize, LinearInput, &InputStatistics)| {
        let energy = &weights[block][input.index()].energy;
        let PlanOptions {
            threshold: rule,
            outlier_share,
            ..
        } = *options;
        let clip = |statistics, energy: &[f64], shadow| {
            threshold::clip(
                statistics,
                energy,
                ClipOptions {
                    rule,
                    shadow,
                    outlier_share,
                },
            )
        };
        let shadow_clip = clip(statistics, energy, true);
        let smoothing = smoothing(statistics, shadow_clip, options.smoothing);
        let (smoothed, smoothed_energy) = match smoothing.factors() {
            None => (Cow::Borrowed(statistics), Cow::Borrowed(energy)),
            Some(factors) => {
                // Weights are divided by the factors that activations are multiplied by.
                let energy = energy
                    .iter()
                    .zip(&factors)
                    .map(|(energy, factor)| energy / f64::from(factor * factor));
                (
                    Cow::Owned(statistics.scaled(&factors)),
                    Cow::Owned(energy.collect()),
                )
            }
        };
        let lone_clip = clip(&smoothed, &smoothed_energy, false);
        let all = threshold::output_energy(statistics, energy).max(f64::MIN_POSITIVE);
        let error = [
            threshold::squared_error(statistics, energy, shadow_clip, true) / all,
            threshold::squared_error(&smoothed, &smoothed_energy, lone_clip, false) / all,
        ];
        let largest = statistics.largest_of_all().min(f32::MAX);
        let outliers = statistics.outliers(shadow_clip);
        let values = statistics.rows().max(1) as f64 * statistics.channels() as f64;
        let share = |counts: &[u64]| counts.iter().sum::<u64>() as f64 / values;
        InputSummary {
            block,
            input,
            channels: statistics.channels(),
            largest,
            shadow_clip,
            clip: lone_clip,
            smoothing,
            // JSON has no infinity.
            importance: (largest / shadow_clip).min(f32::MAX),
            error,
            outlier_share: share(&outliers),
            lost_share: share(&smoothed.outliers(lone_clip)),
            outlier_channels: outliers.iter().filter(|count| **count > 0).count(),
            hot_channels: hot_channels(&outliers, options.hot_share),
            shadow: true,
        }
    };
    calibration.inputs().map(of_input).collect()
}

/// Returns the fewest channels that have `share` of all outliers, ascending.
pub fn hot_channels(outliers: &[u64], share: f64) -> Vec<u32> {
    let enough = outliers.iter().sum::<u64>() as f64 * share;
    let mut channels: Vec<u32> = (0..outliers.len() as u32)
        .filter(|channel| outliers[*channel as usize] > 0)
        .collect();
    // By count; equal counts by index, so that the choice is deterministic.
    channels.sort_by_key(|channel| (std::cmp::Reverse(outliers[*channel as usize]), *channel));
    let mut given = 0;
    let needed = channels.iter().position(|channel| {
        given += outliers[*channel as usize];
        given as f64 >= enough
    });
    channels.truncate(needed.map_or(0, |last| last + 1));
    channels.sort_unstable();
    channels
}

/// Removes the shadow from the least important `rate` of the inputs (0: none, 1: all); the others get one.
pub fn prune(inputs: &mut [InputSummary], rate: f64) {
    let mut by_importance: Vec<usize> = (0..inputs.len()).collect();
    by_importance.sort_by(|a, b| inputs[*a].importance.total_cmp(&inputs[*b].importance));
    let pruned = (rate.clamp(0.0, 1.0) * inputs.len() as f64).round() as usize;
    for (rank, index) in by_importance.into_iter().enumerate() {
        inputs[index].shadow = rank >= pruned;
    }
}
