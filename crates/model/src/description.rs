//! The description of a transformer as data: every family that Triad runs is one value of [`ModelDescription`].
//!
//! The engine reads only this; it never checks which family a model belongs to. A new family is a new mapping in
//! [`crate::family`], not new code in the engine.

mod attention;
mod check;
mod encoder;
mod feed_forward;
mod mixer;
mod picture_rope;
mod residual;
mod streams;
mod token_inputs;

use serde::{Deserialize, Serialize};

pub use attention::{
    Attention, KeyValues, Latent, QkNorm, Rope, RopePairing, RopeScaling, Temperature,
};
pub(crate) use check::limits;
pub use encoder::{
    AddedInputs, Classifier, Dense, DenseActivation, Head, Pooling, Positions, ScoreActivation,
};
pub use feed_forward::{Activation, ExpertGroups, Experts, FeedForward, GroupScore, Routing};
pub use mixer::{
    DeltaNet, GateNorm, HeadSharing, Mamba2, Mixer, MixerWeight, ShortConv, StateSize,
};
pub use picture_rope::PictureRope;
pub use residual::Residual;
pub use streams::Streams;
pub use token_inputs::TokenInputs;

/// A transformer: embedding, blocks, final norm, output matrix. An [encoder](ModelDescription::is_encoder) has no output
/// matrix of its own, and may have layers after pooling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// Family name, mostly that of GGUF's `general.architecture`: `llama`, `qwen3`, `gemma4`.
    pub family: String,
    /// Name from the model's author, if the file has one.
    pub name: Option<String>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the output matrix.
    pub vocab: usize,
    /// Longest context in tokens that the model was made for.
    pub context: usize,
    /// Factor on the embedding before the first block (Gemma: √hidden; Granite: any; others: 1).
    pub embedding_scale: f32,
    /// Factor on the output of attention and of the feed-forward before they are added (Granite; others: 1).
    #[serde(default = "one")]
    pub residual_scale: f32,
    /// Factor on the logits (Granite; others: 1).
    #[serde(default = "one")]
    pub logit_scale: f32,
    /// The blocks, first to last.
    pub blocks: Vec<BlockDescription>,
    /// Norm between the last block and the output matrix.
    pub output_norm: Norm,
    /// Whether the output matrix is the embedding.
    pub tied_output: bool,
    /// Whether the output matrix has a bias (Phi-2).
    pub output_bias: bool,
    /// The soft cap: logits become `cap · tanh(logits / cap)` (Gemma 2).
    pub logit_soft_cap: Option<f32>,
    /// Inputs of all blocks by token (Gemma 3n and 4).
    #[serde(default)]
    pub token_inputs: Option<TokenInputs>,
    /// Several residual streams (Gemma 3n).
    #[serde(default)]
    pub streams: Option<Streams>,
    /// Learned embeddings of positions and token types.
    #[serde(default)]
    pub added_inputs: AddedInputs,
    /// The layers after pooling.
    #[serde(default)]
    pub head: Option<Head>,
    /// The axes of RoPE that rows of pictures have positions on (Qwen). All positions of a token of text are the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture_rope: Option<PictureRope>,
    /// The head that predicts one more token, if the file has one that Triad runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp: Option<Box<Mtp>>,
}

/// The head of a model that predicts the token after the next one
/// ([DeepSeek-V3](https://arxiv.org/abs/2412.19437), section 2.2). One block reads a projection of two normed rows: the
/// embedding of the next token, and the hidden state of the model at the position before it, after the last norm. A norm
/// and the output matrix of the model follow. The hidden state of the head stands for that of the model one position later,
/// so that the head predicts further tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mtp {
    /// The block, with attention and keys and values of its own.
    pub block: BlockDescription,
    /// The kind of the three norms outside the block: of the embedding, of the state, and before the output matrix.
    pub norm: Norm,
}

pub(crate) fn one() -> f32 {
    1.0
}

