//! The feed-forward of a block, dense or of experts.

use serde::{Deserialize, Serialize};

/// Feed-forward of one block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedForward {
    /// Inner width of the layers that all rows pass through: of a dense feed-forward, or of the shared expert. 0 if there
    /// are only experts, or no feed-forward.
    pub width: usize,
    /// `down(activation(gate(x)) · up(x))` if true, `down(activation(up(x)))` if false (Phi-2).
    pub gated: bool,
    /// The nonlinearity.
    pub activation: Activation,
    /// Factor on the output of the gate linear (Falcon-H1; others: 1).
    #[serde(default = "super::one")]
    pub gate_scale: f32,
    /// The number of standard deviations above the mean of a row's gates that is subtracted from each of them; those
    /// below it become 0, before the nonlinearity (Gemma 3n).
    #[serde(default)]
    pub cutoff: Option<f32>,
    /// Whether up and down linears have a bias.
    pub bias: bool,
    /// The experts, of which a router chooses some for each row (mixture of experts).
    #[serde(default)]
    pub experts: Option<Experts>,
}

impl FeedForward {
    /// Returns whether gates reach the nonlinearity as their layer computes them.
    pub fn has_plain_gates(&self) -> bool {
        self.gate_scale == 1.0 && self.cutoff.is_none()
    }
}

/// The experts of one block: feed-forwards of one shape, with the activation of their block, gated as that is. The output of
/// the chosen experts, each times its weight, is added to that of the dense layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that the router chooses for each row.
    pub used: usize,
    /// Inner width of one expert.
    pub width: usize,
    /// How the router's outputs become scores.
    pub routing: Routing,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalized: bool,
    /// Summand of this sum (LFM2, GLM-4.5; others: 0).
    #[serde(default)]
    pub sum_offset: f32,
    /// The lower bound of this sum (ERNIE 4.5; others: 0).
    #[serde(default)]
    pub sum_floor: f32,
    /// Factor on the weights of the chosen experts.
    pub scale: f32,
    /// Whether each score has a summand for the choice, which the weights lack (DeepSeek-V3, LFM2).
    pub correction: bool,
    /// Whether the router and the experts' layers have biases (gpt-oss).
    pub bias: bool,
    /// The limit of gpt-oss's activation, `(up + 1) · gate · sigmoid(1.702 · gate)`: gate is at most this number, and up
    /// within it on both sides. `None`: the activation of the block.
    pub clamp: Option<f32>,
    /// Whether the dense layers are a shared expert whose output has a sigmoid gate (Qwen2-MoE).
    pub shared_gate: bool,
    /// Whether the experts are a branch of their own next to the dense layers (Gemma 4). They read a norm of their own of
    /// the residual stream, and both outputs have a norm before they are added. The router reads an RMS norm of the
    /// stream, divided by √hidden, with a factor for each channel; the weight of each expert has a factor, too.
    #[serde(default)]
    pub branch: bool,
    /// The groups of which a row's experts are chosen; `None`: they may be any.
    #[serde(default)]
    pub groups: Option<ExpertGroups>,
}

/// Groups of experts with consecutive numbers, all as large. A row's experts come from its best groups (DeepSeek).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups from which a row's experts come.
    pub used: usize,
    /// The score of a group.
    pub score: GroupScore,
}

/// The score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupScore {
    /// That of its best expert (DeepSeek-V2).
    Best,
    /// The sum of those of its two best experts (DeepSeek-V3).
    BestTwo,
}

impl GroupScore {
    /// Returns the number of experts whose scores are added.
    pub fn experts(self) -> usize {
        match self {
            Self::Best => 1,
            Self::BestTwo => 2,
        }
    }
}

/// The function from the router's outputs to the scores of the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// Nonlinearity of the feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in its tanh form (`gelu_new`, `gelu_pytorch_tanh`).
    GeluTanh,
    /// GELU with the error function.
    Gelu,
    /// `max(x, 0)²` (Nemotron-H).
    ReluSquared,
}

impl Experts {
    /// Returns the parameters of the router, the correction, the shared expert's gate and a branch.
    pub(super) fn router_parameters(&self, hidden: usize) -> usize {
        let correction = if self.correction { self.count } else { 0 };
        let gate = if self.shared_gate { hidden } else { 0 };
        let bias = if self.bias { self.count } else { 0 };
        // Three norms, and the factors of the router's channels and of the experts.
        let branch = if self.branch {
            4 * hidden + self.count
        } else {
            0
        };
        self.count * hidden + bias + correction + gate + branch
    }
}
