//! Options of answers.

use std::path::PathBuf;
use std::sync::Arc;

use triad_engine::GenerateOptions as EngineOptions;
use triad_engine::constraint::ConstraintFactory;
use triad_engine::sampler::SamplerOptions;
use triad_engine::speculate::Speculate;
use triad_grammar::GrammarSource;

use crate::error::Result;
use crate::opened::Opened;

/// A constraint that an answer must match.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Constraint {
    /// A JSON object.
    Json,
    /// JSON that matches this schema.
    JsonSchema(String),
    /// Text that this regular expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// Text that matches this grammar, in llguidance's variant of Lark.
    Lark(String),
}

/// Options of an answer. An option that is not set has the value that the model's authors recommend. If they recommend
/// none, the temperature is 0.7, `top_p` 0.95 and the repetition penalty 1.05.
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

    /// Ends the answer after `count` tokens. By default it ends when the context is full.
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

    /// Drops tokens whose probability is below `share` of the likeliest token's.
    pub fn min_p(mut self, share: f32) -> Self {
        self.min_p = Some(share);
        self
    }

    /// Makes tokens that occurred before less likely; 1 changes nothing.
    pub fn repetition_penalty(mut self, penalty: f32) -> Self {
        self.repetition_penalty = Some(penalty);
        self
    }

    /// Sets the seed of the random numbers: the same seed gives the same answer.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Ends the answer at `text`, which is not part of it; may be called several times.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// Requires the answer to match this constraint.
    pub fn constraint(mut self, constraint: Constraint) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// Applies the LoRA adapter at `path`, scaled by `scale`; may be called several times.
    pub fn adapter(mut self, path: impl Into<PathBuf>, scale: f32) -> Self {
        self.adapters.push((path.into(), scale));
        self
    }

    /// Returns the engine's options, with the constraint compiled for the tokens of `model`.
    pub(crate) fn for_engine(&self, model: &Opened) -> Result<EngineOptions> {
        let recommended = SamplerOptions::recommended(
            model.engine.model().generation_defaults(),
            self.temperature,
        );
        let sampler = SamplerOptions {
            top_k: self.top_k.unwrap_or(recommended.top_k),
            top_p: self.top_p.unwrap_or(recommended.top_p),
            min_p: self.min_p.unwrap_or(recommended.min_p),
            repetition_penalty: self
                .repetition_penalty
                .unwrap_or(recommended.repetition_penalty),
            seed: self.seed,
            ..recommended
        };
        let constraint = self
            .constraint
            .as_ref()
            .map(|constraint| compile(constraint, model))
            .transpose()?;
        Ok(EngineOptions {
            max_tokens: self.max_tokens,
            sampler,
            stop: self.stop.clone(),
            speculate: Some(Speculate::automatic()),
            constraint,
            ..EngineOptions::default()
        })
    }
}

fn compile(constraint: &Constraint, model: &Opened) -> Result<Arc<dyn ConstraintFactory>> {
    let source = match constraint.clone() {
        Constraint::Json => GrammarSource::JsonObject,
        Constraint::JsonSchema(schema) => GrammarSource::JsonSchema(schema),
        Constraint::Regex(regex) => GrammarSource::Regex(regex),
        Constraint::Lark(grammar) => GrammarSource::Lark(grammar),
    };
    Ok(model.grammars()?.compile(&source)?)
}
