//! What requests say about the choice of tokens and the end of an answer, by the names of OpenAI's API; those that it lacks
//! by the names of vLLM's and llama.cpp's servers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use serde::Deserialize;
use triad_engine::GenerateOptions;
use triad_engine::sampler::SamplerOptions;
use utoipa::ToSchema;

use crate::adapters::{self, LoraField};
use crate::error::{ApiError, ApiResult};
use crate::hosted::Hosted;

/// Texts that end an answer, at most, and bytes of each.
const MOST_STOPS: usize = 16;
const MOST_STOP_BYTES: usize = 1024;
/// Likeliest tokens told with each token, at most.
pub(crate) const MOST_LIKELIEST: usize = 20;

/// Fields that requests for answers have in common. What is not given is as the model's authors recommend, else greedy.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Sampling {
    /// Divisor of the logits; 0 always takes the likeliest token.
    pub(crate) temperature: Option<f64>,
    /// Keep the fewest likeliest tokens whose probabilities add up to this.
    pub(crate) top_p: Option<f64>,
    /// Keep only this many likeliest tokens; 0 or -1 keeps all.
    pub(crate) top_k: Option<i64>,
    /// Drop tokens less likely than this share of the likeliest one.
    pub(crate) min_p: Option<f64>,
    /// Subtracted from the logit of a token for each time that it is in the answer so far.
    pub(crate) frequency_penalty: Option<f64>,
    /// Subtracted from the logits of tokens that are in the answer so far.
    pub(crate) presence_penalty: Option<f64>,
    /// Logits of tokens of prompt and answer are divided by this, negative ones multiplied; 1 changes nothing.
    pub(crate) repetition_penalty: Option<f64>,
    /// The name that llama.cpp's server has for `repetition_penalty`.
    pub(crate) repeat_penalty: Option<f64>,
    /// Added to the logits of tokens, by their ids.
    pub(crate) logit_bias: Option<BTreeMap<u32, f64>>,
    /// Start of the random numbers: the same seed gives the same answer. Without, another one is drawn each time.
    pub(crate) seed: Option<i64>,
    /// Answers to a prompt; the second has the next seed, and so on.
    #[schema(minimum = 1)]
    pub(crate) n: Option<usize>,
    /// Texts that end an answer and are not part of it.
    pub(crate) stop: Option<OneOrMany>,
    /// LoRA adapters that are applied together, of those that the server was started with.
    pub(crate) lora: Option<Vec<LoraField>>,
    /// Go on behind an end token.
    pub(crate) ignore_eos: Option<bool>,
    /// Send parts of the answers as they come, as server-sent events.
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Send the usage behind the last part.
    pub(crate) include_usage: Option<bool>,
}

