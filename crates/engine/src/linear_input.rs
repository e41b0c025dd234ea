//! The inputs of linear layers: activations that are quantized once and read by one to four layers.

use serde::{Deserialize, Serialize};
use triad_model::description::{BlockDescription, Linear, LinearShape};

/// One value for each input of a block, in the order of [`LinearInput::ALL`]. The values of inputs that the block does
/// not have are not used.
pub type Inputs<T> = [T; LinearInput::ALL.len()];

/// One of the activations of a block that linear layers read. Each has one scale, one clip threshold and one shadow,
/// which all its layers share: the norm before them quantizes once. The experts of a block share theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinearInput {
    /// The norm before attention, read by query, key and value; or before another mixer.
    Attention,
    /// The output of the attention heads, or of another mixer's operator, read by the output layer.
    AttentionOutput,
    /// The norm before the feed-forward, read by gate and up.
    FeedForward,
    /// The activation times up, read by down.
    Down,
    /// The activation times up of an expert, read by its down.
    ExpertDown,
}

impl LinearInput {
    /// All inputs, in the order in which they are computed.
    pub const ALL: [Self; 5] = [
        Self::Attention,
        Self::AttentionOutput,
        Self::FeedForward,
        Self::Down,
        Self::ExpertDown,
    ];

    /// The inputs of a block without experts, the first of [`LinearInput::ALL`].
    pub const DENSE: [Self; 4] = [
        Self::Attention,
        Self::AttentionOutput,
        Self::FeedForward,
        Self::Down,
    ];

    /// Returns the input that `linear` reads.
    pub fn read_by(linear: Linear) -> Self {
        match linear {
            Linear::Query
            | Linear::Key
            | Linear::Value
            | Linear::MixerInput
            | Linear::MixerGate
            | Linear::MixerRate
            | Linear::MixerDecay => Self::Attention,
            Linear::AttentionOutput | Linear::MixerOutput => Self::AttentionOutput,
            Linear::Gate | Linear::Up | Linear::ExpertGate(_) | Linear::ExpertUp(_) => {
                Self::FeedForward
            }
            Linear::Down => Self::Down,
            Linear::ExpertDown(_) => Self::ExpertDown,
        }
    }

    /// Returns the inputs that a block has, in the order in which they are computed.
    pub fn of_block(block: &BlockDescription) -> impl Iterator<Item = Self> {
        // The width of the residual stream is not 0, so any will do.
        Self::ALL
            .into_iter()
            .filter(|input| input.channels(block, 1) > 0)
    }

    /// Returns the channels of the input in a block of a model with this width of the residual stream; 0 if the block
    /// does not have it.
    pub fn channels(self, block: &BlockDescription, hidden: usize) -> usize {
        match self {
            Self::Attention => hidden,
            Self::FeedForward if block.residual.has_feed_forward() => hidden,
            Self::FeedForward => 0,
            Self::AttentionOutput => block.mixer.width(),
            Self::Down => block.feed_forward.width,
            Self::ExpertDown => block.feed_forward.experts.map_or(0, |it| it.width),
        }
    }

    /// Returns the name in messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::AttentionOutput => "attention-output",
            Self::FeedForward => "feed-forward",
            Self::Down => "down",
            Self::ExpertDown => "expert-down",
        }
    }

    /// Returns its index in [`LinearInput::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Returns the channels of the inputs that these layers of a block read; 0 for others.
pub(crate) fn channels_of(linears: &[LinearShape]) -> Inputs<usize> {
    let mut channels = Inputs::default();
    for shape in linears {
        channels[LinearInput::read_by(shape.linear).index()] = shape.in_features;
    }
    channels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_as_wide_as_the_layers_that_read_it() {
        for name in triad_model::family::SHAPES {
            let description = triad_model::family::shape(name).unwrap();
            for block in &description.blocks {
                for shape in block.linears(description.hidden) {
                    let input = LinearInput::read_by(shape.linear);
                    assert_eq!(
                        input.channels(block, description.hidden),
                        shape.in_features,
                        "{:?}",
                        shape.linear
                    );
                }
            }
        }
    }
}
