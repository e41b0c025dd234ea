//! `triad-lab study policy`: measures how far each policy is from the optimum.

use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use triad_lab::simulated::policy::{Case, Grid, Solved, cases, names, solved};
use triad_plan::planner::{Effort, plan};
use triad_plan::schedule::{Dag, Policy};

use super::decision::{self, Decisions};
use super::{OutputArguments, PAPERS, Report, SimulationArguments, percent};
use triad_console::chart::{At, Axis, Chart, Figure, Guide, HeatMap, Mark, Panel, Series};
use triad_console::output;

/// Compare each policy with the best schedule.
///
/// Simulates prefills of 256, 512, 1024 and 2048 tokens. The NPU has half to four times the work of the CPU, and tasks
/// take the expected time or vary around it; wake-up time is omitted. The gap is how much longer a policy takes than a
/// lower bound for all schedules. Prompts of two chunks are solved exactly with the real task times, so that their gap
/// is to the optimum. So are small instances, the first layers of each model, which also show how far the bound is
/// below the optimum. For comparison there are other forms of the paper's equation 5, and the schedules of MLLM and
/// PowerInfer-2 on the same tasks and costs; the engine does not run these. The time of a plan of the policy `planned`
/// and the time of a decision are measured.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study policy
  triad-lab study policy --shape qwen1.5-1.8b --svg policy.svg
  triad-lab study policy --device phone.toml --json > policy.json")]
pub struct Arguments {
    #[command(flatten)]
    simulation: SimulationArguments,
    /// Maximum number of partial schedules to examine per small instance
    #[arg(long = "partials", value_name = "N", default_value = "200000", value_parser = triad_console::arguments::count)]
    most: usize,
    /// Seed for the variation of task times; each case has its own draw
    #[arg(long, value_name = "N", default_value = "7")]
    seed: u64,
    #[command(flatten)]
    output: OutputArguments,
}

/// Layers and chunks of small instances.
const SMALL: [(usize, usize); 5] = [(1, 2), (1, 3), (2, 2), (1, 4), (4, 2)];

/// Output of `study policy --json`.
#[derive(Serialize)]
struct Policies {
    simulated: bool,
    seed: u64,
    device: String,
    names: Vec<&'static str>,
    /// Results per policy over all cases.
    overall: Vec<Overall>,
    /// Results per policy over the cases of more than one chunk.
    over_chunks: Vec<OverChunks>,
    /// Measured times of plans.
    planning: Planning,
    cases: Vec<Case>,
    small: Vec<Solved>,
    decisions: Vec<Decisions>,
}

/// Gaps of one policy over all cases, to the optimum where it is known and to the bound elsewhere.
#[derive(Serialize)]
struct Overall {
    name: &'static str,
    mean_gap: f64,
    median_gap: f64,
    largest_gap: f64,
    within_3_percent: f64,
    /// One entry per ratio of the NPU's work to the CPU's.
    ratios: Vec<OfRatio>,
    /// Mean and largest gap to the optimum over the small instances.
    small_mean_gap: f64,
    small_largest_gap: f64,
}

/// Mean gap over the cases with one ratio.
#[derive(Serialize)]
struct OfRatio {
    ratio: f64,
    mean_gap: f64,
}

/// Results of one policy for more than one chunk.
#[derive(Serialize)]
struct OverChunks {
    name: &'static str,
    cases: usize,
    mean_gap: f64,
    within_3_percent: f64,
    /// Mean gap to the optimum over the prompts of two chunks.
    two_chunks_mean_gap_to_optimum: f64,
    /// One entry per noise.
    noises: Vec<OverNoise>,
}

/// Cases of more than one chunk with one noise.
#[derive(Serialize)]
struct OverNoise {
    noise: f64,
    mean_gap: f64,
    /// Cases in which the policy takes longer than the best greedy policy of that case.
    longer_than_the_best_simple: usize,
    /// Largest excess in these cases.
    longer_at_most: f64,
}

