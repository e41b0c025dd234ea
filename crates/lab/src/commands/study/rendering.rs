//! `triad-lab study rendering`: measures the frames of an application while prompts run on the same GPU.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use triad_engine::{EngineOptions, SessionOptions, Threads};
use triad_frontend::answer;
use triad_hetero::{HeteroEngine, HeteroOptions, ProcessorOptions};
use triad_lab::measured::rendering::{self, Plan, Rendering};
use triad_plan::processors::{Processor, ProcessorKind};
use triad_processors::gpu::{Frames, Gpu};

use super::{OutputArguments, Report, percent, title_of};
use triad_console::arguments::{self, ModelArguments};
use triad_console::chart::{At, Axis, Chart, Figure, Guide, Mark, Panel, Series};
use triad_console::device;
use triad_console::{output, progress};

/// Measure how many frames an application loses if it renders on the GPU that computes prompts (HeteroLLM, §5.5).
///
/// A job that stands for a frame is submitted 60 times per second while prompts run on the GPU alone, in submissions of
/// each of the lengths of --slice. A frame is in time if it is complete before the next one is due. By default, frames
/// go to the same queue as the prompts. This queue runs its submissions in order, so that a frame waits for everything
/// that was submitted before it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study rendering
  triad-lab study rendering -m w4a16.triad --slice 0,2,4,8 --svg rendering.svg
  triad-lab study rendering --own-queue")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// GPU, as for `triad run`
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Approximate maximum length of a submission in milliseconds, measured in turns; 0: one submission per chunk
    #[arg(long, value_name = "MS,...", value_delimiter = ',', default_value = "0,4", value_parser = device::milliseconds)]
    slice: Vec<f64>,
    /// Tokens of a prompt
    #[arg(long, value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    prompt: usize,
    /// Milliseconds of GPU time per frame
    #[arg(long, value_name = "MS", default_value = "3", value_parser = device::milliseconds)]
    frame: f64,
    /// Frames per second
    #[arg(long, value_name = "N", default_value = "60", value_parser = clap::value_parser!(u32).range(1..=1000))]
    frames_per_second: u32,
    /// Submit frames to their own queue, as another application does; the driver decides which queue runs next
    #[arg(long)]
    own_queue: bool,
    /// Prompts per submission length, without frames and with them
    #[arg(long, value_name = "N", default_value = "3", value_parser = arguments::repeats)]
    repeat: usize,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Serialize)]
struct Found {
    model: String,
    /// The driver's description of the GPU.
    gpu: String,
    prompt_tokens: usize,
    frames_per_second: u32,
    own_queue: bool,
    results: Vec<Measured>,
}

