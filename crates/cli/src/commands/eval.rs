//! `triad eval`: how well a model does on the usual benchmarks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use triad_engine::evaluate::{self, Dataset, EvaluateOptions, Evaluation};
use triad_engine::prepare::calibration::text::CalibrationText;
use triad_engine::prepare::{self, PrepareOptions, Prune, Quantized};
use triad_engine::{Cancel, Error, Model};

use crate::arguments::{self, ModelArguments};
use crate::interrupt::{Interrupted, on_interrupt};
use crate::{output, progress};

/// Measure how well a model does on a benchmark.
///
/// Rows are scored as `lm-evaluation-harness` defines it, without a chat template: docs/accuracy.md says how, and what
/// fields the files have. The first number is the score of the task; ± is its standard error.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad eval --task lambada --data lambada.jsonl
  triad eval -m model.gguf --task mmlu --data mmlu.jsonl --few-shot mmlu_fewshot.jsonl --limit 100
  triad eval --task perplexity --data wiki.txt --window 512 --json > perplexity.json")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// What the model is asked
    #[arg(long, value_enum)]
    task: Task,
    /// The questions: one JSON object a line, or plain text for perplexity
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Solved examples for mmlu [default: mmlu_fewshot.jsonl beside the data]
    #[arg(long, value_name = "FILE")]
    few_shot: Option<PathBuf>,
    /// Score N rows or windows, taken evenly over the file
    #[arg(long, value_name = "N", value_parser = arguments::repeats)]
    limit: Option<usize>,
    /// Tokens of a window for perplexity, at most the model's context
    #[arg(long, value_name = "N", default_value = "1024", value_parser = arguments::tokens)]
    window: usize,
    /// How the linear layers are computed
    #[arg(long, value_enum, default_value_t)]
    method: Method,
    /// Shadows left out with --method shadow: a share of them from 0 to 1, the least important first; none of them; or
    /// as many as a loss of 0.3 % on held-out text allows
    #[arg(long, value_name = "RATE|none|auto", default_value = "0.85", value_parser = prune)]
    prune: Prune,
    /// A text to calibrate on, plain or JSON lines [default: a built-in one]
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// Tokens that go through the model at once
    #[arg(long, value_name = "N", default_value = "512", value_parser = arguments::tokens)]
    chunk: usize,
    /// Print one JSON object, with the outcome of every row
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Task {
    /// The last word of a passage
    Lambada,
    /// Which ending continues a scene
    Hellaswag,
    /// What a blank in a sentence stands for
    Winogrande,
    /// Which choice completes a statement of elementary science
    Openbookqa,
    /// The letter of the right choice, after five solved examples of the subject
    Mmlu,
    /// How well a plain text is predicted
    Perplexity,
}

impl From<Task> for evaluate::Task {
    fn from(task: Task) -> Self {
        match task {
            Task::Lambada => Self::Lambada,
            Task::Hellaswag => Self::HellaSwag,
            Task::Winogrande => Self::WinoGrande,
            Task::Openbookqa => Self::OpenBookQa,
            Task::Mmlu => Self::Mmlu,
            Task::Perplexity => Self::Perplexity,
        }
    }
}

#[derive(Clone, Copy, Default, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Method {
    /// In f32, with the weights as they are
    #[default]
    Float,
    /// In INT8 with one scale for all activations of an input, from the largest
    W8a8,
    /// In INT8 with shadow outliers, as `triad prepare` does it
    Shadow,
    /// In INT8 as W8A8, with difficult channels scaled down (SmoothQuant)
    #[value(name = "smoothquant")]
    SmoothQuant,
    /// In INT8 with one scale for each token and outlier channels in float (LLM.int8())
    #[value(name = "llm.int8")]
    LlmInt8,
}

impl Method {
    /// `None` for float.
    fn int8(self) -> Option<prepare::Method> {
        match self {
            Self::Float => None,
            Self::W8a8 => Some(prepare::Method::W8a8),
            Self::Shadow => Some(prepare::Method::Shadow),
            Self::SmoothQuant => Some(prepare::Method::SmoothQuant),
            Self::LlmInt8 => Some(prepare::Method::LlmInt8),
        }
    }
}

fn prune(text: &str) -> Result<Prune, String> {
    match text {
        "auto" => Ok(Prune::AUTO),
        "none" => Ok(Prune::Rate(0.0)),
        rate => {
            let rate = rate.trim().parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
            rate.map(Prune::Rate).ok_or_else(|| "expected a number from 0 to 1, `none` or `auto`".into())
        }
    }
}

/// What `eval --json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    method: Method,
    /// Share of the shadows left out, with the method that has them.
    pruned: Option<f64>,
    /// Seconds of calibrating and quantizing.
    prepare_seconds: f64,
    #[serde(flatten)]
    evaluation: Evaluation,
}

/// Reads, scores, prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let dataset = Dataset::read(arguments.task.into(), &arguments.data, arguments.few_shot.as_deref())?;
    let text = arguments.calibrate.as_deref().map_or_else(|| Ok(CalibrationText::builtin()), CalibrationText::read)?;
    let model = arguments.model.load()?;
    let options = EvaluateOptions {
        limit: arguments.limit,
        window: arguments.window,
        chunk: arguments.chunk,
        ..EvaluateOptions::default()
    };
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());
    let name = &arguments.model.name.model;
    let start = Instant::now();
    let Quantized { model, preparation } = match quantize(model, &text, arguments, &cancel) {
        Err(Error::Cancelled) => return Err(Interrupted.into()),
        result => result.map_err(|error| arguments::run_error(error, name))?,
    };
    let prepare_seconds = start.elapsed().as_secs_f64();
    let pruned = preparation.map(|preparation| preparation.pruned);
    let bar = progress::tokens("evaluating", 0);
    let evaluated = evaluate::evaluate(&model, &dataset, &options, &cancel, |done, total| {
        bar.set_total(total);
        bar.set(done);
    });
    drop(bar);
    let method = arguments.method;
    match evaluated {
        Ok(evaluation) if arguments.json => {
            output::json(&Report { model: name, method, pruned, prepare_seconds, evaluation })
        }
        Ok(evaluation) => print(&evaluation),
        Err(Error::Cancelled) => Err(Interrupted.into()),
        Err(error) => Err(arguments::run_error(error, name)),
    }
}

/// The model by the method asked for.
fn quantize(
    model: Arc<Model>,
    text: &CalibrationText,
    arguments: &Arguments,
    cancel: &Cancel,
) -> triad_engine::Result<Quantized> {
    let Some(method) = arguments.method.int8() else {
        return Ok(Quantized { model, preparation: None });
    };
    let options = PrepareOptions { prune: arguments.prune, ..PrepareOptions::default() };
    let bar = progress::tokens("calibrating", 0);
    method.quantize(&model, text, &options, cancel, |done, total| {
        bar.set_total(total);
        bar.set(done);
    })
}

fn print(evaluation: &Evaluation) -> Result<()> {
    let mut fields: Vec<_> = evaluation
        .metrics
        .iter()
        .map(|metric| (metric.name, format!("{:.4} ± {:.4}", metric.value, metric.standard_error)))
        .collect();
    let Evaluation { count, tokens, seconds, tokens_per_second, notes, .. } = evaluation;
    fields.push(("rows", output::count(*count)));
    let rate = format!("{} in {seconds:.1} s, {tokens_per_second:.0} a second", output::count(*tokens));
    fields.push(("tokens", rate));
    fields.extend(notes.iter().map(|note| ("note", note.clone())));
    output::fields(&fields)
}
