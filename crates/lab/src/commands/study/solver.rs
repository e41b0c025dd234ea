//! `triad-lab study solver`: compares the partition solver's choices with the fastest of all cuts.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use triad_engine::Cancel;
use triad_hetero::{ExhaustedProduct, RunPartition, exhaust_products};
use triad_lab::heterollm::HeteroError;
use triad_model::description::ModelDescription;
use triad_model::family;
use triad_plan::device::DeviceProfile;
use triad_plan::graph::Role;
use triad_plan::partition::exhaust::exhaust;
use triad_plan::partition::profile::{Waiting, WeightOnlyCosts};
use triad_plan::partition::solve::{Restriction, Solver};
use triad_plan::partition::{Alignment, Participant, Phase, ProductShape, ROW_MULTIPLE, products};

use super::{OutputArguments, Report, title_of};
use triad_console::arguments::{self, ModelArguments};
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::device::DeviceArguments;
use triad_console::device_profile;
use triad_console::processors::Processors;
use triad_console::{output, progress};

/// The models of the HeteroLLM paper.
const PAPERS: [&str; 4] = ["llama-3-8b", "llama-2-7b", "llama-3.2-3b", "internlm2-1.8b"];
/// Tokens of prompts if none are given and nothing runs: aligned lengths and others.
const SIMULATED: [usize; 4] = [135, 256, 300, 1000];

/// Compare the partition solver's choices with the best of all cuts.
///
/// With --processors, every candidate of every matmul of a package runs on them, with weights of the model. The
/// solver's choice by the profile is compared with the fastest candidate. Times are medians of runs that all processors
/// start at the same time. The fastest candidates run again in turns with the choice, since the minimum of many medians
/// is biased downwards.
///
/// Without --processors, costs come from a device's profile, in W4A16 on its GPU and NPU (simulated). The solver's
/// choice is compared with the minimum over all cuts at multiples of 256 columns and 32 rows, from either end, with all
/// compositions of standard lengths, found without the solver; and with the minimum over all pairs of cuts, which no
/// candidate uses.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study solver
  triad-lab study solver --shape llama-3-8b --prompt 135,300,600 --json
  triad profile -m model.triad --processors cpu=0,cpu=1 --prefill-chunk 320
  triad-lab study solver -m model.triad --processors cpu=0,cpu=1")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Processors, as for `triad profile`: cpu=0,cpu=1
    #[arg(long, value_name = "LIST")]
    processors: Option<Processors>,
    #[command(flatten)]
    devices: DeviceArguments,
    /// Model whose shape is used; may be given several times [default: those of the HeteroLLM paper]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(family::SHAPES), conflicts_with = "processors")]
    shape: Vec<String>,
    /// Device with W4A16: snapdragon-8gen3, or a TOML file
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = "snapdragon-8gen3",
        conflicts_with = "processors"
    )]
    device: String,
    /// Tokens of the matmuls [default: 135, 256, 300 and 1000; with --processors all profiled multiples of 32; other
    /// numbers are rounded up to the next one]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = arguments::tokens)]
    prompt: Vec<usize>,
    /// Runs of each candidate
    #[arg(long, value_name = "N", default_value = "5", value_parser = arguments::repeats)]
    repeat: usize,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Serialize)]
struct Found {
    simulated: bool,
    model: String,
    device: String,
    /// Mean excess over the fastest cut.
    mean_excess: f64,
    largest_excess: f64,
    /// Seconds to make a choice.
    median_planning: f64,
    largest_planning: f64,
    products: Vec<Product>,
}

/// A matmul on a number of rows.
#[derive(Serialize)]
struct Product {
    model: String,
    role: Role,
    #[serde(flatten)]
    shape: ProductShape,
    /// Number of cuts that were compared.
    ways: usize,
    chosen: &'static str,
    seconds: f64,
    /// Seconds of the fastest cut, and its name if it was run.
    least: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fastest: Option<&'static str>,
    /// Excess of the choice over the fastest cut: 0 if the choice is the fastest.
    excess: f64,
    /// Excess over the minimum over pairs of cuts.
    #[serde(skip_serializing_if = "Option::is_none")]
    excess_of_two_cuts: Option<f64>,
    /// Seconds of the fastest single processor.
    alone: f64,
    planning: f64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments {
        processors, output, ..
    } = arguments;
    match processors {
        Some(processors) => measured(arguments, processors),
        None => {
            arguments.devices.check(false)?;
            output.show(&arguments.device, |_| simulated(arguments))
        }
    }
}

