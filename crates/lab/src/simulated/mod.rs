//! Questions that need many simulations: those that reviewers of llm.npu asked about its schedule, its individual
//! techniques, other apps, and outliers. There is one file per question. [`forms`] has other forms of equation 5, and
//! [`systems`] the schedules of other systems.

pub mod ablation;
pub mod contention;
pub mod forms;
pub mod outlier_rate;
pub mod policy;
pub mod systems;
