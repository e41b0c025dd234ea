//! The result of one method on one task.

use serde::Serialize;
use triad_evaluate::Evaluation;

/// One method on one task.
#[derive(Serialize)]
pub(super) struct Outcome {
    /// The method's name on the command line; `package` for a package.
    pub(super) method: &'static str,
    /// Share of the shadows that were left out, for the method that has shadows.
    pub(super) pruned: Option<f64>,
    /// Smoothing of inputs without a shadow, for the method that has shadows.
    pub(super) smoothing: Option<f32>,
    /// Seconds of quantization, and of calibration where the method needs it.
    pub(super) prepare_seconds: f64,
    #[serde(flatten)]
    pub(super) evaluation: Evaluation,
}
