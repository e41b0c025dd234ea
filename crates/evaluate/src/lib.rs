//! Evaluation of a model on the usual benchmarks, scored as `lm-evaluation-harness` defines them.
//!
//! A [`Dataset`] has the questions of a file, which [`folder`] finds: [`rows`] reads its lines, and each of [`tasks`]
//! converts one to a [`question`], the texts whose likelihoods decide it; [`perplexity`] divides a whole text into
//! windows. [`evaluate`] ([`run`]) encodes them ([`encode`]), scores them with
//! [`Session::score`](triad_engine::Session::score), or as prompts on several processors ([`prompts`]), and computes the metrics ([`report`]). `docs/measurements/accuracy.md`
//! describes how each task is scored, with references to the harness.
#![forbid(unsafe_code)]

mod dataset;
mod encode;
mod error;
mod folder;
mod perplexity;
mod prompts;
mod question;
mod report;
mod rows;
mod run;
mod tasks;

pub use dataset::{Dataset, Task};
pub use error::{Error, Result};
pub use prompts::ProcessorWork;
pub use report::{Evaluation, Metric, Rows};
pub use rows::DataError;
pub use run::{EvaluateOptions, evaluate};
