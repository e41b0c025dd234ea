//! A batch: rows of requests that an executor computes together, either of prompts or of sequences that decode. The
//! [scheduler](crate::scheduler) makes batches of requests, and an [executor](crate::executor) computes them.

mod request;

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;

use smallvec::SmallVec;
use triad_kernels::Phase;

pub use request::{LogitsMode, Report, Request, SequenceId};
pub(crate) use request::{Outcome, RequestStates};

use crate::error::Error;
use crate::forward::Segment;

/// Segments of a batch that need no allocation.
const SEGMENTS: usize = 16;

/// Rows of requests that are computed together. The rows of all requests are numbered one after the other.
///
/// An executor reports to a batch: [`Batch::advance`] when rows are through all layers, [`Request::complete_logits`]
/// when logits are written, and at last [`Batch::end`].
pub struct Batch {
    parts: Vec<BatchPart>,
    /// Index of each part's first row.
    firsts: Vec<usize>,
    tokens: Vec<u32>,
    phase: Phase,
    since: Instant,
    start: Instant,
    report: Report,
    observer: Weak<dyn BatchObserver>,
}

/// The receiver of batches that are over.
pub(crate) trait BatchObserver: Send + Sync {
    /// Called once when a batch is over.
    fn ended(&self, batch: &Batch);
}

/// The rows of one request in a batch.
pub struct BatchPart {
    /// The request.
    pub request: Arc<Request>,
    /// Its rows, numbered from its first token.
    pub rows: Range<usize>,
}

/// Rows of a batch whose logits are wanted.
pub struct OutputRows<'a> {
    /// Their request.
    pub request: &'a Arc<Request>,
    /// Their range among the rows of the batch.
    pub rows: Range<usize>,
    /// Their range among the rows of the request whose logits are wanted.
    pub of_request: Range<usize>,
}

