//! Several passes on the same processors: prompts that arrive at any time, and decode steps that run concurrently.
//!
//! A pass is one [`Dag`] with its own [`Schedule`]. [`Passes`] chooses the pass from which a processor takes its next
//! task. Like a schedule, it is a pure state machine: the time is an argument. The simulator and the engine use the
//! same one.

use std::borrow::Borrow;

use serde::{Deserialize, Serialize};

use crate::processors::ProcessorId;
use crate::schedule::{Dag, Lost, Policy, Schedule};

/// The number of a pass, in the order in which passes are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PassId(u64);

impl PassId {
    /// Returns the number of passes that were added before it.
    pub fn index(self) -> u64 {
        self.0
    }
}

/// The priority of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Urgency {
    /// Chunks of a prompt. Prompts are served in the order in which they were added. A task of a later prompt runs only
    /// if the earlier ones have none ready for the processor.
    Prefill,
    /// One decode step of sequences. Until it has waited for `max_stall`, it yields to tasks of prompts and only takes
    /// processors that would be idle. Then it goes first. Steps are served in the order of `since`.
    Decode {
        /// Time in seconds at which the sequences started to wait for the step, on the clock of [`Passes::next`].
        since: f64,
    },
}

/// A pass that is not over.
#[derive(Clone, Debug)]
struct Pass<D> {
    id: PassId,
    schedule: Schedule<D>,
    is_cancelled: bool,
    /// Tasks that no remaining processor can run, ascending.
    orphans: Vec<usize>,
}

/// State of several passes on the same processors.
#[derive(Clone, Debug)]
pub struct Passes<D> {
    policy: Policy,
    max_stall: f64,
    is_lost: Vec<bool>,
    /// The task that each processor runs.
    running: Vec<Option<(PassId, usize)>>,
    /// Prompts in the order in which they were added.
    prefills: Vec<Pass<D>>,
    /// Decode steps with the time since which they wait, ascending.
    decodes: Vec<(f64, Pass<D>)>,
    next: u64,
}

impl<D: Borrow<Dag>> Passes<D> {
    /// Creates an empty list of passes on `processors` processors. `policy` chooses among the tasks of one pass. A
    /// decode step yields to prompts for `max_stall` seconds.
    ///
    /// # Panics
    /// If `max_stall` is negative or not a number. With an infinite one, prompts always go first.
    pub fn new(processors: usize, policy: Policy, max_stall: f64) -> Self {
        assert!(max_stall >= 0.0, "a stall of {max_stall} seconds");
        Self {
            policy,
            max_stall,
            is_lost: vec![false; processors],
            running: vec![None; processors],
            prefills: Vec::new(),
            decodes: Vec::new(),
            next: 0,
        }
    }

    /// Returns the policy that chooses among the tasks of one pass.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Sets the seconds for which decode steps yield to prompts from now on.
    ///
    /// # Panics
    /// If `seconds` is negative or not a number.
    pub fn set_max_stall(&mut self, seconds: f64) {
        assert!(seconds >= 0.0, "a stall of {seconds} seconds");
        self.max_stall = seconds;
    }

    /// Adds a pass; others may be running. Tasks placed on a lost processor move to others. [`Passes::orphans`] returns
    /// those that no processor can run.
    ///
    /// # Panics
    /// If the tasks are for more processors than there are, or `since` is not finite.
    pub fn add(&mut self, dag: D, urgency: Urgency) -> PassId {
        let asked = dag.borrow().processors();
        assert!(
            asked <= self.is_lost.len(),
            "tasks for {asked} processors of {}",
            self.is_lost.len()
        );
        let mut pass = Pass {
            id: PassId(self.next),
            schedule: Schedule::new(dag, self.policy),
            is_cancelled: false,
            orphans: Vec::new(),
        };
        self.next += 1;
        for index in (0..self.is_lost.len()).filter(|index| self.is_lost[*index]) {
            pass.lose(ProcessorId::new(index));
        }
        let id = pass.id;
        if pass.is_over() {
            return id;
        }
        match urgency {
            Urgency::Prefill => self.prefills.push(pass),
            Urgency::Decode { since } => {
                assert!(since.is_finite(), "a step that waits since {since}");
                let place = self
                    .decodes
                    .partition_point(|(earlier, _)| *earlier <= since);
                self.decodes.insert(place, (since, pass));
            }
        }
        id
    }

    /// Starts the next task of `processor` at `now` and returns it. Returns `None` if the processor already runs a
    /// task, is lost, or no pass has a task for it.
    pub fn next(&mut self, processor: ProcessorId, now: f64) -> Option<(PassId, usize)> {
        let index = processor.index();
        if *self.is_lost.get(index)? || self.running[index].is_some() {
            return None;
        }
        let due = self.due(now);
        let (first, last) = self.decodes.split_at_mut(due);
        let [first, last] = [first, last].map(|steps| steps.iter_mut().map(|(_, pass)| pass));
        let task = first
            .chain(&mut self.prefills)
            .chain(last)
            .find_map(|pass| pass.next(processor));
        self.running[index] = task;
        task
    }

    /// Returns the task that [`Passes::next`] would return.
    pub fn peek(&self, processor: ProcessorId, now: f64) -> Option<(PassId, usize)> {
        let index = processor.index();
        if *self.is_lost.get(index)? || self.running[index].is_some() {
            return None;
        }
        let (first, last) = self.decodes.split_at(self.due(now));
        let [first, last] = [first, last].map(|steps| steps.iter().map(|(_, pass)| pass));
        first
            .chain(&self.prefills)
            .chain(last)
            .find_map(|pass| pass.peek(processor))
    }

