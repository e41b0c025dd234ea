//! How the linear layers of a model are computed: in which [`LinearFormat`], and in INT8 by which scales.
//!
//! A [`Quantization`] is the plan: for each block and [`LinearInput`] where activations are clipped and whether what
//! is beyond runs beside it as a shadow (llm.npu, §3.3). It is made from calibration; a package stores it
//! ([`crate::package::preparation`]).

use serde::{Deserialize, Serialize};
use triad_processors::model::Int8Input;

use crate::linear_input::LinearInput;

/// Largest magnitude of an INT8 value; −128 is never produced.
pub const INT8_MAX: f32 = 127.0;

/// Returns the nearest clip threshold to `clip` by which activations can be quantized: its scale, clip / 127, is no denormal number, by which
/// nothing can be divided, and 127 · scale is finite. 1 where `clip` is zero or no number, since an input that is zero throughout a text
/// needs a scale, too.
pub fn usable_clip(clip: f32) -> f32 {
    // A power of two keeps 127 · (clip / 127) finite, whatever is rounded.
    const MOST: f32 = f32::MAX / 2.0;
    if clip > 0.0 {
        clip.clamp(INT8_MAX * f32::MIN_POSITIVE * 2.0, MOST)
    } else {
        1.0
    }
}

/// Number formats of the linear layers of the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinearFormat {
    /// Weights and activations in INT8, by a [`Quantization`] (llm.npu).
    #[default]
    W8a8,
    /// Weights in INT4 with one f16 scale for [`GROUP`](triad_kernels::int4::GROUP) neighbours of a row, activations in
    /// float, of which 16 bits are kept (HeteroLLM, §5.1). Layers whose rows are no whole groups have weights in f32.
    W4a16,
}

/// How all linear layers of a model are quantized to INT8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantization {
    /// What one weight scale covers.
    pub weight_scales: WeightScales,
    /// Weights of the linear layers while decoding.
    pub decode_weights: DecodeWeights,
    /// Weights of the output matrix.
    pub output_weights: OutputWeights,
    /// The four inputs of each block, in the order of [`LinearInput::ALL`].
    pub blocks: Vec<[InputQuantization; 4]>,
}

/// What one weight scale covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightScales {
    /// One output channel.
    #[default]
    Channel,
    /// The whole matrix.
    Tensor,
}

/// Weights that decode computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecodeWeights {
    /// Those of prefill.
    #[default]
    Int8,
    /// A second copy, with one scale for each 32 weights: half the bytes to read for each token.
    Int4,
}

/// Weights of the output matrix. Its activations stay in float.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputWeights {
    /// As the model's file has them.
    Float,
    /// One scale for each token of the vocabulary.
    #[default]
    Int8,
}

/// How one linear input becomes INT8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputQuantization {
    /// One scale for all tokens, known before the run.
    Static {
        /// Largest magnitude that INT8 represents: 127 · scale.
        clip: f32,
        /// What is beyond the clip threshold is computed in float and added.
        shadow: bool,
        /// Factors `[channels]` on the activations, whose inverse the weights carry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        smoothing: Option<Vec<f32>>,
    },
    /// One scale for each token, found while running (LLM.int8()).
    Dynamic {
        /// Channels with a magnitude beyond this are computed in float.
        outlier_threshold: f32,
    },
}

impl InputQuantization {
    /// Factors on the activations, where there are any.
    pub fn smoothing(&self) -> Option<&[f32]> {
        match self {
            Self::Static { smoothing, .. } => smoothing.as_deref(),
            Self::Dynamic { .. } => None,
        }
    }

    /// As devices take it; `None` where scales are found for each token.
    pub(crate) fn fixed(&self) -> Option<Int8Input<'_>> {
        match self {
            Self::Static {
                clip,
                shadow,
                smoothing,
            } => Some(Int8Input {
                scale: clip / INT8_MAX,
                smoothing: smoothing.as_deref(),
                has_shadow: *shadow,
            }),
            Self::Dynamic { .. } => None,
        }
    }

    /// Whether what is beyond the clip threshold is computed in float.
    pub fn has_shadow(&self) -> bool {
        matches!(self, Self::Static { shadow: true, .. })
    }
}

impl Quantization {
    /// How one input of one block is quantized.
    pub fn input(&self, block: usize, input: LinearInput) -> &InputQuantization {
        &self.blocks[block][input.index()]
    }

    /// Inputs whose shadow is kept.
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
