//! Measures the times of subgraphs on the processors of a machine. They are kept in the package, so that the first
//! prompt of a process is scheduled as well as its later ones.

use triad_plan::schedule::Policy;

use super::table::{Measurements, Table};
use triad_engine::Session;

use crate::costs::Costs;
use crate::engine::HeteroEngine;
use crate::error::{Error, Result};
use crate::execution::{Execution, execution};
use triad_engine::Cancel;
use triad_engine::package;

/// The costs of several lists of processors, by name; in a package they are `costs.json`.
pub type CostTable = Table<Costs>;

impl Measurements for Costs {
    const FILE: &str = package::COSTS;
}

/// Runs prompts that fill the context of each engine: one that does not count, then `repeat` in order and, on several
/// processors, as many out of order. Returns the times of subgraphs [in these runs](Costs::of_runs). Operators that the
/// first engine has not run, such as INT8 on the CPU, are taken from the later ones. `progress` is called with the
/// number of finished prompts, of [`profiled_prompts`].
///
/// # Errors
/// If `cancel` is set, or a processor fails.
pub fn profile(
    engines: &[HeteroEngine],
    repeat: usize,
    cancel: &Cancel,
    mut progress: impl FnMut(usize),
) -> Result<Costs> {
    let (mut costs, mut done) = (Costs::default(), 0);
    for engine in engines {
        let mut session = engine.session();
        let prompt = super::any_tokens(session.context(), engine.model().description().vocab);
        let mut run = |policy| {
            engine.set_policy(policy);
            let execution = run_prompt(&mut session, &prompt, cancel)?.clone();
            done += 1;
            progress(done);
            Ok::<_, Error>(execution)
        };
        run(Policy::InOrder)?;
        let (mut in_order, mut out_of_order) = (Vec::new(), Vec::new());
        for _ in 0..repeat {
            in_order.push(run(Policy::InOrder)?);
            if engine.processors().len() > 1 {
                out_of_order.push(run(OUT_OF_ORDER)?);
            }
        }
        costs.fill(&Costs::of_runs(engine.processors(), in_order, out_of_order));
    }
    Ok(costs)
}

/// Runs a prompt in a session, which is emptied before, and returns its execution.
///
/// # Errors
/// If `cancel` is set, or a processor fails, even if others completed the prompt.
pub(super) fn run_prompt<'a>(
    session: &'a mut Session,
    prompt: &[u32],
    cancel: &Cancel,
) -> Result<&'a Execution> {
    session.truncate(0);
    session.prefill(prompt, cancel, |_| {})?;
    let execution = execution(session).expect("a prompt ran");
    match execution.failures.first() {
        Some(failure) => Err(Error::Processor(Box::new(failure.clone()))),
        None => Ok(execution),
    }
}

/// Returns how many prompts [`profile`] runs.
pub fn profiled_prompts(engines: &[HeteroEngine], repeat: usize) -> usize {
    engines
        .iter()
        .map(|engine| 1 + repeat * engine.processors().len().min(2))
        .sum()
}

/// The policy of runs that measure tasks while other processors work: it expects no times, so it can't expect wrong
/// ones.
pub const OUT_OF_ORDER: Policy = Policy::Fifo;
