//! Threads that prepare requests: texts of templates, tokens of prompts, forms of answers.
//!
//! What a request says may take long to prepare and much memory. So a few threads do it, those that share them are counted
//! with the memory that they take, requests wait for them in a [`Queue`], those of different clients in turns, and what is
//! prepared for a client that went away is cancelled. A request of an answer has a [`Place`] in the queue of its model before
//! anything is prepared for it; any other one is refused where too many wait here.
//!
//! Forms take longer than texts, and large ones longer than small ones: each kind has threads of its own, so that it waits for
//! none of the others. One tenant has at most half of the threads of forms.

use std::sync::Arc;
use std::thread;

use triad_engine::Cancel;

use crate::error::{ApiError, ApiResult};
use crate::form_shares::{Share, Shares};
use crate::owner::Tenant;
use crate::queue::{Full, Need, Place, Queue};

/// Texts that are prepared at once, at least and at most; between them, as many as there are cores.
const TEXTS: (usize, usize) = (2, 4);
/// Forms that are compiled at once, of each kind.
const FORMS: usize = 4;
/// Forms of one tenant that are compiled at once, of each kind.
const FORMS_OF_TENANT: usize = FORMS / 2;
/// Bytes from which a form is a large one.
const LARGE: usize = 1 << 14;
/// Memory that texts which are prepared at once may take, in KiB. One that takes more is prepared alone.
const MEMORY: usize = 512 << 10;
/// Bytes that encoding a byte of text takes, at most: of one long word each letter is a symbol, with a candidate to be merged.
const BYTES_PER_BYTE: usize = 64;

/// What is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// So many bytes of texts are rendered or encoded.
    Text(usize),
    /// A form is compiled of so many bytes.
    Form(usize),
}

/// Threads that prepare requests.
pub(crate) struct Preparers {
    texts: Arc<Queue>,
    forms: Arc<Queue>,
    large_forms: Arc<Queue>,
    shares: [Shares; 2],
}

impl Preparers {
    /// For requests of which `most_waiting` may wait.
    pub(crate) fn new(most_waiting: usize) -> Self {
        let cores = thread::available_parallelism().map_or(TEXTS.0, usize::from);
        let queue = |slots| {
            Queue::new(
                Need {
                    slots,
                    pages: MEMORY,
                },
                most_waiting,
            )
        };
        Self {
            texts: queue(cores.clamp(TEXTS.0, TEXTS.1)),
            forms: queue(FORMS),
            large_forms: queue(FORMS),
            shares: [(); 2].map(|()| Shares::new(FORMS_OF_TENANT)),
        }
    }

    fn queue(&self, work: Work) -> (&Arc<Queue>, Need) {
        match work {
            Work::Text(bytes) => {
                let memory = (bytes.saturating_mul(BYTES_PER_BYTE) >> 10).clamp(1, MEMORY);
                (
                    &self.texts,
                    Need {
                        slots: 1,
                        pages: memory,
                    },
                )
            }
            Work::Form(bytes) if bytes < LARGE => (&self.forms, Need { slots: 1, pages: 1 }),
            Work::Form(..) => (&self.large_forms, Need { slots: 1, pages: 1 }),
        }
    }

    /// Waits until the tenant may have one more form compiled, if `work` is one.
    async fn share(&self, work: Work, tenant: Tenant) -> Option<Share> {
        match work {
            Work::Text(_) => None,
            Work::Form(bytes) => {
                let shares = &self.shares[usize::from(bytes >= LARGE)];
                Some(shares.take(tenant).await)
            }
        }
    }

    /// Prepares a request of `model` that has no place in a queue.
    ///
    /// # Errors
    /// If `work` fails, or too many wait.
    pub(crate) async fn enter<M: Send + Sync + 'static, T: Send + 'static>(
        &self,
        (model, client): (&Arc<M>, Tenant),
        kind: Work,
        work: impl FnOnce(&M, &Cancel) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let (queue, need) = self.queue(kind);
        let permit = queue
            .admit(client, need)
            .await
            .map_err(|Full(waiting)| ApiError::full(waiting))?;
        run(model, permit, work).await
    }

    /// Prepares a request of `model` that has a place.
    ///
    /// # Errors
    /// If `work` fails.
    pub(crate) async fn prepare<M: Send + Sync + 'static, T: Send + 'static>(
        &self,
        (model, place): (&Arc<M>, &Place),
        kind: Work,
        work: impl FnOnce(&M, &Cancel) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let (queue, need) = self.queue(kind);
        // Before the turn in the queue, which one of another owner would wait for.
        let share = self.share(kind, place.client()).await;
        let permit = queue.admit_part(place.client(), need).await;
        run(model, (permit, share), work).await
    }
}

/// Runs `work` on a thread that no connection waits for, with `permit` until its end.
async fn run<M: Send + Sync + 'static, T: Send + 'static>(
    model: &Arc<M>,
    permit: impl Send + 'static,
    work: impl FnOnce(&M, &Cancel) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    // Dropped with this future, where the client goes away.
    let cancel = CancelOnDrop(Cancel::new());
    let (model, stop) = (Arc::clone(model), cancel.0.clone());
    crate::blocking::blocking(move || {
        let _permit = permit;
        if stop.is_cancelled() {
            return Err(triad_engine::Error::Cancelled.into());
        }
        work(&model, &stop)
    })
    .await
}

/// Cancels work when it is dropped.
pub(crate) struct CancelOnDrop(pub(crate) Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_form_takes_no_thread_of_small_ones_nor_of_texts() {
        let preparers = Preparers::new(1);
        let form = Work::Form;
        let queues =
            [Work::Text(1), form(1), form(LARGE)].map(|work| Arc::as_ptr(preparers.queue(work).0));
        assert!(queues[0] != queues[1] && queues[1] != queues[2] && queues[0] != queues[2]);
    }

    #[test]
    fn texts_are_counted_with_the_memory_that_they_take_and_the_longest_is_prepared_alone() {
        let preparers = Preparers::new(1);
        let pages = |bytes| preparers.queue(Work::Text(bytes)).1.pages;
        assert_eq!(
            (pages(0), pages(1 << 20), pages(usize::MAX)),
            (1, 64 << 10, MEMORY)
        );
        assert_eq!(preparers.texts.most().pages, MEMORY);
    }
}
