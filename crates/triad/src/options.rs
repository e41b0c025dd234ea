//! Options, each built by its methods.

use std::path::PathBuf;
use std::sync::Arc;

use triad_engine::constraint::Form;
use triad_engine::sampler::SamplerOptions;
use triad_engine::{Cancel, GenerateOptions as EngineOptions, KvFormat, Threads};
use triad_frontend::open;
use triad_grammar::{GrammarSource, Grammars};

use crate::error::Result;
use crate::model::Model;

/// How a model is opened; [`Model::options`] has the defaults.
#[derive(Default)]
#[must_use]
pub struct OpenOptions {
    options: open::OpenOptions,
    step: Option<Box<dyn FnMut(&str)>>,
    cancel: Cancel,
}

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheType {
    /// 16-bit floats.
    #[default]
    F16,
    /// 8-bit integers with scales: half the memory.
    Int8,
    /// 32-bit floats.
    F32,
}

impl OpenOptions {
    /// Runs a model file as it is, in float, without preparing it for INT8.
    pub fn no_quantize(mut self) -> Self {
        self.options.float = true;
        self
    }

    /// Computes on `count` threads; the default is one for each fast core.
    pub fn threads(mut self, count: usize) -> Self {
        self.options.threads = Threads::Count(count);
        self
    }

    /// Holds `tokens` of a prompt and its answer together; the default is 4096, or the model's own context if that is less.
    pub fn context(mut self, tokens: usize) -> Self {
        self.options.context = Some(tokens);
        self
    }

    /// Runs prompts in chunks of `tokens`; the default is 256.
    pub fn prefill_chunk(mut self, tokens: usize) -> Self {
        self.options.session.chunk = tokens;
        self
    }

    /// Keeps keys and values in this format.
    pub fn cache_type(mut self, format: CacheType) -> Self {
        self.options.session.kv_format = match format {
            CacheType::F16 => KvFormat::F16,
            CacheType::Int8 => KvFormat::Int8,
            CacheType::F32 => KvFormat::F32,
        };
        self
    }

    /// Calls `step` with a sentence for the user as each step begins: fetching, preparing, loading.
    pub fn on_step(mut self, step: impl FnMut(&str) + 'static) -> Self {
        self.step = Some(Box::new(step));
        self
    }

    /// Ends the opening, which then fails, once `cancel` is set.
    pub fn cancel_with(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Opens a model by the path of a package, GGUF file or safetensors folder, by the name `smollm2-135m`, or by
    /// `hf:owner/name[:file]`. Fetches and prepares it if it is not there.
    ///
    /// # Errors
    /// If there is no such model, it can't be fetched, read or prepared, or it does not fit into memory.
    pub fn open(self, name: impl AsRef<str>) -> Result<Model> {
        let Self {
            options,
            step,
            cancel,
        } = self;
        let mut step = step.unwrap_or_else(|| Box::new(|_| {}));
        let name = name.as_ref();
        let engine = open::open(name, &options, &cancel, &mut *step)?;
        Ok(Model::new(name, engine))
    }
}

/// A form that an answer keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Constraint {
    /// A JSON object.
    Json,
    /// JSON that this schema describes.
    JsonSchema(String),
    /// A text that this regular expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// A text of this grammar, in llguidance's variant of Lark.
    Lark(String),
}

/// How an answer is made. The defaults are those that the model's authors recommend, else greedy.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct GenerateOptions {
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: u64,
    stop: Vec<String>,
    constraint: Option<Constraint>,
    pub(crate) adapters: Vec<(PathBuf, f32)>,
}

impl GenerateOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the answer after `count` tokens; by default it ends where the context is full.
    pub fn max_tokens(mut self, count: usize) -> Self {
        self.max_tokens = Some(count);
        self
    }

    /// Divides the logits by `temperature`; 0 always takes the likeliest token.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Keeps only the `count` likeliest tokens; 0 keeps all.
    pub fn top_k(mut self, count: usize) -> Self {
        self.top_k = Some(count);
        self
    }

    /// Keeps the fewest likeliest tokens whose probabilities add up to `share`.
    pub fn top_p(mut self, share: f32) -> Self {
        self.top_p = Some(share);
        self
    }

    /// Drops tokens less likely than `share` of the likeliest one.
    pub fn min_p(mut self, share: f32) -> Self {
        self.min_p = Some(share);
        self
    }

    /// Makes tokens that occurred before less likely; 1 changes nothing.
    pub fn repetition_penalty(mut self, penalty: f32) -> Self {
        self.repetition_penalty = Some(penalty);
        self
    }

    /// Starts the random numbers: the same seed gives the same answer.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Ends the answer at `text`, which is no part of it; may be called several times.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// Keeps the answer in this form.
    pub fn constraint(mut self, constraint: Constraint) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// Applies the LoRA adapter at `path`, `scale` of it; may be called several times.
    pub fn adapter(mut self, path: impl Into<PathBuf>, scale: f32) -> Self {
        self.adapters.push((path.into(), scale));
        self
    }

    /// Returns them as the engine takes them, with the constraint compiled for the tokens of `model`.
    pub(crate) fn for_engine(&self, model: &Model) -> Result<EngineOptions> {
        let recommended = SamplerOptions::recommended(model.engine().model().generation_defaults());
        let sampler = SamplerOptions {
            temperature: self.temperature.unwrap_or(recommended.temperature),
            top_k: self.top_k.unwrap_or(recommended.top_k),
            top_p: self.top_p.unwrap_or(recommended.top_p),
            min_p: self.min_p.unwrap_or(recommended.min_p),
            repetition_penalty: self
                .repetition_penalty
                .unwrap_or(recommended.repetition_penalty),
            seed: self.seed,
            ..recommended
        };
        let form = self
            .constraint
            .as_ref()
            .map(|constraint| compile(constraint, model))
            .transpose()?;
        Ok(EngineOptions {
            max_tokens: self.max_tokens,
            sampler,
            stop: self.stop.clone(),
            form,
            ..EngineOptions::default()
        })
    }
}

fn compile(constraint: &Constraint, model: &Model) -> Result<Arc<dyn Form>> {
    let source = match constraint.clone() {
        Constraint::Json => GrammarSource::JsonObject,
        Constraint::JsonSchema(schema) => GrammarSource::JsonSchema(schema),
        Constraint::Regex(regex) => GrammarSource::Regex(regex),
        Constraint::Lark(grammar) => GrammarSource::Lark(grammar),
    };
    let grammars: &Grammars = model.grammars()?;
    Ok(grammars.compile(&source)?)
}
