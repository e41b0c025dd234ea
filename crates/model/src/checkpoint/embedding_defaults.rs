//! The model author's rules for vectors of texts: pooling, prompts and normalization.
//!
//! Folders state them in the layout of `sentence-transformers`: `modules.json`, `1_Pooling/config.json` and
//! `config_sentence_transformers.json`. GGUF files state the pooling.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::json;
use super::source::{
    PACKAGED_POOLING, POOLING_FOLDER, PROMPTS, SENTENCE_MODULES, Source, TEXT_LIMITS_NAMES,
};
use crate::description::{Pooling, ScoreActivation};
use crate::error::{Error, ErrorKind, Result};
use crate::family::torch_activation;
use crate::gguf::Metadata;

/// Maximum size of a text that is put before inputs, in bytes.
const MAX_PROMPT_BYTES: usize = 64 << 10;

/// The rules for vectors of texts, as far as the source states them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbeddingDefaults {
    /// The pooling.
    pub pooling: Option<Pooling>,
    /// Texts that are put before inputs, by name: `query`, `document`.
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt for inputs without one.
    pub default_prompt: Option<String>,
    /// The maximum number of tokens of a text.
    pub max_tokens: Option<usize>,
    /// The function of a classifier's output. `sentence-transformers` looks for it here before `config.json`.
    pub activation: Option<ScoreActivation>,
    /// The number of dense layers after pooling, if `modules.json` states it.
    pub dense_layers: Option<usize>,
    /// A part of the rules that Triad does not follow. Vectors of such a model are refused with this text.
    pub unsupported: Option<String>,
    /// A part of the rules for texts that Triad does not follow in scores and classes, which are refused with this text.
    pub unsupported_scores: Option<String>,
}

impl EmbeddingDefaults {
    /// Reads the rules of a source.
    ///
    /// # Errors
    /// If a file cannot be read, or is not what its name states.
    pub fn from_source(source: &Source) -> Result<Self> {
        match source {
            Source::Gguf(metadata) => Self::from_gguf(metadata),
            Source::HuggingFace {
                folder,
                tokenizer_config,
            } => {
                let mut defaults = Self::from_folder(folder)?;
                if defaults.max_tokens.is_none() {
                    defaults.max_tokens = tokenizer_config.as_ref().and_then(longest_text);
                }
                Ok(defaults)
            }
        }
    }

    fn from_gguf(metadata: &Metadata) -> Result<Self> {
        let Some(family) = metadata.string("general.architecture")? else {
            return Ok(Self::default());
        };
        let key = format!("{family}.pooling_type");
        let mut defaults = Self::default();
        match metadata.integer(&key)? {
            // 0 states that the file is no model of vectors.
            None | Some(0) => {}
            Some(1) => defaults.pooling = Some(Pooling::Mean),
            Some(2) => defaults.pooling = Some(Pooling::First),
            Some(3) => defaults.pooling = Some(Pooling::Last),
            Some(4) => {
                let message = "it ranks documents (pooling_type 4), and has no vectors of texts";
                defaults.unsupported = Some(message.into());
            }
            Some(other) => {
                let message = format!("metadata field `{key}` is {other}, expected 0 to 4");
                return Err(Error::new(ErrorKind::Malformed, message));
            }
        }
        Ok(defaults)
    }

    fn from_folder(folder: &Path) -> Result<Self> {
        let (mut defaults, mut pools) = (Self::default(), false);
        let path = folder.join(SENTENCE_MODULES);
        if let Some(modules) = json::read_any(&path)? {
            let modules = modules
                .as_array()
                .ok_or_else(|| malformed("expected an array of modules").at(&path))?;
            defaults.unsupported = unsupported_modules(modules);
            defaults.dense_layers = Some(modules.iter().filter(|it| is_dense(it)).count());
            pools = modules
                .iter()
                .any(|module| module["path"] == POOLING_FOLDER);
        }
        let mut has_pooling = false;
        // Packages have the file under another name, since they have no folders.
        for path in [
            folder.join(POOLING_FOLDER).join("config.json"),
            folder.join(PACKAGED_POOLING),
        ] {
            if let Some(config) = json::read(&path)? {
                defaults
                    .read_pooling(&config)
                    .map_err(|error| error.at(&path))?;
                has_pooling = true;
                break;
            }
        }
        if pools && !has_pooling {
            let message = format!("its pooling has no file {POOLING_FOLDER}/config.json");
            defaults.unsupported.get_or_insert(message);
        }
        let path = folder.join(PROMPTS);
        if let Some(config) = json::read(&path)? {
            defaults
                .read_prompts(&config)
                .map_err(|error| error.at(&path))?;
        }
        for path in TEXT_LIMITS_NAMES.map(|name| folder.join(name)) {
            if let Some(config) = json::read(&path)? {
                defaults
                    .read_limits(&config)
                    .map_err(|error| error.at(&path))?;
                break;
            }
        }
        Ok(defaults)
    }

