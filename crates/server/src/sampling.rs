//! Request fields for sampling and stop conditions. The names are those of OpenAI's API; fields that it lacks have the
//! names of vLLM's and llama.cpp's servers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use triad_engine::GenerateOptions;
use triad_engine::sampler::SamplerOptions;
use triad_engine::speculate::Speculate;
use utoipa::ToSchema;

use crate::adapters::{self, LoraField};
use crate::error::{ApiError, ApiResult};
use crate::served::ServedModel;
use crate::values::whole;

/// Limits of stop strings: their number, and the bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// Maximum number of alternatives that are returned with the log probability of each token.
pub(crate) const MAX_LIKELIEST: usize = 20;

/// The sampling fields, common to all requests that generate text. The default of a field is what the model's authors
/// recommend. Without a recommendation, the temperature is 0.7, `top_p` 0.95 and `repetition_penalty` 1.05.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Sampling {
    /// Divisor of the logits. 0 always selects the most likely token.
    pub(crate) temperature: Option<f64>,
    /// Keeps the smallest set of most likely tokens whose probabilities add up to this value. 0 keeps one token.
    pub(crate) top_p: Option<f64>,
    /// Keeps only this number of most likely tokens. 0 or -1 keeps all.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) top_k: Option<i64>,
    /// Drops tokens whose probability is less than this fraction of the most likely token's probability.
    pub(crate) min_p: Option<f64>,
    /// Subtracted from the logit of a token once for each occurrence in the completion so far.
    pub(crate) frequency_penalty: Option<f64>,
    /// Subtracted once from the logit of each token that occurs in the completion so far.
    pub(crate) presence_penalty: Option<f64>,
    /// Penalty for tokens of the prompt and of the completion so far: positive logits are divided by it, negative ones
    /// multiplied. 1 has no effect.
    pub(crate) repetition_penalty: Option<f64>,
    /// Alias of `repetition_penalty`, as in llama.cpp's server.
    pub(crate) repeat_penalty: Option<f64>,
    /// Values that are added to the logits, by token id.
    #[schema(value_type = Option<BTreeMap<u32, f64>>)]
    pub(crate) logit_bias: Option<BTreeMap<TokenId, f64>>,
    /// Seed of the random numbers. The same seed gives the same completion. The default is a different seed for each
    /// request, and so is -1 in `/completion` and `/infill`.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) seed: Option<i64>,
    /// Number of completions per prompt. The second completion uses the next seed, and so on.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "whole")]
    pub(crate) n: Option<usize>,
    /// Strings that end the completion. They are not part of the returned text.
    pub(crate) stop: Option<OneOrMany>,
    /// LoRA adapters to apply together, out of those that the server was started with.
    pub(crate) lora: Option<Vec<LoraField>>,
    /// Whether generation continues after an end token.
    pub(crate) ignore_eos: Option<bool>,
    /// Whether the completion is streamed as server-sent events.
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
}

/// The id of a token as the name of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TokenId(u32);

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<str>::deserialize(deserializer)?;
        // Two names of one token would have two values.
        let token = name.parse().ok();
        let token = token.filter(|token: &u32| token.to_string() == name);
        let expected = "the id of a token, a whole number without other characters";
        let wrong = || D::Error::custom(format!("{name:?} is no token: expected {expected}"));
        token.map(Self).ok_or_else(wrong)
    }
}

#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Whether the usage is sent after the last chunk of the completion.
    pub(crate) include_usage: Option<bool>,
    /// Whether each chunk has the usage of its completion so far. Without `include_usage`, it has no effect.
    pub(crate) continuous_usage_stats: Option<bool>,
}

/// One string or several.
#[derive(Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or an array of texts")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Returns the value of a field if it is within a range.
fn within<T: PartialOrd + Display + Copy>(
    name: &str,
    value: Option<T>,
    range: RangeInclusive<T>,
) -> ApiResult<Option<T>> {
    match value {
        Some(value) if !range.contains(&value) => {
            let message = format!(
                "{value} is out of range, expected {} to {}",
                range.start(),
                range.end()
            );
            Err(ApiError::field(name, message))
        }
        value => Ok(value),
    }
}

