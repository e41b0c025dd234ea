//! Writes the generated seed corpora: `cargo run --example seeds` in this folder. The chat templates in
//! `corpus/template/` are written by hand.

use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use triad_engine::{Cancel, Engine, EngineOptions, LoadOptions, Model, SessionOptions, Threads};
use triad_model::checkpoint::Checkpoint;
use triad_model::gguf::Value;
use triad_model::tensor::Format;
use triad_model::testing::{GgufBuilder, safetensors_file, tiny_llama};
use triad_prepare::PrepareOptions;
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::package::{self, Existing, Recipe};

fn main() -> Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    };
    write("gguf", "tiny-llama", &tiny_llama().build())?;
    write("gguf", "every-format", &every_format().build())?;
    write(
        "gguf",
        "byte-level-tokenizer",
        &byte_level_tokenizer().build(),
    )?;
    write(
        "gguf",
        "sentence-piece-tokenizer",
        &sentence_piece_tokenizer().build(),
    )?;
    let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},"c":{"dtype":"F16","shape":[],"data_offsets":[16,18]}}"#;
    write(
        "safetensors_header",
        "three-formats",
        &safetensors_file(header, &[1; 18]),
    )?;
    write("safetensors_header", "empty", &safetensors_file("{}", &[]))?;
    for (name, config) in configs() {
        write("config", name, config.to_string().as_bytes())?;
    }
    for name in PICTURES {
        let file = pictures().join(name);
        write("picture", name, &fs::read(file)?)?;
    }
    for case in QUANTIZED {
        let read = |file| fs::read(golden().join(case).join(file));
        let config: serde_json::Value = serde_json::from_slice(&read("config.json")?)?;
        let mut fields = serde_json::Map::new();
        for field in ["quantization_config", "quantization", "dtype"] {
            if let Some(value) = config.get(field) {
                fields.insert(field.to_owned(), value.clone());
            }
        }
        let config = serde_json::Value::Object(fields).to_string();
        let bytes = [config.as_bytes(), &[0], &read("model.safetensors")?].concat();
        write("quantized", case, &bytes)?;
    }
    for (name, file) in TOKENIZERS {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
        write("tokenizer", name, &fs::read(golden.join(file))?)?;
    }
    for (name, source) in GRAMMARS {
        write("schema", name, source.as_bytes())?;
    }
    write("session", "three-tokens", &saved_session()?)?;
    write("adapter", "gguf", &gguf_adapter().build())?;
    write("adapter", "peft", &peft_adapter())?;
    write("package", "tiny-llama", &tiny_package()?)
}

/// The checkpoints of `tests/golden/quantized` that are seeds: one for each layout.
const QUANTIZED: [&str; 9] = [
    "awq",
    "bnb-int8",
    "bnb-nf4-nested",
    "ct-int4-zeros",
    "ct-int8-asymmetric",
    "fp8-block",
    "gptq-4-act-order",
    "gptq-8",
    "mlx-mixed",
];

/// Small pictures in all formats.
const PICTURES: [&str; 9] = [
    "3x3.png",
    "black-and-white.png",
    "exif-8.webp",
    "gray~.jpg",
    "lossy.webp",
    "palette-4-bits.png",
    "palette.bmp",
    "progressive~.jpg",
    "still.gif",
];

/// Tokenizers of folders, one for each scheme.
const TOKENIZERS: [(&str, &str); 6] = [
    ("word-piece.json", "encoders/bert/tokenizer.json"),
    ("byte-level.json", "encoders/modern-bert/tokenizer.json"),
    ("sentence-piece.json", "encoders/gemma/tokenizer.json"),
    ("bpe.model", "tokenizer/model/bpe/tokenizer.model"),
    ("unigram.model", "tokenizer/model/unigram/tokenizer.model"),
    ("map.model", "tokenizer/model/bpe-map/tokenizer.model"),
];

/// Sources of grammars; `schema.rs` tells their kind by the first byte.
const GRAMMARS: [(&str, &str); 4] = [
    (
        "object.json",
        r##"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8, "pattern": "^[a-z]+$"}, "of": {"$ref": "#/$defs/list"}}, "required": ["name"], "$defs": {"list": {"type": "array", "items": {"enum": ["a", 1, null]}, "minItems": 1, "maxItems": 3}}}"##,
    ),
    (
        "choices.json",
        r#"{"anyOf": [{"type": "integer", "minimum": -3, "maximum": 120}, {"const": "x"}, {"type": "string", "format": "date"}]}"#,
    ),
    ("expression", "/(Hello|lo+){1,4}[a-f0-9]?"),
    (
        "lark",
        "start: \"H\" word+\nword: /[a-z]{1,5}/ | \" \" %json {\"type\": \"boolean\"}\n",
    ),
];