/// One block: a token mixer and a feed-forward around the residual stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockDescription {
    /// The token mixer: attention in most families.
    #[serde(flatten)]
    pub mixer: Mixer,
    /// Feed-forward.
    pub feed_forward: FeedForward,
    /// Factor on the output of the mixer before it is added (Falcon-H1; others: 1).
    #[serde(default = "one")]
    pub mixer_scale: f32,
    /// Factor on the output of the feed-forward before it is added (Falcon-H1; others: 1).
    #[serde(default = "one")]
    pub feed_forward_scale: f32,
    /// The kind of all norms of a block.
    pub norm: Norm,
    /// The places of norms and residual additions.
    pub residual: Residual,
    /// Whether the residual stream after the block has a learned factor (Gemma 4).
    #[serde(default)]
    pub scaled: bool,
}

/// A normalization over the last dimension.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    /// The kind of normalization.
    pub kind: NormKind,
    /// The number that is added to the mean square or the variance.
    pub epsilon: f32,
    /// The number that is added to the stored weight: 1 if a checkpoint stores `weight - 1` (Gemma safetensors), else
    /// 0.
    pub weight_offset: f32,
}

impl Norm {
    /// Returns the weights and biases of a norm over `width` features.
    pub fn parameters(&self, width: usize) -> usize {
        match self.kind {
            NormKind::Rms | NormKind::Centered => width,
            NormKind::Layer => 2 * width,
        }
    }
}

/// Kind of a [`Norm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormKind {
    /// `x / √(mean(x²) + ε) · weight`.
    Rms,
    /// `(x − mean) / √(variance + ε) · weight + bias`.
    Layer,
    /// The same without a bias (ModernBERT).
    Centered,
}

impl ModelDescription {
    /// Returns the parameters of the model: every weight, bias and norm; a tied output counts once. Those of the
    /// [head](Mtp) are not among them.
    pub fn parameters(&self) -> usize {
        let norm = |norm: &Norm| norm.parameters(self.hidden);
        let blocks: usize = self
            .blocks
            .iter()
            .map(|block| {
                let qk_norms = block.qk_norms().into_iter().flatten();
                let qk_norm: usize = qk_norms.map(|(_, width)| width).sum();
                let mixer: usize = block
                    .mixer
                    .weights()
                    .iter()
                    .map(|(_, shape)| shape.iter().product::<usize>())
                    .sum();
                let linears: usize = block
                    .linears(self.hidden)
                    .iter()
                    .map(LinearShape::parameters)
                    .sum();
                let router = match block.feed_forward.experts {
                    Some(experts) => experts.router_parameters(self.hidden),
                    None => 0,
                };
                let token_input = self
                    .token_inputs
                    .map_or(0, |it| it.block_parameters(self.hidden));
                let streams = self
                    .streams
                    .map_or(0, |it| it.block_parameters(self.hidden));
                linears
                    + block.residual.norms() * norm(&block.norm)
                    + qk_norm
                    + mixer
                    + router
                    + token_input
                    + streams
                    + usize::from(block.scaled)
            })
            .sum();
        let output = if self.tied_output {
            0
        } else {
            self.vocab * self.hidden
        };
        let output_bias = if self.output_bias { self.vocab } else { 0 };
        let token_inputs = self.token_inputs.map_or(0, |it| {
            it.shared_parameters(self.vocab, self.hidden, self.blocks.len())
        });
        self.vocab * self.hidden
            + blocks
            + norm(&self.output_norm)
            + output
            + output_bias
            + token_inputs
            + self
                .streams
                .map_or(0, |it| it.shared_parameters(self.hidden))
            + self.added_inputs.parameters(self.hidden)
            + self.head.as_ref().map_or(0, Head::parameters)
    }

    /// Returns the parameters of the [head](Mtp), without the embedding and the output matrix that it shares; 0 if there is
    /// none.
    pub fn mtp_parameters(&self) -> usize {
        let Some(head) = self.mtp_model() else {
            return 0;
        };
        let output = if head.tied_output { 1 } else { 2 };
        let bias = if head.output_bias { head.vocab } else { 0 };
        let shared = output * head.vocab * head.hidden + bias;
        let joined = 2 * head.output_norm.parameters(self.hidden) + 2 * self.hidden * self.hidden;
        head.parameters() - shared + joined
    }

