//! `triad prepare`: makes a package from a model file.

mod contexts;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;
use triad_engine::package::Package;
use triad_engine::package::vision::PackagedVision;
use triad_engine::quantization::{DecodeWeights, LinearFormat, WeightScales};
use triad_frontend::machine;
use triad_model::checkpoint::Checkpoint;
use triad_model::fetch;
use triad_prepare::calibration::pictures::CalibrationPictures;
use triad_prepare::package::{Existing, Recipe};
use triad_prepare::plan::PlanOptions;
use triad_prepare::threshold::ThresholdRule;
use triad_prepare::{PrepareOptions, Prune};

use crate::package_fields;
use contexts::ContextArguments;
use triad_console::arguments::{self, CalibrationArguments, ModelArgument, ThreadArguments};
use triad_console::priority::NiceArgument;
use triad_console::vision::VisionArguments;
use triad_console::{inputs, output, preparing};

/// Prepare a model: calibrate it, quantize it to INT8 or INT4, and write a package.
///
/// The float model reads a calibration text, from which the clip thresholds of the activations are chosen. Outliers
/// beyond the thresholds are computed in float, next to the INT8 model (shadows), where leaving them out would cost
/// accuracy. With --weights int4, only weights are quantized: each is rounded so that it compensates for the errors of
/// others on that text (GPTQ), and nothing is clipped. After Ctrl-C, the next preparation continues from there. After
/// the first run of a model, `triad run` prepares it in the background, with the defaults of this command.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad prepare                                          the default model, into the cache
  triad prepare model.gguf -o model.triad                then: triad run -m model.triad
  triad prepare model.gguf -o small.triad --decode-weights int4 --prune auto
  triad prepare model.gguf -o w4a16.triad --weights int4 half the memory; activations stay in float (W4A16)
  triad prepare model.gguf -o w4a16.triad --weights int4 --bits 5.5   more bits where four cost most
  triad prepare model.gguf -o chat.triad --calibrate dialogues.jsonl --tokens 50000
  triad prepare model.triad --for snapdragon-8gen3 --contexts phone   graphs for the NPU of a phone
  triad prepare qwen-vl.gguf --mmproj mmproj.gguf -o eyes.triad --calibrate-images screens")]
