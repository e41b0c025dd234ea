//! `triad-lab study ablation`: simulates each technique on and off, in all combinations.

use anyhow::Result;
use serde::Serialize;
use triad_lab::simulated::ablation::{Combination, NAMES, combinations, factors};
use triad_plan::schedule::Policy;

use super::{OutputArguments, Report, SimulationArguments};
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::{arguments, output, processors};

/// Simulate what each technique gains by itself, and in addition to the others.
///
/// Simulates a prefill with and without chunk-sharing graphs, shadow outlier execution and out-of-order execution, in
/// all eight combinations. Without chunk-sharing, a graph is built for each prompt. Without shadows, activations have
/// one scale per group.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study ablation
  triad-lab study ablation --shape gemma-2b --prompt 1024 --policy paper --svg ablation.svg")]
pub struct Arguments {
    #[command(flatten)]
    simulation: SimulationArguments,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value = "512", value_parser = arguments::tokens)]
    prompt: usize,
    /// Policy of out-of-order execution
    #[arg(long, value_name = "NAME", default_value = Policy::default().name(), value_parser = processors::policy)]
    policy: Policy,
    #[command(flatten)]
    output: OutputArguments,
}

/// Output of `study ablation --json`.
#[derive(Serialize)]
struct Ablation {
    simulated: bool,
    device: String,
    prompt: usize,
    policy: Policy,
    models: Vec<OfModel>,
}

#[derive(Serialize)]
struct OfModel {
    model: String,
    combinations: Vec<Combination>,
    /// For each technique: time without it / time with it, for each combination of the others.
    factors: [Vec<f64>; 3],
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let (models, device) =
        arguments
            .simulation
            .read(&["qwen1.5-1.8b", "gemma-2b", "llama-2-7b"])?;
    for (_, description) in &models {
        arguments::prompt_tokens(Some(arguments.prompt), description)?;
    }
    arguments.output.show(&device.name, |_| {
        let of_model = |(model, description)| {
            let combinations =
                combinations(&device, &description, arguments.prompt, arguments.policy);
            let factors = [0, 1, 2].map(|technique| factors(&combinations, technique));
            OfModel {
                model,
                combinations,
                factors,
            }
        };
        Ok(Ablation {
            simulated: true,
            device: device.name.clone(),
            prompt: arguments.prompt,
            policy: arguments.policy,
            models: models.into_iter().map(of_model).collect(),
        })
    })
}

/// Names the techniques of a combination.
fn name(combination: &Combination) -> String {
    let Combination {
        chunk_sharing,
        shadow,
        out_of_order,
        ..
    } = *combination;
    let has = NAMES.into_iter().zip([chunk_sharing, shadow, out_of_order]);
    let names: Vec<_> = has.filter(|(_, has)| *has).map(|(name, _)| name).collect();
    if names.is_empty() {
        "none".into()
    } else {
        names.join(" + ")
    }
}

impl Report for Ablation {
    fn text(&self) -> String {
        let mut columns = vec!["techniques".to_owned()];
        columns.extend(
            self.models
                .iter()
                .flat_map(|model| [format!("{}, s", model.model), "J".into()]),
        );
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let row = |place: usize| {
            let of = |model: &OfModel| model.combinations[place];
            let numbers = self
                .models
                .iter()
                .map(of)
                .flat_map(|of| [format!("{:.2}", of.seconds), format!("{:.2}", of.joules)]);
            let label = self
                .models
                .first()
                .map_or_else(String::new, |model| name(&of(model)));
            [label].into_iter().chain(numbers).collect()
        };
        let rows: Vec<Vec<String>> = (0..8).map(row).collect();
        let factor = |(technique, name): (usize, &str)| -> Vec<String> {
            let range = |model: &OfModel| {
                let factors = &model.factors[technique];
                let all = factors
                    .iter()
                    .map(|factor| format!("{factor:.2}"))
                    .collect::<Vec<_>>();
                all.join(" ")
            };
            [name.to_owned()]
                .into_iter()
                .chain(self.models.iter().map(range))
                .collect()
        };
        let factors: Vec<_> = NAMES.into_iter().enumerate().map(factor).collect();
        let models = self.models.iter().map(|model| model.model.as_str());
        let header: Vec<_> = ["times faster by"].into_iter().chain(models).collect();
        format!(
            "simulated: {} tokens on {}, {}\n\n{}\n\nfor each combination of the other two, from none to both:\n\n{}",
            self.prompt,
            self.device,
            self.policy.name(),
            output::table(&columns, 1, &rows),
            output::table(&header, 1, &factors)
        )
    }

    fn figure(&self) -> Figure {
        let labels: Vec<_> = self
            .models
            .first()
            .map(|model| model.combinations.iter().map(name).collect())
            .unwrap_or_default();
        let series = |model: &OfModel| {
            Series::by_category(
                &model.model,
                Mark::Bars,
                model
                    .combinations
                    .iter()
                    .map(|combination| combination.seconds),
            )
        };
        let chart = Chart {
            title: format!("{} tokens, simulated on {}", self.prompt, self.device),
            x: Axis::categories("", labels),
            y: Axis::logarithmic("seconds"),
            series: self.models.iter().map(series).collect(),
            guides: Vec::new(),
        };
        Figure {
            title: "Techniques in all combinations".into(),
            panels: vec![Panel::Chart(chart)],
            columns: 1,
        }
    }
}
