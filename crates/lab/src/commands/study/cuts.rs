//! `triad-lab study cuts`: maps the fastest partition of each matmul at each length.

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use triad_lab::heterollm::HeteroError;
use triad_model::family;
use triad_plan::device::DeviceProfile;
use triad_plan::graph::Role;
use triad_plan::partition::profile::{Waiting, WeightOnlyCosts};
use triad_plan::partition::solve::{Choice, Restriction, Solver};
use triad_plan::partition::{Participant, Phase, ROW_MULTIPLE, Strategy, products};

use super::{OutputArguments, Report, title_of};
use triad_console::arguments::ModelArguments;
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series, Tiles};
use triad_console::device::DeviceArguments;
use triad_console::device_profile;
use triad_console::output;
use triad_console::processors::Processors;

/// The longest prompt of a map without measurements.
const LONGEST: usize = 1024;

/// Map the fastest execution of each matmul at each length: one processor alone, or a cut.
///
/// Costs come from a device's profile, in W4A16 on its GPU and NPU (simulated), or with --processors from the
/// measurements of `triad profile` for a package on this machine. Nothing runs. Each length is one chunk, in steps of
/// 32 tokens. The first length is one token of decode, if its costs are known.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study cuts --shape llama-3-8b --svg cuts.svg
  triad-lab study cuts -m model.triad --processors cpu=0,npu=1 --npu cpu --svg cuts.svg")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Processors, as for `triad profile`: cpu=0,cpu=1
    #[arg(long, value_name = "LIST")]
    processors: Option<Processors>,
    #[command(flatten)]
    devices: DeviceArguments,
    /// Model whose shape is used
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(family::SHAPES), default_value = "llama-3-8b", conflicts_with = "processors")]
    shape: String,
    /// Device with W4A16: snapdragon-8gen3, or a TOML file
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = "snapdragon-8gen3",
        conflicts_with = "processors"
    )]
    device: String,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Serialize)]
struct Found {
    simulated: bool,
    model: String,
    device: String,
    cells: Vec<Cell>,
}

/// The fastest execution of a matmul on a number of rows.
#[derive(Serialize)]
struct Cell {
    role: Role,
    phase: Phase,
    rows: usize,
    strategy: Strategy,
    /// The processor that computes the whole matmul, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    processor: Option<String>,
    seconds: f64,
    /// Seconds of the fastest single processor.
    alone: f64,
}

impl Cell {
    fn new(role: Role, choice: &Choice, processors: &[String]) -> Self {
        let best = &choice.best;
        let strategy = best.partition.strategy;
        let processor = strategy
            .is_whole()
            .then(|| processors[best.partition.pieces[0].processor.index()].clone());
        let (phase, rows) = (choice.phase, choice.shape.rows());
        Self {
            role,
            phase,
            rows,
            strategy,
            processor,
            seconds: best.seconds,
            alone: choice.best_alone().seconds,
        }
    }

    /// Returns its category on a map.
    fn kind(&self) -> String {
        match &self.processor {
            Some(processor) if self.strategy == Strategy::Alone => format!("{processor} alone"),
            Some(processor) => format!("{processor} alone, {}", self.strategy.name()),
            None => self.strategy.name().replace('-', " "),
        }
    }

    fn column(&self) -> (bool, usize) {
        (self.phase == Phase::Prefill, self.rows)
    }
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments {
        processors, output, ..
    } = arguments;
    match processors {
        Some(processors) => {
            ensure!(
                processors.count() > 1,
                "nothing can be cut on one processor: expected more than one in --processors"
            );
            let name = &arguments.model.name.model;
            output.show(name, |_| measured(arguments, processors))
        }
        None => {
            arguments.devices.check(false)?;
            let device = device_profile::device(&arguments.device)?;
            output.show(&arguments.shape, |_| simulated(&arguments.shape, &device))
        }
    }
}

fn measured(arguments: &Arguments, processors: &Processors) -> Result<Found> {
    let (name, devices) = (&arguments.model.name.model, &arguments.devices);
    let model = arguments.model.load_prepared()?;
    let costs = triad_console::partition::product_costs(
        model.package(),
        &processors.list_key(devices),
        &processors.to_string(),
    )?;
    let names = processors.names(devices);
    let plans = costs.plans(model.description(), costs.chunk, Restriction::Auto)?;
    let decode = costs.decode_plans(model.description(), Restriction::Auto)?;
    let steps = decode.iter().flat_map(|plans| plans.products.products());
    let one_token =
        steps.filter_map(|plan| Some(Cell::new(plan.product.role, plan.choice(1)?, &names)));
    let of_chunks = plans.products().iter().flat_map(|plan| {
        plan.choices
            .iter()
            .map(|choice| Cell::new(plan.product.role, choice, &names))
            .collect::<Vec<_>>()
    });
    let cells = one_token.chain(of_chunks).collect();
    Ok(Found {
        simulated: false,
        model: title_of(name),
        device: processors.to_string(),
        cells,
    })
}

