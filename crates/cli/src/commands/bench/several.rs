//! Prefills on several processors: each policy in turns, compared with its expected times.

use std::sync::Arc;

use anyhow::Result;
use triad_engine::{Cancel, Error, Model, Session};
use triad_frontend::energy::EnergyMeter;
use triad_frontend::machine::{self, Resident};
use triad_hetero::{Costs, Execution, HeteroEngine, HeteroOptions, OUT_OF_ORDER, execution};
use triad_plan::schedule::Policy;

use triad_console::device::DeviceArguments;
use triad_console::executed::{self, Executed};
use triad_console::interrupt::on_interrupt;
use triad_console::measure::{
    Energy, Expected, MeasuredBy, Measurement, Plan, Spread, Test, failed, prefill,
};
use triad_console::processors::Processors;
use triad_console::progress;

/// A test of prompts that run on several processors concurrently.
pub struct Several<'a> {
    pub processors: &'a Processors,
    pub devices: &'a DeviceArguments,
    /// Policies, measured in turns.
    pub policies: &'a [Policy],
    pub chunks_in_flight: usize,
    /// Whether each round also has a run in order and one out of order, from which the expected times are computed.
    pub profile: bool,
}

/// Times of tasks, and of a run outside its tasks.
struct Takes {
    by: MeasuredBy,
    costs: Costs,
    outside_seconds: f64,
}

impl Takes {
    /// Returns the expected times of a prefill with these costs. Its schedule uses one of the costs in `expected`.
    fn expected(
        &self,
        engine: &HeteroEngine,
        tokens: usize,
        policy: Policy,
        expected: &[Costs],
    ) -> Expected {
        let simulated = engine.simulate(tokens, policy, expected, &self.costs);
        Expected {
            by: self.by,
            simulated_seconds: simulated.timeline.seconds(),
            fastest_seconds: simulated.seconds.start,
            slowest_seconds: simulated.seconds.end,
            outside_seconds: self.outside_seconds,
            bound_seconds: simulated.bound_seconds(),
        }
    }
}

/// The measured runs of a prompt by one policy.
struct Runs {
    expected: Expected,
    /// Seconds and schedule of each run.
    each: Vec<(f64, Executed)>,
    /// Mean energy of a run, if the system reports it.
    energy: Option<Energy>,
}

/// A session that runs prompts by several policies.
struct Bench<'a> {
    engine: &'a HeteroEngine,
    session: Session,
    several: &'a Several<'a>,
    cancel: Cancel,
}

impl Bench<'_> {
    fn run(&mut self, tokens: usize, policy: Policy) -> Result<(f64, Executed), Error> {
        self.session.truncate(0);
        self.engine.set_policy(policy);
        self.engine.plan_ahead(tokens);
        let before = self.engine.outlier_cache();
        let seconds = prefill(&mut self.session, tokens, &self.cancel)?;
        executed::note_failures(&self.session);
        let latest = execution(&self.session).expect("a prompt ran");
        let executed = Executed::new(latest, self.several.processors, self.several.devices);
        Ok((
            seconds,
            executed.with_outlier_cache(self.engine, before.as_ref()),
        ))
    }

    /// Runs a prompt by a policy. Returns its execution, and the seconds outside its tasks.
    fn run_tasks(&mut self, tokens: usize, policy: Policy) -> Result<(Execution, f64), Error> {
        let (seconds, _) = self.run(tokens, policy)?;
        let execution = execution(&self.session).expect("a prompt ran").clone();
        let outside = seconds - execution.timeline.seconds();
        Ok((execution, outside.max(0.0)))
    }

    /// Runs a prompt by all policies, `repeat` times in turns.
    fn in_turns(&mut self, tokens: usize, repeat: usize, kept: &Costs) -> Result<Vec<Runs>, Error> {
        let policies = self.several.policies;
        // Warm-up: pages and caches are warm and graphs are built after it.
        policies
            .iter()
            .try_for_each(|policy| self.run(tokens, *policy).map(|_| ()))?;
        // These runs do not count either. Expected times are computed from them where nothing else is known.
        let first: Vec<_> = policies
            .iter()
            .map(|policy| self.run_tasks(tokens, *policy))
            .collect::<Result<_, _>>()?;
        let of_first_runs = self.engine.costs();
        let mut each = vec![Vec::new(); policies.len()];
        let meter = EnergyMeter::find();
        let joules = || meter.as_ref().and_then(EnergyMeter::joules);
        let mut used = vec![meter.as_ref().map(|_| 0.0); policies.len()];
        // The costs that the schedule of each run used.
        let mut known = vec![Vec::new(); policies.len()];
        let (mut in_order, mut out_of_order) = (Vec::new(), Vec::new());
        for _ in 0..repeat {
            if self.several.profile {
                in_order.push(self.run_tasks(tokens, Policy::InOrder)?);
                out_of_order.push(self.run_tasks(tokens, OUT_OF_ORDER)?.0);
            }
            let of_policies = each.iter_mut().zip(&mut known).zip(&mut used);
            for (policy, ((runs, known), used)) in policies.iter().zip(of_policies) {
                known.push(self.engine.costs());
                let before = joules();
                runs.push(self.run(tokens, *policy)?);
                let more = joules().zip(before).map(|(after, before)| after - before);
                *used = used.zip(more).map(|(used, more)| used + more);
            }
        }
        let (executions, outside): (Vec<_>, Vec<_>) =
            if in_order.is_empty() { first } else { in_order }
                .into_iter()
                .unzip();
        let (costs, by) = if self.several.profile {
            (
                Costs::of_runs(self.engine.processors(), executions, out_of_order),
                MeasuredBy::Rounds,
            )
        } else if kept.seen().next().is_some() {
            (kept.clone(), MeasuredBy::Package)
        } else {
            (of_first_runs, MeasuredBy::FirstRuns)
        };
        let takes = Takes {
            by,
            costs,
            outside_seconds: Spread::new(outside).median,
        };
        let source = meter.as_ref().map(EnergyMeter::source);
        let runs = policies.iter().zip(known).zip(each.into_iter().zip(used));
        let runs = runs.map(|((policy, known), (each, used))| Runs {
            expected: takes.expected(self.engine, tokens, *policy, &known),
            each,
            energy: source
                .zip(used)
                .map(|(source, joules)| Energy::new(source, joules, repeat, tokens)),
        });
        Ok(runs.collect())
    }
}

