//! The field `options`: sampling and the length of completions, by the names of Ollama's API.

use serde::Deserialize;
use serde_json::Value;
use triad_grammar::GrammarSource;
use triad_model::template::ChatTemplate;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::forms::AskedForm;
use crate::prompt_fields::PromptOptions;
use crate::reasoning::ReasoningOptions;
use crate::sampling::{OneOrMany, Sampling, chosen_seed, likeliest, one_of};
use crate::values::whole;

/// Options of a completion. The table of fields has those without effect.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Options {
    /// Maximum number of tokens. -1 and -2 mean no limit.
    #[schema(minimum = -2)]
    #[serde(default, deserialize_with = "whole")]
    num_predict: Option<i64>,
    /// Divisor of the logits. 0 always selects the most likely token.
    temperature: Option<f64>,
    /// Keeps only this number of most likely tokens. 0 keeps all.
    #[serde(default, deserialize_with = "whole")]
    top_k: Option<i64>,
    /// Keeps the smallest set of most likely tokens whose probabilities add up to this value.
    top_p: Option<f64>,
    /// Drops tokens whose probability is less than this fraction of the most likely token's probability.
    min_p: Option<f64>,
    /// Penalty for tokens of the prompt and of the completion so far. 1 has no effect.
    repeat_penalty: Option<f64>,
    /// The latest tokens that penalties cover: -1 is all of them, which is the default, and 0 turns penalties off. 64 is
    /// the default if the request has no penalties.
    #[serde(default, deserialize_with = "whole")]
    repeat_last_n: Option<i64>,
    /// Subtracted once from the logit of each token that occurs in the completion so far.
    presence_penalty: Option<f64>,
    /// Subtracted from the logit of a token once for each occurrence in the completion so far.
    frequency_penalty: Option<f64>,
    /// Seed of the random numbers. The same seed gives the same completion; -1 is a different seed for each request.
    #[serde(default, deserialize_with = "whole")]
    seed: Option<i64>,
    /// Strings that end the completion.
    stop: Option<OneOrMany>,
}

/// Aliases of options outside of `options`, by the names of OpenAI's API, as clients for several APIs send them.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Aliases {
    /// Alias of `options.num_predict`.
    #[schema(minimum = -2)]
    #[serde(default, deserialize_with = "whole")]
    max_output_tokens: Option<i64>,
    /// Alias of `options.num_predict`.
    #[schema(minimum = -2)]
    #[serde(default, deserialize_with = "whole")]
    max_tokens: Option<i64>,
    /// Alias of `options.temperature`.
    temperature: Option<f64>,
    /// Alias of `options.top_k`.
    #[serde(default, deserialize_with = "whole")]
    top_k: Option<i64>,
    /// Alias of `options.top_p`.
    top_p: Option<f64>,
    /// Alias of `options.presence_penalty`.
    presence_penalty: Option<f64>,
    /// Alias of `options.frequency_penalty`.
    frequency_penalty: Option<f64>,
    /// Alias of `options.seed`.
    #[serde(default, deserialize_with = "whole")]
    seed: Option<i64>,
    /// Alias of `options.stop`.
    stop: Option<OneOrMany>,
}

impl Aliases {
    /// Reads `options` with these aliases, as [`Options::read`].
    ///
    /// # Errors
    /// If an alias and its option differ, or a value is out of range.
    pub(crate) fn read(self, mut options: Options) -> ApiResult<(Sampling, Option<usize>)> {
        let most = one_of(
            ("max_output_tokens", self.max_output_tokens),
            ("max_tokens", self.max_tokens),
        )?;
        let name = match self.max_output_tokens {
            Some(_) => "max_output_tokens",
            None => "max_tokens",
        };
        options.num_predict = one_of((name, most), ("options.num_predict", options.num_predict))?;
        options.top_k = one_of(("top_k", self.top_k), ("options.top_k", options.top_k))?;
        options.seed = one_of(("seed", self.seed), ("options.seed", options.seed))?;
        let Options {
            temperature,
            top_p,
            presence_penalty,
            frequency_penalty,
            ..
        } = &mut options;
        for (name, of, alias, option) in [
            (
                "temperature",
                "options.temperature",
                self.temperature,
                temperature,
            ),
            ("top_p", "options.top_p", self.top_p, top_p),
            (
                "presence_penalty",
                "options.presence_penalty",
                self.presence_penalty,
                presence_penalty,
            ),
            (
                "frequency_penalty",
                "options.frequency_penalty",
                self.frequency_penalty,
                frequency_penalty,
            ),
        ] {
            *option = one_of((name, alias), (of, *option))?;
        }
        options.stop = one_of(("stop", self.stop), ("options.stop", options.stop.take()))?;
        options.read()
    }
}

