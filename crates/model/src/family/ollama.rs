//! Gemma 3 in the files that Ollama converts itself: other names of fields, and some fields left out.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::gguf::{Metadata, Value};
use crate::tensor::TensorInfo;

/// Prefixes of tensors for images, which Ollama stores in the same file.
const IMAGES: [&str; 2] = ["v.", "mm."];

/// Ollama's names of fields, and those of llama.cpp.
const NAMES: [[&str; 2]; 2] = [
    ["gemma3.rope.global.freq_base", "gemma3.rope.freq_base"],
    ["gemma3.rope.local.freq_base", "gemma3.rope.freq_base_swa"],
];
/// Other fields that only Ollama's files have.
const MARKS: [&str; 3] = [
    "gemma3.mm.tokens_per_image",
    "tokenizer.ggml.add_padding_token",
    "tokenizer.ggml.add_unknown_token",
];
const CONTEXT: &str = "gemma3.context_length";
/// From this context on, positions of blocks without a window are scaled.
const LONG: usize = 131_072;

/// Returns the fields of the model under llama.cpp's names, as Ollama itself translates them; `None` for other files.
///
/// # Errors
/// If the context has another type than an integer.
pub(super) fn translated(
    metadata: &Metadata,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Option<Metadata>> {
    let has = |field: &str| metadata.get(field).is_some();
    let names = NAMES.map(|[ollama, _]| ollama);
    let has_images = || tensors.keys().any(|name| is_for_images(name));
    if !(names.iter().chain(&MARKS).any(|field| has(field)) || has_images()) {
        return Ok(None);
    }
    let mut translated = Metadata::default();
    for (field, value) in metadata.iter() {
        if !field.starts_with("tokenizer.") {
            translated.insert(field, value.clone());
        }
    }
    let add = |fields: &mut Metadata, field: &str, value: Value| {
        if fields.get(field).is_none() {
            fields.insert(field, value);
        }
    };
    for [ollama, name] in NAMES {
        if let Some(value) = metadata.get(ollama) {
            add(&mut translated, name, value.clone());
        }
    }
    for (field, value) in [
        ("gemma3.attention.layer_norm_rms_epsilon", 1e-6),
        ("gemma3.rope.freq_base", 1e6),
        ("gemma3.rope.freq_base_swa", 1e4),
    ] {
        add(&mut translated, field, Value::Float(value));
    }
    let is_long = metadata
        .integer(CONTEXT)?
        .is_some_and(|context| context >= LONG);
    if is_long && !has("gemma3.rope.scaling.type") && !has("gemma3.rope.scaling.factor") {
        add(
            &mut translated,
            "gemma3.rope.scaling.type",
            Value::String("linear".into()),
        );
        add(
            &mut translated,
            "gemma3.rope.scaling.factor",
            Value::Float(8.0),
        );
    }
    Ok(Some(translated))
}

/// Returns whether the tensor `name` is for images.
pub(super) fn is_for_images(name: &str) -> bool {
    IMAGES.iter().any(|prefix| name.starts_with(prefix))
}
