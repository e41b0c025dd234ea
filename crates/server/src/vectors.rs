//! Vectors of texts, for the endpoints of all APIs.
//!
//! The hidden states of a text are those after the last norm, which are the input of the output matrix, if there is one. The model's
//! files state how they become one vector, and which texts are put before inputs. A model that was not trained for
//! vectors gives vectors of moderate quality.

use std::sync::Arc;

use triad_frontend::embedding::{self, Pooling, VectorOptions, embed_each};
use triad_model::tokenizer::{EncodeOptions, TokenKind, Tokenizer};

use crate::encoding;
use crate::error::{ApiError, ApiResult};
use crate::guard::Caller;
use crate::prompts::{Prompts, TextFields, encode_within};
use crate::served::ServedModel;
use crate::text::most_tokens;

/// The inputs of a request for vectors, and how they become vectors.
pub(crate) struct VectorRequest {
    /// The field with the inputs.
    pub(crate) field: &'static str,
    pub(crate) input: Prompts,
    pub(crate) text: TextFields,
    /// `None` takes what the model's authors state, else the mean.
    pub(crate) pooling: Option<Pooling>,
    /// The name of a text that is put before each input.
    pub(crate) prompt_name: Option<String>,
    /// The number of leading components that are kept.
    pub(crate) dimensions: Option<usize>,
    /// Whether vectors have length 1.
    pub(crate) normalizes: bool,
    /// Whether inputs that are too long are cut at their end, as Ollama does. Otherwise they are refused.
    pub(crate) truncates: bool,
}

impl VectorRequest {
    /// Does the checks that need no model.
    ///
    /// # Errors
    /// If there are no inputs or too many, or no dimensions.
    pub(crate) fn check(&self) -> ApiResult<()> {
        let checked = self.input.check(self.field);
        checked.map_err(|error| error.with_param(self.field))?;
        self.check_dimensions()
    }

    /// Checks the field `dimensions`, for a request without an input.
    ///
    /// # Errors
    /// If it is 0.
    pub(crate) fn check_dimensions(&self) -> ApiResult<()> {
        if self.dimensions == Some(0) {
            return Err(ApiError::field("dimensions", "0, expected at least 1"));
        }
        Ok(())
    }

    /// Returns a vector for each input, and the number of tokens of all inputs.
    ///
    /// # Errors
    /// If the model's files state rules that are not supported, there is no prompt of the name, an input is too long, or
    /// there are more dimensions than the model has.
    pub(crate) async fn compute(
        self,
        model: &Arc<ServedModel>,
        client: Caller,
    ) -> ApiResult<(Vec<Vec<f32>>, usize)> {
        let Self {
            field,
            mut input,
            text,
            pooling,
            prompt_name,
            dimensions,
            normalizes,
            truncates,
        } = self;
        let defaults = model.model().embedding_defaults();
        if let Some(part) = embedding::unsupported(model.model()) {
            let message = format!("this model has no vectors of texts here: {part}");
            return Err(ApiError::unsupported("model", message));
        }
        let width = model.model().description().vector_width();
        if dimensions.is_some_and(|dimensions| dimensions > width) {
            let message = format!("this model's vectors have {width}");
            return Err(ApiError::unsupported("dimensions", message));
        }
        let is_named = prompt_name.is_some();
        let name = prompt_name.or_else(|| defaults.default_prompt.clone());
        let prompt = name.map(|name| {
            defaults.prompts.get(&name).ok_or_else(|| {
                let names: Vec<_> = defaults.prompts.keys().map(String::as_str).collect();
                let names = if names.is_empty() {
                    "this model has none".into()
                } else {
                    format!("expected one of {}", names.join(", "))
                };
                let message = format!("there is no prompt {name:?}: {names}");
                ApiError::field("prompt_name", message)
            })
        });
        let prompt = prompt.transpose()?;
        let place = model.enter_to_encode(client.address)?;
        // The prompt is put before inputs only here, so that a request without a place takes no memory for its copies.
        let is_text = prompt.is_none_or(|prompt| input.put_before(prompt));
        if is_named && !is_text {
            let message = "tokens are used as they are: expected texts";
            return Err(ApiError::field("prompt_name", message));
        }
        let options = text.options(model);
        let context = embedding::max_tokens(model.model(), model.context());
        let most = if truncates {
            most_tokens(model)?
        } else {
            context
        };
        let mut texts = encode_within((model, &place), (field, input), options, most).await?;
        if truncates {
            let tokenizer = model.model().tokenizer()?;
            texts
                .iter_mut()
                .for_each(|text| truncate(tokenizer, text, options, context));
        }
        let tokens = texts.iter().map(Vec::len).sum();
        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        let pooling = pooling.or(defaults.pooling).unwrap_or_default();
        let vectors = encoding::compute(
            (model, place),
            (field, &lengths),
            move |engine, most_pages, cancel| {
                let options = VectorOptions {
                    pooling,
                    dimensions,
                    normalizes,
                    most_pages,
                };
                embed_each(engine, texts, options, cancel)
            },
        );
        Ok((vectors.await?, tokens))
    }
}

/// Cuts a text at its end to at most `most` tokens. A control token that ends each text, such as EOS, still ends it.
fn truncate(tokenizer: &Tokenizer, text: &mut Vec<u32>, options: EncodeOptions, most: usize) {
    if text.len() <= most {
        return;
    }
    let is_end =
        |token: &u32| options.add_special && tokenizer.token_kind(*token) == TokenKind::Control;
    let end = text.last().copied().filter(is_end);
    text.truncate(most);
    if let (Some(end), Some(last)) = (end, text.last_mut()) {
        *last = end;
    }
}
