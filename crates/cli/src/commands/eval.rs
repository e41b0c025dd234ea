//! `triad eval`: how well a model does on the usual benchmarks.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use triad_engine::evaluate::{self, Dataset, EvaluateOptions, Evaluation};
use triad_engine::{Cancel, Error};

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
    /// Tokens that go through the model at once
    #[arg(long, value_name = "N", default_value = "512", value_parser = arguments::tokens)]
    chunk: usize,
    /// Print one JSON object, with the outcome of every row
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Task {
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
}

/// What `eval --json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    method: Method,
    #[serde(flatten)]
    evaluation: Evaluation,
}

/// Reads, scores, prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let dataset = Dataset::read(arguments.task.into(), &arguments.data, arguments.few_shot.as_deref())?;
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
    let bar = progress::tokens("evaluating", 0);
    let evaluated = evaluate::evaluate(&model, &dataset, &options, &cancel, |done, total| {
        bar.set_total(total);
        bar.set(done);
    });
    drop(bar);
    let name = &arguments.model.name.model;
    match evaluated {
        Ok(evaluation) if arguments.json => output::json(&Report { model: name, method: arguments.method, evaluation }),
        Ok(evaluation) => print(&evaluation),
        Err(Error::Cancelled) => Err(Interrupted.into()),
        Err(error) => Err(arguments::run_error(error, name)),
    }
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
