//! Outlier correction ("shadow", llm.npu, §3.3) next to a processor with memory of its own, with the weights of
//! frequent outlier channels ("hot channels") in memory.
//!
//! Such a processor has its own copy of the weights. A shadow reads the weights of a few channels only. The kernels'
//! packed layout spreads these over the whole matrix, so reading them in place would keep the whole matrix in memory a
//! second time. Instead, a file has the weights of the layers that keep a shadow, ordered by channel ([`ChannelRows`]).
//! A few channels have most of the outliers, so only their rows stay in memory. The other rows are read when an outlier
//! requires them: they are requested as soon as the input is quantized, one thread reads them while the linear layers
//! run, and the shadow waits for them.
//!
//! The results are bit for bit those of the weights in place. If the file cannot be read, the weights in place are
//! used, and [`OutlierCacheUse::failure`] has the reason.

mod file;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::ops::{AddAssign, Sub};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use triad_kernels::OutputMut;
use triad_kernels::int8::{QuantizedView, shadow_of_channels};
use triad_kernels::lock;

pub use file::ChannelRows;
use file::Place;

use crate::linear_input::LinearInput;

/// The longest time that a shadow waits for rows. A disk that takes longer counts as failed.
const TIME_OUT: Duration = Duration::from_secs(10);
/// The number of buffers that are kept for later reads.
const SPARE: usize = 8;

/// The hot channels of each block's inputs, in the order of [`LinearInput::DENSE`], ascending.
pub type HotChannels = Vec<[Vec<u32>; LinearInput::DENSE.len()]>;

/// Options of how shadows read weights next to processors with memory of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutlierCacheOptions {
    /// The channels with rows in memory.
    pub hot: Hot,
    /// The file of the rows, which is created if it does not exist. `None`: the file in the model's package; a model
    /// that is not a package then reads its weights in place.
    pub file: Option<PathBuf>,
}

/// The channels whose rows stay in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hot {
    /// The channels that calibration found, as stored in a package.
    #[default]
    Calibrated,
    /// No channels: all rows are read from the file.
    None,
    /// The listed channels.
    Listed(HotChannels),
}

/// Counts of the rows that were in memory and of those that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OutlierCacheStatistics {
    /// Outlier channels of a chunk's input with a row in memory.
    pub hits: u64,
    /// Outlier channels of a chunk's input with a row that was read from the file.
    pub misses: u64,
    /// Misses without a request at the time when their input was quantized, for example after a processor failed.
    pub late: u64,
    /// Bytes read for misses.
    pub bytes_read: u64,
    /// Seconds that shadows waited for rows that had not been read yet.
    pub stall_seconds: f64,
}

impl OutlierCacheStatistics {
    /// Returns the share of the outlier channels with a row in memory; 1 if there were no outliers.
    pub fn hit_rate(&self) -> f64 {
        let requests = self.hits + self.misses;
        if requests == 0 {
            1.0
        } else {
            self.hits as f64 / requests as f64
        }
    }
}

impl AddAssign for OutlierCacheStatistics {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.late += other.late;
        self.bytes_read += other.bytes_read;
        self.stall_seconds += other.stall_seconds;
    }
}

impl Sub for OutlierCacheStatistics {
    type Output = Self;

    /// Returns the counts since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            hits: self.hits - earlier.hits,
            misses: self.misses - earlier.misses,
            late: self.late - earlier.late,
            bytes_read: self.bytes_read - earlier.bytes_read,
            stall_seconds: self.stall_seconds - earlier.stall_seconds,
        }
    }
}

/// The size and the counts of an outlier weight cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OutlierCacheUse {
    /// The counts so far.
    #[serde(flatten)]
    pub statistics: OutlierCacheStatistics,
    /// Bytes of the rows in memory.
    pub hot_bytes: usize,
    /// Bytes of the file of all rows.
    pub file_bytes: u64,
    /// The reason why the weights in place are used, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The rows of weights that shadows read: those of hot channels in memory, the others in a file.
pub struct OutlierWeightCache {
    /// By block and input; `None` if the weights are read in place.
    inputs: Vec<[Option<Input>; LinearInput::DENSE.len()]>,
    rows: Option<Arc<ChannelRows>>,
    /// `Some` while the reader thread runs.
    requests: Option<Sender<Request>>,
    reader: Option<JoinHandle<()>>,
    spare: Mutex<Vec<Vec<u8>>>,
    counted: Mutex<OutlierCacheStatistics>,
    failure: OnceLock<String>,
}

/// The rows of one input.
struct Input {
    place: Place,
    /// Channels whose rows are in memory, ascending.
    hot: Vec<u32>,
    /// `[hot, Place::record]`.
    rows: Vec<u8>,
}

