//! One view on devices: a thread that computes it, and the thread that waits for it and for its devices.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use triad_engine::executor::panic_message;
use triad_engine::linear::{Backend, CpuBackend, FloatRows, LinearOutput, Shadows, StaticInput};
use triad_engine::vision::Pixels;
use triad_engine::{Cancel, Error, Result};
use triad_kernels::activation::Activation;
use triad_kernels::int8::{QuantizedRows, QuantizedView};
use triad_kernels::lock;
use triad_model::role::Role;

use super::{Encoder, EncoderProduct, EncoderPrograms};
use crate::failure::{FailureReason, ProcessorFailure};
use crate::programs::DeviceBackend;

/// How often the waiting thread checks whether a device hangs.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Layers of a product that need no allocation.
const LAYERS: usize = 4;

/// The state of a view.
#[derive(Default)]
struct ViewRun(Mutex<State>);

#[derive(Default)]
struct State {
    /// The device that computes a product, and since when.
    running: Option<(usize, Instant)>,
    /// Whether no thread waits for the view any more.
    is_given_up: bool,
    /// Devices that failed.
    lost: Vec<usize>,
    products: Vec<EncoderProduct>,
    failures: Vec<ProcessorFailure>,
}

/// The rows of a view, `None` if a device hangs; the products that devices computed; the devices that failed.
type Outcome = (Option<Vec<f32>>, Vec<EncoderProduct>, Vec<ProcessorFailure>);

/// Computes the rows of a view with products on devices.
///
/// # Errors
/// As [`VisionModel::encode`](triad_engine::VisionModel::encode); if the system has no thread.
pub(super) fn on_devices(
    encoder: &Arc<Encoder>,
    programs: &Arc<EncoderPrograms>,
    pixels: Pixels,
    cancel: &Cancel,
) -> Result<Outcome> {
    let pool = encoder.pool()?;
    let run = Arc::new(ViewRun::default());
    let (sender, rows) = sync_channel(1);
    let compute = {
        // The thread outlives this function if a device hangs.
        let (encoder, programs) = (Arc::clone(encoder), Arc::clone(programs));
        let (run, cancel) = (Arc::clone(&run), cancel.clone());
        let (height, width, planes) = (pixels.height, pixels.width, pixels.planes.to_vec());
        move || {
            let pixels = Pixels {
                height,
                width,
                planes: &planes,
            };
            let encode = || pool.install(|| compute(&encoder, &programs, &run, (pixels, &cancel)));
            let _ = sender.send(catch_unwind(AssertUnwindSafe(encode)));
        }
    };
    let thread = std::thread::Builder::new().name("triad-encoder".into());
    thread
        .spawn(compute)
        .map_err(|source| Error::Threads { threads: 1, source })?;
    let rows = loop {
        match rows.recv_timeout(POLL_INTERVAL) {
            Ok(Ok(rows)) => break Some(rows?),
            Ok(Err(panic)) => return Err(Error::Panic(panic_message(&*panic).to_owned())),
            Err(RecvTimeoutError::Timeout) if run.give_up_hung(encoder) => break None,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Panic("the thread of an encoder ended".into()));
            }
        }
    };
    let mut state = lock(&run.0);
    let products = std::mem::take(&mut state.products);
    Ok((rows, products, std::mem::take(&mut state.failures)))
}

fn compute(
    encoder: &Encoder,
    programs: &EncoderPrograms,
    run: &ViewRun,
    (pixels, cancel): (Pixels, &Cancel),
) -> Result<Vec<f32>> {
    let vision = encoder.model.vision()?;
    let mut backend = EncoderBackend {
        encoder,
        programs,
        run,
        kernels: CpuBackend(&vision.weights().blocks),
    };
    vision.encode_with(&mut backend, pixels, cancel)
}

impl ViewRun {
    /// Marks a device as computing; returns whether it may.
    fn begin(&self, device: usize) -> bool {
        let mut state = lock(&self.0);
        let may = !state.lost.contains(&device);
        if may {
            state.running = Some((device, Instant::now()));
        }
        may
    }

    /// If a product takes longer than the time limit, loses its device and gives the view up. Returns whether it did.
    fn give_up_hung(&self, encoder: &Encoder) -> bool {
        let limit = encoder.time_out;
        let mut state = lock(&self.0);
        let Some((device, _)) = state.running.filter(|(_, since)| since.elapsed() > limit) else {
            return false;
        };
        state.is_given_up = true;
        encoder.set_away(device, true);
        encoder.leave_pool();
        let reason = FailureReason::TimeOut(limit);
        state.failures.push(encoder.failure(device, reason));
        true
    }
}

