//! The model that is studied.

use std::sync::Arc;

use crate::error::Result;
use triad_engine::{Cancel, Inputs, Model};
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::calibration::{self, Calibration};
use triad_prepare::plan::{self, InputSummary, PlanOptions};
use triad_prepare::weight_statistics::{self, ChannelWeights};

/// A float model and its calibration results.
pub struct Subject {
    /// The float model.
    pub model: Arc<Model>,
    /// Results of the calibration text.
    pub calibration: Calibration,
    /// Pieces of that text that were not used for calibration.
    pub held_out: Vec<Vec<u32>>,
    weights: Vec<Inputs<ChannelWeights>>,
}

impl Subject {
    /// Calibrates `model` on at most `tokens` tokens of `text`; every fourth text is held out. `progress` is called
    /// with the number of processed tokens and the total.
    ///
    /// # Errors
    /// If `cancel` is set, the model has no tokenizer or can't run, or the text has no tokens to hold out.
    ///
    /// # Panics
    /// If the model's weights are not float.
    pub fn calibrate(
        model: &Arc<Model>,
        text: &CalibrationText,
        tokens: usize,
        cancel: &Cancel,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Self> {
        let [pieces, held_out] = calibration::split(model, text, tokens)?;
        if held_out.iter().all(|piece| piece.len() < 2) {
            return Err(triad_engine::Error::Option {
                name: "the number of held-out calibration tokens",
                value: held_out.iter().map(Vec::len).sum::<usize>().to_string(),
                expected: "at least 2 to predict: every fourth text is held out",
            }
            .into());
        }
        let total = pieces.iter().map(Vec::len).sum();
        let mut calibration = Calibration::new(model.description(), &text.name);
        calibration.run(model, &pieces, cancel, |calibration| {
            progress(calibration.tokens, total);
            Ok(())
        })?;
        let weights = model.install(|| weight_statistics::of_model(model.weights()));
        Ok(Self {
            model: Arc::clone(model),
            calibration,
            held_out,
            weights,
        })
    }

    /// Returns each linear input's quantization with `options`, before pruning.
    pub fn summarize(&self, options: &PlanOptions) -> Vec<InputSummary> {
        plan::summarize(&self.calibration, &self.weights, options)
    }
}
