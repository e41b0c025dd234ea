//! Batches of waiting requests: prompts, decode steps, logits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use triad_kernels::lock;
use triad_plan::passes::Urgency;
use triad_plan::schedule::{Dag, Node, Policy};

use super::{ActiveBatch, CHUNKS_OF_STALL, DecodeGroup, Scheduler};
use crate::error::{FailureReason, ProcessorFailure};
use crate::execute::EngineInner;
use crate::execute::batch::{Batch, Prompts, Step, Work};
use crate::execute::request::Request;

impl Scheduler {
    /// Forms batches of the waiting requests.
    pub(super) fn form(&mut self, shared: &EngineInner) {
        if self.prompts.is_empty() && self.rows.is_empty() && self.hidden.is_empty() {
            return;
        }
        let stall = shared.settings.max_stall.map(|stall| stall.as_secs_f64());
        self.passes
            .set_max_stall(stall.unwrap_or(CHUNKS_OF_STALL * self.chunk_seconds));
        self.form_logits(shared);
        self.form_step(shared);
        self.form_prompts(shared);
    }

    /// Forms a pass for the logits of all rows that have been through all blocks.
    pub(super) fn form_logits(&mut self, shared: &EngineInner) {
        if self.hidden.is_empty() {
            return;
        }
        let hidden = std::mem::take(&mut self.hidden);
        let dag = self.chain(shared, 1, 0.1 * self.step_seconds);
        let pass = Batch::new(Vec::new(), |_, _| Work::Logits(hidden));
        self.add(
            shared,
            pass,
            (dag, self.policy),
            0,
            Urgency::Decode { since: f64::MIN },
        );
    }

    /// Forms a step of as many waiting rows as allowed, unless one runs, or sequences of the latest one are missing.
    pub(super) fn form_step(&mut self, shared: &EngineInner) {
        let now = Instant::now();
        let is_stepping = self
            .live
            .iter()
            .any(|live| matches!(live.pass.work, Work::Step(_)));
        let is_whole = self.decode_group.missing.is_empty()
            || self.decode_group.until.is_none_or(|until| until <= now);
        if is_stepping || !is_whole || self.rows.is_empty() {
            return;
        }
        self.decode_group = DecodeGroup::default();
        let (mut requests, mut rows) = (Vec::<Arc<Request>>::new(), 0);
        while let Some(request) = self.rows.front()
            && requests.first().is_none_or(|first| {
                rows + request.tokens.len() <= shared.settings.most_rows
                    && first.may_share_a_pass(shared, request)
            })
        {
            rows += request.tokens.len();
            requests.extend(self.rows.pop_front());
        }
        let since = requests
            .iter()
            .map(|request| request.arrived)
            .min()
            .unwrap_or(now);
        // While prompts are computed, each part would wait for one of their tasks.
        let is_alone = self.live.is_empty()
            && self.prompts.is_empty()
            && !self.units.iter().any(|unit| unit.is_lost);
        let cut = shared.steps.as_ref().filter(|_| is_alone);
        let cut =
            cut.and_then(|steps| steps.of(shared.model.description(), &shared.processors, rows));
        let (step, dag) = match cut {
            Some(cut) if lock(&cut.trial).next_is_cut() => {
                (Step::Cut(Arc::clone(&cut)), Arc::clone(&cut.dag))
            }
            in_place_of => {
                // One task per block, so that tasks of prompts can run between them.
                let tasks = if shared.units.len() > 1 {
                    shared.model.description().blocks.len()
                } else {
                    1
                };
                (
                    Step::Blocks { tasks, in_place_of },
                    self.chain(shared, tasks, self.step_seconds / tasks as f64),
                )
            }
        };
        let pass = Batch::new(requests, |_, _| Work::Step(step));
        self.add(
            shared,
            pass,
            (dag, self.policy),
            1,
            Urgency::Decode {
                since: shared.seconds(since),
            },
        );
    }

    /// Forms a pass of all waiting prompts. A second pass uses processors that the first one's last chunks leave idle.
    pub(super) fn form_prompts(&mut self, shared: &EngineInner) {
        let most = shared.units.len().min(2);
        let live = self
            .live
            .iter()
            .filter(|live| matches!(live.pass.work, Work::Prompts(_)))
            .count();
        let is_cut = |live: &ActiveBatch| matches!(live.pass.work, Work::Step(Step::Cut(_)));
        if live >= most || self.prompts.is_empty() || self.live.iter().any(is_cut) {
            return;
        }
        let mut requests: Vec<_> = self.prompts.drain(..).collect();
        let others = requests
            .iter()
            .position(|request| !request.may_share_a_pass(shared, &requests[0]));
        self.prompts.extend(
            requests
                .drain(others.unwrap_or(requests.len())..)
                .collect::<Vec<_>>(),
        );
        let pass = Batch::new(requests, |rows, position| {
            Work::Prompts(Box::new(self.plan(shared, rows, position)))
        });
        for request in &pass.requests {
            request.set_execution(&pass.execution);
        }
        let Work::Prompts(prompts) = &pass.work else {
            unreachable!("prompts were planned")
        };
        let (dag, policy) = self.scheduled(prompts.tasks.dag.clone(), self.policy);
        if policy != self.policy && !dag.has_one_home() {
            self.want_order(shared, pass.rows(), pass.requests[0].position);
        }
        let slots = prompts.slots;
        self.add(
            shared,
            pass,
            (Arc::new(dag), policy),
            slots,
            Urgency::Prefill,
        );
    }

    /// Returns the tasks of a prompt, with their planned order if the policy follows one, and the policy to run them
    /// by. Without an order, or if one processor computes all of it, this is the policy that schedules fall back to.
    pub(in crate::execute) fn scheduled(&self, dag: Dag, policy: Policy) -> (Dag, Policy) {
        match policy {
            Policy::Planned if dag.has_one_home() => (dag, Policy::CriticalPath),
            Policy::Planned => match self.orders.of(&dag) {
                Some(order) => (dag.with_plan(order, 0.0), policy),
                None => (dag, Policy::CriticalPath),
            },
            policy => (dag, policy),
        }
    }

    pub(super) fn add(
        &mut self,
        shared: &EngineInner,
        pass: Batch,
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
        let mut homes = vec![false; self.units.len()];
        (0..dag.len()).for_each(|task| homes[dag.home(task).index()] = true);
        let id = self.passes.add(dag, urgency);
        self.has_new_work = true;
        let away = (0..self.units.len()).filter(|unit| self.units[*unit].is_lost);
        let failures = away.map(|unit| ProcessorFailure {
            processor: shared.units[unit].name.clone(),
            task: None,
            reason: FailureReason::Away,
        });
        let is_undisturbed = self.live.iter().all(|live| live.pass.is_logits());
        self.live
            .iter_mut()
            .for_each(|live| live.is_undisturbed &= pass.is_logits());
        self.live.push(ActiveBatch {
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
    pub(super) fn chain(&self, shared: &EngineInner, tasks: usize, seconds: f64) -> Arc<Dag> {
        let seconds = vec![Some(seconds); self.units.len()];
        let node = |task: usize| Node {
            home: shared.float_unit,
            seconds: seconds.clone(),
            predecessors: task.checked_sub(1).into_iter().collect(),
            kind: 0,
        };
        Arc::new(Dag::from_nodes(self.units.len(), (0..tasks).map(node)))
    }
}
