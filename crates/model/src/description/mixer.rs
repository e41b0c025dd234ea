//! Token mixers: the part of a block in which rows see other rows. Attention reads keys and values of all positions;
//! the other mixers keep a state of fixed size, which holds all that they need of earlier positions.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Attention, BlockDescription, Latent, Linear, LinearShape, Norm};

/// The token mixer of a block: linear layers, an operator over positions, and one linear layer on its output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mixer {
    /// Attention over all positions or a window of them.
    Attention(Attention),
    /// A gated convolution over the last few positions (LFM2).
    ShortConv(ShortConv),
    /// A matrix for each head that the delta rule corrects (Qwen3-Next, Qwen3.5).
    DeltaNet(DeltaNet),
    /// A matrix for each head that decays and is added to (Granite 4).
    Mamba2(Mamba2),
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

impl ShortConv {
    /// Returns the sizes of the state.
    pub fn state(&self) -> StateSize {
        StateSize {
            state: (self.taps - 1) * self.channels,
            row: 3 * self.channels,
        }
    }
}

/// A gated DeltaNet. A short convolution with SiLU treats each channel of queries, keys and values alone. Each value head
/// keeps a matrix from keys to values: a position decays it and corrects the value under its key by a rate, then reads
/// the value under its query. The output of a head is normed, then multiplied by SiLU of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaNet {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query or key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// The positions that an output of the convolution depends on, its own among them.
    pub taps: usize,
    /// The value heads that share a key head.
    pub sharing: HeadSharing,
    /// The number that is added to the mean square of a head's output.
    pub epsilon: f32,
}

/// The value heads that share a key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadSharing {
    /// Neighbors: the layout of `transformers`.
    Adjacent,
    /// Heads whose numbers have one remainder by the number of key heads: the layout of Qwen3.5 in GGUF.
    Remainder,
}

impl DeltaNet {
    /// Returns the width of all queries, or of all keys.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Returns the width of all values.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Returns the channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Returns the input layers with their widths, in the order of a row.
    pub fn inputs(&self) -> [(Linear, usize); 4] {
        [
            (Linear::MixerInput, self.channels()),
            (Linear::MixerGate, self.values()),
            (Linear::MixerRate, self.value_heads),
            (Linear::MixerDecay, self.value_heads),
        ]
    }

    /// Returns the sizes of the state: the convolution's last inputs, and a matrix for each value head.
    pub fn state(&self) -> StateSize {
        StateSize {
            state: (self.taps - 1) * self.channels() + self.values() * self.key_dim,
            row: self.inputs().iter().map(|(_, width)| width).sum(),
        }
    }
}

/// A Mamba-2. The input layer gives each row an output gate, the channels of a short convolution with SiLU (the values of
/// all heads, then input and output vectors of all groups), and a step for each head. Each head keeps a matrix: a position
/// decays it, adds the head's values times the input vector of its group, and reads it under the output vector. The
/// outputs are multiplied by SiLU of the gates, and normed in as many parts as there are groups.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Groups of neighboring heads with the same input and output vectors; divides `heads`.
    pub groups: usize,
    /// Width of these vectors.
    pub state: usize,
    /// The positions that an output of the convolution depends on, its own among them.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether both linear layers have a bias.
    pub bias: bool,
    /// The place of the norm of the outputs.
    #[serde(default)]
    pub norm: GateNorm,
    /// Factors on the parts of the input layer's outputs: gates, values, input vectors, output vectors and steps
    /// (Falcon-H1).
    #[serde(default)]
    pub factors: Option<[f32; 5]>,
    /// The number that is added to the mean square of the outputs.
    pub epsilon: f32,
}

/// The place of the norm of a Mamba-2's outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateNorm {
    /// After the outputs are multiplied by SiLU of their gates.
    #[default]
    AfterGate,
    /// Before that (Falcon-H1).
    BeforeGate,
    /// There is none (Falcon-H1).
    Never,
}

impl Mamba2 {
    /// Returns the widths of the parts of a row.
    pub fn parts(&self) -> [usize; 5] {
        let vectors = self.groups * self.state;
        [self.width(), self.width(), vectors, vectors, self.heads]
    }

    /// Returns the width of all heads.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the channels of the convolution.
    pub fn channels(&self) -> usize {
        self.width() + 2 * self.groups * self.state
    }

    /// Returns the width of the input layer's output.
    pub fn row(&self) -> usize {
        self.width() + self.channels() + self.heads
    }

    /// Returns the sizes of the state: the convolution's last inputs, and a matrix for each head.
    pub fn state_size(&self) -> StateSize {
        StateSize {
            state: (self.taps - 1) * self.channels() + self.width() * self.state,
            row: self.row(),
        }
    }
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
    /// The factors from steps to the logarithms of decays, which are negative, of each head.
    Decay,
    /// The summands of steps, of each head.
    DecayBias,
    /// The factors of the norm of a DeltaNet's head `[value_dim]`, or of all heads of a Mamba-2 `[width]`.
    HeadNorm,
    /// The factors of the values that a Mamba-2 adds to its outputs `[heads]`.
    Skip,
    /// The matrix from a latent vector to queries `[heads · (key_dim + RoPE's dimensions), width of the vector]`.
    LatentQuery,
    /// The matrices that are multiplied with queries, so that they fit latent vectors `[heads, width, key_dim]`.
    LatentKey,
    /// The matrices from latent vectors to values `[heads, value_dim, width]`.
    LatentValue,
}

