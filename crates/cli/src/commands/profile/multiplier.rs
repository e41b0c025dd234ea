//! `triad profile --processors gpu,npu`: measures the products of a GPU that runs the model and of the NPU that multiplies
//! for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use serde::Serialize;
use triad_engine::{Cancel, Error, Model};
use triad_hetero::{JoinTimes, MeasureOptions, MeasuredMultiplier, ProductCosts, ProductTable};

use triad_console::failure::run_error;
use triad_console::interrupt::Interrupted;
use triad_console::{output, progress};

use super::{Arguments, open_table, powers, times_text};

/// The output of `profile --json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    processors: String,
    chunk: usize,
    products_file: PathBuf,
    products: &'a ProductCosts,
    joins: Joins,
}

/// Microseconds of joining a part of a product on the NPU to the rest on the GPU.
#[derive(Serialize)]
struct Joins {
    blocking: f64,
    flag: f64,
    queue: f64,
    read: f64,
    write: f64,
}

impl From<JoinTimes> for Joins {
    fn from(times: JoinTimes) -> Self {
        let JoinTimes {
            blocking,
            polling,
            queued,
            read,
            write,
        } = times;
        let [blocking, flag, queue, read, write] =
            [blocking, polling, queued, read, write].map(|seconds| 1e6 * seconds);
        Self {
            blocking,
            flag,
            queue,
            read,
            write,
        }
    }
}

/// Measures the products, and keeps them in the package.
pub(super) fn run(
    arguments: &Arguments,
    model: &Arc<Model>,
    package: &Path,
    cancel: &Cancel,
) -> Result<()> {
    let Arguments {
        processors,
        devices,
        chunk,
        repeat,
        ..
    } = arguments;
    let name = &arguments.model.name.model;
    open_table::<ProductCosts>(package)?;
    // The measurement makes more graphs than a run needs, so none are cached.
    let (options, _opened) = processors.open(devices, model, false)?;
    let measure = MeasureOptions {
        chunk: *chunk,
        repeat: *repeat,
        for_predictions: false,
    };
    let mut bar = None;
    let mut show = |done, all| {
        bar.get_or_insert_with(|| progress::products("measuring products", all))
            .set(done);
    };
    let measured = triad_hetero::measure_multiplier(model, &options[0], measure, cancel, &mut show);
    drop(bar);
    let failed = |error| match error {
        Error::Cancelled => Interrupted.into(),
        error => run_error(error, name),
    };
    let measured = measured.map_err(Error::from).map_err(failed)?;
    let MeasuredMultiplier { mut costs, joins } = measured;
    costs.powers = powers::measure(arguments, model, cancel)?.map_err(failed)?;
    let key = processors.list_key(devices);
    ProductTable::add(package, &key, costs.clone())?;
    let (joins, file) = (Joins::from(joins), ProductTable::path(package));
    if arguments.json {
        return output::json(&Report {
            model: name,
            processors: key,
            chunk: *chunk,
            products_file: file,
            products: &costs,
            joins,
        });
    }
    let names: Vec<_> = costs
        .processors
        .iter()
        .map(|one| one.name.clone())
        .collect();
    let Joins {
        blocking,
        flag,
        queue,
        read,
        write,
    } = joins;
    output::text(&format!(
        "{key}\n{}\nthe GPU is noticed to be idle after {blocking:.1} µs by blocking and {flag:.1} µs by a flag; a further \
         submission to its queue takes {queue:.1} µs; rows of the smallest part are read after {read:.1} µs, its outputs \
         joined after {write:.1} µs{}\nkept in {}",
        times_text(&costs, &names),
        powers::text(costs.powers.as_ref(), &names),
        file.display()
    ))
}
