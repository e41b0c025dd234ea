//! Preparation: from a float model to a plan for INT8 (llm.npu, §3.1 and §3.3).
//!
//! [`calibration`] runs the float model over a text and counts magnitudes; [`threshold`] finds where to clip;
//! [`plan`] decides what is an outlier, which shadows are kept, which channels are hot; [`smoothing`] makes up for the
//! shadows that are not kept; [`prune`] searches how many
//! shadows a budget needs on [`held_out`] text. [`baselines`] are the methods to compare with, and
//! [`Method`] quantizes a model in memory by any of them. [`crate::quantize`] holds what comes out.

pub mod baselines;
pub mod calibration;
pub mod held_out;
mod method;
pub mod plan;
pub mod prune;
pub mod smoothing;
pub mod threshold;
pub mod weight_statistics;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::model::Model;
use crate::quantize::Quantization;
use calibration::Calibration;
pub use method::{Method, Quantized};
use plan::{InputSummary, PlanOptions};
pub use prune::Prune;

/// How a model is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrepareOptions {
    /// What clip thresholds and formats are decided by.
    pub plan: PlanOptions,
    /// Which shadows are left out.
    pub prune: Prune,
    /// Tokens of the calibration text that are read at most.
    pub tokens: usize,
}

impl Default for PrepareOptions {
    fn default() -> Self {
        Self { plan: PlanOptions::default(), prune: Prune::default(), tokens: 16_384 }
    }
}

/// A plan and where it comes from: what a package says beside the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preparation {
    /// What was asked for.
    pub options: PrepareOptions,
    /// Name of the calibration text.
    pub calibration_text: String,
    /// Tokens of it that were read.
    pub calibration_tokens: usize,
    /// Share of the inputs whose shadow was left out.
    pub pruned: f64,
    /// What was found about each input, in the order of the blocks.
    pub inputs: Vec<InputSummary>,
}

impl Preparation {
    /// The plan for the weights.
    pub fn quantization(&self) -> Quantization {
        plan::quantization(&self.inputs, &self.options.plan)
    }
}

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
    let weights = model.install(|| weight_statistics::of_model(model.weights()));
    let mut inputs = plan::summarize(calibration, &weights, &options.plan);
    let pruned = prune::prune(model, &mut inputs, held_out, options, cancel)?;
    Ok(Preparation {
        options: *options,
        calibration_text: calibration.text.clone(),
        calibration_tokens: calibration.tokens,
        pruned,
        inputs,
    })
}
