//! `triad study policy`: how far each policy is from the optimum.

use anyhow::Result;
use serde::Serialize;
use triad_plan::study::policy::{Case, Grid, Solved, cases, names, solved};

use super::decision::{self, Decisions};
use super::{OutputArguments, PAPERS, Report, SimulationArguments, percent};
use crate::chart::{At, Axis, Chart, Figure, Guide, HeatMap, Mark, Panel, Series};
use crate::output;

/// How far is each policy from the best schedule?
///
/// Simulates prefills of 256, 512, 1024 and 2048 tokens, with an NPU that has half to four times the work of the CPU, and
/// tasks that take what was expected or vary around it; waking up is left out. The gap is how much longer a policy takes
/// than a bound that no schedule is below. Small instances, the first blocks of each model, are solved exactly by branch
/// and bound, so that the gap to the optimum is known, and that of the bound to it. Beside the policies, which decide as
/// they go, are a schedule that was planned ahead, and other forms of the paper's equation 5. How long a decision takes
/// is measured.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad study policy
  triad study policy --shape qwen1.5-1.8b --svg policy.svg
  triad study policy --device phone.toml --json > policy.json")]
pub struct Arguments {
    #[command(flatten)]
    simulation: SimulationArguments,
    /// Branches of a small instance that are looked at, at most
    #[arg(long, value_name = "N", default_value = "200000", value_parser = crate::arguments::count)]
    branches: usize,
    #[command(flatten)]
    output: OutputArguments,
}

/// Blocks and chunks of small instances.
const SMALL: [(usize, usize); 4] = [(1, 2), (1, 3), (2, 2), (1, 4)];

/// What `study policy --json` prints.
#[derive(Serialize)]
struct Policies {
    simulated: bool,
    device: String,
    names: Vec<&'static str>,
    cases: Vec<Case>,
    small: Vec<Solved>,
    decisions: Vec<Decisions>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let (models, device) = arguments.simulation.read(&PAPERS)?;
    arguments.output.show(&device.name, |_| {
        let grid = Grid::usual(models);
        let small = solved(&device, &grid, &SMALL, arguments.branches);
        Ok(Policies {
            simulated: true,
            names: names(),
            cases: cases(&device, &grid),
            small,
            decisions: decision::measure()?,
            device: device.name.clone(),
        })
    })
}

impl Policies {
    /// Gaps of one policy in the cases that `keep` names.
    fn gaps(&self, policy: usize, keep: impl Fn(&Case) -> bool) -> Vec<f64> {
        let mut gaps: Vec<_> =
            self.cases.iter().filter(|case| keep(case)).filter_map(|case| case.gaps().nth(policy)).collect();
        gaps.sort_by(f64::total_cmp);
        gaps
    }

    /// The values of a column of the grid, each once.
    fn values(&self, of: impl Fn(&Case) -> f64) -> Vec<f64> {
        let mut values: Vec<_> = self.cases.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}

impl Report for Policies {
    fn text(&self) -> String {
        let all = |policy| self.gaps(policy, |_| true);
        let row = |(policy, name): (usize, &&str)| {
            let gaps = all(policy);
            let within = gaps.iter().filter(|gap| **gap <= 0.03).count() as f64 / gaps.len().max(1) as f64;
            let of_ratio = |ratio: f64| percent(mean(&self.gaps(policy, |case| case.ratio == ratio)), 2);
            let median = gaps.get(gaps.len() / 2).copied().unwrap_or(0.0);
            let to_optimum = self.small.iter().map(|small| small.seconds[policy] / small.optimum_seconds - 1.0);
            [
                vec![
                    (*name).to_owned(),
                    percent(mean(&gaps), 2),
                    percent(median, 2),
                    percent(largest(gaps), 2),
                    percent(within, 0),
                ],
                self.values(|case| case.ratio).into_iter().map(of_ratio).collect(),
                vec![percent(mean(&to_optimum.clone().collect::<Vec<_>>()), 2), percent(largest(to_optimum), 2)],
            ]
            .concat()
        };
        let rows: Vec<_> = self.names.iter().enumerate().map(row).collect();
        let ratios: Vec<_> = self.values(|case| case.ratio).iter().map(|ratio| format!("NPU x{ratio}")).collect();
        let mut columns = vec!["policy", "mean", "median", "largest", "within 3 %"];
        columns.extend(ratios.iter().map(String::as_str));
        columns.extend(["small mean", "small largest"]);
        let proven = self.small.iter().filter(|small| small.is_proven).count();
        let loose: Vec<_> = self.small.iter().map(|small| small.optimum_seconds / small.bound_seconds - 1.0).collect();
        format!(
            "simulated on {}: longer than the bound, over {} cases (NPU xR: the NPU has R times the CPU's work)\n\n{}\n\n\
             {} small instances, {proven} of them solved to the end: the bound is {} below the optimum on average, {} at most\n\n{}",
            self.device,
            self.cases.len(),
            output::table(&columns, 1, &rows),
            self.small.len(),
            percent(mean(&loose), 2),
            percent(largest(loose), 2),
            decision::text(&self.decisions)
        )
    }

    fn figure(&self) -> Figure {
        let ratios = self.values(|case| case.ratio);
        let series = |(policy, name): (usize, &&'static str)| {
            let point = |ratio: &f64| (*ratio, 100.0 * mean(&self.gaps(policy, |case| case.ratio == *ratio)));
            Series::new(*name, Mark::LineWithMarkers, ratios.iter().map(point))
        };
        let by_ratio = Chart {
            title: "Longer than the bound".into(),
            x: Axis::logarithmic("work of the NPU against that of the CPU"),
            y: Axis::linear("mean gap (%)").covering(0.0, 5.0),
            series: self.names.iter().enumerate().skip(1).take(5).map(series).collect(),
            guides: vec![Guide { name: "3 %".into(), at: At::Y(3.0) }],
        };
        let prompts = self.values(|case| case.prompt as f64);
        let cell = |policy: usize, prompt: f64| 100.0 * mean(&self.gaps(policy, |case| case.prompt as f64 == prompt));
        let by_prompt = HeatMap {
            title: "By prompt".into(),
            x: "tokens of the prompt".into(),
            y: String::new(),
            columns: prompts.iter().map(ToString::to_string).collect(),
            rows: self.names[1..].iter().map(|name| (*name).to_owned()).collect(),
            values: (1..self.names.len())
                .map(|policy| prompts.iter().map(|prompt| cell(policy, *prompt)).collect())
                .collect(),
            value: "mean gap (%)".into(),
        };
        Figure {
            title: format!("Policies, simulated on {}", self.device),
            panels: vec![Panel::Chart(by_ratio), Panel::HeatMap(by_prompt)],
            columns: 2,
        }
    }
}
