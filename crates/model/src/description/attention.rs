//! Attention of a block, and its RoPE.

use serde::{Deserialize, Serialize};

use super::Norm;

/// Attention of one block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Factor on query · key.
    pub scale: f32,
    /// Whether query, key and value linears have a bias.
    pub qkv_bias: bool,
    /// Whether the output linear has a bias.
    pub output_bias: bool,
    /// Whether the query linear gives each head a gate after its query, and the head's output is multiplied by the
    /// sigmoid of it (Qwen3-Next, Qwen3.5).
    #[serde(default)]
    pub output_gate: bool,
    /// Norm on queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Whether a query reads later positions, too: those of its whole text (encoders).
    #[serde(default)]
    pub bidirectional: bool,
    /// The sliding window: a query reads positions whose distance to its own is less than this; `None`: all of them.
    pub window: Option<usize>,
    /// The soft cap: scores become `cap · tanh(scores / cap)` (Gemma 2).
    pub soft_cap: Option<f32>,
    /// Whether each query head has a learned score without a value (gpt-oss).
    #[serde(default)]
    pub sinks: bool,
    /// Rotary position embedding.
    pub rope: Rope,
    /// The factor on queries by position (Ministral 3).
    #[serde(default)]
    pub temperature: Option<Temperature>,
    /// The source of keys and values.
    #[serde(default)]
    pub key_values: KeyValues,
    /// The epsilon of an RMS norm without weights on each head of the values (Gemma 4).
    #[serde(default)]
    pub value_norm: Option<f32>,
}

/// Latent vectors of attention (MLA). One vector of each position stands for the keys and values of all heads: it is
/// cached, and each head's key matrix is multiplied with the query instead of the vector, each head's value matrix with
/// the weighted sum of the vectors. So attention has one key-value head, whose keys are a part with RoPE and then the
/// vector, and whose values are its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latent {
    /// Width of the vector from which the queries are computed; `None`: the query linear gives the queries.
    pub query: Option<usize>,
    /// Width of the vector of keys and values.
    pub width: usize,
    /// Width of the part of a head's query that has no RoPE.
    pub key_dim: usize,
    /// Width of a head's value.
    pub value_dim: usize,
}

/// An RMS norm on queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QkNorm {
    /// The norm.
    #[serde(flatten)]
    pub norm: Norm,
    /// Whether one norm spans all heads (OLMo 2) and not each head alone (Qwen3, Gemma 3).
    #[serde(default)]
    pub spans_heads: bool,
    /// Whether it comes after RoPE (Hunyuan).
    #[serde(default)]
    pub after_rope: bool,
}

/// A factor on queries that grows with their position: `1 + scale · ln(1 + ⌊position / context⌋)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Temperature {
    /// Factor on the logarithm.
    pub scale: f32,
    /// Number of positions without a change.
    pub context: usize,
}

impl Temperature {
    /// Returns the factor at `position`.
    pub fn factor(&self, position: usize) -> f32 {
        1.0 + self.scale * ((1 + position / self.context) as f32).ln()
    }
}

impl Attention {
    /// Returns the earlier block whose keys and values it reads; `None`: it has its own.
    pub fn shared_from(&self) -> Option<usize> {
        match self.key_values {
            KeyValues::OfBlock(block) => Some(block),
            KeyValues::Own | KeyValues::OneLayer | KeyValues::Latent(_) => None,
        }
    }

    /// Returns its latent vectors, if it has some.
    pub fn latent(&self) -> Option<Latent> {
        match self.key_values {
            KeyValues::Latent(latent) => Some(latent),
            KeyValues::Own | KeyValues::OneLayer | KeyValues::OfBlock(_) => None,
        }
    }

    /// Returns the number of heads whose keys and values it writes to the cache: 0 if it reads those of another block.
    pub fn stored_heads(&self) -> usize {
        match self.shared_from() {
            Some(_) => 0,
            None => self.kv_heads,
        }
    }

    /// Returns the width of the query linear's output: all queries, and their gates if there are some, or a latent vector.
    pub fn query_width(&self) -> usize {
        match self.latent() {
            Some(Latent {
                query: Some(width), ..
            }) => width,
            Some(latent) => self.latent_queries(&latent),
            None => self.heads * self.head_dim * if self.output_gate { 2 } else { 1 },
        }
    }

    /// Returns the width of all queries before they are multiplied with the key matrices.
    pub fn latent_queries(&self, latent: &Latent) -> usize {
        self.heads * (latent.key_dim + self.rope.dims)
    }

    /// Returns the width of the values of all heads.
    pub fn output_width(&self) -> usize {
        self.heads
            * self
                .latent()
                .map_or(self.head_dim, |latent| latent.value_dim)
    }

    /// Returns whether values are cached, and not a part of the keys.
    pub fn stores_values(&self) -> bool {
        self.latent().is_none()
    }

    /// Returns the widths of the norms on queries and keys.
    pub fn qk_norm_widths(&self) -> [usize; 2] {
        if let Some(latent) = self.latent() {
            return [latent.query.unwrap_or(0), latent.width];
        }
        match self.qk_norm {
            Some(QkNorm {
                spans_heads: true, ..
            }) => [self.heads * self.head_dim, self.kv_heads * self.head_dim],
            _ => [self.head_dim; 2],
        }
    }
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Leading dimensions of a head that are rotated (`head_dim` unless partial); even. 0: the block embeds no positions
    /// (NoPE).
    pub dims: usize,
    /// The number of pairs, from the last one on, that keep their values (proportional RoPE of Gemma 4).
    #[serde(default)]
    pub still: usize,
    /// Base of the frequencies: `base^(−2i / dims)`.
    pub base: f32,
    /// The two dimensions that form a pair.
    pub pairing: RopePairing,
    /// The change of the frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// The two dimensions that RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopePairing {
    /// `i` and `i + dims/2`: the layout of `transformers`.
    Halves,
    /// `2i` and `2i + 1`: the layout of LLaMA and Mistral in GGUF.
    Adjacent,
}

/// The change of RoPE's frequencies for contexts longer than those of pre-training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopeScaling {
    /// The frequencies of pre-training.
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        /// Divisor of the frequencies.
        factor: f32,
    },
    /// Frequency `i` is divided by `factors[i]`: Llama 3, whose factors are computed from four numbers or stored in the
    /// file.
    Factors {
        /// One divisor per pair: `dims / 2` of them.
        factors: Vec<f32>,
    },
    /// YaRN: frequency `i` is divided by `factors[i]`, and cosine and sine have a factor.
    Yarn {
        /// One divisor per pair: `dims / 2` of them.
        factors: Vec<f32>,
        /// Factor on cosine and sine.
        attention_factor: f32,
    },
    /// Phi-3's LongRoPE: one set of divisors for sessions up to `original_context`, and one for longer ones.
    LongRope {
        /// Divisors in a session whose context is at most `original_context`.
        short: Vec<f32>,
        /// Divisors in longer sessions.
        long: Vec<f32>,
        /// Context of pre-training, in tokens.
        original_context: usize,
        /// Factor on cosine and sine.
        attention_factor: f32,
    },
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
    /// One linear layer, which gives one latent vector (DeepSeek).
    Latent(Latent),
    /// The keys and values of this earlier block, in whose cache they are (the smaller Gemma 4).
    OfBlock(usize),
}

impl KeyValues {
    /// Returns the number of linear layers that read the input of attention: query, key and value, or the first of them.
    pub fn layers(self) -> usize {
        match self {
            Self::Own => 3,
            Self::OneLayer | Self::Latent(_) => 2,
            Self::OfBlock(_) => 1,
        }
    }
}
