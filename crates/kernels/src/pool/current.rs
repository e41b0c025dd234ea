//! The pool that is installed on a thread, and the loops that use it.

use std::cell::Cell;
use std::sync::Arc;

use super::team::Team;

thread_local! {
    /// The team of the pool that is installed on this thread; `None` on workers and inside tasks.
    static TEAM: Cell<Option<Arc<Team>>> = const { Cell::new(None) };
    /// Number of threads of that pool; also set on workers and inside tasks.
    static THREADS: Cell<usize> = const { Cell::new(1) };
    /// Whether this thread runs a task of some pool.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
    static THIS_THREAD: u8 = const { 0 };
}

/// Returns an identity of this thread that no other living thread has; not zero.
pub(super) fn this_thread() -> usize {
    THIS_THREAD.with(|place| std::ptr::from_ref(place).addr())
}

/// Returns whether this thread runs a task of some pool.
pub(super) fn in_task() -> bool {
    IN_TASK.get()
}

/// Makes this thread a worker of a pool of `threads` threads: everything that it runs is a task.
pub(super) fn become_worker(threads: usize) {
    THREADS.set(threads);
    IN_TASK.set(true);
}

/// The pool that is installed on a thread.
pub(super) struct Current {
    team: Option<Arc<Team>>,
    threads: usize,
}

impl Current {
    pub(super) fn new(team: &Arc<Team>, threads: usize) -> Self {
        Self {
            team: Some(Arc::clone(team)),
            threads,
        }
    }

    /// Installs the pool on this thread. Returns the previously installed one.
    pub(super) fn replace(self) -> Self {
        Self {
            team: TEAM.replace(self.team),
            threads: THREADS.replace(self.threads),
        }
    }
}

/// Returns the number of threads of the pool that is installed on this thread; 1 if there is none.
pub fn threads() -> usize {
    THREADS.get()
}

/// Calls `work` with each number below `tasks`, on the threads of the installed pool. Each thread has a share of
/// consecutive numbers (the caller has the lowest ones) and takes `grain` of them at a time (at least one). A thread
/// without remaining numbers takes those of others.
///
/// # Panics
/// If a call panics, with the same payload.
pub fn for_each(tasks: usize, grain: usize, work: impl Fn(usize) + Sync) {
    let grain = grain.max(1);
    match if tasks > grain {
        InTask::of_installed()
    } else {
        None
    } {
        Some(in_task) => in_task.team().run(tasks, grain, &work),
        None => (0..tasks).for_each(work),
    }
}

/// Runs [`for_each`] over the tasks of several parts as one operator. `counts` are the numbers of tasks of each part;
/// `work` is called with the part and the index of the task in it. The tasks of a part come before those of the next.
///
/// # Panics
/// If a call panics, with the same payload.
pub fn for_each_of(
    counts: &(impl Iterator<Item = usize> + Clone + Sync),
    work: impl Fn(usize, usize) + Sync,
) {
    for_each(counts.clone().sum(), 1, |mut task| {
        for (part, count) in counts.clone().enumerate() {
            if task < count {
                return work(part, task);
            }
            task -= count;
        }
    });
}

/// A guard: while it exists, this thread runs the tasks of its team as the caller, and has no pool installed, so that
/// operators inside the tasks are loops.
struct InTask(Option<Arc<Team>>);

impl InTask {
    /// Returns `None` if no pool is installed on this thread, or inside a task.
    fn of_installed() -> Option<Self> {
        let team = TEAM.take()?;
        IN_TASK.set(true);
        Some(Self(Some(team)))
    }

    fn team(&self) -> &Team {
        self.0.as_ref().expect("set until it is dropped")
    }
}

impl Drop for InTask {
    fn drop(&mut self) {
        IN_TASK.set(false);
        TEAM.set(self.0.take());
    }
}
