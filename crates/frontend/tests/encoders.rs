//! Vectors of encoders are those of `sentence-transformers`, and scores of documents those of its cross-encoders.
//! `tests/golden/encoders/make.py` made the models, the vectors and the scores.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use triad_engine::{
    Cancel, EncoderText, Engine, EngineOptions, KvFormat, LoadOptions, Model, SessionOptions,
    Threads,
};
use triad_frontend::Error;
use triad_frontend::chat::encode_text;
use triad_frontend::embedding::{Pooling, VectorOptions, embed, embed_each, max_tokens};
use triad_frontend::reranking::{self, Part};
use triad_kernels::BlockArithmetic;
use triad_model::tokenizer::{EncodeOptions, Encoded};

/// The largest difference of a component, or of a score, to the reference in float64. Vectors have length 1.
const TOLERANCE: f32 = 1e-5;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/encoders")
}

/// Returns an engine whose batches have at most `chunk` rows.
fn engine(name: &str, chunk: usize) -> Engine {
    engine_by(name, chunk, BlockArithmetic::Exact)
}

fn engine_by(name: &str, chunk: usize, block_arithmetic: BlockArithmetic) -> Engine {
    let options = LoadOptions {
        threads: Threads::Count(2),
        block_arithmetic,
        ..LoadOptions::default()
    };
    let model = Arc::new(Model::load(&golden().join(name), &options).unwrap());
    let session = SessionOptions {
        context: model.description().context,
        chunk,
        kv_format: KvFormat::F32,
    };
    let options = EngineOptions {
        session,
        ..EngineOptions::default()
    };
    Engine::new(&model, &options).unwrap()
}

fn cases(name: &str) -> Vec<Value> {
    let cases = std::fs::read_to_string(golden().join(format!("{name}.json"))).unwrap();
    let cases: Vec<Value> = cases
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(cases.len() >= 4);
    cases
}

fn tokens(model: &Model, text: &str) -> Vec<u32> {
    let options = EncodeOptions {
        parse_special: true,
        add_special: true,
    };
    encode_text(model, text, options, (512, &Cancel::new())).unwrap()
}

fn options(pooling: Pooling) -> VectorOptions {
    VectorOptions::of_length_1(pooling)
}

/// Compares all vectors of the files with the name `name` and these endings, computed together and alone.
fn compare(name: &str, pooling: Pooling, endings: &[&str]) {
    for ending in endings {
        let engine = engine(&format!("{name}{ending}"), 64);
        let model = engine.model();
        let defaults = model.embedding_defaults();
        assert_eq!(defaults.pooling, Some(pooling));
        let is_folder = ending.is_empty();
        let (mut texts, mut expected) = (Vec::new(), Vec::new());
        for case in cases(name) {
            let prompt = match case["prompt"].as_str() {
                // GGUF states no prompts.
                Some(_) if !is_folder => continue,
                prompt => prompt.map_or("", |name| defaults.prompts[name].as_str()),
            };
            texts.push(tokens(
                model,
                &format!("{prompt}{}", case["text"].as_str().unwrap()),
            ));
            expected.push(case["vector"].clone());
        }
        let (cancel, options) = (Cancel::new(), options(pooling));
        let together = embed_each(&engine, texts.clone(), options, &cancel).unwrap();
        let mut largest = 0.0f32;
        for ((text, vector), expected) in texts.iter().zip(&together).zip(&expected) {
            let expected = expected.as_array().unwrap();
            assert_eq!(vector.len(), expected.len());
            for (value, expected) in vector.iter().zip(expected) {
                largest = largest.max((value - expected.as_f64().unwrap() as f32).abs());
            }
            let alone = embed(&engine, text.clone(), options, &cancel).unwrap();
            assert_eq!(
                &alone, vector,
                "a text with others has the bits that it has alone"
            );
        }
        println!(
            "{name}{ending}: {} vectors, largest difference {largest:.1e}",
            texts.len()
        );
        assert!(largest <= TOLERANCE, "{name}{ending}: {largest}");
    }
}

#[test]
fn vectors_of_bert_are_those_of_sentence_transformers() {
    compare("bert", Pooling::Mean, &["", ".gguf"]);
}

#[test]
fn vectors_of_xlm_roberta_are_those_of_sentence_transformers() {
    compare("xlm-roberta", Pooling::Mean, &["", ".gguf"]);
}

#[test]
fn vectors_of_modernbert_are_those_of_sentence_transformers() {
    compare("modern-bert", Pooling::First, &["", ".gguf"]);
}

