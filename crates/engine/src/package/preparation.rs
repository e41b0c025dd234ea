//! How the model of a package was quantized: by which options, and what was decided for each linear input.
//!
//! This is the part of `package.json` from which the plan for the weights ([`Quantization`]) follows; with W4A16 there is
//! none, and weights are all. Packages are
//! made by the crate `triad-prepare`, which computes these numbers.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use triad_plan::prefill::KeptShadows;
use triad_plan::tasks::BlockShadows;

use crate::hot_rows::HotChannels;
use crate::linear_input::LinearInput;
use crate::quantization::{
    DecodeWeights, InputQuantization, LinearFormat, OutputWeights, Quantization, WeightScales,
};

/// How a model is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrepareOptions {
    /// What clip thresholds and formats are decided by.
    pub plan: PlanOptions,
    /// Which shadows are left out.
    pub prune: Prune,
    /// Tokens of the calibration text that are read at most.
    pub tokens: usize,
}

impl Default for PrepareOptions {
    fn default() -> Self {
        Self {
            plan: PlanOptions::default(),
            prune: Prune::default(),
            tokens: 16_384,
        }
    }
}

/// How many inputs lose their shadow, the least important first (llm.npu, §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prune {
    /// This share of them: 0 none, 1 all.
    Rate(f64),
    /// As many as cost no more than this share of the loss on held-out text; none where no text is held out, and none of models
    /// with more than 2³⁰ weights, for which the search would take too much memory and time.
    Auto {
        /// Share of the float model's negative log-likelihood of a token.
        budget: f64,
    },
}

impl Prune {
    /// What the paper does.
    pub const PAPER: Self = Self::Rate(0.85);
    /// [`Prune::Auto`] with the default budget.
    pub const AUTO: Self = Self::Auto { budget: 0.003 };
}

impl Default for Prune {
    /// [`Prune::AUTO`]: on a CPU, which reads the same weights for shadows, they cost little time, and on a phone's NPU
    /// the search prunes what it can without loss (docs/accuracy.md).
    fn default() -> Self {
        Self::AUTO
    }
}

/// How a clip threshold is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThresholdRule {
    /// The largest magnitude of the calibration text: no outliers on it.
    MaxMin,
    /// As many outliers as a shadow may have, whether the input keeps it or not.
    Percentile,
    /// The least squared error of what the layers put out. For an input with a shadow the outliers are no error, but
    /// there are at most as many as a shadow may have.
    #[default]
    LeastError,
}

/// Outliers that a shadow may have by default, of all values. The paper's 0.1 to 0.3 % of the channels are
/// 5 to 15 channels of models of width 2048 and more; a model of width 576 has as many, which is about 1 %.
pub const OUTLIER_SHARE: f64 = 0.01;

/// How far a channel that reaches beyond the clip threshold is brought back by default, on a logarithmic
/// scale: 1 would bring it all the way, and leave the weights of the other channels with few steps.
pub const SMOOTHING_STRENGTH: f32 = 0.7;

/// What to decide by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanOptions {
    /// Number formats of the linear layers. With W4A16 only `output_weights` counts beside it.
    #[serde(default)]
    pub linears: LinearFormat,
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
    /// How far inputs without a shadow are smoothed ([`Smoothing`]), from 0 to 1.
    pub smoothing: f32,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            linears: LinearFormat::default(),
            threshold: ThresholdRule::default(),
            weight_scales: WeightScales::default(),
            decode_weights: DecodeWeights::default(),
            output_weights: OutputWeights::default(),
            outlier_share: OUTLIER_SHARE,
            hot_share: 0.8,
            smoothing: SMOOTHING_STRENGTH,
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

/// A plan and where it comes from: what a package has beside the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preparation {
    /// The options.
    pub options: PrepareOptions,
    /// Name of the calibration text.
    pub calibration_text: String,
    /// Tokens of it that were read.
    pub calibration_tokens: usize,
    /// Share of the inputs whose shadow was left out.
    pub pruned: f64,
    /// What was found about each input, in the order of the blocks; nothing with W4A16.
    pub inputs: Vec<InputSummary>,
}

