//! The weights that choose experts.

use triad_model::description::Experts;

use super::WeightMatrix;

/// The weights that choose experts for a row.
#[derive(Clone)]
pub struct Router {
    /// The rule of the choice.
    pub experts: Experts,
    /// `[experts, hidden]`.
    pub weight: WeightMatrix,
    /// Summands of the scores for the choice, `[experts]`.
    pub correction: Option<Vec<f32>>,
    /// Weight of the shared expert's gate, `[hidden]`.
    pub shared_gate: Option<Vec<f32>>,
}

impl Router {
    /// Returns the bytes of the weights.
    pub fn bytes(&self) -> usize {
        let vector =
            |values: &Option<Vec<f32>>| values.as_ref().map_or(0, |it| size_of_val(&it[..]));
        self.weight.bytes() + vector(&self.correction) + vector(&self.shared_gate)
    }
}
