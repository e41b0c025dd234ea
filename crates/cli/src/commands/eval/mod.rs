//! `triad eval`: measures the quality of a model on common benchmarks, with one method of computing it or with several.
//!
//! [`tasks`] finds the data, [`methods`] quantizes, and [`table`] prints the results of several.

mod methods;
mod outcome;
mod table;
pub mod tasks;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde::Serialize;
use triad_engine::package::Package;
use triad_engine::{Cancel, EngineOptions, Error, Model, SessionOptions, memory};
use triad_evaluate::{Dataset, EvaluateOptions, Evaluation, ProcessorWork, Task, evaluate};
use triad_frontend::machine;
use triad_hetero::{HeteroEngine, HeteroOptions};
use triad_prepare::Quantized;
use triad_prepare::calibration::Calibration;

use methods::{MethodArguments, Variant};
use outcome::Outcome;
use table::Table;
use tasks::TaskArguments;
use triad_console::arguments::{self, CalibrationArguments, KvArgument, ModelArguments};
use triad_console::device::{ActivationArgument, DeviceArguments};
use triad_console::failure::run_error;
use triad_console::interrupt::{Interrupted, on_interrupt};
use triad_console::processors::Processors;
use triad_console::{output, progress};

/// Measure the quality of a model on benchmarks, and the loss from quantization.
///
/// Rows are scored as `lm-evaluation-harness` defines it, without a chat template: docs/measurements/accuracy.md describes how, and
/// the fields of the files. The first number is the score of the task; ± is its standard error. Several tasks or
/// methods are printed as a table: accuracies in percent, their average, and its difference from that of float. Ctrl-C
/// ends the evaluation with the results so far.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad eval --task lambada --data lambada.jsonl
  triad eval -m model.gguf --task mmlu --data mmlu.jsonl --few-shot mmlu_fewshot.jsonl --limit 100
  triad eval --task perplexity --data wiki.txt --window 512 --json > perplexity.json
  triad eval -m PACKAGE --task lambada --data lambada.jsonl --prefill-chunk 32 --processors cpu,npu --npu qnn
  triad eval --task all --data FOLDER --method float,w8a8,smoothquant,llm.int8,shadow --prune none,0.85,auto")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    tasks: TaskArguments,
    /// Score N rows or windows, spread evenly over the file
    #[arg(long, value_name = "N", value_parser = arguments::repeats)]
    limit: Option<usize>,
    /// Tokens of a window for perplexity, at most the model's context [default: 1024]
    #[arg(long = "window", value_name = "N", value_parser = arguments::tokens)]
    window_tokens: Option<usize>,
    #[command(flatten)]
    methods: MethodArguments,
    #[command(flatten)]
    calibration: CalibrationArguments,
    /// Chunk size, in tokens
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "512", value_parser = arguments::tokens)]
    chunk: usize,
    #[command(flatten)]
    kv: KvArgument,
    /// Compute texts as prompts on several processors, as `triad run` does: cpu,npu takes one thread for each. A text that
    /// they did not compute, since one failed, is an error
    #[arg(long, value_name = "LIST")]
    processors: Option<Processors>,
    #[command(flatten)]
    devices: DeviceArguments,
    /// Print one JSON object, with the outcome of every row
    #[arg(long)]
    json: bool,
}

/// Tokens of a window for perplexity.
const WINDOW: usize = 1024;
/// Tokens that a question may have on several processors.
const QUESTIONS: usize = 4096;

/// The output of `eval --json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    /// The results of every method on every task, as far as they were finished.
    results: Vec<Outcome>,
    /// Whether Ctrl-C ended the command before all of them were finished.
    interrupted: bool,
}

