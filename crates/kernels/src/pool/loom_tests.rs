//! Checks the protocol by loom in every order of its steps with few preemptions, and with every value that a load may
//! return.
//!
//! A model has a caller and one or two workers. loom reports a lost wake-up as a deadlock, and two accesses that are
//! not ordered as a race on the cells that represent the data of tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::team::Team;
use crate::sync::{lock, wait};

/// Runs `caller` with a team of `workers` workers in all interleavings with at most `preemptions` preemptions.
fn check(workers: usize, preemptions: usize, caller: impl Fn(&Team) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let team = Arc::new(Team::new(workers + 1));
        let workers: Vec<_> = (0..workers)
            .map(|worker| {
                let team = Arc::clone(&team);
                thread::spawn(move || team.serve(worker + 1))
            })
            .collect();
        caller(&team);
        team.shut_down();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
}

/// Values that tasks write without any ordering of their own: loom reports an access that the protocol does not order.
struct Values(Vec<UnsafeCell<usize>>);

// SAFETY: for the tests: loom checks each access.
#[allow(unsafe_code)]
unsafe impl Sync for Values {}

impl Values {
    fn zeros(count: usize) -> Self {
        Self((0..count).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add_one(&self, index: usize) {
        // SAFETY: loom reports a concurrent access.
        #[allow(unsafe_code)]
        self.0[index].with_mut(|value| unsafe { *value += 1 });
    }

    fn all(&self) -> Vec<usize> {
        // SAFETY: as for `add_one`.
        #[allow(unsafe_code)]
        self.0
            .iter()
            .map(|value| value.with(|value| unsafe { *value }))
            .collect()
    }
}

/// Runs two jobs whose tasks write the same values; the closure of each is dropped before the next.
fn two_jobs(team: &Team, tasks: usize, grain: usize) {
    let values = Values::zeros(tasks);
    for job in 1..=2 {
        // The data that the closure borrows is freed with this iteration.
        let captured = Values::zeros(tasks);
        team.run(tasks, grain, &|task| {
            captured.add_one(task);
            values.add_one(task);
        });
        assert_eq!(captured.all(), vec![1; tasks]);
        assert_eq!(values.all(), vec![job; tasks]);
    }
}

#[test]
fn every_task_runs_once_and_the_caller_sees_what_it_wrote() {
    check(1, 3, |team| two_jobs(team, 2, 1));
}

#[test]
fn every_task_runs_once_with_two_workers() {
    check(2, 2, |team| two_jobs(team, 2, 1));
}

#[test]
fn every_task_runs_once_where_threads_take_several() {
    check(1, 3, |team| two_jobs(team, 3, 2));
}

#[test]
fn a_worker_that_sleeps_or_is_about_to_takes_part_in_the_next_job() {
    check(1, 3, |team| {
        for _ in 0..2 {
            // Each task waits for the other one: without the worker, the job never ends.
            let (arrived, both) = (Mutex::new(0), Condvar::new());
            team.run(2, 1, &|_| {
                let mut arrived = lock(&arrived);
                *arrived += 1;
                both.notify_all();
                while *arrived < 2 {
                    arrived = wait(&both, arrived);
                }
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_when_all_have_left_and_the_next_job_runs() {
    check(1, 3, |team| {
        let ran = AtomicUsize::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            team.run(2, 1, &|task| {
                ran.fetch_add(1, Ordering::Relaxed);
                // Avoids the output of the panic hook, which would be printed thousands of times.
                std::panic::resume_unwind(Box::new(task));
            });
        }));
        let task = *outcome.unwrap_err().downcast::<usize>().unwrap();
        assert!(task < 2 && (1..=2).contains(&ran.load(Ordering::Relaxed)));
        two_jobs(team, 2, 1);
    });
}

#[test]
fn workers_end_at_any_time() {
    check(2, 3, |_| {});
}