/// A request to the reader thread.
struct Request {
    place: Place,
    channels: Arc<[u32]>,
    /// The buffer to read into.
    rows: Vec<u8>,
    reply: Sender<std::io::Result<Vec<u8>>>,
    /// Cannot be upgraded once the requester no longer waits.
    wanted: Weak<()>,
}

/// Rows that were requested for the shadow of an input.
pub struct Requested {
    block: usize,
    input: LinearInput,
    /// The number of outlier channels with rows in memory.
    hits: usize,
    /// Channels whose rows are read, ascending.
    missing: Arc<[u32]>,
    /// `[missing, Place::record]`; `None` if no rows are missing.
    rows: Option<Receiver<std::io::Result<Vec<u8>>>>,
    /// The reader skips a request after this is dropped.
    _wanted: Arc<()>,
}

impl Requested {
    /// Returns whether the rows are those of this input.
    pub fn is_of(&self, block: usize, input: LinearInput) -> bool {
        (self.block, self.input) == (block, input)
    }
}

impl OutlierWeightCache {
    /// Starts the reader thread. `hot` returns the channels with rows in memory for each block and input that reads
    /// rows by channel, and `None` for an input that reads its weights in place.
    ///
    /// # Errors
    /// If a hot row cannot be read, or the system cannot start a thread.
    pub fn start(
        rows: Arc<ChannelRows>,
        blocks: usize,
        hot: &dyn Fn(usize, LinearInput) -> Option<Vec<u32>>,
    ) -> std::io::Result<Self> {
        let input = |block: usize, input: LinearInput| {
            let (Some(place), Some(mut hot)) = (rows.place(block, input), hot(block, input)) else {
                return Ok(None);
            };
            hot.sort_unstable();
            hot.dedup();
            let mut in_memory = Vec::new();
            rows.read(&place, &hot, &mut in_memory)?;
            Ok::<_, std::io::Error>(Some(Input {
                place,
                hot,
                rows: in_memory,
            }))
        };
        let mut inputs = Vec::new();
        for block in 0..blocks {
            let mut of_block = [const { None }; LinearInput::DENSE.len()];
            for (place, name) in of_block.iter_mut().zip(LinearInput::DENSE) {
                *place = input(block, name)?;
            }
            inputs.push(of_block);
        }
        let (requests, requested) = channel();
        let of_reader = Arc::clone(&rows);
        let reader = std::thread::Builder::new().name("triad-outliers".into());
        let reader = reader.spawn(move || serve(&of_reader, &requested))?;
        Ok(Self {
            inputs,
            rows: Some(rows),
            requests: Some(requests),
            reader: Some(reader),
            spare: Mutex::default(),
            counted: Mutex::default(),
            failure: OnceLock::new(),
        })
    }

    /// Creates a cache that cannot be used, for the given reason: all weights are read in place.
    pub fn failed(reason: String) -> Self {
        Self {
            inputs: Vec::new(),
            rows: None,
            requests: None,
            reader: None,
            spare: Mutex::default(),
            counted: Mutex::default(),
            failure: OnceLock::from(reason),
        }
    }

    /// Starts to read the rows that the outliers of `x` need and that are not in memory. Call it as soon as `x` is
    /// quantized: the rows are read while the linear layers run. Returns `None` if the shadow of this input reads
    /// weights in place, or if there are no outliers.
    ///
    /// # Panics
    /// If the channels of `x` are not those of the weights.
    pub fn request(&self, block: usize, input: LinearInput, x: QuantizedView) -> Option<Requested> {
        let Input { place, hot, .. } = self.input(block, input)?;
        if x.outliers() == 0 {
            return None;
        }
        assert_eq!(x.in_features(), place.channels, "channels");
        let mut is_needed = vec![false; place.channels];
        for row in 0..x.rows() {
            x.outliers_of(row)
                .0
                .iter()
                .for_each(|channel| is_needed[*channel as usize] = true);
        }
        let mut hits = 0;
        hot.iter().for_each(|channel| {
            hits += usize::from(std::mem::take(&mut is_needed[*channel as usize]));
        });
        let missing = (0u32..)
            .zip(&is_needed)
            .filter(|(_, is_needed)| **is_needed)
            .map(|(channel, _)| channel);
        let missing: Arc<[u32]> = missing.collect();
        let wanted = Arc::new(());
        let rows = (!missing.is_empty()).then(|| {
            let (reply, rows) = channel();
            let buffer = lock(&self.spare).pop().unwrap_or_default();
            let (channels, wanted) = (Arc::clone(&missing), Arc::downgrade(&wanted));
            let request = Request {
                place: *place,
                channels,
                rows: buffer,
                reply,
                wanted,
            };
            // If the reader has ended, the send fails, and the shadow finds the reply channel closed.
            let _ = self
                .requests
                .as_ref()
                .map(|requests| requests.send(request));
            rows
        });
        Some(Requested {
            block,
            input,
            hits,
            missing,
            rows,
            _wanted: wanted,
        })
    }

