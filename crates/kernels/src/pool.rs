//! Threads that compute the tasks of one operator together.
//!
//! A [`Pool`] is entered by [`Pool::install`]; inside, [`for_each`] hands an operator's tasks to the calling thread and to
//! the workers of the pool, each taking the next when it is done. Operators follow each other within microseconds, so that
//! a worker without work first spins for a while, which answers faster than the system wakes a thread, and then sleeps. Nothing is allocated for an operator.
//!
//! Outside a pool, and inside one of several tasks, [`for_each`] is a loop.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cores::Cores;

/// How long a worker without work spins before it sleeps: longer than what stands between two operators of a pass.
const SPIN: Duration = Duration::from_micros(200);
/// How often a spinning thread looks before it asks for the time, or lets another thread run.
const LOOKS: u32 = 64;

/// Some threads that work together. Dropping it ends them.
#[derive(Debug)]
pub struct Pool {
    team: Arc<Team>,
    workers: Vec<JoinHandle<()>>,
    /// Where the thread that installs is as long as it does, if not anywhere.
    cores: Option<Cores>,
    /// Whoever has it is the one that computes.
    turn: Mutex<()>,
    /// The thread that has it, as [`this_thread`] calls it; zero if none has.
    owner: AtomicUsize,
}

/// What the workers share.
#[derive(Debug, Default)]
struct Team {
    /// What [`State`] says.
    state: AtomicU64,
    /// Written by the thread that installed while no worker is in.
    job: UnsafeCell<Option<Job>>,
    /// The first task that nobody took.
    next: AtomicUsize,
    /// Workers that sleep or are about to.
    sleeping: AtomicUsize,
    bed: Mutex<()>,
    alarm: Condvar,
    end: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the thread whose turn it is, and only while no worker is in; the state orders reads
// behind it.
#[allow(unsafe_code)]
unsafe impl Sync for Team {}
// SAFETY: what `job` points to is only used between the job's opening and its end, while the opener waits.
#[allow(unsafe_code)]
unsafe impl Send for Team {}

/// The tasks of an operator.
#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    /// Tasks that a thread takes at a time.
    grain: usize,
    /// Lives as long as a worker is in.
    work: *const (dyn Fn(usize) + Sync),
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Job").field("tasks", &self.tasks).field("grain", &self.grain).finish_non_exhaustive()
    }
}

/// A number of the job, whether it is open for workers, and how many are in.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

impl State {
    const OPEN: u64 = 1 << 31;
    const NUMBER: u32 = 32;

    fn number(self) -> u64 {
        self.0 >> Self::NUMBER
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn workers(self) -> u64 {
        self.0 & (Self::OPEN - 1)
    }

    fn next_job(self) -> Self {
        Self(self.number().wrapping_add(1) << Self::NUMBER | Self::OPEN)
    }
}

thread_local! {
    /// The team of the pool that is installed on this thread; none on workers and inside tasks.
    static CURRENT: RefCell<Option<Arc<Team>>> = const { RefCell::new(None) };
    /// Threads of that pool, also inside tasks.
    static THREADS: Cell<usize> = const { Cell::new(1) };
    /// Whether this thread runs a task of some pool.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
    static THIS_THREAD: u8 = const { 0 };
}

/// A number that no other living thread has.
fn this_thread() -> usize {
    THIS_THREAD.with(|place| std::ptr::from_ref(place).addr())
}

impl Pool {
    /// `threads` threads, the one that installs among them. Where the machine has cores of several speeds they stay on
    /// the fast ones, as long as those are enough; which of them runs which thread is the system's choice.
    ///
    /// # Errors
    /// If the system refuses a thread.
    ///
    /// # Panics
    /// If `threads` is zero.
    pub fn new(threads: usize) -> io::Result<Self> {
        let fast = Cores::fast().filter(|fast| fast.len() >= threads);
        Self::start(threads, |_| fast)
    }

    /// `threads` threads, wherever the system puts them; the one that installs stays where it is.
    ///
    /// # Errors
    /// If the system refuses a thread.
    ///
    /// # Panics
    /// If `threads` is zero.
    pub fn anywhere(threads: usize) -> io::Result<Self> {
        Self::start(threads, |_| None)
    }

    /// One thread on each of `cores`, which stays there; the thread that installs is on the first as long as it does.
    ///
    /// # Errors
    /// If the system refuses a thread, or does not let this process run on one of the cores.
    pub fn pinned(cores: &Cores) -> io::Result<Self> {
        let cores: Vec<_> = cores.iter().collect();
        for core in &cores {
            // Tried here, where it can be said.
            let unknown = || io::Error::other("the system does not say which cores this thread may run on");
            let before = Cores::of_this_thread().ok_or_else(unknown)?;
            Cores::one(*core).keep_this_thread()?;
            before.keep_this_thread()?;
        }
        Self::start(cores.len(), |index| Some(Cores::one(cores[index])))
    }

