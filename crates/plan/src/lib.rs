//! What a prefill consists of and where its parts run: llm.npu's chunk-sharing graph (§3.2 of the paper) from a model
//! description alone, without weights and without a device.
//!
//! [`graph`] cuts blocks into subgraphs and prompts into chunks, with what depends on what; [`processors`] describes
//! what tasks run on, [`placement`] gives each subgraph one of them, [`partition`] computes how a product is best cut
//! across several (HeteroLLM), [`joint`] how whole prompts are, cut or overlapped, and [`tasks`] makes tasks of both, whole or in parts, and of shadows; [`schedule`]
//! decides which task a processor runs next (§3.4), by rules or as [`planner`] planned ahead; [`simulate`](mod@simulate) drives a schedule in virtual time, and
//! [`timeline`] records a run. [`device`] has profiles of phones, [`prefill`] simulates a prefill on one of them, [`bound`]
//! computes a time that no schedule is below.
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
