//! The parts of models that read texts and write none: learned embeddings next to that of the token, and the layers after
//! pooling.

use serde::{Deserialize, Serialize};

/// Learned embeddings that are added to that of the token (BERT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedInputs {
    /// The table of positions.
    pub positions: Option<Positions>,
    /// Rows of the table of token types: the first is for a text, the second for the second text of a pair. 0: there is
    /// no table.
    pub token_types: usize,
}

/// A table of learned embeddings of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Positions {
    /// Rows of the table.
    pub rows: usize,
    /// The row of the first position.
    pub first: usize,
    /// The token that has no position of its own: its row is that before the first (RoBERTa).
    pub padding: Option<u32>,
}

/// The layers after pooling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The layers, first to last.
    pub layers: Vec<Dense>,
    /// Whether the output is the score of a pair of texts, and not a vector. The pooled state is then that of the first
    /// token.
    pub scores: bool,
    /// The function that makes the score that users see of the output, if it is one.
    #[serde(default)]
    pub activation: ScoreActivation,
}

/// A function of the output of a classifier of pairs of texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScoreActivation {
    /// The sigmoid: a score from 0 to 1.
    #[default]
    Sigmoid,
    /// The output itself.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
}

/// A linear layer after pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dense {
    /// Columns of the weight.
    pub in_features: usize,
    /// Rows of the weight.
    pub out_features: usize,
    /// Whether it has a bias.
    pub bias: bool,
    /// Whether the output is its hyperbolic tangent.
    pub tanh: bool,
}

impl AddedInputs {
    /// Returns the parameters of the tables.
    pub(super) fn parameters(&self, hidden: usize) -> usize {
        (self.positions.map_or(0, |it| it.rows) + self.token_types) * hidden
    }
}

impl ScoreActivation {
    /// Returns the score for an output.
    pub fn apply(self, output: f64) -> f64 {
        match self {
            Self::Sigmoid => 1.0 / (1.0 + (-output).exp()),
            Self::Identity => output,
            Self::Tanh => output.tanh(),
        }
    }
}

impl Positions {
    /// Returns the number of positions.
    pub fn count(&self) -> usize {
        self.rows - self.first
    }
}

impl Head {
    /// Returns the width of the output.
    pub fn width(&self) -> usize {
        self.layers.last().map_or(0, |last| last.out_features)
    }

    /// Returns the parameters of all layers.
    pub(super) fn parameters(&self) -> usize {
        let of_layer = |layer: &Dense| {
            let bias = if layer.bias { layer.out_features } else { 0 };
            layer.in_features * layer.out_features + bias
        };
        self.layers.iter().map(of_layer).sum()
    }
}
