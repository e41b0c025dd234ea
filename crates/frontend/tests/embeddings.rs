//! Vectors of texts are those of `sentence-transformers`. `tests/golden/embeddings/make.py` made the models and the
//! vectors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use triad_engine::{
    Cancel, Engine, EngineOptions, KvFormat, LoadOptions, Model, SessionOptions, Threads,
};
use triad_frontend::chat::encode_text;
use triad_frontend::embedding::{Pooling, VectorOptions, embed, embed_each};
use triad_model::tokenizer::EncodeOptions;

/// The largest difference of a component to the reference in float64. Vectors have length 1.
const TOLERANCE: f32 = 1e-5;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/embeddings")
}

/// Compares all vectors of a model, and returns the largest difference.
fn compare(name: &str, pooling: Pooling) -> f32 {
    let options = LoadOptions {
        threads: Threads::Count(2),
        ..LoadOptions::default()
    };
    let model = Arc::new(Model::load(&golden().join(name), &options).unwrap());
    let session = SessionOptions {
        context: 512,
        chunk: 64,
        kv_format: KvFormat::F32,
    };
    let options = EngineOptions {
        session,
        ..EngineOptions::default()
    };
    let engine = Engine::new(&model, &options).unwrap();
    let defaults = model.embedding_defaults();
    assert_eq!(defaults.pooling, Some(pooling));
    let cases = std::fs::read_to_string(golden().join(format!("{name}.json"))).unwrap();
    let (mut largest, mut count) = (0.0f32, 0);
    let (mut texts, mut vectors) = (Vec::new(), Vec::<Vec<f32>>::new());
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let prompt = case["prompt"]
            .as_str()
            .or(defaults.default_prompt.as_deref());
        let prompt = prompt.map_or("", |name| defaults.prompts[name].as_str());
        let text = format!("{prompt}{}", case["text"].as_str().unwrap());
        let tokens = encode_text(
            &model,
            &text,
            EncodeOptions {
                parse_special: true,
                add_special: true,
            },
            (512, &Cancel::new()),
        );
        let options = VectorOptions {
            pooling,
            dimensions: case["dimensions"].as_u64().map(|count| count as usize),
            normalizes: true,
            most_pages: 1,
        };
        let tokens = tokens.unwrap();
        let vector = embed(&engine, tokens.clone(), options, &Cancel::new()).unwrap();
        texts.push(tokens);
        vectors.push(vector.clone());
        let expected = case["vector"].as_array().unwrap();
        assert_eq!(vector.len(), expected.len(), "{line}");
        for (value, expected) in vector.iter().zip(expected) {
            largest = largest.max((value - expected.as_f64().unwrap() as f32).abs());
        }
        count += 1;
    }
    let options = VectorOptions {
        most_pages: 8,
        ..VectorOptions::of_length_1(pooling)
    };
    assert!(engine.encode_pages(&[9; 20], 8) > 1);
    let together = embed_each(&engine, texts, options, &Cancel::new()).unwrap();
    for (together, alone) in together.iter().zip(&vectors) {
        // Some have fewer dimensions.
        let is_whole = together.len() == alone.len();
        assert!(!is_whole || together == alone, "the bits of each alone");
    }
    println!("{name}: {count} vectors, largest difference {largest:.1e}");
    assert!(count >= 10 && largest <= TOLERANCE, "{name}: {largest}");
    largest
}

#[test]
fn vectors_of_qwen3_embeddings_layout_are_those_of_sentence_transformers() {
    compare("qwen3", Pooling::Last);
}

#[test]
fn means_with_a_default_prompt_are_those_of_sentence_transformers() {
    compare("llama", Pooling::Mean);
}

#[test]
fn first_states_are_those_of_sentence_transformers() {
    compare("first", Pooling::First);
}
