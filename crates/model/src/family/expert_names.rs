//! The names of the tensors of experts.

/// Tensor names of a block with experts. A `*` stands for the number of an expert; without one, the tensor holds all
/// experts one after another. One name for gate and up: the tensor holds both of each expert.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertNames {
    pub(super) router: &'static str,
    pub(super) correction: &'static str,
    pub(super) gate: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    /// Endings of the experts' names: of a weight, and of a bias.
    pub(super) endings: [&'static str; 2],
    /// How tensors with several experts have them.
    pub(super) stacking: Stacking,
    /// Router, gate and up, and down in files that version 5 of `transformers` writes as it computes, whose names of
    /// experts have no endings.
    pub(super) stacked: Option<[&'static str; 3]>,
    /// Names of the shared expert.
    pub(super) shared: [&'static str; 3],
    pub(super) shared_gate: &'static str,
    /// Names of a branch: the factors of channels and experts with their endings, and the norms on the dense output, before
    /// the experts and on their output.
    pub(super) branch: [&'static str; 5],
}

/// How a tensor has the weights of several experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stacking {
    /// As rows, those of gate before those of up.
    Rows,
    /// Transposed.
    Columns,
    /// Transposed, where columns of gate and up alternate.
    Alternating,
}

impl Stacking {
    /// Returns whether matrices are transposed.
    pub(super) fn is_transposed(self) -> bool {
        self != Self::Rows
    }
}

/// Names of most checkpoints.
pub(super) const EXPERTS: ExpertNames = ExpertNames {
    router: "mlp.gate",
    correction: "mlp.gate.e_score_correction_bias",
    gate: "mlp.experts.*.gate_proj",
    up: "mlp.experts.*.up_proj",
    down: "mlp.experts.*.down_proj",
    endings: [".weight", ".bias"],
    stacking: Stacking::Rows,
    stacked: Some([
        "mlp.gate",
        "mlp.experts.gate_up_proj",
        "mlp.experts.down_proj",
    ]),
    shared: [
        "mlp.shared_expert.gate_proj",
        "mlp.shared_expert.up_proj",
        "mlp.shared_expert.down_proj",
    ],
    shared_gate: "mlp.shared_expert_gate",
    branch: [""; 5],
};