impl Preparation {
    /// The plan for the weights; `None` with W4A16.
    ///
    /// # Panics
    /// If the inputs are not four a block.
    pub fn quantization(&self) -> Option<Quantization> {
        match self.options.plan.linears {
            LinearFormat::W8a8 => Some(quantization(&self.inputs, &self.options.plan)),
            LinearFormat::W4a16 => None,
        }
    }
}

impl Preparation {
    /// The shadows that are kept, and the share of hot channels of their inputs; `None` with W4A16.
    ///
    /// # Panics
    /// If the inputs are not four a block.
    pub fn shadows(&self) -> Option<KeptShadows> {
        let (blocks, rest) = self.inputs.as_chunks::<4>();
        assert!(rest.is_empty(), "four inputs a block");
        let of_block = |inputs: &[InputSummary; 4]| {
            let keeps = |input: LinearInput| inputs[input.index()].shadow;
            BlockShadows {
                attention: keeps(LinearInput::Attention),
                attention_output: keeps(LinearInput::AttentionOutput),
                feed_forward: keeps(LinearInput::FeedForward),
                down: keeps(LinearInput::Down),
            }
        };
        let kept = || self.inputs.iter().filter(|input| input.shadow);
        let hot: usize = kept().map(|input| input.hot_channels.len()).sum();
        let channels: usize = kept().map(|input| input.channels).sum();
        let hot_share = hot as f64 / channels.max(1) as f64;
        (!blocks.is_empty()).then(|| KeptShadows {
            blocks: blocks.iter().map(of_block).collect(),
            hot_share,
        })
    }

    /// The hot channels of each block's inputs.
    pub fn hot_channels(&self) -> HotChannels {
        let (blocks, _) = self.inputs.as_chunks::<4>();
        blocks
            .iter()
            .map(|inputs| inputs.each_ref().map(|input| input.hot_channels.clone()))
            .collect()
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
        clip: if summary.shadow {
            summary.shadow_clip
        } else {
            summary.clip
        },
        shadow: summary.shadow,
        smoothing: if summary.shadow {
            None
        } else {
            summary.smoothing.factors()
        },
    };
    Quantization {
        weight_scales: options.weight_scales,
        decode_weights: options.decode_weights,
        output_weights: options.output_weights,
        blocks: blocks
            .iter()
            .map(|inputs| inputs.each_ref().map(input))
            .collect(),
    }
}

/// Factors of a [`Smoothing`] are 2 to the power of −n / 16, with n from 0 to 255.
const STEPS_OF_OCTAVE: f32 = 16.0;

/// How far each channel of an input is scaled down, in sixteenths of an octave. In files a string with two hexadecimal
/// digits for each channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Smoothing(Vec<u8>);

impl Smoothing {
    /// Scales each channel down by so many octaves, rounded to sixteenths, at most 255 of them; a channel with a number
    /// below zero stays as it is.
    pub fn by_octaves(octaves: impl IntoIterator<Item = f32>) -> Self {
        // What is below zero or beyond 255 becomes the nearest byte.
        Self(
            octaves
                .into_iter()
                .map(|octaves| (octaves * STEPS_OF_OCTAVE).round() as u8)
                .collect(),
        )
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.0.len()
    }

    /// What each channel is multiplied by `[channels]`; `None` if that is 1 for all.
    pub fn factors(&self) -> Option<Vec<f32>> {
        let factors = || {
            self.0
                .iter()
                .map(|steps| (-f32::from(*steps) / STEPS_OF_OCTAVE).exp2())
                .collect()
        };
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
        let steps = pairs
            .iter()
            .map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8));
        match steps.collect::<Option<Vec<u8>>>() {
            Some(steps) if rest.is_empty() => Ok(Self(steps)),
            _ => Err(serde::de::Error::custom(
                "expected two hexadecimal digits for each channel",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_two_digits_for_each_channel() {
        let smoothing = Smoothing(vec![0, 3, 255]);
        assert_eq!(serde_json::to_string(&smoothing).unwrap(), "\"0003ff\"");
        assert_eq!(
            serde_json::from_str::<Smoothing>("\"0003ff\"").unwrap(),
            smoothing
        );
        for wrong in ["\"000g\"", "\"000\"", "\"0é\"", "3"] {
            let error = serde_json::from_str::<Smoothing>(wrong)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("hexadecimal") || error.contains("expected a string"),
                "{wrong}: {error}"
            );
        }
    }
}
