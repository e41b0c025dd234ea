//! LoRA adapters compared with `peft`: tiny random adapters of tiny random checkpoints, with the logits that
//! `tests/golden/adapters/make.py` wrote.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use triad_engine::{
    Adapters, Cancel, Engine, EngineOptions, KvFormat, LoadOptions, Model, ScaledAdapter, Session,
    SessionOptions, Threads,
};

/// The largest difference of a logit, relative to the largest logit of the prompt.
const TOLERANCE: f32 = 1e-4;

/// Names of adapters with their scales.
type Scaled = [(&'static str, f32)];

/// Checkpoint, adapters with their scales, and the session in the golden file. Checkpoints and adapters are in each
/// format, so that both conversions of the row order are tested.
const CASES: [(&str, &Scaled, &str); 20] = [
    ("llama", &[("llama-all", 1.0)], "llama-all"),
    ("llama", &[("llama-all.gguf", 1.0)], "llama-all"),
    ("llama.gguf", &[("llama-all", 1.0)], "llama-all"),
    ("llama.gguf", &[("llama-all.gguf", 1.0)], "llama-all"),
    ("llama", &[("llama-patterns", 1.0)], "llama-patterns"),
    (
        "llama",
        &[("llama-patterns", 1.5), ("llama-all", 0.5)],
        "llama-both",
    ),
    (
        "llama.gguf",
        &[("llama-all", 0.5), ("llama-patterns", 1.5)],
        "llama-both",
    ),
    ("mistral", &[("mistral", 1.0)], "mistral"),
    ("qwen2", &[("qwen2", 1.0)], "qwen2"),
    ("qwen2.gguf", &[("qwen2.gguf", 1.0)], "qwen2"),
    ("gemma2", &[("gemma2", 1.0)], "gemma2"),
    ("phi2", &[("phi2", 1.0)], "phi2"),
    ("phi2.gguf", &[("phi2.gguf", 1.0)], "phi2"),
    ("phi3", &[("phi3", 1.0)], "phi3"),
    ("ernie4_5-plain", &[("ernie4_5", 1.0)], "ernie4_5"),
    ("ernie4_5-plain", &[("ernie4_5.gguf", 1.0)], "ernie4_5"),
    ("ernie4_5-plain.gguf", &[("ernie4_5", 1.0)], "ernie4_5"),
    ("ernie4_5-plain.gguf", &[("ernie4_5.gguf", 1.0)], "ernie4_5"),
    ("cohere2", &[("cohere2", 1.0)], "cohere2"),
    ("cohere2.gguf", &[("cohere2", 1.0)], "cohere2"),
];

fn golden_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(name)
}

/// Returns the tokens of a session, and their logits `[tokens, vocab]`.
fn golden(session: &str) -> (Vec<u32>, Vec<f32>) {
    let bytes = std::fs::read(golden_folder("adapters").join("golden.safetensors"))
        .expect("the golden file");
    let golden = SafeTensors::deserialize(&bytes).expect("safetensors");
    let words = |name: &str| -> Vec<[u8; 4]> {
        golden
            .tensor(&format!("{session}.{name}"))
            .expect(session)
            .data()
            .as_chunks()
            .0
            .to_vec()
    };
    let tokens = words("tokens")
        .into_iter()
        .map(u32::from_le_bytes)
        .collect();
    (
        tokens,
        words("logits")
            .into_iter()
            .map(f32::from_le_bytes)
            .collect(),
    )
}

fn model(checkpoint: &str) -> Arc<Model> {
    let options = LoadOptions {
        threads: Threads::Count(2),
        ..Default::default()
    };
    Arc::new(Model::load(&golden_folder("families").join(checkpoint), &options).expect(checkpoint))
}

fn adapters(model: &Model, names: &Scaled) -> Adapters {
    let scaled = |(name, scale): &(&'static str, f32)| ScaledAdapter {
        adapter: model
            .open_adapter(&golden_folder("adapters").join(name))
            .expect(name),
        scale: *scale,
    };
    Adapters::new(names.iter().map(scaled)).expect("finite scales")
}

fn session(model: &Arc<Model>, chunk: usize) -> Session {
    let session = SessionOptions {
        context: 64,
        chunk,
        kv_format: KvFormat::F32,
    };
    Engine::new(
        model,
        &EngineOptions {
            session,
            ..EngineOptions::default()
        },
    )
    .expect("an engine")
    .session()
}

/// Returns the largest difference, relative to the largest of `expected`.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected
        .iter()
        .fold(0.0, |largest: f32, value| largest.max(value.abs()));
    let apart = found
        .iter()
        .zip(expected)
        .map(|(one, other)| (one - other).abs());
    apart.fold(0.0, |most: f32, apart| {
        if apart.is_nan() {
            f32::INFINITY
        } else {
            most.max(apart)
        }
    }) / largest
}