impl Encoder {
    fn failure(&self, device: usize, reason: FailureReason) -> ProcessorFailure {
        ProcessorFailure {
            processor: self.devices[device].name.clone(),
            task: None,
            reason,
        }
    }
}

/// The linear layers of an encoder: on the devices that have programs, else by our own kernels.
struct EncoderBackend<'a> {
    encoder: &'a Encoder,
    programs: &'a EncoderPrograms,
    run: &'a ViewRun,
    kernels: CpuBackend<'a>,
}

impl EncoderBackend<'_> {
    /// Computes a product of `rows` rows on its device, in pieces of the rows that programs have: `piece` computes one.
    /// Returns whether that was done: if there is no such device, or it fails, the outputs are arbitrary.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if no thread waits for the view any more.
    fn on_device(
        &self,
        (block, role, rows): (usize, Role, usize),
        outs: &mut [LinearOutput],
        mut piece: impl FnMut(&mut DeviceBackend, Range<usize>, &mut [LinearOutput]) -> Result<()>,
    ) -> Result<bool> {
        let Some(device) = self.programs.device(block, role) else {
            return Ok(false);
        };
        if self.encoder.is_away(device) || !self.run.begin(device) {
            return Ok(false);
        }
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut backend = DeviceBackend {
                programs: &mut lock(&self.programs.of_devices[device]),
                kernels: CpuBackend(self.kernels.0),
            };
            for first in (0..rows).step_by(self.programs.rows) {
                let range = first..rows.min(first + self.programs.rows);
                let outs = outs.iter_mut().map(|output| {
                    let (_, rest) = output.out.reborrow().split_at_row(range.start);
                    LinearOutput {
                        linear: output.linear,
                        columns: output.columns.clone(),
                        out: rest.split_at_row(range.len()).0,
                    }
                });
                let mut outs: SmallVec<[_; LAYERS]> = outs.collect();
                piece(&mut backend, range, &mut outs)?;
            }
            Ok(())
        }));
        let mut state = lock(&self.run.0);
        state.running = None;
        if state.is_given_up {
            self.encoder.set_away(device, false);
            return Err(Error::Cancelled);
        }
        let reason = match outcome {
            Ok(Ok(())) => {
                state.products.push(EncoderProduct {
                    block,
                    role,
                    processor: self.encoder.devices[device].processor,
                    start,
                    end: Instant::now(),
                });
                return Ok(true);
            }
            Ok(Err(error)) => FailureReason::Error(Arc::new(error)),
            Err(panic) => FailureReason::Panic(panic_message(&*panic).to_owned()),
        };
        state.lost.push(device);
        state.failures.push(self.encoder.failure(device, reason));
        Ok(false)
    }
}

impl Backend for EncoderBackend<'_> {
    fn multiply(
        &mut self,
        block: usize,
        role: Role,
        x: QuantizedView,
        outs: &mut [LinearOutput],
        shadows: Shadows,
    ) -> Result<bool> {
        let place = (block, role, x.rows());
        let is_done = self.on_device(place, outs, |backend, rows, outs| {
            let x = x.rows_view(rows);
            backend.multiply(block, role, x, outs, Shadows::Apart)?;
            Ok(())
        })?;
        match is_done {
            true => Ok(false),
            false => self.kernels.multiply(block, role, x, outs, shadows),
        }
    }

    fn multiply_floats(
        &mut self,
        block: usize,
        role: Role,
        x: FloatRows,
        outs: &mut [LinearOutput],
    ) -> Result<()> {
        let channels = x.x.len() / x.rows.max(1);
        let is_done = self.on_device((block, role, x.rows), outs, |backend, rows, outs| {
            let piece = FloatRows {
                x: &x.x[rows.start * channels..rows.end * channels],
                rows: rows.len(),
                phase: x.phase,
            };
            backend.multiply_floats(block, role, piece, outs)
        })?;
        match is_done {
            true => Ok(()),
            false => self.kernels.multiply_floats(block, role, x, outs),
        }
    }

    fn gated(
        &mut self,
        block: usize,
        x: QuantizedView,
        activation: Activation,
        how: StaticInput,
        inner: &mut QuantizedRows,
    ) -> bool {
        self.programs.device(block, Role::GateUp).is_none()
            && self.kernels.gated(block, x, activation, how, inner)
    }
}
