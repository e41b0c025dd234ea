//! Keyword arguments.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use triad_engine::sampler::SamplerOptions;
use triad_engine::speculate::Speculate;
use triad_engine::{Adapters, GenerateOptions, KvFormat, Model, ScaledAdapter, Threads};
use triad_grammar::{GrammarSource, Grammars};

use crate::error::{self, TriadError, chain};

/// Default maximum number of tokens of an answer.
const MAX_TOKENS: usize = 512;

/// The names of [`generate_options`].
const NAMES: [&str; 17] = [
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "seed",
    "stop",
    "logprobs",
    "speculate",
    "schema",
    "regex",
    "grammar",
    "lora",
];

/// An adapter: its path, or its path and scale.
#[derive(FromPyObject)]
enum AdapterArgument {
    Scaled((PathBuf, f32)),
    Whole(PathBuf),
}

/// Opens the adapters of the option `lora` for `model`.
///
/// # Errors
/// `TypeError` for a value of another type, `TriadError` for an adapter that does not fit the model.
pub fn adapters(model: &Model, options: Option<&Bound<'_, PyDict>>) -> PyResult<Adapters> {
    let given: Option<Vec<AdapterArgument>> = match options {
        Some(options) => get(options, "lora")?,
        None => None,
    };
    let opened = given.unwrap_or_default().into_iter().map(|adapter| {
        let (path, scale) = match adapter {
            AdapterArgument::Scaled(scaled) => scaled,
            AdapterArgument::Whole(path) => (path, 1.0),
        };
        let adapter = model.open_adapter(&path).map_err(error::engine)?;
        Ok(ScaledAdapter { adapter, scale })
    });
    Adapters::new(opened.collect::<PyResult<Vec<_>>>()?).map_err(error::engine)
}

/// One text or several.
#[derive(FromPyObject)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

/// Reads the options of an answer of `model`. Options that are not given have the values that the model's authors
/// recommend, or else temperature 0.7, `top_p` 0.95 and repetition penalty 1.05.
///
/// # Errors
/// `TypeError` for an unknown name or a value of another type, `ValueError` for a value out of range.
pub fn generate_options(
    model: &Arc<Model>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<GenerateOptions> {
    let temperature = options
        .map(|options| get(options, "temperature"))
        .transpose()?
        .flatten();
    let recommended = SamplerOptions::recommended(model.generation_defaults(), temperature);
    let Some(options) = options else {
        return Ok(GenerateOptions {
            max_tokens: Some(MAX_TOKENS),
            sampler: recommended,
            speculate: Some(Speculate::automatic()),
            ..GenerateOptions::default()
        });
    };
    for name in options.keys() {
        let name: String = name.extract()?;
        if !NAMES.contains(&name.as_str()) {
            let names = NAMES.join(", ");
            return Err(PyTypeError::new_err(format!(
                "there is no option {name}: expected one of {names}"
            )));
        }
    }
    let sampler = SamplerOptions {
        temperature: recommended.temperature,
        top_k: get(options, "top_k")?.unwrap_or(recommended.top_k),
        top_p: get(options, "top_p")?.unwrap_or(recommended.top_p),
        min_p: get(options, "min_p")?.unwrap_or(recommended.min_p),
        repetition_penalty: get(options, "repetition_penalty")?
            .unwrap_or(recommended.repetition_penalty),
        frequency_penalty: get(options, "frequency_penalty")?
            .unwrap_or(recommended.frequency_penalty),
        presence_penalty: get(options, "presence_penalty")?.unwrap_or(recommended.presence_penalty),
        logit_bias: get::<BTreeMap<u32, f32>>(options, "logit_bias")?
            .unwrap_or_default()
            .into_iter()
            .collect(),
        seed: get(options, "seed")?.unwrap_or(recommended.seed),
        suppressed_tokens: recommended.suppressed_tokens,
    };
    let stop = match get(options, "stop")? {
        None => Vec::new(),
        Some(Texts::One(text)) => vec![text],
        Some(Texts::Many(texts)) => texts,
    };
    let form = match source(options)? {
        None => None,
        Some(source) => {
            let grammars = Grammars::new(Arc::clone(model) as _);
            let form = grammars.and_then(|grammars| grammars.compile(&source));
            Some(form.map_err(|error| TriadError::new_err(chain(&error)))? as _)
        }
    };
    Ok(GenerateOptions {
        max_tokens: Some(get(options, "max_tokens")?.unwrap_or(MAX_TOKENS)),
        sampler,
        stop,
        log_probabilities: get(options, "logprobs")?,
        speculate: get(options, "speculate")?
            .unwrap_or(true)
            .then(Speculate::automatic),
        constraint: form,
        ..GenerateOptions::default()
    })
}

/// Returns the grammar that constrains the answer, if one is given.
fn source(options: &Bound<'_, PyDict>) -> PyResult<Option<GrammarSource>> {
    let schema = match options.get_item("schema")?.filter(|value| !value.is_none()) {
        None => None,
        Some(schema) => Some(GrammarSource::JsonSchema(
            match schema.extract::<String>() {
                Ok(text) => text,
                Err(_) => json_text(&schema)?,
            },
        )),
    };
    let regex = get(options, "regex")?.map(GrammarSource::Regex);
    let grammar = get(options, "grammar")?.map(GrammarSource::Lark);
    let mut given = [schema, regex, grammar].into_iter().flatten();
    let first = given.next();
    if given.next().is_some() {
        return Err(PyValueError::new_err(
            "expected at most one of schema, regex and grammar",
        ));
    }
    Ok(first)
}

/// Returns the value called `name`; `None` if it is absent or `None`.
fn get<T: for<'a, 'py> FromPyObject<'a, 'py, Error: Into<PyErr>>>(
    options: &Bound<'_, PyDict>,
    name: &str,
) -> PyResult<Option<T>> {
    let Some(value) = options.get_item(name)?.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    value.extract().map(Some).map_err(|error: T::Error| {
        let error: PyErr = error.into();
        let text = format!("{name}: {}", error.value(options.py()));
        if error.is_instance_of::<PyTypeError>(options.py()) {
            PyTypeError::new_err(text)
        } else {
            PyValueError::new_err(text)
        }
    })
}

/// Returns the text that Python's `json` writes for a value.
pub fn json_text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    value
        .py()
        .import("json")?
        .call_method1("dumps", (value,))?
        .extract()
}

/// Converts a value by Python's `json`.
pub fn json_value(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    serde_json::from_str(&json_text(value)?)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Parses a value by Python's `json`.
pub fn from_json<'py>(py: Python<'py>, value: &impl ToString) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?
        .call_method1("loads", (value.to_string(),))
}

/// Returns the given number of threads, or one per fast core.
pub fn threads(count: Option<usize>) -> Threads {
    count.map_or(Threads::Automatic, Threads::Count)
}

/// Returns the number format of keys and values with this name.
pub fn kv_format(name: &str) -> PyResult<KvFormat> {
    match name {
        "f16" => Ok(KvFormat::F16),
        "int8" => Ok(KvFormat::Int8),
        "f32" => Ok(KvFormat::F32),
        other => Err(PyValueError::new_err(format!(
            "kv is {other:?}: expected \"f16\", \"int8\" or \"f32\""
        ))),
    }
}
