//! Measures the quality and the speed of one variant of a model. Studies compare such measurements.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use serde::Serialize;
use triad_engine::{Cancel, Model};
use triad_evaluate::{Dataset, EvaluateOptions, evaluate};
use triad_lab::measured::Subject;
use triad_prepare::held_out::{HeldOut, held_out};

use super::percent;
use triad_console::task::Task;
use triad_console::{arguments, inputs, progress};

/// Data to measure on.
#[derive(clap::Args)]
pub struct MeasureArguments {
    /// Text to measure perplexity on, as for `triad eval --task perplexity` [default: the held-out quarter of the
    /// calibration text]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Benchmark to measure accuracy on, too; may be given several times, each with its --task-data
    #[arg(long, value_enum)]
    task: Vec<Task>,
    /// File of the benchmark, as for `triad eval`
    #[arg(long, value_name = "FILE")]
    task_data: Vec<PathBuf>,
    /// Windows of the text and rows of each benchmark, taken evenly from the file [default: all]
    #[arg(long, value_name = "N", value_parser = arguments::repeats)]
    limit: Option<usize>,
}

/// The contents of the files of [`MeasureArguments`].
pub struct Measure {
    /// Text for perplexity, if it is not the held-out text.
    text: Option<Dataset>,
    /// Name of the text in reports.
    pub text_name: String,
    tasks: Vec<Dataset>,
    options: EvaluateOptions,
}

/// A measured number.
#[derive(Clone, Copy, Serialize)]
pub struct Value {
    pub value: f64,
    pub standard_error: f64,
}

impl Value {
    /// Returns the standard error for figures: 0 if a single row or window does not determine it.
    pub fn error_bar(&self) -> f64 {
        if self.standard_error.is_finite() {
            self.standard_error
        } else {
            0.0
        }
    }
}

/// Measurements of one model.
#[derive(Clone, Serialize)]
pub struct Measurement {
    /// Perplexity per token.
    pub perplexity: Value,
    /// The score of each benchmark.
    pub tasks: Vec<TaskScore>,
    /// Share of the linear layers' time that shadows take, on held-out calibration text.
    pub shadow_time_share: f64,
    /// Loss on that text, and where the time went.
    pub held_out: HeldOut,
}

/// The score of one benchmark.
#[derive(Clone, Serialize)]
pub struct TaskScore {
    pub task: triad_evaluate::Task,
    pub metric: &'static str,
    #[serde(flatten)]
    pub score: Value,
}

impl MeasureArguments {
    /// Reads the files.
    pub fn read(&self) -> Result<Measure> {
        let (tasks, files) = (self.task.len(), self.task_data.len());
        ensure!(
            tasks == files,
            "{tasks} --task and {files} --task-data: expected a file for each benchmark"
        );
        self.data
            .iter()
            .chain(&self.task_data)
            .for_each(|path| inputs::add(path));
        let text = self
            .data
            .as_deref()
            .map(|path| Dataset::read(triad_evaluate::Task::Perplexity, path, None))
            .transpose()?;
        let file_name = |path: &PathBuf| {
            path.file_name()
                .unwrap_or(path.as_os_str())
                .to_string_lossy()
                .into_owned()
        };
        let tasks = self.task.iter().zip(&self.task_data);
        Ok(Measure {
            text,
            text_name: self
                .data
                .as_ref()
                .map_or_else(|| "held-out calibration text".into(), file_name),
            tasks: tasks
                .map(|(task, path)| Dataset::read((*task).into(), path, None))
                .collect::<Result<_, _>>()?,
            options: EvaluateOptions {
                limit: self.limit,
                ..EvaluateOptions::default()
            },
        })
    }
}

