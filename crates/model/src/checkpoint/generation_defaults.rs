//! The model author's defaults for text generation.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::gguf::{self, Metadata};

/// Settings of the sampler and the tokens that end an answer, as far as the source states them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationDefaults {
    /// Divisor of the logits; 0 selects the likeliest token.
    pub temperature: Option<f32>,
    /// The sampler chooses among this many likeliest tokens.
    pub top_k: Option<usize>,
    /// The sampler chooses among the likeliest tokens that together have this probability.
    pub top_p: Option<f32>,
    /// The sampler chooses among tokens at least this fraction as likely as the likeliest.
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens that have occurred; 1 has no effect.
    pub repetition_penalty: Option<f32>,
    /// Ids of the tokens that end an answer, in the source's order, each once.
    pub end_tokens: Vec<u32>,
    /// Ids of tokens that are never chosen: `suppress_tokens` of `generation_config.json`, and of GGUF's tokenizer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suppressed_tokens: Vec<u32>,
    /// Settings of the source that the sampler does not have, each with its value: `num_beams: 4`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_followed: Vec<String>,
}

/// Settings of `generation_config.json` that change answers and that the sampler does not have, with the values that
/// change nothing besides null and empty lists.
const NOT_FOLLOWED: &[(&str, &[f64])] = &[
    ("bad_words_ids", &[]),
    ("begin_suppress_tokens", &[]),
    ("constraints", &[]),
    ("diversity_penalty", &[0.0]),
    ("dola_layers", &[]),
    ("encoder_no_repeat_ngram_size", &[0.0]),
    ("encoder_repetition_penalty", &[1.0]),
    ("epsilon_cutoff", &[0.0]),
    ("eta_cutoff", &[0.0]),
    ("exponential_decay_length_penalty", &[]),
    ("force_words_ids", &[]),
    ("forced_bos_token_id", &[]),
    ("forced_decoder_ids", &[]),
    ("forced_eos_token_id", &[]),
    ("guidance_scale", &[1.0]),
    ("min_length", &[0.0]),
    ("min_new_tokens", &[0.0]),
    ("no_repeat_ngram_size", &[0.0]),
    ("num_beam_groups", &[1.0]),
    ("num_beams", &[1.0]),
    ("penalty_alpha", &[0.0]),
    ("sequence_bias", &[]),
    ("stop_strings", &[]),
    ("token_healing", &[]),
    ("top_h", &[1.0]),
    ("typical_p", &[1.0]),
    ("watermarking_config", &[]),
];

/// Settings of GGUF below `general.sampling.` that the sampler does not have, as above. The other settings of XTC and
/// Mirostat change nothing without these.
const NOT_FOLLOWED_IN_GGUF: &[(&str, &[f64])] = &[
    ("mirostat", &[0.0]),
    ("sequence", &[]),
    ("xtc_probability", &[0.0]),
];
/// The number of last tokens that GGUF's repetition penalty looks at, and the value for all of them, as the sampler does.
const PENALTY_LAST_N: (&str, &[f64]) = ("penalty_last_n", &[-1.0]);
/// Maximum letters of a setting's value in a note.
const LONGEST_VALUE: usize = 80;

impl GenerationDefaults {
    /// Reads a GGUF file's `general.sampling.*` and its end-of-sequence, -turn and -message tokens.
    pub(super) fn from_gguf(metadata: &Metadata) -> Result<Self> {
        let mut end_tokens = Vec::new();
        for key in ["eos", "eot", "eom"].map(|name| format!("tokenizer.ggml.{name}_token_id")) {
            if let Some(id) = metadata.integer(&key)? {
                let id = u32::try_from(id).map_err(|_| {
                    Error::new(
                        ErrorKind::Malformed,
                        format!("metadata field `{key}` is {id}, expected a token id"),
                    )
                })?;
                end_tokens.push(id);
            }
        }
        let end_tokens = distinct(end_tokens);
        let suppressed = "tokenizer.ggml.suppress_tokens";
        let mut suppressed_tokens = Vec::new();
        for &id in metadata.integers(suppressed)?.unwrap_or_default() {
            let id = u32::try_from(id).map_err(|_| {
                Error::new(
                    ErrorKind::Malformed,
                    format!("metadata field `{suppressed}` has {id}, expected token ids"),
                )
            })?;
            suppressed_tokens.push(id);
        }
        let suppressed_tokens = distinct(suppressed_tokens);
        let defaults = Self {
            temperature: metadata.float("general.sampling.temp")?,
            top_k: metadata.integer("general.sampling.top_k")?,
            top_p: metadata.float("general.sampling.top_p")?,
            min_p: metadata.float("general.sampling.min_p")?,
            repetition_penalty: metadata.float("general.sampling.penalty_repeat")?,
            end_tokens,
            suppressed_tokens,
            not_followed: not_followed_in_gguf(metadata),
        };
        defaults.check(|name| {
            let name = match name {
                "temperature" => "temp",
                "repetition_penalty" => "penalty_repeat",
                name => name,
            };
            format!("metadata field `general.sampling.{name}`")
        })?;
        Ok(defaults)
    }

