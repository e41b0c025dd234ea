//! The parts of models that read texts and write none: learned embeddings next to that of the token, and the layers after
//! pooling.

use serde::{Deserialize, Serialize};

use super::Norm;

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

/// The method that makes one vector of the hidden states of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pooling {
    /// The mean of all hidden states.
    #[default]
    Mean,
    /// The hidden state of the last token.
    Last,
    /// The hidden state of the first token.
    First,
}

/// The layers after pooling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The layers, first to last.
    pub layers: Vec<Dense>,
    /// The meaning of the output, if it is not a vector.
    pub classifier: Option<Classifier>,
}

/// The meaning of the output of a classifier of texts, or of pairs of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classifier {
    /// How the hidden states of a text become the input of the first layer.
    pub pooling: Pooling,
    /// Whether the rows are those of words in the output matrix, such as yes and no: such a model writes text, too.
    pub of_words: bool,
    /// Whether the one output is the difference of two rows, the first less the second.
    pub compares: bool,
    /// The names of the classes, in the order of the outputs; empty: there are none.
    pub labels: Vec<String>,
    /// The function that makes the score that users see of an output.
    pub activation: ScoreActivation,
    /// Whether an output is a number that the model estimates, and not that of a class.
    pub is_regression: bool,
    /// The token that is no part of a text where it ends the text: its states are not pooled.
    pub padding: Option<u32>,
}

/// A function of the outputs of a classifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScoreActivation {
    /// The sigmoid: a score from 0 to 1.
    #[default]
    Sigmoid,
    /// The output itself.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// The share of an output among those of all classes.
    Softmax,
}

/// A linear layer after pooling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dense {
    /// Columns of the weight.
    pub in_features: usize,
    /// Rows of the weight.
    pub out_features: usize,
    /// Whether it has a bias.
    pub bias: bool,
    /// The function of its output.
    pub activation: DenseActivation,
    /// The norm after that function.
    pub norm: Option<Norm>,
}

/// A function of the output of a linear layer after pooling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DenseActivation {
    /// The output itself.
    #[default]
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// The exact GELU.
    Gelu,
}

impl AddedInputs {
    /// Returns the parameters of the tables.
    pub(super) fn parameters(&self, hidden: usize) -> usize {
        (self.positions.map_or(0, |it| it.rows) + self.token_types) * hidden
    }
}

impl ScoreActivation {
    /// Returns the function that a class of `torch` computes, if it is one of these.
    pub fn of_torch(class: &str) -> Option<Self> {
        match class {
            "torch.nn.modules.activation.Sigmoid" => Some(Self::Sigmoid),
            "torch.nn.modules.linear.Identity" => Some(Self::Identity),
            "torch.nn.modules.activation.Tanh" => Some(Self::Tanh),
            _ => None,
        }
    }

    /// Returns the scores of all classes for their outputs.
    pub fn apply(self, outputs: &[f32]) -> Vec<f64> {
        let outputs = outputs.iter().map(|output| f64::from(*output));
        let largest = outputs.clone().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = outputs.clone().map(|output| (output - largest).exp()).sum();
        let score = |output: f64| match self {
            Self::Sigmoid => 1.0 / (1.0 + (-output).exp()),
            Self::Identity => output,
            Self::Tanh => output.tanh(),
            Self::Softmax => (output - largest).exp() / sum,
        };
        outputs.map(score).collect()
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
        match &self.classifier {
            Some(classifier) if classifier.compares => 1,
            _ => self.layers.last().map_or(0, |last| last.out_features),
        }
    }

    /// Returns whether a model with this head has an output matrix, by which it writes text.
    pub fn writes(&self) -> bool {
        self.classifier.as_ref().is_none_or(|it| it.of_words)
    }

    /// Returns the parameters of all layers. Rows of the output matrix are counted there.
    pub(super) fn parameters(&self) -> usize {
        if self.classifier.as_ref().is_some_and(|it| it.of_words) {
            return 0;
        }
        let of_layer = |layer: &Dense| {
            let bias = if layer.bias { layer.out_features } else { 0 };
            let norm = layer
                .norm
                .map_or(0, |norm| norm.parameters(layer.out_features));
            layer.in_features * layer.out_features + bias + norm
        };
        self.layers.iter().map(of_layer).sum()
    }
}