/// A text or several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or an array of texts")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// The value of a field, if it is within a range.
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
    /// Whether parts are sent as they come.
    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether usage is sent behind the last part of a stream.
    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .and_then(|options| options.include_usage)
            .unwrap_or(false)
    }

    /// Answers to each prompt.
    ///
    /// # Errors
    /// If there are none, or more than the model computes at once.
    pub(crate) fn choices(&self, model: &Hosted) -> ApiResult<usize> {
        self.choices_within(model.most_choices())
    }

    fn choices_within(&self, most: usize) -> ApiResult<usize> {
        Ok(within("n", self.n, 1..=most)?.unwrap_or(1))
    }

    /// Returns the number of answers to each prompt, at most `most`, after all checks that need no model, so that a request
    /// which they refuse loads none.
    ///
    /// # Errors
    /// If a field has a value out of its range.
    pub(crate) fn check(&self, most: usize) -> ApiResult<usize> {
        let choices = self.choices_within(most)?;
        self.sampler(&SamplerOptions::default(), None)?;
        self.stops()?;
        adapters::check(self.lora.as_deref().unwrap_or_default())?;
        Ok(choices)
    }

    /// How answers of `model` are made, of at most `max_tokens`, with so many of the likeliest tokens told.
    ///
    /// # Errors
    /// If a field has a value out of its range.
    pub(crate) fn options(
        &self,
        model: &Hosted,
        max_tokens: Option<usize>,
        log_probabilities: Option<usize>,
    ) -> ApiResult<GenerateOptions> {
        let vocab = model.model().description().vocab;
        Ok(GenerateOptions {
            max_tokens,
            sampler: self.sampler(&model.sampling(), Some(vocab))?,
            stop: self.stops()?,
            ignores_end_tokens: self.ignore_eos.unwrap_or(false),
            log_probabilities,
            ..GenerateOptions::default()
        })
    }

    /// Returns how tokens are chosen, as in `default` where the request leaves it out; `vocab` is unknown before the model is
    /// loaded.
    fn sampler(&self, default: &SamplerOptions, vocab: Option<usize>) -> ApiResult<SamplerOptions> {
        let narrow = |value: Option<f64>| value.map(|value| value as f32);
        let top_k = within("top_k", self.top_k, -1..=i64::from(u32::MAX))?;
        let top_k = top_k.map(|top_k| usize::try_from(top_k).unwrap_or(0));
        // What is 0 as f32 is 0.
        if self
            .top_p
            .is_some_and(|top_p| !(f64::from(f32::MIN_POSITIVE)..=1.0).contains(&top_p))
        {
            return Err(ApiError::field(
                "top_p",
                "out of range, expected more than 0 and at most 1",
            ));
        }
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
            top_p: narrow(self.top_p).unwrap_or(default.top_p),
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
            seed: match self.seed {
                Some(seed) => seed.cast_unsigned(),
                None => getrandom::u64().unwrap_or(0),
            },
        })
    }

    fn logit_bias(&self, vocab: Option<usize>) -> ApiResult<Vec<(u32, f32)>> {
        let bias = self.logit_bias.iter().flatten().map(|(token, bias)| {
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
        if stops.len() > MOST_STOPS {
            return Err(ApiError::field(
                "stop",
                format!("{} texts, expected at most {MOST_STOPS}", stops.len()),
            ));
        }
        match stops
            .iter()
            .find(|stop| stop.is_empty() || stop.len() > MOST_STOP_BYTES)
        {
            Some(stop) => {
                let message = format!(
                    "a text of {} bytes, expected 1 to {MOST_STOP_BYTES}",
                    stop.len()
                );
                Err(ApiError::field("stop", message))
            }
            None => Ok(stops),
        }
    }
}

/// Returns the value of a field with two names.
///
/// # Errors
/// If both are given, and differ.
pub(crate) fn one_of<T: PartialEq>(
    (other, value): (&str, Option<T>),
    (name, usual): (&str, Option<T>),
) -> ApiResult<Option<T>> {
    match (value, usual) {
        (Some(value), Some(usual)) if value != usual => Err(ApiError::field(
            other,
            format!("it is another name of {name}, which has another value"),
        )),
        (value, usual) => Ok(usual.or(value)),
    }
}

/// Returns the limit of an answer's tokens, from `n_predict` of llama.cpp's server or the field with the other name; `default`
/// without both. In both -1 is no limit, as in that server.
///
/// # Errors
/// If one is less, or both have values that differ.
pub(crate) fn limit(
    n_predict: Option<i64>,
    (name, tokens): (&str, Option<i64>),
    default: Option<usize>,
) -> ApiResult<Option<usize>> {
    let n_predict = within("n_predict", n_predict, -1..=i64::MAX)?;
    let tokens = within(name, tokens, -1..=i64::MAX)?;
    let has_none = [n_predict, tokens].contains(&Some(-1));
    // What is not negative fits.
    let number = |tokens: Option<i64>| tokens.and_then(|tokens| usize::try_from(tokens).ok());
    let limit = one_of(("n_predict", number(n_predict)), (name, number(tokens)))?;
    Ok(limit.or(default.filter(|_| !has_none)))
}

/// Refuses answers of no tokens.
///
/// # Errors
/// If the field `name` limits them to none.
pub(crate) fn check_some(name: &str, most: Option<usize>) -> ApiResult<()> {
    if most == Some(0) {
        return Err(ApiError::field(name, "0, expected at least 1"));
    }
    Ok(())
}

/// How many of the likeliest tokens are told, from the field `name`.
///
/// # Errors
/// If they are too many.
pub(crate) fn likeliest(name: &str, count: Option<usize>) -> ApiResult<Option<usize>> {
    within(name, count, 0..=MOST_LIKELIEST)
}