/// Time of the plans of the grid on this machine.
#[derive(Serialize)]
struct Planning {
    plans: usize,
    mean_milliseconds: f64,
    largest_milliseconds: f64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let (models, device) = arguments.simulation.read(&PAPERS)?;
    arguments.output.show(&device.name, |_| {
        let grid = Grid {
            seed: arguments.seed,
            ..Grid::usual(models)
        };
        let mut seconds = Vec::new();
        let mut timed = |dag: &Dag| {
            let start = Instant::now();
            let plan = plan(dag, 0.0, Effort::default(), &mut || true);
            seconds.push(start.elapsed().as_secs_f64());
            plan
        };
        let cases = cases(&device, &grid, &mut timed);
        let planning = Planning {
            plans: seconds.len(),
            mean_milliseconds: 1e3 * mean(&seconds),
            largest_milliseconds: 1e3 * largest(seconds),
        };
        let small = solved(&device, &grid, &SMALL, arguments.most, &mut |dag| {
            plan(dag, 0.0, Effort::default(), &mut || true)
        });
        Ok(Policies {
            simulated: true,
            seed: arguments.seed,
            overall: names()
                .into_iter()
                .enumerate()
                .map(|(index, name)| overall(&cases, &small, index, name))
                .collect(),
            names: names(),
            over_chunks: names()
                .into_iter()
                .enumerate()
                .map(|(index, name)| over_chunks(&cases, index, name))
                .collect(),
            planning,
            cases,
            small,
            decisions: decision::measure()?,
            device: device.name.clone(),
        })
    })
}

