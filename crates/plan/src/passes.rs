//! Several passes on the same processors: prompts that are computed, and steps of sequences that decode.

use crate::processors::ProcessorId;
use crate::schedule::{Dag, Policy, Schedule};

/// A pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PassId(u64);

/// How urgent a pass is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Urgency {
    /// In the order of arrival.
    Prefill,
    /// A step of sequences that have been waiting since.
    Decode {
        /// Seconds.
        since: f64,
    },
}

struct Pass {
    id: PassId,
    schedule: Schedule<Dag>,
    urgency: Urgency,
    is_cancelled: bool,
}

/// Passes on the same processors.
pub struct Passes {
    processors: usize,
    policy: Policy,
    max_stall: f64,
    passes: Vec<Pass>,
    next: u64,
    running: Vec<Option<PassId>>,
    is_lost: Vec<bool>,
}

impl Passes {
    /// None.
    pub fn new(processors: usize, policy: Policy, max_stall: f64) -> Self {
        Self {
            processors,
            policy,
            max_stall,
            passes: Vec::new(),
            next: 0,
            running: vec![None; processors],
            is_lost: vec![false; processors],
        }
    }

    /// What decides within a pass.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Longest wait of a step.
    pub fn set_max_stall(&mut self, seconds: f64) {
        self.max_stall = seconds;
    }

    /// Another pass.
    pub fn add(&mut self, dag: Dag, urgency: Urgency, _now: f64) -> PassId {
        let id = PassId(self.next);
        self.next += 1;
        let mut schedule = Schedule::new(dag, self.policy);
        for processor in 0..self.processors {
            if self.is_lost[processor] {
                schedule.lose(ProcessorId::new(processor));
            }
        }
        self.passes.push(Pass { id, schedule, urgency, is_cancelled: false });
        id
    }

    /// The next task.
    pub fn next(&mut self, processor: ProcessorId, now: f64) -> Option<(PassId, usize)> {
        if self.is_lost[processor.index()] || self.running[processor.index()].is_some() {
            return None;
        }
        let stall = self.max_stall;
        let due = |pass: &Pass| match pass.urgency {
            Urgency::Prefill => 1,
            Urgency::Decode { since } if now - since >= stall => 0,
            Urgency::Decode { .. } => 2,
        };
        let mut order: Vec<usize> = (0..self.passes.len()).collect();
        order.sort_by_key(|index| due(&self.passes[*index]));
        for index in order {
            let pass = &mut self.passes[index];
            if pass.is_cancelled {
                continue;
            }
            if let Some(task) = pass.schedule.next(processor) {
                self.running[processor.index()] = Some(pass.id);
                return Some((pass.id, task));
            }
        }
        None
    }

    fn pass(&mut self, id: PassId) -> Option<&mut Pass> {
        self.passes.iter_mut().find(|pass| pass.id == id)
    }

    /// A task is done.
    pub fn complete(&mut self, id: PassId, task: usize, _now: f64) {
        let Some(pass) = self.pass(id) else { return };
        let home = pass.schedule.home(task);
        pass.schedule.complete(task);
        self.running[home.index()] = None;
    }

    /// What a task took.
    pub fn observe(&mut self, id: PassId, task: usize, seconds: f64) {
        if let Some(pass) = self.pass(id) {
            pass.schedule.observe(task, seconds);
        }
    }

    /// Nothing of it starts any more.
    pub fn cancel(&mut self, id: PassId) {
        if let Some(pass) = self.pass(id) {
            pass.is_cancelled = true;
        }
    }

    /// Forgets a pass.
    pub fn remove(&mut self, id: PassId) {
        self.passes.retain(|pass| pass.id != id);
    }

    /// A processor fails.
    pub fn lose(&mut self, processor: ProcessorId) {
        self.is_lost[processor.index()] = true;
        self.running[processor.index()] = None;
        for pass in &mut self.passes {
            pass.schedule.lose(processor);
        }
    }

    /// Whether all of a pass is done.
    pub fn is_complete(&self, id: PassId) -> bool {
        self.passes.iter().find(|pass| pass.id == id).is_none_or(|pass| pass.schedule.is_complete())
    }
}
