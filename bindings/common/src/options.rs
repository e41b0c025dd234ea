//! Options as plain data, which other languages fill in. In JSON their names are in camel case, and other names are
//! refused.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use triad::{CacheType, Constraint, GenerateOptions, Model, OpenOptions, Tool};

use crate::failure::{Code, Failure};

/// Options for opening a model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Opening {
    /// Whether a model file is prepared for INT8; the default is true.
    pub quantize: Option<bool>,
    /// Number of threads; the default is one for each fast core.
    pub threads: Option<usize>,
    /// Maximum tokens of a prompt and its answer together.
    pub context: Option<usize>,
    /// Tokens of a prompt per forward pass.
    pub prefill_chunk: Option<usize>,
    /// Number format of the KV cache: `f16`, `int8` or `f32`.
    pub cache_type: Option<String>,
}

impl Opening {
    /// Returns the options for the crate `triad`.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the format of the cache has another name.
    pub fn build(&self) -> Result<OpenOptions, Failure> {
        let mut options = Model::options();
        if self.quantize == Some(false) {
            options = options.no_quantize();
        }
        if let Some(count) = self.threads {
            options = options.threads(count);
        }
        if let Some(tokens) = self.context {
            options = options.context(tokens);
        }
        if let Some(tokens) = self.prefill_chunk {
            options = options.prefill_chunk(tokens);
        }
        if let Some(format) = &self.cache_type {
            options = options.cache_type(match format.as_str() {
                "f16" => CacheType::F16,
                "int8" => CacheType::Int8,
                "f32" => CacheType::F32,
                other => {
                    return Err(invalid(format!(
                        "cacheType: expected f16, int8 or f32, not {other}"
                    )));
                }
            });
        }
        Ok(options)
    }
}

/// Options of answers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Answering {
    /// Maximum tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Divisor of the logits; 0 always takes the likeliest token.
    pub temperature: Option<f32>,
    /// Number of likeliest tokens that are kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// Share of the probability that is kept.
    pub top_p: Option<f32>,
    /// Least probability that is kept, as a share of the likeliest token's.
    pub min_p: Option<f32>,
    /// Penalty of tokens that occurred before; 1 changes nothing.
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers.
    pub seed: Option<u64>,
    /// Texts that end an answer.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Whether an answer is a JSON object.
    pub json: Option<bool>,
    /// JSON schema that an answer matches, as text; within JSON, it is a value.
    #[serde(default, deserialize_with = "text_of_json")]
    pub schema: Option<String>,
    /// Regular expression that an answer matches.
    pub regex: Option<String>,
    /// Grammar that an answer matches, in llguidance's variant of Lark.
    pub grammar: Option<String>,
    /// LoRA adapters.
    #[serde(default)]
    pub adapters: Vec<Adapter>,
}

/// A LoRA adapter of an answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Path of its file or folder.
    pub path: String,
    /// Factor of its product; the default is 1.
    pub scale: Option<f32>,
}

impl Answering {
    /// Returns the options for the crate `triad`.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if there is more than one constraint.
    pub fn build(self) -> Result<GenerateOptions, Failure> {
        let mut options = GenerateOptions::new();
        if let Some(count) = self.max_tokens {
            options = options.max_tokens(count);
        }
        if let Some(temperature) = self.temperature {
            options = options.temperature(temperature);
        }
        if let Some(count) = self.top_k {
            options = options.top_k(count);
        }
        if let Some(share) = self.top_p {
            options = options.top_p(share);
        }
        if let Some(share) = self.min_p {
            options = options.min_p(share);
        }
        if let Some(penalty) = self.repetition_penalty {
            options = options.repetition_penalty(penalty);
        }
        if let Some(seed) = self.seed {
            options = options.seed(seed);
        }
        for text in self.stop {
            options = options.stop(text);
        }
        let json = (self.json == Some(true)).then_some(Constraint::Json);
        let schema = self.schema.map(Constraint::JsonSchema);
        let regex = self.regex.map(Constraint::Regex);
        let grammar = self.grammar.map(Constraint::Lark);
        let mut constraints = [json, schema, regex, grammar].into_iter().flatten();
        if let Some(constraint) = constraints.next() {
            options = options.constraint(constraint);
        }
        if constraints.next().is_some() {
            return Err(invalid(
                "expected at most one of json, schema, regex and grammar",
            ));
        }
        for adapter in self.adapters {
            options = options.adapter(adapter.path, adapter.scale.unwrap_or(1.0));
        }
        Ok(options)
    }
}

/// A function that the model may call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its purpose, for the model.
    #[serde(default)]
    pub description: String,
    /// JSON schema of its arguments.
    pub parameters: Value,
}

impl Function {
    /// Returns the tool for the crate `triad`.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] as [`Tool::new`].
    pub fn build(&self) -> Result<Tool, Failure> {
        let parameters = self.parameters.to_string();
        Ok(Tool::new(&self.name, &self.description, &parameters)?)
    }
}

/// Reads options that another language has written as JSON.
///
/// # Errors
/// [`Code::InvalidArgument`], with the field, if one has another type or an unknown name.
pub fn from_json<'de, T: Deserialize<'de>>(json: &'de str) -> Result<T, Failure> {
    let deserializer = &mut serde_json::Deserializer::from_str(json);
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let field = error.path().to_string();
        // The position in text that no user has written helps no one.
        let text = error.inner().to_string();
        let sentence = text.split(" at line ").next().unwrap_or(&text);
        match field.as_str() {
            "." => invalid(sentence),
            _ => invalid(format!("{field}: {sentence}")),
        }
    })
}

fn text_of_json<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Some(Value::deserialize(deserializer)?.to_string()))
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_option_and_a_wrong_type_are_refused_by_name() {
        for (json, named) in [
            (r#"{"maxToken": 3}"#, "maxToken"),
            (r#"{"maxTokens": -3}"#, "maxTokens: "),
            (r#"{"maxTokens": 1.5}"#, "maxTokens: "),
            (r#"{"temperature": "hot"}"#, "temperature: "),
            (r#"{"adapters": [{"name": "a"}]}"#, "adapters[0]"),
        ] {
            let failure = from_json::<Answering>(json).unwrap_err();
            assert_eq!(failure.code(), Code::InvalidArgument);
            assert!(failure.to_string().contains(named), "{failure}");
        }
        assert!(from_json::<Opening>(r#"{"float": true}"#).is_err());
    }

    #[test]
    fn two_constraints_are_refused() {
        let both: Answering = from_json(r#"{"json": true, "regex": "a"}"#).unwrap();
        assert_eq!(both.build().unwrap_err().code(), Code::InvalidArgument);
        let one: Answering = from_json(r#"{"json": false, "regex": "a"}"#).unwrap();
        assert!(one.build().is_ok());
    }

    #[test]
    fn a_format_of_the_cache_that_is_none_is_refused() {
        let opening: Opening = from_json(r#"{"cacheType": "f64"}"#).unwrap();
        assert!(
            opening
                .build()
                .is_err_and(|it| it.to_string().contains("f64"))
        );
    }
}
