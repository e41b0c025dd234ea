//! The memory that is predicted before a model is loaded is what it takes.

use std::path::Path;

use triad_engine::{LoadOptions, Model, Threads, memory};
use triad_model::checkpoint::Checkpoint;

#[test]
fn weights_take_what_was_predicted_before_they_were_loaded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families");
    for model in ["llama", "llama.gguf", "gemma2.gguf", "phi2", "phi3", "qwen3.gguf"] {
        let path = folder.join(model);
        let predicted = memory::of_weights(&Checkpoint::open(&path).unwrap());
        let loaded = Model::load(&path, &LoadOptions { threads: Threads::Count(1), ..Default::default() }).unwrap();
        assert_eq!(predicted, loaded.weights().bytes(), "{model}");
    }
}