    /// Returns the description of the [head](Mtp) as a model of one block.
    pub fn mtp_model(&self) -> Option<Self> {
        let mtp = self.mtp.as_deref()?;
        Some(Self {
            blocks: vec![mtp.block.clone()],
            output_norm: mtp.norm,
            token_inputs: None,
            streams: None,
            added_inputs: AddedInputs::default(),
            head: None,
            picture_rope: None,
            mtp: None,
            ..self.clone()
        })
    }

    /// Returns whether the model reads each text as a whole, without an order of its tokens in attention. Such a model
    /// computes vectors or scores of texts, and writes no text.
    pub fn is_encoder(&self) -> bool {
        let mut attentions = self.blocks.iter().filter_map(BlockDescription::attention);
        attentions.any(|attention| attention.bidirectional)
    }

    /// Returns whether the model has an output matrix, by which it writes text.
    pub fn writes(&self) -> bool {
        !self.is_encoder() && self.head.as_ref().is_none_or(Head::writes)
    }

    /// Returns the classifier of texts, or of pairs of texts, if the model has one.
    pub fn classifier(&self) -> Option<&Classifier> {
        self.head.as_ref()?.classifier.as_ref()
    }

    /// Returns the width of a vector of a text, or the number of outputs of a classifier.
    pub fn vector_width(&self) -> usize {
        self.head.as_ref().map_or(self.hidden, Head::width)
    }

    /// Returns the parameters that one token uses: those of [`ModelDescription::parameters`] without the experts that its
    /// router does not choose.
    pub fn active_parameters(&self) -> usize {
        let idle = |block: &BlockDescription| match block.feed_forward.experts {
            Some(experts) => {
                let bias = if experts.bias {
                    2 * experts.width + self.hidden
                } else {
                    0
                };
                let layers = if block.feed_forward.gated { 3 } else { 2 };
                let expert = layers * experts.width * self.hidden + bias;
                (experts.count - experts.used) * expert
            }
            None => 0,
        };
        self.parameters() - self.blocks.iter().map(idle).sum::<usize>()
    }

    /// Returns whether a block has experts.
    pub fn has_experts(&self) -> bool {
        self.blocks
            .iter()
            .any(|block| block.feed_forward.experts.is_some())
    }

    /// Returns what only one CPU runs, if the model has such a part.
    pub fn only_for_one_cpu(&self) -> Option<&'static str> {
        let mut residuals = self.blocks.iter().map(|block| block.residual);
        let is_single = |it: Residual| matches!(it, Residual::MixerAlone | Residual::SecondMixer);
        match self.has_experts() {
            _ if self.is_encoder() => Some("is an encoder"),
            true => Some("is a mixture of experts"),
            false if self.streams.is_some() => Some("has several residual streams"),
            false if self.has_cutoffs() => Some("sets small gates to 0"),
            false if residuals.any(is_single) => Some("has blocks without a feed-forward"),
            false if self.blocks.iter().any(BlockDescription::has_factors) => {
                Some("has factors on parts of blocks")
            }
            false => None,
        }
    }

    fn has_cutoffs(&self) -> bool {
        let mut feed_forwards = self.blocks.iter().map(|block| &block.feed_forward);
        feed_forwards.any(|it| it.cutoff.is_some())
    }

    /// Returns whether the experts of a block, or of the block of the [head](Mtp), are a branch next to a dense
    /// feed-forward.
    pub fn has_expert_branches(&self) -> bool {
        let of_head = self.mtp.iter().map(|head| &head.block);
        let mut blocks = self.blocks.iter().chain(of_head);
        blocks.any(|it| it.feed_forward.experts.is_some_and(|it| it.branch))
    }

    /// Returns the bytes of keys and values per token of context. `bytes_per_head` returns the bytes of one key or
    /// value of a head's width (twice the width in f16).
    pub fn kv_bytes_per_token(&self, bytes_per_head: impl Fn(usize) -> usize) -> usize {
        let of_block = |block: &BlockDescription| {
            block.attention().map_or(0, |attention| {
                let parts = if attention.stores_values() { 2 } else { 1 };
                parts * attention.stored_heads() * bytes_per_head(attention.head_dim)
            })
        };
        self.blocks.iter().map(of_block).sum()
    }

    /// Returns whether a block reads the keys and values of another one.
    pub fn shares_keys(&self) -> bool {
        let mut attentions = self.blocks.iter().filter_map(BlockDescription::attention);
        attentions.any(|attention| attention.shared_from().is_some())
    }

    /// Returns the sizes of the states of all mixers that have one.
    pub fn states(&self) -> impl Iterator<Item = StateSize> {
        self.blocks.iter().filter_map(|block| block.mixer.state())
    }
}

