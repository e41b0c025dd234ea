//! How well a model does on the usual benchmarks, scored as `lm-evaluation-harness` defines them.
//!
//! A [`Dataset`] has the questions of a file, which [`folder`] finds: [`rows`] reads its lines, and each of [`tasks`]
//! turns one into a [`question`], the texts whose likelihoods decide it; [`perplexity`] cuts a whole text into windows.
//! [`evaluate`] ([`run`]) encodes them ([`encode`]), scores them with [`Session::score`](triad_engine::Session::score),
//! and judges ([`report`]). `docs/measurements/accuracy.md` describes what is scored how, with references to the harness.
#![forbid(unsafe_code)]

mod dataset;
mod encode;
mod error;
mod folder;
mod perplexity;
mod question;
mod report;
mod rows;
mod run;
mod tasks;

pub use dataset::{Dataset, Task};
pub use error::{Error, Result};
pub use report::{Evaluation, Metric, Rows};
pub use rows::DataError;
pub use run::{EvaluateOptions, evaluate};
