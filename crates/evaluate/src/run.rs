//! Encodes a dataset, scores it, and computes the metrics.

use std::sync::Arc;
use std::time::Instant;

use triad_engine::{
    Branch, Cancel, Engine, EngineOptions, KvFormat, Model, Score, SessionOptions, tokens_to_run,
};
use triad_hetero::{HeteroEngine, HeteroOptions};

use super::dataset::{Content, Dataset};
use super::encode::{Encoded, Encoder};
use super::perplexity::Text;
use super::prompts::{self, ProcessorWork};
use super::question::Question;
use super::report::{self, Evaluation, Metric, Rows};
use super::rows::DataError;
use crate::error::Result;

/// The options of an evaluation.
#[derive(Clone, Debug)]
pub struct EvaluateOptions {
    /// Maximum number of rows or windows, taken evenly over the file; `None`: all.
    pub limit: Option<usize>,
    /// Tokens per window of [`Task::Perplexity`](super::Task::Perplexity), or the model's context if that is shorter.
    pub window: usize,
    /// Tokens per forward pass.
    pub chunk: usize,
    /// Number format of the KV cache.
    pub kv_format: KvFormat,
    /// Whether feed-forwards are computed in fixed point between their products: see [`HeteroOptions::fixed_point`].
    pub fixed_point: bool,
    /// An engine of the model, on whose processors texts are computed as prompts. Chunks, KV cache and fixed point are then
    /// those of the engine, and no text may be longer than its context.
    pub engine: Option<HeteroEngine>,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        Self {
            limit: None,
            window: 1024,
            chunk: 512,
            kv_format: KvFormat::F16,
            fixed_point: false,
            engine: None,
        }
    }
}

/// Evaluates `model` on `dataset`. `progress` is called after each pass with the number of processed tokens and the
/// total.
///
/// # Errors
/// If an option is 0, the model has no tokenizer, a row does not fit its context, or `cancel` is set.
pub fn evaluate(
    model: &Arc<Model>,
    dataset: &Dataset,
    options: &EvaluateOptions,
    cancel: &Cancel,
    mut progress: impl FnMut(usize, usize),
) -> Result<Evaluation> {
    for (name, value) in [
        ("the limit", options.limit),
        ("the window", Some(options.window)),
    ] {
        if value == Some(0) {
            return Err(triad_engine::Error::Option {
                name,
                value: "0".into(),
                expected: "at least 1",
            }
            .into());
        }
    }
    let encoder = Encoder::new(model)?;
    let mut run = Run {
        model,
        options,
        cancel,
        progress: &mut progress,
        tokens: 0,
        seconds: 0.0,
        processors: Vec::new(),
    };
    let mut notes = Vec::new();
    let (metrics, rows) = match &dataset.content {
        Content::Questions(questions) => run.questions(dataset, questions, &encoder, &mut notes)?,
        Content::Text(text) => run.text(dataset, text, &encoder)?,
    };
    let Run {
        tokens,
        seconds,
        processors,
        ..
    } = run;
    let count = match &rows {
        Rows::Questions { correct, .. } => correct.len(),
        Rows::Windows { losses } => losses.len(),
    };
    let tokens_per_second = tokens as f64 / seconds;
    Ok(Evaluation {
        task: dataset.task(),
        metrics,
        count,
        tokens,
        seconds,
        tokens_per_second,
        processors,
        notes,
        rows,
    })
}

struct Run<'a> {
    model: &'a Arc<Model>,
    options: &'a EvaluateOptions,
    cancel: &'a Cancel,
    progress: &'a mut dyn FnMut(usize, usize),
    tokens: usize,
    seconds: f64,
    processors: Vec<ProcessorWork>,
}

