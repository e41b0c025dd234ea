//! All families compared with `transformers`: tiny random checkpoints with the logits that
//! `tests/golden/families/make.py` wrote, from safetensors and, where llama.cpp agrees with them too, from GGUF.
//!
//! `cargo test -p triad-engine --test families -- --nocapture` prints the table of `docs/measurements/correctness.md`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use triad_engine::{Cancel, KvFormat, LoadOptions, Model, Session, SessionOptions, Threads};
use triad_kernels::BlockArithmetic;
use triad_model::dequantize::dequantize;
use triad_model::gguf;
use triad_model::tensor::{BlockFormat, Format, TensorInfo};
use triad_model::testing::GgufBuilder;

/// The largest difference of a logit, relative to the largest logit of the prompt.
const TOLERANCE: f32 = 1e-4;

/// Checkpoint, its session in the golden file, and the context of a session here, which determines the frequencies of
/// LongRoPE.
const CASES: [(&str, &str, usize); 128] = [
    ("llama", "llama", 512),
    ("llama.gguf", "llama", 512),
    ("llama-biases", "llama-biases", 512),
    ("mistral", "mistral", 512),
    ("qwen2", "qwen2", 512),
    ("qwen2.gguf", "qwen2", 512),
    ("qwen2-window", "qwen2-window", 512),
    ("qwen3", "qwen3", 512),
    ("qwen3.gguf", "qwen3", 512),
    ("llama-yarn", "llama-yarn", 512),
    ("qwen3-yarn", "qwen3-yarn", 512),
    ("qwen3-yarn.gguf", "qwen3-yarn", 512),
    ("arcee", "arcee", 512),
    ("arcee.gguf", "arcee", 512),
    ("arcee-biases", "arcee-biases", 512),
    ("granite", "granite", 512),
    ("granite.gguf", "granite", 512),
    ("smollm3", "smollm3", 512),
    ("smollm3.gguf", "smollm3", 512),
    ("ernie4_5", "ernie4_5", 512),
    ("ernie4_5-plain", "ernie4_5-plain", 512),
    ("ernie4_5-plain.gguf", "ernie4_5-plain", 512),
    ("seed_oss", "seed_oss", 512),
    ("glm", "glm", 512),
    ("glm.gguf", "glm", 512),
    ("glm4", "glm4", 512),
    ("glm4.gguf", "glm4", 512),
    ("hunyuan", "hunyuan", 512),
    ("hunyuan.gguf", "hunyuan", 512),
    ("hunyuan-biases", "hunyuan-biases", 512),
    ("exaone4", "exaone4", 512),
    ("exaone4-plain", "exaone4-plain", 512),
    ("exaone4-plain.gguf", "exaone4-plain", 512),
    ("cohere2", "cohere2", 512),
    ("cohere2.gguf", "cohere2", 512),
    ("cohere2-biases", "cohere2-biases", 512),
    ("olmo2", "olmo2", 512),
    ("olmo2.gguf", "olmo2", 512),
    ("olmo3", "olmo3", 512),
    ("olmo3.gguf", "olmo3", 512),
    ("ministral3", "ministral3", 512),
    ("ministral3.gguf", "ministral3", 512),
    ("qwen3_moe", "qwen3_moe", 512),
    ("qwen3moe.gguf", "qwen3moe", 512),
    ("qwen2_moe", "qwen2_moe", 512),
    ("qwen2_moe.gguf", "qwen2_moe", 512),
    ("olmoe", "olmoe", 512),
    ("olmoe.gguf", "olmoe", 512),
    ("gpt_oss", "gpt_oss", 512),
    ("gpt_oss.gguf", "gpt_oss", 512),
    ("gpt_oss-mxfp4", "gpt_oss-mxfp4", 512),
    ("qwen3_moe-stacked", "qwen3_moe-stacked", 512),
    ("qwen3_vl_moe", "qwen3_vl_moe", 512),
    ("qwen3vlmoe.gguf", "qwen3vlmoe", 512),
    ("mixtral", "mixtral", 512),
    ("mixtral.gguf", "mixtral", 512),
    ("lfm2_moe", "lfm2_moe", 512),
    ("lfm2moe.gguf", "lfm2moe", 512),
    ("granitemoe", "granitemoe", 512),
    ("granitemoe.gguf", "granitemoe", 512),
    ("ernie4_5_moe", "ernie4_5_moe", 512),
    ("ernie4_5-moe.gguf", "ernie4_5-moe", 512),
    ("glm4_moe", "glm4_moe", 512),
    ("glm4_moe.gguf", "glm4_moe", 512),
    ("minicpm", "minicpm", 512),
    ("minicpm.gguf", "minicpm", 512),
    ("qwen2_5_vl", "qwen2_5_vl", 512),
    ("qwen3_vl", "qwen3_vl", 512),
    ("qwen2vl.gguf", "qwen2vl", 512),
    ("qwen3vl.gguf", "qwen3vl", 512),
    ("smolvlm", "smolvlm", 512),
    ("llava", "llava", 512),
    ("lfm2", "lfm2", 512),
    ("lfm2.gguf", "lfm2", 512),
    ("lfm2-biases", "lfm2-biases", 512),
    ("qwen3_5", "qwen3_5", 512),
    ("qwen3_5.gguf", "qwen3_5", 512),
    ("qwen3_5-wide", "qwen3_5-wide", 512),
    ("qwen3_5-images", "qwen3_5-images", 512),
    ("qwen3_5_moe", "qwen3_5_moe", 512),
    ("qwen3_5_moe.gguf", "qwen3_5_moe", 512),
    ("qwen3_next", "qwen3_next", 512),
    ("qwen3next.gguf", "qwen3next", 512),
    ("granitehybrid", "granitehybrid", 512),
    ("granitehybrid.gguf", "granitehybrid", 512),
    ("granitemoehybrid", "granitemoehybrid", 512),
    ("granitehybrid-moe.gguf", "granitehybrid-moe", 512),
    ("nemotron_h", "nemotron_h", 512),
    ("nemotron_h.gguf", "nemotron_h", 512),
    ("nemotron_h-moe", "nemotron_h-moe", 512),
    ("nemotron_h-moe.gguf", "nemotron_h-moe", 512),
    ("nemotron_h-both", "nemotron_h-both", 512),
    ("nemotron_h-biases", "nemotron_h-biases", 512),
    ("falcon_h1", "falcon_h1", 512),
    ("falcon_h1.gguf", "falcon_h1", 512),
    ("falcon_h1-before", "falcon_h1-before", 512),
    ("falcon_h1-plain", "falcon_h1-plain", 512),
    ("falcon_h1-plain.gguf", "falcon_h1-plain", 512),
    ("deepseek_v3", "deepseek_v3", 512),
    ("deepseek_v3.gguf", "deepseek_v3", 512),
    ("deepseek_v2", "deepseek_v2", 512),
    ("deepseek_v2.gguf", "deepseek_v2", 512),
    ("deepseek_v2-groups", "deepseek_v2-groups", 512),
    ("deepseek_v2-yarn.gguf", "deepseek_v2-yarn", 512),
    ("glm4_moe_lite", "glm4_moe_lite", 512),
    ("glm4_moe_lite-adjacent.gguf", "glm4_moe_lite-adjacent", 512),
    ("gemma", "gemma", 512),
    ("gemma.gguf", "gemma", 512),
    ("gemma2", "gemma2", 512),
    ("gemma2.gguf", "gemma2", 512),
    ("gemma3", "gemma3", 512),
    ("gemma3.gguf", "gemma3", 512),
    ("gemma3n", "gemma3n", 512),
    ("gemma3n-unscaled", "gemma3n-unscaled", 512),
    ("gemma3n-long.gguf", "gemma3n-long", 512),
    ("gemma4", "gemma4", 512),
    ("gemma4.gguf", "gemma4", 512),
    ("gemma4-one-layer", "gemma4-one-layer", 512),
    ("gemma4-one-layer.gguf", "gemma4-one-layer", 512),
    ("gemma4-moe", "gemma4-moe", 512),
    ("gemma4-moe.gguf", "gemma4-moe", 512),
    ("phi2", "phi2", 512),
    ("phi2.gguf", "phi2", 512),
    ("phi3", "phi3", 512),
    ("phi3-longrope", "phi3-longrope-short", 64),
    ("phi3-longrope", "phi3-longrope-long", 512),
    ("phi3-longrope.gguf", "phi3-longrope-short", 64),
    ("phi3-longrope.gguf", "phi3-longrope-long", 512),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families")
}

