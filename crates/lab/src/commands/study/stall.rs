//! `triad-lab study stall`: measures conversations while a long prompt arrives.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use triad_engine::{EngineOptions, SessionOptions};
use triad_frontend::answer;
use triad_hetero::HeteroOptions;
use triad_kernels::attention::PAGE;
use triad_lab::measured::stall::{self, Distribution, Plan, Stall};

use super::{OutputArguments, Report, title_of};
use triad_console::arguments::{self, ModelArguments};
use triad_console::chart::{At, Axis, Chart, Figure, Guide, Mark, Panel, Series};
use triad_console::processors::ProcessorArguments;
use triad_console::{output, progress};

/// Copies of the prompt's pages in addition to those of the sequences: one for the prompt alone, one for the prompt
/// with sequences.
const PROMPTS_AT_ONCE: usize = 2;

/// Measure how long conversations wait for their next token while a long prompt is computed.
///
/// Some sequences decode, a prompt arrives and is computed concurrently, and the sequences go on. A sequence waits for
/// a step no longer than --max-stall plus the step itself, unless one part of the prompt takes longer.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study stall --svg stall.svg
  triad-lab study stall --sequences 4 --prompt 4096 --max-stall 100
  triad-lab study stall --processors cpu=0,npu=1")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Sequences that decode
    #[arg(long, value_name = "N", default_value = "4", value_parser = arguments::sequences)]
    sequences: usize,
    /// Tokens of the prompt that arrives
    #[arg(long, value_name = "N", default_value = "4096", value_parser = arguments::tokens)]
    prompt: usize,
    /// Maximum milliseconds that a sequence waits for a step during a prompt [default: the time of two chunks]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    max_stall: Option<u64>,
    /// Tokens of the prompt per chunk
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    several: ProcessorArguments,
}

#[derive(Serialize)]
struct Found {
    model: String,
    max_stall_milliseconds: Option<u64>,
    #[serde(flatten)]
    stall: Stall,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    arguments.several.check(false)?;
    let name = &arguments.model.name.model;
    let model = arguments.model.load_prepared()?;
    let plan = Plan {
        sequences: arguments.sequences,
        context: 64,
        prompt: arguments.prompt,
        around: Duration::from_secs(2),
    };
    let longest = model.description().context;
    let context = arguments::prompt_tokens(Some(arguments.prompt), model.description())?
        .saturating_add(1)
        .max(4096)
        .min(longest);
    let session = SessionOptions {
        context,
        chunk: arguments.chunk,
        ..SessionOptions::default()
    };
    let page = model
        .description()
        .kv_bytes_per_token(|head_dim| session.kv_format.bytes(head_dim));
    let options = EngineOptions {
        max_stall: arguments.max_stall.map(Duration::from_millis),
        kv_memory: Some(
            (arguments.sequences + PROMPTS_AT_ONCE) * context.next_multiple_of(PAGE) * page,
        ),
        session,
        ..EngineOptions::default()
    };
    let engine = match &arguments.several.processors {
        Some(processors) => {
            let options = HeteroOptions {
                engine: options,
                chunks_in_flight: arguments.several.chunks_in_flight,
                ..HeteroOptions::default()
            };
            let engine = processors.engine(&arguments.several.devices, &model, options)?;
            engine.engine().clone()
        }
        None => answer::engine(&model, &options)?,
    };
    arguments.output.show(name, |cancel| {
        let _spinner = progress::spinner(format!(
            "decoding {} sequences during a prompt",
            arguments.sequences
        ));
        let stall = stall::run(&engine, &plan, cancel)?;
        Ok(Found {
            model: title_of(name),
            max_stall_milliseconds: arguments.max_stall,
            stall,
        })
    })
}

impl Report for Found {
    fn text(&self) -> String {
        let Stall {
            sequences,
            prompt,
            prefill_alone_seconds: alone,
            prefill_concurrent_seconds: loaded,
            ..
        } = &self.stall;
        let names = [
            "between tokens, ms",
            "tokens",
            "median",
            "90 %",
            "99 %",
            "longest",
        ];
        let row = |(name, of): (&str, &Distribution)| {
            let times =
                [of.median, of.p90, of.p99, of.max].map(|seconds| format!("{:.1}", 1e3 * seconds));
            [vec![name.to_owned(), of.count.to_string()], times.to_vec()].concat()
        };
        let rows: Vec<_> = ["before the prompt", "during it", "after it"]
            .into_iter()
            .zip(&self.stall.gaps)
            .map(row)
            .collect();
        let rate = |seconds: f64| *prompt as f64 / seconds;
        format!(
            "{}, {sequences} sequences, a prompt of {prompt} tokens\n\n{}\nprefill alone {:.1} tokens/s, with sequences {:.1} ({:.1} % more time)",
            self.model,
            output::table(&names, 1, &rows),
            rate(*alone),
            rate(*loaded),
            100.0 * (loaded / alone - 1.0)
        )
    }

    fn figure(&self) -> Figure {
        let Stall {
            sequences,
            prompt,
            prompt_at: [from, until],
            all,
            ..
        } = &self.stall;
        let points = all.iter().map(|gap| (gap.at, 1e3 * gap.seconds));
        let guide = |name: &str, at: f64| Guide {
            name: name.to_owned(),
            at: At::X(at),
        };
        let chart = Chart {
            title: String::new(),
            x: Axis::linear("seconds"),
            y: Axis::logarithmic("ms since the previous token"),
            series: vec![Series::new("a token of a response", Mark::Points, points)],
            guides: vec![
                guide("the prompt arrives", *from),
                guide("its first token", *until),
            ],
        };
        let title = format!(
            "{}: {sequences} conversations, a prompt of {prompt} tokens arrives",
            self.model
        );
        Figure {
            title,
            panels: vec![Panel::Chart(chart)],
            columns: 1,
        }
    }
}