impl Run<'_> {
    fn questions(
        &mut self,
        dataset: &Dataset,
        questions: &[Question],
        encoder: &Encoder,
        notes: &mut Vec<String>,
    ) -> Result<(Vec<Metric>, Rows)> {
        let questions: Vec<_> = self.some(questions).collect();
        let mut encoded = Vec::with_capacity(questions.len());
        let mut cut = 0;
        for question in &questions {
            self.cancel.check()?;
            let (choices, examples) = self.encode(dataset, question, encoder)?;
            cut += usize::from(examples < question.preamble.examples.len());
            encoded.push(choices);
        }
        if cut > 0 {
            notes.push(format!(
                "{cut} questions have fewer solved examples than others, to fit the model's context"
            ));
        }
        // Questions with the same examples are consecutive, so that these are run once.
        let mut order: Vec<_> = (0..questions.len()).collect();
        order.sort_by_key(|index| &questions[*index].preamble.description);
        let ordered: Vec<_> = order.iter().map(|index| questions[*index]).collect();
        let in_order: Vec<_> = order.iter().flat_map(|index| &encoded[*index]).collect();
        let mut scores = self.score(&in_order)?.into_iter();
        let mut of_question = vec![Vec::new(); questions.len()];
        for (index, question) in order.iter().zip(ordered) {
            of_question[*index] = scores.by_ref().take(question.choices.len()).collect();
        }
        Ok(report::questions(&questions, &of_question.concat()))
    }

    /// Encodes the choices of one question, with as many solved examples as fit in the model's context.
    fn encode(
        &self,
        dataset: &Dataset,
        question: &Question,
        encoder: &Encoder,
    ) -> Result<(Vec<Encoded>, usize)> {
        let preamble = &question.preamble;
        let error = |message| DataError::new(&dataset.file, Some(question.line), message);
        let longest = self.longest();
        let mut examples = preamble.examples.len();
        loop {
            let before = preamble.description.clone() + &preamble.examples[..examples].concat();
            let mut choices = Vec::with_capacity(question.choices.len());
            for choice in &question.choices {
                let pair =
                    encoder.pair(&(before.clone() + &choice.context), &choice.continuation)?;
                let none = || {
                    error(format!(
                        "{:?} has no token of its own to score",
                        choice.continuation
                    ))
                };
                choices.push(pair.ok_or_else(none)?);
            }
            let needed = choices.iter().map(Encoded::context).max().unwrap_or(0);
            if needed <= longest {
                return Ok((choices, examples));
            }
            if examples == 0 {
                let message = format!(
                    "the row needs a context of {needed} tokens: expected at most {} {longest}",
                    if self.options.engine.is_some() {
                        "the processors'"
                    } else {
                        "the model's"
                    }
                );
                return Err(error(message).into());
            }
            examples -= 1;
        }
    }

    fn text(
        &mut self,
        dataset: &Dataset,
        text: &str,
        encoder: &Encoder,
    ) -> Result<(Vec<Metric>, Rows)> {
        let text = Text::new(text, encoder)?;
        let windows = text.windows(self.options.window.min(self.longest()));
        if windows.is_empty() {
            return Err(DataError::new(
                &dataset.file,
                None,
                "the text has no token that follows another",
            )
            .into());
        }
        let windows: Vec<_> = self.some(&windows).collect();
        let scores = self.score(&windows)?;
        let tokens = text.tokens() as f64;
        Ok(report::windows(
            &scores,
            tokens / text.words as f64,
            tokens / text.bytes as f64,
        ))
    }

    /// Returns as many of `all` as the limit allows, taken evenly, since a file is often ordered by subject.
    fn some<'b, T>(&self, all: &'b [T]) -> impl Iterator<Item = &'b T> + use<'b, T> {
        let count = self
            .options
            .limit
            .map_or(all.len(), |limit| limit.min(all.len()));
        (0..count).map(move |index| &all[index * all.len() / count])
    }

    /// Returns the context of the longest text.
    fn longest(&self) -> usize {
        let engine = self.options.engine.as_ref();
        let longest = engine.map(|engine| engine.session().context());
        longest.unwrap_or(self.model.description().context)
    }

    /// Scores all in one call, so that passes are full and parts that neighbours share are run once.
    fn score(&mut self, encoded: &[&Encoded]) -> Result<Vec<Score>> {
        let branches: Vec<Branch> = encoded.iter().map(|encoded| encoded.branch()).collect();
        self.tokens = tokens_to_run(self.model.description(), &branches);
        let (total, progress) = (self.tokens, &mut *self.progress);
        progress(0, total);
        let start = Instant::now();
        if let Some(engine) = &self.options.engine {
            let mut progress = |done| progress(done, total);
            let (scores, processors) =
                prompts::score(engine, &branches, self.cancel, &mut progress)?;
            self.seconds = start.elapsed().as_secs_f64();
            self.processors = processors;
            return Ok(scores);
        }
        let context = encoded
            .iter()
            .map(|encoded| encoded.context())
            .max()
            .unwrap_or(1);
        let EvaluateOptions {
            chunk,
            kv_format,
            fixed_point,
            ..
        } = *self.options;
        // A chunk may be longer than the longest text, since it holds several.
        let context = context.max(chunk).min(self.model.description().context);
        let session = SessionOptions {
            context,
            chunk,
            kv_format,
        };
        let engine = EngineOptions {
            session,
            ..EngineOptions::default()
        };
        let mut session = if fixed_point {
            let options = HeteroOptions {
                engine,
                fixed_point,
                ..HeteroOptions::default()
            };
            let engine = HeteroEngine::new(self.model, options, &mut |_, _| {});
            engine.map_err(triad_engine::Error::from)?.session()
        } else {
            Engine::new(self.model, &engine)?.session()
        };
        let start = Instant::now();
        let scores = session.score(&branches, self.cancel, |done| progress(done, total))?;
        self.seconds = start.elapsed().as_secs_f64();
        Ok(scores)
    }
}