/// Runs `triad eval`.
pub fn run(arguments: &Arguments) -> Result<()> {
    let devices = DeviceArguments {
        // Fixed point has the same bits on any processors.
        npu_activation: ActivationArgument::Float,
        ..arguments.devices.clone()
    };
    devices.check(arguments.processors.is_some())?;
    let datasets = arguments.tasks.read()?;
    let has = |task| datasets.iter().any(|data| data.task() == task);
    ensure!(
        arguments.window_tokens.is_none() || has(Task::Perplexity),
        "--window is for --task perplexity"
    );
    ensure!(
        !arguments.tasks.has_few_shot() || has(Task::Mmlu),
        "--few-shot is for --task mmlu"
    );
    let text = arguments.calibration.text()?;
    let variants = arguments.methods.variants()?;
    let name = &arguments.model.name.model;
    let path = arguments.model.name.path()?;
    let package = Package::is_at(&path)
        .then(|| Package::open(&path))
        .transpose()?;
    let variants = if package.is_some() {
        vec![arguments.methods.package(name)?]
    } else {
        variants
    };
    ensure!(
        arguments.calibration.calibrate.is_empty() || variants.iter().any(Variant::calibrates),
        "--calibrate is for a --method that calibrates: expected one, or no --calibrate"
    );
    let options = arguments::exact(arguments.model.threads.chosen());
    let model = Arc::new(arguments::load(&path, name, &options)?);
    let context = arguments
        .context(has(Task::Perplexity) && datasets.len() == 1)
        .min(model.description().context);
    let session = memory::of_session(
        model.description(),
        0,
        context,
        arguments.chunk,
        arguments.kv.format(),
    );
    machine::check_memory(&format!("a context of {context} tokens"), session.total())?;
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());

    let start = Instant::now();
    let calibrated = if variants.iter().any(Variant::calibrates) {
        let bar = progress::tokens("calibrating", 0);
        let show = |done, total| bar.set_to(done, total);
        Calibration::of_text(&model, &text, arguments.calibration.tokens, &cancel, show)
            .map_err(|error| run_error(error, name))?
    } else {
        (
            Calibration::new(model.description(), &text.name),
            Default::default(),
        )
    };
    let calibration_seconds = start.elapsed().as_secs_f64();

    let mut table = (!arguments.json && variants.len() * datasets.len() > 1)
        .then(|| Table::new(&variants, &datasets));
    if let Some(table) = &table {
        output::text(&table.head())?;
    }
    let mut results = Vec::new();
    let mut interrupted = false;
    for variant in &variants {
        // One quantized model at a time: each is dropped before the next one is made.
        let (quantized, seconds) = match quantize(variant, &model, &calibrated, &cancel) {
            Err(error) if matches!(error.engine(), Some(Error::Cancelled)) => {
                interrupted = true;
                break;
            }
            quantized => quantized.map_err(|error| run_error(error, name))?,
        };
        let preparation = package
            .as_ref()
            .map(|package| &package.manifest().preparation);
        let preparation = quantized.preparation.as_ref().or(preparation);
        let outcome = |evaluation| Outcome {
            method: variant.method,
            pruned: preparation.map(|preparation| preparation.pruned),
            smoothing: preparation.map(|preparation| preparation.options.plan.smoothing),
            prepare_seconds: seconds
                + if variant.calibrates() {
                    calibration_seconds
                } else {
                    0.0
                },
            evaluation,
        };
        let engine = arguments.engine(&quantized.model, context)?;
        let mut outcomes = Vec::new();
        for dataset in &datasets {
            let model = (&quantized.model, engine.as_ref());
            match arguments.evaluate(variant, model, dataset, &cancel) {
                Err(error) if matches!(error.engine(), Some(Error::Cancelled)) => {
                    interrupted = true;
                    break;
                }
                evaluation => {
                    outcomes.push(outcome(evaluation.map_err(|error| run_error(error, name))?));
                }
            }
        }
        if let Some(table) = table.as_mut().filter(|_| !outcomes.is_empty()) {
            output::text(&table.row(variant, &outcomes))?;
        }
        results.extend(outcomes);
        if interrupted {
            break;
        }
    }
    match (&table, &results[..]) {
        (Some(table), _) => table.notes().try_for_each(output::text)?,
        (None, [outcome]) if !arguments.json => print(&outcome.evaluation)?,
        (None, []) if !arguments.json => {}
        (None, _) => output::json(&Report {
            model: name,
            results,
            interrupted,
        })?,
    }
    // Finished results are printed after Ctrl-C too: they may have taken hours.
    if interrupted {
        Err(Interrupted.into())
    } else {
        Ok(())
    }
}

