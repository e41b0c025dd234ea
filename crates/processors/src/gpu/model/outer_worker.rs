//! The thread that drives another processor, which multiplies for a GPU.
//!
//! The GPU's thread hands a product over and goes on. It waits for the result by blocking, or sleeps for most of the time
//! that the product took before and then polls a flag that the thread sets (HeteroLLM, §4.2). If the processor hangs, its
//! thread keeps its programs and buffers, and is not joined.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use triad_kernels::OutputMut;
use triad_kernels::int8::QuantizedRows;

use crate::device::Program;
use crate::error::{Error, Result};
use crate::multiplier::ProductWait;

/// The programs of a product.
pub(super) type Programs = Vec<Box<dyn Program>>;

/// How long before the expected end the waiting thread wakes up, and how long after it polls before it blocks.
const MARGIN: Duration = Duration::from_micros(200);

/// A product to compute.
pub(super) struct Job {
    /// Index of the product.
    pub product: usize,
    pub parts: Vec<JobPart>,
    /// Quantized rows of the input.
    pub rows: QuantizedRows,
    /// The outputs: rectangles `[rows, columns]`, one after the other.
    pub computed: Vec<f32>,
}

/// A part of a product.
pub(super) struct JobPart {
    /// Index of the program.
    pub program: usize,
    /// Rows of the input.
    pub rows: Range<usize>,
    /// Columns of each output of the program.
    pub widths: Vec<usize>,
}

/// A product that was computed, and its time.
pub(super) struct Done {
    pub job: Job,
    pub seconds: f64,
    pub ended: Instant,
    outcome: Result<()>,
}

/// The thread, as the GPU's thread sees it.
pub(super) struct Worker {
    name: String,
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    /// Set by the thread after each product.
    flag: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Whether a product was given up and has not returned.
    is_away: bool,
    time_out: Duration,
    wait: ProductWait,
    /// Latest seconds of a product by its index and rows.
    expected: HashMap<(usize, usize), f64>,
    started: Option<((usize, usize), Instant)>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn start(
        name: &str,
        programs: Vec<Programs>,
        (time_out, wait): (Duration, ProductWait),
    ) -> std::io::Result<Self> {
        let (jobs, to_do) = channel();
        let (results, done) = channel();
        let flag = Arc::new(AtomicBool::new(false));
        let (of_thread, processor) = (Arc::clone(&flag), name.to_owned());
        let builder = std::thread::Builder::new().name("triad-multiplier".to_owned());
        let thread =
            builder.spawn(move || serve(&processor, programs, &to_do, (&results, &of_thread)))?;
        Ok(Self {
            name: name.to_owned(),
            jobs: Some(jobs),
            done,
            flag,
            thread: Some(thread),
            is_away: false,
            time_out,
            wait,
            expected: HashMap::new(),
            started: None,
        })
    }

    /// Hands a product over.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn begin(&mut self, job: Job) -> Result<()> {
        self.flag.store(false, Ordering::Relaxed);
        self.started = Some(((job.product, job.rows.rows()), Instant::now()));
        let jobs = self.jobs.as_ref();
        let sent = jobs.is_some_and(|jobs| jobs.send(job).is_ok());
        if sent {
            Ok(())
        } else {
            Err(self.failed("its thread has ended"))
        }
    }

    /// Waits for the product that was handed over. Returns it with the seconds that the thread waited.
    ///
    /// # Errors
    /// If the processor has failed or hangs.
    pub fn finish(&mut self) -> Result<(Done, f64)> {
        let waits = Instant::now();
        let (key, start) = self
            .started
            .take()
            .ok_or_else(|| self.failed("no product was begun"))?;
        if self.wait == ProductWait::Flag
            && let Some(expected) = self.expected.get(&key)
        {
            let end = start + Duration::from_secs_f64(*expected);
            let sleep = end.saturating_duration_since(waits).saturating_sub(MARGIN);
            if !self.flag.load(Ordering::Acquire) && sleep > MARGIN {
                std::thread::sleep(sleep);
            }
            while !self.flag.load(Ordering::Acquire) && Instant::now() < end + MARGIN {
                std::hint::spin_loop();
            }
        }
        let left = self.time_out.saturating_sub(start.elapsed());
        match self.done.recv_timeout(left) {
            Ok(Done {
                outcome: Err(error),
                ..
            }) => Err(error),
            Ok(done) => {
                self.expected.insert(key, done.seconds);
                Ok((done, waits.elapsed().as_secs_f64()))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.is_away = true;
                let seconds = self.time_out.as_secs_f64();
                Err(self.failed(&format!("it did not end a product within {seconds} s")))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.failed("its thread has ended")),
        }
    }

    /// Returns whether the processor does not hang any more, and drops the product that it was late with.
    pub fn has_returned(&mut self) -> bool {
        if self.is_away && self.done.try_recv().is_ok() {
            self.is_away = false;
        }
        !self.is_away
    }

    /// Waits for a product that was handed over, whose result is of no use.
    pub fn abandon(&mut self) {
        if self.started.is_some() {
            let _ = self.finish();
        }
    }

    fn failed(&self, reason: &str) -> Error {
        Error::Run {
            processor: self.name.clone(),
            reason: reason.to_owned(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if self.has_returned()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Computes products until there are no more.
fn serve(
    name: &str,
    mut programs: Vec<Programs>,
    jobs: &Receiver<Job>,
    (results, flag): (&Sender<Done>, &AtomicBool),
) {
    for mut job in jobs {
        let start = Instant::now();
        let of_product = &mut programs[job.product];
        // A panic of this processor is not one of the GPU.
        let run = catch_unwind(AssertUnwindSafe(|| run(of_product, &mut job)));
        let outcome = run.unwrap_or_else(|panic| Err(panicked(name, &*panic)));
        let ended = Instant::now();
        let seconds = (ended - start).as_secs_f64();
        let sent = results.send(Done {
            job,
            seconds,
            ended,
            outcome,
        });
        flag.store(true, Ordering::Release);
        if sent.is_err() {
            return;
        }
    }
}

fn run(programs: &mut Programs, job: &mut Job) -> Result<()> {
    let Job {
        parts,
        rows: input,
        computed,
        ..
    } = job;
    let mut rest = &mut computed[..];
    for JobPart {
        program,
        rows,
        widths,
    } in parts
    {
        let columns: usize = widths.iter().sum();
        let of_part = rest
            .split_off_mut(..rows.len() * columns)
            .expect("outputs of all parts");
        let mut left = Some(OutputMut::new(of_part, columns));
        let mut outputs = Vec::with_capacity(widths.len());
        for width in widths {
            let of_rest = left.take().expect("columns of all outputs");
            if *width == of_rest.columns() {
                outputs.push(of_rest);
            } else {
                let (first, others) = of_rest.split_at_column(*width);
                outputs.push(first);
                left = Some(others);
            }
        }
        programs[*program].run(input.rows_view(rows.clone()), &mut outputs)?;
    }
    Ok(())
}

/// Returns the error of a processor whose program panicked.
fn panicked(name: &str, panic: &dyn Any) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    Error::Run {
        processor: name.to_owned(),
        reason: format!("it panicked: {}", text.unwrap_or("without a message")),
    }
}
