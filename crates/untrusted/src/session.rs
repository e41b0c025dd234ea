//! Reads arbitrary bytes, with their hash, as a saved session of a tiny model: what is restored can be continued, or it is
//! refused.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use sha2::{Digest, Sha256};
use triad_engine::{Cancel, Engine, EngineOptions, LoadOptions, Model, SessionOptions, Threads};
use triad_model::testing::tiny_llama;

static ENGINE: LazyLock<(Engine, PathBuf)> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("triad-fuzz-session-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    let path = folder.join("model.gguf");
    fs::write(&path, tiny_llama().build()).expect("room for a file");
    let options = LoadOptions {
        threads: Threads::Count(1),
        ..Default::default()
    };
    let model = Model::load(&path, &options).expect("a good model");
    let engine_options = EngineOptions {
        session: SessionOptions {
            context: model.description().context,
            ..SessionOptions::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::new(&Arc::new(model), &engine_options).expect("memory for a session");
    (engine, folder.join("session"))
});

/// Reads one input.
pub fn read(bytes: &[u8]) {
    let (engine, path) = &*ENGINE;
    let file = [bytes, &Sha256::digest(bytes)].concat();
    fs::write(path, file).expect("room for a file");
    if let Ok(mut session) = engine.restore(path)
        && session.tokens().len() < session.context()
    {
        let _ = session.prefill(&[1], &Cancel::new(), |_| ());
    }
}