/// Results for one submission length.
#[derive(Serialize)]
struct Measured {
    /// 0 for one submission per chunk.
    slice_milliseconds: f64,
    /// Seconds of a frame on the idle GPU.
    frame_seconds: f64,
    /// Submissions of a prompt without frames.
    submissions: u64,
    #[serde(flatten)]
    rendering: Rendering,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let name = &arguments.model.name.model;
    let model = arguments.model.load()?;
    let context = arguments::prompt_tokens(Some(arguments.prompt), model.description())?;
    let plan = Plan {
        prompt: arguments.prompt,
        repeat: arguments.repeat,
        interval: Duration::from_secs(1) / arguments.frames_per_second,
    };
    arguments.output.show(name, |cancel| {
        let (mut results, mut described) = (Vec::new(), String::new());
        for &slice in &arguments.slice {
            let _spinner = progress::spinner(format!("prompts with frames, slices of {slice} ms"));
            let options = device::gpu_options(arguments.gpu.as_deref(), slice);
            let gpu = Arc::new(Gpu::open(&options)?);
            described = gpu.adapter().to_string();
            let description = Processor {
                kind: ProcessorKind::Gpu,
                ..Processor::cpu("gpu")
            };
            let device = Some(Arc::clone(&gpu) as Arc<_>);
            let processors = vec![ProcessorOptions {
                description,
                threads: Threads::Count(1),
                device,
                multiplier: None,
            }];
            let session = SessionOptions {
                context,
                ..SessionOptions::default()
            };
            let options_of_engine = HeteroOptions {
                engine: EngineOptions {
                    session,
                    ..EngineOptions::default()
                },
                processors,
                ..HeteroOptions::default()
            };
            answer::check_memory(&model, &options_of_engine.engine, 0)?;
            let engine = HeteroEngine::new(&model, options_of_engine, &mut |_, _| {})?;
            let seconds = arguments.frame / 1e3;
            let frames = if arguments.own_queue {
                Frames::in_own_queue(&options, seconds)?
            } else {
                Frames::in_queue_of(&gpu, seconds)?
            };
            let rendering = rendering::run(&engine, &plan, &|| frames.render(), cancel)?;
            let mut session = engine.session();
            let before = gpu.submissions();
            session.prefill(&vec![0; arguments.prompt], cancel, |_| {})?;
            let submissions = gpu.submissions() - before;
            let frame_seconds = frames.seconds();
            results.push(Measured {
                slice_milliseconds: slice,
                frame_seconds,
                submissions,
                rendering,
            });
        }
        Ok(Found {
            model: title_of(name),
            gpu: described,
            prompt_tokens: arguments.prompt,
            frames_per_second: arguments.frames_per_second,
            own_queue: arguments.own_queue,
            results,
        })
    })
}

impl Report for Found {
    fn text(&self) -> String {
        let names = [
            "submission ms",
            "submissions",
            "prompt s",
            "with frames s",
            "frame ms",
            "frames due",
            "in time",
            "frames/s",
            "longest ms",
        ];
        let row = |one: &Measured| {
            let Measured {
                slice_milliseconds: slice,
                frame_seconds,
                submissions,
                rendering,
            } = one;
            let slice = if *slice > 0.0 {
                format!("{slice}")
            } else {
                "a chunk".into()
            };
            vec![
                slice,
                submissions.to_string(),
                format!("{:.3}", rendering.prompt_alone_seconds),
                format!("{:.3}", rendering.prompt_concurrent_seconds),
                format!("{:.2}", 1e3 * frame_seconds),
                rendering.due.to_string(),
                percent(rendering.share(), 0),
                format!(
                    "{:.1}",
                    f64::from(self.frames_per_second) * rendering.share()
                ),
                format!("{:.1}", 1e3 * rendering.longest()),
            ]
        };
        let rows: Vec<_> = self.results.iter().map(row).collect();
        let queue = if self.own_queue {
            "their own queue"
        } else {
            "the queue of the prompts"
        };
        format!(
            "{} on {}, prompts of {} tokens, {} frames per second in {queue}\n\n{}",
            self.model,
            self.gpu,
            self.prompt_tokens,
            self.frames_per_second,
            output::table(&names, 1, &rows)
        )
    }

    fn figure(&self) -> Figure {
        let series = |one: &Measured| {
            let name = match one.slice_milliseconds {
                0.0 => "one submission per chunk".to_owned(),
                slice => format!("submissions of {slice} ms"),
            };
            let points = one
                .rendering
                .frames
                .iter()
                .map(|frame| (frame.at, 1e3 * frame.seconds));
            Series::new(name.as_str(), Mark::Points, points)
        };
        let interval = 1e3 / f64::from(self.frames_per_second);
        let chart = Chart {
            title: String::new(),
            x: Axis::linear("seconds since the prompt began"),
            y: Axis::logarithmic("ms until a frame is complete"),
            series: self.results.iter().map(series).collect(),
            guides: vec![Guide {
                name: "the next frame is due".to_owned(),
                at: At::Y(interval),
            }],
        };
        let title = format!("{} on {}", self.model, self.gpu);
        Figure {
            title,
            panels: vec![Panel::Chart(chart)],
            columns: 1,
        }
    }
}