    /// Reads the configuration of the pooling module.
    fn read_pooling(&mut self, config: &Value) -> Result<()> {
        const PREFIX: &str = "pooling_mode_";
        let mut modes = Vec::new();
        if let Value::Object(fields) = config {
            for (name, value) in fields {
                let Some(mode) = name.strip_prefix(PREFIX) else {
                    continue;
                };
                match value {
                    Value::Bool(true) => modes.push(mode),
                    Value::Bool(false) | Value::Null => {}
                    _ => {
                        return Err(malformed(&format!(
                            "field `{name}` is {value}, expected true or false"
                        )));
                    }
                }
            }
        }
        // Newer files name the mode.
        if let Some(mode) = config["pooling_mode"].as_str() {
            modes = mode.split('+').collect();
        }
        self.pooling = match modes[..] {
            [] => None,
            ["mean_tokens" | "mean"] => Some(Pooling::Mean),
            ["lasttoken"] => Some(Pooling::Last),
            ["cls_token" | "cls"] => Some(Pooling::First),
            _ => {
                let message = format!(
                    "its pooling is {}, expected mean, cls or lasttoken",
                    modes.join(" + ")
                );
                self.unsupported.get_or_insert(message);
                None
            }
        };
        if config["include_prompt"] == false {
            self.unsupported.get_or_insert(
                "its pooling leaves out the prompt (`include_prompt` is false)".into(),
            );
        }
        Ok(())
    }

    /// Reads the rules for texts.
    fn read_limits(&mut self, config: &Value) -> Result<()> {
        self.max_tokens = match &config["max_seq_length"] {
            Value::Null => None,
            value => {
                let tokens = value.as_u64().and_then(|it| usize::try_from(it).ok());
                let tokens = tokens.filter(|tokens| *tokens > 0).ok_or_else(|| {
                    malformed(&format!(
                        "field `max_seq_length` is {value}, expected a number of tokens"
                    ))
                })?;
                Some(tokens)
            }
        };
        match &config["do_lower_case"] {
            Value::Null | Value::Bool(false) => {}
            _ => {
                let message =
                    "its texts are changed to lower case before the tokenizer (`do_lower_case`)";
                self.unsupported.get_or_insert(message.into());
                self.unsupported_scores.get_or_insert(message.into());
            }
        }
        if config["processing_kwargs"]
            .as_object()
            .is_some_and(|it| !it.is_empty())
        {
            let message = "its texts have rules of their own (`processing_kwargs`)";
            self.unsupported_scores.get_or_insert(message.into());
        }
        Ok(())
    }

    fn read_prompts(&mut self, config: &Value) -> Result<()> {
        match &config["prompts"] {
            Value::Null => {}
            Value::Object(prompts) => {
                for (name, text) in prompts {
                    let text = text.as_str().ok_or_else(|| {
                        malformed(&format!(
                            "field `prompts.{name}` is {text}, expected a text"
                        ))
                    })?;
                    if text.len() > MAX_PROMPT_BYTES {
                        return Err(malformed(&format!(
                            "field `prompts.{name}` has {} bytes, expected at most {MAX_PROMPT_BYTES}",
                            text.len()
                        )));
                    }
                    self.prompts.insert(name.clone(), text.to_owned());
                }
            }
            other => {
                return Err(malformed(&format!(
                    "field `prompts` is {other}, expected an object"
                )));
            }
        }
        let field = "activation_fn";
        if !config[field].is_null() {
            let place = format!("field `{field}`");
            self.activation = Some(torch_activation(&place, &config[field])?);
        }
        match &config["default_prompt_name"] {
            Value::Null => {}
            Value::String(name) if self.prompts.contains_key(name) => {
                self.default_prompt = Some(name.clone());
            }
            other => {
                let message =
                    format!("field `default_prompt_name` is {other}, expected one of `prompts`");
                return Err(malformed(&message));
            }
        }
        Ok(())
    }
}

/// Returns the longest text that a tokenizer's configuration states. A number that no text reaches states none.
fn longest_text(config: &Value) -> Option<usize> {
    let tokens = config["model_max_length"].as_u64()?;
    let tokens = usize::try_from(tokens).ok()?;
    Some(tokens).filter(|tokens| *tokens > 0)
}