fn measured(arguments: &Arguments, processors: &Processors) -> Result<()> {
    let Arguments {
        devices, repeat, ..
    } = arguments;
    ensure!(
        processors.count() > 1,
        "nothing can be cut on one processor: expected more than one in --processors"
    );
    let name = &arguments.model.name.model;
    let model = arguments.model.load_prepared()?;
    let costs = triad_console::partition::product_costs(
        model.package(),
        &processors.list_key(devices),
        &processors.to_string(),
    )?;
    let usual = || {
        (1..)
            .map(|number| number * ROW_MULTIPLE)
            .take_while(|rows| *rows <= costs.chunk)
            .collect()
    };
    let lengths: Vec<_> = if arguments.prompt.is_empty() {
        usual()
    } else {
        arguments.prompt.clone()
    };
    arguments.output.show(name, |cancel: &Cancel| {
        let (options, _opened) = processors.open(devices, &model, false)?;
        let mut bar = None;
        let mut show = |done, all| {
            bar.get_or_insert_with(|| progress::products("running cuts", all))
                .set(done);
        };
        let found = exhaust_products(
            &model,
            &options,
            &costs,
            (&lengths, *repeat),
            cancel,
            &mut show,
        )?;
        let title = title_of(name);
        let product = |one: ExhaustedProduct| {
            let ExhaustedProduct {
                role,
                shape,
                candidates,
                chosen,
                fastest,
                alone,
                planning,
            } = one;
            let name = |run: &RunPartition| run.partition.strategy.name();
            Product {
                model: title.clone(),
                role,
                shape,
                ways: candidates,
                chosen: name(&chosen),
                seconds: chosen.seconds,
                least: fastest.seconds,
                fastest: Some(name(&fastest)),
                excess: chosen.seconds / fastest.seconds - 1.0,
                excess_of_two_cuts: None,
                alone,
                planning,
            }
        };
        let products = found.into_iter().map(product).collect();
        Ok(Found::new(
            false,
            title.clone(),
            processors.names(devices).join(", "),
            products,
        ))
    })
}

fn simulated(arguments: &Arguments) -> Result<Found> {
    let device = device_profile::device(&arguments.device)?;
    let chosen = arguments.shape.iter().map(String::as_str);
    let names: Vec<_> = if arguments.shape.is_empty() {
        PAPERS.to_vec()
    } else {
        chosen.collect()
    };
    let lengths = if arguments.prompt.is_empty() {
        SIMULATED.to_vec()
    } else {
        arguments.prompt.clone()
    };
    let mut found = Vec::new();
    for name in &names {
        found.extend(of_shape(name, &family::shape(name)?, &device, &lengths)?);
    }
    Ok(Found::new(
        true,
        names.join(", "),
        device.name.clone(),
        found,
    ))
}

/// Returns the matmuls of a model of this shape on a simulated device.
fn of_shape(
    name: &str,
    description: &ModelDescription,
    device: &DeviceProfile,
    lengths: &[usize],
) -> Result<Vec<Product>> {
    let no_profile = || HeteroError::Profile {
        device: device.name.clone(),
    };
    let costs = WeightOnlyCosts::new(device.w4a16.as_ref().ok_or_else(no_profile)?);
    let joins = costs.joins(Waiting::Fast)?;
    let participants = Participant::from_processors(costs.processors());
    let solver = Solver::new(participants.clone(), &costs, joins)?;
    let alignment = Alignment::default();
    let mut found = Vec::new();
    // All layers have the same shapes.
    for rows in lengths {
        for (role, shape) in products(&description.blocks[0], description.hidden, *rows)? {
            let start = Instant::now();
            let choice = solver.solve(shape, Phase::Prefill, Restriction::Auto)?;
            let planning = start.elapsed().as_secs_f64();
            let all = exhaust(
                (shape, Phase::Prefill),
                &participants,
                (&costs, joins),
                alignment,
            )?;
            let seconds = choice.best.seconds;
            found.push(Product {
                model: name.to_owned(),
                role,
                shape,
                ways: all.ways,
                chosen: choice.best.partition.strategy.name(),
                seconds,
                least: all.one_cut,
                fastest: None,
                excess: seconds / all.one_cut - 1.0,
                excess_of_two_cuts: Some(seconds / all.two_cuts - 1.0),
                alone: choice.best_alone().seconds,
                planning,
            });
        }
    }
    Ok(found)
}