/// Returns the results of one policy over all cases.
fn overall(cases: &[Case], small: &[Solved], policy: usize, name: &'static str) -> Overall {
    let mut gaps = gaps(cases, policy, |_| true);
    gaps.sort_by(f64::total_cmp);
    let mut ratios: Vec<_> = cases.iter().map(|case| case.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.dedup();
    let of_ratio = |ratio| OfRatio {
        ratio,
        mean_gap: mean(&self::gaps(cases, policy, |case| case.ratio == ratio)),
    };
    let to_optimum: Vec<_> = small
        .iter()
        .map(|small| small.seconds[policy] / small.optimum_seconds - 1.0)
        .collect();
    Overall {
        name,
        mean_gap: mean(&gaps),
        median_gap: gaps.get(gaps.len() / 2).copied().unwrap_or(0.0),
        within_3_percent: gaps.iter().filter(|gap| **gap <= 0.03).count() as f64
            / gaps.len().max(1) as f64,
        largest_gap: largest(gaps),
        ratios: ratios.into_iter().map(of_ratio).collect(),
        small_mean_gap: mean(&to_optimum),
        small_largest_gap: largest(to_optimum),
    }
}

/// Returns the gaps of one policy in the cases that `keep` selects.
fn gaps(cases: &[Case], policy: usize, keep: impl Fn(&Case) -> bool) -> Vec<f64> {
    let kept = cases.iter().filter(|case| keep(case));
    kept.filter_map(|case| case.gaps().nth(policy)).collect()
}

/// Returns the results of one policy over the cases of more than one chunk.
fn over_chunks(cases: &[Case], policy: usize, name: &'static str) -> OverChunks {
    let many: Vec<_> = cases.iter().filter(|case| case.chunks > 1).collect();
    let gap = |case: &Case| case.seconds[policy] / case.bound_seconds - 1.0;
    let gaps = |keep: &dyn Fn(&Case) -> bool| -> Vec<f64> {
        many.iter()
            .filter(|case| keep(case))
            .map(|case| gap(case))
            .collect()
    };
    let all = gaps(&|_| true);
    let to_optimum = many.iter().filter(|case| case.chunks == 2);
    let to_optimum =
        to_optimum.filter_map(|case| Some(case.seconds[policy] / case.optimum_seconds? - 1.0));
    let mut noises: Vec<_> = many.iter().map(|case| case.noise).collect();
    noises.sort_by(f64::total_cmp);
    noises.dedup();
    let of_noise = |noise: f64| {
        let longer = many.iter().filter(|case| case.noise == noise).map(|case| {
            let best = case.seconds[..Policy::SIMPLE.len()]
                .iter()
                .copied()
                .fold(f64::INFINITY, f64::min);
            case.seconds[policy] / best - 1.0
        });
        let longer: Vec<_> = longer.filter(|longer| *longer > 1e-9).collect();
        OverNoise {
            noise,
            mean_gap: mean(&gaps(&|case| case.noise == noise)),
            longer_than_the_best_simple: longer.len(),
            longer_at_most: largest(longer),
        }
    };
    OverChunks {
        name,
        cases: many.len(),
        mean_gap: mean(&all),
        within_3_percent: all.iter().filter(|gap| **gap <= 0.03).count() as f64
            / all.len().max(1) as f64,
        two_chunks_mean_gap_to_optimum: mean(&to_optimum.collect::<Vec<_>>()),
        noises: noises.into_iter().map(of_noise).collect(),
    }
}

impl Policies {
    /// Returns the distinct values of a column of the grid.
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
        let row = |of: &Overall| {
            let gaps = [of.mean_gap, of.median_gap, of.largest_gap].map(|gap| percent(gap, 2));
            let ratios = of.ratios.iter().map(|of| of.mean_gap);
            let last = ratios.chain([of.small_mean_gap, of.small_largest_gap]);
            [of.name.to_owned()]
                .into_iter()
                .chain(gaps)
                .chain([percent(of.within_3_percent, 0)])
                .chain(last.map(|gap| percent(gap, 2)))
                .collect()
        };
        let rows: Vec<Vec<String>> = self.overall.iter().map(row).collect();
        let ratios: Vec<_> = self
            .values(|case| case.ratio)
            .iter()
            .map(|ratio| format!("NPU x{ratio}"))
            .collect();
        let mut columns = vec!["policy", "mean", "median", "largest", "within 3 %"];
        columns.extend(ratios.iter().map(String::as_str));
        columns.extend(["small mean", "small largest"]);
        let over_chunks = |of: &OverChunks| {
            let longer = |of: &OverNoise| match of.longer_than_the_best_simple {
                0 => "0".to_owned(),
                count => format!("{count}, by {} at most", percent(of.longer_at_most, 2)),
            };
            let all = [of.mean_gap, of.two_chunks_mean_gap_to_optimum].map(|gap| percent(gap, 2));
            let names = [of.name.to_owned(), percent(of.within_3_percent, 0)];
            names
                .into_iter()
                .chain(all)
                .chain(of.noises.iter().map(longer))
                .collect()
        };
        let rows_over_chunks: Vec<Vec<String>> = self.over_chunks.iter().map(over_chunks).collect();
        let noises = self.over_chunks.first().map_or(&[][..], |of| &of.noises);
        let noises: Vec<_> = noises
            .iter()
            .map(|of| format!("longer, noise {}", of.noise))
            .collect();
        let mut columns_over_chunks = vec!["policy", "within 3 %", "mean", "two chunks"];
        columns_over_chunks.extend(noises.iter().map(String::as_str));
        let proven = self.small.iter().filter(|small| small.is_proven).count();
        let loose: Vec<_> = self
            .small
            .iter()
            .map(|small| small.optimum_seconds / small.bound_seconds - 1.0)
            .collect();
        format!(
            "simulated on {}: longer than the bound, over {} cases (NPU xR: the NPU has R times the CPU's work)\n\n{}\n\n\
             the {} cases of more than one chunk; of two chunks: longer than the optimum; longer: cases in which it takes \
             longer than the best of the policies that decide as they go, in hindsight\n\n{}\n\n\
             measured here: {} plans, {:.1} ms each on average, {:.1} at most\n\n\
             {} small instances, {proven} of them solved exactly: the bound is {} below the optimum on average, {} at most\n\n{}",
            self.device,
            self.cases.len(),
            output::table(&columns, 1, &rows),
            self.over_chunks.first().map_or(0, |of| of.cases),
            output::table(&columns_over_chunks, 1, &rows_over_chunks),
            self.planning.plans,
            self.planning.mean_milliseconds,
            self.planning.largest_milliseconds,
            self.small.len(),
            percent(mean(&loose), 2),
            percent(largest(loose), 2),
            decision::text(&self.decisions)
        )
    }

    fn figure(&self) -> Figure {
        let ratios = self.values(|case| case.ratio);
        let series = |(policy, name): (usize, &&'static str)| {
            let point = |ratio: &f64| {
                (
                    *ratio,
                    100.0 * mean(&gaps(&self.cases, policy, |case| case.ratio == *ratio)),
                )
            };
            Series::new(*name, Mark::LineWithMarkers, ratios.iter().map(point))
        };
        let by_ratio = Chart {
            title: "Longer than the bound".into(),
            x: Axis::logarithmic("work of the NPU against that of the CPU"),
            y: Axis::linear("mean gap (%)").covering(0.0, 5.0),
            series: self
                .names
                .iter()
                .enumerate()
                .skip(1)
                .take(5)
                .map(series)
                .collect(),
            guides: vec![Guide {
                name: "3 %".into(),
                at: At::Y(3.0),
            }],
        };
        let prompts = self.values(|case| case.prompt as f64);
        let cell = |policy: usize, prompt: f64| {
            100.0
                * mean(&gaps(&self.cases, policy, |case| {
                    case.prompt as f64 == prompt
                }))
        };
        let by_prompt = HeatMap {
            title: "By prompt".into(),
            x: "tokens of the prompt".into(),
            y: String::new(),
            columns: prompts.iter().map(ToString::to_string).collect(),
            rows: self.names[1..]
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
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
