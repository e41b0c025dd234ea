//! Questions that many simulations decide: what reviewers of llm.npu asked of its schedule, its techniques one by
//! one, other apps, and outliers. One file a question; [`forms`] has other readings of equation 5,
//! [`systems`] the schedules of other systems.

pub mod ablation;
pub mod contention;
pub mod forms;
pub mod outlier_rate;
pub mod policy;
pub mod systems;
