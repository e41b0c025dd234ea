//! Token mixers: the part of a block in which rows see other rows. Attention reads keys and values of all positions;
//! the other mixers keep a state of fixed size, which holds all that they need of earlier positions.

use serde::{Deserialize, Serialize};

use super::{Attention, BlockDescription, Linear, LinearShape, Norm};

/// The token mixer of a block: linear layers, an operator over positions, and one linear layer on its output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mixer {
    /// Attention over all positions or a window of them.
    Attention(Attention),
    /// A gated convolution over the last few positions (LFM2).
    ShortConv(ShortConv),
}

/// The source of the keys and values of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyValues {
    /// A linear layer for keys and one for values.
    #[default]
    Own,
    /// One linear layer: values are the keys before their norm and RoPE (the larger Gemma 4).
    OneLayer,
    /// The keys and values of this earlier block, in whose cache they are (the smaller Gemma 4).
    OfBlock(usize),
}

impl KeyValues {
    /// Returns the number of linear layers that read the input of attention: query, key and value, or the first of them.
    pub fn layers(self) -> usize {
        match self {
            Self::Own => 3,
            Self::OneLayer => 2,
            Self::OfBlock(_) => 1,
        }
    }
}

/// A gated convolution. The input layer gives each row three parts, `b`, `c` and `x`; the operator computes
/// `c · conv(b · x)`, where the convolution is causal and treats each channel alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortConv {
    /// The width of each part.
    pub channels: usize,
    /// The positions that an output depends on, its own among them.
    pub taps: usize,
    /// Whether the convolution and both linear layers have a bias.
    pub bias: bool,
}

/// A weight of a mixer's operator, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixerWeight {
    /// The factors of a convolution `[taps, channels]`, of the earliest position first.
    Convolution,
    /// The bias of a convolution `[channels]`.
    ConvolutionBias,
    /// The sinks of attention `[heads]`.
    Sinks,
}

impl MixerWeight {
    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Convolution => "convolution",
            Self::ConvolutionBias => "convolution-bias",
            Self::Sinks => "sinks",
        }
    }
}

/// The sizes of a mixer's state, in f32 numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSize {
    /// The state after any number of rows.
    pub state: usize,
    /// The outputs of the input layers for one row: what advances the state by one position.
    pub row: usize,
}

impl Mixer {
    /// Returns the linear layers before the operator.
    pub(super) fn inputs(&self, hidden: usize) -> Vec<LinearShape> {
        let shape = |linear, out_features, bias| LinearShape {
            linear,
            out_features,
            in_features: hidden,
            bias,
        };
        match self {
            Self::Attention(attention) => {
                let query = attention.heads * attention.head_dim;
                let key_value = attention.kv_heads * attention.head_dim;
                let mut inputs = vec![
                    shape(Linear::Query, query, attention.qkv_bias),
                    shape(Linear::Key, key_value, attention.qkv_bias),
                    shape(Linear::Value, key_value, attention.qkv_bias),
                ];
                inputs.truncate(attention.key_values.layers());
                inputs
            }
            Self::ShortConv(ShortConv { channels, bias, .. }) => {
                vec![shape(Linear::MixerInput, 3 * channels, *bias)]
            }
        }
    }

    /// Returns the linear layer after the operator.
    pub(super) fn output(&self, hidden: usize) -> LinearShape {
        let (linear, bias) = match self {
            Self::Attention(attention) => (Linear::AttentionOutput, attention.output_bias),
            Self::ShortConv(ShortConv { bias, .. }) => (Linear::MixerOutput, *bias),
        };
        LinearShape {
            linear,
            out_features: hidden,
            in_features: self.width(),
            bias,
        }
    }

    /// Returns the width of the operator's output.
    pub fn width(&self) -> usize {
        match self {
            Self::Attention(attention) => attention.heads * attention.head_dim,
            Self::ShortConv(ShortConv { channels, .. }) => *channels,
        }
    }

    /// Returns the weights of the operator with their shapes.
    pub fn weights(&self) -> Vec<(MixerWeight, Vec<usize>)> {
        match *self {
            Self::Attention(Attention { sinks, heads, .. }) => match sinks {
                true => vec![(MixerWeight::Sinks, vec![heads])],
                false => Vec::new(),
            },
            Self::ShortConv(ShortConv {
                channels,
                taps,
                bias,
            }) => {
                let mut weights = vec![(MixerWeight::Convolution, vec![taps, channels])];
                if bias {
                    weights.push((MixerWeight::ConvolutionBias, vec![channels]));
                }
                weights
            }
        }
    }

    /// Returns the sizes of the state; `None` for attention, which keeps rows of all positions instead.
    pub fn state(&self) -> Option<StateSize> {
        match *self {
            Self::Attention(_) => None,
            Self::ShortConv(ShortConv { channels, taps, .. }) => Some(StateSize {
                state: (taps - 1) * channels,
                row: 3 * channels,
            }),
        }
    }
}

impl BlockDescription {
    /// Returns its attention; `None` if it has another mixer.
    pub fn attention(&self) -> Option<&Attention> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::ShortConv(_) => None,
        }
    }

    /// Returns its attention as [`BlockDescription::attention`] does, to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut Attention> {
        match &mut self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::ShortConv(_) => None,
        }
    }

    /// Returns the norms of its queries and keys with their widths, where it has some.
    pub fn qk_norms(&self) -> [Option<(Norm, usize)>; 2] {
        let attention = self.attention();
        let Some((attention, of)) = attention.and_then(|it| Some((it, it.qk_norm?))) else {
            return [None; 2];
        };
        let [query, key] = attention.qk_norm_widths();
        let has_keys = attention.shared_from().is_none();
        [Some((of.norm, query)), has_keys.then_some((of.norm, key))]
    }
}
