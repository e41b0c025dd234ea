//! `triad prepare`: a model file becomes a package.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use triad_engine::LoadOptions;
use triad_engine::package::Package;
use triad_engine::quantization::{DecodeWeights, WeightScales};
use triad_frontend::{machine, packages};
use triad_model::fetch;
use triad_prepare::package::{Existing, Recipe};
use triad_prepare::plan::PlanOptions;
use triad_prepare::threshold::ThresholdRule;
use triad_prepare::{PrepareOptions, Prune};

use crate::arguments::{self, CalibrationArguments, ModelArgument, ThreadArguments};
use crate::{inputs, output, package_fields, preparing};

/// Prepare a model: calibrate it, quantize it to INT8, and write a package.
///
/// The float model reads a calibration text; what its activations exceed is clipped, and the outliers beyond run
/// beside the INT8 model in float (shadows), where leaving them out would cost accuracy. Ctrl-C loses nothing: the
/// next preparation goes on from there. `triad run` prepares by itself, with the defaults of this command.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad prepare                                          the default model, into the cache
  triad prepare model.gguf -o model.triad                then: triad run -m model.triad
  triad prepare model.gguf -o small.triad --decode-weights int4 --prune auto
  triad prepare model.gguf -o chat.triad --calibrate dialogues.jsonl --tokens 50000")]
pub struct Arguments {
    /// The path of a GGUF file or safetensors folder, `smollm2-135m`, or `hf:owner/name[:file]`
    #[arg(value_name = "MODEL", default_value = fetch::DEFAULT_MODEL)]
    model: String,
    /// The folder to write [default: one in the cache, where `triad run` finds it if all other options are left out]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    calibration: CalibrationArguments,
    /// How clip thresholds are chosen
    #[arg(long, value_enum, default_value = "least-error")]
    threshold: Threshold,
    /// What one weight scale covers
    #[arg(long, value_enum, default_value = "channel")]
    weights: Weights,
    /// Weights that decode computes with; int4 takes more space and is read faster
    #[arg(long, value_enum, default_value = "int8")]
    decode_weights: Decode,
    /// Which inputs lose their shadow: a share of them from 0 to 1, the least important first; none of them; or as
    /// many as --budget allows
    #[arg(long, value_name = "RATE|none|auto", default_value = "0.85", value_parser = arguments::prune)]
    prune: Prune,
    /// Loss on held-out text that --prune auto may cost, as a share of the float model's
    #[arg(long, value_name = "SHARE", default_value = "0.003", value_parser = arguments::share)]
    budget: f64,
    /// How far channels beyond the clip threshold are scaled down where there is no shadow to compute them: 0 cuts them
    /// off, as the paper does, 1 brings all of them within it
    #[arg(long, value_name = "SHARE", default_value = "0.7", value_parser = arguments::share)]
    smoothing: f64,
    /// Hot channels give at least this share of the outliers
    #[arg(long, value_name = "SHARE", default_value = "0.8", value_parser = arguments::share)]
    hot_share: f64,
    /// Replace a package that is there already
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    threads: ThreadArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Threshold {
    /// The largest magnitude of the calibration text
    MaxMin,
    /// As many values are beyond as a shadow may have
    Percentile,
    /// Least squared error of the layers' outputs
    LeastError,
}

#[derive(Clone, Copy, ValueEnum)]
enum Weights {
    /// One output channel
    Channel,
    /// The whole matrix
    Tensor,
}

#[derive(Clone, Copy, ValueEnum)]
enum Decode {
    /// Those of prefill
    Int8,
    /// A second copy in four bits, with one scale for 32 weights
    Int4,
}

impl Arguments {
    fn options(&self) -> PrepareOptions {
        let plan = PlanOptions {
            threshold: match self.threshold {
                Threshold::MaxMin => ThresholdRule::MaxMin,
                Threshold::Percentile => ThresholdRule::Percentile,
                Threshold::LeastError => ThresholdRule::LeastError,
            },
            weight_scales: match self.weights {
                Weights::Channel => WeightScales::Channel,
                Weights::Tensor => WeightScales::Tensor,
            },
            decode_weights: match self.decode_weights {
                Decode::Int8 => DecodeWeights::Int8,
                Decode::Int4 => DecodeWeights::Int4,
            },
            hot_share: self.hot_share,
            smoothing: self.smoothing as f32,
            ..PlanOptions::default()
        };
        let prune = match self.prune {
            Prune::Auto { .. } => Prune::Auto { budget: self.budget },
            rate => rate,
        };
        PrepareOptions { plan, prune, tokens: self.calibration.tokens }
    }
}

/// What `prepare --json` prints.
#[derive(Serialize)]
struct Report<'a> {
    package: String,
    bytes: u64,
    seconds: f64,
    /// Tokens that this run calibrated on.
    calibration_tokens: usize,
    calibration_tokens_per_second: f64,
    peak_resident_bytes: Option<u64>,
    preparation: &'a triad_prepare::Preparation,
}

/// Prepares, and prints the result.
pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let path = ModelArgument { model: arguments.model.clone() }.path()?;
    ensure!(!Package::is_at(&path), "{} is a package already", path.display());
    let (options, text) = (arguments.options(), arguments.calibration.text()?);
    let (destination, existing) = match (&arguments.output, arguments.force) {
        (Some(output), false) => (output.clone(), Existing::Refuse),
        (Some(output), true) => (output.clone(), Existing::Replace),
        // What has this place in the cache was prepared in the same way.
        (None, false) => (preparing::cached(&path, &options, &text)?, Existing::Keep),
        (None, true) => (preparing::cached(&path, &options, &text)?, Existing::Replace),
    };
    inputs::check(&destination)?;
    let checkpoint = packages::open(&path, &arguments.model)?;
    let load = LoadOptions { threads: arguments.threads.chosen() };
    let recipe = Recipe { checkpoint, text, options, load, existing };
    let prepared = preparing::prepare(&recipe, &destination, &arguments.model)?;
    let (tokens, calibration_seconds) = prepared.calibrated;
    let rate = if tokens == 0 { 0.0 } else { tokens as f64 / calibration_seconds };
    let seconds = start.elapsed().as_secs_f64();
    let package = &prepared.package;
    if arguments.json {
        return output::json(&Report {
            package: package.path().display().to_string(),
            bytes: package.bytes(),
            seconds,
            calibration_tokens: tokens,
            calibration_tokens_per_second: rate,
            peak_resident_bytes: machine::peak_resident_bytes(),
            preparation: &package.manifest().preparation,
        });
    }
    let mut fields = package_fields::fields(package);
    let memory = output::known_bytes(machine::peak_resident_bytes());
    fields.push(("time", format!("{seconds:.1} s, calibration at {rate:.0} tokens/s; peak memory {memory}")));
    fields.push(("next", format!("triad run -m {}", package.path().display())));
    output::fields(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_as_triad_run_prepares() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            arguments: Arguments,
        }
        let Cli { arguments } = clap::Parser::parse_from(["prepare"]);
        assert_eq!(arguments.options(), PrepareOptions::default());
        let Cli { arguments } = clap::Parser::parse_from(["prepare", "--prune", "auto"]);
        assert_eq!(arguments.options().prune, Prune::AUTO);
        let Cli { arguments } = clap::Parser::parse_from(["prepare", "--prune", "auto", "--budget", "0.01"]);
        assert_eq!(arguments.options().prune, Prune::Auto { budget: 0.01 });
    }
}
