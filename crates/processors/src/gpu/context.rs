//! An open GPU: its device, its queue and its failures.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::adapters::{Adapter, AdapterKind};
use super::matrices::Matrices;
use super::pipeline_cache::PipelineCache;
use crate::error::{Error, Result};

/// Longest time that a submission may take. After it, the GPU counts as failed.
const TIME_OUT: Duration = Duration::from_secs(30);
/// The same limit for software renderers, which take long for a chunk of a model.
const TIME_OUT_OF_SOFTWARE: Duration = Duration::from_secs(300);
/// How long before the expected end of a submission, and after it, the thread polls.
const POLLED: Duration = Duration::from_micros(200);
/// Alignment of offsets in a uniform buffer that every GPU accepts.
pub(super) const UNIFORM: u64 = 256;
/// Bytes of an f32 or i32 number, and of a word of four INT8 numbers.
pub(super) const WORD: usize = 4;

/// Features that are used where the adapter has them.
const OPTIONAL: wgpu::Features = wgpu::Features::SUBGROUP
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::PIPELINE_CACHE);

/// An open GPU.
#[derive(Debug)]
pub(super) struct Context {
    /// Name in errors, `gpu:` and the adapter's name.
    pub name: String,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    /// Whether the GPU is a software renderer on the CPU.
    pub is_software: bool,
    /// Compiled shaders on disk, if a folder was given and the driver returns compiled shaders.
    pub pipelines: Option<PipelineCache>,
    /// Whether the CPU writes directly to the memory that shaders read. True for integrated GPUs and software
    /// renderers.
    pub shares_memory: bool,
    /// Sides of the cooperative matrices (f16 inputs, f32 sums) that subgroups multiply.
    pub matrices: Vec<u32>,
    /// Approximate upper bound for the length of a submission; `None` for one submission per chunk or subgraph.
    pub slice: Option<Duration>,
    time_out: Duration,
    /// Submissions so far.
    submissions: AtomicU64,
    /// The first failure that no call returned. After a failure the GPU is not used any more.
    failure: Arc<OnceLock<String>>,
}

