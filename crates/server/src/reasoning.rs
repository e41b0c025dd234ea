//! Reasoning of models in requests: where it goes in a response, and how many tokens it may have.

use std::sync::Arc;

use serde::Deserialize;
use triad_engine::{GenerateOptions, Model};
use triad_frontend::reasoning::{Reasoning, ReasoningConstraintFactory};
use triad_frontend::tool_calls::AnswerForm;
use triad_model::tokenizer::Tokenizer;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::sampling::one_of;
use crate::values::whole;

/// The number of tokens at the end of a prompt in which the template may open the reasoning.
const TAIL: usize = 32;

/// Request fields for reasoning, with the names of vLLM's and llama.cpp's servers.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ReasoningFields {
    /// `auto` or `deepseek` returns the model's reasoning in `reasoning_content`, `none` as a part of the content. The
    /// default is `auto`.
    reasoning_format: Option<String>,
    /// Whether the reasoning is a part of the content.
    reasoning_in_content: Option<bool>,
    /// Whether the response has the model's reasoning. The default is true.
    include_reasoning: Option<bool>,
    /// Maximum number of tokens of the reasoning. Then the model has to answer. -1 means no limit.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole")]
    reasoning_budget: Option<i64>,
    /// Alias of `reasoning_budget`.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole")]
    thinking_token_budget: Option<i64>,
}

/// The place of the reasoning in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Apart from the content.
    #[default]
    Apart,
    /// As a part of the content.
    Inline,
    /// Nowhere.
    Hidden,
}

/// The options of reasoning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReasoningOptions {
    pub(crate) delivery: Delivery,
    /// The maximum number of tokens.
    pub(crate) budget: Option<usize>,
    /// The field that is refused if the model does not mark its reasoning.
    pub(crate) field: Option<&'static str>,
}

impl ReasoningFields {
    /// Reads the options.
    ///
    /// # Errors
    /// If a value is unknown, or two fields contradict each other.
    pub(crate) fn read(self) -> ApiResult<ReasoningOptions> {
        let is_inline = match self.reasoning_format.as_deref() {
            None => None,
            Some("auto" | "deepseek") => Some(false),
            Some("none") => Some(true),
            Some(format) => {
                let message = format!("{format}: expected auto, deepseek or none");
                return Err(ApiError::unsupported("reasoning_format", message));
            }
        };
        let is_inline = one_of(
            ("reasoning_in_content", self.reasoning_in_content),
            ("reasoning_format", is_inline),
        )?;
        let delivery = match (is_inline.unwrap_or(false), self.include_reasoning) {
            (true, Some(false)) => {
                let message = "the content has the reasoning: expected true";
                return Err(ApiError::field("include_reasoning", message));
            }
            (true, _) => Delivery::Inline,
            (false, Some(false)) => Delivery::Hidden,
            (false, _) => Delivery::Apart,
        };
        let names = ["thinking_token_budget", "reasoning_budget"];
        let budgets = [self.thinking_token_budget, self.reasoning_budget];
        for (name, budget) in names.into_iter().zip(budgets) {
            if let Some(tokens) = budget.filter(|tokens| *tokens < -1) {
                let message = format!("{tokens} is out of range, expected -1 or more");
                return Err(ApiError::field(name, message));
            }
        }
        let field = names[usize::from(budgets[0].is_none())];
        let budget = one_of((names[0], budgets[0]), (names[1], budgets[1]))?;
        // Every value except -1 fits in `usize`.
        let budget = budget.and_then(|tokens| usize::try_from(tokens).ok());
        Ok(ReasoningOptions {
            delivery,
            budget,
            field: budget.map(|_| field),
        })
    }
}

/// The reasoning of one request's completions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thoughts {
    pub(crate) words: Reasoning,
    /// Whether completions begin within reasoning.
    pub(crate) is_open: bool,
    /// Whether the prompt has ended the reasoning.
    is_over: bool,
}

impl Thoughts {
    /// Finds the reasoning of completions of `prompt`. `continued` is the message that they continue.
    pub(crate) fn new(
        words: Reasoning,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        continued: Option<&str>,
    ) -> Self {
        let spelled = words.control_words(tokenizer);
        let mut stream = tokenizer.exact_stream().spelling(&spelled);
        let tail = &prompt[prompt.len().saturating_sub(TAIL)..];
        let mut text: String = tail
            .iter()
            .filter_map(|token| stream.push(*token))
            .collect();
        text += &stream.finish();
        let is_open = match continued {
            Some(text) => words.is_open_after(text),
            None => words.opens_at_end_of(&text),
        };
        Self {
            words,
            is_open,
            is_over: continued.is_none() && words.closes_at_end_of(&text),
        }
    }

    /// Lets the reasoning pass before the form of `options`, which is for `answer`, and bounds its tokens.
    pub(crate) fn guard(
        self,
        model: &Arc<Model>,
        budget: Option<usize>,
        (options, answer): (&mut GenerateOptions, AnswerForm),
    ) {
        // With channels, calls that are demanded come without any.
        let is_without = self.words.has_channels() && answer == AnswerForm::Calls;
        if self.is_over || is_without || (options.constraint.is_none() && budget.is_none()) {
            return;
        }
        let form = options.constraint.take();
        let thoughts = (self.words, self.is_open);
        options.constraint = Some(Arc::new(ReasoningConstraintFactory::new(
            Arc::clone(model),
            thoughts,
            budget,
            form,
        )));
    }
}