pub struct Arguments {
    /// Path of a GGUF file or safetensors folder, `smollm2-135m`, or `hf:owner/name[:file]`
    #[arg(value_name = "MODEL", default_value = fetch::DEFAULT_MODEL)]
    model: String,
    /// Folder to write [default: one in the cache, which `triad run` uses if all other options have their defaults]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    calibration: CalibrationArguments,
    /// Folder of pictures like those that the model will read. The encoder of pictures is calibrated on them, quantized to
    /// INT8 as the text model is, and becomes a part of the package; every fourth is held out for --prune auto [default: the
    /// encoder stays in its own file and runs as it is stored]
    #[arg(long, value_name = "FOLDER")]
    calibrate_images: Option<PathBuf>,
    #[command(flatten)]
    vision: VisionArguments,
    /// Format of the weights, and the weights that share a scale
    #[arg(long, value_enum, default_value = "channel")]
    weights: Weights,
    /// With --weights int4: bits per weight that linear layers and output matrix have at most, scales included, such as
    /// 5.5. Each layer gets four, five or eight bits, by what four cost it, or stays in the blocks of a quantized file
    /// [default: four bits for each layer, eight for the output matrix]
    #[arg(long, value_name = "BITS", value_parser = bits)]
    bits: Option<f64>,
    #[command(flatten)]
    int8: Int8Arguments,
    #[command(flatten)]
    contexts: ContextArguments,
    /// Replace an existing package
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    threads: ThreadArguments,
    #[command(flatten)]
    nice: NiceArgument,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of INT8.
#[derive(clap::Args)]
struct Int8Arguments {
    /// Choice of the clip thresholds [default: least-error]
    #[arg(long, value_enum)]
    threshold: Option<Threshold>,
    /// Format of the weights in decode; int4 takes more space and is read faster [default: int8]
    #[arg(long, value_enum)]
    decode_weights: Option<Decode>,
    /// Inputs that lose their shadow: a share of them from 0 to 1, the least important first; none; or auto, as many as
    /// --budget allows, which is searched in models of up to 2^30 weights and is none in larger ones; 0.85 is llm.npu's
    /// [default: auto]
    #[arg(long, value_name = "RATE|none|auto", value_parser = arguments::prune)]
    prune: Option<Prune>,
    /// Maximum loss on held-out text for --prune auto, as a share of the float model's; for an encoder of pictures, the maximum
    /// by which the mean cosine of held-out rows to those in float falls below that with all shadows [default: 0.003]
    #[arg(long, value_name = "SHARE", value_parser = arguments::share)]
    budget: Option<f64>,
    /// Scaling of channels beyond the clip threshold where there is no shadow: 0 clips them, as the paper does, 1
    /// scales all of them down to the threshold [default: 0.7]
    #[arg(long, value_name = "SHARE", value_parser = arguments::share)]
    smoothing: Option<f64>,
    /// Least share of the outliers that the hot channels have together [default: 0.8]
    #[arg(long, value_name = "SHARE", value_parser = arguments::share)]
    hot_share: Option<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Threshold {
    /// The largest magnitude in the calibration text
    MaxMin,
    /// The magnitude that as many values exceed as a shadow may have
    Percentile,
    /// The magnitude with the least squared error of the layers' outputs
    LeastError,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Weights {
    /// INT8, one scale for each output channel
    Channel,
    /// INT8, one scale for the whole matrix
    Tensor,
    /// INT4, one scale for each 32 weights of an output channel; activations stay in float
    Int4,
}

#[derive(Clone, Copy, ValueEnum)]
enum Decode {
    /// The INT8 weights of prefill
    Int8,
    /// A second copy in INT4, one scale for each 32 weights
    Int4,
}

/// Parses a number of bits per weight.
fn bits(text: &str) -> Result<f64, String> {
    let bits = text.parse().ok().filter(|bits| (1.0..=16.0).contains(bits));
    bits.ok_or_else(|| "expected a number from 1 to 16, such as 5.5".into())
}

impl Int8Arguments {
    /// Returns the names of the options that were given.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let Self {
            threshold,
            decode_weights,
            prune,
            budget,
            smoothing,
            hot_share,
        } = self;
        let all = [
            ("--threshold", threshold.is_some()),
            ("--decode-weights", decode_weights.is_some()),
            ("--prune", prune.is_some()),
            ("--budget", budget.is_some()),
            ("--smoothing", smoothing.is_some()),
            ("--hot-share", hot_share.is_some()),
        ];
        all.into_iter()
            .filter_map(|(name, is_given)| is_given.then_some(name))
    }
}

impl Arguments {
    fn options(&self) -> Result<PrepareOptions> {
        if self.weights == Weights::Int4
            && let Some(name) = self.int8.given().next()
        {
            bail!(
                "{name} is for INT8: with --weights int4 activations stay in float, leave out either"
            );
        }
        ensure!(
            self.weights == Weights::Int4 || self.bits.is_none(),
            "--bits is for --weights int4: expected both, or neither"
        );
        ensure!(
            self.weights != Weights::Int4 || self.calibrate_images.is_none(),
            "--calibrate-images is for INT8: with --weights int4 the encoder of pictures stays as it is stored, leave out either"
        );
        let usual = PrepareOptions::default();
        let plan = PlanOptions {
            linears: if self.weights == Weights::Int4 {
                LinearFormat::W4a16
            } else {
                LinearFormat::W8a8
            },
            threshold: match self.int8.threshold {
                None => usual.plan.threshold,
                Some(Threshold::MaxMin) => ThresholdRule::MaxMin,
                Some(Threshold::Percentile) => ThresholdRule::Percentile,
                Some(Threshold::LeastError) => ThresholdRule::LeastError,
            },
            weight_scales: match self.weights {
                Weights::Channel | Weights::Int4 => WeightScales::Channel,
                Weights::Tensor => WeightScales::Tensor,
            },
            decode_weights: match self.int8.decode_weights {
                None => usual.plan.decode_weights,
                Some(Decode::Int8) => DecodeWeights::Int8,
                Some(Decode::Int4) => DecodeWeights::Int4,
            },
            hot_share: self.int8.hot_share.unwrap_or(usual.plan.hot_share),
            smoothing: self
                .int8
                .smoothing
                .map_or(usual.plan.smoothing, |share| share as f32),
            bits: self.bits,
            ..usual.plan
        };
        let prune = match (self.int8.prune, self.int8.budget) {
            (None | Some(Prune::Auto { .. }), Some(budget)) => Prune::Auto { budget },
            (Some(Prune::Rate(_)), Some(_)) => {
                bail!("--budget is for --prune auto: expected it, or no --budget")
            }
            (prune, None) => prune.unwrap_or(usual.prune),
        };
        Ok(PrepareOptions {
            plan,
            prune,
            tokens: self.calibration.tokens,
        })
    }
}

impl Arguments {
    /// Returns the calibration pictures for the encoder of the model at `path`; without them, whether it has an encoder.
    fn pictures(&self, path: &Path) -> Result<(Option<CalibrationPictures>, bool)> {
        let encoder = self.vision.encoder(path);
        let Some(folder) = &self.calibrate_images else {
            ensure!(
                self.vision.mmproj.is_none(),
                "--mmproj is for --calibrate-images: without pictures, the encoder runs as it is stored, give it to `triad run`"
            );
            return Ok((None, encoder.is_some()));
        };
        let Some(encoder) = encoder else {
            bail!(
                "{} has no encoder of pictures that Triad runs: --calibrate-images needs one, of a GGUF file by --mmproj",
                path.display()
            );
        };
        let pictures = CalibrationPictures::of_folder(folder, &encoder)?;
        Ok((Some(pictures), true))
    }
}

/// The output of `prepare --json`.
#[derive(Serialize)]
struct Report<'a> {
    package: String,
    bytes: u64,
    seconds: f64,
    /// Number of tokens of this run's calibration.
    calibration_tokens: usize,
    calibration_tokens_per_second: f64,
    peak_resident_bytes: Option<u64>,
    preparation: &'a triad_prepare::Preparation,
    /// The encoder of pictures, if it was prepared, too.
    vision: Option<&'a PackagedVision>,
}