impl Context {
    /// Opens an adapter. Compiled shaders are kept in the folder `kept`. With `with_matrices`, the adapter's
    /// cooperative matrices are enabled, if it has any.
    ///
    /// # Errors
    /// If the driver refuses the adapter.
    pub fn open(
        adapter: &wgpu::Adapter,
        described: &Adapter,
        kept: Option<&Path>,
        with_matrices: bool,
    ) -> Result<Self> {
        let name = format!("gpu:{}", described.name);
        let shared = match described.kind {
            AdapterKind::Integrated | AdapterKind::Software => {
                wgpu::Features::MAPPABLE_PRIMARY_BUFFERS
            }
            _ => wgpu::Features::empty(),
        };
        let shares_memory = !(adapter.features() & shared).is_empty();
        let matrices = if with_matrices {
            Matrices::supported_by(adapter)
        } else {
            Matrices::none()
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("triad"),
            required_features: adapter.features() & (OPTIONAL | shared) | matrices.features,
            required_limits: adapter.limits(),
            experimental_features: matrices.token,
            ..wgpu::DeviceDescriptor::default()
        };
        let refused = |error: wgpu::RequestDeviceError| Error::GpuRefused {
            gpu: name.clone(),
            reason: one_line(&error),
        };
        let (device, queue) =
            pollster::block_on(adapter.request_device(&descriptor)).map_err(refused)?;
        let failure = Arc::new(OnceLock::new());
        let (lost, uncaptured) = (Arc::clone(&failure), Arc::clone(&failure));
        device.set_device_lost_callback(move |_, message| {
            let _ = lost.set(format!("its driver lost it: {message}"));
        });
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let _ = uncaptured.set(one_line(&error));
        }));
        let is_software = described.kind == AdapterKind::Software;
        let kept = kept.filter(|_| device.features().contains(wgpu::Features::PIPELINE_CACHE));
        let pipelines = kept.map(|folder| PipelineCache::open(&device, folder, described));
        let time_out = if is_software {
            TIME_OUT_OF_SOFTWARE
        } else {
            TIME_OUT
        };
        Ok(Self {
            name,
            device,
            queue,
            is_software,
            shares_memory,
            matrices: matrices.sides,
            pipelines,
            slice: None,
            time_out,
            submissions: AtomicU64::new(0),
            failure,
        })
    }

    /// Returns this context with another limit for the length of submissions.
    pub fn with_slice(self, slice: Option<Duration>) -> Self {
        Self { slice, ..self }
    }

    /// Saves the compiled shaders.
    pub fn keep_pipelines(&self) {
        if let Some(pipelines) = &self.pipelines {
            pipelines.save();
        }
    }

    /// Returns the error of a GPU that has failed.
    pub fn check(&self) -> Result<()> {
        self.failure
            .get()
            .map_or(Ok(()), |reason| Err(self.failed(reason.clone())))
    }

    fn failed(&self, reason: String) -> Error {
        Error::Run {
            processor: self.name.clone(),
            reason,
        }
    }

    /// Returns the maximum size, in bytes, of a buffer that shaders read or write.
    pub fn most_bytes(&self) -> u64 {
        let limits = self.device.limits();
        limits
            .max_buffer_size
            .min(limits.max_storage_buffer_binding_size)
    }

    /// Returns an uninitialized buffer of at least 16 bytes.
    ///
    /// # Errors
    /// If it exceeds the maximum buffer size, or there is no memory for it.
    pub fn buffer(
        &self,
        what: &'static str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer> {
        self.created(what, bytes, usage, false)
    }

    fn created(
        &self,
        what: &'static str,
        bytes: u64,
        usage: wgpu::BufferUsages,
        mapped_at_creation: bool,
    ) -> Result<wgpu::Buffer> {
        let most = self.most_bytes();
        let out_of_memory = |reason| Error::GpuMemory {
            gpu: self.name.clone(),
            what,
            bytes,
            reason,
        };
        if bytes > most {
            return Err(out_of_memory(format!("its buffers have {most} at most")));
        }
        let size = bytes.next_multiple_of(4).max(16);
        let descriptor = wgpu::BufferDescriptor {
            label: Some(what),
            size,
            usage,
            mapped_at_creation,
        };
        self.scoped(wgpu::ErrorFilter::OutOfMemory, || {
            self.device.create_buffer(&descriptor)
        })
        .map_err(|_| out_of_memory("it has no memory left".to_owned()))
    }

    /// Returns a buffer that holds `values`.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer).
    pub fn filled<T: bytemuck::NoUninit>(
        &self,
        what: &'static str,
        values: &[T],
    ) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = self.buffer(what, size_of_val(values) as u64, usage)?;
        self.queue
            .write_buffer(&buffer, 0, bytemuck::cast_slice(values));
        Ok(buffer)
    }

    /// Returns a buffer that shaders read and that holds these byte slices, concatenated. If memory is shared, the CPU
    /// writes them in place. Otherwise they go through staging buffers, which are freed when the copies are complete.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer), and if the GPU fails.
    pub fn uploaded(&self, what: &'static str, parts: &[&[u8]]) -> Result<wgpu::Buffer> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        if !self.shares_memory {
            let buffer = self.buffer(
                what,
                bytes,
                wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
            )?;
            let mut at = 0;
            for part in parts {
                self.queue.write_buffer(&buffer, at, part);
                at += part.len() as u64;
            }
            self.flush()?;
            return Ok(buffer);
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::MAP_WRITE;
        let buffer = self.created(what, bytes, usage, true)?;
        let unmapped =
            |error: wgpu::MapRangeError| self.failed(format!("{what} can't be written: {error}"));
        let mut view = buffer.slice(..).get_mapped_range_mut().map_err(unmapped)?;
        let mut at = 0;
        for part in parts {
            view.slice(at..at + part.len()).copy_from_slice(part);
            at += part.len();
        }
        drop(view);
        buffer.unmap();
        Ok(buffer)
    }

    /// Calls `act` and returns errors of the kind `filter` that it caused.
    pub fn scoped<T>(
        &self,
        filter: wgpu::ErrorFilter,
        act: impl FnOnce() -> T,
    ) -> std::result::Result<T, String> {
        let scope = self.device.push_error_scope(filter);
        let value = act();
        match pollster::block_on(scope.pop()) {
            Some(error) => Err(one_line(&error)),
            None => Ok(value),
        }
    }

    /// Submits `encoder`, waits until it is complete, and calls `read` with the first `bytes` of `staging`.
    ///
    /// # Errors
    /// If the GPU fails or takes too long.
    pub fn run(
        &self,
        encoder: wgpu::CommandEncoder,
        staging: &wgpu::Buffer,
        bytes: u64,
        read: impl FnOnce(&[u8]),
    ) -> Result<()> {
        self.run_expected(encoder, (staging, bytes), None, read)
            .map(drop)
    }

    /// Does the same. If an expected time is given, the thread sleeps for most of it and then polls, before it blocks.
    /// Returns the time to expect next: half of the expected one if the GPU had ended before the thread woke up.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_expected(
        &self,
        encoder: wgpu::CommandEncoder,
        (staging, bytes): (&wgpu::Buffer, u64),
        expected: Option<Duration>,
        read: impl FnOnce(&[u8]),
    ) -> Result<Duration> {
        let start = Instant::now();
        let submission = self.submit(encoder);
        let mapped = self.map(staging, bytes);
        let mut next = None;
        if let Some(expected) = expected {
            let sleep = expected.saturating_sub(POLLED);
            if sleep > POLLED {
                std::thread::sleep(sleep);
            }
            let is_done = || {
                let status = self.device.poll(wgpu::PollType::Poll);
                status.is_ok_and(|status| status.is_queue_empty())
            };
            if is_done() {
                next = Some(expected / 2);
            }
            while next.is_none() && !is_done() && start.elapsed() < expected + POLLED {
                std::hint::spin_loop();
            }
        }
        self.wait(submission)?;
        let next = next.unwrap_or_else(|| start.elapsed());
        // Another thread that waits for the GPU may poll the completion of this mapping, and run its callback only
        // after this thread's wait has ended.
        let outcome = mapped.recv_timeout(self.time_out);
        let outcome = outcome.map_err(|_| self.failed("its outputs did not arrive".to_owned()))?;
        outcome.map_err(|error| self.failed(format!("its outputs can't be read: {error}")))?;
        let view = staging.slice(..bytes).get_mapped_range();
        let view =
            view.map_err(|error| self.failed(format!("its outputs can't be read: {error}")))?;
        read(&view);
        drop(view);
        staging.unmap();
        Ok(next)
    }

    /// Submits `encoder` and waits until it is complete.
    ///
    /// # Errors
    /// If the GPU fails or takes too long.
    pub fn run_without_outputs(&self, encoder: wgpu::CommandEncoder) -> Result<()> {
        self.wait(self.submit(encoder))
    }

    /// Submits `encoder` and returns at once.
    pub fn submit(&self, encoder: wgpu::CommandEncoder) -> wgpu::SubmissionIndex {
        self.submissions.fetch_add(1, Ordering::Relaxed);
        self.queue.submit([encoder.finish()])
    }

    /// Returns the number of submissions so far.
    pub fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }

    /// Waits until all writes to buffers are complete.
    ///
    /// # Errors
    /// If the GPU fails or takes too long.
    pub fn flush(&self) -> Result<()> {
        self.wait(self.queue.submit([]))
    }

    /// Runs the callbacks of submissions that are complete, and returns at once.
    ///
    /// # Errors
    /// If the GPU has failed.
    pub fn look(&self) -> Result<()> {
        if let Err(error) = self.device.poll(wgpu::PollType::Poll) {
            let _ = self.failure.set(error.to_string());
        }
        self.check()
    }

    fn wait(&self, submission: wgpu::SubmissionIndex) -> Result<()> {
        let wait = wgpu::PollType::Wait {
            submission_index: Some(submission),
            timeout: Some(self.time_out),
        };
        match self.device.poll(wait) {
            Ok(_) => {}
            Err(wgpu::PollError::Timeout) => {
                let reason = format!(
                    "it did not end a submission within {} s",
                    self.time_out.as_secs()
                );
                let _ = self.failure.set(reason);
            }
            Err(error) => {
                let _ = self.failure.set(error.to_string());
            }
        }
        self.check()
    }

    fn map(
        &self,
        staging: &wgpu::Buffer,
        bytes: u64,
    ) -> Receiver<std::result::Result<(), wgpu::BufferAsyncError>> {
        let (sender, receiver) = channel();
        staging
            .slice(..bytes)
            .map_async(wgpu::MapMode::Read, move |outcome| {
                let _ = sender.send(outcome);
            });
        receiver
    }
}

