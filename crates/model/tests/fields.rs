//! Changes every field of every family's `config.json` and GGUF header, one by one. If a change leaves the reference's
//! logits unchanged, the description must not change; if it changes the logits, the description must change; if two
//! versions of the reference interpret it differently, it must be refused. `tests/reference/fields/sweep.py` ran the
//! references and wrote `tests/golden/fields`; it also compares the logits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};
use triad_model::checkpoint::Checkpoint;
use triad_model::description::ModelDescription;
use triad_model::gguf::{self, Value};
use triad_model::testing::GgufBuilder;

fn golden(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(part)
}

/// A model to change, in its own folder.
struct Base<'a> {
    name: &'a str,
    fields: Fields,
    /// Tokens in the reference's prompt.
    tokens: usize,
    folder: tempfile::TempDir,
}

enum Fields {
    /// A configuration, and the key of the object that `changes` are in.
    Config {
        config: Map<String, Json>,
        within: Option<String>,
    },
    Gguf {
        fields: BTreeMap<String, Value>,
        tensors: GgufBuilder,
    },
}

impl<'a> Base<'a> {
    fn new(base: &'a Json) -> Self {
        let text = |key: &str| base[key].as_str();
        let folder = tempfile::tempdir().expect("a folder");
        let fields = match text("checkpoint") {
            Some(checkpoint) => {
                for file in fs::read_dir(golden("families").join(checkpoint)).expect(checkpoint) {
                    let file = file.expect(checkpoint);
                    fs::copy(file.path(), folder.path().join(file.file_name())).expect(checkpoint);
                }
                Fields::Config {
                    config: base["config"].as_object().expect("a configuration").clone(),
                    within: text("within").map(str::to_owned),
                }
            }
            None => gguf_fields(text("file").expect("a file"), &base["without"]),
        };
        let tokens = base["tokens"].as_u64().expect("a number") as usize;
        Self {
            name: text("name").expect("a name"),
            fields,
            tokens,
            folder,
        }
    }

    /// Writes the model with `changes` and without the fields `dropped`.
    fn write(&self, changes: &Map<String, Json>, dropped: &[Json]) -> PathBuf {
        let dropped = dropped.iter().filter_map(Json::as_str);
        match &self.fields {
            Fields::Config { config, within } => {
                let mut config = config.clone();
                // The fields of the object `within`; of the outermost one if a key begins with a slash.
                let mut inner = within.as_ref().map(|key| {
                    let inner = config[key].as_object();
                    inner.expect("an object").clone()
                });
                let mut change = |key: &str, value: Option<&Json>| {
                    let (fields, key) = match (key.strip_prefix('/'), &mut inner) {
                        (None, Some(inner)) => (inner, key),
                        (key_outside, _) => (&mut config, key_outside.unwrap_or(key)),
                    };
                    match value {
                        Some(value) => drop(fields.insert(key.to_owned(), value.clone())),
                        None => drop(fields.remove(key)),
                    }
                };
                let keeps_inner = |key: &String| {
                    let outside = format!("/{key}");
                    !changes.contains_key(&outside) && dropped.clone().all(|key| key != outside)
                };
                let keeps_inner = within.as_ref().is_some_and(keeps_inner);
                changes
                    .iter()
                    .for_each(|(key, value)| change(key, Some(value)));
                dropped.clone().for_each(|key| change(key, None));
                if let (Some(key), Some(inner), true) = (within, inner, keeps_inner) {
                    config.insert(key.clone(), inner.into());
                }
                let text = serde_json::to_string(&config).expect("JSON");
                fs::write(self.folder.path().join("config.json"), text).expect("a configuration");
                self.folder.path().to_path_buf()
            }
            Fields::Gguf { fields, tensors } => {
                let mut fields = fields.clone();
                fields.extend(
                    changes
                        .iter()
                        .map(|(key, value)| (key.clone(), gguf_value(value))),
                );
                dropped.for_each(|key| drop(fields.remove(key)));
                let file = fields
                    .into_iter()
                    .fold(tensors.clone(), |file, (key, value)| {
                        file.field(&key, value)
                    });
                let path = self.folder.path().join("model.gguf");
                fs::write(&path, file.build()).expect("a file");
                path
            }
        }
    }

    /// Returns the description without properties that the prompt is too short to show.
    fn seen(&self, description: &ModelDescription) -> ModelDescription {
        let mut seen = ModelDescription {
            context: self.tokens,
            ..description.clone()
        };
        for block in &mut seen.blocks {
            if let Some(attention) = block.attention_mut() {
                attention.window = attention.window.filter(|&window| window < self.tokens);
            }
        }
        seen
    }
}