impl Runs {
    fn measurement(
        self,
        tokens: usize,
        several: &Several,
        resident: Option<Resident>,
    ) -> Measurement {
        let Self {
            expected,
            mut each,
            energy,
        } = self;
        each.sort_by(|one, other| one.0.total_cmp(&other.0));
        Measurement {
            threads: several.processors.threads(),
            test: Test::Prefill,
            tokens,
            context: 0,
            sequences: 1,
            tokens_per_second: Spread::new(
                each.iter()
                    .map(|(seconds, _)| tokens as f64 / seconds)
                    .collect(),
            ),
            processors: Some(several.processors.to_string()),
            executed: Some(each.swap_remove(each.len() / 2).1),
            expected: Some(expected),
            resident,
            energy,
            copied: None,
        }
    }
}

impl Several<'_> {
    /// Runs all tests of `plan` on these processors; prefills run by all policies in turns. Also returns the execution
    /// of the last prefill.
    pub fn run(
        &self,
        plan: &Plan,
        model: &Arc<Model>,
        name: &str,
    ) -> Result<(Vec<Measurement>, Option<Execution>)> {
        let policy = self.policies.first().copied().unwrap_or_default();
        let chunks_in_flight = self.chunks_in_flight;
        let options = HeteroOptions {
            engine: plan.options(model),
            policy,
            chunks_in_flight,
            ..HeteroOptions::default()
        };
        let engine = self.processors.engine(self.devices, model, options)?;
        let kept = engine.costs();
        let cancel = Cancel::new();
        let on_ctrl_c = cancel.clone();
        let _guard = on_interrupt(move || on_ctrl_c.cancel());
        let mut bench = Bench {
            engine: &engine,
            session: engine.session(),
            several: self,
            cancel: cancel.clone(),
        };
        let mut measured = Vec::new();
        for &tokens in &plan.prompts {
            let _spinner = progress::spinner(format!(
                "measuring a prefill of {tokens} tokens on {}",
                self.processors
            ));
            let runs = bench
                .in_turns(tokens, plan.repeat, &kept)
                .map_err(|error| failed(error, name))?;
            let resident = machine::resident();
            measured.extend(
                runs.into_iter()
                    .map(|runs| runs.measurement(tokens, self, resident)),
            );
        }
        let decodes = plan.tests().filter(|(test, ..)| *test == Test::Decode);
        let on = (self.processors.threads(), Some(self.processors));
        let decodes: Result<Vec<_>, Error> = decodes
            .map(|test| Ok(plan.measure(&engine, test, on, &cancel)?.0))
            .collect();
        measured.extend(decodes.map_err(|error| failed(error, name))?);
        executed::note_outlier_cache(&engine);
        Ok((measured, execution(&bench.session).cloned()))
    }
}
