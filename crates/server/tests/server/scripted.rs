//! Servers of tiny models that say a fixed script: attention and feed-forward are zero, so that the residual stream is
//! the one-hot embedding of the latest token, and the output matrix maps each token to its successor.

use std::collections::BTreeMap;
use std::sync::Arc;

use triad_engine::{Engine, EngineOptions, LoadOptions, Model, SessionOptions, Threads};
use triad_model::gguf;
use triad_model::testing::GgufBuilder;
use triad_server::{HostedModel, LoadedModel, ModelFacts, ServerOptions};

use crate::support::{NAME, Server, byte_letter};

/// A template with a system message, turns, reasoning and tools.
pub const TEMPLATE: &str = "{# tools #}{% for m in messages %}<|u|>{{ m.role }}\n{{ m.reasoning_content or '' }}\
                            {{ m.content }}{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}";
const CONTEXT: usize = 512;

/// A vocabulary with the successors of its tokens: all bytes, the control tokens `<|end|>`, `<|u|>` and `<|a|>`, and the
/// pieces of the script.
pub struct Script {
    tokens: Vec<String>,
    kinds: Vec<i64>,
    next: BTreeMap<usize, usize>,
}

impl Script {
    /// Creates a script with further control tokens.
    pub fn new(control: &[&str]) -> Self {
        let mut script = Self {
            tokens: (0..=255).map(byte_letter).collect(),
            kinds: vec![1; 256],
            next: BTreeMap::new(),
        };
        for name in ["<|end|>", "<|u|>", "<|a|>"].iter().chain(control) {
            script.add(name, 3);
        }
        script
    }

    fn add(&mut self, token: &str, kind: i64) -> usize {
        self.tokens.push(token.to_owned());
        self.kinds.push(kind);
        self.tokens.len() - 1
    }

    /// Adds tokens that are names in texts as well.
    pub fn named(mut self, names: &[&str]) -> Self {
        for name in names {
            self.add(name, 4);
        }
        self
    }

    /// Returns the token of a name, or of a piece of text.
    fn token(&mut self, piece: &str) -> usize {
        let spelled: String = match self.tokens.iter().position(|token| token == piece) {
            Some(token) if token >= 256 => return token,
            _ => piece.bytes().map(byte_letter).collect(),
        };
        match self.tokens.iter().position(|token| *token == spelled) {
            Some(token) => token,
            None => self.add(&spelled, 1),
        }
    }

    /// Makes the model say `pieces` after the token `start`, one after the other.
    pub fn says(mut self, start: &str, pieces: &[&str]) -> Self {
        let mut latest = self.token(start);
        for piece in pieces {
            let token = self.token(piece);
            self.next.insert(latest, token);
            latest = token;
        }
        self
    }

    fn model(&self, template: &str) -> (Arc<Model>, tempfile::TempDir) {
        let (count, text) = (self.tokens.len(), |text: &str| {
            gguf::Value::String(text.into())
        });
        let hidden = count.next_multiple_of(32);
        let mut builder = GgufBuilder::new()
            .field("general.architecture", text("llama"))
            .field(
                "llama.attention.layer_norm_rms_epsilon",
                gguf::Value::Float(1e-5),
            )
            .field("tokenizer.ggml.model", text("gpt2"))
            .field("tokenizer.ggml.pre", text("gpt-2"))
            .field(
                "tokenizer.ggml.tokens",
                gguf::Value::Strings(self.tokens.clone()),
            )
            .field(
                "tokenizer.ggml.token_type",
                gguf::Value::Integers(self.kinds.clone()),
            )
            .field("tokenizer.ggml.merges", gguf::Value::Strings(Vec::new()))
            .field("tokenizer.ggml.eos_token_id", gguf::Value::Integer(256))
            .field("general.sampling.temp", gguf::Value::Float(0.0))
            .field("tokenizer.chat_template", text(template));
        for (field, number) in [
            ("embedding_length", hidden),
            ("block_count", 1),
            ("feed_forward_length", 64),
            ("context_length", CONTEXT),
            ("attention.head_count", hidden / 32),
            ("attention.head_count_kv", hidden / 32),
        ] {
            builder = builder.field(
                &format!("llama.{field}"),
                gguf::Value::Integer(number as i128),
            );
        }
        let (mut embedding, mut output) = (vec![0.0; count * hidden], vec![0.0; count * hidden]);
        for token in 0..count {
            embedding[token * hidden + token] = 1.0;
        }
        for (token, next) in &self.next {
            output[next * hidden + token] = 3.0;
        }
        builder = builder
            .tensor_f32("token_embd.weight", &[count, hidden], &embedding)
            .tensor_f32("output.weight", &[count, hidden], &output)
            .tensor_f32("output_norm.weight", &[hidden], &vec![1.0; hidden]);
        for (name, rows, columns) in [
            ("attn_q", hidden, hidden),
            ("attn_k", hidden, hidden),
            ("attn_v", hidden, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_gate", 64, hidden),
            ("ffn_up", 64, hidden),
            ("ffn_down", hidden, 64),
        ] {
            let name = format!("blk.0.{name}.weight");
            builder = builder.tensor_f32(&name, &[rows, columns], &vec![0.0; rows * columns]);
        }
        for norm in ["attn_norm", "ffn_norm"] {
            builder = builder.tensor_f32(
                &format!("blk.0.{norm}.weight"),
                &[hidden],
                &vec![1.0; hidden],
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scripted.gguf");
        std::fs::write(&path, builder.build()).unwrap();
        let options = LoadOptions {
            threads: Threads::Count(1),
            ..LoadOptions::default()
        };
        (Arc::new(Model::load(&path, &options).unwrap()), folder)
    }

    /// Starts a server of the model.
    pub fn serve(&self, template: &str) -> Server {
        self.serve_with(template, |_| {})
    }

    /// Starts a server with options.
    pub fn serve_with(&self, template: &str, change: impl FnOnce(&mut ServerOptions)) -> Server {
        let (model, folder) = self.model(template);
        let session = SessionOptions {
            context: CONTEXT,
            chunk: 64,
            ..SessionOptions::default()
        };
        let options = EngineOptions {
            session,
            ..EngineOptions::default()
        };
        let engine = Engine::new(&model, &options).unwrap();
        let loaded = engine.clone();
        let load = move || {
            Ok(LoadedModel {
                engine: loaded.clone(),
                adapters: Vec::new(),
                is_current: Box::new(|| true),
            })
        };
        let hosted = HostedModel {
            name: NAME.into(),
            aliases: Vec::new(),
            bytes: 0,
            facts: ModelFacts::default(),
            check: Box::new(|| Ok(())),
            load: Box::new(load),
        };
        Server::with_models((engine, folder), vec![hosted], change)
    }
}