#[test]
fn both_forms_of_modernberts_configuration_are_the_same_model() {
    let kinds = ["full", "sliding", "sliding", "full", "sliding"];
    let kinds = kinds.map(|kind| format!("{kind}_attention"));
    let rope = |base: f64| serde_json::json!({"rope_theta": base, "rope_type": "default"});
    let newer = serde_json::json!({
        "layer_types": kinds,
        "rope_parameters": {"full_attention": rope(160_000.0), "sliding_attention": rope(10_000.0)},
        "global_rope_theta": null, "local_rope_theta": null, "global_attn_every_n_layers": null
    });
    let folder = with_fields("modern-bert", "config.json", &newer);
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let fields = config.as_object_mut().unwrap();
    fields.retain(|_, value| !value.is_null());
    std::fs::write(&path, config.to_string()).unwrap();
    let of = |name: &str| {
        let engine = engine(name, 64);
        let text = tokens(engine.model(), &"long ".repeat(40));
        embed(&engine, text, options(Pooling::First), &Cancel::new()).unwrap()
    };
    assert_eq!(of(folder.path().to_str().unwrap()), of("modern-bert"));
}

#[test]
fn an_encoder_is_admitted_by_the_rows_of_its_largest_batch() {
    let of = |kv_memory: Option<usize>| {
        let model = engine("xlm-roberta", 64).model().clone();
        let session = SessionOptions {
            context: 512,
            chunk: 64,
            ..SessionOptions::default()
        };
        let options = EngineOptions {
            session,
            kv_memory,
            ..EngineOptions::default()
        };
        Engine::new(&model, &options).unwrap()
    };
    // Pages have 256 rows.
    let engine = of(Some(1));
    assert_eq!(
        engine.encoder_pages(),
        Some(2),
        "the longest text is admitted"
    );
    assert_eq!(engine.encode_pages(&[512, 10, 10], 1), 2);
    assert_eq!(engine.encode_pages(&[40; 30], 1), 1);
    let pages = of(Some(64 << 20)).encoder_pages().unwrap();
    // A row has at least the residual stream, its norm, queries, keys, values and the feed-forward, in f32.
    let row = (6 * 32 + 2 * 48) * size_of::<f32>();
    assert!(pages > 20 && pages * 256 * row < 64 << 20, "{pages}");
    let language = engine_by("rerank-qwen3", 64, BlockArithmetic::Exact);
    assert_eq!(language.encoder_pages(), None);
    assert_eq!(language.encode_pages(&[300, 10], 16), 2);
}

#[test]
fn a_long_text_is_not_refused_for_the_tokens_of_a_part_of_a_word() {
    let engine = engine("bert", 64);
    let tokenizer = engine.model().tokenizer().unwrap();
    // A word that is longer than any in the vocabulary is one token, and a part of it may be many.
    let text = format!("{0} {0}", "x".repeat(101));
    let options = EncodeOptions {
        parse_special: false,
        add_special: false,
    };
    let encoded = tokenizer.encode_within(&text, options, 8, &|| false);
    assert_eq!(encoded.unwrap(), Encoded::Whole(vec![1, 1]));
}

#[test]
fn vectors_of_matrices_in_other_types_are_those_of_the_same_numbers() {
    for name in ["bert-f16", "bert-q8_0", "bert-q4_0"] {
        compare(name, Pooling::Mean, &[".gguf"]);
        let engine = engine_by(&format!("{name}.gguf"), 64, BlockArithmetic::Rounded);
        for case in cases(name) {
            let text = tokens(engine.model(), case["text"].as_str().unwrap());
            let vector = embed(&engine, text, options(Pooling::Mean), &Cancel::new()).unwrap();
            let expected = case["vector"].as_array().unwrap();
            for (value, expected) in vector.iter().zip(expected) {
                let difference = (value - expected.as_f64().unwrap() as f32).abs();
                assert!(difference < 0.02, "{name}: {difference}");
            }
        }
    }
}

/// Changes the names of tensors in a model's safetensors.
fn rename(path: &Path, change: impl Fn(&str) -> String) {
    let bytes = std::fs::read(path).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    let renamed = header.as_object().unwrap().iter();
    let renamed: serde_json::Map<_, _> = renamed
        .map(|(name, value)| (change(name), value.clone()))
        .collect();
    let mut header = Value::Object(renamed).to_string();
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(&rest[length..]);
    std::fs::write(path, out).unwrap();
}

#[test]
fn norms_of_old_checkpoints_have_the_names_gamma_and_beta() {
    let folder = with_fields("bert", "config.json", &serde_json::json!({}));
    rename(&folder.path().join("model.safetensors"), |name| {
        name.replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta")
    });
    let of = |name: &str| {
        let engine = engine(name, 64);
        let text = tokens(engine.model(), "A cat sleeps.");
        embed(&engine, text, options(Pooling::Mean), &Cancel::new()).unwrap()
    };
    assert_eq!(of(folder.path().to_str().unwrap()), of("bert"));
}

