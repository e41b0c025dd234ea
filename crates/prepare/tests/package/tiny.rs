//! A tiny model with a tokenizer, and packages of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use triad_engine::package::Package;
use triad_engine::quantization::LinearFormat;
use triad_engine::{Cancel, Model, Threads};
use triad_model::checkpoint::Checkpoint;
use triad_model::gguf::Value;
use triad_model::tensor::{BlockFormat, Format};
use triad_model::testing::GgufBuilder;
use triad_prepare::calibration::{self, text::CalibrationText};
use triad_prepare::package::{Existing, Prepared, Progress, Recipe, prepare};
use triad_prepare::{PrepareOptions, Prune, Result, int4};

const HIDDEN: usize = 32;
const VOCAB: usize = 128;
const BLOCKS: usize = 2;

/// Returns a llama with random weights and feed-forwards of `width` features, whose tokens are the visible characters
/// of ASCII; the embedding is in Q8_0.
pub fn gguf(width: usize) -> Vec<u8> {
    gguf_with(width, [1.0; 2], 1e-5)
}

/// Returns the same with the weights of norms and of linear layers multiplied by two factors, and another epsilon.
pub fn gguf_with(width: usize, factors: [f32; 2], epsilon: f64) -> Vec<u8> {
    llama(width, factors, epsilon, false)
}

/// Returns a llama with all linear layers in Q8_0.
pub fn gguf_of_blocks() -> Vec<u8> {
    llama(96, [1.0; 2], 1e-5, true)
}

fn llama(width: usize, factors: [f32; 2], epsilon: f64, in_blocks: bool) -> Vec<u8> {
    let linears: [(&str, &[usize]); 3] = [
        ("ffn_gate.weight", &[width, HIDDEN]),
        ("ffn_up.weight", &[width, HIDDEN]),
        ("ffn_down.weight", &[HIDDEN, width]),
    ];
    let fields = [("feed_forward_length", width)];
    build(("llama", &fields, epsilon), &linears, factors, in_blocks)
}

/// Returns a qwen2moe of four experts, of which two are used, and a shared one.
pub fn gguf_of_experts() -> Vec<u8> {
    let linears: [(&str, &[usize]); 11] = [
        ("attn_q.bias", &[HIDDEN]),
        ("attn_k.bias", &[HIDDEN / 2]),
        ("attn_v.bias", &[HIDDEN / 2]),
        ("ffn_gate_inp.weight", &[4, HIDDEN]),
        ("ffn_gate_exps.weight", &[4, 64, HIDDEN]),
        ("ffn_up_exps.weight", &[4, 64, HIDDEN]),
        ("ffn_down_exps.weight", &[4, HIDDEN, 64]),
        ("ffn_gate_inp_shexp.weight", &[HIDDEN]),
        ("ffn_gate_shexp.weight", &[96, HIDDEN]),
        ("ffn_up_shexp.weight", &[96, HIDDEN]),
        ("ffn_down_shexp.weight", &[HIDDEN, 96]),
    ];
    let fields = [
        ("feed_forward_length", 96),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 64),
        ("expert_shared_feed_forward_length", 96),
    ];
    build(("qwen2moe", &fields, 1e-6), &linears, [1.0; 2], false)
}