impl Sampling {
    /// Turns off all penalties for tokens that occurred.
    pub(crate) fn turn_penalties_off(&mut self) {
        (self.repetition_penalty, self.repeat_penalty) = (Some(1.0), None);
        (self.frequency_penalty, self.presence_penalty) = (None, None);
    }

    /// Returns whether the request has a penalty for tokens that occurred.
    pub(crate) fn penalizes(&self) -> bool {
        let differs = |value: Option<f64>, neutral| value.is_some_and(|value| value != neutral);
        differs(self.repetition_penalty, 1.0)
            || differs(self.repeat_penalty, 1.0)
            || differs(self.frequency_penalty, 0.0)
            || differs(self.presence_penalty, 0.0)
    }

    /// Returns whether the response is streamed.
    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Returns the number of completions per prompt.
    ///
    /// # Errors
    /// If it is 0, or more than the model computes concurrently.
    pub(crate) fn choices(&self, model: &ServedModel) -> ApiResult<usize> {
        self.choices_within(model.most_choices())
    }

    fn choices_within(&self, most: usize) -> ApiResult<usize> {
        Ok(within("n", self.n, 1..=most)?.unwrap_or(1))
    }

    /// Returns the number of completions per prompt, at most `most`. Does all checks that need no model, so that an
    /// invalid request does not load one.
    ///
    /// # Errors
    /// If a field is out of range.
    pub(crate) fn check(&self, most: usize) -> ApiResult<usize> {
        let choices = self.choices_within(most)?;
        self.sampler(&SamplerOptions::default(), None)?;
        self.stops()?;
        adapters::check(self.lora.as_deref().unwrap_or_default())?;
        Ok(choices)
    }

    /// Returns the options of generation for `model`: at most `max_tokens` tokens, with `log_probabilities`
    /// alternatives per token.
    ///
    /// # Errors
    /// If a field is out of range.
    pub(crate) fn options(
        &self,
        model: &ServedModel,
        max_tokens: Option<usize>,
        log_probabilities: Option<usize>,
    ) -> ApiResult<GenerateOptions> {
        let vocab = model.model().description().vocab;
        Ok(GenerateOptions {
            max_tokens,
            sampler: self.sampler(
                &model.sampling(self.temperature.map(|value| value as f32)),
                Some(vocab),
            )?,
            stop: self.stops()?,
            ignores_end_tokens: self.ignore_eos.unwrap_or(false),
            log_probabilities,
            speculate: model.speculates().then(Speculate::automatic),
            ..GenerateOptions::default()
        })
    }

    /// Returns the sampling options; missing fields have the values of `default`. `vocab` is `None` before the model is
    /// loaded.
    fn sampler(&self, default: &SamplerOptions, vocab: Option<usize>) -> ApiResult<SamplerOptions> {
        let narrow = |value: Option<f64>| value.map(|value| value as f32);
        let top_k = within("top_k", self.top_k, -1..=i64::from(u32::MAX))?;
        let top_k = top_k.map(|top_k| usize::try_from(top_k).unwrap_or(0));
        // 0 keeps the most likely token alone, as every value does that is small enough.
        let top_p = within("top_p", self.top_p, 0.0..=1.0)?;
        let top_p = narrow(top_p).map(|top_p| top_p.max(f32::MIN_POSITIVE));
        let repeat_penalty = within("repeat_penalty", self.repeat_penalty, 0.01..=100.0)?;
        let repetition_penalty =
            within("repetition_penalty", self.repetition_penalty, 0.01..=100.0)?;
        let repetition_penalty = one_of(
            ("repeat_penalty", repeat_penalty),
            ("repetition_penalty", repetition_penalty),
        )?;
        Ok(SamplerOptions {
            temperature: narrow(within("temperature", self.temperature, 0.0..=100.0)?)
                .unwrap_or(default.temperature),
            top_k: top_k.unwrap_or(default.top_k),
            top_p: top_p.unwrap_or(default.top_p),
            min_p: narrow(within("min_p", self.min_p, 0.0..=1.0)?).unwrap_or(default.min_p),
            repetition_penalty: narrow(repetition_penalty).unwrap_or(default.repetition_penalty),
            frequency_penalty: narrow(within(
                "frequency_penalty",
                self.frequency_penalty,
                -2.0..=2.0,
            )?)
            .unwrap_or(0.0),
            presence_penalty: narrow(within(
                "presence_penalty",
                self.presence_penalty,
                -2.0..=2.0,
            )?)
            .unwrap_or(0.0),
            logit_bias: self.logit_bias(vocab)?,
            suppressed_tokens: default.suppressed_tokens.clone(),
            seed: match self.seed {
                Some(seed) => seed.cast_unsigned(),
                // Within the numbers that all programs read in JSON.
                None => getrandom::u32().map_or(0, u64::from),
            },
        })
    }

