//! Options as records.

use triad_bindings::options::{Adapter, Answering, Opening};

use crate::error::TriadError;

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, uniffi::Enum)]
pub enum CacheType {
    /// 16-bit floats.
    F16,
    /// 8-bit integers with scales: half the memory.
    Int8,
    /// 32-bit floats.
    F32,
}

/// Options for opening a model.
#[derive(Clone, Debug, Default, uniffi::Record)]
pub struct OpenOptions {
    /// Whether a model file is prepared for INT8; the default is true.
    #[uniffi(default = None)]
    pub quantize: Option<bool>,
    /// Number of threads; the default is one for each fast core.
    #[uniffi(default = None)]
    pub threads: Option<u32>,
    /// Maximum tokens of a prompt and its answer together; the default is 4096, or the model's own context if that is
    /// less.
    #[uniffi(default = None)]
    pub context: Option<u32>,
    /// Tokens of a prompt per forward pass; the default is 256.
    #[uniffi(default = None)]
    pub prefill_chunk: Option<u32>,
    /// Number format of the KV cache; the default is `F16`.
    #[uniffi(default = None)]
    pub cache_type: Option<CacheType>,
}

/// Options of answers. Without one, the model's authors' value is used, else temperature 0.7, top-p 0.95 and
/// repetition penalty 1.05. At most one of `json`, `schema`, `regex` and `grammar` is set.
#[derive(Clone, Debug, Default, uniffi::Record)]
pub struct AnswerOptions {
    /// Ends an answer after this number of tokens.
    #[uniffi(default = None)]
    pub max_tokens: Option<u32>,
    /// Divides the logits; 0 always takes the likeliest token.
    #[uniffi(default = None)]
    pub temperature: Option<f32>,
    /// Keeps only this number of likeliest tokens; 0 keeps all.
    #[uniffi(default = None)]
    pub top_k: Option<u32>,
    /// Keeps the fewest likeliest tokens whose probabilities add up to this share.
    #[uniffi(default = None)]
    pub top_p: Option<f32>,
    /// Drops tokens whose probability is below this share of the likeliest token's.
    #[uniffi(default = None)]
    pub min_p: Option<f32>,
    /// Makes tokens that occurred before less likely; 1 changes nothing.
    #[uniffi(default = None)]
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers: the same seed gives the same answer.
    #[uniffi(default = None)]
    pub seed: Option<u64>,
    /// Texts that end an answer and are not part of it.
    #[uniffi(default = [])]
    pub stop: Vec<String>,
    /// The answer is a JSON object.
    #[uniffi(default = false)]
    pub json: bool,
    /// The answer is JSON that matches this schema, itself JSON.
    #[uniffi(default = None)]
    pub schema: Option<String>,
    /// The answer matches this regular expression as a whole, in the syntax of Rust's `regex`.
    #[uniffi(default = None)]
    pub regex: Option<String>,
    /// The answer matches this grammar, in llguidance's variant of Lark.
    #[uniffi(default = None)]
    pub grammar: Option<String>,
    /// LoRA adapters.
    #[uniffi(default = [])]
    pub adapters: Vec<LoraAdapter>,
}

/// A LoRA adapter of an answer.
#[derive(Clone, Debug, uniffi::Record)]
pub struct LoraAdapter {
    /// Path of its file or folder.
    pub path: String,
    /// Factor of its product.
    #[uniffi(default = 1.0)]
    pub scale: f32,
}

/// A function that the model may call.
#[derive(Clone, Debug, uniffi::Record)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its purpose, for the model.
    pub description: String,
    /// JSON schema of an object: its arguments.
    pub parameters: String,
}

impl OpenOptions {
    /// Returns the options for the crate `triad`.
    ///
    /// # Errors
    /// None of these values fail.
    pub(crate) fn build(&self) -> Result<triad::OpenOptions, TriadError> {
        let count = |value: Option<u32>| value.map(|value| value as usize);
        let name = |format| match format {
            CacheType::F16 => "f16",
            CacheType::Int8 => "int8",
            CacheType::F32 => "f32",
        };
        let opening = Opening {
            quantize: self.quantize,
            threads: count(self.threads),
            context: count(self.context),
            prefill_chunk: count(self.prefill_chunk),
            cache_type: self.cache_type.map(|format| name(format).to_owned()),
        };
        Ok(opening.build()?)
    }
}

impl AnswerOptions {
    /// Returns the options for the crate `triad`.
    ///
    /// # Errors
    /// [`TriadError::InvalidArgument`] if there is more than one constraint.
    pub(crate) fn build(self) -> Result<triad::GenerateOptions, TriadError> {
        let adapter = |it: LoraAdapter| Adapter {
            path: it.path,
            scale: Some(it.scale),
        };
        let answering = Answering {
            max_tokens: self.max_tokens.map(|count| count as usize),
            temperature: self.temperature,
            top_k: self.top_k.map(|count| count as usize),
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            stop: self.stop,
            json: Some(self.json),
            schema: self.schema,
            regex: self.regex,
            grammar: self.grammar,
            adapters: self.adapters.into_iter().map(adapter).collect(),
        };
        Ok(answering.build()?)
    }
}

impl Tool {
    /// Returns the tool for the crate `triad`.
    ///
    /// # Errors
    /// [`TriadError::InvalidArgument`] as [`triad::Tool::new`].
    pub(crate) fn build(&self) -> Result<triad::Tool, TriadError> {
        Ok(triad::Tool::new(
            &self.name,
            &self.description,
            &self.parameters,
        )?)
    }
}