/// Returns a saved session of [`tiny_llama`] without its hash, which the target computes.
fn saved_session() -> Result<Vec<u8>> {
    let folder = std::env::temp_dir().join("triad-fuzz-seeds");
    fs::create_dir_all(&folder)?;
    let (model, saved) = (folder.join("session.gguf"), folder.join("session"));
    fs::write(&model, tiny_llama().build())?;
    let options = LoadOptions {
        threads: Threads::Count(1),
        ..Default::default()
    };
    let model = Arc::new(Model::load(&model, &options).expect("a good model"));
    let engine_options = EngineOptions {
        session: SessionOptions {
            context: model.description().context,
            ..SessionOptions::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::new(&model, &engine_options).expect("memory for a session");
    let mut session = engine.session();
    session
        .prefill(&[1, 2, 3], &Cancel::new(), |_| ())
        .expect("a good prompt");
    session.save(&saved).expect("room for a file");
    let mut bytes = fs::read(&saved)?;
    bytes.truncate(bytes.len() - 32);
    Ok(bytes)
}

fn pictures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/pictures/files")
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/quantized")
}

/// Returns an adapter of rank 2 on the keys of [`tiny_llama`].
fn gguf_adapter() -> GgufBuilder {
    let text = |text: &str| Value::String(text.to_owned());
    GgufBuilder::new()
        .field("general.type", text("adapter"))
        .field("adapter.type", text("lora"))
        .field("general.architecture", text("llama"))
        .field("adapter.lora.alpha", Value::Float(4.0))
        .tensor_f32("blk.0.attn_k.weight.lora_a", &[2, 32], &[0.5; 64])
        .tensor_f32("blk.0.attn_k.weight.lora_b", &[16, 2], &[0.25; 32])
}

/// Returns `adapter_config.json`, a zero, and the weights: the same adapter, in bf16.
fn peft_adapter() -> Vec<u8> {
    let config = json!({
        "peft_type": "LORA", "r": 1, "lora_alpha": 4, "use_rslora": true, "target_modules": ["k_proj"], "bias": "none",
        "rank_pattern": {"k_proj": 2}, "alpha_pattern": {"layers.0.self_attn.k_proj": 8}
    });
    let header = json!({
        "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight":
            {"dtype": "BF16", "shape": [2, 32], "data_offsets": [0, 128]},
        "base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight":
            {"dtype": "BF16", "shape": [16, 2], "data_offsets": [128, 192]}
    });
    let weights = safetensors_file(&header.to_string(), &[0x3e; 192]);
    [config.to_string().as_bytes(), &[0], &weights].concat()
}

/// Returns `package.json`, a zero, and the weights. The tokenizer, which has its own targets, is not named.
fn tiny_package() -> Result<Vec<u8>> {
    let folder = std::env::temp_dir().join("triad-fuzz-seeds");
    fs::create_dir_all(&folder)?;
    let (model, destination) = (folder.join("tiny.gguf"), folder.join("package"));
    let vocabulary = [
        ("tokenizer.ggml.model", Value::String("gpt2".to_owned())),
        ("tokenizer.ggml.pre", Value::String("gpt-2".to_owned())),
        ("tokenizer.ggml.tokens", texts(&["a", "b", "c", "d"])),
        ("tokenizer.ggml.merges", texts(&[])),
        ("tokenizer.ggml.eos_token_id", Value::Integer(3)),
    ];
    let builder = vocabulary
        .into_iter()
        .fold(tiny_llama(), |builder, (name, value)| {
            builder.field(name, value)
        });
    fs::write(&model, builder.build())?;
    let recipe = Recipe {
        checkpoint: Arc::new(Checkpoint::open(&model).expect("a good file")),
        text: CalibrationText {
            name: "letters".into(),
            texts: vec!["abcabca".into()],
        },
        options: PrepareOptions::default(),
        threads: Threads::Count(1),
        existing: Existing::Replace,
        moment_memory: triad_prepare::int4::moments::MEMORY,
        pictures: None,
    };
    package::prepare(&recipe, &destination, &Cancel::new(), &mut |_| ())
        .expect("a model that can be prepared");
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(destination.join("package.json"))?)?;
    let files = manifest["files"]
        .as_object_mut()
        .expect("the files by name");
    files.retain(|name, _| name == "weights.safetensors");
    let weights = fs::read(destination.join("weights.safetensors"))?;
    Ok([manifest.to_string().as_bytes(), &[0], &weights].concat())
}