fn simulated(name: &str, device: &DeviceProfile) -> Result<Found> {
    let description = family::shape(name)?;
    let no_profile = || HeteroError::Profile {
        device: device.name.clone(),
    };
    let costs = WeightOnlyCosts::new(device.w4a16.as_ref().ok_or_else(no_profile)?);
    let solver = Solver::new(
        Participant::from_processors(costs.processors()),
        &costs,
        costs.joins(Waiting::Fast)?,
    )?;
    let processors: Vec<_> = costs
        .processors()
        .iter()
        .map(|(_, processor)| processor.name.to_uppercase())
        .collect();
    let lengths =
        (1..=LONGEST / ROW_MULTIPLE).map(|number| (Phase::Prefill, number * ROW_MULTIPLE));
    let mut cells = Vec::new();
    for (phase, rows) in [(Phase::Decode, 1)].into_iter().chain(lengths) {
        // All layers have the same shapes.
        for (role, shape) in products(&description.blocks[0], description.hidden, rows)? {
            cells.push(Cell::new(
                role,
                &solver.solve(shape, phase, Restriction::Auto)?,
                &processors,
            ));
        }
    }
    Ok(Found {
        simulated: true,
        model: name.to_owned(),
        device: device.name.clone(),
        cells,
    })
}

impl Found {
    fn roles(&self) -> Vec<Role> {
        let mut roles: Vec<_> = self.cells.iter().map(|cell| cell.role).collect();
        roles.sort_unstable();
        roles.dedup();
        roles
    }

    /// Returns the categories, the most frequent first.
    fn kinds(&self) -> Vec<String> {
        let mut kinds: Vec<_> = self.cells.iter().map(Cell::kind).collect();
        let count = |kind: &String| {
            self.cells
                .iter()
                .filter(|cell| cell.kind() == *kind)
                .count()
        };
        kinds.sort_by_cached_key(|kind| (std::cmp::Reverse(count(kind)), kind.clone()));
        kinds.dedup();
        kinds
    }

    fn title(&self) -> String {
        let how = if self.simulated {
            "simulated"
        } else {
            "measured"
        };
        format!("{} on {}, {how}", self.model, self.device)
    }
}

impl Report for Found {
    fn text(&self) -> String {
        let row = |kind: &String| {
            let here: Vec<_> = self
                .cells
                .iter()
                .filter(|cell| cell.kind() == *kind)
                .collect();
            let gains: Vec<_> = here.iter().map(|cell| cell.alone / cell.seconds).collect();
            let mean = gains.iter().sum::<f64>() / gains.len() as f64;
            let most = gains.iter().copied().fold(0.0, f64::max);
            vec![
                kind.clone(),
                here.len().to_string(),
                format!("{mean:.2}"),
                format!("{most:.2}"),
            ]
        };
        let rows: Vec<_> = self.kinds().iter().map(row).collect();
        let names = [
            "fastest",
            "products and lengths",
            "times as fast as one alone",
            "at most",
        ];
        format!("{}\n\n{}", self.title(), output::table(&names, 1, &rows))
    }

    fn figure(&self) -> Figure {
        let (roles, kinds) = (self.roles(), self.kinds());
        let mut columns: Vec<_> = self.cells.iter().map(Cell::column).collect();
        columns.sort_unstable();
        columns.dedup();
        let of_role = |role: &Role| -> Vec<_> {
            let kind = |column: &(bool, usize)| {
                let cell = self
                    .cells
                    .iter()
                    .find(|cell| cell.role == *role && cell.column() == *column)?;
                kinds.iter().position(|kind| *kind == cell.kind())
            };
            columns.iter().map(kind).collect()
        };
        let name = |(is_prefill, rows): &(bool, usize)| {
            if *is_prefill {
                rows.to_string()
            } else {
                "decode".to_owned()
            }
        };
        let map = Tiles {
            title: "Fastest execution".into(),
            x: "tokens".into(),
            y: "product".into(),
            columns: columns.iter().map(name).collect(),
            rows: roles.iter().map(|role| role.name().to_owned()).collect(),
            cells: roles.iter().map(of_role).collect(),
            kinds,
        };
        let gains = |role: &Role| {
            let here = self
                .cells
                .iter()
                .filter(|cell| cell.role == *role && cell.phase == Phase::Prefill);
            let points = here.map(|cell| (cell.rows as f64, cell.alone / cell.seconds));
            Series::new(role.name(), Mark::LineWithMarkers, points)
        };
        let chart = Chart {
            title: "Gain".into(),
            x: Axis::linear("tokens"),
            y: Axis::linear("times as fast as the fastest processor alone").covering(1.0, 2.0),
            series: roles.iter().map(gains).collect(),
            guides: Vec::new(),
        };
        Figure {
            title: self.title(),
            panels: vec![Panel::Tiles(map), Panel::Chart(chart)],
            columns: 1,
        }
    }
}
