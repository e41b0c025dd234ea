//! Processors that fail or hang, and batches that no request waits for.

use std::sync::Arc;

use triad_plan::passes::Passes;
use triad_plan::processors::ProcessorId;

use super::{ActiveGraph, Dispatcher, WorkerState};
use crate::error::Error;
use crate::failure::{FailureReason, ProcessorFailure, ProcessorFailures};
use crate::machine::Machine;
use crate::task_graph::Work;
use crate::workers::Worker;

impl Dispatcher {
    /// Ends batches whose requests are all cancelled, and those that no processor is left for.
    pub(crate) fn drop_abandoned(&mut self, shared: &Machine) {
        let ended = &mut self.ended;
        self.pending.retain(|batch| {
            let is_abandoned = batch.is_abandoned();
            if is_abandoned {
                ended.push(Arc::clone(batch));
            }
            !is_abandoned
        });
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
                if let Some(batch) = &live.pass.batch {
                    if live.is_orphaned {
                        batch.fail(|| live.error().into());
                    }
                    self.ended.push(Arc::clone(batch));
                }
                self.hidden.retain(|hidden| !hidden.request.is_cancelled());
            }
        }
    }

    /// If nothing is being computed, restores the processors that failed, except those that still hang.
    pub(crate) fn reset_failed(&mut self, shared: &Machine) {
        let was_lost = self.workers.iter().any(|worker| worker.is_lost);
        let is_away = |worker: usize| shared.workers[worker].is_away();
        if was_lost || self.passes.policy() != self.policy {
            self.passes = Passes::new(self.workers.len(), self.policy, 0.0);
            for worker in 0..self.workers.len() {
                let state = &mut self.workers[worker];
                (state.is_lost, state.running) = (is_away(worker), None);
                if is_away(worker) {
                    self.passes.lose(ProcessorId::new(worker));
                }
            }
        }
    }

    /// Marks a processor as failed. Others take its tasks; if none is left, all requests of live graphs fail.
    pub(crate) fn lose(&mut self, shared: &Machine, worker: usize, reason: FailureReason) {
        let running = self.workers[worker].running.take();
        self.workers[worker].is_lost = true;
        self.has_new_work = true;
        for live in &mut self.live {
            let task = running
                .filter(|(id, ..)| *id == live.id)
                .and_then(|(_, number, _)| match &live.pass.work {
                    Work::Prompts(prompts) => Some(prompts.tasks.tasks[number].task),
                    Work::Step(_) | Work::Logits(_) => None,
                });
            let processor = shared.workers[worker].name.clone();
            live.failures.push(ProcessorFailure {
                processor,
                task,
                reason: reason.clone(),
            });
        }
        self.passes.lose(ProcessorId::new(worker));
        if self.workers.iter().all(|worker| worker.is_lost) {
            let ids: Vec<_> = self.live.iter().map(|live| live.id).collect();
            for id in ids {
                let live = self.remove(shared, id);
                if let Work::Logits(hidden) = &live.pass.work {
                    for one in hidden {
                        one.request.fail(live.error().into());
                    }
                }
                if let Some(batch) = &live.pass.batch {
                    batch.fail(|| live.error().into());
                    self.ended.push(Arc::clone(batch));
                }
            }
            let failure = ProcessorFailure {
                processor: shared.workers[worker].name.clone(),
                task: None,
                reason,
            };
            for hidden in self.hidden.drain(..) {
                let error = Error::Processors {
                    failures: ProcessorFailures(vec![failure.clone()]),
                };
                hidden.request.fail(error.into());
            }
        }
    }

    /// Marks processors as failed that have run a task for longer than `time_out`. Returns whether there was one.
    pub(crate) fn lose_hung(&mut self, shared: &Machine) -> bool {
        let time_out = shared.settings.time_out;
        let hung = (0..self.workers.len()).filter(|worker| {
            let WorkerState {
                is_lost, running, ..
            } = &self.workers[*worker];
            !is_lost && running.is_some_and(|(.., since)| since.elapsed() > time_out)
        });
        let hung: Vec<_> = hung.collect();
        for worker in &hung {
            shared.workers[*worker].set_away(true);
            if let Some((id, number, _)) = self.workers[*worker].running
                && let Some(live) = self.live.iter_mut().find(|live| live.id == id)
            {
                if let Some(batch) = &live.pass.batch {
                    batch.taint();
                }
                if let Some(place) = live.pass.slot(number, live.slots.len()) {
                    live.slots[place] = None;
                }
            }
            self.lose(shared, *worker, FailureReason::TimeOut(time_out));
        }
        !hung.is_empty()
    }

    /// Fails the waiting batches if every processor hangs: no worker would.
    pub(crate) fn fail_stranded(&mut self, shared: &Machine) {
        if shared.workers.iter().all(Worker::is_away) {
            for batch in self.pending.drain(..) {
                batch.fail(|| {
                    let all = shared.workers.iter().map(|worker| ProcessorFailure {
                        processor: worker.name.clone(),
                        task: None,
                        reason: FailureReason::Away,
                    });
                    let failures = ProcessorFailures(all.collect());
                    Error::Processors { failures }.into()
                });
                self.ended.push(batch);
            }
        }
    }
}

impl ActiveGraph {
    /// Returns the failures of its processors as an error.
    pub(crate) fn error(&self) -> Error {
        Error::Processors {
            failures: ProcessorFailures(self.failures.clone()),
        }
    }
}
