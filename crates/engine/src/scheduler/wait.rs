//! How a session's thread waits for a request.

use std::time::Duration;

use super::Scheduler;
use crate::batch::{Outcome, Request};
use crate::cancel::Cancel;
use crate::error::Error;

/// How often a waiting thread checks for cancellation, and for threads that hang.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Scheduler {
    /// Waits for the end of a request; calls `on_progress` with the number of finished tokens whenever it has grown.
    /// Runs batches on this thread as long as there are any, also those of other requests.
    pub(crate) fn wait(
        &self,
        request: &Request,
        cancel: &Cancel,
        on_progress: &mut dyn FnMut(usize),
    ) -> Outcome {
        // Even if `on_progress` panics, nothing writes to the pages of the sequence after this function.
        let guard = CancelOnDrop {
            request,
            scheduler: self,
        };
        let (mut reported, mut is_told) = (0, false);
        while !request.has_ended() {
            let done = request.done();
            if done > reported {
                reported = done;
                on_progress(done);
                continue;
            }
            if !is_told && cancel.is_cancelled() {
                is_told = true;
                request.cancel();
                self.drop_cancelled();
            }
            let is_enough =
                || request.has_new_work(reported) || (!is_told && cancel.is_cancelled());
            if self.run(request.phase(), &is_enough) {
                continue;
            }
            let time_out = self.next_look().min(POLL_INTERVAL);
            if request.sleep(reported, time_out) {
                self.executor.watch();
            }
        }
        std::mem::forget(guard);
        // Other requests may have waited for this thread to run their batches.
        self.hand_over();
        let mut outcome = request.take_outcome();
        if outcome.done > reported {
            on_progress(outcome.done);
        }
        let vocab = outcome.logits.len() / request.wanted_rows().len();
        if outcome.result.is_ok() && !outcome.logits.chunks_exact(vocab).all(is_finite) {
            outcome.result = Err(Error::NotFinite);
        }
        outcome
    }
}

/// Cancels a request if the thread that waits for it panics, and waits until no batch computes it.
struct CancelOnDrop<'a> {
    request: &'a Request,
    scheduler: &'a Scheduler,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.request.cancel();
        self.scheduler.drop_cancelled();
        while !self.request.has_ended() {
            self.request.sleep(usize::MAX, POLL_INTERVAL);
        }
    }
}

/// Returns whether all logits are finite: a sum is finite only if every summand is (and none is so large as to be
/// useless).
fn is_finite(logits: &[f32]) -> bool {
    logits.iter().sum::<f32>().is_finite()
}