/// Describes the first module that Triad does not compute, or that is in another place than expected.
fn unsupported_modules(modules: &[Value]) -> Option<String> {
    let (mut has_pooling, mut is_normalized) = (false, false);
    modules.iter().find_map(|module| {
        let message = unsupported_module(module);
        let kind = kind_of(module);
        has_pooling |= kind == "Pooling";
        if kind == "Dense" && (!has_pooling || is_normalized) {
            return Some("it has a module Dense before Pooling or after Normalize".into());
        }
        is_normalized |= kind == "Normalize";
        message
    })
}

/// Returns whether a module is a dense layer that Triad computes, in a folder such as `2_Dense`.
pub(super) fn is_dense(module: &Value) -> bool {
    let number = module["path"]
        .as_str()
        .and_then(|path| path.strip_suffix("_Dense"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    kind_of(module) == "Dense" && number.is_some_and(is_number)
}

/// Returns the name of a module's class; empty if it is of another package.
pub(super) fn kind_of(module: &Value) -> &str {
    let kind = module["type"].as_str().unwrap_or_default();
    // A class of another package may have any of these names.
    let name = kind
        .strip_prefix("sentence_transformers.")
        .and_then(|kind| kind.rsplit('.').next());
    name.unwrap_or_default()
}

/// Describes a module that Triad does not compute.
fn unsupported_module(module: &Value) -> Option<String> {
    let kind = module["type"].as_str().unwrap_or_default();
    match kind_of(module) {
        _ if is_dense(module) => None,
        // Vectors are normalized unless a request wants the others.
        "Transformer" | "Normalize" => None,
        "LogitScore" => Some("it ranks documents by words (module LogitScore)".into()),
        "Pooling" if module["path"] == POOLING_FOLDER => None,
        "Pooling" => Some(format!(
            "its pooling is in the folder {}, expected {POOLING_FOLDER}",
            module["path"]
        )),
        _ => Some(format!(
            "it has a module {kind:?}, expected Transformer, Pooling, Dense and Normalize"
        )),
    }
}

fn malformed(message: &str) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gguf;

    /// Returns a folder with these files.
    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, value) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value.to_string()).unwrap();
        }
        folder
    }

    fn read(files: &[(&str, Value)]) -> Result<EmbeddingDefaults> {
        EmbeddingDefaults::from_folder(folder(files).path())
    }

    const POOLING: &str = "1_Pooling/config.json";
    const TEXT_LIMITS: &str = TEXT_LIMITS_NAMES[0];

    #[test]
    fn the_longest_text_is_that_of_the_first_file_else_that_of_the_tokenizer() {
        let of = |files: &[(&str, Value)], config: Value| {
            let folder = folder(files);
            let source = Source::HuggingFace {
                folder: folder.path().into(),
                tokenizer_config: Some(config),
            };
            EmbeddingDefaults::from_source(&source).unwrap().max_tokens
        };
        let limit = |count: usize| json!({"max_seq_length": count});
        let of_tokenizer = json!({"model_max_length": 70});
        for name in TEXT_LIMITS_NAMES {
            assert_eq!(
                of(&[(name, limit(50))], of_tokenizer.clone()),
                Some(50),
                "{name}"
            );
        }
        let two = [
            ("sentence_xlnet_config.json", limit(9)),
            (TEXT_LIMITS, limit(8)),
        ];
        assert_eq!(of(&two, Value::Null), Some(8));
        assert_eq!(of(&[], of_tokenizer.clone()), Some(70));
        let other = [(TEXT_LIMITS, json!({"do_lower_case": false}))];
        assert_eq!(of(&other, of_tokenizer), Some(70));
        // The number of a tokenizer without a limit.
        assert_eq!(of(&[], json!({"model_max_length": 1e30})), None);
    }

    fn module(kind: &str, path: &str) -> Value {
        json!({"idx": 0, "name": "0", "path": path, "type": format!("sentence_transformers.models.{kind}")})
    }

    #[test]
    fn the_layout_of_qwen3_embedding_is_the_last_token_with_named_prompts() {
        let defaults = read(&[
            (
                SENTENCE_MODULES,
                json!([
                    module("Transformer", ""),
                    module("Pooling", "1_Pooling"),
                    module("Normalize", "2_Normalize")
                ]),
            ),
            (
                POOLING,
                json!({
                    "word_embedding_dimension": 1024, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": false,
                    "pooling_mode_lasttoken": true, "include_prompt": true
                }),
            ),
            (
                PROMPTS,
                json!({"prompts": {"query": "Instruct: a\nQuery:", "document": ""}, "default_prompt_name": null}),
            ),
        ])
        .unwrap();
        assert_eq!(defaults.pooling, Some(Pooling::Last));
        assert_eq!(defaults.prompts["query"], "Instruct: a\nQuery:");
        assert_eq!(
            (defaults.default_prompt, defaults.unsupported),
            (None, None)
        );
    }

    #[test]
    fn a_folder_without_these_files_states_nothing() {
        assert_eq!(read(&[]).unwrap(), EmbeddingDefaults::default());
    }

    #[test]
    fn a_part_that_is_not_computed_is_named() {
        for (files, part) in [
            (
                vec![(SENTENCE_MODULES, json!([module("Dense", "2_Dense")]))],
                "Dense before Pooling",
            ),
            (
                vec![(
                    SENTENCE_MODULES,
                    json!([
                        module("Pooling", "1_Pooling"),
                        module("Dense", "../2_Dense")
                    ]),
                )],
                "Dense",
            ),
            (
                vec![(
                    SENTENCE_MODULES,
                    json!([
                        module("Pooling", "1_Pooling"),
                        module("Normalize", "2_Normalize"),
                        module("Dense", "3_Dense")
                    ]),
                )],
                "after Normalize",
            ),
            (
                vec![(TEXT_LIMITS, json!({"do_lower_case": true}))],
                "do_lower_case",
            ),
            (
                vec![(SENTENCE_MODULES, json!([module("Pooling", "other")]))],
                "other",
            ),
            (
                vec![(SENTENCE_MODULES, json!([module("Pooling", "1_Pooling")]))],
                "1_Pooling/config.json",
            ),
            (
                vec![(
                    SENTENCE_MODULES,
                    json!([{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]),
                )],
                "custom_st.Transformer",
            ),
            (
                vec![(POOLING, json!({"pooling_mode_max_tokens": true}))],
                "max_tokens",
            ),
            (
                vec![(
                    POOLING,
                    json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}),
                )],
                "cls_token + mean_tokens",
            ),
            (
                vec![(
                    POOLING,
                    json!({"pooling_mode_mean_tokens": true, "include_prompt": false}),
                )],
                "include_prompt",
            ),
        ] {
            let unsupported = read(&files).unwrap().unsupported.unwrap();
            assert!(unsupported.contains(part), "{unsupported}");
        }
    }

    #[test]
    fn files_of_other_types_are_errors_that_name_the_field() {
        for (name, value, field) in [
            (SENTENCE_MODULES, json!({"a": 1}), "modules"),
            (
                POOLING,
                json!({"pooling_mode_lasttoken": "yes"}),
                "pooling_mode_lasttoken",
            ),
            (PROMPTS, json!({"prompts": []}), "prompts"),
            (PROMPTS, json!({"prompts": {"query": 5}}), "prompts.query"),
            (
                PROMPTS,
                json!({"prompts": {"query": "a".repeat(MAX_PROMPT_BYTES + 1)}}),
                "prompts.query",
            ),
            (
                PROMPTS,
                json!({"default_prompt_name": "query"}),
                "default_prompt_name",
            ),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(field) && error.contains(name), "{error}");
        }
    }

    #[test]
    fn a_prompt_has_at_most_64_kib() {
        let of =
            |bytes: usize| read(&[(PROMPTS, json!({"prompts": {"query": "a".repeat(bytes)}}))]);
        assert_eq!(of(65_536).unwrap().prompts["query"].len(), 65_536);
        let error = of(65_537).unwrap_err().to_string();
        assert!(
            error.contains("prompts.query") && error.contains("65537"),
            "{error}"
        );
    }

    #[test]
    fn gguf_states_the_pooling_by_number() {
        let read = |number: i128| {
            let mut metadata = Metadata::default();
            metadata.insert("general.architecture", gguf::Value::String("qwen3".into()));
            metadata.insert("qwen3.pooling_type", gguf::Value::Integer(number));
            EmbeddingDefaults::from_gguf(&metadata)
        };
        let pooling = [0, 1, 2, 3].map(|number| read(number).unwrap().pooling);
        let (mean, first, last) = (Pooling::Mean, Pooling::First, Pooling::Last);
        assert_eq!(pooling, [None, Some(mean), Some(first), Some(last)]);
        assert!(read(4).unwrap().unsupported.unwrap().contains("ranks"));
        assert!(
            read(5)
                .unwrap_err()
                .to_string()
                .contains("qwen3.pooling_type")
        );
    }
}
