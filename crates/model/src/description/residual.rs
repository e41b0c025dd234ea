//! How a block adds to the residual stream.

use serde::{Deserialize, Serialize};

/// The places of the norms and how the two halves of a block join the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residual {
    /// `x += attention(norm(x)); x += feed_forward(norm(x))`. LLaMA, Mistral, Qwen, Gemma 1, Phi-3.
    Serial,
    /// As serial, with another norm on the output of each half before it is added. Gemma 2 and 3.
    SerialPostNorm,
    /// `x += attention(norm(x)) + feed_forward(norm(x))` with one norm for both. Phi-2.
    Parallel,
    /// `x += norm(attention(x)); x += norm(feed_forward(x))`. OLMo 2 and 3, EXAONE 4.
    PostNorm,
    /// `x += mixer(norm(x))`, without a feed-forward. Nemotron-H, Falcon-H1.
    MixerAlone,
    /// `x += mixer(y); x += feed_forward(norm(x))`, where `y` is the norm that the mixer of the block before reads.
    /// Falcon-H1.
    SecondMixer,
    /// `x = norm(x); x += attention(x); x = norm(x); x += feed_forward(x)`: the norms replace the residual stream. BERT,
    /// whose norms after the residual additions are those before the next half of a block: the first is the norm of
    /// the embedding, and the last is the output norm.
    Replacing,
    /// `x = norm(x); x += attention(x); x += feed_forward(norm(x))`: a first block that reads the norm of the embedding
    /// (ModernBERT), before serial ones.
    SerialAfterNorm,
}

impl Residual {
    /// Returns whether attention reads a norm of the residual stream instead of the stream itself.
    pub fn has_attention_norm(self) -> bool {
        !matches!(self, Self::PostNorm | Self::SecondMixer)
    }

    /// Returns whether the feed-forward reads a norm of its own.
    pub fn has_feed_forward_norm(self) -> bool {
        matches!(
            self,
            Self::Serial
                | Self::SerialPostNorm
                | Self::SecondMixer
                | Self::Replacing
                | Self::SerialAfterNorm
        )
    }

    /// Returns whether there is a feed-forward.
    pub fn has_feed_forward(self) -> bool {
        self != Self::MixerAlone
    }

    /// Returns whether all norms replace the residual stream.
    pub fn replaces(self) -> bool {
        self == Self::Replacing
    }

    /// Returns whether the norm before attention replaces the residual stream.
    pub fn attention_norm_replaces(self) -> bool {
        matches!(self, Self::Replacing | Self::SerialAfterNorm)
    }

    /// Returns whether the outputs of attention and of the feed-forward have norms.
    pub fn has_post_norms(self) -> bool {
        matches!(self, Self::SerialPostNorm | Self::PostNorm)
    }

    /// Returns the number of norms of a block, as wide as the residual stream.
    pub fn norms(self) -> usize {
        let post_norms = if self.has_post_norms() { 2 } else { 0 };
        usize::from(self.has_attention_norm())
            + usize::from(self.has_feed_forward_norm())
            + post_norms
    }
}