/// Quantizes the model by one variant. Also returns the seconds that this took.
fn quantize(
    variant: &Variant,
    model: &Arc<Model>,
    calibrated: &(Calibration, [Vec<Vec<u32>>; 2]),
    cancel: &Cancel,
) -> triad_prepare::Result<(Quantized, f64)> {
    let start = Instant::now();
    let _spinner = progress::spinner(format!("{}: quantizing", variant.label));
    let quantized = variant.quantize(model, calibrated, cancel)?;
    Ok((quantized, start.elapsed().as_secs_f64()))
}

impl Arguments {
    /// Returns the context that an evaluation may need: of windows alone, or of questions, whose length is not known yet.
    fn context(&self, is_of_windows: bool) -> usize {
        let window = self.window_tokens.unwrap_or(WINDOW).max(self.chunk);
        if self.processors.is_some() && !is_of_windows {
            window.max(QUESTIONS)
        } else {
            window
        }
    }

    /// Returns the engine on the processors of the command line, if it has any.
    fn engine(&self, model: &Arc<Model>, context: usize) -> Result<Option<HeteroEngine>> {
        let Some(processors) = &self.processors else {
            return Ok(None);
        };
        let session = SessionOptions {
            context,
            chunk: self.chunk.min(context),
            kv_format: self.kv.format(),
        };
        let options = HeteroOptions {
            engine: EngineOptions {
                session,
                ..EngineOptions::default()
            },
            ..HeteroOptions::default()
        };
        processors.engine(&self.devices, model, options).map(Some)
    }

    fn evaluate(
        &self,
        variant: &Variant,
        (model, engine): (&Arc<Model>, Option<&HeteroEngine>),
        dataset: &Dataset,
        cancel: &Cancel,
    ) -> triad_evaluate::Result<Evaluation> {
        let Self { limit, chunk, .. } = *self;
        let window = self.window_tokens.unwrap_or(WINDOW);
        let fixed_point = self.devices.fixed_point();
        let options = EvaluateOptions {
            limit,
            window,
            chunk,
            kv_format: self.kv.format(),
            fixed_point,
            engine: engine.cloned(),
        };
        let bar = progress::tokens(format!("{}: {}", variant.label, dataset.task().name()), 0);
        evaluate(model, dataset, &options, cancel, |done, total| {
            bar.set_to(done, total);
        })
    }
}

/// Returns a value with its standard error, which a single row does not have.
fn figure(value: f64, standard_error: f64) -> String {
    if standard_error.is_finite() {
        format!("{value:.4} ± {standard_error:.4}")
    } else {
        format!("{value:.4}, standard error unknown")
    }
}

/// Returns what processors multiplied as text.
fn work(processors: &[ProcessorWork]) -> String {
    let one = |work: &ProcessorWork| {
        let ProcessorWork {
            processor,
            products,
            share,
        } = work;
        let (products, share) = (output::count(*products), 100.0 * share);
        format!("{processor} {products}, {share:.1} % of the operations")
    };
    let all: Vec<_> = processors.iter().map(one).collect();
    all.join("; ")
}

fn print(evaluation: &Evaluation) -> Result<()> {
    let mut fields: Vec<_> = evaluation
        .metrics
        .iter()
        .map(|metric| (metric.name, figure(metric.value, metric.standard_error)))
        .collect();
    let Evaluation {
        count,
        tokens,
        seconds,
        tokens_per_second,
        processors,
        notes,
        ..
    } = evaluation;
    fields.push(("rows", output::count(*count)));
    let rate = format!(
        "{} in {seconds:.1} s, {tokens_per_second:.0} tokens/s",
        output::count(*tokens)
    );
    fields.push(("tokens", rate));
    if !processors.is_empty() {
        fields.push(("products", work(processors)));
    }
    fields.extend(notes.iter().map(|note| ("note", note.clone())));
    output::fields(&fields)
}
