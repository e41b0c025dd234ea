//! `triad profile`: measures the tasks of a model on each processor.

mod multiplier;
mod powers;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use triad_engine::{Cancel, EngineOptions, Error, Model, SessionOptions};
use triad_hetero::{
    CostTable, Costs, DecodeCosts, HeteroOptions, MeasureOptions, MeasuredProducts, Measurements,
    ProductCosts, ProductTable, ProductTime, Table,
};
use triad_plan::joint::MeasuredPrompt;
use triad_plan::partition::judge::{Judged, JudgedProcessor};
use triad_plan::partition::solve::Restriction;
use triad_plan::processors::label;
use triad_plan::schedule::Policy;
use triad_plan::tasks::Operation;

use triad_console::arguments::{self, ModelArguments};
use triad_console::device::DeviceArguments;
use triad_console::failure::run_error;
use triad_console::interrupt::{Interrupted, on_interrupt};
use triad_console::processors::Processors;
use triad_console::{measurements, output, progress};

/// Measure how long the tasks of a model take on each processor, and keep the times in its package.
///
/// Schedules use the measured times of their tasks. Without a profile, a process measures them during its first prompt.
/// With a profile, the first prompt is scheduled as well as later ones. Prompts are measured on all of the processors,
/// one task after the other and concurrently, and on the CPU alone, which takes over when the NPU fails.
///
/// With several processors, three more things are measured, by which --partition decides: the matrix products of
/// prompts and of decode steps, on each processor alone and while the others run; the time to join their parts
/// (HeteroLLM's profiler); and prompts of several lengths by each kind of plan, one processor alone among them.
///
/// With gpu,npu only products and joins are measured: on the GPU, which runs the model, and on the NPU, with the copies of
/// its rows and outputs.
///
/// Where the system reports energy, the power of each processor is measured, too: --objective plans by it.
///
/// With --predict, predictions by rates or a decision tree are fitted to half of the products' times and compared with
/// the other half. The cuts that predictions choose are compared with the cuts that all measured times choose, in a
/// second measurement.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad profile --processors cpu=0,npu=1
  triad profile --processors cpu=0,cpu=1 --predict
  triad profile -m model.triad --processors cpu=0-3,npu=4 --npu openvino --prefill-chunk 512 --json")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Processors to measure: cpu=0,npu=1 pins each to its cores, cpu,npu takes one thread for each
    #[arg(long, value_name = "LIST", default_value = "cpu,npu")]
    processors: Processors,
    #[command(flatten)]
    devices: DeviceArguments,
    /// Prefill chunk size, in tokens
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    /// Measured runs of each set of processors and order, and of each product
    #[arg(long, value_name = "N", default_value = "3", value_parser = arguments::repeats)]
    repeat: usize,
    /// Do not measure products separately
    #[arg(long, conflicts_with = "predict")]
    no_products: bool,
    /// Measure every number of columns that a cut can give, and report how well half of the times predict the others
    #[arg(long)]
    predict: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `profile --json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    processors: String,
    file: PathBuf,
    tokens: usize,
    chunk: usize,
    costs: &'a Costs,
    /// The file that keeps the products' times.
    #[serde(skip_serializing_if = "Option::is_none")]
    products_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    products: Option<&'a ProductCosts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predictions: Option<&'a Judged>,
}

/// Runs `triad profile`.
pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments {
        processors,
        devices,
        chunk,
        repeat,
        ..
    } = arguments;
    let name = &arguments.model.name.model;
    ensure!(
        !processors.is_gpu_alone() || processors.has_multiplier(),
        "a GPU without a CPU runs the whole model, so there is nothing to schedule: expected --processors cpu,gpu or gpu,npu"
    );
    let model = arguments.model.load_prepared()?;
    let package = model.package().context("expected a package")?;
    ensure!(
        !arguments.predict || processors.count() > 1,
        "--predict compares products on several processors: expected more than one in --processors"
    );
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());
    if processors.has_multiplier() {
        ensure!(
            !arguments.no_products,
            "a GPU and an NPU have no other times than those of products: leave out --no-products"
        );
        return multiplier::run(arguments, &model, package, &cancel);
    }
    open_table::<Costs>(package)?;
    open_table::<ProductCosts>(package)?;
    let interrupted = |error| match error {
        Error::Cancelled => Interrupted.into(),
        error => run_error(error, name),
    };
    // Products are measured first: the rest of the profile may depend on their times.
    let (mut products, mut predictions) = (None, None);
    if processors.count() > 1 && !arguments.no_products {
        let MeasuredProducts { mut costs, again } =
            measure_products(arguments, &model, &cancel)?.map_err(interrupted)?;
        costs.powers = powers::measure(arguments, &model, &cancel)?.map_err(interrupted)?;
        ProductTable::add(package, &processors.list_key(devices), costs.clone())?;
        if arguments.predict {
            predictions = Some(costs.judge(model.description(), &again)?);
        }
        products = Some(costs);
    }
    // The last chunk is shorter than the others. It shows the part of a task's time that does not depend on the chunk's
    // tokens.
    let tokens = (7 * chunk / 2).max(1).min(model.description().context);
    let chunks = tokens.div_ceil(*chunk);
    let options = || HeteroOptions {
        engine: EngineOptions {
            session: SessionOptions {
                context: tokens,
                chunk: *chunk,
                ..SessionOptions::default()
            },
            ..EngineOptions::default()
        },
        policy: Policy::InOrder,
        chunks_in_flight: chunks,
        ..HeteroOptions::default()
    };
    let mut engines = vec![processors.engine(devices, &model, options())?];
    if let Some(alone) = processors.cpu_alone() {
        // A single processor computes every product whole.
        engines.push(alone.engine(&devices.uncut(), &model, options())?);
    }
    if products.is_some() && devices.partition.is_none() {
        // Tasks of split feed-forwards occur only where products are cut.
        let cut = DeviceArguments {
            partition: Some(Restriction::Tensor),
            cuts: Vec::new(),
            ..devices.clone()
        };
        engines.push(processors.engine(&cut, &model, options())?);
    }
    let prompts = triad_hetero::profiled_prompts(&engines, *repeat);
    let bar = progress::prompts(format!("measuring prompts of {tokens} tokens"), prompts);
    let measured = triad_hetero::profile(&engines, *repeat, &cancel, |done| bar.set(done));
    drop(bar);
    let costs = measured.map_err(Error::from).map_err(interrupted)?;
    let names: Vec<_> = processors.names(devices);
    let (key, file) = (processors.key(devices), CostTable::path(package));
    CostTable::add(package, &key, costs.clone())?;
    drop(engines);
    // Planned prompts are measured last: their plans use all other times.
    if let Some(products) = products.as_mut().filter(|_| devices.partition.is_none()) {
        let options = HeteroOptions {
            policy: Policy::default(),
            ..options()
        };
        products.prompts =
            measure_prompts(arguments, &model, options, &cancel)?.map_err(interrupted)?;
        ProductTable::add(package, &processors.list_key(devices), products.clone())?;
    }
    if arguments.json {
        return output::json(&Report {
            model: name,
            processors: key,
            file,
            tokens,
            chunk: *chunk,
            costs: &costs,
            products_file: products.as_ref().map(|_| ProductTable::path(package)),
            products: products.as_ref(),
            predictions: predictions.as_ref(),
        });
    }
    output::text(&text(&key, &costs, *chunk))?;
    if let Some(products) = &products {
        output::text(&format!("\n{}", products_text(products, &names)))?;
    }
    if let Some(predictions) = &predictions {
        output::text(&format!("\n{}", predictions_text(predictions, &names)))?;
    }
    let products_file = products.map(|_| format!(" and {}", ProductTable::path(package).display()));
    output::text(&format!(
        "kept in {}{}",
        file.display(),
        products_file.unwrap_or_default()
    ))
}

/// Checks the table to which measurements are added. A table that is damaged or of another version is replaced, with a
/// note.
fn open_table<T: Measurements>(package: &Path) -> Result<()> {
    measurements::note_unread::<T>(package);
    let (_, replaced) = Table::<T>::open_or_replace(package)?;
    if replaced {
        output::note(&format!(
            "note: {} was damaged or of another version of Triad, and is replaced: profile other processors again, too",
            Table::<T>::path(package).display()
        ));
    }
    Ok(())
}

/// Measures products, with a progress bar.
fn measure_products(
    arguments: &Arguments,
    model: &Arc<Model>,
    cancel: &Cancel,
) -> Result<Result<MeasuredProducts, Error>> {
    let Arguments {
        processors,
        devices,
        chunk,
        repeat,
        predict,
        ..
    } = arguments;
    // The measurement makes more graphs than a run needs, so none are cached.
    let (options, _opened) = processors.open(devices, model, false)?;
    let measure = MeasureOptions {
        chunk: *chunk,
        repeat: *repeat,
        for_predictions: *predict,
    };
    let mut bar = None;
    let mut show = |done, all| {
        bar.get_or_insert_with(|| progress::products("measuring products", all))
            .set(done);
    };
    let measured = triad_hetero::measure_products(model, &options, measure, cancel, &mut show);
    Ok(measured.map_err(Error::from))
}

/// Measures prompts planned with the earlier measurements, with a progress bar.
fn measure_prompts(
    arguments: &Arguments,
    model: &Arc<Model>,
    options: HeteroOptions,
    cancel: &Cancel,
) -> Result<Result<Vec<MeasuredPrompt>, Error>> {
    let Arguments {
        processors,
        devices,
        repeat,
        ..
    } = arguments;
    let planned = DeviceArguments {
        partition: Some(Restriction::Auto),
        cuts: Vec::new(),
        ..devices.clone()
    };
    let engine = processors.engine(&planned, model, options)?;
    let mut bar = None;
    let show = |done, all| {
        bar.get_or_insert_with(|| progress::prompts("measuring planned prompts", all))
            .set(done);
    };
    let measured = triad_hetero::measure_prompts(&engine, *repeat, cancel, show);
    Ok(measured.map_err(Error::from))
}

/// Returns a table of the largest products on each processor.
fn times_text(products: &ProductCosts, names: &[String]) -> String {
    let mut shapes: Vec<_> = products
        .products
        .iter()
        .map(|time| (time.depth, time.columns, time.rows))
        .collect();
    shapes.sort_unstable();
    shapes.dedup();
    // For each depth, the most columns, with the fewest and the most rows.
    let most_columns = |depth| {
        shapes
            .iter()
            .filter(|shape| shape.0 == depth)
            .map(|shape| shape.1)
            .max()
    };
    let rows = [
        shapes.iter().map(|shape| shape.2).min(),
        Some(products.chunk),
    ];
    let shown = shapes.iter().filter(|(depth, columns, of_shape)| {
        most_columns(*depth) == Some(*columns) && rows.contains(&Some(*of_shape))
    });
    let row = |(depth, columns, rows): &(usize, usize, usize)| {
        let of_processor = |index| {
            let is_it = |time: &&ProductTime| {
                time.processor.index() == index
                    && (time.depth, time.columns, time.rows) == (*depth, *columns, *rows)
            };
            let time = products.products.iter().find(is_it);
            time.map_or("-".into(), |time| {
                format!("{:.0} / {:.0}", 1e6 * time.alone, 1e6 * time.contended)
            })
        };
        let sizes = [rows, columns, depth].map(usize::to_string);
        sizes
            .into_iter()
            .chain((0..names.len()).map(of_processor))
            .collect::<Vec<_>>()
    };
    let rows: Vec<_> = shown.map(row).collect();
    let header: Vec<_> = ["rows", "columns", "depth"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    format!(
        "{} products, µs alone / with the others running, the largest of each depth\n{}",
        products.products.len(),
        output::table(&header, 0, &rows)
    )
}

/// Returns a table of the largest products on each processor, the times of joins, and the prompts.
fn products_text(products: &ProductCosts, names: &[String]) -> String {
    let joins = &products.joins;
    let decode = products.decode.as_ref().map_or(String::new(), |decode| {
        let DecodeCosts { rows, products, output, joins } = decode;
        let rows: Vec<_> = rows.iter().map(usize::to_string).collect();
        format!(
            "\n{} products and {} parts of the output matrix in decode steps, of {} rows; joins of tasks as short as theirs take \
             {:.1}, {:.1} and {:.1} µs",
            products.len(),
            output.len(),
            rows.join(", "),
            1e6 * joins.own_seconds,
            1e6 * joins.begin_seconds,
            1e6 * joins.end_seconds
        )
    });
    let of_prompts = products
        .prompts
        .iter()
        .map(|MeasuredPrompt { rows, factors }| {
            let factors: Vec<_> = factors
                .iter()
                .map(|(kind, factor)| format!("{} {factor:.2}", kind.name()))
                .collect();
            format!(
                "\na prompt of {rows} tokens, measured over simulated time: {}",
                factors.join(", ")
            )
        });
    let of_prompts: String = of_prompts.collect();
    format!(
        "{}\na task begins {:.1} µs after the one \
         before it on the same processor, a part on another processor {:.1} µs after the task that it waits for, and the task \
         that waits for the part {:.1} µs after it{decode}{of_prompts}",
        times_text(products, names),
        1e6 * joins.own_seconds,
        1e6 * joins.begin_seconds,
        1e6 * joins.end_seconds
    ) + &powers::text(products.powers.as_ref(), names)
}

/// Returns a table of how well half of the times predict the others.
fn predictions_text(judged: &Judged, names: &[String]) -> String {
    let percent = |share: f64| format!("{:.1}", 100.0 * share);
    let row = |one: &JudgedProcessor| {
        let [alone, contended] = [&one.alone, &one.contended];
        let numbers = [one.fitted.to_string(), alone.measurements.to_string()];
        let errors = [
            one.again.mean,
            alone.mean,
            alone.largest,
            contended.mean,
            contended.largest,
        ]
        .map(percent);
        let [by_alone, by_concurrent] = one.methods;
        let by = if by_alone == by_concurrent {
            by_alone.to_owned()
        } else {
            format!("{by_alone}, with others {by_concurrent}")
        };
        let labels = [names[one.processor.index()].clone(), by];
        labels
            .into_iter()
            .chain(numbers)
            .chain(errors)
            .collect::<Vec<_>>()
    };
    let rows: Vec<_> = judged.processors.iter().map(row).collect();
    let header = [
        "processor",
        "by",
        "fitted to",
        "held out",
        "measured again %",
        "mean error %",
        "largest %",
        "with others %",
        "largest %",
    ];
    format!(
        "{}\npredictions choose the same cuts as all times for {} of {} products and lengths; measured again, the chosen cuts \
         take {:.2} % more on average, {:.1} % at most",
        output::table(&header, 2, &rows),
        judged.same,
        judged.choices,
        100.0 * judged.mean_excess,
        100.0 * judged.largest_excess
    )
}

/// Returns a table of the times of a full chunk: the first of a prompt, and one after three others.
fn text(processors: &str, costs: &Costs, chunk: usize) -> String {
    let row = |seen: triad_hetero::CostSample| {
        let position = |before| format!("{:.1}", 1e6 * seen.cost.of_chunk(chunk, before));
        let name = match seen.operation {
            Operation::Compute => seen.role.name().to_owned(),
            Operation::Shadow => format!("shadow of {}", seen.role.name()),
        };
        vec![
            name,
            label(&seen.processor),
            position(0),
            position(3 * chunk),
        ]
    };
    let names = [
        "subgraph of a block",
        "processor",
        "µs for a chunk",
        "µs after three chunks",
    ];
    let rows: Vec<_> = costs.seen().map(row).collect();
    format!(
        "{processors}, chunks of {chunk} tokens\n{}",
        output::table(&names, 2, &rows)
    )
}
