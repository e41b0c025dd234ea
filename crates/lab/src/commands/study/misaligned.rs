//! `triad-lab study misaligned`: measures prompts whose length no graph was built for, on a processor with static
//! shapes.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use triad_engine::{Cancel, EngineOptions, Model, SessionOptions};
use triad_frontend::answer;
use triad_hetero::{HeteroEngine, HeteroOptions, ProcessorOptions, ProductCosts};
use triad_kernels::timing::median;
use triad_plan::partition::StandardLengths;
use triad_plan::partition::plans::Plans;
use triad_plan::partition::solve::Restriction;
use triad_plan::processors::ProcessorId;

use super::{OutputArguments, Report, title_of};
use triad_console::arguments::{self, ModelArguments};
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::device::DeviceArguments;
use triad_console::processors::Processors;
use triad_console::{output, progress};

/// Measure prompts whose length no graph was built for, on a processor whose graphs have static shapes (figure 14 of
/// HeteroLLM, on this machine).
///
/// The matmuls of a prompt are computed in several ways: by that processor alone, padded to the next standard length
/// (padding); by it alone, in several standard lengths in sequence (pipe); by it alone, with graphs of the prompt's own
/// length that are built when the prompt arrives (online; the time to build them is included); by all processors as the
/// solver partitions them (tensor), or as one search decides for the whole prompt (auto); and by the CPU alone. The CPU
/// computes float operators in all of them. The ways run in turns, and times are medians.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad profile -m model.triad --processors cpu=0,npu=1 --npu cpu --prefill-chunk 1024
  triad-lab study misaligned -m model.triad --processors cpu=0,npu=1 --npu cpu --svg misaligned.svg")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Processors, as for `triad profile`: cpu=0,npu=1
    #[arg(long, value_name = "LIST")]
    processors: Processors,
    #[command(flatten)]
    devices: DeviceArguments,
    /// Tokens of the prompts
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "135,300,525,600", value_parser = arguments::tokens)]
    prompt: Vec<usize>,
    /// Tokens per chunk for auto; the other ways compute a prompt in one chunk
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    /// Rounds in which all ways run in turns, and prompts of each way per round
    #[arg(long, value_name = "N", default_value = "3", value_parser = arguments::repeats)]
    repeat: usize,
    #[command(flatten)]
    output: OutputArguments,
}

/// A way to compute a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    CpuAlone,
    Padding,
    Pipe,
    Online,
    Tensor,
    Auto,
}

impl Way {
    const ALL: [Self; 6] = [
        Self::CpuAlone,
        Self::Padding,
        Self::Pipe,
        Self::Online,
        Self::Tensor,
        Self::Auto,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::CpuAlone => "CPU alone",
            Self::Padding => "padding",
            Self::Pipe => "pipe",
            Self::Online => "online",
            Self::Tensor => "tensor",
            Self::Auto => "auto",
        }
    }
}

#[derive(Serialize)]
struct Found {
    model: String,
    processors: String,
    results: Vec<Measured>,
}

/// A prompt computed in one of the ways.
#[derive(Serialize)]
struct Measured {
    tokens: usize,
    way: Way,
    /// Median seconds of a prompt; for `online` including the time to build its graphs.
    seconds: f64,
    /// Part of `seconds` in which graphs are built.
    #[serde(skip_serializing_if = "Option::is_none")]
    preparing_seconds: Option<f64>,
    /// The largest difference of a logit from that of the CPU alone, relative to the largest logit.
    difference: f32,
}

/// Everything that engines are created from.
struct Bench<'a> {
    model: &'a Arc<Model>,
    costs: &'a ProductCosts,
    options: &'a [ProcessorOptions],
    npu: ProcessorId,
    /// Arguments for the engine of [`Way::Auto`], which is created as in other commands, and its tokens per chunk.
    processors: &'a Processors,
    devices: &'a DeviceArguments,
    chunk: usize,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments {
        processors,
        devices,
        prompt,
        chunk,
        repeat,
        ..
    } = arguments;
    let name = &arguments.model.name.model;
    let model = arguments.model.load_prepared()?;
    let costs = triad_console::partition::product_costs(
        model.package(),
        &processors.list_key(devices),
        &processors.to_string(),
    )?;
    let is_static = |one: &triad_hetero::MeasuredProcessor| one.lengths.is_some();
    let npu = costs.processors.iter().position(is_static);
    let npu = npu.context(
        "none of --processors has static shapes: expected one such as npu=1 with --npu cpu",
    )?;
    ensure!(
        costs.joins.float.index() != npu,
        "floats are computed by the processor with static shapes: expected a CPU in --processors, too"
    );
    arguments.output.show(name, |cancel| {
        let (options, _opened) = processors.open(devices, &model, false)?;
        let devices = &DeviceArguments {
            partition: Some(Restriction::Auto),
            ..devices.clone()
        };
        let (npu, chunk) = (ProcessorId::new(npu), *chunk);
        let bench = Bench {
            model: &model,
            costs: &costs,
            options: &options,
            npu,
            processors,
            devices,
            chunk,
        };
        let mut results = Vec::new();
        for tokens in prompt {
            results.extend(bench.measure(*tokens, *repeat, cancel)?);
        }
        let processors = processors.names(devices).join(", ");
        Ok(Found {
            model: title_of(name),
            processors,
            results,
        })
    })
}

