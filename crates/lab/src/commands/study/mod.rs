//! `triad-lab study`: studies outliers and what each decision about them costs, how well prefills are scheduled, and
//! several conversations at once. There is one file per study.

mod ablation;
mod contention;
mod cuts;
mod decision;
mod encoder;
mod hot_channels;
mod interference;
mod measure;
mod misaligned;
mod outlier_rate;
mod outliers;
mod policy;
mod prefixes;
mod processors;
mod prune;
#[cfg(feature = "gpu")]
mod rendering;
mod solver;
mod stall;
mod synchronization;
mod thresholds;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use triad_engine::{Cancel, LinearInput, Model};
use triad_lab::measured::Subject;
use triad_model::description::ModelDescription;
use triad_model::family;
use triad_plan::device::DeviceProfile;

use triad_console::arguments::CalibrationArguments;
use triad_console::chart::Figure;
use triad_console::device_profile;
use triad_console::failure;
use triad_console::interrupt::on_interrupt;
use triad_console::output_file::OutputFile;
use triad_console::{output, progress};

/// Study a model's outliers, the schedules of prefills, and several conversations at once.
///
/// A study prints a table, with --json one JSON object, and with --svg also draws a figure. Studies of outliers
/// (outliers, prune, hot-channels, thresholds) calibrate the float model; their tables contain what was counted or
/// measured in that run. The study encoder does the same with pictures. Studies of schedules (policy, ablation, contention, outlier-rate) simulate a phone, and say
/// so. The studies stall, prefixes, processors, interference, synchronization and misaligned run the prepared model on
/// this machine. The study rendering runs the float model or a package on its GPU. The studies cuts and solver use a
/// phone's profile or this machine.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study outliers -m model.gguf --svg outliers.svg
  triad-lab study prune -m model.gguf --data wiki.txt --limit 50
  triad-lab study hot-channels --domain screens=screens.jsonl
  triad-lab study thresholds --json > thresholds.json
  triad-lab study policy --svg policy.svg
  triad-lab study ablation --shape gemma-2b --prompt 512")]
pub struct Arguments {
    #[command(subcommand)]
    study: Study,
}

#[derive(Subcommand)]
enum Study {
    Outliers(outliers::Arguments),
    Prune(prune::Arguments),
    HotChannels(hot_channels::Arguments),
    Thresholds(thresholds::Arguments),
    Encoder(encoder::Arguments),
    Policy(policy::Arguments),
    Ablation(ablation::Arguments),
    Contention(contention::Arguments),
    OutlierRate(outlier_rate::Arguments),
    Interference(interference::Arguments),
    Stall(stall::Arguments),
    Prefixes(prefixes::Arguments),
    #[cfg(feature = "gpu")]
    Rendering(rendering::Arguments),
    Solver(solver::Arguments),
    Cuts(cuts::Arguments),
    Misaligned(misaligned::Arguments),
    Processors(processors::Arguments),
    Synchronization(synchronization::Arguments),
}

/// Models and device to simulate.
#[derive(clap::Args)]
struct SimulationArguments {
    /// Model whose shape is used; may be given several times [default: models of the llm.npu paper, as chosen by the
    /// study]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(family::SHAPES))]
    shape: Vec<String>,
    /// Device: snapdragon-8gen3, snapdragon-8gen2, or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "snapdragon-8gen3")]
    device: String,
}

impl SimulationArguments {
    /// Returns the names and descriptions of the chosen shapes, or of `usual`, and the device.
    fn read(&self, usual: &[&str]) -> Result<(Vec<(String, ModelDescription)>, DeviceProfile)> {
        let chosen = self.shape.iter().map(String::as_str);
        let names: Vec<_> = if self.shape.is_empty() {
            usual.to_vec()
        } else {
            chosen.collect()
        };
        let models = names
            .into_iter()
            .map(|name| Ok((name.to_owned(), family::shape(name)?)));
        Ok((
            models.collect::<triad_model::Result<_>>()?,
            device_profile::device(&self.device)?,
        ))
    }
}

/// The models of the llm.npu paper.
const PAPERS: [&str; 5] = [
    "qwen1.5-1.8b",
    "gemma-2b",
    "phi-2",
    "llama-2-7b",
    "mistral-7b",
];

