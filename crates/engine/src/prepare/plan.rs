//! From calibration to a plan: clip thresholds, outliers, importance, which shadows to keep, hot channels.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::calibration::Calibration;
use super::calibration::statistics::InputStatistics;
use super::smoothing::{self, Smoothing};
use super::threshold::{self, ClipOptions, ThresholdRule};
use super::weight_statistics::ChannelWeights;
use crate::linear_input::LinearInput;
use crate::quantize::{DecodeWeights, InputQuantization, OutputWeights, Quantization, WeightScales};

/// Outliers that a shadow may have unless asked otherwise, of all values. The paper's 0.1 to 0.3 % of the channels are
/// 5 to 15 channels of models of width 2048 and more; a model of width 576 has as many, which is about 1 %.
pub const OUTLIER_SHARE: f64 = 0.01;

/// What to decide by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanOptions {
    /// How clip thresholds are chosen.
    pub threshold: ThresholdRule,
    /// What one weight scale covers.
    pub weight_scales: WeightScales,
    /// Weights that decode computes with.
    pub decode_weights: DecodeWeights,
    /// Weights of the output matrix.
    pub output_weights: OutputWeights,
    /// Outliers that a shadow may have, of all values.
    pub outlier_share: f64,
    /// Hot channels give at least this share of an input's outliers.
    pub hot_share: f64,
    /// How far inputs without a shadow are smoothed ([`Smoothing::new`]), from 0 to 1.
    pub smoothing: f32,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            threshold: ThresholdRule::default(),
            weight_scales: WeightScales::default(),
            decode_weights: DecodeWeights::default(),
            output_weights: OutputWeights::default(),
            outlier_share: OUTLIER_SHARE,
            hot_share: 0.8,
            smoothing: smoothing::STRENGTH,
        }
    }
}

/// What calibration found about one linear input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputSummary {
    /// Block, from zero.
    pub block: usize,
    /// Which of its inputs.
    pub input: LinearInput,
    /// Channels of the input.
    pub channels: usize,
    /// Largest magnitude seen.
    pub largest: f32,
    /// Clip threshold with a shadow.
    pub shadow_clip: f32,
    /// Clip threshold without one, of what smoothing leaves.
    pub clip: f32,
    /// Smoothing without a shadow.
    pub smoothing: Smoothing,
    /// Largest magnitude / clip threshold with a shadow (llm.npu, §3.3).
    pub importance: f32,
    /// Expected squared error of what the layers put out, as a share of its square: with a shadow, without one.
    pub error: [f64; 2],
    /// Values beyond the clip threshold with a shadow, of all values.
    pub outlier_share: f64,
    /// Values beyond the clip threshold without one, which are cut off, of all values.
    pub lost_share: f64,
    /// Channels that ever had an outlier.
    pub outlier_channels: usize,
    /// The fewest channels that give [`PlanOptions::hot_share`] of the outliers, ascending.
    pub hot_channels: Vec<u32>,
    /// Whether the shadow is kept.
    pub shadow: bool,
}

/// Everything that calibration decides, before pruning.
///
/// The inputs stand in the order of the blocks and of [`LinearInput::ALL`].
pub fn summarize(
    calibration: &Calibration,
    weights: &[[ChannelWeights; 4]],
    options: &PlanOptions,
) -> Vec<InputSummary> {
    let of_input = |(block, input, statistics): (usize, LinearInput, &InputStatistics)| {
        let energy = &weights[block][input.index()].energy;
        let PlanOptions { threshold: rule, outlier_share, .. } = *options;
        let clip = |statistics, energy: &[f64], shadow| {
            threshold::clip(statistics, energy, ClipOptions { rule, shadow, outlier_share })
        };
        let shadow_clip = clip(statistics, energy, true);
        let smoothing = Smoothing::new(statistics, shadow_clip, options.smoothing);
        let (smoothed, smoothed_energy) = match smoothing.factors() {
            None => (Cow::Borrowed(statistics), Cow::Borrowed(energy)),
            Some(factors) => {
                // Weights are divided by what activations are multiplied by.
                let energy = energy.iter().zip(&factors).map(|(energy, factor)| energy / f64::from(factor * factor));
                (Cow::Owned(statistics.scaled(&factors)), Cow::Owned(energy.collect()))
            }
        };
        let lone_clip = clip(&smoothed, &smoothed_energy, false);
        let all = threshold::output_energy(statistics, energy).max(f64::MIN_POSITIVE);
        let error = [
            threshold::squared_error(statistics, energy, shadow_clip, true) / all,
            threshold::squared_error(&smoothed, &smoothed_energy, lone_clip, false) / all,
        ];
        let largest = statistics.largest_of_all();
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
            importance: largest / shadow_clip,
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

/// The fewest channels that give `share` of all outliers, ascending.
pub fn hot_channels(outliers: &[u64], share: f64) -> Vec<u32> {
    let enough = outliers.iter().sum::<u64>() as f64 * share;
    let mut channels: Vec<u32> = (0..outliers.len() as u32).filter(|channel| outliers[*channel as usize] > 0).collect();
    // By count; equal counts by place, so that the choice is the same every time.
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

/// Takes the shadow from the least important `rate` of the inputs (0: none, 1: all), and gives it to the others.
pub fn prune(inputs: &mut [InputSummary], rate: f64) {
    let mut by_importance: Vec<usize> = (0..inputs.len()).collect();
    by_importance.sort_by(|a, b| inputs[*a].importance.total_cmp(&inputs[*b].importance));
    let pruned = (rate.clamp(0.0, 1.0) * inputs.len() as f64).round() as usize;
    for (rank, index) in by_importance.into_iter().enumerate() {
        inputs[index].shadow = rank >= pruned;
    }
}

/// The plan that `inputs` make.
///
/// # Panics
/// If they are not four a block.
pub fn quantization(inputs: &[InputSummary], options: &PlanOptions) -> Quantization {
    let (blocks, rest) = inputs.as_chunks::<4>();
    assert!(rest.is_empty(), "four inputs a block");
    let input = |summary: &InputSummary| InputQuantization::Static {
        clip: if summary.shadow { summary.shadow_clip } else { summary.clip },
        shadow: summary.shadow,
        smoothing: if summary.shadow { None } else { summary.smoothing.factors() },
    };
    Quantization {
        weight_scales: options.weight_scales,
        decode_weights: options.decode_weights,
        output_weights: options.output_weights,
        blocks: blocks.iter().map(|inputs| inputs.each_ref().map(input)).collect(),
    }
}
