//! What is computed together: the prompts of some sequences, a step of sequences that decode, or logits.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use smallvec::SmallVec;
use triad_kernels::Phase;
use triad_plan::graph::{Graph, Role, Task};

use super::request::Request;
use super::{Execution, Shared};
use crate::error::Result;
use crate::forward::{self, Buffers, Segment};
use crate::linear::{Kernels, Multiplier};

/// Sequences of one chunk or step whose segments take no allocation.
const SEGMENTS: usize = 16;

/// Requests that are computed together, cut into tasks.
pub(super) struct Pass {
    pub(super) start: Instant,
    pub(super) requests: Vec<Arc<Request>>,
    /// Where the rows of each request begin among all rows.
    firsts: Vec<usize>,
    /// Of all rows.
    tokens: Vec<u32>,
    pub(super) work: Work,
    pub(super) execution: Arc<OnceLock<Execution>>,
}

/// What is computed of them.
pub(super) enum Work {
    /// Prompts, one behind the other in chunks; a chunk may have rows of several.
    Prompts(Graph),
    /// Rows that decode, one step of all of them, cut into so many tasks.
    Step(usize),
    /// Logits of rows that have been through all blocks.
    Logits(Vec<Hidden>),
}

/// The residual stream behind the last block, of rows whose logits are wanted.
pub(super) struct Hidden {
    pub(super) request: Arc<Request>,
    /// Which of the wanted rows they are.
    pub(super) rows: Range<usize>,
    /// `[rows, hidden]`.
    pub(super) x: Vec<f32>,
}

/// Buffers of a chunk or step, and how far it is in them.
pub(super) struct Slot {
    pub(super) buffers: Buffers,
    /// Of a step, `[rows, vocab]`.
    pub(super) logits: Vec<f32>,
    pub(super) chunk: usize,
    /// Subgraphs, or tasks of a step, that the chunk has been through in these buffers.
    pub(super) done: usize,
}

impl Slot {
    pub(super) fn new(shared: &Shared, rows: usize) -> Self {
        Self { buffers: Buffers::new(shared.model.description(), rows), logits: Vec::new(), chunk: 0, done: 0 }
    }

    /// Takes another chunk.
    pub(super) fn reset(&mut self, chunk: usize) {
        (self.chunk, self.done) = (chunk, 0);
    }
}

impl Pass {
    pub(super) fn new(requests: Vec<Arc<Request>>, work: impl FnOnce(usize) -> Work) -> Self {
        let (mut firsts, mut tokens) = (Vec::with_capacity(requests.len()), Vec::new());
        for request in &requests {
            firsts.push(tokens.len());
            tokens.extend_from_slice(&request.tokens);
        }
        let (work, execution) = (work(tokens.len()), Arc::default());
        Self { start: Instant::now(), requests, firsts, tokens, work, execution }
    }

    /// Rows of all requests.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The subgraph and chunk of a task of prompts.
    pub(super) fn task(graph: &Graph, number: usize) -> Task {
        let subgraphs = graph.subgraphs().len();
        Task { chunk: number / subgraphs, subgraph: number % subgraphs, part: 0 }
    }

    /// Which slot of `slots` a task takes.
    pub(super) fn slot(&self, task: usize, slots: usize) -> Option<usize> {
        match &self.work {
            Work::Prompts(graph) => Some(Self::task(graph, task).chunk % slots),
            Work::Step(_) => Some(0),
            Work::Logits(_) => None,
        }
    }

    /// The chunk of a task.
    pub(super) fn chunk(&self, task: usize) -> usize {
        match &self.work {
            Work::Prompts(graph) => Self::task(graph, task).chunk,
            Work::Step(_) | Work::Logits(_) => 0,
        }
    }

    /// Whether everybody who asked for it has gone.
    pub(super) fn is_abandoned(&self) -> bool {
        !self.requests.is_empty() && self.requests.iter().all(|request| request.is_cancelled())
    }

    /// Requests with rows among `rows`, and which of their own rows these are.
    fn requests_in(&self, rows: &Range<usize>) -> impl Iterator<Item = (&Arc<Request>, Range<usize>)> {
        let requests = self.requests.iter().zip(&self.firsts);
        requests.filter_map(move |(request, first)| {
            let own = rows.start.max(*first)..rows.end.min(first + request.tokens.len());
            (!own.is_empty()).then(|| (request, own.start - first..own.end - first))
        })
    }

    /// The segments of `rows`, counted from the first of these.
    fn segments(&self, rows: &Range<usize>) -> SmallVec<[Segment<'_>; SEGMENTS]> {
        let mut segments = SmallVec::new();
        let mut at = 0;
        for (request, own) in self.requests_in(rows) {
            let rows = at..at + own.len();
            at = rows.end;
            segments.push(Segment { cache: &request.cache, rows, position: request.position + own.start });
        }
        segments
    }

    /// Marks what is through when the first `rows` rows are.
    pub(super) fn advance(&self, rows: usize) {
        for (request, first) in self.requests.iter().zip(&self.firsts) {
            request.advance(rows.saturating_sub(*first).min(request.tokens.len()));
        }
    }

