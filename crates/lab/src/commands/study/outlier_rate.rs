//! `triad-lab study outlier-rate`: finds the number of outliers from which splitting is slower than one processor.

use anyhow::Result;
use serde::Serialize;
use triad_lab::simulated::outlier_rate::{Rates, rates};
use triad_plan::schedule::Policy;

use super::{OutputArguments, Report, SimulationArguments, percent};
use triad_console::chart::{At, Axis, Chart, Figure, Guide, Mark, Panel, Series};
use triad_console::{arguments, output, processors};

/// Find the share of outliers from which splitting is slower than one processor that can compute everything.
///
/// Simulates prefills in which every linear input has more and more outlier channels (the paper counts 0.1 to 0.3 %),
/// with all shadows and with 15 % of them. They are compared with the CPU alone and the GPU alone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study outlier-rate
  triad-lab study outlier-rate --shape phi-2 --prompt 512 --svg outlier-rate.svg")]
pub struct Arguments {
    #[command(flatten)]
    simulation: SimulationArguments,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value = "1024", value_parser = arguments::tokens)]
    prompt: usize,
    /// Scheduling policy
    #[arg(long, value_name = "NAME", default_value = Policy::default().name(), value_parser = processors::policy)]
    policy: Policy,
    #[command(flatten)]
    output: OutputArguments,
}

/// Output of `study outlier-rate --json`.
#[derive(Serialize)]
struct OutlierRate {
    simulated: bool,
    device: String,
    prompt: usize,
    policy: Policy,
    models: Vec<OfModel>,
}

#[derive(Serialize)]
struct OfModel {
    model: String,
    #[serde(flatten)]
    rates: Rates,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let (models, device) = arguments.simulation.read(&["qwen1.5-1.8b"])?;
    for (_, description) in &models {
        arguments::prompt_tokens(Some(arguments.prompt), description)?;
    }
    arguments.output.show(&device.name, |_| {
        let of_model = |(model, description)| OfModel {
            model,
            rates: rates(&device, &description, arguments.prompt, arguments.policy),
        };
        Ok(OutlierRate {
            simulated: true,
            device: device.name.clone(),
            prompt: arguments.prompt,
            policy: arguments.policy,
            models: models.into_iter().map(of_model).collect(),
        })
    })
}

impl Report for OutlierRate {
    fn text(&self) -> String {
        let milliseconds = |seconds: f64| format!("{:.0}", 1e3 * seconds);
        let crossing = |share: Option<f64>| {
            share.map_or_else(
                || "never".into(),
                |share| format!("from {}", percent(share, 2)),
            )
        };
        let table = |OfModel { model, rates }: &OfModel| {
            let rows: Vec<_> = rates
                .points
                .iter()
                .map(|point| {
                    vec![
                        percent(point.share, 1),
                        milliseconds(point.pruned_seconds),
                        milliseconds(point.kept_seconds),
                    ]
                })
                .collect();
            let gpu = rates.gpu_seconds.map_or_else(String::new, |seconds| {
                let slower = crossing(rates.slower_than_gpu);
                format!(
                    "\nthe GPU alone: {} ms; with all shadows, splitting is slower than that {slower}",
                    milliseconds(seconds)
                )
            });
            format!(
                "simulated: {model}, {} tokens on {}, {}\n\n{}\n\nthe CPU alone: {} ms; with all shadows, splitting is slower than that {}{gpu}",
                self.prompt,
                self.device,
                self.policy.name(),
                output::table(
                    &["outlier channels", "15 % of shadows, ms", "all shadows, ms"],
                    0,
                    &rows
                ),
                milliseconds(rates.cpu_seconds),
                crossing(rates.slower_than_cpu)
            )
        };
        self.models
            .iter()
            .map(table)
            .collect::<Vec<_>>()
            .join("\n\n")
    }

    fn figure(&self) -> Figure {
        let panel = |OfModel { model, rates }: &OfModel| {
            let points = || rates.points.iter().filter(|point| point.share > 0.0);
            let guide = |name: &str, seconds: f64| Guide {
                name: name.into(),
                at: At::Y(1e3 * seconds),
            };
            Panel::Chart(Chart {
                title: format!("{model}, {} tokens", self.prompt),
                x: Axis::logarithmic("channels with outliers (%)"),
                y: Axis::logarithmic("latency (ms)"),
                series: vec![
                    Series::new(
                        "all shadows",
                        Mark::LineWithMarkers,
                        points().map(|point| (100.0 * point.share, 1e3 * point.kept_seconds)),
                    ),
                    Series::new(
                        "15 % of the shadows",
                        Mark::LineWithMarkers,
                        points().map(|point| (100.0 * point.share, 1e3 * point.pruned_seconds)),
                    ),
                ],
                guides: [guide("CPU alone", rates.cpu_seconds)]
                    .into_iter()
                    .chain(rates.gpu_seconds.map(|seconds| guide("GPU alone", seconds)))
                    .collect(),
            })
        };
        Figure {
            title: format!("Outliers, simulated on {}", self.device),
            panels: self.models.iter().map(panel).collect(),
            columns: 1,
        }
    }
}
