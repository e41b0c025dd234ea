//! Fill in the middle, for the endpoints of all APIs.

use std::sync::Arc;

use triad_engine::{Cancel, GenerateOptions};
use triad_frontend::infill::{Gap, InfillPrompt, InfillTokens};

use crate::error::{ApiError, ApiResult};
use crate::prepare::Work;
use crate::queue::Place;
use crate::sampling::Sampling;
use crate::served::ServedModel;

/// Returns the tokens of a model for filling in the middle, which `field` asks for.
///
/// # Errors
/// If the model has none.
pub(crate) fn tokens(model: &ServedModel, field: &str) -> ApiResult<InfillTokens> {
    InfillTokens::find(model.model().tokenizer()?).ok_or_else(|| {
        let message = "the model's vocabulary has no tokens for filling in the middle, such as <|fim_prefix|>";
        ApiError::unsupported(field, message)
    })
}

/// Sets the defaults of sampling for a middle. A penalty for repetition also lowers the probability of names in the texts
/// around the gap, so that there is none unless the request has it.
pub(crate) fn set_defaults(sampling: &mut Sampling) {
    if sampling.repeat_penalty.is_none() {
        sampling.repetition_penalty.get_or_insert(1.0);
    }
}

/// Ends completions at the tokens that end a middle.
pub(crate) fn end_at(options: &mut GenerateOptions, tokens: &InfillTokens) {
    options.end_tokens.extend(tokens.ends());
}

/// Returns the prompt of a gap, for a request that has a place.
///
/// # Errors
/// If it is too long.
pub(crate) async fn encode(
    (model, place): (&Arc<ServedModel>, &Place),
    tokens: InfillTokens,
    gap: Gap,
) -> ApiResult<InfillPrompt> {
    let extra = gap.extra.iter().map(|(name, text)| name.len() + text.len());
    let bytes = gap.prefix.len() + gap.suffix.len() + extra.sum::<usize>();
    let encode = move |model: &ServedModel, cancel: &Cancel| {
        Ok(tokens.prompt(model.model(), &gap, (model.context(), cancel))?)
    };
    let work = Work::Text(bytes);
    model
        .preparers()
        .prepare((model, place), work, encode)
        .await
}