impl Found {
    fn new(simulated: bool, model: String, device: String, products: Vec<Product>) -> Self {
        let largest = |of: fn(&Product) -> f64| products.iter().map(of).fold(0.0, f64::max);
        let mut planning: Vec<_> = products.iter().map(|product| product.planning).collect();
        planning.sort_by(f64::total_cmp);
        let sum: f64 = products.iter().map(|product| product.excess).sum();
        Self {
            simulated,
            model,
            device,
            mean_excess: sum / products.len().max(1) as f64,
            largest_excess: largest(|product| product.excess),
            median_planning: planning.get(planning.len() / 2).copied().unwrap_or(0.0),
            largest_planning: largest(|product| product.planning),
            products,
        }
    }
}

impl Report for Found {
    fn text(&self) -> String {
        let Self {
            simulated,
            model,
            device,
            products,
            ..
        } = self;
        let milliseconds = |seconds: f64| format!("{:.3}", 1e3 * seconds);
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let row = |product: &Product| {
            let Product {
                model,
                role,
                shape,
                ways,
                chosen,
                seconds,
                least,
                fastest,
                excess,
                ..
            } = product;
            let sizes =
                [shape.rows(), shape.columns(), shape.depth(), *ways].map(|size| size.to_string());
            let times = [*seconds, *least].map(milliseconds);
            let two = product.excess_of_two_cuts.map_or_else(String::new, percent);
            let alone = milliseconds(product.alone);
            let labels = [model.clone(), role.name().to_owned(), (*chosen).to_owned()];
            let fastest = fastest.unwrap_or_default().to_owned();
            labels
                .into_iter()
                .chain([fastest])
                .chain(sizes)
                .chain(times)
                .chain([
                    percent(*excess),
                    two,
                    alone,
                    format!("{:.0}", 1e6 * product.planning),
                ])
                .collect::<Vec<_>>()
        };
        let rows: Vec<_> = products.iter().map(row).collect();
        let names = [
            "model",
            "product",
            "chosen",
            "fastest",
            "rows",
            "columns",
            "depth",
            "ways",
            "ms",
            "least ms",
            "more %",
            "than two cuts %",
            "alone ms",
            "planned in µs",
        ];
        let how = if *simulated {
            "simulated, in W4A16"
        } else {
            "measured"
        };
        format!(
            "{how}: {} matmuls of {model} on {device}\nthe choices take {} % more than the fastest of all cuts on average, {} \
             % at most; a choice takes {:.0} µs (median), {:.0} µs at most\n\n{}",
            products.len(),
            percent(self.mean_excess),
            percent(self.largest_excess),
            1e6 * self.median_planning,
            1e6 * self.largest_planning,
            output::table(&names, 4, &rows)
        )
    }

    fn figure(&self) -> Figure {
        let mut roles: Vec<_> = self.products.iter().map(|product| product.role).collect();
        roles.sort_unstable();
        roles.dedup();
        let series = |role: &Role| {
            let here = self.products.iter().filter(|product| product.role == *role);
            let points = here.map(|product| (product.shape.rows() as f64, 100.0 * product.excess));
            Series::new(role.name(), Mark::Points, points)
        };
        let chart = Chart {
            title: String::new(),
            x: Axis::linear("rows"),
            y: Axis::linear("% more than the fastest cut").covering(0.0, 1.0),
            series: roles.iter().map(series).collect(),
            guides: Vec::new(),
        };
        let how = if self.simulated { ", simulated" } else { "" };
        Figure {
            title: format!(
                "{} on {}{how}: choices of the solver",
                self.model, self.device
            ),
            panels: vec![Panel::Chart(chart)],
            columns: 1,
        }
    }
}