/// Formats an error and its sources in one line.
pub(super) fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{ADAPTER, adapters};
    use super::*;

    /// Opens the GPU that the environment names.
    pub(in crate::gpu) fn context() -> Option<Context> {
        let Some(name) = std::env::var(ADAPTER).ok().filter(|name| !name.is_empty()) else {
            eprintln!("skipped: {ADAPTER} names none");
            return None;
        };
        let (listed, adapter) = adapters::choose(Some(&name)).unwrap();
        Some(Context::open(&listed, &adapter, None, true).unwrap())
    }

    #[test]
    fn each_of_several_threads_that_wait_for_a_gpu_is_given_its_outputs() {
        let Some(context) = context() else { return };
        let run = |value: u32| {
            let bytes = size_of::<u32>() as u64;
            let source = context.buffer(
                "test",
                bytes,
                wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            );
            let staging = context.buffer(
                "test",
                bytes,
                wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            );
            let (source, staging) = (source.unwrap(), staging.unwrap());
            for value in value..value + 500 {
                context
                    .queue
                    .write_buffer(&source, 0, bytemuck::bytes_of(&value));
                let mut encoder = context
                    .device
                    .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                encoder.copy_buffer_to_buffer(&source, 0, &staging, 0, Some(bytes));
                let mut read = 0;
                context
                    .run(encoder, &staging, bytes, |view| {
                        read = bytemuck::pod_read_unaligned(view);
                    })
                    .unwrap();
                assert_eq!(read, value);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || run(thread * 1_000));
            }
        });
    }
}
