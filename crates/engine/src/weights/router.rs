//! The weights that choose experts.

use std::borrow::Cow;

use triad_model::description::Experts;

use super::{Norm, WeightMatrix};

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
    /// The weights of experts that are a branch next to the dense layers.
    pub branch: Option<Branch>,
}

/// The weights of experts that are a branch next to dense layers.
#[derive(Clone)]
pub struct Branch {
    /// Norm before the router: its factors are those of the channels, divided by √hidden.
    pub router_norm: Norm,
    /// Factors on the weights of the experts.
    pub factors: Vec<f32>,
    /// Norm on the output of the dense layers.
    pub dense_norm: Norm,
    /// Norm before the experts.
    pub norm: Norm,
    /// Norm on the sum of the experts.
    pub post_norm: Norm,
}

impl Branch {
    /// Returns all norms.
    pub(super) fn norms(&self) -> [&Norm; 4] {
        [
            &self.router_norm,
            &self.dense_norm,
            &self.norm,
            &self.post_norm,
        ]
    }

    fn bytes(&self) -> usize {
        let norms = self.norms().map(Norm::bytes);
        norms.iter().sum::<usize>() + size_of_val(&self.factors[..])
    }
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
    pub fn present_in(experts: &Experts) -> impl Iterator<Item = Self> {
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
            + self.branch.as_ref().map_or(0, Branch::bytes)
    }
}
