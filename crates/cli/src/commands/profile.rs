//! `triad profile`: what the parts of a model take on each processor.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use triad_engine::execute::{self, CostTable, Costs};
use triad_engine::{Cancel, EngineOptions, Error, SessionOptions};
use triad_plan::processors::label;
use triad_plan::schedule::Policy;
use triad_plan::tasks::Operation;

use crate::arguments::{self, ModelArguments};
use crate::device::DeviceArguments;
use crate::failure::run_error;
use crate::interrupt::{Interrupted, on_interrupt};
use crate::processors::Processors;
use crate::{output, progress};

/// Measure what the parts of a model take on each processor, and keep it in the package.
///
/// Schedules go by what tasks are expected to take. Without this a process learns it from its first prompt; with it the
/// first one is scheduled as well as later ones. Measured are the processors together, and the CPU alone, which takes over
/// when the NPU fails.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad profile --processors cpu=0,npu=1
  triad profile -m model.triad --processors cpu=0-3,npu=4 --npu openvino --chunk 512 --json")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The processors: cpu=0,npu=1 keeps each on its cores, cpu,npu takes a thread each
    #[arg(long, value_name = "LIST", default_value = "cpu,npu")]
    processors: Processors,
    #[command(flatten)]
    devices: DeviceArguments,
    /// Tokens of the prompt that go through the model at once
    #[arg(long, value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    /// Measured runs of each set of processors
    #[arg(long, value_name = "N", default_value = "3", value_parser = arguments::repeats)]
    repeat: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `profile --json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    processors: String,
    file: PathBuf,
    tokens: usize,
    chunk: usize,
    costs: &'a Costs,
}

/// Measures, writes, and prints what was measured.
pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { processors, devices, chunk, repeat, .. } = arguments;
    let name = &arguments.model.name.model;
    let model = arguments.model.load_prepared(false)?;
    let package = model.package().context("expected a package")?;
    // A table that is damaged is not overwritten.
    let mut table = CostTable::open(package)?;
    // The last chunk is a short one: what does not depend on a chunk's tokens shows.
    let tokens = (7 * chunk / 2).max(1).min(model.description().context);
    let chunks = tokens.div_ceil(*chunk);
    let options = || EngineOptions {
        session: SessionOptions { context: tokens, chunk: *chunk, ..SessionOptions::default() },
        policy: Policy::InOrder,
        chunks_in_flight: chunks,
        ..EngineOptions::default()
    };
    let mut engines = vec![processors.engine(devices, &model, options())?];
    if let Some(alone) = processors.cpu_alone() {
        // One processor alone computes all of every product.
        let uncut = DeviceArguments { cuts: Vec::new(), ..devices.clone() };
        engines.push(alone.engine(&uncut, &model, options())?);
    }
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());
    let bar = progress::prompts(format!("measuring prompts of {tokens} tokens"), engines.len() * (repeat + 1));
    let measured = execute::profile(&engines, *repeat, &cancel, |done| bar.set(done));
    drop(bar);
    let costs = match measured {
        Err(Error::Cancelled) => return Err(Interrupted.into()),
        measured => measured.map_err(|error| run_error(error, name))?,
    };
    let (processors, file) = (processors.key(devices), CostTable::path(package));
    table.set(&processors, costs.clone());
    table.save(package)?;
    if arguments.json {
        return output::json(&Report { model: name, processors, file, tokens, chunk: *chunk, costs: &costs });
    }
    output::text(&text(&processors, &costs, *chunk))?;
    output::text(&format!("kept in {}", file.display()))
}

/// A table of what a full chunk takes, the first of a prompt and one behind others.
fn text(processors: &str, costs: &Costs, chunk: usize) -> String {
    let row = |seen: execute::Seen| {
        let behind = |before| format!("{:.1}", 1e6 * seen.cost.of_chunk(chunk, before));
        let name = match seen.operation {
            Operation::Compute => seen.role.name().to_owned(),
            Operation::Shadow => format!("shadow of {}", seen.role.name()),
        };
        vec![name, label(&seen.processor), behind(0), behind(3 * chunk)]
    };
    let names = ["subgraph of a block", "processor", "µs for a chunk", "µs behind three chunks"];
    let rows: Vec<_> = costs.seen().map(row).collect();
    format!("{processors}, chunks of {chunk} tokens\n{}", output::table(&names, 2, &rows))
}
