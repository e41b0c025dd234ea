//! The executor of one CPU: a batch goes through the layers of the model, one after the other, on the model's threads.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use triad_kernels::{Phase, lock};

use super::{Executor, Limits, ProcessorUse};
use crate::batch::{Batch, OutputRows};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::forward::{Buffers, Chunk, Forward, ForwardContext, MatmulContext};
use crate::linear::{Backend, CpuBackend};
use crate::vision::Pixels;

/// Wanted rows of a batch that need no allocation.
const ROWS: usize = 16;

/// When the layers of a batch of prompts were computed: its report.
#[derive(Clone, Debug)]
pub struct LayerTimes {
    /// Rows of the batch.
    pub rows: usize,
    /// When the batch began.
    pub start: Instant,
    /// Begin and end of each layer, since `start`. Decode steps between them are left out.
    pub layers: Vec<Range<Duration>>,
}

impl LayerTimes {
    fn new(batch: &Batch) -> Self {
        Self {
            rows: batch.rows(),
            start: batch.start(),
            layers: Vec::new(),
        }
    }

    fn begin_layer(&mut self) {
        let now = self.start.elapsed();
        self.layers.push(now..now);
    }

    fn end_layer(&mut self) {
        if let Some(last) = self.layers.last_mut() {
            last.end = self.start.elapsed();
        }
    }
}

/// Computes batches on the threads of the model, one at a time.
pub(crate) struct CpuExecutor {
    forward: Arc<Forward>,
    /// The buffers of prompts.
    chunk: Mutex<Buffers>,
    /// The buffers and logits of decode steps; `None` before the first.
    step: Mutex<Option<StepBuffers>>,
    busy_nanoseconds: AtomicU64,
}

struct StepBuffers {
    buffers: Buffers,
    /// `[rows, vocab]`.
    logits: Vec<f32>,
}

impl CpuExecutor {
    /// Creates an executor whose batches have at most `chunk` rows of prompts.
    pub(crate) fn new(forward: &Arc<Forward>, chunk: usize) -> Self {
        Self {
            chunk: Mutex::new(Buffers::new(forward.description(), chunk, false)),
            forward: Arc::clone(forward),
            step: Mutex::default(),
            busy_nanoseconds: AtomicU64::new(0),
        }
    }

    /// Computes rows of prompts, and the logits of those that want some.
    fn prefill(&self, batch: &Batch, between: &dyn Fn()) -> Result<()> {
        let context = self.forward.context(Phase::Prefill);
        let (buffers, rows) = (lock(&self.chunk), 0..batch.rows());
        let segments = batch.segments(&rows);
        let chunk = Chunk {
            segments: &segments,
            buffers: &buffers,
        };
        let mut backend = self.backend();
        let mut matmul = MatmulContext::new(&mut *backend);
        let mut times = LayerTimes::new(batch);
        context.run(batch.tokens(), chunk, &mut matmul, &mut || {
            times.end_layer();
            between();
            times.begin_layer();
            if batch.is_abandoned() {
                Err(Error::Cancelled)
            } else {
                Ok(())
            }
        })?;
        times.end_layer();
        let _ = batch.report().set(Box::new(times));
        batch.keep_states(&rows, |rows| context.hidden_states(&buffers, rows));
        batch.advance(batch.rows());
        let wanted: Vec<_> = batch.wanted(&rows).collect();
        for phase in [Phase::Prefill, Phase::Decode] {
            let of_phase = || {
                wanted
                    .iter()
                    .filter(|one| one.request.phase_of_logits() == phase)
            };
            let rows: SmallVec<[usize; ROWS]> =
                of_phase().flat_map(|one| one.rows.clone()).collect();
            if rows.is_empty() {
                continue;
            }
            let vocab = context.description.vocab;
            let mut logits = vec![0.0; rows.len() * vocab];
            context.logits(&buffers, rows.into_iter(), phase, &mut logits);
            write_logits(of_phase(), &logits, vocab);
            of_phase().for_each(|one| one.request.complete_logits(one.rows.len()));
        }
        Ok(())
    }

    /// Computes the next rows of sequences that decode, and their logits.
    fn decode(&self, batch: &Batch) -> Result<()> {
        let context = self.forward.context(Phase::Decode);
        let mut step = lock(&self.step);
        let step = self.step_buffers(&mut step, batch.rows());
        let segments = batch.segments(&(0..batch.rows()));
        let chunk = Chunk {
            segments: &segments,
            buffers: &step.buffers,
        };
        let mut backend = CpuBackend(&context.weights.blocks);
        let mut matmul = MatmulContext::new(&mut backend);
        context.run(batch.tokens(), chunk, &mut matmul, &mut || Ok(()))?;
        step_logits(&context, batch, &step.buffers, &mut step.logits);
        batch.advance(batch.rows());
        for part in batch.parts() {
            part.request
                .complete_logits(part.request.wanted_rows().len());
        }
        Ok(())
    }

