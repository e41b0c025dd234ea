//! The model author's defaults for text generation.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::gguf::Metadata;

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
}

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
                push_new(&mut end_tokens, id);
            }
        }
        Ok(Self {
            temperature: metadata.float("general.sampling.temp")?,
            top_k: metadata.integer("general.sampling.top_k")?,
            top_p: metadata.float("general.sampling.top_p")?,
            min_p: metadata.float("general.sampling.min_p")?,
            repetition_penalty: metadata.float("general.sampling.penalty_repeat")?,
            end_tokens,
        })
    }

    /// Reads `generation_config.json`. With `"do_sample": false` the temperature is 0, whatever value the file states,
    /// as in `transformers`.
    pub(super) fn from_generation_config(config: &Value) -> Result<Self> {
        let greedy = stated(config, "do_sample").and_then(Value::as_bool) == Some(false);
        Ok(Self {
            temperature: if greedy {
                Some(0.0)
            } else {
                float(config, "temperature")?
            },
            top_k: integer(config, "top_k")?,
            top_p: float(config, "top_p")?,
            min_p: float(config, "min_p")?,
            repetition_penalty: float(config, "repetition_penalty")?,
            end_tokens: end_tokens(config)?,
        })
    }
}

/// Returns `eos_token_id` of `generation_config.json` or `config.json`: an id or an array of ids.
pub(super) fn end_tokens(config: &Value) -> Result<Vec<u32>> {
    let key = "eos_token_id";
    let Some(value) = stated(config, key) else {
        return Ok(Vec::new());
    };
    let ids = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice);
    let mut end_tokens = Vec::new();
    for id in ids {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        push_new(
            &mut end_tokens,
            id.ok_or_else(|| unexpected(key, value, "a token id or an array of them"))?,
        );
    }
    Ok(end_tokens)
}

fn push_new(ids: &mut Vec<u32>, id: u32) {
    if !ids.contains(&id) {
        ids.push(id);
    }
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
    use crate::gguf;

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
            min_p: None,
            repetition_penalty: Some(1.1),
            end_tokens: vec![151645, 151643],
        };
        assert_eq!(defaults, expected);
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
        ] {
            let error = GenerationDefaults::from_generation_config(&config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed);
            assert!(error.to_string().contains(field), "{error}");
        }
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
