//! Quantizes a float model to INT8 or INT4 in memory, by any of the compared methods.

use std::sync::Arc;

use triad_engine::quantization::LinearFormat;
use triad_engine::{Cancel, Model};

use super::calibration::{self, Calibration};
use super::plan::PlanOptions;
use super::{Preparation, PrepareOptions, baselines, decide, int4, plan, weight_statistics};
use crate::error::Result;

/// A method to quantize linear layers to INT8 or INT4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Activations per tensor, scaled by the largest magnitude.
    W8a8,
    /// Clipped activations, with shadow outliers (llm.npu, §3.3).
    Shadow,
    /// Difficult channels scaled down before quantization.
    SmoothQuant,
    /// One scale per token, outlier channels in float.
    LlmInt8,
    /// Weights in INT4 with a scale per group, activations in float.
    W4a16,
}

/// A model in INT8 or INT4.
pub struct Quantized {
    /// The model, ready to run.
    pub model: Arc<Model>,
    /// The decisions of the preparation; present exactly for [`Method::Shadow`].
    pub preparation: Option<Preparation>,
}

impl Method {
    /// Returns whether the method needs statistics of a calibration text.
    pub fn calibrates(self) -> bool {
        self != Self::LlmInt8
    }

    /// Quantizes the float `model` by the calibration and the `text` that it read: the pieces to calibrate on, and those
    /// that were held out.
    ///
    /// # Errors
    /// If the method calibrates and `calibration` is empty, `cancel` is set, or the model cannot run.
    pub fn quantize(
        self,
        model: &Arc<Model>,
        calibration: &Calibration,
        text: &[Vec<Vec<u32>>; 2],
        options: &PrepareOptions,
        cancel: &Cancel,
    ) -> Result<Quantized> {
        if self.calibrates() && calibration.tokens == 0 {
            return Err(calibration::nothing_seen());
        }
        let weights = || model.install(|| weight_statistics::of_model(model.weights()));
        let (plan, preparation) = match self {
            Self::W8a8 => (baselines::w8a8(calibration), None),
            Self::SmoothQuant => (baselines::smooth_quant(calibration, &weights()), None),
            Self::LlmInt8 => (baselines::llm_int8(model.description().blocks.len()), None),
            Self::W4a16 => {
                let model = int4::quantize(model, text, options.plan.output_weights, cancel)?;
                return Ok(Quantized {
                    model: Arc::new(model),
                    preparation: None,
                });
            }
            Self::Shadow => {
                let options = PrepareOptions {
                    plan: PlanOptions {
                        linears: LinearFormat::W8a8,
                        ..options.plan
                    },
                    ..*options
                };
                let preparation = decide(model, calibration, &text[1], &options, cancel)?;
                (
                    plan::quantization(&preparation.inputs, &options.plan),
                    Some(preparation),
                )
            }
        };
        Ok(Quantized {
            model: Arc::new(model.quantize(&plan)),
            preparation,
        })
    }
}