    /// Reads `generation_config.json`. With `"do_sample": false` the temperature is 0, whatever value the file states,
    /// as in `transformers`.
    pub(super) fn from_generation_config(config: &Value) -> Result<Self> {
        let samples = match stated(config, "do_sample") {
            None => true,
            Some(value) => value
                .as_bool()
                .ok_or_else(|| unexpected("do_sample", value, "true or false"))?,
        };
        let defaults = Self {
            temperature: if !samples {
                Some(0.0)
            } else {
                float(config, "temperature")?
            },
            top_k: integer(config, "top_k")?,
            top_p: float(config, "top_p")?,
            min_p: float(config, "min_p")?,
            repetition_penalty: float(config, "repetition_penalty")?,
            end_tokens: token_ids(config, "eos_token_id")?,
            suppressed_tokens: token_ids(config, "suppress_tokens")?,
            not_followed: not_followed(config),
        };
        defaults.check(|name| format!("field `{name}`"))?;
        Ok(defaults)
    }

    /// Checks that the sampler takes these settings. `field` returns the place of a setting in the source.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] naming the field, its value and the expected range.
    pub fn check(&self, field: impl Fn(&str) -> String) -> Result<()> {
        let settings = [
            ("temperature", self.temperature, 0.0..=f32::MAX),
            ("top_p", self.top_p, f32::MIN_POSITIVE..=1.0),
            ("min_p", self.min_p, 0.0..=1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01..=100.0),
        ];
        for (name, value, range) in settings {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                let expected = match name {
                    "temperature" => "a number of at least 0".to_owned(),
                    "top_p" => "a number above 0 and at most 1".to_owned(),
                    _ => format!("a number from {} to {}", range.start(), range.end()),
                };
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!("{} is {value}, expected {expected}", field(name)),
                ));
            }
        }
        Ok(())
    }
}

/// Returns the settings that the sampler does not have and that would change answers, with their values.
fn not_followed(config: &Value) -> Vec<String> {
    let changes = |(key, neutral): &(&str, &[f64])| {
        let value = stated(config, key)?;
        let is_empty = value.as_array().is_some_and(Vec::is_empty);
        let is_neutral = value.as_f64().is_some_and(|value| neutral.contains(&value));
        let is_off = value.as_bool() == Some(false);
        (!is_empty && !is_neutral && !is_off).then(|| format!("{key}: {value}"))
    };
    NOT_FOLLOWED.iter().filter_map(changes).collect()
}

/// Does the same for GGUF.
fn not_followed_in_gguf(metadata: &Metadata) -> Vec<String> {
    let penalty = metadata.float("general.sampling.penalty_repeat");
    let penalizes = penalty.is_ok_and(|penalty| penalty.is_some_and(|penalty| penalty != 1.0));
    let settings = NOT_FOLLOWED_IN_GGUF.iter();
    let settings = settings.chain(penalizes.then_some(&PENALTY_LAST_N));
    let changes = |(name, neutral): &(&str, &[f64])| {
        let key = format!("general.sampling.{name}");
        let value = match metadata.get(&key)? {
            gguf::Value::Integer(value) if neutral.contains(&(*value as f64)) => return None,
            gguf::Value::Float(value) if neutral.contains(value) => return None,
            gguf::Value::Integer(value) => value.to_string(),
            gguf::Value::Float(value) => value.to_string(),
            gguf::Value::String(value) => value.chars().take(LONGEST_VALUE).collect(),
            _ => "a value of another type".to_owned(),
        };
        Some(format!("{key}: {value}"))
    };
    settings.filter_map(changes).collect()
}

