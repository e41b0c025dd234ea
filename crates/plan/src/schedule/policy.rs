//! The rules that choose the next task.

use serde::{Deserialize, Serialize};

/// The rule that chooses among the tasks that a processor can run. The order of the tasks is that of the [`Dag`](super::Dag): by
/// chunk, and within a chunk by subgraph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Each processor runs its tasks in order, even if later ones are ready, as in figure 13 (a) of the paper.
    InOrder,
    /// The task that has been ready for the longest time.
    Fifo,
    /// On processors other than the bottleneck, a task whose completion makes a task of the bottleneck ready. Among
    /// several, and on the bottleneck, the task that has been ready for the longest time. The
    /// [bottleneck](super::Dag::bottleneck) is the processor with the most expected work. The name comes from the NPU, the
    /// bottleneck of the paper's prefills.
    NpuFirst,
    /// The task with the largest C of equation 5 of the paper. On processors other than the
    /// [bottleneck](super::Dag::bottleneck), the paper's NPU, C is the time of the bottleneck's tasks that become ready when
    /// the task ends. On the bottleneck, it is the negative time of the other processors' tasks that become ready. The
    /// equation sums over all tasks that become ready; the text around it restricts them to these.
    Paper,
    /// The task with the longest remaining path (upward rank).
    CriticalPath,
    /// The [planned](super::Dag::with_plan) order on each processor. If the next task is not ready, the processor waits for it
    /// where the plan has it idle. Otherwise something is late, and it runs the first task that is ready. If tasks take
    /// other times than expected, the policy switches to the longest remaining path once that is expected to end
    /// earlier. Without a plan it uses the longest remaining path from the start.
    #[default]
    Planned,
}

impl Policy {
    /// Policies without a plan.
    pub const SIMPLE: [Self; 5] = [
        Self::InOrder,
        Self::Fifo,
        Self::NpuFirst,
        Self::Paper,
        Self::CriticalPath,
    ];
    /// All policies.
    pub const ALL: [Self; 6] = [
        Self::InOrder,
        Self::Fifo,
        Self::NpuFirst,
        Self::Paper,
        Self::CriticalPath,
        Self::Planned,
    ];

    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in-order",
            Self::Fifo => "fifo",
            Self::NpuFirst => "npu-first",
            Self::Paper => "paper",
            Self::CriticalPath => "critical-path",
            Self::Planned => "planned",
        }
    }
}