/// Returns the tokens of a session, and their logits `[tokens, vocab]`.
fn golden(session: &str) -> (Vec<u32>, Vec<f32>) {
    let files = [
        "golden.safetensors",
        "golden-2.safetensors",
        "golden-3.safetensors",
    ];
    let files = files.map(|file| std::fs::read(folder().join(file)).expect(file));
    let files = files.each_ref();
    let files = files.map(|bytes| SafeTensors::deserialize(bytes).expect("safetensors"));
    let words = |name: &str| -> Vec<[u8; 4]> {
        let name = format!("{session}.{name}");
        let tensor = files.iter().find_map(|file| file.tensor(&name).ok());
        let tensor = tensor.expect(session);
        tensor.data().as_chunks().0.to_vec()
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
    Arc::new(
        Model::load(
            &folder().join(checkpoint),
            &LoadOptions {
                threads: Threads::Count(2),
                // MXFP4 is computed exactly.
                block_arithmetic: BlockArithmetic::Exact,
                ..Default::default()
            },
        )
        .expect(checkpoint),
    )
}

fn logits(model: &Arc<Model>, tokens: &[u32], context: usize, chunk: usize) -> Vec<f32> {
    let options = SessionOptions {
        context,
        chunk,
        kv_format: KvFormat::F32,
    };
    let mut session = Session::new(model, &options).expect("a session");
    session
        .prefill_all_logits(tokens, &Cancel::new())
        .expect("logits")
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
fn every_family_gives_the_logits_of_transformers() {
    // The test's name may be on the line before.
    println!(
        "\n| checkpoint | family | tokens | largest relative difference |\n| --- | --- | --- | --- |"
    );
    let mut failed = Vec::new();
    for (checkpoint, session, context) in CASES {
        let (tokens, expected) = golden(session);
        let model = model(checkpoint);
        let apart = difference(&logits(&model, &tokens, context, 256), &expected);
        let (family, count) = (&model.description().family, tokens.len());
        println!("| {checkpoint} | {family} | {count} | {apart:.1e} |");
        if apart >= TOLERANCE {
            failed.push(format!("{checkpoint}, {session}: {apart:.1e}"));
        }
    }
    assert!(failed.is_empty(), "beyond {TOLERANCE:.0e}: {failed:?}");
}

#[test]
fn the_length_of_chunks_does_not_change_the_logits() {
    for (checkpoint, session, context) in CASES {
        let (tokens, expected) = golden(session);
        let model = model(checkpoint);
        for chunk in [1, 7, 64, 256, tokens.len()] {
            let apart = difference(&logits(&model, &tokens, context, chunk), &expected);
            assert!(
                apart < TOLERANCE,
                "{checkpoint}, {session}, chunks of {chunk}: {apart:.1e}"
            );
        }
    }
}

#[test]
fn long_rope_depends_on_the_context_of_the_session() {
    let (tokens, _) = golden("phi3-longrope-short");
    let model = model("phi3-longrope");
    let (short, long) = (
        logits(&model, &tokens, 64, 256),
        logits(&model, &tokens, 65, 256),
    );
    assert!(
        difference(&long, &short) > 1e-2,
        "64 tokens are the context of pre-training, 65 are beyond it"
    );
}

/// Writes a GGUF file of which `change` adds each tensor or others.
fn changed_gguf(
    checkpoint: &str,
    change: impl Fn(GgufBuilder, &TensorInfo, &[u8]) -> GgufBuilder,
) -> tempfile::NamedTempFile {
    let bytes = std::fs::read(folder().join(checkpoint)).expect(checkpoint);
    let file = gguf::read(&bytes).expect(checkpoint);
    let mut builder = GgufBuilder::new();
    for (key, value) in file.metadata.iter() {
        builder = builder.field(key, value.clone());
    }
    for info in file.tensors.values() {
        builder = change(builder, info, &bytes[info.bytes.clone()]);
    }
    let changed = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(changed.path(), builder.build()).unwrap();
    changed
}

const Q8_0: Format = Format::Blocks(BlockFormat::Q8_0);

/// Returns blocks of Q8_0 with a scale of 1/128.
fn q8_0(count: usize) -> Vec<u8> {
    let block = |index: usize| {
        let integers = (0..32).map(move |place| ((index * 32 + place) * 37) as u8);
        [0x00, 0x20].into_iter().chain(integers)
    };
    (0..count).flat_map(block).collect()
}

#[test]
fn biases_of_experts_may_be_blocks_where_each_row_is_one_expert() {
    let is_bias = |info: &TensorInfo| info.name.ends_with("_exps.bias");
    let stored = q8_0(6);
    let mut values = vec![0.0; 6 * 32];
    dequantize(Q8_0, &stored, &mut values);
    let blocks = changed_gguf("gpt_oss.gguf", |builder, info, bytes| {
        if is_bias(info) {
            return builder.tensor(&info.name, &info.shape, Q8_0, &stored);
        }
        builder.tensor(&info.name, &info.shape, info.format, bytes)
    });
    let floats = changed_gguf("gpt_oss.gguf", |builder, info, bytes| {
        if is_bias(info) {
            return builder.tensor_f32(&info.name, &info.shape, &values);
        }
        builder.tensor(&info.name, &info.shape, info.format, bytes)
    });
    let (tokens, others) = golden("gpt_oss");
    let [blocks, floats] = [&blocks, &floats].map(|file| {
        let model = model(file.path().to_str().expect("a path in UTF-8"));
        logits(&model, &tokens, 512, 256)
    });
    assert!(blocks == floats, "blocks have the bits of their numbers");
    assert_ne!(blocks, others, "the biases count");
}

/// Writes a Qwen3 whose matrices have 128 columns, which `matrix` gives in a format, by number of rows.
fn wide_qwen3(matrix: impl Fn(usize) -> (Format, Vec<u8>)) -> tempfile::NamedTempFile {
    let bytes = std::fs::read(folder().join("qwen3.gguf")).expect("a checkpoint");
    let file = gguf::read(&bytes).expect("a checkpoint");
    let mut builder = GgufBuilder::new();
    for (key, value) in file.metadata.iter() {
        let value = match key.rsplit_once("qwen3.").map(|(_, field)| field) {
            Some("embedding_length" | "feed_forward_length") => gguf::Value::Integer(128),
            Some("attention.key_length" | "attention.value_length" | "rope.dimension_count") => {
                gguf::Value::Integer(32)
            }
            _ => value.clone(),
        };
        builder = builder.field(key, value);
    }
    for info in file.tensors.values() {
        let name = &info.name;
        builder = match info.shape[..] {
            [_] if name.contains("_q_norm") || name.contains("_k_norm") => {
                builder.tensor_f32(name, &[32], &[1.25; 32])
            }
            [_] => builder.tensor_f32(name, &[128], &[0.75; 128]),
            [rows, _] => {
                let rows = match &name[..] {
                    "token_embd.weight" | "output.weight" => rows,
                    _ if name.contains("attn_k") || name.contains("attn_v") => 64,
                    _ => 128,
                };
                let (format, stored) = matrix(rows);
                builder.tensor(name, &[rows, 128], format, &stored)
            }
            _ => panic!("{name} is no matrix and no vector"),
        };
    }
    let written = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(written.path(), builder.build()).unwrap();
    written
}

#[test]
fn a_model_in_types_of_one_and_two_bits_gives_the_logits_of_its_numbers() {
    for format in [BlockFormat::Q1_0, BlockFormat::Q2_0].map(Format::Blocks) {
        let blocks = |rows: usize| {
            let count = rows * 128 / format.block_elements();
            let block = |index: usize| {
                let rest = format.block_bytes() - 2;
                let bits =
                    (0..rest).map(move |place| (((index * 31 + place * 17) * 73) >> 2) as u8);
                [0x00, 0x2c].into_iter().chain(bits)
            };
            (0..count).flat_map(block).collect::<Vec<u8>>()
        };
        let numbers = |rows: usize| {
            let mut values = vec![0.0f32; rows * 128];
            dequantize(format, &blocks(rows), &mut values);
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        let stored = wide_qwen3(|rows| (format, blocks(rows)));
        let widened = wide_qwen3(|rows| (Format::F32, numbers(rows)));
        let (tokens, _) = golden("qwen3");
        let [stored, widened] = [&stored, &widened].map(|file| {
            let model = model(file.path().to_str().expect("a path in UTF-8"));
            logits(&model, &tokens, 512, 256)
        });
        let apart = difference(&stored, &widened);
        assert!(apart < 1e-5, "{format}: {apart:.1e}");
    }
}

#[test]
fn biases_of_gate_and_up_in_one_tensor_of_blocks_are_refused_by_name() {
    let merged = changed_gguf("gpt_oss.gguf", |builder, info, bytes| {
        let (name, shape) = (&info.name, &info.shape);
        if name.contains("ffn_gate_exps") {
            return builder;
        }
        if !name.contains("ffn_up_exps") {
            return builder.tensor(name, shape, info.format, bytes);
        }
        let name = name.replace("ffn_up_exps", "ffn_gate_up_exps");
        match shape[..] {
            [6, 32, 32] => builder.tensor_f32(&name, &[6, 64, 32], &[0.5; 6 * 64 * 32]),
            [6, 32] => builder.tensor(&name, &[6, 64], Q8_0, &q8_0(12)),
            _ => panic!("{shape:?} of {name}"),
        }
    });
    let loaded = Model::load(merged.path(), &LoadOptions::default());
    let error = loaded.expect_err("refused").to_string();
    assert!(
        error.contains("`blk.0.ffn_gate_up_exps.bias` has the format Q8_0"),
        "{error}"
    );
}

#[test]
fn a_changed_weight_anywhere_gives_another_fingerprint() {
    let folder = folder().join("llama");
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let load = || {
        Model::load(
            copy.path(),
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
        )
        .unwrap()
    };
    let whole = load().fingerprint();
    assert_eq!(whole, load().fingerprint());
    for shard in [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ] {
        let weights = copy.path().join(shard);
        let bytes = std::fs::read(&weights).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for at in (header..bytes.len()).step_by(1997) {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&weights, changed).unwrap();
            assert_ne!(whole, load().fingerprint(), "byte {at} of {shard}");
        }
        std::fs::write(&weights, bytes).unwrap();
    }
}
