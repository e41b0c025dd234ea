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
#![forbid(unsafe_code)]

mod error;
pub mod hot_channels;
pub mod interference;
pub mod outliers;
pub mod prefixes;
pub mod rendering;
pub mod stall;
mod subject;
pub mod sweep;

pub use error::{Error, Result};
pub use subject::Subject;

/// Of at least one value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (middle, is_odd) = (values.len() / 2, values.len() % 2 == 1);
    if is_odd {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}