#[test]
fn adapters_give_the_logits_of_peft() {
    println!("| checkpoint | adapters | largest relative difference |\n| --- | --- | --- |");
    let mut failed = Vec::new();
    for (checkpoint, names, name) in CASES {
        let (tokens, expected) = golden(name);
        let model = model(checkpoint);
        let adapters = adapters(&model, names);
        for chunk in [64, 7] {
            let mut session = session(&model, chunk);
            session
                .set_adapters(&adapters)
                .expect("adapters of the model");
            let found = session
                .prefill_all_logits(&tokens, &Cancel::new())
                .expect("logits");
            let apart = difference(&found, &expected);
            println!("| {checkpoint} | {names:?}, chunks of {chunk} | {apart:.1e} |");
            if apart >= TOLERANCE {
                failed.push(format!("{checkpoint}, {names:?}, prompt: {apart:.1e}"));
            }
            // The same token by token.
            session.truncate(0);
            let decoded = tokens.iter().map(|token| {
                session
                    .decode(*token, &Cancel::new())
                    .expect("logits")
                    .to_vec()
            });
            let apart = difference(&decoded.collect::<Vec<_>>().concat(), &expected);
            if apart >= TOLERANCE {
                failed.push(format!("{checkpoint}, {names:?}, decode: {apart:.1e}"));
            }
        }
    }
    assert!(failed.is_empty(), "beyond {TOLERANCE:.0e}: {failed:?}");
}

#[test]
fn an_adapter_without_scale_changes_nothing_and_one_for_another_model_is_refused() {
    let llama = model("llama");
    let (tokens, _) = golden("llama-all");
    let plain = session(&llama, 64)
        .prefill(&tokens, &Cancel::new(), |_| {})
        .expect("logits")
        .to_vec();
    let mut without = session(&llama, 64);
    without
        .set_adapters(&adapters(&llama, &[("llama-all", 0.0)]))
        .expect("adapters of the model");
    assert!(
        without
            .prefill(&tokens, &Cancel::new(), |_| {})
            .expect("logits")
            == plain
    );
    let of_phi = adapters(&model("phi3"), &[("phi3", 1.0)]);
    let error = without.set_adapters(&of_phi).expect_err("of another model");
    assert!(error.to_string().contains("another model"), "{error}");
    let adapter = llama
        .open_adapter(&golden_folder("adapters").join("llama-all"))
        .expect("an adapter");
    let error = Adapters::new([ScaledAdapter {
        adapter,
        scale: f32::NAN,
    }])
    .expect_err("no scale");
    assert!(
        error.to_string().contains("NaN, expected a finite number"),
        "{error}"
    );
    let error = model("qwen2")
        .open_adapter(&golden_folder("adapters").join("llama-all.gguf"))
        .expect_err("of llama");
    assert!(
        error.to_string().contains("`llama`") && error.to_string().contains("qwen2"),
        "{error}"
    );
}
