//! `triad-lab simulate`: simulates a prefill on a phone, or on processors of this machine ([`measured`]).

mod measured;

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use triad_plan::device::DeviceProfile;
use triad_plan::prefill::{self, Contention, FloatsOn, Memory, Options, Prefill, Techniques};
use triad_plan::schedule::Policy;
use triad_plan::timeline::{Kind, ProcessorSummary, Summary};

use triad_console::device::DeviceArguments;
use triad_console::device_profile;
use triad_console::processors::Processors;
use triad_console::timeline_file::TimelineFile;
use triad_console::{arguments, output, processors, progress};

/// Maximum number of chunks. The time to select a task grows with the chunks that could be next; this many take half a
/// minute.
const MAX_CHUNKS: usize = 1024;

/// Simulate a prefill on a phone, or on processors of this machine: latency and bubbles, and for a phone energy and
/// memory.
///
/// The schedule is the one that runs in real time, but in virtual time. Its tasks are those of `triad plan`, with a
/// concurrent shadow for each linear subgraph that keeps its outliers. Their times come from a profile of the device.
/// The profiles (crates/plan/profiles) state the source of each parameter; docs/measurements/scheduling.md compares
/// simulations with measurements.
///
/// With --processors, the schedule is that of `triad run` and `triad bench` on this machine, and task times are those
/// that `triad profile` measured for the package on these processors.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab simulate --shape qwen1.5-1.8b --prompt 1024
  triad-lab simulate --shape gemma-2b --policy in-order --timeline bubbles.svg
  triad-lab simulate --shape phi-2 --contend cpu:0.5@100-200ms --contend npu:1@0-50ms
  triad-lab simulate --shape qwen1.5-1.8b --without shadow,out-of-order --json
  triad-lab simulate -m model.gguf --device phone.toml --timeline trace.json
  triad-lab simulate --processors cpu=0,npu=1 --policy planned    as measured by triad profile")]
pub struct Arguments {
    #[command(flatten)]
    model: arguments::DescriptionArguments,
    /// Device: snapdragon-8gen3, snapdragon-8gen2, or a TOML file
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = "snapdragon-8gen3",
        conflicts_with = "processors"
    )]
    device: String,
    /// Tokens of the prompt [default: 1024, or the model's context length if that is less]
    #[arg(long, value_name = "N", value_parser = arguments::tokens)]
    prompt: Option<usize>,
    /// Tokens per chunk
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    /// Maximum number of chunks that have buffers at once
    #[arg(long, value_name = "N", default_value = "4", value_parser = processors::in_flight)]
    chunks_in_flight: usize,
    /// Scheduling policy: in-order, fifo, npu-first, paper, critical-path, planned
    #[arg(long, value_name = "NAME", default_value = Policy::default().name(), value_parser = processors::policy)]
    policy: Policy,
    /// Processor of float operators: cpu or gpu
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = device_profile::floats_on, conflicts_with = "processors")]
    floats: FloatsOn,
    /// Share of the shadows that are omitted, those far from input and output first [default: those that the model's
    /// package omits, by importance, or 0.85 without a package]
    #[arg(long, value_name = "RATE", value_parser = arguments::share, conflicts_with = "processors")]
    prune: Option<f64>,
    /// Another app takes this share of a processor's time for a while, such as cpu:0.5@100-200ms; may be given several
    /// times
    #[arg(long, value_name = "PROCESSOR:SHARE@FROM-TOms", value_parser = contention, conflicts_with = "processors")]
    contend: Vec<Contend>,
    /// Techniques to disable: chunk-sharing, shadow, out-of-order, equivalent-shapes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = technique, conflicts_with = "processors")]
    without: Vec<Technique>,
    /// Write the timeline: a picture (.svg), or a trace for Chrome and Perfetto (.json)
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Simulate these processors of this machine, given as for `triad run`
    #[arg(
        long,
        value_name = "LIST",
        conflicts_with = "shape",
        help_heading = "Several processors"
    )]
    processors: Option<Processors>,
    #[command(flatten, next_help_heading = "Several processors")]
    devices: DeviceArguments,
}

