//! Prompts that are not conversations: texts or token ids.

use std::sync::Arc;

use serde::Deserialize;
use triad_engine::Cancel;
use triad_frontend::chat;
use triad_model::tokenizer::EncodeOptions;
use utoipa::ToSchema;

use crate::encoding;
use crate::error::{ApiError, ApiResult};
use crate::prepare::Work;
use crate::queue::Place;
use crate::served::ServedModel;
use crate::values::{PromptItem, TextOrArray};

/// Maximum number of prompts per request.
const MAX_PROMPTS: usize = 1024;

/// Prompts as texts or token ids.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, try_from = "TextOrArray<PromptItem>")]
pub(crate) enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl TryFrom<TextOrArray<PromptItem>> for Prompts {
    type Error = &'static str;

    fn try_from(given: TextOrArray<PromptItem>) -> Result<Self, Self::Error> {
        let items = match given {
            TextOrArray::Text(text) => return Ok(Self::Text(text)),
            TextOrArray::Array(items) => items,
        };
        let (mut texts, mut tokens, mut lists) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            match item {
                PromptItem::Text(text) => texts.push(text),
                PromptItem::Token(token) => tokens.push(token),
                PromptItem::Tokens(list) => lists.push(list),
            }
        }
        match (texts.is_empty(), tokens.is_empty(), lists.is_empty()) {
            (_, true, true) if !texts.is_empty() => Ok(Self::Texts(texts)),
            (true, _, true) => Ok(Self::Tokens(tokens)),
            (true, true, _) => Ok(Self::TokenLists(lists)),
            _ => Err(
                "has values of several kinds, expected an array of texts, of tokens, or of arrays of tokens",
            ),
        }
    }
}

/// Options of tokenization.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct TextFields {
    /// Whether names of control tokens in a text, such as `<|im_start|>`, become these tokens. The default is true,
    /// unless the server was started with `--keep-letters`.
    parse_special: Option<bool>,
    /// Whether BOS is added before a text, if the model expects it and the text does not already contain it. The
    /// default is true.
    add_special_tokens: Option<bool>,
}

impl TextFields {
    /// Returns whether the request wants BOS before a text.
    pub(crate) fn adds_special(self) -> Option<bool> {
        self.add_special_tokens
    }

    /// Refuses the values that a request with `field` does not follow: it has the model's own tokens, and reads names of
    /// control tokens as plain text.
    ///
    /// # Errors
    /// If there is such a value.
    pub(crate) fn check_unused(self, field: &str) -> ApiResult<()> {
        let message = |expected| format!("expected {expected} with {field}");
        if self.parse_special == Some(true) {
            return Err(ApiError::unsupported("parse_special", message(false)));
        }
        if self.add_special_tokens == Some(false) {
            return Err(ApiError::unsupported("add_special_tokens", message(true)));
        }
        Ok(())
    }

    /// Returns how `model` treats names of control tokens, and whether BOS and similar tokens are added.
    pub(crate) fn options(self, model: &ServedModel) -> EncodeOptions {
        EncodeOptions {
            parse_special: encoding::parses_special(model, self.parse_special),
            add_special: self.add_special_tokens.unwrap_or(true),
        }
    }
}

impl Prompts {
    /// Does the checks that need no model: the number of prompts, and prompts without tokens.
    ///
    /// # Errors
    /// If `field` has no prompts, too many, or an empty list of tokens.
    pub(crate) fn check(&self, field: &str) -> ApiResult<()> {
        let (count, _) = self.size();
        if count == 0 || count > MAX_PROMPTS {
            return Err(ApiError::field(
                field,
                format!("{count} prompts, expected 1 to {MAX_PROMPTS}"),
            ));
        }
        // An empty text may still become one token.
        let is_empty = match self {
            Self::Text(_) | Self::Texts(_) => false,
            Self::Tokens(tokens) => tokens.is_empty(),
            Self::TokenLists(lists) => lists.iter().any(Vec::is_empty),
        };
        if is_empty {
            let message = "the prompt is empty: expected at least one token";
            return Err(ApiError::field(field, message));
        }
        Ok(())
    }

    /// Puts a text before each prompt. Returns whether the prompts are texts.
    pub(crate) fn put_before(&mut self, prefix: &str) -> bool {
        match self {
            Self::Text(text) => text.insert_str(0, prefix),
            Self::Texts(texts) => texts.iter_mut().for_each(|text| text.insert_str(0, prefix)),
            Self::Tokens(_) | Self::TokenLists(_) => return false,
        }
        true
    }

    /// Returns the number of prompts, and the size of the longest text in bytes.
    fn size(&self) -> (usize, usize) {
        match self {
            Self::Text(text) => (1, text.len()),
            Self::Tokens(_) => (1, 0),
            Self::Texts(texts) => (
                texts.len(),
                texts.iter().map(String::len).max().unwrap_or(0),
            ),
            Self::TokenLists(lists) => (lists.len(), 0),
        }
    }
}

/// Tokenizes the prompts in `field` of a request that has a `place`. Call [`Prompts::check`] first.
///
/// # Errors
/// If a token id is out of range, or a text has more tokens than the context.
pub(crate) async fn encode(
    of: (&Arc<ServedModel>, &Place),
    prompts: (&'static str, Prompts),
    options: EncodeOptions,
) -> ApiResult<Vec<Vec<u32>>> {
    let most = of.0.context();
    encode_within(of, prompts, options, most).await
}

/// Does the same as [`encode`] for texts of at most `most` tokens.
///
/// # Errors
/// As [`encode`].
pub(crate) async fn encode_within(
    (model, place): (&Arc<ServedModel>, &Place),
    (field, prompts): (&'static str, Prompts),
    options: EncodeOptions,
    most: usize,
) -> ApiResult<Vec<Vec<u32>>> {
    let (_, longest) = prompts.size();
    let work = move |model: &ServedModel, cancel: &Cancel| {
        let text = |text: String| {
            let encoded = chat::encode_text(model.model(), &text, options, (most, cancel));
            encoded.map_err(|error| ApiError::from(error).with_param(field))
        };
        match prompts {
            Prompts::Text(prompt) => Ok(vec![text(prompt)?]),
            Prompts::Texts(prompts) => prompts.into_iter().map(text).collect(),
            Prompts::Tokens(prompt) => Ok(vec![prompt]),
            Prompts::TokenLists(prompts) => Ok(prompts),
        }
    };
    let prompts: Vec<Vec<u32>> = model
        .preparers()
        .prepare((model, place), Work::Text(longest), work)
        .await?;
    let vocab = model.model().description().vocab;
    match prompts
        .iter()
        .flatten()
        .find(|token| **token as usize >= vocab)
    {
        Some(token) => Err(ApiError::field(
            field,
            format!("token {token} is outside the vocabulary of {vocab}"),
        )),
        None => Ok(prompts),
    }
}
