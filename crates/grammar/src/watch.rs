//! A watch that cancels slow steps of matchers: masks, forced tokens and accepted tokens.
//!
//! llguidance limits the work of some steps, but not of all: a mask of a grammar with 20,000 rules takes ten seconds. A
//! matcher can be cancelled from another thread. One thread watches all matchers. Each matcher records the begin and
//! end of its steps, which costs two memory writes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::{CancellationHandle, Matcher};

/// Time limit of a step. The longest known step takes 21 ms.
pub(crate) const LONGEST: Duration = Duration::from_secs(2);
/// Interval at which the thread checks the matchers.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The value of `begun` when no step is running.
const IDLE: u64 = 0;

/// A matcher under watch. Dropping it ends the watch.
pub(crate) struct Watched(Arc<State>);

struct State {
    /// Start of the running step, in milliseconds after [`start`], or [`IDLE`].
    begun: AtomicU64,
    cancellation: CancellationHandle,
}

/// The watched matchers, and whether the watching thread has been started.
#[derive(Default)]
struct Watch {
    watched: Mutex<(Vec<Weak<State>>, bool)>,
    more: Condvar,
}

fn watch() -> &'static Watch {
    static WATCH: OnceLock<Watch> = OnceLock::new();
    WATCH.get_or_init(Watch::default)
}

/// Returns the reference point of all times.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

impl Watched {
    /// Watches `matcher`, which must support cancellation.
    ///
    /// # Errors
    /// If the watching thread can't be started.
    pub(crate) fn new(matcher: &Matcher) -> std::io::Result<Self> {
        let cancellation = matcher.cancellation_handle().unwrap_or_default();
        let state = Arc::new(State {
            begun: AtomicU64::new(IDLE),
            cancellation,
        });
        let mut watched = watch()
            .watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !watched.1 {
            thread::Builder::new()
                .name("grammar watch".into())
                .stack_size(64 << 10)
                .spawn(look)?;
            watched.1 = true;
        }
        watched.0.push(Arc::downgrade(&state));
        watch().more.notify_one();
        Ok(Self(state))
    }

    /// Runs a step. It is cancelled if it takes too long.
    pub(crate) fn step<T>(&self, work: impl FnOnce() -> T) -> T {
        let now = start().elapsed().as_millis() as u64 + 1;
        self.0.begun.store(now, Ordering::Relaxed);
        let result = work();
        self.0.begun.store(IDLE, Ordering::Relaxed);
        result
    }
}

/// Cancels slow steps in an endless loop.
fn look() {
    let watch = watch();
    let mut watched = watch.watched.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let longest = LONGEST.as_millis() as u64;
        let now = start().elapsed().as_millis() as u64 + 1;
        watched.0.retain(|state| {
            let Some(state) = state.upgrade() else {
                return false;
            };
            let begun = state.begun.load(Ordering::Relaxed);
            if begun != IDLE && now.saturating_sub(begun) > longest {
                state.cancellation.cancel();
            }
            true
        });
        watched = if watched.0.is_empty() {
            watch
                .more
                .wait(watched)
                .unwrap_or_else(PoisonError::into_inner)
        } else {
            watch
                .more
                .wait_timeout(watched, POLL_INTERVAL)
                .unwrap_or_else(PoisonError::into_inner)
                .0
        };
    }
}

#[cfg(test)]
mod tests {
    use llguidance::ParserFactory;
    use llguidance::api::TopLevelGrammar;
    use toktrie::ApproximateTokEnv;

    use super::*;

    #[test]
    fn a_step_that_takes_too_long_is_cancelled_and_no_other_one() {
        let factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
        let matcher = || {
            let parser = factory.create_parser(TopLevelGrammar::from_regex("a"));
            Matcher::new(parser).into_cancellable()
        };
        let (mut slow, mut quick) = (matcher(), matcher());
        let (of_slow, of_quick) = (Watched::new(&slow).unwrap(), Watched::new(&quick).unwrap());
        of_quick.step(|| quick.compute_mask()).unwrap();
        of_slow.step(|| {
            while !slow.is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(of_slow.step(|| slow.compute_mask()).is_err());
        assert!(!quick.is_cancelled());
        of_quick.step(|| quick.compute_mask()).unwrap();
    }
}