impl Bench<'_> {
    /// Measures all ways in turns.
    fn measure(&self, tokens: usize, repeat: usize, cancel: &Cancel) -> Result<Vec<Measured>> {
        let vocab = self.model.description().vocab;
        let prompt: Vec<_> = (0..tokens)
            .map(|index| (index.wrapping_mul(7919) % vocab) as u32)
            .collect();
        let mut times = Way::ALL.map(|_| (Vec::new(), Vec::new()));
        let mut logits: Vec<Vec<f32>> = Vec::new();
        for round in 0..repeat {
            for (way, times) in Way::ALL.into_iter().zip(&mut times) {
                let _spinner = progress::spinner(format!(
                    "{tokens} tokens, {}, round {}",
                    way.name(),
                    round + 1
                ));
                // One engine at a time: the workers of another one would wake up in between.
                let start = Instant::now();
                let engine = self.engine(way, tokens)?;
                times.1.push(start.elapsed().as_secs_f64());
                let mut session = engine.session();
                for run in 0..=repeat {
                    session.truncate(0);
                    let start = Instant::now();
                    session.prefill(&prompt, cancel, |_| {})?;
                    // The first prompt reads weights from disk, and some ways make its plan.
                    if run > 0 {
                        times.0.push(start.elapsed().as_secs_f64());
                    }
                }
                if round == 0 {
                    logits.push(session.logits().to_vec());
                }
            }
        }
        let largest = logits[0]
            .iter()
            .fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
        let all = Way::ALL.into_iter().zip(times).zip(&logits).map(
            |((way, (seconds, preparing)), these)| {
                let preparing_seconds = (way == Way::Online).then(|| median(&preparing));
                let seconds = median(&seconds) + preparing_seconds.unwrap_or(0.0);
                let differences = these
                    .iter()
                    .zip(&logits[0])
                    .map(|(logit, other)| (logit - other).abs());
                let difference = differences.fold(0.0, f32::max) / largest;
                Measured {
                    tokens,
                    way,
                    seconds,
                    preparing_seconds,
                    difference,
                }
            },
        );
        Ok(all.collect())
    }

    fn engine(&self, way: Way, tokens: usize) -> Result<HeteroEngine> {
        let (description, costs) = (self.model.description(), self.costs);
        let alone = |lengths| costs.plans_alone(description, tokens, self.npu, lengths);
        let plans: Option<Plans> = match way {
            Way::Auto => {
                let context = tokens.max(self.chunk);
                let session = SessionOptions {
                    context,
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
                return self.processors.engine(self.devices, self.model, options);
            }
            Way::CpuAlone => None,
            Way::Padding => {
                let lengths = StandardLengths::default();
                let next = lengths
                    .lengths()
                    .iter()
                    .copied()
                    .find(|length| *length >= tokens);
                let next = next.with_context(|| {
                    format!("{tokens} tokens are more than the longest standard length")
                })?;
                Some(alone(Some(StandardLengths::new(vec![next])?))?)
            }
            Way::Pipe => Some(alone(Some(StandardLengths::default()))?),
            Way::Online => Some(alone(None)?),
            Way::Tensor => Some(costs.plans(description, tokens, Restriction::Tensor)?),
        };
        let processors = match way {
            Way::CpuAlone => vec![self.options[costs.joins.float.index()].clone()],
            _ => self.options.to_vec(),
        };
        let session = SessionOptions {
            context: tokens,
            chunk: tokens,
            ..SessionOptions::default()
        };
        let engine = EngineOptions {
            session,
            ..EngineOptions::default()
        };
        answer::check_memory(self.model, &engine, 0)?;
        let options = HeteroOptions {
            engine,
            processors,
            plans,
            ..HeteroOptions::default()
        };
        Ok(HeteroEngine::new(self.model, options, &mut |_, _| {})?)
    }
}

impl Report for Found {
    fn text(&self) -> String {
        let row = |one: &Measured| {
            let alone = self
                .results
                .iter()
                .find(|other| other.tokens == one.tokens && other.way == Way::CpuAlone);
            let times = alone.map_or(1.0, |alone| alone.seconds / one.seconds);
            let milliseconds = |seconds: f64| format!("{:.1}", 1e3 * seconds);
            vec![
                one.tokens.to_string(),
                one.way.name().to_owned(),
                milliseconds(one.seconds),
                one.preparing_seconds.map_or_else(String::new, milliseconds),
                format!("{times:.2}"),
                format!("{:.1e}", one.difference),
            ]
        };
        let rows: Vec<_> = self.results.iter().map(row).collect();
        let names = [
            "tokens",
            "way",
            "ms",
            "building graphs",
            "times as fast as the CPU",
            "logits differ by",
        ];
        format!(
            "{} on {}\n\n{}",
            self.model,
            self.processors,
            output::table(&names, 2, &rows)
        )
    }

    fn figure(&self) -> Figure {
        let mut lengths: Vec<_> = self.results.iter().map(|one| one.tokens).collect();
        lengths.dedup();
        let series = |way: Way| {
            let of_length = |tokens: &usize| {
                let found = self
                    .results
                    .iter()
                    .find(|one| one.tokens == *tokens && one.way == way);
                found.map_or(f64::NAN, |one| *tokens as f64 / one.seconds)
            };
            Series::by_category(way.name(), Mark::Bars, lengths.iter().map(of_length))
        };
        let chart = Chart {
            title: String::new(),
            x: Axis::categories("tokens of the prompt", lengths.iter().map(usize::to_string)),
            y: Axis::linear("tokens per second"),
            series: Way::ALL.map(series).into(),
            guides: Vec::new(),
        };
        let title = format!("{}: prompts of non-standard lengths", self.model);
        Figure {
            title,
            panels: vec![Panel::Chart(chart)],
            columns: 1,
        }
    }
}
