//! Runs a model: prefill in chunks, then decode token by token.
//!
//! [`Model`] is the immutable part: weights in the layout of the kernels, tokenizer, template, threads. [`Engine`]
//! computes it for many [`Session`]s concurrently, each one conversation: a [`scheduler`] forms batches of their requests,
//! and an [`executor`] computes these, on the CPU or, in the crate `triad-hetero`, on several processors.
//! [`generate`] runs a session from prompt to answer with a [`Sampler`](sampler::Sampler), with several tokens per step
//! where that is faster ([`speculate`]), and under a [`constraint`] if one is given. A [`Package`](package::Package) is
//! a model in INT8 or INT4 on disk. The crates above this one prepare packages, evaluate models and study them.
//!
//! ```no_run
//! use std::sync::Arc;
//! use triad_engine::{Cancel, Event, GenerateOptions, LoadOptions, Model, Session, SessionOptions, generate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Arc::new(Model::load("model.gguf".as_ref(), &LoadOptions::default())?);
//! let mut session = Session::new(&model, &SessionOptions { context: 1024, ..SessionOptions::default() })?;
//! let prompt = model.encode_prompt("The capital of France is")?;
//! let answer = generate(&mut session, &prompt, &GenerateOptions::default(), &Cancel::new(), &mut |event| {
//!     if let Event::Text(text) = event {
//!         print!("{text}");
//!     }
//! })?;
//! println!("\n{:.0} tokens per second", answer.timing.decode_tokens_per_second());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod adapter;
pub mod batch;
mod cancel;
pub mod constraint;
mod encode;
mod encode_picture;
mod engine;
mod error;
pub mod executor;
pub mod forward;
mod generate;
pub mod kv;
pub mod linear;
mod linear_input;
mod load_options;
mod log_probabilities;
pub mod memory;
mod model;
mod mtp;
pub mod outlier_cache;
pub mod package;
mod picture_cost;
mod pictures;
pub mod quantization;
pub mod sampler;
mod scheduler;
mod score;
mod session;
pub mod speculate;
pub mod statistics;
mod stop;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod threads;
mod token_mask;
pub mod vision;
pub mod weights;

pub use adapter::{Adapter, Adapters, LowRank, ScaledAdapter};
pub use cancel::Cancel;
pub use encode::EncoderText;
pub use engine::{Engine, EngineOptions, EngineUse, ExecutorSetup, SessionOptions};
pub use error::{Error, NoHead, Result};
pub use generate::{Event, Finish, GenerateOptions, Generation, Timing, generate};
pub use kv::{KvFormat, KvUse, PrefixSalt};
pub use linear::Observer;
pub use linear_input::{Inputs, LinearInput};
pub use load_options::{ExpertLimit, LoadOptions};
pub use log_probabilities::LogProbabilities;
pub use model::Model;
pub use picture_cost::PictureCost;
pub use pictures::{Picture, PictureId, is_of_picture};
pub use score::{Branch, Score, ranges_to_run, tokens_to_run};
pub use session::Session;
pub use statistics::{Bytes, Int8Statistics, Operator, OperatorUse, Statistics};
pub use threads::Threads;
pub use triad_kernels::Cores;
pub use vision::{Pixels, VisionModel};

/// Returns bytes as hexadecimal text.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
