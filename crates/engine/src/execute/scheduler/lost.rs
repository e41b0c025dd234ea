//! Processors that fail or hang, and batches that no request waits for.

use triad_plan::passes::Passes;
use triad_plan::processors::ProcessorId;

use super::{ActiveBatch, Scheduler, UnitState};
use crate::error::{Error, FailureReason, ProcessorFailure, ProcessorFailures};
use crate::execute::batch::Work;
use crate::execute::{EngineInner, Unit};

impl Scheduler {
    /// Ends cancelled requests, and passes that no processor is left for.
    pub(super) fn drop_abandoned(&mut self, shared: &EngineInner) {
        for queue in [&mut self.prompts, &mut self.rows] {
            queue.retain(|request| {
                let is_cancelled = request.is_cancelled();
                if is_cancelled {
                    request.fail(Error::Cancelled);
                }
                !is_cancelled
            });
        }
        for live in &mut self.live {
            live.is_orphaned |= !self.passes.orphans(live.id).is_empty();
        }
        let abandoned = self
            .live
            .iter()
            .filter(|live| live.is_orphaned || live.pass.is_abandoned());
        for id in abandoned.map(|live| live.id).collect::<Vec<_>>() {
            self.passes.cancel(id);
            // A worker that runs a task of it ends that task first.
            if !self.is_running(id) {
                let live = self.remove(shared, id);
                for request in &live.pass.requests {
                    let is_cancelled = !live.is_orphaned || request.is_cancelled();
                    request.fail(if is_cancelled {
                        Error::Cancelled
                    } else {
                        live.error()
                    });
                }
                self.hidden.retain(|hidden| !hidden.request.is_cancelled());
            }
        }
    }

    /// If nothing is being computed, restores the processors that failed, except those that still hang.
    pub(super) fn reset_failed(&mut self, shared: &EngineInner) {
        let was_lost = self.units.iter().any(|unit| unit.is_lost);
        let is_away = |unit: usize| shared.units[unit].is_away();
        if was_lost || self.passes.policy() != self.policy {
            self.passes = Passes::new(self.units.len(), self.policy, 0.0);
            for unit in 0..self.units.len() {
                let state = &mut self.units[unit];
                (state.is_lost, state.running) = (is_away(unit), None);
                if is_away(unit) {
                    self.passes.lose(ProcessorId::new(unit));
                }
            }
        }
    }

    /// Marks a processor as failed. Others take its tasks; if none is left, all requests of live passes fail.
    pub(super) fn lose(&mut self, shared: &EngineInner, unit: usize, reason: FailureReason) {
        let running = self.units[unit].running.take();
        self.units[unit].is_lost = true;
        self.has_new_work = true;
        for live in &mut self.live {
            let task = running
                .filter(|(id, ..)| *id == live.id)
                .and_then(|(_, number, _)| match &live.pass.work {
                    Work::Prompts(prompts) => Some(prompts.tasks.tasks[number].task),
                    Work::Step(_) | Work::Logits(_) => None,
                });
            let processor = shared.units[unit].name.clone();
            live.failures.push(ProcessorFailure {
                processor,
                task,
                reason: reason.clone(),
            });
        }
        self.passes.lose(ProcessorId::new(unit));
        if self.units.iter().all(|unit| unit.is_lost) {
            let ids: Vec<_> = self.live.iter().map(|live| live.id).collect();
            for id in ids {
                let live = self.remove(shared, id);
                let of_logits = if let Work::Logits(hidden) = &live.pass.work {
                    &hidden[..]
                } else {
                    &[]
                };
                let requests = live
                    .pass
                    .requests
                    .iter()
                    .chain(of_logits.iter().map(|hidden| &hidden.request));
                requests.for_each(|request| request.fail(live.error()));
            }
            let failure = ProcessorFailure {
                processor: shared.units[unit].name.clone(),
                task: None,
                reason,
            };
            for hidden in self.hidden.drain(..) {
                hidden.request.fail(Error::Processors {
                    failures: ProcessorFailures(vec![failure.clone()]),
                });
            }
        }
    }

    /// Marks processors as failed that have run a task for longer than `time_out`. Returns whether there was one.
    pub(in crate::execute) fn lose_hung(&mut self, shared: &EngineInner) -> bool {
        let time_out = shared.settings.time_out;
        let hung = (0..self.units.len()).filter(|unit| {
            let UnitState {
                is_lost, running, ..
            } = &self.units[*unit];
            !is_lost && running.is_some_and(|(.., since)| since.elapsed() > time_out)
        });
        let hung: Vec<_> = hung.collect();
        for unit in &hung {
            shared.units[*unit].set_away(true);
            if let Some((id, number, _)) = self.units[*unit].running
                && let Some(live) = self.live.iter_mut().find(|live| live.id == id)
            {
                live.pass
                    .requests
                    .iter()
                    .for_each(|request| request.taint());
                if let Some(place) = live.pass.slot(number, live.slots.len()) {
                    live.slots[place] = None;
                }
            }
            self.lose(shared, *unit, FailureReason::TimeOut(time_out));
        }
        !hung.is_empty()
    }

    /// Fails the waiting requests if every processor hangs: no worker would.
    pub(in crate::execute) fn fail_stranded(&mut self, shared: &EngineInner) {
        if shared.units.iter().all(Unit::is_away) {
            for request in self.prompts.drain(..).chain(self.rows.drain(..)) {
                let all = shared.units.iter().map(|unit| ProcessorFailure {
                    processor: unit.name.clone(),
                    task: None,
                    reason: FailureReason::Away,
                });
                request.fail(Error::Processors {
                    failures: ProcessorFailures(all.collect()),
                });
            }
        }
    }
}

impl ActiveBatch {
    /// Returns the failures of its processors as an error.
    pub(super) fn error(&self) -> Error {
        Error::Processors {
            failures: ProcessorFailures(self.failures.clone()),
        }
    }
}