/// Returns ids of tokens, each once, in `generation_config.json` or `config.json`: an id or an array of ids.
pub(super) fn token_ids(config: &Value, key: &str) -> Result<Vec<u32>> {
    let Some(value) = stated(config, key) else {
        return Ok(Vec::new());
    };
    let ids = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice);
    let id = |id: &Value| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| unexpected(key, value, "a token id or an array of them"))
    };
    Ok(distinct(ids.iter().map(id).collect::<Result<_>>()?))
}

/// Returns `ids` without repetitions, in their order.
fn distinct(mut ids: Vec<u32>) -> Vec<u32> {
    let mut known = HashSet::new();
    ids.retain(|id| known.insert(*id));
    ids
}

/// Returns the value of `key`, unless it is absent or null.
fn stated<'a>(config: &'a Value, key: &str) -> Option<&'a Value> {
    config.get(key).filter(|value| !value.is_null())
}

fn float(config: &Value, key: &str) -> Result<Option<f32>> {
    let number = |value: &Value| match value.as_f64() {
        Some(number) if number >= 0.0 => Ok(number as f32),
        _ => Err(unexpected(key, value, "a number of at least 0")),
    };
    stated(config, key).map(number).transpose()
}

fn integer(config: &Value, key: &str) -> Result<Option<usize>> {
    let number = |value: &Value| {
        let integer = value
            .as_u64()
            .and_then(|integer| usize::try_from(integer).ok());
        integer.ok_or_else(|| unexpected(key, value, "a non-negative integer"))
    };
    stated(config, key).map(number).transpose()
}