#[derive(Clone)]
struct Contend {
    processor: String,
    share: f64,
    from: f64,
    to: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Technique {
    ChunkSharing,
    Shadow,
    OutOfOrder,
    EquivalentShapes,
}

fn technique(text: &str) -> Result<Technique, String> {
    match text.trim() {
        "chunk-sharing" => Ok(Technique::ChunkSharing),
        "shadow" => Ok(Technique::Shadow),
        "out-of-order" => Ok(Technique::OutOfOrder),
        "equivalent-shapes" => Ok(Technique::EquivalentShapes),
        _ => Err("expected chunk-sharing, shadow, out-of-order or equivalent-shapes".into()),
    }
}

fn contention(text: &str) -> Result<Contend, String> {
    /// One hour in milliseconds.
    const LATEST: f64 = 3.6e6;
    let parts = || {
        let (processor, rest) = text.trim().split_once(':')?;
        let (share, time) = rest.split_once('@')?;
        let (from, to) = time.strip_suffix("ms")?.split_once('-')?;
        let share = arguments::share(share).ok()?;
        let time = |text: &str| {
            text.trim()
                .parse::<f64>()
                .ok()
                .filter(|time| (0.0..=LATEST).contains(time))
        };
        let (from, to) = (time(from)?, time(to)?);
        let named = ["cpu", "gpu", "npu"].contains(&processor);
        (named && from < to).then(|| Contend {
            processor: processor.into(),
            share,
            from: from / 1e3,
            to: to / 1e3,
        })
    };
    parts().ok_or_else(|| {
        "expected cpu, gpu or npu, a share of its time from 0 to 1 and when, within an hour: cpu:0.5@100-200ms".into()
    })
}

/// Output of `simulate --json`.
#[derive(Serialize)]
struct Simulated {
    simulated: bool,
    model: String,
    device: String,
    policy: Policy,
    prompt: usize,
    chunk: usize,
    tasks: usize,
    /// Whether shadows are those that the model's package keeps.
    packaged_shadows: bool,
    seconds: f64,
    /// Part of `seconds` before the first task, in which graphs are built.
    prepare_seconds: f64,
    tokens_per_second: f64,
    joules: f64,
    memory: Memory,
    /// Lower bound for the length of any schedule.
    bound_seconds: f64,
    summary: Summary,
}

/// Simulates and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(processors) = &arguments.processors {
        return measured::run(arguments, processors);
    }
    // A phone's NPU has a memory window, too.
    DeviceArguments {
        window: None,
        ..arguments.devices.clone()
    }
    .check(false)?;
    let device = device_profile::device(&arguments.device)?;
    let (name, description) = arguments.model.describe()?;
    let prompt = arguments::prompt_tokens(arguments.prompt, &description)?;
    arguments::check_chunks(prompt, arguments.chunk, MAX_CHUNKS)?;
    let options = options(arguments, &device)?;
    let file = TimelineFile::create_if(arguments.timeline.as_ref())?;
    let prefill = Prefill::new(&device, &description, prompt, &options);
    let spinner = progress::spinner(format!(
        "simulating {} tasks",
        output::count(prefill.tasks.dag.len())
    ));
    let outcome = prefill.run();
    drop(spinner);
    let policy = if options.techniques.out_of_order {
        options.policy
    } else {
        Policy::InOrder
    };
    let title = format!(
        "{name}, {prompt} tokens on {}, {}",
        device.name,
        policy.name()
    );
    let record = prefill.record(&title, &outcome);
    if let Some(file) = file {
        file.write(&record)?;
    }
    let simulated = Simulated {
        simulated: true,
        model: name,
        device: device.name,
        policy,
        prompt,
        chunk: arguments.chunk,
        tasks: prefill.tasks.dag.len(),
        packaged_shadows: options.shadows.is_some(),
        seconds: outcome.seconds,
        prepare_seconds: prefill.prepare_seconds,
        tokens_per_second: outcome.tokens_per_second(),
        joules: outcome.joules,
        memory: prefill.memory,
        bound_seconds: prefill.prepare_seconds + triad_plan::bound::lower_bound(&prefill.tasks.dag),
        summary: record.summary(),
    };
    if arguments.json {
        output::json(&simulated)
    } else {
        output::text(&simulated.to_string())
    }
}

