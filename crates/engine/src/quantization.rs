//! The number formats of a model's linear layers ([`LinearFormat`]), and the scales of INT8.
//!
//! A [`Quantization`] is the plan of INT8. For each block and [`LinearInput`], it has the clip threshold of
//! activations, and whether values that exceed it are computed separately as a shadow (llm.npu, §3.3). Calibration
//! creates the plan; a package stores it ([`crate::package::preparation`]).

use serde::{Deserialize, Serialize};
use triad_kernels::BlockFormat;
use triad_kernels::int4::GROUP;

use crate::linear_input::{Inputs, LinearInput};

/// The largest magnitude of an INT8 value; −128 is never produced.
pub const INT8_MAX: f32 = 127.0;

/// Returns the nearest clip threshold to `clip` with which activations can be quantized: its scale, clip / 127, is not
/// a denormal number, by which a division would overflow, and 127 · scale is finite. Returns 1 if `clip` is zero or not
/// a number, since an input that is zero throughout a text also needs a scale.
pub fn usable_clip(clip: f32) -> f32 {
    // A power of two keeps 127 · (clip / 127) finite despite rounding.
    const MAX: f32 = f32::MAX / 2.0;
    if clip > 0.0 {
        clip.clamp(INT8_MAX * f32::MIN_POSITIVE * 2.0, MAX)
    } else {
        1.0
    }
}

/// The number formats of the linear layers of the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinearFormat {
    /// Weights and activations in INT8, by a [`Quantization`] (llm.npu).
    #[default]
    W8a8,
    /// Weights in INT4 with one f16 scale for each [`GROUP`] of neighbours in a row;
    /// activations in float, rounded to 16 bits (HeteroLLM, §5.1). Layers whose rows are not whole groups have weights
    /// in f32. With a budget of bits per weight, layers have [`WeightBits`] of their own.
    W4a16,
}

/// The bits of the weights of a layer that reads float activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "BitsName", try_from = "BitsName")]
pub enum WeightBits {
    /// INT4 with one f16 scale for each group.
    Four,
    /// GGUF's Q5_0, with one f16 scale for each group.
    Five,
    /// INT8 with one f32 scale for each row.
    Eight,
    /// The quantized blocks of the model's file, which are not rounded again.
    Stored(BlockFormat),
}

impl WeightBits {
    /// Every number of bits to which weights are rounded, ascending.
    pub const ROUNDED: [Self; 3] = [Self::Four, Self::Five, Self::Eight];

    /// Returns the number of bits of a weight without its scale; `None` for blocks of the model's file.
    pub fn number(self) -> Option<u8> {
        match self {
            Self::Four => Some(4),
            Self::Five => Some(5),
            Self::Eight => Some(8),
            Self::Stored(_) => None,
        }
    }

    /// Returns the bits of a row with its scales; `None` if it is no whole number of groups.
    pub fn of_row(self, in_features: usize) -> Option<usize> {
        let of_numbers = |bits: usize| in_features.checked_mul(bits);
        let of_groups = |bits| {
            let scales = in_features / GROUP * 16;
            let is_whole = in_features.is_multiple_of(GROUP);
            of_numbers(bits)?.checked_add(scales).filter(|_| is_whole)
        };
        match self {
            Self::Four => of_groups(4),
            Self::Five => of_groups(5),
            Self::Eight => of_numbers(8)?.checked_add(32),
            Self::Stored(format) => {
                let is_whole = in_features.is_multiple_of(format.elements());
                let blocks = in_features / format.elements();
                blocks.checked_mul(8 * format.bytes()).filter(|_| is_whole)
            }
        }
    }

    /// Returns whether weights are rounded in groups, by the second moments of the layer's input.
    pub fn has_groups(self) -> bool {
        matches!(self, Self::Four | Self::Five)
    }

    /// Describes why rows of `in_features` weights do not have these bits, if [`WeightBits::of_row`] returns `None`.
    pub fn misfit(self, in_features: usize) -> String {
        let rows = format!("expected 8: rows of {in_features} weights are not whole");
        match self {
            Self::Stored(format) => format!("has blocks of {format}, {rows} blocks"),
            Self::Four | Self::Five | Self::Eight => {
                format!("has {} bits, {rows} groups", self.number().unwrap_or(0))
            }
        }
    }
}

/// [`WeightBits`] in `package.json`: the number, or the name of the file's format.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected 4, 5, 8 or the name of a format")]
enum BitsName {
    Number(u8),
    Format(String),
}