    /// Returns the number of decode steps that go before prompts.
    fn due(&self, now: f64) -> usize {
        self.decodes
            .partition_point(|(since, _)| now - since >= self.max_stall)
    }

    /// Marks `task` of `pass`, which [`Passes::next`] returned, as complete. Returns whether it was the last task of
    /// the pass. The state of a pass that is over is dropped.
    ///
    /// # Panics
    /// If the task is not running.
    pub fn complete(&mut self, pass: PassId, task: usize) -> bool {
        let running = self
            .running
            .iter_mut()
            .find(|running| **running == Some((pass, task)));
        *running.unwrap_or_else(|| panic!("task {task} of {pass:?} does not run")) = None;
        let of_pass = self
            .get_mut(pass)
            .expect("a pass is kept as long as one of its tasks runs");
        of_pass.schedule.complete(task);
        let is_complete = of_pass.schedule.is_complete();
        self.drop_over();
        is_complete
    }

    /// Records that `task` of `pass` took `seconds`, and adjusts the expected time of this kind of task in the pass.
    /// Has no effect on a pass that is over.
    pub fn observe(&mut self, pass: PassId, task: usize, seconds: f64) {
        if let Some(pass) = self.get_mut(pass) {
            pass.schedule.observe(task, seconds);
        }
    }

    /// Cancels `pass`: no task of it starts any more. Running tasks continue until [`Passes::complete`].
    pub fn cancel(&mut self, pass: PassId) {
        if let Some(pass) = self.get_mut(pass) {
            pass.is_cancelled = true;
        }
        self.drop_over();
    }

    /// Marks `processor` as lost. Its tasks in each pass move to others, as [`Schedule::lose`] chooses them. Returns
    /// the result for each pass that had such tasks. A pass with orphans never completes; it remains until it is
    /// cancelled.
    pub fn lose(&mut self, processor: ProcessorId) -> Vec<(PassId, Lost)> {
        match self.is_lost.get_mut(processor.index()) {
            Some(is_lost) if !*is_lost => *is_lost = true,
            _ => return Vec::new(),
        }
        self.running[processor.index()] = None;
        let all = self
            .prefills
            .iter_mut()
            .chain(self.decodes.iter_mut().map(|(_, pass)| pass));
        let mut lost: Vec<_> = all.map(|pass| (pass.id, pass.lose(processor))).collect();
        lost.retain(|(_, lost)| *lost != Lost::default());
        lost.sort_by_key(|(pass, _)| *pass);
        self.drop_over();
        lost
    }

    /// Returns whether `pass` is over: all its tasks are complete, or it was cancelled and none of them runs.
    pub fn is_complete(&self, pass: PassId) -> bool {
        pass.0 < self.next && self.get(pass).is_none()
    }

    /// Returns whether every pass is over.
    pub fn is_empty(&self) -> bool {
        self.prefills.is_empty() && self.decodes.is_empty()
    }

    /// Returns the task that `processor` runs.
    pub fn running(&self, processor: ProcessorId) -> Option<(PassId, usize)> {
        self.running.get(processor.index()).copied().flatten()
    }

    /// Returns the schedule of a pass; `None` if the pass is over.
    pub fn schedule(&self, pass: PassId) -> Option<&Schedule<D>> {
        self.get(pass).map(|pass| &pass.schedule)
    }

    /// Returns the tasks of a pass that no remaining processor can run, ascending; empty for a pass that is over.
    pub fn orphans(&self, pass: PassId) -> &[usize] {
        self.get(pass).map_or(&[], |pass| &pass.orphans)
    }

    fn get(&self, id: PassId) -> Option<&Pass<D>> {
        let mut all = self
            .prefills
            .iter()
            .chain(self.decodes.iter().map(|(_, pass)| pass));
        all.find(|pass| pass.id == id)
    }

    fn get_mut(&mut self, id: PassId) -> Option<&mut Pass<D>> {
        let mut all = self
            .prefills
            .iter_mut()
            .chain(self.decodes.iter_mut().map(|(_, pass)| pass));
        all.find(|pass| pass.id == id)
    }

    fn drop_over(&mut self) {
        self.prefills.retain(|pass| !pass.is_over());
        self.decodes.retain(|(_, pass)| !pass.is_over());
    }
}

impl<D: Borrow<Dag>> Pass<D> {
    fn next(&mut self, processor: ProcessorId) -> Option<(PassId, usize)> {
        if self.is_cancelled {
            return None;
        }
        self.schedule.next(processor).map(|task| (self.id, task))
    }

    fn peek(&self, processor: ProcessorId) -> Option<(PassId, usize)> {
        if self.is_cancelled {
            return None;
        }
        self.schedule.peek(processor).map(|task| (self.id, task))
    }

    fn lose(&mut self, processor: ProcessorId) -> Lost {
        let lost = self.schedule.lose(processor);
        self.orphans.extend(&lost.orphans);
        self.orphans.sort_unstable();
        lost
    }

    fn is_over(&self) -> bool {
        let dag = self.schedule.dag();
        let runs = || {
            dag.processor_ids()
                .any(|id| self.schedule.running(id).is_some())
        };
        self.schedule.is_complete() || (self.is_cancelled && !runs())
    }
}

#[cfg(test)]
mod tests;