fn every_format() -> GgufBuilder {
    let mut builder = GgufBuilder::new().field("general.alignment", Value::Integer(32));
    builder.version = 2;
    for format in Format::ALL {
        builder = builder.tensor(
            format.name(),
            &[format.block_elements()],
            format,
            &vec![0; format.block_bytes()],
        );
    }
    builder
}

fn texts(texts: &[&str]) -> Value {
    Value::Strings(texts.iter().map(|&text| text.to_owned()).collect())
}

fn byte_level_tokenizer() -> GgufBuilder {
    let tokens = texts(&["a", "b", "c", "Ġ", "ab", "Ġab", "<|end|>", "l", "o", "lo"]);
    GgufBuilder::new()
        .field("tokenizer.ggml.model", Value::String("gpt2".to_owned()))
        .field("tokenizer.ggml.pre", Value::String("qwen2".to_owned()))
        .field("tokenizer.ggml.tokens", tokens)
        .field(
            "tokenizer.ggml.token_type",
            Value::Integers(vec![1, 1, 1, 1, 1, 1, 3, 1, 1, 1]),
        )
        .field("tokenizer.ggml.merges", texts(&["a b", "Ġ ab", "l o"]))
        .field("tokenizer.ggml.eos_token_id", Value::Integer(6))
        .field("tokenizer.ggml.add_bos_token", Value::Bool(false))
}

fn sentence_piece_tokenizer() -> GgufBuilder {
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut tokens = vec!["<unk>", "<s>", "</s>"];
    tokens.extend(bytes.iter().map(String::as_str));
    tokens.extend(["▁", "H", "e", "l", "o", "He", "ll", "llo", "▁Hello"]);
    let types = (0..tokens.len()).map(|id| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        _ => 1,
    });
    GgufBuilder::new()
        .field("tokenizer.ggml.model", Value::String("llama".to_owned()))
        .field("tokenizer.ggml.tokens", texts(&tokens))
        .field(
            "tokenizer.ggml.scores",
            Value::Floats((0..tokens.len()).map(|id| -(id as f32)).collect()),
        )
        .field(
            "tokenizer.ggml.token_type",
            Value::Integers(types.collect()),
        )
        .field("tokenizer.ggml.bos_token_id", Value::Integer(1))
        .field("tokenizer.ggml.eos_token_id", Value::Integer(2))
        .field("tokenizer.ggml.unknown_token_id", Value::Integer(0))
}

/// Returns one configuration for each shape that the mapping of families supports; the first fits `config.rs`'s
/// tensors.
fn configs() -> Vec<(&'static str, serde_json::Value)> {
    let with = |model_type: &str, more: serde_json::Value| {
        let mut config = json!({
            "model_type": model_type, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
            "vocab_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": false
        });
        let fields = config.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        config
    };
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16
    });
    let long = json!({"type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [1.0, 2.0]});
    vec![
        ("llama", with("llama", json!({}))),
        ("llama3", with("llama", json!({"rope_scaling": llama3}))),
        (
            "linear",
            with(
                "llama",
                json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
            ),
        ),
        (
            "mistral",
            with("mistral", json!({"sliding_window": 16, "head_dim": 4})),
        ),
        (
            "qwen2",
            with(
                "qwen2",
                json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0}),
            ),
        ),
        (
            "qwen3",
            with("qwen3", json!({"attention_bias": false, "head_dim": 4})),
        ),
        (
            "gemma",
            with(
                "gemma",
                json!({"head_dim": 4, "hidden_act": "gelu_pytorch_tanh"}),
            ),
        ),
        (
            "gemma2",
            with(
                "gemma2",
                json!({"head_dim": 4, "query_pre_attn_scalar": 4, "attn_logit_softcapping": 50.0,
                    "final_logit_softcapping": 30.0, "sliding_window": 8, "hidden_activation": "gelu_pytorch_tanh"}),
            ),
        ),
        (
            "gemma3",
            with(
                "gemma3_text",
                json!({"head_dim": 4, "query_pre_attn_scalar": 4, "sliding_window": 8, "rope_local_base_freq": 1e4,
                    "layer_types": ["sliding_attention"], "hidden_activation": "gelu_pytorch_tanh"}),
            ),
        ),
        (
            "phi2",
            with(
                "phi",
                json!({"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new"}),
            ),
        ),
        (
            "phi3",
            with(
                "phi3",
                json!({"rope_scaling": long, "original_max_position_embeddings": 16}),
            ),
        ),
    ]
}