/// Returns a GGUF file's fields and tensors, except those that `without` names; field names are without their
/// architecture.
fn gguf_fields(file: &str, without: &Json) -> Fields {
    let bytes = fs::read(golden("families").join(file)).expect(file);
    let read = gguf::read(&bytes).expect(file);
    let is_kept = |name: &str| {
        !without
            .as_array()
            .expect("a list")
            .iter()
            .any(|other| other.as_str() == Some(name))
    };
    let architecture = read
        .metadata
        .string("general.architecture")
        .expect(file)
        .expect(file)
        .to_owned();
    let short = |key: &str| {
        key.strip_prefix(&format!("{architecture}."))
            .unwrap_or(key)
            .to_owned()
    };
    let fields = read.metadata.iter().filter(|(key, _)| is_kept(&short(key)));
    let fields = fields
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    let tensors = read.tensors.values().filter(|tensor| is_kept(&tensor.name));
    let tensors = tensors.fold(GgufBuilder::new(), |file, tensor| {
        file.tensor(
            &tensor.name,
            &tensor.shape,
            tensor.format,
            &bytes[tensor.bytes.clone()],
        )
    });
    Fields::Gguf { fields, tensors }
}

/// Converts a value with its kind from the golden file.
fn gguf_value(value: &Json) -> Value {
    let (kind, value) = (value[0].as_str().expect("a kind"), &value[1]);
    let list = || value.as_array().expect("a list").iter();
    match kind {
        "str" => Value::String(value.as_str().expect("a text").to_owned()),
        "bool" => Value::Bool(value.as_bool().expect("a boolean")),
        "f32" => Value::Float(value.as_f64().expect("a number")),
        "arr:str" => Value::Strings(
            list()
                .map(|text| text.as_str().expect("a text").to_owned())
                .collect(),
        ),
        "arr:bool" => Value::Bools(
            list()
                .map(|flag| flag.as_bool().expect("a boolean"))
                .collect(),
        ),
        "arr:f32" => Value::Floats(
            list()
                .map(|number| number.as_f64().expect("a number") as f32)
                .collect(),
        ),
        "arr:u32" | "arr:i32" => Value::Integers(
            list()
                .map(|number| number.as_i64().expect("a number"))
                .collect(),
        ),
        _ => Value::Integer(value.as_i64().expect("a number").into()),
    }
}

/// The bases of `tests/reference/fields/cases.py` that have no results here. That of Gemma 3n in GGUF was swept; this test
/// would write its file of 0.8 MB several hundred times. That of `deepseek_v2-greedy` has no wrong case, but two RoPEs
/// whose logits are too near to tell them apart.
const NOT_SWEPT: [&str; 1] = ["deepseek_v2-greedy"];

#[test]
fn every_base_of_the_sweep_has_results_or_is_named_as_not_swept() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/fields/cases.py");
    let text = fs::read_to_string(cases).expect("the bases");
    let bases: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("    \"")?.split_once("\": (\""))
        .map(|(name, _)| name)
        .collect();
    let files = fs::read_dir(golden("fields")).expect("cases");
    let files: Vec<Json> = files
        .map(|file| fs::read(file.expect("a file").path()).expect("cases"))
        .map(|file| serde_json::from_slice(&file).expect("JSON"))
        .collect();
    let lists = files.iter().filter_map(|file| file["bases"].as_array());
    let swept: BTreeSet<&str> = lists
        .flatten()
        .filter_map(|base| base["name"].as_str())
        .map(|name| name.split_once(" (").map_or(name, |(name, _)| name))
        .collect();
    let named = BTreeSet::from(NOT_SWEPT);
    assert!(swept.is_disjoint(&named), "swept, and named as not swept");
    let all: BTreeSet<&str> = swept.union(&named).copied().collect();
    assert_eq!(bases, all);
}

#[test]
fn a_changed_field_changes_the_description_as_it_changes_the_references_logits_or_is_refused() {
    let files = fs::read_dir(golden("fields")).expect("cases");
    let cases: Vec<Json> = files
        .map(|file| fs::read(file.expect("a file").path()).expect("cases"))
        .map(|file| serde_json::from_slice(&file).expect("JSON"))
        .collect();
    let mut wrong = Vec::new();
    for one in cases
        .iter()
        .flat_map(|file| file["bases"].as_array().expect("a list"))
    {
        let base = Base::new(one);
        // Descriptions with the reference's logits for them.
        let mut known: Vec<(ModelDescription, u64)> = Vec::new();
        let (mut taken, mut refused) = (0, 0);
        for case in one["cases"].as_array().expect("a list") {
            let (changes, dropped) = (
                case[0].as_object().expect("fields"),
                case[1].as_array().expect("a list"),
            );
            let name = || format!("{}: {} without {}", base.name, case[0], case[1]);
            let checkpoint = match Checkpoint::open(base.write(changes, dropped)) {
                Ok(checkpoint) => checkpoint,
                Err(error) if changes.is_empty() && dropped.is_empty() => {
                    panic!("{}: {error}", name())
                }
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            let Some(logits) = case[2].as_u64() else {
                wrong.push(format!("{}: taken, though the references disagree", name()));
                continue;
            };
            taken += 1;
            let seen = base.seen(checkpoint.description());
            match known.iter().find(|(description, _)| *description == seen) {
                Some((_, others)) if *others != logits => {
                    wrong.push(format!("{}: described as a case with other logits", name()));
                }
                Some(_) => {}
                None => known.push((seen, logits)),
            }
        }
        println!(
            "{}: {taken} taken as {} models, {refused} refused",
            base.name,
            known.len()
        );
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
