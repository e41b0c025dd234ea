//! The laboratory: measurements, simulations and published results of running models on several processors.
//!
//! [`measured`] studies models and the engine on this machine. [`simulated`] repeats simulated prefills of a phone over
//! many cases. [`papers`] compares the tables and figures of llm.npu and HeteroLLM with simulated values. [`heterollm`]
//! simulates a prefill whose matmuls are partitioned across GPU and NPU. [`optimum`](mod@optimum) computes the shortest
//! schedule of few tasks. [`report`] makes the tables of the documents from measurements. The command `triad-lab` prints all of them. Users of models don't need this crate.
#![forbid(unsafe_code)]

mod error;
pub mod heterollm;
pub mod measured;
pub mod optimum;
pub mod papers;
pub mod report;
pub mod simulated;

pub use error::{Error, Result};