fn unexpected(key: &str, value: &Value, expected: &str) -> Error {
    Error::new(
        ErrorKind::Malformed,
        format!("field `{key}` is {value}, expected {expected}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_generation_config_gives_sampler_settings_and_end_tokens() {
        let config = json!({
            "do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1,
            "min_p": null, "eos_token_id": [151645, 151643, 151645]
        });
        let defaults = GenerationDefaults::from_generation_config(&config).unwrap();
        let expected = GenerationDefaults {
            temperature: Some(0.7),
            top_k: Some(20),
            top_p: Some(0.8),
            repetition_penalty: Some(1.1),
            end_tokens: vec![151645, 151643],
            ..GenerationDefaults::default()
        };
        assert_eq!(defaults, expected);
    }

    #[test]
    fn settings_that_the_sampler_does_not_have_are_listed_unless_they_change_nothing() {
        let neutral = json!({
            "num_beams": 1, "typical_p": 1.0, "min_length": 0, "bad_words_ids": [], "forced_eos_token_id": null,
            "max_length": 20, "use_cache": true, "suppress_tokens": [], "token_healing": false, "stop_strings": null
        });
        let of = |config| GenerationDefaults::from_generation_config(config).unwrap();
        assert_eq!(of(&neutral), GenerationDefaults::default());
        let config = json!({
            "num_beams": 4, "typical_p": 0.9, "bad_words_ids": [[5, 6]], "suppress_tokens": [258883, 258882],
            "stop_strings": ["\n"], "token_healing": true
        });
        let defaults = of(&config);
        assert_eq!(
            defaults.not_followed,
            [
                "bad_words_ids: [[5,6]]",
                "num_beams: 4",
                "stop_strings: [\"\\n\"]",
                "token_healing: true",
                "typical_p: 0.9"
            ]
        );
        assert_eq!(defaults.suppressed_tokens, [258883, 258882]);
    }

    #[test]
    fn without_sampling_the_temperature_is_zero() {
        let config = json!({"do_sample": false, "temperature": 0.7});
        assert_eq!(
            GenerationDefaults::from_generation_config(&config)
                .unwrap()
                .temperature,
            Some(0.0)
        );
    }

    #[test]
    fn a_setting_of_another_type_is_an_error_that_names_it() {
        for (config, field) in [
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"top_k": -1}), "top_k"),
            (json!({"eos_token_id": [2, "</s>"]}), "eos_token_id"),
            (json!({"eos_token_id": 4294967296u64}), "eos_token_id"),
            (json!({"suppress_tokens": [-1]}), "suppress_tokens"),
            (json!({"do_sample": "no"}), "do_sample"),
            (json!({"do_sample": 0}), "do_sample"),
        ] {
            let error = GenerationDefaults::from_generation_config(&config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed);
            assert!(error.to_string().contains(field), "{error}");
        }
    }

    #[test]
    fn a_setting_that_the_sampler_refuses_is_an_error_that_names_it() {
        for (field, value) in [
            ("temperature", -1.0),
            ("temperature", 1e39),
            ("top_p", 0.0),
            ("top_p", 1e-46),
            ("top_p", 1.01),
            ("min_p", 2.0),
            ("repetition_penalty", 0.0),
            ("repetition_penalty", 1e39),
        ] {
            let error =
                GenerationDefaults::from_generation_config(&json!({ field: value })).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed);
            assert!(
                error.to_string().starts_with(&format!("field `{field}`")),
                "{error}"
            );
        }
        for (key, value) in [
            ("general.sampling.temp", f64::NAN),
            ("general.sampling.temp", -1.0),
            ("general.sampling.top_p", 1e300),
            ("general.sampling.penalty_repeat", f64::INFINITY),
        ] {
            let mut metadata = Metadata::default();
            metadata.insert(key, gguf::Value::Float(value));
            let error = GenerationDefaults::from_gguf(&metadata).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn settings_of_gguf_that_the_sampler_does_not_have_are_listed_unless_they_change_nothing() {
        let of = |values: &[(&str, gguf::Value)]| {
            let mut metadata = Metadata::default();
            for (name, value) in values {
                metadata.insert(format!("general.sampling.{name}"), value.clone());
            }
            GenerationDefaults::from_gguf(&metadata)
                .unwrap()
                .not_followed
        };
        let (integer, float) = (gguf::Value::Integer, gguf::Value::Float);
        let neutral = [
            ("mirostat", integer(0)),
            ("mirostat_tau", float(5.0)),
            ("xtc_probability", float(0.0)),
            ("xtc_threshold", float(0.1)),
            ("penalty_last_n", integer(64)),
            ("penalty_repeat", float(1.0)),
        ];
        assert!(of(&neutral).is_empty());
        let all = ("penalty_last_n", integer(-1));
        assert!(of(&[all, ("penalty_repeat", float(1.1))]).is_empty());
        let changing = [
            ("mirostat", integer(2)),
            ("xtc_probability", float(0.5)),
            ("penalty_last_n", integer(64)),
            ("penalty_repeat", float(1.1)),
            ("sequence", gguf::Value::String("k;t".into())),
        ];
        assert_eq!(
            of(&changing),
            [
                "general.sampling.mirostat: 2",
                "general.sampling.sequence: k;t",
                "general.sampling.xtc_probability: 0.5",
                "general.sampling.penalty_last_n: 64",
            ]
        );
    }

    #[test]
    fn tokens_that_gguf_suppresses_are_never_chosen() {
        let of = |ids: Vec<i64>| {
            let mut metadata = Metadata::default();
            let ids = gguf::Value::Integers(ids);
            metadata.insert("tokenizer.ggml.suppress_tokens", ids);
            GenerationDefaults::from_gguf(&metadata)
        };
        assert_eq!(of(vec![7, 5, 7]).unwrap().suppressed_tokens, [7, 5]);
        let error = of(vec![-1]).unwrap_err().to_string();
        assert!(error.contains("suppress_tokens` has -1"), "{error}");
    }

    #[test]
    fn gguf_metadata_gives_the_end_tokens_of_sequence_and_turn() {
        let mut metadata = Metadata::default();
        metadata.insert("tokenizer.ggml.eos_token_id", gguf::Value::Integer(1));
        metadata.insert("tokenizer.ggml.eot_token_id", gguf::Value::Integer(106));
        metadata.insert("general.sampling.temp", gguf::Value::Float(1.0));
        let defaults = GenerationDefaults::from_gguf(&metadata).unwrap();
        assert_eq!(
            (defaults.end_tokens, defaults.temperature),
            (vec![1, 106], Some(1.0))
        );
    }
}