impl Options {
    /// Returns the sampling options, and the maximum number of tokens.
    ///
    /// # Errors
    /// If a value is out of range.
    pub(crate) fn read(self) -> ApiResult<(Sampling, Option<usize>)> {
        let max_tokens = match self.num_predict {
            None | Some(-1 | -2) => None,
            Some(tokens) => Some(
                usize::try_from(tokens)
                    .ok()
                    .filter(|tokens| *tokens > 0)
                    .ok_or_else(|| {
                        let message = format!("{tokens}, expected at least 1, or -1 for no limit");
                        ApiError::field("options.num_predict", message)
                    })?,
            ),
        };
        let mut sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: chosen_seed(self.seed),
            stop: self.stop,
            ..Sampling::default()
        };
        match self.repeat_last_n {
            None | Some(-1) => {}
            // Ollama's default, without a penalty of the request that it would limit.
            Some(64) if !sampling.penalizes() => {}
            Some(0) => sampling.turn_penalties_off(),
            Some(other) => {
                let message =
                    format!("{other}, expected -1 for penalties of all tokens, or 0 for none");
                return Err(ApiError::unsupported("options.repeat_last_n", message));
            }
        }
        Ok((sampling, max_tokens))
    }
}

/// Whether and how much the model reasons.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected true, false, low, medium or high")]
pub(crate) enum Think {
    Reasons(bool),
    /// `low`, `medium` or `high`, for templates that read an effort.
    Effort(String),
}

impl Think {
    /// Does the checks that need no model.
    ///
    /// # Errors
    /// If the effort is unknown.
    pub(crate) fn check(&self) -> ApiResult<()> {
        match self {
            Self::Effort(effort) if !["low", "medium", "high"].contains(&effort.as_str()) => {
                let message = format!("{effort:?}, expected true, false, low, medium or high");
                Err(ApiError::field("think", message))
            }
            _ => Ok(()),
        }
    }

    /// Sets the options of the prompt, and returns those of reasoning.
    ///
    /// # Errors
    /// If the template does not read an effort.
    pub(crate) fn apply(
        self,
        prompt: &mut PromptOptions,
        template: Option<&ChatTemplate>,
    ) -> ApiResult<ReasoningOptions> {
        let field = match self {
            Self::Reasons(reasons) => {
                prompt.set("enable_thinking", reasons.into());
                // Templates of hybrid models differ in the variable's name.
                prompt.set("thinking", reasons.into());
                reasons.then_some("think")
            }
            Self::Effort(effort) => {
                prompt.set_effort("think", effort, template)?;
                Some("think")
            }
        };
        Ok(ReasoningOptions {
            field,
            ..ReasoningOptions::default()
        })
    }
}

/// Returns the constraint of the field `format`: `json`, or a JSON schema.
///
/// # Errors
/// If the value is something else.
pub(crate) fn form(format: Option<Value>) -> ApiResult<Option<AskedForm>> {
    let field = "format";
    let source = match format {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) if text == "json" => GrammarSource::JsonObject,
        Some(Value::Object(schema)) => GrammarSource::JsonSchema(Value::Object(schema).to_string()),
        Some(_) => {
            return Err(ApiError::field(
                field,
                "expected \"json\" or a JSON schema, an object",
            ));
        }
    };
    Ok(Some(AskedForm { field, source }))
}

/// Returns how many alternatives are returned with each token's log probability. `None` returns no log probabilities.
///
/// # Errors
/// If there are too many, or the field `top_logprobs` is given without `logprobs`.
pub(crate) fn log_probabilities(
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
) -> ApiResult<Option<usize>> {
    let likeliest = likeliest("top_logprobs", top_logprobs)?;
    match (logprobs.unwrap_or(false), likeliest) {
        (true, likeliest) => Ok(Some(likeliest.unwrap_or(0))),
        (false, Some(count)) if count > 0 => Err(ApiError::field(
            "top_logprobs",
            "it requires logprobs: true",
        )),
        (false, _) => Ok(None),
    }
}
