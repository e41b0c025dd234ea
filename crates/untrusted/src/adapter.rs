//! Reads arbitrary bytes as an adapter for the model of the seed corpus: a GGUF file, or the JSON of
//! `adapter_config.json`, a zero, and a safetensors file. All numbers of an accepted adapter must be finite.

use std::sync::LazyLock;

use triad_model::adapter::Adapter;
use triad_model::description::ModelDescription;
use triad_model::testing::tiny_llama;
use triad_model::{family, gguf};

static MODEL: LazyLock<ModelDescription> = LazyLock::new(|| {
    let file = gguf::read(&tiny_llama().build()).expect("a good file");
    let described = family::from_gguf(&file.metadata, &file.tensors, &|_| Ok(Vec::new()));
    described.expect("a good model").0
});

/// Reads one input.
pub fn read(bytes: &[u8]) {
    let adapter = if bytes.starts_with(&gguf::MAGIC) {
        Adapter::from_gguf(bytes, &MODEL)
    } else {
        let Some(zero) = bytes.iter().position(|byte| *byte == 0) else {
            return;
        };
        let Ok(config) = serde_json::from_slice(&bytes[..zero]) else {
            return;
        };
        Adapter::from_peft(&config, &bytes[zero + 1..], &MODEL)
    };
    for low_rank in adapter
        .iter()
        .flat_map(Adapter::blocks)
        .flat_map(|block| block.values())
    {
        assert!(
            low_rank.scale.is_finite()
                && low_rank
                    .a
                    .iter()
                    .chain(&*low_rank.b)
                    .all(|value| value.is_finite())
        );
        assert!(
            low_rank.a.len().is_multiple_of(low_rank.rank)
                && low_rank.b.len().is_multiple_of(low_rank.rank)
        );
    }
}