/// Format of a study's output.
#[derive(clap::Args)]
struct OutputArguments {
    /// Also draw a figure
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Result of a study. Its serialization is the output of `--json`.
trait Report: Serialize {
    /// Returns the text for people.
    fn text(&self) -> String;
    /// Returns the figure.
    fn figure(&self) -> Figure;
}

/// Runs the chosen study.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.study {
        Study::Outliers(arguments) => outliers::run(arguments),
        Study::Prune(arguments) => prune::run(arguments),
        Study::HotChannels(arguments) => hot_channels::run(arguments),
        Study::Thresholds(arguments) => thresholds::run(arguments),
        Study::Encoder(arguments) => encoder::run(arguments),
        Study::Policy(arguments) => policy::run(arguments),
        Study::Ablation(arguments) => ablation::run(arguments),
        Study::Contention(arguments) => contention::run(arguments),
        Study::OutlierRate(arguments) => outlier_rate::run(arguments),
        Study::Interference(arguments) => interference::run(arguments),
        Study::Stall(arguments) => stall::run(arguments),
        Study::Prefixes(arguments) => prefixes::run(arguments),
        #[cfg(feature = "gpu")]
        Study::Rendering(arguments) => rendering::run(arguments),
        Study::Misaligned(arguments) => misaligned::run(arguments),
        Study::Processors(arguments) => processors::run(arguments),
        Study::Cuts(arguments) => cuts::run(arguments),
        Study::Solver(arguments) => solver::run(arguments),
        Study::Synchronization(arguments) => synchronization::run(arguments),
    }
}

impl OutputArguments {
    /// Runs `study` on the model called `name`, and shows the result. Ctrl-C ends the study and keeps an existing
    /// figure.
    fn show<R: Report>(&self, name: &str, study: impl FnOnce(&Cancel) -> Result<R>) -> Result<()> {
        let svg = self.svg.as_deref().map(OutputFile::create).transpose()?;
        let cancel = Cancel::new();
        let on_ctrl_c = cancel.clone();
        let _guard = on_interrupt(move || on_ctrl_c.cancel());
        let report = study(&cancel).map_err(|error| run_error(error, name))?;
        if let Some(file) = svg {
            file.write(|file| file.write_all(report.figure().svg().as_bytes()))?;
        }
        if self.json {
            output::json(&report)
        } else {
            output::text(&report.text())
        }
    }
}

/// Adds the model's name to the error of a study.
fn run_error(error: anyhow::Error, model: &str) -> anyhow::Error {
    match error.downcast::<triad_lab::Error>() {
        Ok(triad_lab::Error::Engine(error)) => failure::run_error(error, model),
        Ok(triad_lab::Error::Prepare(error)) => failure::run_error(error, model),
        Ok(error) => error.into(),
        Err(error) => failure::run_error(error, model),
    }
}

/// The model and the text that it was calibrated on.
#[derive(Serialize)]
struct Heading {
    model: String,
    calibration_text: String,
    calibration_tokens: usize,
}

impl Heading {
    fn new(model: &str, subject: &Subject) -> Self {
        let calibration = &subject.calibration;
        Self {
            model: model.into(),
            calibration_text: calibration.text.clone(),
            calibration_tokens: calibration.tokens,
        }
    }

    fn text(&self) -> String {
        let tokens = output::count(self.calibration_tokens);
        format!(
            "{}, calibrated on {tokens} tokens ({})",
            self.model, self.calibration_text
        )
    }
}

/// Calibrates `model`, with a progress bar.
fn calibrate(
    model: &Arc<Model>,
    arguments: &CalibrationArguments,
    text: &triad_prepare::calibration::text::CalibrationText,
    cancel: &Cancel,
) -> triad_lab::Result<Subject> {
    let bar = progress::tokens("calibrating", 0);
    Subject::calibrate(model, text, arguments.tokens, cancel, |done, total| {
        bar.set_to(done, total);
    })
}

/// Returns a model's title in figures: the last part of its name or path.
fn title_of(model: &str) -> String {
    Path::new(model)
        .file_name()
        .map_or_else(|| model.into(), |name| name.to_string_lossy().into_owned())
}

/// Returns the names of the layers that read an input.
fn readers(input: LinearInput) -> &'static str {
    match input {
        LinearInput::Attention => "query, key, value",
        LinearInput::AttentionOutput => "attention output",
        LinearInput::FeedForward => "gate, up",
        LinearInput::Down => "down",
        LinearInput::ExpertDown => "down of experts",
    }
}

/// Formats a share for people: `12.3 %`.
fn percent(share: f64, decimals: usize) -> String {
    format!("{:.decimals$} %", 100.0 * share)
}
