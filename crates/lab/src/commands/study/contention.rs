//! `triad-lab study contention`: simulates the cost of another app for each policy.

use anyhow::Result;
use serde::Serialize;
use triad_lab::simulated::contention::{Cost, costs};

use super::{OutputArguments, Report, SimulationArguments};
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::{arguments, output};

/// Simulate the cost of another app on the CPU or on the NPU, at any moment.
///
/// Simulates a prefill with another app that takes half of a processor for 200 ms, or all of it for 100 ms, starting at
/// many moments of the run. The schedule is not informed: it observes only how long tasks took, as in real time.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study contention
  triad-lab study contention --shape phi-2 --prompt 2048 --moments 100 --svg contention.svg")]
pub struct Arguments {
    #[command(flatten)]
    simulation: SimulationArguments,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value = "1024", value_parser = arguments::tokens)]
    prompt: usize,
    /// Number of moments at which the app starts
    #[arg(long, value_name = "N", default_value = "50", value_parser = arguments::tokens)]
    moments: usize,
    #[command(flatten)]
    output: OutputArguments,
}

/// Output of `study contention --json`.
#[derive(Serialize)]
struct Contention {
    simulated: bool,
    device: String,
    prompt: usize,
    models: Vec<OfModel>,
}

#[derive(Serialize)]
struct OfModel {
    model: String,
    costs: Vec<Cost>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let (models, device) = arguments.simulation.read(&["qwen1.5-1.8b"])?;
    for (_, description) in &models {
        arguments::prompt_tokens(Some(arguments.prompt), description)?;
    }
    arguments.output.show(&device.name, |_| {
        let of_model = |(model, description)| OfModel {
            model,
            costs: costs(&device, &description, arguments.prompt, arguments.moments),
        };
        let models = models.into_iter().map(of_model).collect();
        Ok(Contention {
            simulated: true,
            device: device.name.clone(),
            prompt: arguments.prompt,
            models,
        })
    })
}

/// Describes a disturbance.
fn name(cost: &Cost) -> String {
    let processor = if cost.disturbance.npu { "NPU" } else { "CPU" };
    format!(
        "{processor} -{:.0} % for {:.0} ms",
        100.0 * cost.disturbance.share,
        1e3 * cost.disturbance.seconds
    )
}

impl Report for Contention {
    fn text(&self) -> String {
        let milliseconds = |seconds: f64| format!("{:.1}", 1e3 * seconds);
        let table = |model: &OfModel| {
            let row = |cost: &Cost| {
                let seconds = [cost.alone_seconds, cost.mean(), cost.worst()].map(milliseconds);
                let share = format!("{:+.1}", 100.0 * cost.mean() / cost.alone_seconds);
                [cost.policy.name().to_owned(), name(cost)]
                    .into_iter()
                    .chain(seconds)
                    .chain([share])
                    .collect()
            };
            let rows: Vec<Vec<String>> = model.costs.iter().map(row).collect();
            let names = [
                "policy",
                "another app",
                "alone, ms",
                "later by, mean",
                "at worst",
                "mean, %",
            ];
            format!(
                "simulated: {}, {} tokens on {}\n\n{}",
                model.model,
                self.prompt,
                self.device,
                output::table(&names, 2, &rows)
            )
        };
        self.models
            .iter()
            .map(table)
            .collect::<Vec<_>>()
            .join("\n\n")
    }

    fn figure(&self) -> Figure {
        let panel = |model: &OfModel| {
            let mut policies: Vec<_> = model.costs.iter().map(|cost| cost.policy).collect();
            policies.dedup();
            let mut names: Vec<_> = model.costs.iter().map(name).collect();
            names.truncate(model.costs.len() / policies.len().max(1));
            let series = |label: &String| {
                let of_label = model.costs.iter().filter(|cost| name(cost) == *label);
                Series::by_category(label, Mark::Bars, of_label.map(|cost| 1e3 * cost.mean()))
            };
            Panel::Chart(Chart {
                title: format!("{}, {} tokens", model.model, self.prompt),
                x: Axis::categories("", policies.iter().map(|policy| policy.name())),
                y: Axis::linear("later by (ms, mean over moments)"),
                series: names.iter().map(series).collect(),
                guides: Vec::new(),
            })
        };
        Figure {
            title: format!("Another app, simulated on {}", self.device),
            panels: self.models.iter().map(panel).collect(),
            columns: 1,
        }
    }
}
