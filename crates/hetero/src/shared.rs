//! The data that the threads of an executor share.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use triad_kernels::lock;

use crate::dispatcher::Dispatcher;
use crate::machine::Machine;

/// The processors, and the state of their workers.
pub(crate) struct HeteroInner {
    machine: Machine,
    pub(crate) state: Mutex<Dispatcher>,
    /// Notified when there may be something to do.
    pub(crate) changed: Condvar,
    /// Waited on by workers that no live task is for. Waking them after each task would slow down those that compute.
    pub(crate) idle: Condvar,
    /// Incremented with each notification, for workers that poll.
    pub(crate) notifications: AtomicUsize,
    /// The number of workers that wait on `changed`; modified under the lock.
    pub(crate) blocked: AtomicUsize,
    /// Whether the engine is closing; read by the planner thread.
    pub(crate) is_closing: AtomicBool,
    pub(crate) probe: Mutex<Option<Probe>>,
}

/// Called with a processor's index when it begins and ends a task. An error or panic counts as the processor's.
pub(crate) type Probe = Arc<dyn Fn(usize, Moment) -> triad_engine::Result<()> + Send + Sync>;

/// The moment at which a probe is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before a task.
    Before,
    /// After a task, before its completion is recorded.
    After,
}

impl HeteroInner {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            state: Mutex::new(Dispatcher::new(&machine.settings, machine.workers.len())),
            machine,
            changed: Condvar::new(),
            idle: Condvar::new(),
            notifications: AtomicUsize::new(0),
            blocked: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            probe: Mutex::new(None),
        }
    }

    /// Wakes waiting workers.
    pub(crate) fn notify(&self, state: &mut MutexGuard<'_, Dispatcher>) {
        let has_new_work = state.notify();
        self.notifications.fetch_add(1, Ordering::Relaxed);
        // Between short tasks no worker is blocked, and a system call that wakes no thread takes as long as a join.
        if self.blocked.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
        if has_new_work {
            self.idle.notify_all();
        }
    }

    /// Ends the batches that are over, without the lock: others may then be executed.
    pub(crate) fn end_batches<'a>(
        &'a self,
        mut state: MutexGuard<'a, Dispatcher>,
    ) -> MutexGuard<'a, Dispatcher> {
        while !state.ended.is_empty() {
            let ended = std::mem::take(&mut state.ended);
            drop(state);
            ended.iter().for_each(|batch| batch.end());
            state = lock(&self.state);
        }
        state
    }
}

impl Deref for HeteroInner {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}
