//! Threads that prepare requests: templates, tokenization, grammar compilation.
//!
//! Preparing a request can take much time and memory. A few threads therefore do it, and their concurrent work is
//! limited in number and memory. Requests wait in a [`Queue`], where clients take turns. Work for a client that
//! disconnects is cancelled. A request for completions has a [`Place`] in its model's queue before anything is
//! prepared; any other request is refused if too many wait here.
//!
//! Compiling grammars takes longer than processing text, and large grammars take longer than small ones. Each kind has
//! its own threads, so that it never waits for the others, and so do pictures. One tenant may use at most half of the
//! threads of each kind of grammar, and of those of pictures.

use std::sync::Arc;
use std::thread;

use triad_engine::Cancel;

use crate::error::{ApiError, ApiResult};
use crate::form_shares::{Share, Shares};
use crate::owner::Tenant;
use crate::queue::{Full, Need, Permit, Place, Queue};

/// Minimum and maximum number of concurrent text preparations. In between, it is the number of cores.
const TEXTS: (usize, usize) = (2, 4);
/// Number of concurrent compilations of each kind.
const FORMS: usize = 4;
/// Number of concurrent compilations of each kind per tenant.
const FORMS_OF_TENANT: usize = FORMS / 2;
/// The size in bytes from which a grammar source is large.
const LARGE: usize = 1 << 14;
/// Number of requests whose pictures are decoded at once, of which a tenant has at most half.
const PICTURES: usize = 2;
/// Number of requests whose pictures are in memory: as many as fit.
const MAX_REQUESTS: usize = 1 << 20;
/// Memory limit of concurrent text preparations, in KiB. A text that needs more is prepared alone.
const MEMORY: usize = 512 << 10;
/// Maximum memory in bytes per byte of text during tokenization: in one long word, each character is a symbol with a
/// merge candidate, and tokenizers of folders keep each piece with its places.
const BYTES_PER_BYTE: usize = 256;
/// The size in bytes from which a text is large. Of the threads of texts, a tenant has at most half for large ones.
const LARGE_TEXT: usize = 64 << 10;

/// A kind of preparation, with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Rendering or tokenization of this number of bytes of text.
    Text(usize),
    /// Compilation of a grammar source of this number of bytes.
    Form(usize),
    /// Decoding of pictures, whose memory is counted apart.
    Pictures,
}

impl Work {
    /// Returns the work on `bytes` of text and on files of `files` bytes, of which only the heads are read.
    pub(crate) fn with_files(bytes: usize, files: usize) -> Self {
        Self::Text(bytes.saturating_add(files / BYTES_PER_BYTE))
    }
}

/// The threads that prepare requests.
pub(crate) struct Preparers {
    texts: Arc<Queue>,
    forms: Arc<Queue>,
    large_forms: Arc<Queue>,
    pictures: Arc<Queue>,
    /// The slots of tenants for forms, large forms, pictures and large texts.
    shares: [Shares; 4],
    /// The memory of pictures, in KiB.
    picture_memory: Arc<Queue>,
    memory_shares: Shares,
}

/// The memory of a request's pictures. Dropping it gives it back.
pub(crate) struct PictureMemory {
    share: Share,
    permit: Permit,
}

impl PictureMemory {
    /// Gives all but `bytes` back.
    pub(crate) fn keep(&mut self, bytes: usize) {
        let pages = bytes.div_ceil(1 << 10).max(1);
        self.share.keep(pages);
        self.permit.keep_pages(pages);
    }
}

impl Preparers {
    /// Creates the threads' queues. At most `most_waiting` requests may wait in each. Pictures may take `picture_bytes` of
    /// memory.
    pub(crate) fn new(most_waiting: usize, picture_bytes: usize) -> Self {
        let cores = thread::available_parallelism().map_or(TEXTS.0, usize::from);
        let texts = cores.clamp(TEXTS.0, TEXTS.1);
        let picture_pages = (picture_bytes >> 10).max(1);
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
            texts: queue(texts),
            forms: queue(FORMS),
            large_forms: queue(FORMS),
            pictures: queue(PICTURES),
            shares: [FORMS_OF_TENANT, FORMS_OF_TENANT, PICTURES / 2, texts / 2].map(Shares::new),
            picture_memory: Queue::new(
                Need {
                    slots: MAX_REQUESTS,
                    pages: picture_pages,
                },
                most_waiting,
            ),
            memory_shares: Shares::new(picture_pages.div_ceil(2)),
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
            Work::Pictures => (&self.pictures, Need { slots: 1, pages: 1 }),
        }
    }

    /// Waits until pictures that take `bytes` have room in memory, of which a tenant has at most half, unless a single
    /// request needs more. One that needs more than there is waits until no others are there.
    pub(crate) async fn picture_memory(&self, tenant: Tenant, bytes: usize) -> PictureMemory {
        let pages = bytes
            .div_ceil(1 << 10)
            .clamp(1, self.picture_memory.most().pages);
        let share = self.memory_shares.take_many(tenant, pages).await;
        let need = Need { slots: 1, pages };
        PictureMemory {
            share,
            permit: self.picture_memory.admit_part(tenant, need).await,
        }
    }

    /// Waits for a slot of the tenant, of which each has at most half, unless `work` is on a text that is not large.
    async fn share(&self, work: Work, tenant: Tenant) -> Option<Share> {
        match work {
            Work::Text(bytes) if bytes < LARGE_TEXT => None,
            Work::Text(_) => Some(self.shares[3].take(tenant).await),
            Work::Form(bytes) => {
                let shares = &self.shares[usize::from(bytes >= LARGE)];
                Some(shares.take(tenant).await)
            }
            Work::Pictures => Some(self.shares[2].take(tenant).await),
        }
    }

    /// Prepares a request of `model` that has no place in a queue.
    ///
    /// # Errors
    /// If `work` fails, or the queue is full.
    pub(crate) async fn enter<M: Send + Sync + 'static, T: Send + 'static>(
        &self,
        (model, client): (&Arc<M>, Tenant),
        kind: Work,
        work: impl FnOnce(&M, &Cancel) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let (queue, need) = self.queue(kind);
        // As below. A client's requests that wait for it are in no queue, and are as few as its connections.
        let share = self.share(kind, client).await;
        let permit = queue
            .admit(client, need)
            .await
            .map_err(|Full(waiting)| ApiError::full(waiting))?;
        run(model, (permit, share), work).await
    }

    /// Prepares a request of `model` that has a place in its queue.
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
        // Take the tenant's slot first: while this request waits for it, it does not block other tenants in the queue.
        let share = self.share(kind, place.client()).await;
        let permit = queue.admit_part(place.client(), need).await;
        run(model, (permit, share), work).await
    }
}