    /// Computes the shadow of `x` alone, bit for bit as [`triad_kernels::int8::shadow_apart`] does. Writes
    /// `[rows, out_features]` of each layer to `out`, one layer after the other. `scales` are those of these layers.
    /// Waits for rows that are still being read, and requests them if they were not `requested`. Returns `false` if the
    /// caller must read the weights in place.
    ///
    /// # Panics
    /// If a slice's length contradicts the shapes.
    pub fn shadow(
        &self,
        (block, input): (usize, LinearInput),
        x: QuantizedView,
        requested: Option<Requested>,
        scales: &[&[f32]],
        out: &mut [f32],
    ) -> bool {
        let requested = requested.filter(|requested| requested.is_of(block, input));
        let is_late = requested.is_none();
        let Some(Input {
            place,
            hot,
            rows: in_memory,
        }) = self.input(block, input)
        else {
            return false;
        };
        let Some(requested) = requested.or_else(|| self.request(block, input, x)) else {
            return x.outliers() == 0;
        };
        let start = Instant::now();
        let read = match &requested.rows {
            None => Vec::new(),
            Some(rows) => match rows.recv_timeout(TIME_OUT) {
                Ok(Ok(rows)) => rows,
                Ok(Err(error)) => return self.fail(&error),
                Err(RecvTimeoutError::Timeout) => {
                    return self.fail(&std::io::Error::new(
                        ErrorKind::TimedOut,
                        "rows were not read within 10 s",
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return self.fail(&std::io::Error::other(
                        "the thread that reads rows has ended",
                    ));
                }
            },
        };
        let stall_seconds = if requested.rows.is_some() {
            start.elapsed().as_secs_f64()
        } else {
            0.0
        };
        let mut rows: Vec<&[u8]> = vec![&[]; place.channels];
        for (channels, records) in [(&hot[..], &in_memory[..]), (&requested.missing, &read)] {
            for (channel, record) in channels.iter().zip(records.chunks_exact(place.record())) {
                rows[*channel as usize] = record;
            }
        }
        let mut first = 0;
        let mut out = out;
        for scales in scales {
            let columns = first..first + scales.len();
            first = columns.end;
            // The rows of all outliers are in memory or were read.
            let row = |channel: u32| bytemuck::cast_slice(&rows[channel as usize][columns.clone()]);
            let of_layer = out
                .split_off_mut(..x.rows() * scales.len())
                .expect("room for the outputs of all layers");
            shadow_of_channels(x, row, scales, OutputMut::new(of_layer, scales.len()));
        }
        *lock(&self.counted) += OutlierCacheStatistics {
            hits: requested.hits as u64,
            misses: requested.missing.len() as u64,
            late: if is_late {
                requested.missing.len() as u64
            } else {
                0
            },
            bytes_read: read.len() as u64,
            stall_seconds,
        };
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE && read.capacity() > 0 {
            spare.push(read);
        }
        true
    }

    /// Returns the size and the counts so far.
    pub fn usage(&self) -> OutlierCacheUse {
        OutlierCacheUse {
            statistics: *lock(&self.counted),
            hot_bytes: self
                .inputs
                .iter()
                .flatten()
                .flatten()
                .map(|input| input.rows.len())
                .sum(),
            file_bytes: self.rows.as_ref().map_or(0, |rows| rows.bytes()),
            failure: self.failure.get().cloned(),
        }
    }

    fn input(&self, block: usize, input: LinearInput) -> Option<&Input> {
        if self.failure.get().is_some() {
            return None;
        }
        self.inputs.get(block)?[input.index()].as_ref()
    }

    /// Records the failure: from now on, weights are read in place. Removes a file with wrong content, so that the next
    /// run creates it again.
    fn fail(&self, error: &std::io::Error) -> bool {
        if let Some(rows) = &self.rows {
            let is_wrong = matches!(
                error.kind(),
                ErrorKind::InvalidData | ErrorKind::UnexpectedEof
            );
            if self
                .failure
                .set(format!("{}: {error}", rows.path().display()))
                .is_ok()
                && is_wrong
            {
                let _ = std::fs::remove_file(rows.path());
            }
        }
        false
    }
}

impl Drop for OutlierWeightCache {
    fn drop(&mut self) {
        drop(self.requests.take());
        // After a failure, the reader may hang, so it is not joined.
        if let Some(reader) = self.reader.take().filter(|_| self.failure.get().is_none()) {
            let _ = reader.join();
        }
    }
}

/// Runs the reader thread until the request channel is closed.
fn serve(file: &ChannelRows, requests: &Receiver<Request>) {
    for Request {
        place,
        channels,
        mut rows,
        reply,
        wanted,
    } in requests
    {
        if wanted.strong_count() > 0 {
            // Sending fails if the requester no longer waits; the rows are then not needed.
            let _ = reply.send(file.read(&place, &channels, &mut rows).map(|()| rows));
        }
    }
}
