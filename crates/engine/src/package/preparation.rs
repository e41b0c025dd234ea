//! The options with which the model of a package was quantized, and the decisions for each linear input.
//!
//! This is the part of `package.json` that determines the [`Quantization`]. With W4A16 there is no quantization plan,
//! and a package has the weights alone. The crate `triad-prepare` makes packages and computes these numbers.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::linear_input::LinearInput;
use crate::outlier_cache::HotChannels;
use crate::quantization::{
    DecodeWeights, InputQuantization, LinearFormat, OutputWeights, Quantization, WeightBits,
    WeightScales,
};

/// Options of preparing a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrepareOptions {
    /// Options of clip thresholds and formats.
    pub plan: PlanOptions,
    /// The shadows to prune.
    pub prune: Prune,
    /// The maximum number of tokens of the calibration text.
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

/// The number of inputs that lose their shadow, the least important first (llm.npu, §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prune {
    /// This share of them: 0 none, 1 all.
    Rate(f64),
    /// As many as increase the loss on held-out text by at most this share. None are pruned if no text is held out, or
    /// if the model has more than 2³⁰ weights, for which the search would take too much memory and time.
    Auto {
        /// Share of the float model's negative log-likelihood per token.
        budget: f64,
    },
}

impl Prune {
    /// The rate of the paper.
    pub const PAPER: Self = Self::Rate(0.85);
    /// [`Prune::Auto`] with the default budget.
    pub const AUTO: Self = Self::Auto { budget: 0.003 };
}

impl Default for Prune {
    /// Returns [`Prune::AUTO`]. On a CPU, shadows cost little time, since they read the same weights. On a phone's NPU,
    /// the search prunes as many shadows as it can without loss (docs/measurements/shadows.md).
    fn default() -> Self {
        Self::AUTO
    }
}

/// A rule that chooses a clip threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThresholdRule {
    /// The largest magnitude of the calibration text, so that it has no outliers.
    MaxMin,
    /// The threshold with as many outliers as a shadow may have, whether or not the input keeps its shadow.
    Percentile,
    /// The threshold with the least squared error of the layers' outputs. For an input with a shadow, outliers have no
    /// error, but there are at most as many as a shadow may have.
    #[default]
    LeastError,
}

/// The default share of outliers that a shadow may have, of all values. The paper's 0.1 to 0.3 % of the channels are 5
/// to 15 channels of models with a width of 2048 and more. A model with a width of 576 has as many, which is about 1 %.
pub const OUTLIER_SHARE: f64 = 0.01;

/// The default strength of smoothing a channel that exceeds the clip threshold, on a logarithmic scale. 1 would scale
/// the channel down to the threshold, and leave few quantization steps for the weights of the other channels.
pub const SMOOTHING_STRENGTH: f32 = 0.7;

/// Options of the quantization plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanOptions {
    /// Number formats of the linear layers. With W4A16, only `output_weights` also applies.
    #[serde(default)]
    pub linears: LinearFormat,
    /// The rule of clip thresholds.
    pub threshold: ThresholdRule,
    /// The weights that share one scale.
    pub weight_scales: WeightScales,
    /// The weights of decode.
    pub decode_weights: DecodeWeights,
    /// The weights of the output matrix.
    pub output_weights: OutputWeights,
    /// The share of outliers that a shadow may have, of all values.
    pub outlier_share: f64,
    /// The minimum share of an input's outliers that its hot channels cover.
    pub hot_share: f64,
    /// The strength of smoothing inputs without a shadow ([`Smoothing`]), from 0 to 1.
    pub smoothing: f32,
    /// With W4A16, the bits per weight of all layers and the output matrix together, scales included; `None`: all layers
    /// have four bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<f64>,
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
            bits: None,
        }
    }
}

/// Results of calibration for one linear input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputSummary {
    /// Index of the block.
    pub block: usize,
    /// The input within the block.
    pub input: LinearInput,
    /// Number of channels of the input.
    pub channels: usize,
    /// The largest magnitude in the calibration text.
    pub largest: f32,
    /// Clip threshold with a shadow.
    pub shadow_clip: f32,
    /// Clip threshold without a shadow, after smoothing.
    pub clip: f32,
    /// Smoothing without a shadow.
    pub smoothing: Smoothing,
    /// Largest magnitude / clip threshold with a shadow (llm.npu, §3.3).
    pub importance: f32,
    /// Expected squared error of the layers' outputs, relative to their square: with a shadow, without one.
    pub error: [f64; 2],
    /// Share of all values that exceed the clip threshold with a shadow.
    pub outlier_share: f64,
    /// Share of all values that exceed the clip threshold without a shadow, and are clipped.
    pub lost_share: f64,
    /// Number of channels with at least one outlier.
    pub outlier_channels: usize,
    /// The smallest set of channels with [`PlanOptions::hot_share`] of the outliers, ascending.
    pub hot_channels: Vec<u32>,
    /// Whether the shadow is kept.
    pub shadow: bool,
}