    /// The first of `threads` is the one that installs.
    fn start(threads: usize, cores: impl Fn(usize) -> Option<Cores>) -> io::Result<Self> {
        assert!(threads > 0, "a pool of some threads");
        let mut pool = Self {
            team: Arc::default(),
            workers: Vec::new(),
            cores: cores(0),
            turn: Mutex::new(()),
            owner: AtomicUsize::new(0),
        };
        for index in 1..threads {
            let (team, cores) = (Arc::clone(&pool.team), cores(index));
            let worker = std::thread::Builder::new().name(format!("triad-{index}")).spawn(move || {
                // Where the system refuses, a thread merely runs on any core.
                let _ = cores.map_or(Ok(()), |cores| cores.keep_this_thread());
                THREADS.set(threads);
                team.serve();
            });
            pool.workers.push(worker?);
        }
        Ok(pool)
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work` on this thread, with the pool's workers beside it for every [`for_each`]. Waits while another thread
    /// does the same. Inside an `install` of the same pool, and inside a task of any, it is a call. (Two threads that
    /// install two pools, each the other's inside its own, wait for each other for ever.)
    ///
    /// # Panics
    /// With what `work` or a task of it panics.
    pub fn install<R>(&self, work: impl FnOnce() -> R) -> R {
        // Nobody else writes the number of this thread.
        let has_turn = self.owner.load(Ordering::Relaxed) == this_thread();
        if has_turn || IN_TASK.get() {
            return work();
        }
        let _installed = Installed::new(self);
        work()
    }
}

impl Pool {
    /// Runs `one` on this thread and `other` at the same time on a worker, and answers what `one` does when both are done.
    /// Where no worker comes in time, `other` follows `one` on this thread.
    ///
    /// # Panics
    /// With what one of the two panics.
    pub fn both<R: Send>(&self, one: impl FnOnce() -> R + Send, other: impl FnOnce() + Send) -> R {
        let caller = this_thread();
        let (one, other, answer) = (Mutex::new(Some(one)), Mutex::new(Some(other)), Mutex::new(None));
        // Two tasks that each do one of the two: the caller the first, if it is left.
        let task = |_| {
            let is_caller = this_thread() == caller;
            for is_one in [is_caller, !is_caller] {
                let (mine, others) = if is_one { (lock(&one).take(), None) } else { (None, lock(&other).take()) };
                match (mine, others) {
                    (Some(one), _) => return *lock(&answer) = Some(one()),
                    (_, Some(other)) => return other(),
                    (None, None) => {}
                }
            }
        };
        self.install(|| for_each(2, 1, task));
        answer.into_inner().unwrap_or_else(PoisonError::into_inner).expect("it ran, or its panic went on")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.team.end.store(true, Ordering::SeqCst);
        drop(lock(&self.team.bed));
        self.team.alarm.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches what tasks panic with.
            let _ = worker.join();
        }
    }
}

/// As long as it lives, this thread computes with the pool.
struct Installed<'a> {
    pool: &'a Pool,
    _turn: MutexGuard<'a, ()>,
    outer: Option<Arc<Team>>,
    outer_threads: usize,
    /// Where the thread may run otherwise.
    cores: Option<Cores>,
}

impl<'a> Installed<'a> {
    fn new(pool: &'a Pool) -> Self {
        let turn = lock(&pool.turn);
        pool.owner.store(this_thread(), Ordering::Relaxed);
        let cores = pool.cores.and_then(|cores| {
            let before = Cores::of_this_thread()?;
            cores.keep_this_thread().is_ok().then_some(before)
        });
        Self {
            pool,
            _turn: turn,
            outer: CURRENT.replace(Some(Arc::clone(&pool.team))),
            outer_threads: THREADS.replace(pool.threads()),
            cores,
        }
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.outer.take());
        THREADS.set(self.outer_threads);
        self.pool.owner.store(0, Ordering::Relaxed);
        let _ = self.cores.take().map_or(Ok(()), |cores| cores.keep_this_thread());
    }
}

/// Threads of the pool that is installed here; 1 if none is.
pub fn threads() -> usize {
    THREADS.get()
}

/// Calls `work` with each number below `tasks`, on the threads of the pool that is installed here, `grain` numbers at a
/// time. Begins with the first.
///
/// # Panics
/// With what one of the calls panics.
pub fn for_each(tasks: usize, grain: usize, work: impl Fn(usize) + Sync) {
    let grain = grain.max(1);
    // Inside a task there is no team, so that its own tasks are a loop.
    let team = if tasks > grain { CURRENT.take() } else { None };
    match team {
        Some(team) => {
            let team = Restore(Some(team));
            team.team().run(tasks, grain, &work);
        }
        None => (0..tasks).for_each(work),
    }
}

/// [`for_each`] over the tasks of several parts as one operator: `counts` are the tasks of each part, and `work` hears the
/// part and the task's number in it. One part's tasks come before the next one's.
///
/// # Panics
/// With what one of the calls panics.
pub fn for_each_of(counts: &(impl Iterator<Item = usize> + Clone + Sync), work: impl Fn(usize, usize) + Sync) {
    for_each(counts.clone().sum(), 1, |mut task| {
        for (part, count) in counts.clone().enumerate() {
            if task < count {
                return work(part, task);
            }
            task -= count;
        }
    });
}

/// Puts a team back when an operator is done, even if it panics.
struct Restore(Option<Arc<Team>>);

impl Restore {
    fn team(&self) -> &Team {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// An open job. Dropping it closes it and waits for the workers that are in.
struct Open<'a>(&'a Team);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let state = &self.0.state;
        state.fetch_and(!State::OPEN, Ordering::AcqRel);
        let mut looks = 0u32;
        while State(state.load(Ordering::Acquire)).workers() > 0 {
            looks = looks.wrapping_add(1);
            if looks > 64 * LOOKS && looks.is_multiple_of(LOOKS) {
                // The worker that has the last task may be waiting for this core.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// A worker that is in. Dropping it leaves.
struct Inside<'a>(&'a Team);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

impl Team {
    /// All tasks of an operator, by this thread and whichever workers come in time.
    fn run(&self, tasks: usize, grain: usize, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes. The pointer is used by workers that are in, and `Open` waits for them, also
        // when something panics.
        #[allow(unsafe_code)]
        let work = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(work)
        };
        let job = Job { tasks, grain, work };
        // SAFETY: no worker is in: the last job was closed and left by all, and a closed one lets nobody in.
        #[allow(unsafe_code)]
        unsafe {
            *self.job.get() = Some(job);
        }
        self.next.store(0, Ordering::Relaxed);
        let state = State(self.state.load(Ordering::Relaxed));
        // The order of all: a worker that goes to sleep either sees this job or is seen here.
        self.state.store(state.next_job().0, Ordering::SeqCst);
        let open = Open(self);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.bed));
            self.alarm.notify_all();
        }
        self.work_on(job);
        drop(open);
        if let Some(panic) = lock(&self.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Takes tasks until none is left; a panic is kept and ends the job.
    fn work_on(&self, job: Job) {
        let outer = IN_TASK.replace(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let first = self.next.fetch_add(job.grain, Ordering::Relaxed);
                if first >= job.tasks {
                    break;
                }
                for task in first..(first + job.grain).min(job.tasks) {
                    // SAFETY: this thread is in, or opened the job: the closure lives.
                    #[allow(unsafe_code)]
                    unsafe {
                        (*job.work)(task);
                    }
                }
            }
        }));
        IN_TASK.set(outer);
        if let Err(panic) = outcome {
            self.next.store(job.tasks, Ordering::Relaxed);
            let mut first = lock(&self.panic);
            match &*first {
                None => *first = Some(panic),
                // Dropping it could panic again.
                Some(_) => std::mem::forget(panic),
            }
        }
    }

    /// The life of a worker.
    fn serve(&self) {
        let mut done = State(0);
        while let Some(state) = self.wait_for_other_than(done) {
            done = state;
            let entered = State(state.0 + 1);
            // If it fails, somebody else came in or the job was closed: look again.
            if self.state.compare_exchange(state.0, entered.0, Ordering::Acquire, Ordering::Relaxed).is_err() {
                done = State(done.number().wrapping_sub(1) << State::NUMBER);
                continue;
            }
            // SAFETY: this worker is in: nobody writes the job.
            #[allow(unsafe_code)]
            let job = unsafe { *self.job.get() };
            let _in = Inside(self);
            self.work_on(job.expect("an open job"));
        }
    }

    /// The state as soon as a job with another number is open; `None` at the end.
    fn wait_for_other_than(&self, done: State) -> Option<State> {
        let news = || {
            let state = State(self.state.load(Ordering::SeqCst));
            (state.is_open() && state.number() != done.number()).then_some(state)
        };
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..LOOKS {
                if let Some(state) = news() {
                    return Some(state);
                }
                std::hint::spin_loop();
            }
            if self.end.load(Ordering::Relaxed) {
                return None;
            }
        }
        let mut bed = lock(&self.bed);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let state = loop {
            if self.end.load(Ordering::SeqCst) {
                break None;
            }
            if let Some(state) = news() {
                break Some(state);
            }
            bed = self.alarm.wait(bed).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        state
    }
}

/// A panic while it was held left nothing half-done: what the locks guard is replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn add_one(count: &AtomicUsize) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// How often each task ran.
    fn runs(pool: &Pool, tasks: usize, grain: usize) -> Vec<usize> {
        let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.install(|| for_each(tasks, grain, |task| add_one(&counts[task])));
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    proptest! {
        #[test]
        fn every_task_runs_once(threads in 1usize..5, jobs in prop::collection::vec((0usize..200, 0usize..9), 1..30)) {
            let pool = Pool::new(threads).unwrap();
            for (tasks, grain) in jobs {
                prop_assert_eq!(runs(&pool, tasks, grain), vec![1; tasks]);
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let pool = Pool::new(3).unwrap();
        for _ in 0..3 {
            std::thread::sleep(10 * SPIN);
            // Each task waits for the two others: it ends only if all three threads work.
            let (barrier, seen) = (std::sync::Barrier::new(3), Mutex::new(Vec::new()));
            pool.install(|| {
                for_each(3, 1, |_| {
                    barrier.wait();
                    lock(&seen).push(this_thread());
                });
            });
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 3);
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2).unwrap();
        for task in [0, 7, 99] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.install(|| for_each(100, 1, |index| assert!(index != task, "task {task}")));
            }));
            assert_eq!(caught.unwrap_err().downcast_ref::<String>(), Some(&format!("task {task}")));
            assert_eq!(runs(&pool, 50, 1), vec![1; 50]);
        }
    }

    #[test]
    fn tasks_inside_a_task_and_an_install_inside_an_install_are_calls() {
        let pool = Pool::new(2).unwrap();
        let count = AtomicUsize::new(0);
        pool.install(|| {
            pool.install(|| for_each(4, 1, |_| for_each(5, 1, |_| add_one(&count))));
            // Both threads are in a task.
            let (barrier, other) = (std::sync::Barrier::new(2), Pool::new(2).unwrap());
            for_each(2, 1, |_| {
                barrier.wait();
                pool.install(|| for_each(10, 1, |_| add_one(&count)));
                other.install(|| for_each(10, 1, |_| add_one(&count)));
            });
            let other = Pool::new(2).unwrap();
            other.install(|| pool.install(|| for_each(5, 1, |_| add_one(&count))));
            assert_eq!(threads(), 2);
        });
        assert_eq!((count.into_inner(), threads()), (65, 1));
    }

    #[test]
    fn both_run_at_once_each_on_its_thread() {
        let pool = Pool::anywhere(2).unwrap();
        for _ in 0..100 {
            // Each waits for the other.
            let (barrier, threads) = (std::sync::Barrier::new(2), Mutex::new(Vec::new()));
            let answer = pool.both(
                || {
                    barrier.wait();
                    this_thread()
                },
                || {
                    barrier.wait();
                    lock(&threads).push(this_thread());
                },
            );
            assert_eq!(answer, this_thread());
            assert_ne!(threads.into_inner().unwrap(), [answer]);
        }
    }

    #[test]
    fn both_run_once_also_without_a_worker_and_panics_reach_the_caller() {
        for threads in [1, 2] {
            let (pool, count) = (Pool::anywhere(threads).unwrap(), AtomicUsize::new(0));
            assert_eq!(pool.both(|| 7, || add_one(&count)), 7);
            assert_eq!(count.into_inner(), 1);
            for (one, other) in [(true, false), (false, true)] {
                let run = || pool.both(|| assert!(!one, "one"), || assert!(!other, "other"));
                let caught = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
                assert_eq!(caught.downcast_ref::<&str>(), Some(&if one { "one" } else { "other" }));
            }
        }
    }

    #[test]
    fn threads_that_install_at_once_take_turns() {
        let pool = Pool::new(2).unwrap();
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.install(|| {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            for_each(8, 1, |_| std::hint::spin_loop());
                            inside.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
    }

    #[test]
    fn an_inner_pool_leaves_the_outer_one_as_it_was() {
        let (outer, inner) = (Pool::new(3).unwrap(), Pool::new(2).unwrap());
        outer.install(|| {
            assert_eq!(runs(&inner, 9, 1), vec![1; 9]);
            assert_eq!(threads(), 3);
        });
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pinned_threads_stay_on_their_cores_and_the_caller_gets_its_own_back() {
        let before = Cores::of_this_thread().unwrap();
        let pool = Pool::pinned(&before).unwrap();
        let seen = Mutex::new(Vec::new());
        let barrier = std::sync::Barrier::new(before.len());
        pool.install(|| {
            for_each(before.len(), 1, |_| {
                barrier.wait();
                lock(&seen).extend(Cores::of_this_thread().unwrap().iter());
            });
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, before.iter().collect::<Vec<_>>());
        assert_eq!(Cores::of_this_thread(), Some(before));
    }
}