#[test]
fn vectors_of_gemma_that_reads_both_sides_are_those_of_sentence_transformers() {
    compare("gemma", Pooling::Mean, &["", ".gguf"]);
}

#[test]
fn vectors_of_nomic_embed_are_those_of_its_definition() {
    compare("nomic", Pooling::Mean, &[".gguf"]);
}

#[test]
fn a_dense_layer_after_the_pooling_is_that_of_sentence_transformers() {
    compare("bert-dense", Pooling::First, &[""]);
}

/// Returns the tokens of a case's query and document.
fn pairs(engine: &Engine, case: &Value) -> Result<Vec<EncoderText>, (Part, Error)> {
    let documents = [case["document"].as_str().unwrap().to_owned()];
    let texts = reranking::Texts {
        query: case["query"].as_str().unwrap(),
        documents: &documents,
        instruction: case["instruction"].as_str(),
    };
    let within = (true, engine.context());
    reranking::pairs(engine.model(), "model", &texts, within, &Cancel::new())
}

/// Compares all scores of the files with the name `name` and these endings.
fn compare_scores(name: &str, endings: &[&str]) {
    for ending in endings {
        let engine = engine(&format!("{name}{ending}"), 64);
        let model = engine.model();
        assert_eq!(reranking::unsupported(model), None);
        let (mut texts, mut expected) = (Vec::<EncoderText>::new(), Vec::new());
        let reads = reranking::reads_instructions(model);
        for case in cases(name) {
            if !case["instruction"].is_null() && !reads {
                continue;
            }
            texts.extend(pairs(&engine, &case).unwrap());
            expected.push(case["score"].as_f64().unwrap());
        }
        let together = reranking::scores(&engine, &texts, 16, &Cancel::new()).unwrap();
        for ((text, score), expected) in texts.iter().zip(&together).zip(expected) {
            let difference = (score - expected as f32).abs();
            assert!(
                difference <= TOLERANCE,
                "{name}{ending}: {score} is not {expected}"
            );
            let text = std::slice::from_ref(text);
            let alone = reranking::scores(&engine, text, 16, &Cancel::new()).unwrap();
            assert_eq!(
                alone,
                [*score],
                "a pair with others has the bits that it has alone"
            );
        }
    }
}

#[test]
fn scores_of_xlm_roberta_are_those_of_sentence_transformers() {
    compare_scores("rerank-xlm-roberta", &["", ".gguf"]);
}

#[test]
fn scores_of_modernbert_are_those_of_sentence_transformers() {
    compare_scores("rerank-modern-bert", &["", ".gguf"]);
}

#[test]
fn scores_of_qwen3_reranker_are_those_of_the_published_prompt() {
    compare_scores("rerank-qwen3", &["", ".gguf"]);
    compare_scores("rerank-qwen3-score", &[""]);
}

#[test]
fn a_language_model_that_ranks_by_words_writes_text_and_a_classifier_does_not() {
    engine("rerank-qwen3", 64).model().check_writes().unwrap();
    let classifier = engine("rerank-qwen3-score", 64);
    let error = classifier.model().check_writes().unwrap_err().to_string();
    assert!(error.contains("classifier (qwen3)"), "{error}");
}

#[test]
fn a_query_that_is_too_long_is_told_from_a_document_that_is() {
    for name in ["rerank-bert", "rerank-qwen3"] {
        let engine = engine(name, 64);
        let of = |query: &str, document: &str| {
            let case = serde_json::json!({"query": query, "document": document});
            pairs(&engine, &case).unwrap_err().0
        };
        let long = "long ".repeat(1100);
        assert_eq!(of(&long, "a"), Part::Query, "{name}");
        assert_eq!(of("a", &long), Part::Documents, "{name}");
    }
}

#[test]
fn classes_are_those_of_transformers() {
    let engine = engine("classes-bert", 64);
    let model = engine.model();
    let classifier = model.description().classifier().unwrap();
    assert_eq!(
        classifier.labels,
        ["contradiction", "entailment", "neutral"]
    );
    let reason = reranking::unsupported(model).unwrap();
    assert!(reason.contains("3 classes"), "{reason}");
    for case in cases("classes-bert") {
        let of = (case["text"].as_str().unwrap(), case["second"].as_str());
        let within = (true, engine.context());
        let text = reranking::classified(model, of, within, &Cancel::new()).unwrap();
        let outputs = reranking::scores(&engine, &[text], 16, &Cancel::new()).unwrap();
        let shares = reranking::activation(model).apply(&outputs);
        for (field, values) in [
            ("outputs", outputs.iter().copied().map(f64::from).collect()),
            ("probabilities", shares),
        ] {
            let expected = case[field].as_array().unwrap();
            assert_eq!(values.len(), expected.len());
            for (value, expected) in values.iter().zip(expected) {
                let difference = (value - expected.as_f64().unwrap()).abs();
                assert!(difference < 1e-5, "{case}: {values:?}");
            }
        }
    }
}

