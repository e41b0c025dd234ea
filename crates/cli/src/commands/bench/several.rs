//! Prefills on several processors: by each policy in turns, beside what was expected of it.

use std::sync::Arc;

use anyhow::Result;
use triad_engine::execute::{Costs, Execution};
use triad_engine::{Cancel, Engine, EngineOptions, Error, Model, Session};
use triad_frontend::machine::{self, Resident};
use triad_plan::bound::lower_bound;
use triad_plan::schedule::Policy;

use super::measure::{Expected, Measurement, Plan, Spread, Test, failed, prefill};
use crate::device::DeviceArguments;
use crate::interrupt::on_interrupt;
use crate::processors::{self, Executed, Processors};
use crate::progress;

/// Processors that prompts run on at once.
pub struct Several<'a> {
    pub processors: &'a Processors,
    pub devices: &'a DeviceArguments,
    /// Measured in turns.
    pub policies: &'a [Policy],
    pub chunks_in_flight: usize,
}

/// What a prefill is expected to take by what tasks took before.
fn expected(engine: &Engine, tokens: usize, policy: Policy, (costs, profiled): (&Costs, bool)) -> Expected {
    let simulated = engine.simulate(tokens, policy, costs);
    Expected {
        profiled,
        simulated_seconds: simulated.timeline.seconds(),
        bound_seconds: lower_bound(&simulated.tasks.dag),
    }
}

/// The measured runs of a prompt by one policy.
struct Runs {
    policy: Policy,
    expected: Expected,
    /// Seconds and what happened.
    each: Vec<(f64, Executed)>,
}

/// A session that runs prompts by one policy or another.
struct Bench<'a> {
    engine: &'a Engine,
    session: Session,
    several: &'a Several<'a>,
    cancel: Cancel,
}

impl Bench<'_> {
    fn run(&mut self, tokens: usize, policy: Policy) -> Result<(f64, Executed), Error> {
        self.session.truncate(0);
        self.engine.set_policy(policy);
        self.engine.plan_ahead(tokens);
        let before = self.engine.hot_rows();
        let seconds = prefill(&mut self.session, tokens, &self.cancel)?;
        processors::note_failures(&self.session);
        let latest = self.session.execution().expect("a prompt ran");
        let executed = Executed::new(latest, self.several.processors, self.several.devices);
        Ok((seconds, executed.with_hot_rows(self.engine, before.as_ref())))
    }

    /// Runs a prompt by all policies, `repeat` times in turns.
    fn in_turns(&mut self, tokens: usize, repeat: usize, profiled: &Costs) -> Result<Vec<Runs>, Error> {
        // Unmeasured: pages and caches are warm after it, and expectations are what was seen.
        self.several.policies.iter().try_for_each(|policy| self.run(tokens, *policy).map(|_| ()))?;
        let is_profiled = profiled.seen().next().is_some();
        let costs = if is_profiled { profiled.clone() } else { self.engine.costs() };
        let runs_by = |policy: &Policy| Runs {
            policy: *policy,
            expected: expected(self.engine, tokens, *policy, (&costs, is_profiled)),
            each: Vec::new(),
        };
        let mut runs: Vec<_> = self.several.policies.iter().map(runs_by).collect();
        for _ in 0..repeat {
            for Runs { policy, each, .. } in &mut runs {
                each.push(self.run(tokens, *policy)?);
            }
        }
        Ok(runs)
    }
}

impl Runs {
    fn measurement(self, tokens: usize, several: &Several, resident: Option<Resident>) -> Measurement {
        let Self { expected, mut each, .. } = self;
        each.sort_by(|one, other| one.0.total_cmp(&other.0));
        Measurement {
            threads: several.processors.threads(),
            test: Test::Prefill,
            tokens,
            context: 0,
            sequences: 1,
            tokens_per_second: Spread::of(each.iter().map(|(seconds, _)| tokens as f64 / seconds).collect()),
            processors: Some(several.processors.to_string()),
            executed: Some(each.swap_remove(each.len() / 2).1),
            expected: Some(expected),
            resident,
        }
    }
}

impl Plan {
    /// Runs all tests on several processors, those of prefill by all policies in turns. Returns the execution of the last
    /// prefill, too.
    pub fn run_on_several(
        &self,
        model: &Arc<Model>,
        several: &Several,
        name: &str,
    ) -> Result<(Vec<Measurement>, Option<Execution>)> {
        let policy = several.policies.first().copied().unwrap_or_default();
        let chunks_in_flight = several.chunks_in_flight;
        let options = EngineOptions { policy, chunks_in_flight, ..self.options(model) };
        let engine = several.processors.engine(several.devices, model, options)?;
        let profiled = engine.costs();
        let cancel = Cancel::new();
        let on_ctrl_c = cancel.clone();
        let _guard = on_interrupt(move || on_ctrl_c.cancel());
        let mut bench = Bench { engine: &engine, session: engine.session(), several, cancel: cancel.clone() };
        let mut measured = Vec::new();
        for &tokens in &self.prompts {
            let _spinner =
                progress::spinner(format!("measuring a prefill of {tokens} tokens on {}", several.processors));
            let runs = bench.in_turns(tokens, self.repeat, &profiled).map_err(|error| failed(error, name))?;
            let resident = machine::resident();
            measured.extend(runs.into_iter().map(|runs| runs.measurement(tokens, several, resident)));
        }
        let decodes = self.tests().filter(|(test, ..)| *test == Test::Decode);
        let on = (several.processors.threads(), Some(several.processors));
        let decodes: Result<Vec<_>, Error> =
            decodes.map(|test| Ok(self.measure(&engine, test, on, &cancel)?.0)).collect();
        measured.extend(decodes.map_err(|error| failed(error, name))?);
        processors::note_hot_rows(&engine);
        Ok((measured, bench.session.execution().cloned()))
    }
}
