//! The weights that choose experts.

use std::borrow::Cow;

use triad_model::description::Experts;

use super::WeightMatrix;

/// The weights that choose experts for a row.
#[derive(Clone)]
pub struct Router {
    /// The rule of the choice.
    pub experts: Experts,
    /// `[experts, hidden]`.
    pub weight: WeightMatrix,
    /// `[experts]`.
    pub bias: Option<Vec<f32>>,
    /// Summands of the scores for the choice, `[experts]`.
    pub correction: Option<Vec<f32>>,
    /// Weight of the shared expert's gate, `[hidden]`.
    pub shared_gate: Option<Vec<f32>>,
}

/// One of the tensors of a [`Router`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterPart {
    /// [`Router::weight`].
    Weight,
    /// [`Router::bias`].
    Bias,
    /// [`Router::correction`].
    Correction,
    /// [`Router::shared_gate`].
    SharedGate,
}

impl RouterPart {
    /// Returns the parts that a router of `experts` has.
    pub fn of(experts: &Experts) -> impl Iterator<Item = Self> {
        let parts = [
            (Self::Weight, true),
            (Self::Bias, experts.bias),
            (Self::Correction, experts.correction),
            (Self::SharedGate, experts.shared_gate),
        ];
        let parts = parts.into_iter().filter(|(_, exists)| *exists);
        parts.map(|(part, _)| part)
    }

    /// Returns the shape in a model with this width of the residual stream.
    pub fn shape(self, experts: &Experts, hidden: usize) -> Vec<usize> {
        match self {
            Self::Weight => vec![experts.count, hidden],
            Self::Bias | Self::Correction => vec![experts.count],
            Self::SharedGate => vec![hidden],
        }
    }
}

impl Router {
    /// Returns the values of a part; `None` if the router does not have it.
    pub fn part(&self, part: RouterPart) -> Option<Cow<'_, [f32]>> {
        let vector = match part {
            RouterPart::Weight => return Some(Cow::Owned(self.weight.to_f32())),
            RouterPart::Bias => &self.bias,
            RouterPart::Correction => &self.correction,
            RouterPart::SharedGate => &self.shared_gate,
        };
        vector.as_deref().map(Cow::Borrowed)
    }

    /// Returns the bytes of the weights.
    pub fn bytes(&self) -> usize {
        let vector =
            |values: &Option<Vec<f32>>| values.as_ref().map_or(0, |it| size_of_val(&it[..]));
        self.weight.bytes()
            + vector(&self.bias)
            + vector(&self.correction)
            + vector(&self.shared_gate)
    }
}
