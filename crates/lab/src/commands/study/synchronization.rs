//! `triad-lab study synchronization`: measures how long processors wait for each other, blocking or by predicted times.

use anyhow::{Result, ensure};
use serde::Serialize;
use triad_engine::{EngineOptions, SessionOptions};
use triad_hetero::{HeteroOptions, Joined, Wait, WaitUse, measure_joins};

use super::{OutputArguments, Report, title_of};
use triad_console::arguments::{self, ModelArguments};
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::device::DeviceArguments;
use triad_console::processors::Processors;
use triad_console::{output, progress};

/// Matmuls that are cut unless others are given.
const CUTS: [&str; 4] = ["query-key-value", "attention-output", "gate-up", "down"];

/// Measure how long processors wait for each other if matmuls are partitioned: blocking, and by predicted times.
///
/// Prompts of one chunk run with each way of waiting in turns; by default, the columns of every matmul are divided into
/// equal parts. A join is the time from the end of a part to the start of the task that waited for it. A prompt of one
/// token stands for a decode step. With gpu,npu a part begins when the GPU is noticed to be done (measured apart), and
/// ends when the NPU is.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study synchronization --processors cpu=0,cpu=1
  triad-lab study synchronization --processors gpu,npu --npu openvino
  triad-lab study synchronization --processors cpu=0,npu=1 --prefill-chunk 32,64,128,256 --svg synchronization.svg")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Processors: cpu=0,cpu=1 keeps each on its cores
    #[arg(long, value_name = "LIST")]
    processors: Processors,
    #[command(flatten)]
    devices: DeviceArguments,
    /// Tokens of the prompts
    #[arg(long = "prefill-chunk", value_name = "N,...", value_delimiter = ',', default_value = "1,16,64,256", value_parser = arguments::tokens)]
    chunk: Vec<usize>,
    /// Prompts per length and way of waiting
    #[arg(long, value_name = "N", default_value = "10", value_parser = arguments::repeats)]
    repeat: usize,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Serialize)]
struct Found {
    model: String,
    results: Vec<Measured>,
}

/// Results for one length and one way of waiting.
#[derive(Serialize)]
struct Measured {
    tokens: usize,
    wait: Wait,
    /// Total delay in noticing ends, as a share of the prompts' time.
    late_share: f64,
    #[serde(flatten)]
    joined: Joined,
}

impl Measured {
    fn new((tokens, wait): (usize, Wait), prompts: usize, joined: Joined) -> Self {
        let late: f64 = joined.waits.iter().map(|wait| wait.late_seconds).sum();
        Self {
            tokens,
            wait,
            late_share: late / (prompts as f64 * joined.prompt_seconds),
            joined,
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments {
        processors,
        devices,
        chunk,
        repeat,
        ..
    } = arguments;
    ensure!(
        processors.count() > 1 || processors.has_multiplier(),
        "no processor waits for another one: expected more than one in --processors"
    );
    let name = &arguments.model.name.model;
    let model = arguments.model.load_prepared()?;
    let equal = ":1".repeat(processors.count().max(2));
    let equal = CUTS.map(|product| format!("{product}=columns{equal}").parse().expect("a cut"));
    let is_cut = !devices.cuts.is_empty() || devices.partition.is_some();
    let cuts = if is_cut {
        devices.cuts.clone()
    } else {
        equal.to_vec()
    };
    arguments.output.show(name, |cancel| {
        // One engine at a time: the workers of another one would wake up in between.
        let measure = |(tokens, wait): (usize, Wait)| {
            let devices = DeviceArguments {
                wait,
                cuts: cuts.clone(),
                ..devices.clone()
            };
            let session = SessionOptions {
                context: tokens,
                chunk: tokens,
                ..SessionOptions::default()
            };
            let options = HeteroOptions {
                engine: EngineOptions {
                    session,
                    ..EngineOptions::default()
                },
                ..HeteroOptions::default()
            };
            let engine = processors.engine(&devices, &model, options)?;
            let _spinner = progress::spinner(format!("{tokens} tokens, {} waits", wait.name()));
            Ok(Measured::new(
                (tokens, wait),
                *repeat,
                measure_joins(&engine, *repeat, cancel)?,
            ))
        };
        let all = chunk
            .iter()
            .flat_map(|tokens| Wait::ALL.map(|wait| (*tokens, wait)));
        Ok(Found {
            model: title_of(name),
            results: all.map(measure).collect::<Result<_>>()?,
        })
    })
}

impl Report for Found {
    fn text(&self) -> String {
        let row = |Measured {
                       tokens,
                       wait,
                       late_share,
                       joined,
                   }: &Measured| {
            let all = joined
                .waits
                .iter()
                .fold(WaitUse::default(), |all, one| all.plus(*one));
            let each = |seconds: f64| 1e6 * seconds / (all.waits.max(1) as f64);
            let joins =
                [joined.joins.begin_seconds, joined.joins.end_seconds].map(|seconds| 1e6 * seconds);
            let waits = [
                all.late_seconds,
                all.error_seconds,
                all.slept_seconds,
                all.polled_seconds,
                all.blocked_seconds,
            ];
            let numbers = joins
                .into_iter()
                .chain(waits.map(each))
                .map(|number| format!("{number:.1}"));
            let labels = [
                tokens.to_string(),
                wait.name().to_owned(),
                format!("{:.2}", 1e3 * joined.prompt_seconds),
            ];
            let share = format!("{:.1}", 100.0 * late_share);
            labels
                .into_iter()
                .chain(numbers)
                .chain([share])
                .collect::<Vec<_>>()
        };
        let rows: Vec<_> = self.results.iter().map(row).collect();
        let names = [
            "tokens",
            "wait",
            "prompt ms",
            "begin µs",
            "end µs",
            "late µs",
            "error µs",
            "slept µs",
            "polled µs",
            "blocked µs",
            "late %",
        ];
        format!(
            "{}: begin and end are the delays until a part starts on another processor, and until the task that waits for \
             it starts (medians); the others are means per wait; late % is the total delay in noticing ends, relative \
             to the prompt's time\n\n{}",
            self.model,
            output::table(&names, 2, &rows)
        )
    }

    fn figure(&self) -> Figure {
        let chart = |title: &str, axis: &str, value: fn(&Measured) -> f64| {
            let series = |wait: Wait| {
                let here = self.results.iter().filter(|one| one.wait == wait);
                Series::new(
                    wait.name(),
                    Mark::LineWithMarkers,
                    here.map(|one| (one.tokens as f64, value(one))),
                )
            };
            Panel::Chart(Chart {
                title: title.into(),
                x: Axis::logarithmic("tokens (1: like a decode step)"),
                y: Axis::linear(axis).covering(0.0, 1.0),
                series: Wait::ALL.map(series).into(),
                guides: Vec::new(),
            })
        };
        let panels = vec![
            chart("A join", "µs from a part's end to the next task", |one| {
                1e6 * one.joined.joins.end_seconds
            }),
            chart("All joins", "% of the prompt's time", |one| {
                100.0 * one.late_share
            }),
        ];
        Figure {
            title: format!("{}: waiting for another processor", self.model),
            panels,
            columns: 2,
        }
    }
}
