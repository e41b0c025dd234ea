//! Prompts of requests that are no conversations: texts, or tokens.

use std::sync::Arc;

use serde::Deserialize;
use triad_frontend::chat;
use triad_model::tokenizer::Special;
use utoipa::ToSchema;

use crate::blocking::of_model;
use crate::error::{ApiError, ApiResult};
use crate::hosted::Hosted;

/// Prompts of a request, at most.
const MOST_PROMPTS: usize = 1024;

/// Prompts: texts, or tokens.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a text, an array of texts, an array of tokens, or an array of arrays of tokens"
)]
pub(crate) enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

/// How texts become tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct TextFields {
    /// Whether names of control tokens in a text, such as `<|im_start|>`, are these tokens: without, they are, unless the
    /// server was started with `--keep-letters`.
    parse_special: Option<bool>,
    /// Whether BOS is put before a text, where the model expects it and the text does not name it; without, it is.
    add_special_tokens: Option<bool>,
}

impl TextFields {
    /// Returns how `model` reads texts, and whether tokens are put around them.
    pub(crate) fn reading(self, model: &Hosted) -> (Special, bool) {
        let parses = self.parse_special.unwrap_or(!model.keeps_letters());
        let special = if parses { Special::Parsed } else { Special::AsText };
        (special, self.add_special_tokens.unwrap_or(true))
    }
}

/// The tokens of all prompts, which are in the field of this name.
///
/// # Errors
/// If there are none or too many, or one has a token that the model does not have.
pub(crate) async fn encode(
    model: &Arc<Hosted>,
    (field, prompts): (&'static str, Prompts),
    reading: (Special, bool),
) -> ApiResult<Vec<Vec<u32>>> {
    let prompts: Vec<Vec<u32>> = of_model(model, move |model| {
        let text = |text: String| {
            let encoded = chat::encode_around(model.model(), &text, reading, model.context());
            encoded.map_err(|error| ApiError::from(error).with_param(field))
        };
        match prompts {
            Prompts::Text(prompt) => Ok(vec![text(prompt)?]),
            Prompts::Texts(prompts) => prompts.into_iter().map(text).collect(),
            Prompts::Tokens(prompt) => Ok(vec![prompt]),
            Prompts::TokenLists(prompts) => Ok(prompts),
        }
    })
    .await?;
    if prompts.is_empty() || prompts.len() > MOST_PROMPTS {
        return Err(ApiError::field(field, format!("{} prompts, expected 1 to {MOST_PROMPTS}", prompts.len())));
    }
    let vocab = model.model().description().vocab;
    match prompts.iter().flatten().find(|token| **token as usize >= vocab) {
        Some(token) => Err(ApiError::field(field, format!("token {token} is outside the vocabulary of {vocab}"))),
        None => Ok(prompts),
    }
}
