//! Graphs of batches: prompts, decode steps, logits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use triad_kernels::{Phase, lock};
use triad_plan::passes::Urgency;
use triad_plan::schedule::{Dag, Node, Policy};

use triad_engine::batch::Batch;

use super::{ActiveGraph, CHUNKS_OF_STALL, Dispatcher};
use crate::failure::{FailureReason, ProcessorFailure};
use crate::machine::Machine;
use crate::task_graph::{Prompts, Step, TaskGraph, Work};

impl Dispatcher {
    /// Makes graphs of the waiting batches.
    pub(crate) fn form(&mut self, shared: &Machine) {
        if self.pending.is_empty() && self.hidden.is_empty() {
            return;
        }
        let stall = shared.settings.max_stall.map(|stall| stall.as_secs_f64());
        self.passes
            .set_max_stall(stall.unwrap_or(CHUNKS_OF_STALL * self.chunk_seconds));
        self.form_logits(shared);
        for batch in std::mem::take(&mut self.pending) {
            match batch.phase() {
                Phase::Decode => self.form_step(shared, batch),
                // The parts of a cut step would wait for tasks of prompts.
                Phase::Prefill if self.live.iter().any(ActiveGraph::is_cut) => {
                    self.pending.push_back(batch);
                }
                Phase::Prefill => self.form_prompts(shared, batch),
            }
        }
    }

    /// Forms a graph for the logits of all rows that have been through all layers.
    fn form_logits(&mut self, shared: &Machine) {
        if self.hidden.is_empty() {
            return;
        }
        let hidden = std::mem::take(&mut self.hidden);
        let dag = self.chain(shared, 1, 0.1 * self.step_seconds);
        let graph = TaskGraph::new(None, Work::Logits(hidden));
        let urgency = Urgency::Decode { since: f64::MIN };
        self.add(shared, graph, (dag, self.policy), 0, urgency);
    }

    /// Forms the graph of a decode step.
    fn form_step(&mut self, shared: &Machine, batch: Arc<Batch>) {
        // While prompts are computed, each part would wait for one of their tasks.
        let is_alone = self.live.is_empty()
            && self.pending.is_empty()
            && !self.workers.iter().any(|worker| worker.is_lost);
        let cut = shared.steps.as_ref().filter(|_| is_alone);
        let (description, processors) = (shared.forward.description(), &shared.processors);
        let cut = cut.and_then(|steps| steps.step(description, processors, batch.rows()));
        let (step, dag) = match cut {
            Some(cut) if lock(&cut.trial).next_is_cut() => {
                (Step::Cut(Arc::clone(&cut)), Arc::clone(&cut.dag))
            }
            in_place_of => {
                // One task per layer, so that tasks of prompts can run between them.
                let tasks = if shared.workers.len() > 1 {
                    description.blocks.len()
                } else {
                    1
                };
                let seconds = self.step_seconds / tasks as f64;
                let step = Step::Blocks { tasks, in_place_of };
                (step, self.chain(shared, tasks, seconds))
            }
        };
        let since = shared.seconds(batch.since());
        let graph = TaskGraph::new(Some(batch), Work::Step(step));
        let urgency = Urgency::Decode { since };
        self.add(shared, graph, (dag, self.policy), 1, urgency);
    }

    /// Forms the graph of prompts.
    fn form_prompts(&mut self, shared: &Machine, batch: Arc<Batch>) {
        let (rows, position) = (batch.rows(), batch.position());
        let prompts = match batch.has_whole_pictures() {
            // A plan has other chunks.
            true => Prompts::new(shared, &self.costs, None, (rows, position)),
            false => self.plan(shared, rows, position),
        };
        let (dag, policy) = self.scheduled(prompts.tasks.dag.clone(), self.policy);
        if policy != self.policy && !dag.has_one_home() {
            self.want_order(shared, rows, position);
        }
        let slots = prompts.slots;
        let graph = TaskGraph::new(Some(batch), Work::Prompts(Box::new(prompts)));
        let how = (Arc::new(dag), policy);
        self.add(shared, graph, how, slots, Urgency::Prefill);
    }

    /// Returns the tasks of a prompt, with their planned order if the policy follows one, and the policy to run them
    /// by. Without an order, or if one processor computes all of it, this is the policy that schedules fall back to.
    pub(crate) fn scheduled(&self, dag: Dag, policy: Policy) -> (Dag, Policy) {
        match policy {
            Policy::Planned if dag.has_one_home() => (dag, Policy::CriticalPath),
            Policy::Planned => match self.orders.order(&dag) {
                Some(order) => (dag.with_plan(order, 0.0), policy),
                None => (dag, Policy::CriticalPath),
            },
            policy => (dag, policy),
        }
    }

    pub(crate) fn add(
        &mut self,
        shared: &Machine,
        pass: TaskGraph,
        (dag, policy): (Arc<Dag>, Policy),
        slots: usize,
        urgency: Urgency,
    ) {
        let left: Vec<_> = match &pass.work {
            Work::Prompts(prompts) => {
                let Prompts { graph, tasks, .. } = &**prompts;
                let last = graph.subgraphs().len() - 1;
                (0..graph.chunks().len())
                    .map(|chunk| tasks.pieces(chunk, last).len())
                    .collect()
            }
            Work::Step(_) | Work::Logits(_) => Vec::new(),
        };
        let mut homes = vec![false; self.workers.len()];
        (0..dag.len()).for_each(|task| homes[dag.home(task).index()] = true);
        let id = self.passes.add(dag, urgency);
        self.has_new_work = true;
        let away = (0..self.workers.len()).filter(|worker| self.workers[*worker].is_lost);
        let failures = away.map(|worker| ProcessorFailure {
            processor: shared.workers[worker].name.clone(),
            task: None,
            reason: FailureReason::Away,
        });
        let is_undisturbed = self.live.iter().all(|live| live.pass.is_logits());
        self.live
            .iter_mut()
            .for_each(|live| live.is_undisturbed &= pass.is_logits());
        self.live.push(ActiveGraph {
            id,
            pass: Arc::new(pass),
            slots: vec![None; slots],
            hidden: left.iter().map(|_| Vec::new()).collect(),
            left,
            homes,
            events: Vec::new(),
            failures: failures.collect(),
            is_orphaned: false,
            is_undisturbed,
            waits: self.waits.clone(),
            policy,
        });
        shared.is_computing.store(true, Ordering::Relaxed);
    }

    /// Returns `tasks` tasks in sequence, on the processor that computes in float.
    pub(crate) fn chain(&self, shared: &Machine, tasks: usize, seconds: f64) -> Arc<Dag> {
        let seconds = vec![Some(seconds); self.workers.len()];
        let node = |task: usize| Node {
            home: shared.float_unit,
            seconds: seconds.clone(),
            predecessors: task.checked_sub(1).into_iter().collect(),
            kind: 0,
        };
        Arc::new(Dag::from_nodes(self.workers.len(), (0..tasks).map(node)))
    }
}

impl ActiveGraph {
    /// Returns whether it is a step whose products are cut.
    fn is_cut(&self) -> bool {
        matches!(self.pass.work, Work::Step(Step::Cut(_)))
    }
}