impl Batch {
    /// Returns whether it has pictures whose rows read each other.
    pub fn has_whole_pictures(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| part.request.has_whole_pictures())
    }

    /// Returns a batch of at least one part.
    pub(crate) fn new(
        parts: Vec<BatchPart>,
        phase: Phase,
        observer: Weak<dyn BatchObserver>,
    ) -> Self {
        let (mut firsts, mut tokens) = (Vec::with_capacity(parts.len()), Vec::new());
        for BatchPart { request, rows } in &parts {
            firsts.push(tokens.len());
            tokens.extend_from_slice(&request.tokens()[rows.clone()]);
        }
        let start = Instant::now();
        let arrived = parts.iter().map(|part| part.request.arrived());
        Self {
            since: arrived.min().unwrap_or(start),
            parts,
            firsts,
            tokens,
            phase,
            start,
            report: Arc::default(),
            observer,
        }
    }

    /// Returns the rows of each request.
    pub fn parts(&self) -> &[BatchPart] {
        &self.parts
    }

    /// Returns the tokens of all rows.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the arithmetic of the rows.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the position of the first row in its sequence.
    pub fn position(&self) -> usize {
        self.parts
            .first()
            .map_or(0, |part| part.request.position() + part.rows.start)
    }

    /// Returns when the first of its requests began to wait.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Returns when the batch was made.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// Returns the place of the executor's report.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns whether it is the whole prompt of one sequence without adapters.
    pub fn is_one_prompt(&self) -> bool {
        self.phase == Phase::Prefill
            && matches!(&self.parts[..], [only] if only.rows.len() == only.request.tokens().len())
            && !self.has_adapters()
    }

    /// Returns whether any sequence has adapters.
    pub fn has_adapters(&self) -> bool {
        self.parts.iter().any(|part| part.request.has_adapters())
    }

    /// Returns whether all its requests are cancelled.
    pub fn is_abandoned(&self) -> bool {
        self.parts.iter().all(|part| part.request.is_cancelled())
    }

    /// Returns whether all requests with rows among `rows` are cancelled.
    pub fn is_cancelled(&self, rows: &Range<usize>) -> bool {
        self.parts_in(rows)
            .all(|(request, _)| request.is_cancelled())
    }

    /// Returns the requests with rows among `rows`, and these rows numbered from the request's first token.
    pub fn parts_in(
        &self,
        rows: &Range<usize>,
    ) -> impl Iterator<Item = (&Arc<Request>, Range<usize>)> {
        let parts = self.parts.iter().zip(&self.firsts);
        parts.filter_map(move |(part, first)| {
            let own = rows.start.max(*first)..rows.end.min(first + part.rows.len());
            let offset = part.rows.start;
            (!own.is_empty()).then(|| {
                (
                    &part.request,
                    own.start - first + offset..own.end - first + offset,
                )
            })
        })
    }

    /// Returns the segments of `rows`, numbered from the first of these.
    pub fn segments(&self, rows: &Range<usize>) -> SmallVec<[Segment<'_>; SEGMENTS]> {
        let mut segments = SmallVec::new();
        let mut at = 0;
        for (request, own) in self.parts_in(rows) {
            let rows = at..at + own.len();
            at = rows.end;
            segments.push(Segment {
                cache: request.cache(),
                rows,
                position: request.position() + own.start,
                is_branch: false,
                second: None,
                states: request.given(own.clone()),
                layout: request.layout(own),
            });
        }
        segments
    }

    /// Returns those of `rows` whose logits are wanted by requests that are not cancelled.
    pub fn wanted(&self, rows: &Range<usize>) -> impl Iterator<Item = OutputRows<'_>> {
        let mut at = rows.start;
        self.parts_in(rows).filter_map(move |(request, own)| {
            let wanted = request.wanted_rows();
            let mine = own.start.max(wanted.start)..own.end.min(wanted.end);
            let first = at;
            at += own.len();
            (!mine.is_empty() && !request.is_cancelled()).then(|| OutputRows {
                request,
                rows: first + mine.start - own.start..first + mine.end - own.start,
                of_request: mine.start - wanted.start..mine.end - wanted.start,
            })
        })
    }

    /// Hands the hidden states of `rows`, which are through all layers, to the requests that want them. `states` returns
    /// those of some rows, numbered from the first of `rows`.
    pub fn keep_states(
        &self,
        rows: &Range<usize>,
        mut states: impl FnMut(Range<usize>) -> Vec<f32>,
    ) {
        let mut at = 0;
        for (request, own) in self.parts_in(rows) {
            let wanted = request.rows_with_states();
            let mine = own.start.max(wanted.start)..own.end.min(wanted.end);
            if !mine.is_empty() {
                let first = at + mine.start - own.start;
                request.write_states(mine.clone(), &states(first..first + mine.len()));
            }
            at += own.len();
        }
    }

    /// Records that the first `rows` rows are through all layers.
    pub fn advance(&self, rows: usize) {
        for (part, first) in self.parts.iter().zip(&self.firsts) {
            let own = rows.saturating_sub(*first).min(part.rows.len());
            if own > 0 {
                part.request.advance(part.rows.start + own);
            }
        }
    }

    /// Records that a thread hangs while it computes the batch: it may still write to the caches of the sequences.
    pub fn taint(&self) {
        self.parts.iter().for_each(|part| part.request.taint());
    }

    /// Ends all its requests that have not ended, with an error.
    pub fn fail(&self, error: impl Fn() -> Error) {
        for BatchPart { request, .. } in &self.parts {
            request.fail(if request.is_cancelled() {
                Error::Cancelled
            } else {
                error()
            });
        }
    }

    /// Records that the batch is over: computed, failed or abandoned. An executor calls it once, without holding a lock
    /// that [`Executor::execute`](crate::executor::Executor::execute) takes.
    pub fn end(&self) {
        for BatchPart { request, .. } in &self.parts {
            if request.is_cancelled() {
                request.fail(Error::Cancelled);
            }
        }
        if let Some(observer) = self.observer.upgrade() {
            observer.ended(self);
        }
    }
}
