//! Measures the power of the machine and of its processors while they multiply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use triad_engine::{Cancel, Model};
use triad_plan::graph::Role;
use triad_plan::partition::energy::Powers;
use triad_plan::partition::plans::products_of;
use triad_plan::partition::{Alignment, ProductShape};
use triad_plan::processors::ProcessorId;

use super::bench::Bench;
use super::multiplied::{ALONE, TwoDevices};
use crate::error::Result;
use crate::workers::{self, ProcessorOptions};

/// How long each processor runs: ten readings of a battery.
const TIME: Duration = Duration::from_secs(1);
/// The product that each processor runs: the one with the most features.
const ROLE: Role = Role::Down;

/// Returns the powers of the machine while it waits, and of each processor while it multiplies. `joules` returns the energy
/// of the machine since any time; the result is `None` if it does not know it. A GPU with an NPU that multiplies for it
/// counts as two processors.
///
/// # Errors
/// If a processor fails, or `cancel` is set.
pub fn measure_powers(
    model: &Arc<Model>,
    processors: &[ProcessorOptions],
    chunk: usize,
    joules: &dyn Fn() -> Option<f64>,
    cancel: &Cancel,
) -> Result<Option<Powers>> {
    let chunk = chunk.next_multiple_of(Alignment::default().rows);
    let products = products_of(model.description(), chunk, |_, _| Alignment::default())?;
    let product = products.iter().find(|product| product.role == ROLE);
    let shape = product.expect("a model has this product").shape;
    let wait = || {
        std::thread::sleep(TIME / 10);
        Ok(())
    };
    let Some(base) = watts(joules, wait, cancel)? else {
        return Ok(None);
    };
    let all = match processors {
        [processor] if processor.multiplier.is_some() => {
            of_pair(model, processor, shape, joules, cancel)?
        }
        _ => of_list(model, processors, shape, joules, cancel)?,
    };
    // The machine's own power is not that of a processor. A machine that uses no more of it while a processor multiplies
    // has not settled, or other programs are busy: its powers are unknown.
    let processors = all.map(|all| all.iter().map(|watts| watts - base).collect::<Vec<_>>());
    let processors = processors.filter(|all| all.iter().all(|watts| *watts > 0.0));
    Ok(processors.map(|processors| Powers { base, processors }))
}

/// Returns the mean power while `run` runs repeatedly.
fn watts(
    joules: &dyn Fn() -> Option<f64>,
    mut run: impl FnMut() -> Result<()>,
    cancel: &Cancel,
) -> Result<Option<f64>> {
    let (start, before) = (Instant::now(), joules());
    while start.elapsed() < TIME {
        cancel.check()?;
        run()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let used = before.zip(joules()).map(|(before, after)| after - before);
    Ok(used.map(|joules| joules / seconds))
}

fn of_list(
    model: &Arc<Model>,
    processors: &[ProcessorOptions],
    shape: ProductShape,
    joules: &dyn Fn() -> Option<f64>,
    cancel: &Cancel,
) -> Result<Option<Vec<f64>>> {
    let (_, workers, devices) = workers::start(model, processors.to_vec())?;
    let bench = Bench {
        model,
        workers: &workers,
        devices: &devices,
        repeat: 1,
    };
    let of_worker = |index: usize| {
        let mut product = bench.product(ROLE, ProcessorId::new(index), shape)?;
        watts(
            joules,
            || workers[index].pool().install(|| product.run()),
            cancel,
        )
    };
    (0..workers.len()).map(of_worker).collect()
}

/// Does the same for a device that runs the model and one that multiplies for it.
fn of_pair(
    model: &Arc<Model>,
    processor: &ProcessorOptions,
    shape: ProductShape,
    joules: &dyn Fn() -> Option<f64>,
    cancel: &Cancel,
) -> Result<Option<Vec<f64>>> {
    let devices = TwoDevices::start(model, processor, shape.rows())?;
    let pair = devices.pair(model, 1)?;
    let (index, part) = pair.part(ROLE, shape)?;
    let of_device = watts(
        joules,
        || pair.whole.time_part(index, &part).map(|_| ()),
        cancel,
    )?;
    let mut product = pair.bench.product(ROLE, ALONE, shape)?;
    let run = || pair.bench.workers[0].pool().install(|| product.run());
    let of_multiplier = watts(joules, run, cancel)?;
    Ok(of_device
        .zip(of_multiplier)
        .map(|(one, other)| vec![one, other]))
}