/// The bits of one linear layer, or of one layer of all experts of a block, that a budget chose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerBits {
    /// Index of the block; `None` for the output matrix.
    pub block: Option<usize>,
    /// The layer within the block ([`LayerGroup::layer`](super::layers::LayerGroup::layer)).
    pub layer: String,
    /// The bits of its weights.
    pub bits: WeightBits,
    /// The mean Kullback-Leibler divergence of the probabilities of the next token, in nats, if this layer alone has four
    /// bits, each weight the nearest number; 0 if it was not measured.
    pub divergence: f32,
}

/// A quantization plan and its origin: the content of a package other than the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preparation {
    /// The options.
    pub options: PrepareOptions,
    /// Name of the calibration text.
    pub calibration_text: String,
    /// Number of its tokens that were used.
    pub calibration_tokens: usize,
    /// Share of the inputs without a shadow.
    pub pruned: f64,
    /// Results for each input that a block has, in the order of the blocks; empty with W4A16.
    pub inputs: Vec<InputSummary>,
    /// The bits of all layers, in the order of [`groups`](super::layers::groups); empty without a budget of bits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerBits>,
}

impl Preparation {
    /// Returns the quantization plan; `None` with W4A16.
    pub fn quantization(&self) -> Option<Quantization> {
        match self.options.plan.linears {
            LinearFormat::W8a8 => Some(quantization(&self.inputs, &self.options.plan)),
            LinearFormat::W4a16 => None,
        }
    }
}

impl Preparation {
    /// Returns the hot channels of each block's inputs.
    pub fn hot_channels(&self) -> HotChannels {
        let of_block = |inputs: &[InputSummary]| {
            LinearInput::DENSE.map(|place| {
                let input = inputs.iter().find(|input| input.input == place);
                input.map_or_else(Vec::new, |input| input.hot_channels.clone())
            })
        };
        of_blocks(&self.inputs).map(of_block).collect()
    }
}

/// Returns the inputs of each block of `inputs`, which are in the order of the blocks.
pub fn of_blocks(inputs: &[InputSummary]) -> impl Iterator<Item = &[InputSummary]> {
    inputs.chunk_by(|one, other| one.block == other.block)
}

/// The plan for an input that a block does not have.
const UNUSED: InputQuantization = InputQuantization::Static {
    clip: 1.0,
    shadow: false,
    smoothing: None,
};

/// Returns the quantization plan of these `inputs`, which are in the order of the blocks.
pub fn quantization(inputs: &[InputSummary], options: &PlanOptions) -> Quantization {
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
        blocks: of_blocks(inputs)
            .map(|inputs| {
                let mut of_block = LinearInput::ALL.map(|_| UNUSED);
                for summary in inputs {
                    of_block[summary.input.index()] = input(summary);
                }
                of_block
            })
            .collect(),
    }
}

/// The steps per octave: factors of a [`Smoothing`] are 2 to the power of −n / 16, with n from 0 to 255.
const STEPS_OF_OCTAVE: f32 = 16.0;

/// The scale-down of each channel of an input, in sixteenths of an octave. Files store a string with two hexadecimal
/// digits per channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Smoothing(Vec<u8>);

impl Smoothing {
    /// Creates a smoothing that scales each channel down by this number of octaves, rounded to sixteenths, at most 255
    /// of them. A channel with a negative number is not scaled.
    pub fn by_octaves(octaves: impl IntoIterator<Item = f32>) -> Self {
        // The cast saturates: negative numbers become 0, numbers above 255 become 255.
        Self(
            octaves
                .into_iter()
                .map(|octaves| (octaves * STEPS_OF_OCTAVE).round() as u8)
                .collect(),
        )
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        self.0.len()
    }

    /// Returns the factor of each channel `[channels]`; `None` if all are 1.
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
