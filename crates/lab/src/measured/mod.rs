//! What calibration finds out about a model, beyond what preparing one needs.
//!
//! A [`Subject`] is a float model with what calibration saw of it. [`outliers`] counts: where outliers are, how skewed,
//! how important, how much memory their rows take. [`sweep`] runs the model in INT8 in one way after the other, with
//! fewer and fewer shadows or by each rule for clip thresholds. [`hot_channels`] runs it with the weights of shadows in a
//! file, calibrated on one domain of text and run on another.
//!
//! Two study the engine under several conversations: [`stall`] how long they wait for tokens while a prompt is computed,
//! [`prefixes`] what those with one beginning share. [`rendering`] counts the frames that an application loses beside prompts
//! on one GPU, [`interference`] measures what other programs cost a prompt.

pub mod hot_channels;
pub mod interference;
pub mod outliers;
pub mod prefixes;
pub mod rendering;
pub mod stall;
mod subject;
pub mod sweep;

pub use subject::Subject;
