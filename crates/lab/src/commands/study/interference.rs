//! `triad-lab study interference`: measures what other programs cost a prompt on this machine, for each policy.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use triad_engine::{EngineOptions, SessionOptions};
use triad_frontend::energy::EnergyMeter;
use triad_hetero::HeteroOptions;
use triad_lab::measured::interference::{self, Disturbance, Kind, Outcome, Plan};
use triad_plan::schedule::Policy;

use super::{OutputArguments, Report, title_of};
use triad_console::arguments::{self, ModelArguments};
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::processors::{self, ProcessorArguments};
use triad_console::{output, progress};

/// Measure the cost of other programs for a prompt on several processors, for each policy.
///
/// A thread stands for another program. It computes all the time, half the time or in bursts on the core of each
/// processor, or reads memory all the time on a core that no processor uses (or, if there is none, on the first
/// processor's core). With --freeze, the processes of devices (such as Hexagon's emulator) are stopped for a second.
/// For each policy, prompts run in turns without and with each of these programs. The CPU time of the other program is
/// measured: a prompt whose delay is shorter had idle time to spare. If the system reports
/// energy, it is reported, too (RAPL, which on Linux only root can read, or a battery that is discharged).
///
/// `triad-lab study contention` simulates the same for a phone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study interference --processors cpu=0,npu=1
  triad-lab study interference --processors cpu=0,npu=1 --policy planned,fifo --prompt 2048 --svg interference.svg
  triad-lab study interference --processors cpu=0,npu --npu hexagon --freeze --prompt 256 --prefill-chunk 64 --repeat 1")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value = "1024", value_parser = arguments::tokens)]
    prompt: usize,
    /// Tokens of the prompt per chunk
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    /// Scheduling policies to compare, in turns [default: all]
    #[arg(long, value_name = "P,...", value_delimiter = ',', value_parser = processors::policy)]
    policy: Vec<Policy>,
    /// Only stop the processes of devices for a second
    #[arg(long)]
    freeze: bool,
    /// Prompts per policy without other programs, and with each of them
    #[arg(long, value_name = "N", default_value = "5", value_parser = arguments::repeats)]
    repeat: usize,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    several: ProcessorArguments,
}

/// Output of `study interference --json`.
#[derive(Serialize)]
struct Found {
    model: String,
    processors: Vec<String>,
    prompt: usize,
    outcomes: Vec<Outcome>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments {
        several,
        prompt,
        chunk,
        repeat,
        ..
    } = arguments;
    several.check(false)?;
    let processors = several
        .processors
        .as_ref()
        .filter(|processors| processors.count() > 1);
    let processors =
        processors.context("no schedule of one processor: expected --processors with several")?;
    let disturbances = if arguments.freeze {
        vec![Disturbance {
            kind: Kind::Frozen,
            next_to: None,
            core: None,
        }]
    } else {
        disturbances(&processors.cores())?
    };
    let name = &arguments.model.name.model;
    let model = arguments.model.load_prepared()?;
    let context = arguments::prompt_tokens(Some(*prompt), model.description())?;
    let session = SessionOptions {
        context,
        chunk: *chunk,
        ..SessionOptions::default()
    };
    let options = HeteroOptions {
        engine: EngineOptions {
            session,
            ..EngineOptions::default()
        },
        chunks_in_flight: several.chunks_in_flight,
        ..HeteroOptions::default()
    };
    let engine = processors.engine(&several.devices, &model, options)?;
    let policies = if arguments.policy.is_empty() {
        Policy::ALL.to_vec()
    } else {
        arguments.policy.clone()
    };
    let plan = Plan {
        prompt: context,
        repeat: *repeat,
        policies,
        disturbances,
    };
    arguments.output.show(name, |cancel| {
        let bar = progress::prompts("with other programs", 0);
        let counters = EnergyMeter::find();
        let joules = || counters.as_ref()?.joules();
        let outcomes = interference::run(&engine, &plan, cancel, &joules, |done, all| {
            bar.set_to(done, all);
        })?;
        let processors = processors.names(&several.devices);
        Ok(Found {
            model: title_of(name),
            processors,
            prompt: context,
            outcomes,
        })
    })
}