    fn logit_bias(&self, vocab: Option<usize>) -> ApiResult<Vec<(u32, f32)>> {
        let bias = self
            .logit_bias
            .iter()
            .flatten()
            .map(|(TokenId(token), bias)| {
                if let Some(vocab) = vocab.filter(|vocab| *token as usize >= *vocab) {
                    return Err(ApiError::field(
                        "logit_bias",
                        format!("token {token} is outside the vocabulary of {vocab}"),
                    ));
                }
                within("logit_bias", Some(*bias), -100.0..=100.0)?;
                Ok((*token, *bias as f32))
            });
        bias.collect()
    }

    fn stops(&self) -> ApiResult<Vec<String>> {
        let stops = match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop.clone()],
            Some(OneOrMany::Many(stops)) => stops.clone(),
        };
        if stops.len() > MAX_STOPS {
            return Err(ApiError::field(
                "stop",
                format!("{} texts, expected at most {MAX_STOPS}", stops.len()),
            ));
        }
        match stops
            .iter()
            .find(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES)
        {
            Some(stop) => {
                let message = format!(
                    "a text of {} bytes, expected 1 to {MAX_STOP_BYTES}",
                    stop.len()
                );
                Err(ApiError::field("stop", message))
            }
            None => Ok(stops),
        }
    }
}

/// Returns the seed of a request of llama.cpp's or Ollama's API, in which -1 asks for a different seed for each request.
pub(crate) fn chosen_seed(seed: Option<i64>) -> Option<i64> {
    seed.filter(|seed| *seed != -1)
}

/// Returns the value of a field with two names.
///
/// # Errors
/// If both names are used with different values.
pub(crate) fn one_of<T: PartialEq>(
    (other, value): (&str, Option<T>),
    (name, usual): (&str, Option<T>),
) -> ApiResult<Option<T>> {
    match (value, usual) {
        (Some(value), Some(usual)) if value != usual => Err(ApiError::field(
            other,
            format!("it is an alias of {name}, which has another value"),
        )),
        (value, usual) => Ok(usual.or(value)),
    }
}

/// Returns the maximum number of tokens per completion, from llama.cpp's `n_predict` or from the field `name`. Without
/// both, it is `default`. In both fields -1 means no limit, as in llama.cpp's server.
///
/// # Errors
/// If a value is less than -1, or the two values differ.
pub(crate) fn limit(
    n_predict: Option<i64>,
    (name, tokens): (&str, Option<i64>),
    default: Option<usize>,
) -> ApiResult<Option<usize>> {
    let n_predict = within("n_predict", n_predict, -1..=i64::MAX)?;
    let tokens = within(name, tokens, -1..=i64::MAX)?;
    let has_none = [n_predict, tokens].contains(&Some(-1));
    // Every value except -1 fits in `usize`.
    let number = |tokens: Option<i64>| tokens.and_then(|tokens| usize::try_from(tokens).ok());
    let limit = one_of(("n_predict", number(n_predict)), (name, number(tokens)))?;
    Ok(limit.or(default.filter(|_| !has_none)))
}

/// Refuses a limit of 0 tokens.
///
/// # Errors
/// If `most`, the value of the field `name`, is 0.
pub(crate) fn check_some(name: &str, most: Option<usize>) -> ApiResult<()> {
    if most == Some(0) {
        return Err(ApiError::field(name, "0, expected at least 1"));
    }
    Ok(())
}

/// Returns how many alternatives the field `name` asks for with each token's log probability.
///
/// # Errors
/// If the number exceeds [`MAX_LIKELIEST`].
pub(crate) fn likeliest(name: &str, count: Option<usize>) -> ApiResult<Option<usize>> {
    within(name, count, 0..=MAX_LIKELIEST)
}
