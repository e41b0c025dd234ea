//! The model that is studied.

use std::sync::Arc;

use crate::error::Result;
use triad_engine::{Cancel, Model};
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::calibration::{self, Calibration};
use triad_prepare::plan::{self, InputSummary, PlanOptions};
use triad_prepare::weight_statistics::{self, ChannelWeights};

/// A model in float, and what calibration saw of it.
pub struct Subject {
    /// In float.
    pub model: Arc<Model>,
    /// What the calibration text showed.
    pub calibration: Calibration,
    /// Pieces of that text that calibration did not see.
    pub held_out: Vec<Vec<u32>>,
    weights: Vec<[ChannelWeights; 4]>,
}

impl Subject {
    /// Calibrates `model` on at most `tokens` tokens of `text`; every fourth text is held out. `progress` is called
    /// with how many tokens of how many were seen.
    ///
    /// # Errors
    /// If `cancel` is set, the model has no tokenizer or cannot run, or the text has no tokens to hold out.
    ///
    /// # Panics
    /// If the model is not in float.
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

    /// What `options` make of each linear input, before pruning.
    pub fn summarize(&self, options: &PlanOptions) -> Vec<InputSummary> {
        plan::summarize(&self.calibration, &self.weights, options)
    }
}