fn options(arguments: &Arguments, device: &DeviceProfile) -> Result<Options> {
    device_profile::check_floats(arguments.floats, device)?;
    let processors = prefill::processors(device, arguments.floats, arguments.devices.window);
    let contention = |other: &Contend| {
        let Contend {
            ref processor,
            share,
            from,
            to,
        } = *other;
        let names: Vec<_> = processors
            .iter()
            .map(|(_, processor)| processor.name.as_str())
            .collect();
        let expected = || {
            format!(
                "--contend {processor}: no task runs there: expected {}",
                names.join(" or ")
            )
        };
        let processor = processors.id(processor).with_context(expected)?;
        Ok(Contention {
            processor,
            share,
            from,
            to,
        })
    };
    let with = |technique| !arguments.without.contains(&technique);
    let shadows = if arguments.prune.is_none() {
        arguments.model.shadows()?
    } else {
        None
    };
    let paper = Options::paper(arguments.policy);
    Ok(Options {
        chunk: arguments.chunk,
        policy: arguments.policy,
        floats_on: arguments.floats,
        chunks_in_flight: arguments.chunks_in_flight,
        prune: arguments.prune.unwrap_or(paper.prune),
        shadows,
        techniques: Techniques {
            chunk_sharing: with(Technique::ChunkSharing),
            shadow: with(Technique::Shadow),
            out_of_order: with(Technique::OutOfOrder),
            equivalent_shapes: with(Technique::EquivalentShapes),
        },
        contention: arguments
            .contend
            .iter()
            .map(contention)
            .collect::<Result<_>>()?,
        window: arguments.devices.window,
        ..paper
    })
}

impl std::fmt::Display for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self {
            model,
            device,
            policy,
            prompt,
            chunk,
            tasks,
            memory,
            summary,
            ..
        } = self;
        writeln!(
            f,
            "simulated: {model}, {prompt} tokens in chunks of {chunk} on {device}, {}: {tasks} tasks",
            policy.name()
        )?;
        writeln!(
            f,
            "latency {:.1} ms ({:.0} tokens/s); no schedule is shorter than {:.1} ms",
            1e3 * self.seconds,
            self.tokens_per_second,
            1e3 * self.bound_seconds
        )?;
        if self.prepare_seconds > 0.0 {
            writeln!(
                f,
                "of that, {:.1} s build graphs for this prompt",
                self.prepare_seconds
            )?;
        }
        let bytes = |bytes: usize| output::bytes(bytes as u64);
        writeln!(
            f,
            "energy {:.2} J; memory {}: graphs {}, rows for shadows {}{}, keys and values {}\n",
            self.joules,
            bytes(memory.bytes()),
            bytes(memory.graph_bytes),
            bytes(memory.shadow_bytes),
            if self.packaged_shadows {
                " (those that the package keeps)"
            } else {
                ""
            },
            bytes(memory.cache_bytes)
        )?;
        f.write_str(&tables(summary))
    }
}

/// Returns tables of the processors and of the kinds of tasks.
fn tables(summary: &Summary) -> String {
    let row = |processor: &ProcessorSummary| {
        let busy = format!("{:.1}", 1e3 * processor.busy_seconds);
        vec![
            processor.processor.clone(),
            processor.tasks.to_string(),
            busy,
            format!("{:.1}", 100.0 * processor.bubble_rate),
        ]
    };
    let rows: Vec<_> = summary.processors.iter().map(row).collect();
    let kind = |kind: &Kind| {
        let critical = summary
            .critical_path
            .iter()
            .find(|other| other.kind == kind.kind);
        let critical = format!("{:.1}", 1e3 * critical.map_or(0.0, |kind| kind.seconds));
        let share = format!("{:.1}", 100.0 * kind.share);
        vec![
            kind.kind.clone(),
            format!("{:.1}", 1e3 * kind.seconds),
            share,
            critical,
        ]
    };
    let kinds: Vec<_> = summary.kinds.iter().map(kind).collect();
    format!(
        "{}\n\n{}",
        output::table(&["processor", "tasks", "busy ms", "bubbles %"], 1, &rows),
        output::table(&["kind", "ms", "share %", "critical path ms"], 1, &kinds)
    )
}
