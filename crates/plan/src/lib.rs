//! Structure and schedule of a prefill: llm.npu's chunk-sharing graph (§3.2 of the paper), computed from a model
//! description alone, without weights and without a device.
//!
//! - [`graph`] cuts blocks into subgraphs and prompts into chunks, with their dependencies.
//! - [`processors`] describes what tasks run on, and [`placement`] assigns a processor to each subgraph.
//! - [`partition`] computes how to cut a linear layer across several processors (HeteroLLM), and [`joint`] how to cut or
//!   overlap whole prompts.
//! - [`tasks`] creates the tasks: whole or partial subgraphs, and shadows.
//! - [`schedule`] chooses the task that a processor runs next (§3.4), by rules or by a plan of [`planner`]. [`passes`]
//!   does so for several prompts and decode steps.
//! - [`simulate`](mod@simulate) runs a schedule in virtual time, and [`timeline`] records a run.
//! - [`device`] contains profiles of phones, and [`prefill`] simulates a prefill on one of them.
//! - [`bound`] computes a lower bound of the time of all schedules.
//!
//! ```
//! use triad_plan::graph::Graph;
//!
//! let description = triad_model::family::shape("qwen1.5-1.8b").unwrap();
//! let graph = Graph::new(&description, 1024, 256);
//! assert_eq!((graph.subgraphs().len(), graph.static_subgraphs()), (144, 120));
//! assert_eq!(graph.chunks().len(), 4);
//! ```
#![forbid(unsafe_code)]

pub mod bound;
pub mod device;
pub mod graph;
pub mod joint;
pub mod partition;
pub mod passes;
pub mod placement;
pub mod planner;
pub mod prefill;
pub mod processors;
pub mod random;
pub mod schedule;
pub mod simulate;
pub mod tasks;
pub mod timeline;