    /// Returns buffers for `rows` rows, which grow by powers of two.
    fn step_buffers<'a>(
        &self,
        step: &'a mut Option<StepBuffers>,
        rows: usize,
    ) -> &'a mut StepBuffers {
        if step.as_ref().is_none_or(|step| step.buffers.rows() < rows) {
            let rows = rows.next_power_of_two();
            *step = Some(StepBuffers {
                buffers: Buffers::new(self.forward.description(), rows, false),
                logits: Vec::new(),
            });
        }
        step.as_mut().expect("it was just made")
    }
}

impl Executor for CpuExecutor {
    fn limits(&self) -> Limits {
        let rows = lock(&self.chunk).rows();
        Limits {
            prompt_rows: rows,
            picture_rows: rows,
            prompts: 1,
            overlap: false,
            separate_adapters: false,
        }
    }

    fn execute(&self, batch: &Arc<Batch>, between: &dyn Fn()) {
        let (start, elsewhere) = (Instant::now(), Cell::new(Duration::ZERO));
        let between = || {
            let start = Instant::now();
            between();
            elsewhere.set(elsewhere.get() + start.elapsed());
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.forward.model().install(|| match batch.phase() {
                Phase::Prefill => self.prefill(batch, &between),
                Phase::Decode => self.decode(batch),
            })
        }));
        let nanoseconds = start.elapsed().saturating_sub(elsewhere.get()).as_nanos() as u64;
        self.busy_nanoseconds
            .fetch_add(nanoseconds, Ordering::Relaxed);
        match outcome {
            Ok(Ok(()) | Err(Error::Cancelled)) => {}
            Ok(Err(error)) => batch.fail(|| Error::Executor(error.to_string().into())),
            Err(panic) => {
                let message = panic_message(&*panic);
                batch.fail(|| Error::Panic(message.to_owned()));
            }
        }
        batch.end();
    }

    fn gives_states(&self) -> bool {
        true
    }

    fn encode(&self, pixels: Pixels, cancel: &Cancel) -> Result<Vec<f32>> {
        let model = self.forward.model();
        let vision = model.vision()?;
        model.install(|| vision.encode(pixels, cancel))
    }

    fn backend(&self) -> Box<dyn Backend + '_> {
        Box::new(CpuBackend(&self.forward.model().weights().blocks))
    }

    fn processors(&self) -> Vec<ProcessorUse> {
        let nanoseconds = self.busy_nanoseconds.load(Ordering::Relaxed);
        vec![ProcessorUse {
            name: "cpu".into(),
            busy_seconds: nanoseconds as f64 / 1e9,
        }]
    }
}

/// Computes the logits of a decode step in `logits[rows, vocab]`, and hands them to the requests, and the hidden states
/// to those that want them.
pub fn step_logits(
    context: &ForwardContext,
    batch: &Batch,
    buffers: &Buffers,
    logits: &mut Vec<f32>,
) {
    let vocab = context.description.vocab;
    batch.keep_states(&(0..batch.rows()), |rows| {
        context.hidden_states(buffers, rows)
    });
    let wanted: SmallVec<[OutputRows; ROWS]> = batch.wanted(&(0..batch.rows())).collect();
    let rows: SmallVec<[usize; ROWS]> = wanted.iter().flat_map(|one| one.rows.clone()).collect();
    logits.resize(rows.len() * vocab, 0.0);
    context.logits(buffers, rows.into_iter(), Phase::Decode, logits);
    // Copying the logits of a large vocabulary takes a while.
    match &wanted[..] {
        [only] if only.of_request == only.request.wanted_rows() => {
            only.request.swap_logits(logits);
        }
        _ => write_logits(wanted.iter(), logits, vocab),
    }
}

/// Copies `logits[wanted rows, vocab]` to the requests.
fn write_logits<'a>(
    wanted: impl Iterator<Item = &'a OutputRows<'a>>,
    mut logits: &[f32],
    vocab: usize,
) {
    for one in wanted {
        let of_request = logits
            .split_off(..one.rows.len() * vocab)
            .expect("logits of all rows");
        one.request.write_logits(one.of_request.clone(), of_request);
    }
}

/// Returns the message of a panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