impl MixerWeight {
    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Convolution => "convolution",
            Self::ConvolutionBias => "convolution-bias",
            Self::Sinks => "sinks",
            Self::Decay => "decay",
            Self::DecayBias => "decay-bias",
            Self::HeadNorm => "head-norm",
            Self::Skip => "skip",
            Self::LatentQuery => "latent-query",
            Self::LatentKey => "latent-key",
            Self::LatentValue => "latent-value",
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
                let query = attention.query_width();
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
            Self::DeltaNet(net) => net
                .inputs()
                .map(|(linear, width)| shape(linear, width, false))
                .to_vec(),
            Self::Mamba2(mamba) => vec![shape(Linear::MixerInput, mamba.row(), mamba.bias)],
        }
    }

    /// Returns the columns of the outputs of an input layer within a row, of those mixers that keep a state.
    pub fn columns(&self, linear: Linear) -> Option<Range<usize>> {
        match self {
            Self::Attention(_) => None,
            Self::ShortConv(ShortConv { channels, .. }) => {
                (linear == Linear::MixerInput).then_some(0..3 * channels)
            }
            Self::DeltaNet(net) => {
                let mut first = 0;
                net.inputs().into_iter().find_map(|(input, width)| {
                    first += width;
                    (input == linear).then_some(first - width..first)
                })
            }
            Self::Mamba2(mamba) => (linear == Linear::MixerInput).then_some(0..mamba.row()),
        }
    }

    /// Returns the linear layer after the operator.
    pub(super) fn output(&self, hidden: usize) -> LinearShape {
        let (linear, bias) = match self {
            Self::Attention(attention) => (Linear::AttentionOutput, attention.output_bias),
            Self::ShortConv(ShortConv { bias, .. }) => (Linear::MixerOutput, *bias),
            Self::DeltaNet(_) => (Linear::MixerOutput, false),
            Self::Mamba2(Mamba2 { bias, .. }) => (Linear::MixerOutput, *bias),
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
            Self::Attention(attention) => attention.output_width(),
            Self::ShortConv(ShortConv { channels, .. }) => *channels,
            Self::DeltaNet(net) => net.values(),
            Self::Mamba2(mamba) => mamba.width(),
        }
    }

    /// Returns the weights of the operator with their shapes.
    pub fn weights(&self) -> Vec<(MixerWeight, Vec<usize>)> {
        match *self {
            Self::Attention(ref attention) => {
                let sinks = (MixerWeight::Sinks, vec![attention.heads]);
                let sinks = attention.sinks.then_some(sinks);
                sinks
                    .into_iter()
                    .chain(attention.latent_weights())
                    .collect()
            }
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
            Self::DeltaNet(net) => vec![
                (MixerWeight::Convolution, vec![net.taps, net.channels()]),
                (MixerWeight::Decay, vec![net.value_heads]),
                (MixerWeight::DecayBias, vec![net.value_heads]),
                (MixerWeight::HeadNorm, vec![net.value_dim]),
            ],
            Self::Mamba2(mamba) => {
                let mut weights = vec![
                    (MixerWeight::Convolution, vec![mamba.taps, mamba.channels()]),
                    (MixerWeight::Decay, vec![mamba.heads]),
                    (MixerWeight::DecayBias, vec![mamba.heads]),
                    (MixerWeight::Skip, vec![mamba.heads]),
                ];
                if mamba.norm != GateNorm::Never {
                    weights.push((MixerWeight::HeadNorm, vec![mamba.width()]));
                }
                if mamba.conv_bias {
                    weights.push((MixerWeight::ConvolutionBias, vec![mamba.channels()]));
                }
                weights
            }
        }
    }

    /// Returns the sizes of the state; `None` for attention, which keeps rows of all positions instead.
    pub fn state(&self) -> Option<StateSize> {
        match *self {
            Self::Attention(_) => None,
            Self::ShortConv(conv) => Some(conv.state()),
            Self::DeltaNet(net) => Some(net.state()),
            Self::Mamba2(mamba) => Some(mamba.state_size()),
        }
    }
}

impl Attention {
    /// Returns the weights that its latent vectors have.
    fn latent_weights(&self) -> Vec<(MixerWeight, Vec<usize>)> {
        let Some(latent) = self.latent() else {
            return Vec::new();
        };
        let Latent {
            query,
            width,
            key_dim,
            value_dim,
        } = latent;
        let query = query.map(|query| {
            let shape = vec![self.latent_queries(&latent), query];
            (MixerWeight::LatentQuery, shape)
        });
        let heads = self.heads;
        let of_heads = [
            (MixerWeight::LatentKey, vec![heads, width, key_dim]),
            (MixerWeight::LatentValue, vec![heads, value_dim, width]),
        ];
        query.into_iter().chain(of_heads).collect()
    }
}

impl BlockDescription {
    /// Returns its attention; `None` if it has another mixer.
    pub fn attention(&self) -> Option<&Attention> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::ShortConv(_) | Mixer::DeltaNet(_) | Mixer::Mamba2(_) => None,
        }
    }

    /// Returns its attention as [`BlockDescription::attention`] does, to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut Attention> {
        match &mut self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::ShortConv(_) | Mixer::DeltaNet(_) | Mixer::Mamba2(_) => None,
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
        // The query linear of a latent vector may give the queries.
        let query = (query > 0).then_some((of.norm, query));
        [query, has_keys.then_some((of.norm, key))]
    }
}
