//! Selection of LoRA adapters by name, with the field `lora` of llama.cpp's server.

use std::sync::Arc;

use serde::Deserialize;
use triad_engine::{Adapters, ScaledAdapter};
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::served::ServedModel;

/// Maximum number of adapters per request.
const MAX: usize = 16;
/// The largest absolute value of a scale.
const LARGEST_SCALE: f64 = 100.0;
/// The scale of an adapter if the request has none.
const DEFAULT_SCALE: f64 = 1.0;

/// An adapter to apply.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct LoraField {
    /// The adapter's name, as listed by `/props`.
    name: String,
    /// Factor of the adapter's contribution. The default is 1.
    scale: Option<f64>,
}

/// Returns the adapters of `model` that the field `lora` selects.
///
/// # Errors
/// If there are too many, one does not exist, or a scale is out of range.
pub(crate) fn asked(model: &ServedModel, lora: Option<&[LoraField]>) -> ApiResult<Adapters> {
    let lora = lora.unwrap_or_default();
    check(lora)?;
    let one = |LoraField { name, scale }: &LoraField| {
        let there = model.adapters().iter().find(|(other, _)| other == name);
        let Some((_, adapter)) = there else {
            let names: Vec<_> = model
                .adapters()
                .iter()
                .map(|(name, _)| name.as_str())
                .collect();
            let there = if names.is_empty() {
                "this model has none".into()
            } else {
                names.join(", ")
            };
            let message = format!(
                "there is no adapter {name:?} here: expected one of those that the server was started with: {there}"
            );
            return Err(ApiError::field("lora", message));
        };
        Ok(ScaledAdapter {
            adapter: Arc::clone(adapter),
            scale: scale.unwrap_or(DEFAULT_SCALE) as f32,
        })
    };
    Ok(Adapters::new(
        lora.iter().map(one).collect::<ApiResult<Vec<_>>>()?,
    )?)
}

/// Does the checks that need no model.
///
/// # Errors
/// If there are too many, or a scale is out of range.
pub(crate) fn check(lora: &[LoraField]) -> ApiResult<()> {
    if lora.len() > MAX {
        return Err(ApiError::field(
            "lora",
            format!("{} adapters, expected at most {MAX}", lora.len()),
        ));
    }
    let scales = lora.iter().map(|one| one.scale.unwrap_or(DEFAULT_SCALE));
    for scale in scales {
        if !(-LARGEST_SCALE..=LARGEST_SCALE).contains(&scale) {
            let message = format!(
                "the scale {scale} is out of range, expected {} to {LARGEST_SCALE}",
                -LARGEST_SCALE
            );
            return Err(ApiError::field("lora", message));
        }
    }
    Ok(())
}
