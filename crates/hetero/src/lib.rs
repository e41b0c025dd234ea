//! An executor on several processors: CPUs, GPUs and NPUs compute the batches of one engine together.
//!
//! A [`HeteroExecutor`] owns one worker thread per processor, the programs that devices prepared for the model, and
//! buffers. It cuts each batch of the engine's scheduler into tasks ([`task_graph`]). Under one lock ([`dispatcher`])
//! the workers ([`worker_loop`]) take tasks and run them:
//!
//! - Prompts become a [`Graph`](triad_plan::graph::Graph) of chunks and subgraphs, which all processors execute out of
//!   order (llm.npu, §3.4). Their shadows, the corrections for outlier activations, can be separate tasks.
//! - A decode step runs between tasks of prompts. Where nothing else runs, its products (those of linear layers) can be
//!   cut across processors ([`steps`]; HeteroLLM, §4.1.2).
//!
//! The result of a request has the same bits with any policy and on any processor, as long as all processors multiply
//! with the same kernels: a task waits for all that it reads. Task times can be measured in advance and kept
//! ([`profile`]).
#![forbid(unsafe_code)]

mod costs;
mod cut_selector;
mod dispatcher;
mod encoder;
mod engine;
mod error;
mod execution;
mod executor;
mod failure;
mod fixed_point;
mod joint;
mod machine;
mod measure;
mod memory;
mod multiplier;
mod options;
mod outlier_cache;
mod plan_selector;
mod planned;
mod planned_orders;
mod planning;
mod preparing;
mod products;
mod profile;
mod programs;
mod programs_of_parts;
mod shadows;
mod shared;
mod simulation;
mod steps;
mod table;
mod task_graph;
#[cfg(test)]
mod tests;
mod verify;
mod wait;
mod whole;
mod work;
mod worker_loop;
mod workers;

pub use costs::{Cost, CostSample, Costs};
pub use encoder::{EncodedView, EncoderProduct};
pub use engine::{HeteroEngine, PlannedPrompt};
pub use error::{Error, FailureReason, ProcessorFailure, ProcessorFailures, Result, SubgraphError};
pub use execution::{Execution, execution};
pub use executor::HeteroExecutor;
pub use measure::{
    ExhaustedProduct, Joined, MeasureOptions, MeasuredMultiplier, MeasuredProducts, RunPartition,
    exhaust_products, measure_joins, measure_multiplier, measure_powers, measure_products,
    measure_prompts,
};
pub use memory::of_chunks_in_flight;
pub use options::HeteroOptions;
pub use products::{
    DecodeCosts, DecodePlans, MeasuredJoins, MeasuredProcessor, ProductCosts, ProductTable,
    ProductTime,
};
pub use profile::{CostTable, OUT_OF_ORDER, profile, profiled_prompts};
pub use shadows::kept_shadows;
pub use simulation::SimulatedPrompt;
pub use table::{Measurements, Table};
pub use triad_processors::Device;
pub use triad_processors::model::{JoinStatistics, JoinTimes};
pub use verify::{Comparison, Verification, lengths, verify};
pub use wait::{Wait, WaitUse};
pub use whole::Operations;
pub use workers::ProcessorOptions;

/// Returns the tokens of an arbitrary prompt, in a vocabulary of `vocab`.
fn any_tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count)
        .map(|index| (index.wrapping_mul(7919) % vocab) as u32)
        .collect()
}
