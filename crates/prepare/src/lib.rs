//! Preparation: from a float model to a plan for INT8 (llm.npu, §3.1 and §3.3), or to weights in INT4 (HeteroLLM, §5.1).
//!
//! [`calibration`] runs the float model over a text and counts magnitudes; [`threshold`] finds where to clip;
//! [`plan`] decides what is an outlier, which shadows are kept, which channels are hot; [`smoothing`] makes up for the
//! shadows that are not kept; [`prune`] searches how many
//! shadows a budget needs on [`held_out`] text. [`baselines`] are the methods to compare with, and
//! [`Method`] quantizes a model in memory by any of them; a [`Quantization`](triad_engine::quantization::Quantization)
//! holds what comes out. [`package`] writes a package of it.
//!
//! What a package contains of its preparation, and how it is read, is in [`triad_engine::package`].
#![forbid(unsafe_code)]

pub mod baselines;
pub mod calibration;
mod error;
pub mod held_out;
mod method;
pub mod package;
pub mod plan;
pub mod prune;
pub mod smoothing;
pub mod threshold;
pub mod weight_statistics;

use std::sync::Arc;

use calibration::Calibration;
pub use error::{Error, Result, TextError};
pub use method::{Method, Quantized};
use plan::InputSummary;
pub use triad_engine::package::preparation::{Preparation, PrepareOptions, Prune};
use triad_engine::quantization::LinearFormat;
use triad_engine::{Cancel, Model};

/// Decides how `model`, in float, is quantized, from what calibration saw. `held_out` are pieces of text that it did
/// not see, for [`Prune::Auto`].
///
/// # Errors
/// If `cancel` is set, or the model cannot run.
pub fn decide(
    model: &Arc<Model>,
    calibration: &Calibration,
    held_out: &[Vec<u32>],
    options: &PrepareOptions,
    cancel: &Cancel,
) -> Result<Preparation> {
    let (pruned, inputs) = match options.plan.linears {
        LinearFormat::W8a8 => decide_int8(model, calibration, held_out, options, cancel)?,
        LinearFormat::W4a16 => (0.0, Vec::new()),
    };
    Ok(Preparation {
        options: *options,
        calibration_text: calibration.text.clone(),
        calibration_tokens: calibration.tokens,
        pruned,
        inputs,
    })
}

/// The share of the inputs whose shadow is left out, and what is decided for each.
fn decide_int8(
    model: &Arc<Model>,
    calibration: &Calibration,
    held_out: &[Vec<u32>],
    options: &PrepareOptions,
    cancel: &Cancel,
) -> Result<(f64, Vec<InputSummary>)> {
    let weights = model.install(|| weight_statistics::of_model(model.weights()));
    let mut inputs = plan::summarize(calibration, &weights, &options.plan);
    let pruned = prune::prune(model, &mut inputs, held_out, options, cancel)?;
    Ok((pruned, inputs))
}