/// Runs `triad prepare`.
pub fn run(arguments: &Arguments) -> Result<()> {
    arguments.nice.apply()?;
    let threads = arguments.threads.chosen();
    if arguments
        .contexts
        .run(&arguments.model, threads.clone(), arguments.json)?
    {
        return Ok(());
    }
    let start = Instant::now();
    let path = ModelArgument {
        model: arguments.model.clone(),
    }
    .path()?;
    ensure!(
        !Package::is_at(&path),
        "{} is a package already",
        path.display()
    );
    let pulled = fetch::pulled(&path)?;
    let (options, text) = (arguments.options()?, arguments.calibration.text()?);
    let (pictures, has_encoder) = arguments.pictures(&path)?;
    let calibration = (&text, pictures.as_ref());
    let (destination, existing) = match (&arguments.output, arguments.force) {
        (Some(output), false) => (output.clone(), Existing::Refuse),
        (Some(output), true) => (output.clone(), Existing::Replace),
        // A package at this path in the cache was prepared in the same way.
        (None, false) => (
            preparing::cached(&path, &options, calibration)?,
            Existing::Keep,
        ),
        (None, true) => (
            preparing::cached(&path, &options, calibration)?,
            Existing::Replace,
        ),
    };
    inputs::check(&destination)?;
    let checkpoint = Arc::new(Checkpoint::open(&path)?);
    pulled.check()?;
    let recipe = Recipe {
        checkpoint,
        text,
        options,
        threads,
        existing,
        moment_memory: triad_prepare::int4::moments::MEMORY,
        pictures,
    };
    let prepared = preparing::prepare(&recipe, &destination, &arguments.model)?;
    let (tokens, calibration_seconds) = prepared.calibrated;
    let rate = if tokens == 0 {
        0.0
    } else {
        tokens as f64 / calibration_seconds
    };
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
            vision: package.manifest().vision.as_deref(),
        });
    }
    let mut fields = package_fields::fields(package);
    if has_encoder && package.manifest().vision.is_none() {
        let stored = "as stored, in its own file; --calibrate-images FOLDER quantizes it, too";
        fields.push(("encoder", stored.into()));
    }
    let memory = output::known_bytes(machine::peak_resident_bytes());
    fields.push((
        "time",
        format!("{seconds:.1} s, calibration at {rate:.0} tokens/s; peak memory {memory}"),
    ));
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
        let options = |arguments: &[&str]| {
            let Cli { arguments } = clap::Parser::parse_from([&["prepare"], arguments].concat());
            arguments.options()
        };
        let usual = PrepareOptions::default();
        assert_eq!(options(&[]).unwrap(), usual);
        assert_eq!(options(&["--prune", "auto"]).unwrap(), usual);
        assert_eq!(options(&["--prune", "0.85"]).unwrap().prune, Prune::PAPER);
        for budget in [
            &["--budget", "0.01"][..],
            &["--prune", "auto", "--budget", "0.01"],
        ] {
            assert_eq!(options(budget).unwrap().prune, Prune::Auto { budget: 0.01 });
        }
        assert!(options(&["--prune", "0.5", "--budget", "0.01"]).is_err());
        let w4a16 = PlanOptions {
            linears: LinearFormat::W4a16,
            ..usual.plan
        };
        assert_eq!(
            options(&["--weights", "int4"]).unwrap(),
            PrepareOptions {
                plan: w4a16,
                ..usual
            }
        );
        let with_bits = options(&["--weights", "int4", "--bits", "5.5"]).unwrap();
        assert_eq!(with_bits.plan.bits, Some(5.5));
        let error = options(&["--bits", "5.5"]).unwrap_err().to_string();
        assert!(error.contains("--weights int4"), "{error}");
        for int8 in [
            ["--threshold", "max-min"],
            ["--decode-weights", "int8"],
            ["--prune", "none"],
            ["--budget", "0.1"],
            ["--smoothing", "0"],
            ["--hot-share", "0.5"],
        ] {
            let error = options(&[&["--weights", "int4"], &int8[..]].concat())
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(int8[0]) && error.contains("is for INT8"),
                "{error}"
            );
        }
    }
}