/// Returns other programs on the cores of processors, and one that reads memory.
fn disturbances(cores: &[(String, Option<usize>)]) -> Result<Vec<Disturbance>> {
    let known = |(name, core): &(String, Option<usize>)| {
        core.map(|core| (name.clone(), core)).with_context(|| {
            format!("no core of the {name} is known: expected --processors with cores, such as cpu=0,npu=1")
        })
    };
    let cores: Vec<_> = cores.iter().map(known).collect::<Result<_>>()?;
    ensure!(!cores.is_empty(), "expected processors");
    let all = triad_engine::Cores::of_this_thread();
    let free = all.and_then(|all| {
        all.iter()
            .find(|core| cores.iter().all(|(_, taken)| taken != core))
    });
    let computes = cores.iter().flat_map(|(name, core)| {
        [Kind::Busy, Kind::Half, Kind::Bursts].map(|kind| Disturbance {
            kind,
            next_to: Some(name.clone()),
            core: Some(*core),
        })
    });
    let memory = match free {
        Some(core) => Disturbance {
            kind: Kind::Memory,
            next_to: None,
            core: Some(core),
        },
        None => Disturbance {
            kind: Kind::Memory,
            next_to: Some(cores[0].0.clone()),
            core: Some(cores[0].1),
        },
    };
    Ok(computes.chain([memory]).collect())
}

/// Describes a disturbance.
fn name(Disturbance { kind, next_to, .. }: &Disturbance) -> String {
    let what = match kind {
        Kind::Busy => "computes",
        Kind::Half => "computes half the time",
        Kind::Bursts => "computes 100 of 400 ms",
        Kind::Memory => "reads memory",
        Kind::Frozen => return "processes of devices stopped".into(),
    };
    match next_to {
        Some(processor) => format!("{what}, on the core of the {processor}"),
        None => format!("{what}, on its own core"),
    }
}

impl Report for Found {
    fn text(&self) -> String {
        let has_joules = self.outcomes.iter().any(|outcome| outcome.joules.is_some());
        let row = |outcome: &Outcome| {
            let seconds = [
                outcome.alone_seconds,
                outcome.concurrent_seconds,
                outcome.delay(),
                outcome.taken_seconds,
            ];
            let seconds = seconds.map(|seconds| format!("{:.0}", 1e3 * seconds));
            let labels = vec![name(&outcome.disturbance), outcome.policy.name().to_owned()];
            let joules = outcome.joules.map_or(["-".into(), "-".into()], |both| {
                both.map(|joules| format!("{joules:.1}"))
            });
            let joules = if has_joules {
                joules.to_vec()
            } else {
                Vec::new()
            };
            [
                labels,
                seconds.to_vec(),
                vec![format!("{:.2}", outcome.delay_for_each())],
                joules,
            ]
            .concat()
        };
        let mut outcomes: Vec<_> = self.outcomes.iter().collect();
        outcomes.sort_by_key(|outcome| {
            (
                outcome.disturbance.core.is_none(),
                name(&outcome.disturbance),
            )
        });
        let rows: Vec<_> = outcomes.into_iter().map(row).collect();
        let names = [
            &[
                "another program",
                "policy",
                "alone ms",
                "disturbed ms",
                "later ms",
                "taken ms",
                "later per s taken",
            ][..],
            if has_joules {
                &["alone J", "disturbed J"]
            } else {
                &[]
            },
        ]
        .concat();
        format!(
            "{}, {} tokens on {}, medians\n\n{}",
            self.model,
            self.prompt,
            self.processors.join(" and "),
            output::table(&names, 2, &rows)
        )
    }

    fn figure(&self) -> Figure {
        let mut policies: Vec<_> = self.outcomes.iter().map(|outcome| outcome.policy).collect();
        policies.dedup();
        let of_first = self
            .outcomes
            .iter()
            .filter(|outcome| Some(&outcome.policy) == policies.first());
        let series = of_first.map(|first| {
            let label = name(&first.disturbance);
            let of_label = self
                .outcomes
                .iter()
                .filter(|outcome| name(&outcome.disturbance) == label);
            Series::by_category(
                label.clone(),
                Mark::Bars,
                of_label
                    .map(|outcome| 1e3 * outcome.delay())
                    .collect::<Vec<_>>(),
            )
        });
        let chart = Chart {
            title: String::new(),
            x: Axis::categories("", policies.iter().map(|policy| policy.name())),
            y: Axis::linear("later by (ms, median)"),
            series: series.collect(),
            guides: Vec::new(),
        };
        let title = format!(
            "{}, {} tokens: what other programs cost",
            self.model, self.prompt
        );
        Figure {
            title,
            panels: vec![Panel::Chart(chart)],
            columns: 1,
        }
    }
}