#[test]
fn scores_of_bert_with_types_of_tokens_are_those_of_sentence_transformers() {
    compare_scores("rerank-bert", &[""]);
}

/// Returns a copy of a model's folder with one file that has these fields, too.
fn with_fields(name: &str, file: &str, fields: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden().join(name)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let path = folder.path().join(file);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let fields = fields.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(fields);
    std::fs::write(path, config.to_string()).unwrap();
    folder
}

#[test]
fn scores_follow_the_activation_and_the_inputs_that_the_files_state() {
    for case in cases("changes") {
        let file = case["file"].as_str().unwrap();
        let folder = with_fields("rerank-bert", file, &case["change"]);
        let engine = engine(folder.path().to_str().unwrap(), 64);
        let model = engine.model();
        let mut texts = Vec::new();
        for pair in &cases("rerank-bert") {
            texts.extend(pairs(&engine, pair).unwrap());
        }
        let outputs = reranking::scores(&engine, &texts, 16, &Cancel::new()).unwrap();
        for (output, score) in outputs.iter().zip(case["scores"].as_array().unwrap()) {
            let score = score.as_f64().unwrap();
            let difference = reranking::activation(model).apply(&[*output])[0] - score;
            assert!(difference.abs() < 1e-5, "{case}: {outputs:?}");
        }
    }
    let options = LoadOptions::default();
    for field in [
        "sentence_transformers",
        "sbert_ce_default_activation_function",
    ] {
        let name = "torch.nn.modules.activation.ReLU";
        let value = match field {
            "sentence_transformers" => serde_json::json!({ "activation_fn": name }),
            _ => name.into(),
        };
        let folder = with_fields(
            "rerank-bert",
            "config.json",
            &serde_json::json!({ field: value }),
        );
        let error = Model::load(folder.path(), &options)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(field) && error.contains("ReLU"), "{error}");
    }
}

#[test]
fn a_second_text_that_the_model_cannot_tell_apart_is_refused() {
    let of = |name: &str, second: usize| {
        let text = EncoderText {
            tokens: vec![2, 5, 3],
            second: Some(second),
        };
        let engine = engine(name, 64);
        engine.encode(&[text], 1, &Cancel::new(), |_, _| {})
    };
    of("bert", 3).unwrap();
    let error = of("bert", 4).unwrap_err().to_string();
    assert!(error.contains("token 4 of 3"), "{error}");
    // One type of tokens.
    let error = of("xlm-roberta", 1).unwrap_err().to_string();
    assert!(error.contains("is not"), "{error}");
}

#[test]
fn an_encoder_writes_no_text_and_says_so_by_name() {
    let engine = engine("bert", 64);
    let mut session = engine.session();
    let refused = session.prefill(&[2, 5, 3], &Cancel::new(), |_| {});
    let error = refused.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("encoder (bert)"), "{error}");
    let refused = engine
        .session()
        .hidden_states(&[2, 5, 3], &Cancel::new(), |_| {});
    assert!(refused.is_err());
}

#[test]
fn a_text_that_is_longer_than_the_authors_allow_is_refused() {
    let engine = engine("bert", 64);
    assert_eq!(max_tokens(engine.model(), engine.context()), 128);
    let of = |count: usize| {
        embed(
            &engine,
            vec![5; count],
            options(Pooling::Mean),
            &Cancel::new(),
        )
    };
    of(128).unwrap();
    let error = of(129).unwrap_err().to_string();
    assert!(error.contains("129") && error.contains("128"), "{error}");
}

#[test]
fn texts_that_no_encoder_reads_are_refused() {
    let engine = engine("bert-dense", 64);
    let of = |tokens: Vec<u32>| embed(&engine, tokens, options(Pooling::Mean), &Cancel::new());
    for (tokens, words) in [
        (vec![], "empty"),
        (vec![5; 193], "193"),
        (vec![5, 10_000], "outside the vocabulary"),
    ] {
        let error = of(tokens).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let cancel = Cancel::new();
    cancel.cancel();
    embed(&engine, vec![5], options(Pooling::Mean), &cancel).unwrap_err();
}

#[test]
fn a_cross_encoder_has_no_vectors_and_other_models_have_no_scores() {
    let ranks = engine("rerank-bert", 64);
    let reason = triad_frontend::embedding::unsupported(ranks.model()).unwrap();
    assert!(reason.contains("cross-encoder"), "{reason}");
    for name in ["bert", "gemma"] {
        let reason = reranking::unsupported(engine(name, 64).model()).unwrap();
        assert!(reason.contains("classifier"), "{reason}");
    }
}