/// Returns a model of an architecture with these fields and an epsilon; `linears` are the tensors of a block other than
/// its norms and the weights of its attention. The weights of norms and of linear layers are multiplied by two factors; the
/// latter are in Q8_0 or in f32.
fn build(
    (architecture, fields, epsilon): (&str, &[(&str, usize)], f64),
    linears: &[(&str, &[usize])],
    factors: [f32; 2],
    in_blocks: bool,
) -> Vec<u8> {
    let numbers = [
        ("embedding_length", HIDDEN),
        ("block_count", BLOCKS),
        ("context_length", 48),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    let letters = (0..VOCAB as u32)
        .map(|token| char::from_u32(0x21 + token).unwrap().to_string())
        .collect();
    let mut builder = GgufBuilder::new()
        .field("general.architecture", Value::String(architecture.into()))
        .field("general.name", Value::String("tiny".into()))
        .field(
            &format!("{architecture}.attention.layer_norm_rms_epsilon"),
            Value::Float(epsilon),
        )
        .field("tokenizer.ggml.model", Value::String("gpt2".into()))
        .field("tokenizer.ggml.pre", Value::String("gpt-2".into()))
        .field("tokenizer.ggml.tokens", Value::Strings(letters))
        .field("tokenizer.ggml.merges", Value::Strings(vec![]))
        .field("tokenizer.ggml.eos_token_id", Value::Integer(3))
        .field(
            "tokenizer.chat_template",
            Value::String("{{ messages[0].content }}!".into()),
        );
    for (field, number) in numbers.iter().chain(fields) {
        let field = format!("{architecture}.{field}");
        builder = builder.field(&field, Value::Integer(*number as i128));
    }
    let mut random = Random(1);
    let rows: Vec<u8> = (0..VOCAB * HIDDEN / 32)
        .flat_map(|_| random.q8_0())
        .collect();
    builder = builder.tensor(
        "token_embd.weight",
        &[VOCAB, HIDDEN],
        Format::Blocks(BlockFormat::Q8_0),
        &rows,
    );
    let [norms, of_linears] = factors;
    let mut add = |name: String, shape: &[usize], middle: f32, factor: f32| {
        if in_blocks && shape.len() > 1 {
            let blocks = shape.iter().product::<usize>() / 32;
            let bytes: Vec<u8> = (0..blocks).flat_map(|_| random.q8_0()).collect();
            let format = Format::Blocks(BlockFormat::Q8_0);
            builder = std::mem::take(&mut builder).tensor(&name, shape, format, &bytes);
            return;
        }
        let mut values = random.floats(shape.iter().product(), middle);
        values.iter_mut().for_each(|value| *value *= factor);
        builder = std::mem::take(&mut builder).tensor_f32(&name, shape, &values);
    };
    add("output_norm.weight".into(), &[HIDDEN], 1.0, norms);
    for block in 0..BLOCKS {
        for norm in ["attn_norm", "ffn_norm"] {
            add(format!("blk.{block}.{norm}.weight"), &[HIDDEN], 1.0, norms);
        }
        let attention: [(&str, &[usize]); 4] = [
            ("attn_q.weight", &[HIDDEN, HIDDEN]),
            ("attn_k.weight", &[HIDDEN / 2, HIDDEN]),
            ("attn_v.weight", &[HIDDEN / 2, HIDDEN]),
            ("attn_output.weight", &[HIDDEN, HIDDEN]),
        ];
        for (name, shape) in attention.iter().chain(linears) {
            add(format!("blk.{block}.{name}"), shape, 0.0, of_linears);
        }
    }
    builder.build()
}

struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 16
    }

    fn floats(&mut self, count: usize, middle: f32) -> Vec<f32> {
        (0..count)
            .map(|_| middle + self.next() as f32 / 65_536.0 - 0.5)
            .collect()
    }

    /// Returns a scale of 2⁻⁸ and 32 numbers.
    fn q8_0(&mut self) -> Vec<u8> {
        let scale = half::f16::from_f32(1.0 / 256.0).to_le_bytes();
        scale
            .into_iter()
            .chain((0..32).map(|_| self.next() as u8))
            .collect()
    }
}

/// A folder with `model.gguf`, in which packages are prepared; removed when dropped.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self::with_width(96)
    }

    /// Creates a folder with a model whose feed-forwards have `width` features.
    pub fn with_width(width: usize) -> Self {
        Self::with_model(&gguf(width))
    }

    /// Creates a folder with the model of a file.
    pub fn with_model(gguf: &[u8]) -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::write(place.path("model.gguf"), gguf).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn recipe(&self) -> Recipe {
        Recipe {
            checkpoint: Arc::new(Checkpoint::open(self.path("model.gguf")).unwrap()),
            text: text(12),
            options: PrepareOptions {
                prune: Prune::Rate(0.5),
                ..PrepareOptions::default()
            },
            threads: Threads::Count(2),
            existing: Existing::Refuse,
            moment_memory: int4::moments::MEMORY,
            pictures: None,
        }
    }

    pub fn prepare(&self, recipe: &Recipe, name: &str) -> Result<Prepared> {
        prepare(recipe, &self.path(name), &Cancel::new(), &mut |_| ())
    }

    /// Prepares until `tokens` tokens are calibrated, then cancels.
    pub fn interrupt(&self, recipe: &Recipe, name: &str, tokens: usize) -> Result<Prepared> {
        let cancel = Cancel::new();
        prepare(recipe, &self.path(name), &cancel, &mut |progress| {
            if matches!(progress, Progress::Calibrating { done, .. } if done >= tokens) {
                cancel.cancel();
            }
        })
    }

    /// Prepares until the cancel flag has been checked `checks` times, then cancels.
    pub fn stop(&self, recipe: &Recipe, name: &str, checks: usize) -> Result<Prepared> {
        prepare(
            recipe,
            &self.path(name),
            &Cancel::after(checks),
            &mut |_| (),
        )
    }

    /// Returns a package.
    pub fn package(&self) -> Package {
        self.prepare(&self.recipe(), "package").unwrap().package
    }

    /// Returns a package in W4A16.
    pub fn w4a16(&self) -> Package {
        let mut recipe = self.recipe();
        recipe.options.plan.linears = LinearFormat::W4a16;
        self.prepare(&recipe, "package").unwrap().package
    }

    /// Returns the names of all files and folders in a folder.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Returns the float model of a recipe in W4A16.
pub fn in_int4(float: &Arc<Model>, recipe: &Recipe) -> Model {
    let text = calibration::split(float, &recipe.text, recipe.options.tokens).unwrap();
    let output_weights = recipe.options.plan.output_weights;
    int4::quantize(float, &text, output_weights, &Cancel::new()).unwrap()
}

/// Returns `texts` short texts, all different.
pub fn text(texts: usize) -> CalibrationText {
    let text = |index: usize| {
        let letters =
            (0..30 + index).map(|letter| char::from(b'!' + ((letter * 7 + index * 13) % 90) as u8));
        letters.collect::<String>()
    };
    CalibrationText {
        name: "test".into(),
        texts: (0..texts).map(text).collect(),
    }
}

/// Returns every file of a folder with its content.
pub fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                std::fs::read(path).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}
