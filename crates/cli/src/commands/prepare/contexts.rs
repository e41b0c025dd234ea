//! `triad prepare --for`: compiles the graphs of a package ahead of time for the NPU of a chip.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use triad_engine::package::Package;
use triad_engine::{EngineOptions, LoadOptions, Model, SessionOptions, Threads};
use triad_frontend::hashes;
use triad_hetero::HeteroOptions;

use triad_console::arguments;
use triad_console::device::{Chip, DeviceArguments, OutlierCacheArgument, chip};
use triad_console::processors::Processors;
use triad_console::{output, progress};

/// Options of graphs that are compiled ahead of time.
#[derive(clap::Args)]
#[command(next_help_heading = "Graphs for the NPU of a phone")]
pub struct ContextArguments {
    /// Compile the graphs of the package MODEL for the NPU of this chip, so that the phone compiles none: snapdragon-8gen2,
    /// snapdragon-8gen3, snapdragon-8elite or snapdragon-8elite-gen5. Needs the libraries of ONNX Runtime and of Qualcomm's
    /// provider for this machine
    #[arg(
        long = "for",
        value_name = "CHIP",
        value_parser = chip,
        requires = "contexts",
        conflicts_with_all = [
            "output", "calibrate", "tokens", "calibrate_images", "mmproj", "weights", "threshold", "decode_weights", "prune",
            "budget", "smoothing", "hot_share", "force",
        ]
    )]
    chip: Option<Chip>,
    /// New folder for the compiled graphs: on the phone, `triad run --npu qnn --npu-contexts DIR` runs them
    #[arg(long, value_name = "DIR", requires = "chip")]
    contexts: Option<PathBuf>,
    /// Prefill chunk size of these runs, in tokens
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens, requires = "chip")]
    chunk: usize,
    /// Library of Qualcomm's provider [default: the library that the environment variable TRIAD_QNN names]
    #[arg(long, value_name = "FILE", requires = "chip")]
    npu_library: Option<PathBuf>,
}

/// The output of `prepare --for --json`.
#[derive(Serialize)]
struct Report {
    package: String,
    contexts: String,
    chip: String,
    chunk: usize,
    graphs: usize,
    contexts_of_graphs: usize,
    bytes: u64,
    seconds: f64,
}

/// The index of a folder, as far as it is reported.
#[derive(Deserialize)]
struct Index {
    contexts: Vec<CompiledContext>,
    graphs: BTreeMap<String, IgnoredAny>,
}

/// A context of a folder.
#[derive(Deserialize)]
struct CompiledContext {
    bytes: u64,
}

impl ContextArguments {
    /// Compiles the graphs of the package `model` and prints the result. Returns whether there are any to compile.
    pub fn run(&self, model: &str, threads: Threads, json: bool) -> Result<bool> {
        let (Some(chip), Some(folder)) = (self.chip, &self.contexts) else {
            return Ok(false);
        };
        let start = Instant::now();
        let path = Path::new(model);
        ensure!(
            Package::is_at(path),
            "{model} is not a package: with --for, expected one that `triad prepare` made"
        );
        let package = hashes::open_package(path, &mut progress::checking(path))?;
        let options = LoadOptions {
            threads,
            ..LoadOptions::default()
        };
        let model = Arc::new(Model::from_package(&package, &options)?);
        let devices = DeviceArguments {
            npu: "qnn".parse().map_err(anyhow::Error::msg)?,
            npu_library: self.npu_library.clone(),
            npu_contexts: Some(folder.clone()),
            compile_for: Some(chip),
            // Nothing is computed.
            outlier_cache: OutlierCacheArgument::Off,
            ..DeviceArguments::default()
        };
        let processors: Processors = "cpu,npu".parse().map_err(anyhow::Error::msg)?;
        let session = SessionOptions {
            context: self.chunk.min(model.description().context),
            chunk: self.chunk,
            ..SessionOptions::default()
        };
        let options = HeteroOptions {
            engine: EngineOptions {
                session,
                ..EngineOptions::default()
            },
            ..HeteroOptions::default()
        };
        drop(processors.engine(&devices, &model, options)?);
        let Index {
            contexts: of_graphs,
            graphs,
        } = index(folder).with_context(|| folder.display().to_string())?;
        let bytes = of_graphs.iter().map(|context| context.bytes).sum();
        let (graphs, of_graphs) = (graphs.len(), of_graphs.len());
        let seconds = start.elapsed().as_secs_f64();
        let contexts = folder.display().to_string();
        if json {
            output::json(&Report {
                package: path.display().to_string(),
                contexts,
                chip: chip.to_string(),
                chunk: self.chunk,
                graphs,
                contexts_of_graphs: of_graphs,
                bytes,
                seconds,
            })?;
            return Ok(true);
        }
        output::fields(&[
            ("contexts", contexts),
            ("chip", chip.to_string()),
            (
                "graphs",
                format!(
                    "{graphs} for chunks of {} tokens, in {}, {}",
                    self.chunk,
                    if of_graphs == 1 {
                        "one context".to_owned()
                    } else {
                        format!("{of_graphs} contexts")
                    },
                    output::bytes(bytes)
                ),
            ),
            ("time", format!("{seconds:.1} s")),
            (
                "next",
                format!(
                    "on the phone: triad run -m PACKAGE --processors cpu,npu --npu qnn --npu-contexts DIR --prefill-chunk {}",
                    self.chunk
                ),
            ),
        ])?;
        Ok(true)
    }
}

/// Returns the index of a folder.
fn index(folder: &Path) -> Result<Index> {
    let text = fs::read(folder.join("contexts.json"))?;
    Ok(serde_json::from_slice(&text)?)
}