/// Runs `work` on a blocking thread. `permit` is dropped at its end.
async fn run<M: Send + Sync + 'static, T: Send + 'static>(
    model: &Arc<M>,
    permit: impl Send + 'static,
    work: impl FnOnce(&M, &Cancel) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    // Cancels the work if the client disconnects, which drops this future.
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

/// Cancels work when dropped.
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
    fn pictures_take_no_thread_of_texts_and_a_tenant_not_all_of_those_of_pictures() {
        let preparers = Preparers::new(1, 1 << 30);
        let queues =
            [Work::Text(1), Work::Pictures].map(|work| Arc::as_ptr(preparers.queue(work).0));
        assert_ne!(queues[0], queues[1]);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let (one, other) = (Tenant::of_key("one"), Tenant::of_key("other"));
            let _first = preparers.share(Work::Pictures, one).await;
            let mut second = std::pin::pin!(preparers.share(Work::Pictures, one));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(second.as_mut().poll(&mut context).is_pending());
            preparers.share(Work::Pictures, other).await;
        });
    }

    #[test]
    fn a_tenant_has_half_of_the_memory_of_pictures_and_gives_back_what_it_does_not_keep() {
        const MIB: usize = 1 << 20;
        let preparers = Preparers::new(1, 4 * MIB);
        let (one, other) = (Tenant::of_key("one"), Tenant::of_key("other"));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let mut first = preparers.picture_memory(one, 2 * MIB).await;
            let mut second = std::pin::pin!(preparers.picture_memory(one, MIB));
            assert!(second.as_mut().poll(&mut context).is_pending());
            drop(preparers.picture_memory(other, 2 * MIB).await);
            // What is decoded takes less than decoding it.
            first.keep(MIB);
            let second = second.await;
            // More than there is waits until nothing else is there.
            let mut large = std::pin::pin!(preparers.picture_memory(other, usize::MAX));
            assert!(large.as_mut().poll(&mut context).is_pending());
            drop((first, second));
            large.await;
        });
    }

    #[test]
    fn a_tenant_has_half_of_the_threads_of_texts_for_large_ones() {
        let preparers = Preparers::new(1, 1 << 30);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let (one, other) = (Tenant::of_key("one"), Tenant::of_key("other"));
            let large = Work::Text(LARGE_TEXT);
            let half = preparers.texts.most().slots / 2;
            let mut held = Vec::new();
            for _ in 0..half {
                held.push(preparers.share(large, one).await);
            }
            let mut more = std::pin::pin!(preparers.share(large, one));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(more.as_mut().poll(&mut context).is_pending());
            preparers.share(large, other).await;
            assert!(
                preparers
                    .share(Work::Text(LARGE_TEXT - 1), one)
                    .await
                    .is_none()
            );
        });
    }

    #[test]
    fn a_large_form_takes_no_thread_of_small_ones_nor_of_texts() {
        let preparers = Preparers::new(1, 1 << 30);
        let form = Work::Form;
        let queues =
            [Work::Text(1), form(1), form(LARGE)].map(|work| Arc::as_ptr(preparers.queue(work).0));
        assert!(queues[0] != queues[1] && queues[1] != queues[2] && queues[0] != queues[2]);
    }

    #[test]
    fn texts_are_counted_with_the_memory_that_they_take_and_the_longest_is_prepared_alone() {
        let preparers = Preparers::new(1, 1 << 30);
        let pages = |bytes| preparers.queue(Work::Text(bytes)).1.pages;
        assert_eq!(
            (pages(0), pages(1 << 20), pages(usize::MAX)),
            (1, 256 << 10, MEMORY)
        );
        assert_eq!(preparers.texts.most().pages, MEMORY);
    }
}