impl From<WeightBits> for BitsName {
    fn from(bits: WeightBits) -> Self {
        match bits {
            WeightBits::Four => Self::Number(4),
            WeightBits::Five => Self::Number(5),
            WeightBits::Eight => Self::Number(8),
            WeightBits::Stored(format) => Self::Format(format.name().to_owned()),
        }
    }
}

impl TryFrom<BitsName> for WeightBits {
    type Error = String;

    fn try_from(name: BitsName) -> Result<Self, String> {
        match name {
            BitsName::Number(number) => {
                let mut all = Self::ROUNDED.into_iter();
                all.find(|bits| bits.number() == Some(number))
                    .ok_or_else(|| format!("{number} bits, expected 4, 5 or 8"))
            }
            BitsName::Format(name) => {
                let mut all = BlockFormat::ALL.into_iter();
                let format = all.find(|format| format.name() == name);
                format
                    .map(Self::Stored)
                    .ok_or_else(|| format!("weights in {name:?}, expected a format of blocks"))
            }
        }
    }
}

/// The quantization plan of all linear layers of a model for INT8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantization {
    /// The weights that share one scale.
    pub weight_scales: WeightScales,
    /// The weights of the linear layers in decode.
    pub decode_weights: DecodeWeights,
    /// The weights of the output matrix.
    pub output_weights: OutputWeights,
    /// The inputs of each block.
    pub blocks: Vec<Inputs<InputQuantization>>,
}

/// The weights that share one scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightScales {
    /// One output channel.
    #[default]
    Channel,
    /// The whole matrix.
    Tensor,
}

/// The weights of decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecodeWeights {
    /// The same as in prefill.
    #[default]
    Int8,
    /// A second copy, with one scale for each 32 weights: half the bytes to read for each token.
    Int4,
}

/// The weights of the output matrix. Its activations stay in float.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputWeights {
    /// The weights of the model's file.
    Float,
    /// INT8 with one scale for each token of the vocabulary.
    #[default]
    Int8,
}

/// The quantization of one linear input to INT8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputQuantization {
    /// One scale for all tokens, known before the run.
    Static {
        /// The largest magnitude that INT8 represents: 127 · scale.
        clip: f32,
        /// Whether the excess over the clip threshold is computed in float and added.
        shadow: bool,
        /// Factors `[channels]` on the activations; the weights have the inverse.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        smoothing: Option<Vec<f32>>,
    },
    /// One scale for each token, computed at run time (LLM.int8()).
    Dynamic {
        /// Channels with a larger magnitude than this are computed in float.
        outlier_threshold: f32,
    },
}

impl InputQuantization {
    /// Returns the factors on the activations, if there are any.
    pub fn smoothing(&self) -> Option<&[f32]> {
        match self {
            Self::Static { smoothing, .. } => smoothing.as_deref(),
            Self::Dynamic { .. } => None,
        }
    }

    /// Returns whether the excess over the clip threshold is computed in float.
    pub fn has_shadow(&self) -> bool {
        matches!(self, Self::Static { shadow: true, .. })
    }
}

impl Quantization {
    /// Returns the quantization of one input of one block.
    pub fn input(&self, block: usize, input: LinearInput) -> &InputQuantization {
        &self.blocks[block][input.index()]
    }

    /// Returns the number of inputs that keep their shadow.
    pub fn shadows(&self) -> usize {
        self.blocks
            .iter()
            .flatten()
            .filter(|input| input.has_shadow())
            .count()
    }
}

#[cfg(test)]
mod tests {
    use triad_kernels::int8::QuantizedRows;

    use super::*;

    #[test]
    fn every_clip_threshold_that_is_made_usable_quantizes_any_activations() {
        let extremes = [
            0.0,
            f32::from_bits(1),
            f32::MIN_POSITIVE,
            1e-37,
            1.0,
            3.4e38,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
            -1.0,
        ];
        for clip in extremes.map(usable_clip) {
            assert_eq!(usable_clip(clip), clip);
            for shadow in [false, true] {
                let x = extremes.map(|x| if x.is_finite() { x } else { -f32::MAX });
                let mut rows = QuantizedRows::default();
                rows.quantize_static(&x, x.len(), clip / INT8_MAX, None, shadow);
                assert_eq!(rows.view().scales(), [clip / INT8_MAX]);
            }
        }
    }
}
