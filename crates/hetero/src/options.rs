//! The options of an engine on several processors.

use std::time::Duration;

use triad_engine::EngineOptions;
use triad_engine::outlier_cache::OutlierCacheOptions;
use triad_model::role::Role;
use triad_plan::joint::PromptPlanner;
use triad_plan::partition::plans::Plans;
use triad_plan::schedule::Policy;
use triad_plan::schedule::parts::Cut;

use crate::products::DecodePlans;
use crate::wait::Wait;
use crate::workers::ProcessorOptions;

/// The options of an engine on several processors.
#[derive(Clone)]
pub struct HeteroOptions {
    /// The options that every engine has.
    pub engine: EngineOptions,
    /// The processors; if there are none, the model's own threads compute.
    pub processors: Vec<ProcessorOptions>,
    /// The policy that selects the next task.
    pub policy: Policy,
    /// Roles whose outputs are cut across processors: any of query-key-value, attention-output, gate-up and down.
    pub cuts: Vec<(Role, Cut)>,
    /// How the outputs of all products are cut, for all lengths of a chunk, instead of `cuts`.
    pub plans: Option<Plans>,
    /// The search that plans each length of a prompt, over cuts, placement and out-of-order execution, instead of
    /// `cuts` and `plans`.
    pub joint: Option<PromptPlanner>,
    /// How the products of decode steps are cut; `None` runs steps on the processor that computes in float.
    pub decode_plans: Option<DecodePlans>,
    /// Maximum chunks of prompts in flight; each has its own buffers. A single processor computes one chunk after the
    /// other.
    pub chunks_in_flight: usize,
    /// How shadows of prompts read weights that devices have copied to their own memory. `None` reads them in place, so
    /// that the CPU holds a copy of all layers with shadows.
    pub outlier_cache: Option<OutlierCacheOptions>,
    /// Whether prompts compute feed-forwards in [fixed point](triad_kernels::fixed_point) between their products, on
    /// every processor. Applies to blocks whose feed-forward has no shadow, and to sessions without adapters. The
    /// results then differ from those of float, but are the same on all processors that support it: CPUs and Hexagon.
    pub fixed_point: bool,
    /// How processors wait for each other.
    pub wait: Wait,
    /// The time limit of a task. Of several processors, one that exceeds it is lost.
    pub time_out: Duration,
}

impl Default for HeteroOptions {
    fn default() -> Self {
        Self {
            engine: EngineOptions::default(),
            processors: Vec::new(),
            policy: Policy::default(),
            cuts: Vec::new(),
            plans: None,
            joint: None,
            decode_plans: None,
            chunks_in_flight: 4,
            outlier_cache: Some(OutlierCacheOptions::default()),
            fixed_point: false,
            wait: Wait::Predicted,
            time_out: Duration::from_secs(60),
        }
    }
}
