//! Preparation of a float model: plans for INT8 (llm.npu, §3.1 and §3.3), or weights in INT4 (HeteroLLM, §5.1).
//!
//! [`calibration`] runs the float model over a text and counts magnitudes; [`threshold`] finds the clip thresholds;
//! [`plan`] decides which values are outliers, which shadows are kept, and which channels are hot; [`smoothing`]
//! compensates for shadows that are not kept; [`prune`] searches for the number of shadows that a budget needs on
//! [`held_out`] text. [`int4`] rounds weights to INT4 by the second moments of their inputs. [`baselines`] are the methods for comparison, and [`Method`] quantizes a model in memory by any
//! of them; a [`Quantization`](triad_engine::quantization::Quantization) holds the result. [`vision`] does the same for an
//! encoder of pictures. [`package`] writes a package of both.
//!
//! [`triad_engine::package`] defines what a package contains of its preparation, and reads it.
#![forbid(unsafe_code)]

pub mod baselines;
pub mod calibration;
mod error;
pub mod held_out;
pub mod int4;
mod method;
pub mod package;
pub mod plan;
pub mod prune;
pub mod smoothing;
pub mod threshold;
pub mod vision;
pub mod weight_statistics;

use std::sync::Arc;

use calibration::Calibration;
pub use error::{Error, PictureError, Result, TextError};
pub use method::{Method, Quantized};
pub use triad_engine::package::preparation::{Preparation, PrepareOptions, Prune};
use triad_engine::{Cancel, Model};

/// Decides how to quantize `model`, in float, to W8A8 from calibration. `held_out` are pieces of text that calibration did
/// not use, for [`Prune::Auto`].
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
    let weights = model.install(|| weight_statistics::of_model(model.weights()));
    let mut inputs = plan::summarize(calibration, &weights, &options.plan);
    let pruned = prune::prune(model, &mut inputs, held_out, options, cancel)?;
    Ok(Preparation {
        options: *options,
        calibration_text: calibration.text.clone(),
        calibration_tokens: calibration.tokens,
        pruned,
        inputs,
        layers: Vec::new(),
    })
}
