//! Tests pools from the caller's side. `loom_tests` checks the protocol itself.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::spin::SPIN;
use super::*;
use proptest::prelude::*;

fn add_one(count: &AtomicUsize) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Returns how often each task ran.
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
fn a_thread_takes_the_tasks_of_its_share_before_those_of_others() {
    let pool = Pool::anywhere(2).unwrap();
    for _ in 0..20 {
        // Two tasks run at a time, one on each thread.
        let (barrier, threads) = (std::sync::Barrier::new(2), Mutex::new(vec![0; 6]));
        pool.install(|| {
            for_each(6, 1, |task| {
                barrier.wait();
                lock(&threads)[task] = this_thread();
            });
        });
        let threads = threads.into_inner().unwrap();
        assert_eq!(threads[..3], [this_thread(); 3]);
        assert!(
            threads[3..]
                .iter()
                .all(|thread| *thread == threads[3] && *thread != this_thread())
        );
    }
}

#[test]
fn sleeping_workers_wake_up() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..3 {
        std::thread::sleep(10 * SPIN);
        // Each task waits for the two others, so the job ends only if all three threads work.
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
        assert_eq!(
            caught.unwrap_err().downcast_ref::<String>(),
            Some(&format!("task {task}"))
        );
        assert_eq!(runs(&pool, 50, 1), vec![1; 50]);
    }
}

#[test]
fn tasks_inside_a_task_and_an_install_inside_an_install_are_calls() {
    let pool = Pool::new(2).unwrap();
    let count = AtomicUsize::new(0);
    pool.install(|| {
        pool.install(|| for_each(4, 1, |_| for_each(5, 1, |_| add_one(&count))));
        // Both threads run a task.
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
fn joined_functions_run_at_once_each_on_its_thread() {
    let pool = Pool::anywhere(2).unwrap();
    for _ in 0..100 {
        // Each waits for the other.
        let (barrier, threads) = (std::sync::Barrier::new(2), Mutex::new(Vec::new()));
        let result = pool.join(
            || {
                barrier.wait();
                this_thread()
            },
            || {
                barrier.wait();
                lock(&threads).push(this_thread());
            },
        );
        assert_eq!(result, this_thread());
        assert_ne!(threads.into_inner().unwrap(), [result]);
    }
}

#[test]
fn joined_functions_run_once_also_without_a_worker_and_their_panics_reach_the_caller() {
    for threads in [1, 2] {
        let (pool, count) = (Pool::anywhere(threads).unwrap(), AtomicUsize::new(0));
        assert_eq!(pool.join(|| 7, || add_one(&count)), 7);
        assert_eq!(count.into_inner(), 1);
        for (one, other) in [(true, false), (false, true)] {
            let run = || pool.join(|| assert!(!one, "one"), || assert!(!other, "other"));
            let caught = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(
                caught.downcast_ref::<&str>(),
                Some(&if one { "one" } else { "other" })
            );
        }
    }
}

#[test]
fn any_threads_may_install_at_once_and_each_waits_for_the_others() {
    let pool = Pool::new(2).unwrap();
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // None of these threads created the pool, and each has its own results.
        for tasks in 2..6 {
            let (pool, inside) = (&pool, &inside);
            scope.spawn(move || {
                for _ in 0..50 {
                    pool.install(|| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(threads(), 2);
                        assert_eq!(runs(pool, tasks, 1), vec![1; tasks]);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    });
                    assert_eq!(threads(), 1);
                }
            });
        }
    });
}

#[test]
fn a_thread_that_panics_inside_leaves_the_pool_to_others() {
    let pool = Pool::new(2).unwrap();
    let panicked =
        std::thread::scope(|scope| scope.spawn(|| pool.install(|| panic!("inside"))).join());
    assert!(panicked.is_err());
    assert_eq!(runs(&pool, 20, 1), vec![1; 20]);
}

#[test]
fn more_threads_than_the_state_can_count_are_an_error() {
    let error = Pool::new(state::MAX_WORKERS + 2).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("at most 32768"), "{error}");
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