impl Measure {
    /// Measures `models` models in sequence, with one progress bar.
    pub fn each<'a>(
        &'a self,
        subject: &'a Subject,
        models: usize,
        cancel: &'a Cancel,
    ) -> impl FnMut(&Arc<Model>) -> Result<Measurement> + 'a {
        let bar = progress::share("measuring");
        let mut finished = 0.0;
        move |model| {
            let done = &mut |share| bar.set_share((finished + share) / models as f64);
            let measured = self.run(subject, model, cancel, done);
            finished += 1.0;
            measured
        }
    }

    /// Measures `model`, which is the float model of `subject` or derived from it. `progress` is called with the
    /// completed share.
    fn run(
        &self,
        subject: &Subject,
        model: &Arc<Model>,
        cancel: &Cancel,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Measurement> {
        let parts = 1 + usize::from(self.text.is_some()) + self.tasks.len();
        let mut part = 0_usize;
        let mut done = |tokens: usize, total: usize| {
            progress((part as f64 + tokens as f64 / total.max(1) as f64) / parts as f64);
            if tokens == total {
                part += 1;
            }
        };
        let total = subject
            .held_out
            .iter()
            .map(|piece| piece.len().saturating_sub(1))
            .sum();
        let held_out = held_out(model, &subject.held_out, cancel, |tokens| {
            done(tokens, total);
        })?;
        let mut evaluate_on = |dataset: &Dataset| {
            let evaluation = evaluate(model, dataset, &self.options, cancel, &mut done)?;
            // The first metric is the score of its task.
            let metric = &evaluation.metrics[0];
            let score = Value {
                value: metric.value,
                standard_error: metric.standard_error,
            };
            Ok::<_, anyhow::Error>(TaskScore {
                task: evaluation.task,
                metric: metric.name,
                score,
            })
        };
        let perplexity = match &self.text {
            Some(text) => evaluate_on(text)?.score,
            None => {
                let value = held_out.perplexity();
                Value {
                    value,
                    standard_error: value * held_out.standard_error,
                }
            }
        };
        Ok(Measurement {
            perplexity,
            tasks: self
                .tasks
                .iter()
                .map(evaluate_on)
                .collect::<Result<_, _>>()?,
            shadow_time_share: held_out.int8.shadow_share(),
            held_out,
        })
    }
}

impl TaskScore {
    /// Returns the name for people.
    pub fn name(&self) -> &'static str {
        match self.task {
            triad_evaluate::Task::Lambada => "LAMBADA",
            triad_evaluate::Task::HellaSwag => "HellaSwag",
            triad_evaluate::Task::WinoGrande => "WinoGrande",
            triad_evaluate::Task::OpenBookQa => "OpenBookQA",
            triad_evaluate::Task::Mmlu => "MMLU",
            triad_evaluate::Task::Perplexity => "perplexity",
        }
    }
}

impl Measurement {
    /// Returns the column names of [`Measurement::cells`].
    pub fn columns(&self) -> Vec<&'static str> {
        let mut names = vec!["perplexity", "±", "against float", "time in shadows"];
        names.extend(self.tasks.iter().flat_map(|task| [task.name(), "±"]));
        names
    }

    /// Returns table cells, compared with `float`, which is `None` for the float model itself.
    pub fn cells(&self, float: Option<&Self>) -> Vec<String> {
        let nothing = || "-".to_owned();
        let mut cells = vec![
            format!("{:.3}", self.perplexity.value),
            format!("{:.3}", self.perplexity.standard_error),
            float.map_or_else(nothing, |float| {
                change(self.perplexity.value / float.perplexity.value)
            }),
            float.map_or_else(nothing, |_| percent(self.shadow_time_share, 1)),
        ];
        for task in &self.tasks {
            cells.extend([
                percent(task.score.value, 2),
                percent(task.score.standard_error, 2),
            ]);
        }
        cells
    }
}

/// Formats a ratio as a percentage of change, or as a factor if it is large.
fn change(ratio: f64) -> String {
    if ratio < 10.0 {
        format!("{:+.2} %", 100.0 * (ratio - 1.0))
    } else {
        format!("× {ratio:.0}")
    }
}