/// One of the linear layers of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Linear {
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Output projection of attention.
    AttentionOutput,
    /// Gate projection of a gated feed-forward.
    Gate,
    /// Up projection.
    Up,
    /// Down projection.
    Down,
    /// Input projection of a mixer with a state.
    MixerInput,
    /// Output projection of a mixer with a state.
    MixerOutput,
    /// Projection of a DeltaNet's output gates.
    MixerGate,
    /// Projection of a DeltaNet's rates of correction.
    MixerRate,
    /// Projection of a DeltaNet's decays.
    MixerDecay,
    /// Gate projection of an expert.
    ExpertGate(u16),
    /// Up projection of an expert.
    ExpertUp(u16),
    /// Down projection of an expert.
    ExpertDown(u16),
}

impl Linear {
    /// Returns whether it is a layer of a mixer with a state.
    pub fn is_of_mixer(self) -> bool {
        matches!(
            self,
            Self::MixerInput
                | Self::MixerGate
                | Self::MixerRate
                | Self::MixerDecay
                | Self::MixerOutput
        )
    }

    /// Returns whether it is a layer of an expert.
    pub fn is_of_expert(self) -> bool {
        self.expert().is_some()
    }

    /// Returns the number of the expert that it is a layer of.
    pub fn expert(self) -> Option<usize> {
        match self {
            Self::ExpertGate(expert) | Self::ExpertUp(expert) | Self::ExpertDown(expert) => {
                Some(expert.into())
            }
            _ => None,
        }
    }
}

/// Shape of one linear layer: weight `[out_features, in_features]`, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// The linear layer.
    pub linear: Linear,
    /// Rows of the weight.
    pub out_features: usize,
    /// Columns of the weight.
    pub in_features: usize,
    /// Whether it has a bias of `out_features` values.
    pub bias: bool,
}

impl LinearShape {
    /// Returns the number of weights and biases.
    pub fn parameters(&self) -> usize {
        self.out_features * self.in_features + if self.bias { self.out_features } else { 0 }
    }
}

impl BlockDescription {
    /// Returns whether a part of the block has a factor of its own.
    fn has_factors(&self) -> bool {
        let factors = [
            self.mixer_scale,
            self.feed_forward_scale,
            self.feed_forward.gate_scale,
        ];
        factors != [1.0; 3]
    }

    /// Returns the linear layers in the order in which they run, with their shapes.
    pub fn linears(&self, hidden: usize) -> Vec<LinearShape> {
        let width = self.feed_forward.width;
        let bias = self.feed_forward.bias;
        let shape = |linear, out_features, in_features, bias| LinearShape {
            linear,
            out_features,
            in_features,
            bias,
        };
        let mut linears = self.mixer.inputs(hidden);
        linears.push(self.mixer.output(hidden));
        if width > 0 {
            if self.feed_forward.gated {
                linears.push(shape(Linear::Gate, width, hidden, bias));
            }
            linears.push(shape(Linear::Up, width, hidden, bias));
            linears.push(shape(Linear::Down, hidden, width, bias));
        }
        if let Some(Experts {
            count, width, bias, ..
        }) = self.feed_forward.experts
        {
            for expert in (0..count).map(|expert| expert as u16) {
                if self.feed_forward.gated {
                    linears.push(shape(Linear::ExpertGate(expert), width, hidden, bias));
                }
                linears.push(shape(Linear::ExpertUp(expert), width, hidden, bias));
                linears.push(shape(Linear::ExpertDown(expert), hidden, width, bias));
            }
        }
        linears
    }
}