    /// Runs a task: its subgraph, and behind a failure all that its buffers lack. Returns the rows whose logits are to be
    /// computed next.
    ///
    /// # Errors
    /// If the products fail. The slot then holds nothing that anyone could go on with.
    pub(super) fn perform(
        &self,
        shared: &Shared,
        number: usize,
        slot: Option<&mut Slot>,
        multiplier: &mut Multiplier,
    ) -> Result<Vec<Hidden>> {
        match (&self.work, slot) {
            (Work::Prompts(graph), Some(slot)) => self.subgraph(shared, graph, number, slot, multiplier),
            (Work::Step(tasks), Some(slot)) => self.step(shared, number, *tasks, slot).map(|()| Vec::new()),
            (Work::Logits(hidden), _) => {
                logits(shared, hidden);
                Ok(Vec::new())
            }
            (_, None) => unreachable!("prompts and steps have slots"),
        }
    }

    fn subgraph(
        &self,
        shared: &Shared,
        graph: &Graph,
        number: usize,
        slot: &mut Slot,
        multiplier: &mut Multiplier,
    ) -> Result<Vec<Hidden>> {
        let task = Self::task(graph, number);
        let rows = graph.chunks()[task.chunk].clone();
        if slot.chunk != task.chunk {
            slot.reset(task.chunk);
        }
        // A chunk that nobody waits for any more.
        if self.requests_in(&rows).all(|(request, _)| request.is_cancelled()) {
            slot.done = task.subgraph + 1;
            return Ok(Vec::new());
        }
        let (pass, segments) = (shared.pass(Phase::Prefill), self.segments(&rows));
        if slot.done == 0 {
            pass.begin(&self.tokens[rows.clone()], &segments, &mut slot.buffers);
        }
        // Until it is through, nobody knows what the buffers hold.
        let first = std::mem::take(&mut slot.done);
        for subgraph in &graph.subgraphs()[first..=task.subgraph] {
            pass.subgraph(subgraph.block, subgraph.role, &segments, &mut slot.buffers, multiplier, &mut None)?;
        }
        let mut wanted = Vec::new();
        if task.subgraph + 1 == graph.subgraphs().len() {
            pass.end(rows.len(), &mut slot.buffers);
            wanted = self.hidden(&rows, &slot.buffers, pass.description.hidden);
        }
        slot.done = task.subgraph + 1;
        Ok(wanted)
    }

    /// The residual stream of those of `rows` whose logits are wanted.
    fn hidden(&self, rows: &Range<usize>, buffers: &Buffers, hidden: usize) -> Vec<Hidden> {
        let mut at = 0;
        let mut all = Vec::new();
        for (request, own) in self.requests_in(rows) {
            let wanted = request.wanted_rows();
            let mine = own.start.max(wanted.start)..own.end.min(wanted.end);
            if !mine.is_empty() && !request.is_cancelled() {
                let first = at + mine.start - own.start;
                let x = buffers.residual(first..first + mine.len(), hidden).to_vec();
                let rows = mine.start - wanted.start..mine.end - wanted.start;
                all.push(Hidden { request: Arc::clone(request), rows, x });
            }
            at += own.len();
        }
        all
    }

    /// One of `tasks` tasks of a step: some blocks, and behind the last one the logits.
    fn step(&self, shared: &Shared, number: usize, tasks: usize, slot: &mut Slot) -> Result<()> {
        let (pass, segments) = (shared.pass(Phase::Decode), self.segments(&(0..self.rows())));
        if slot.done == 0 {
            pass.begin(&self.tokens, &segments, &mut slot.buffers);
        }
        let first = std::mem::take(&mut slot.done);
        let blocks = pass.description.blocks.len();
        let mut multiplier = Multiplier { products: &mut Kernels(pass.weights), beside: None };
        for block in first * blocks / tasks..(number + 1) * blocks / tasks {
            for role in Role::ALL {
                pass.subgraph(block, role, &segments, &mut slot.buffers, &mut multiplier, &mut None)?;
            }
        }
        if number + 1 == tasks {
            pass.end(self.rows(), &mut slot.buffers);
            self.step_logits(&pass, slot);
        }
        slot.done = number + 1;
        Ok(())
    }

    fn step_logits(&self, pass: &forward::Pass, slot: &mut Slot) {
        let vocab = pass.description.vocab;
        let rows = self.requests.iter().zip(&self.firsts).flat_map(|(request, first)| {
            let wanted = request.wanted_rows();
            first + wanted.start..first + wanted.end
        });
        let rows: SmallVec<[usize; SEGMENTS]> = rows.collect();
        slot.logits.resize(rows.len() * vocab, 0.0);
        pass.logits(&mut slot.buffers, rows.into_iter(), Phase::Decode, &mut slot.logits);
        let mut logits = &slot.logits[..];
        for request in &self.requests {
            let rows = request.wanted_rows().len();
            let of_request = logits.split_off(..rows * vocab).expect("rows of all requests");
            request.write_logits(0..rows, of_request);
        }
    }
}

/// Logits of rows that have been through all blocks, those of one arithmetic at once.
fn logits(shared: &Shared, hidden: &[Hidden]) {
    let pass = shared.pass(Phase::Prefill);
    let vocab = pass.description.vocab;
    for phase in [Phase::Prefill, Phase::Decode] {
        let of_phase = || hidden.iter().filter(|hidden| hidden.request.phase_of_logits() == phase);
        let x: Vec<f32> = of_phase().flat_map(|hidden| hidden.x.iter().copied()).collect();
        if x.is_empty() {
            continue;
        }
        let mut logits = vec![0.0; x.len() / pass.description.hidden * vocab];
        pass.logits_of(&x, &mut vec![0.0; x.len()], phase, &mut logits);
        let mut logits = &logits[..];
        for Hidden { request, rows, .. } in of_phase() {
            let of_request = logits.split_off(..rows.len() * vocab).expect("rows of all requests");
            request.write_logits(rows.clone(), of_request);
        }
    }
}
