//! A float model in INT8, in memory, by any of the methods that are compared.

use std::sync::Arc;

use super::calibration::text::CalibrationText;
use super::calibration::{self, Calibration};
use super::{Preparation, PrepareOptions, baselines, decide, weight_statistics};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::model::Model;

/// How linear layers are brought to INT8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Activations per tensor, scaled by the largest magnitude.
    W8a8,
    /// Clipped, with shadow outliers (llm.npu, §3.3).
    Shadow,
    /// Difficult channels scaled down before quantizing.
    SmoothQuant,
    /// One scale for each token, outlier channels in float.
    LlmInt8,
}

/// A model in INT8.
pub struct Quantized {
    /// The model, ready to run.
    pub model: Arc<Model>,
    /// What was decided; there exactly for [`Method::Shadow`].
    pub preparation: Option<Preparation>,
}

impl Method {
    /// Quantizes the float `model`, calibrated on `text` where the method needs it. `progress` hears how many tokens
    /// of how many were calibrated on.
    ///
    /// # Errors
    /// If `cancel` is set, the model has no tokenizer or cannot run.
    pub fn quantize(
        self,
        model: &Arc<Model>,
        text: &CalibrationText,
        options: &PrepareOptions,
        cancel: &Cancel,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Quantized> {
        if self == Self::LlmInt8 {
            let plan = baselines::llm_int8(model.description().blocks.len());
            return Ok(Quantized { model: Arc::new(model.quantize(&plan)), preparation: None });
        }
        let [pieces, held_out] = calibration::split(model, text, options.tokens)?;
        if self == Self::Shadow {
            options.prune.check(&held_out)?;
        }
        let total = pieces.iter().map(Vec::len).sum();
        let mut calibration = Calibration::new(model.description(), &text.name);
        calibration.run(model, &pieces, cancel, |calibration| {
            progress(calibration.tokens, total);
            Ok(())
        })?;
        let weights = || model.install(|| weight_statistics::of_model(model.weights()));
        let (plan, preparation) = match self {
            Self::W8a8 => (baselines::w8a8(&calibration), None),
            Self::SmoothQuant => (baselines::smooth_quant(&calibration, &weights()), None),
            Self::Shadow | Self::LlmInt8 => {
                let preparation = decide(model, &calibration, &held_out, options, cancel)?;
                (preparation.quantization(), Some(preparation))
            }
        };
        Ok(Quantized { model: Arc::new(model.quantize(&plan)), preparation })
    }
}
