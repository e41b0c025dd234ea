//! Qualcomm's Hexagon NPU, driven by Triad's own device program (`hexagon/` in this repository, built from source). The
//! program keeps subgraphs in its memory and multiplies on HVX, the vector unit, or on HMX, the matrix unit ([`Unit`]).
//!
//! One of two transports runs it (`transport`). FastRPC loads a shared object on a phone's DSP (`fastrpc`); this has
//! never run on a phone. A Linux program also runs without a phone: as a process under `qemu-hexagon` (`process`),
//! which executes the instructions exactly but slowly. Host and device map the same memory (`shared`). The host writes
//! a request and its number there, and polls for the response (`connection`, `protocol`). An image (`image`) has the
//! weights of a subgraph in the order in which the device streams them. A run (`program`) writes quantized rows and
//! reads i32 sums, which the CPU scales like its own kernels do, so that the bits are the same. The part between the
//! matmuls of a feed-forward is computed by the CPU, or by the device with the operations of the CPU's kernels in the
//! same order ([`Between`]).
//!
//! The host verifies everything that the device returns. Each row of sums comes with check sums, from check columns
//! that the device multiplies like those of the layer. Images and inputs have hashes. There is an error, which names
//! the cause, if the program ended, makes no progress, has another version, or if its memory was overwritten. The
//! device is not usable after that.

mod connection;
pub mod cost;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod fastrpc;
mod fault;
mod image;
mod process;
mod program;
mod protocol;
mod shared;
#[cfg(test)]
#[path = "../../tests/skip/mod.rs"]
mod skip;
mod transport;
mod unit;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use triad_kernels::lock;

use crate::device::{Capabilities, Device, Program};
use crate::error::{Error, Result};
use crate::layer_format::LayerFormat;
use crate::subgraph::DeviceSubgraph;
use crate::window::Window;
use connection::Connection;
use program::{HexagonProgram, SharedConnection};
pub use protocol::MAX_THREADS;
pub use transport::Target;
pub use unit::{HmxCounts, Unit};

/// The environment variable with the path of the device program, which `hexagon/build` prints.
pub const PROGRAM: &str = "TRIAD_HEXAGON";
/// The environment variable with the path of the emulator, if it is not one of [`EMULATORS`].
pub const EMULATOR: &str = "TRIAD_QEMU_HEXAGON";
/// File names of the emulators that are searched for.
pub const EMULATORS: [&str; 2] = ["qemu-hexagon-static", "qemu-hexagon"];

/// The name of the device.
const NAME: &str = "npu:hexagon";
/// Maximum number of sessions.
pub const MAX_SESSIONS: usize = 8;
/// Bytes that the programs of a process may take: its 32-bit address space minus room for the shared memory.
const WINDOW: usize = 3 << 30;

/// Selects a device program and configures how it is used.
#[derive(Clone, Debug)]
pub struct HexagonOptions {
    /// The device program that `hexagon/build` wrote. Its target determines what runs it: see [`Target`].
    pub program: PathBuf,
    /// The emulator, for a program that was built for it.
    pub emulator: PathBuf,
    /// Bytes that the programs of a session may take together.
    pub window: usize,
    /// Number of sessions, clamped to 1 to [`MAX_SESSIONS`]. A session is a protection domain of a DSP, or a process
    /// of the emulator, and has its own window. A subgraph goes to the first session that has room for it, so that a
    /// model larger than one window can run on the device.
    pub sessions: usize,
    /// How long the device may make no progress before it counts as lost.
    pub patience: Duration,
    /// Bytes of inputs and outputs that are transferred at once. More rows take several runs.
    pub transfer_bytes: usize,
    /// The processor of the part between the matmuls of a feed-forward.
    pub between: Between,
    /// Number of compute threads, clamped to 1 to [`MAX_THREADS`]. `None` takes all vector contexts of a DSP, or all
    /// cores of the machine that runs the emulator. A DSP never uses more threads than it has vector contexts. The bits
    /// of the results don't depend on this number.
    pub threads: Option<usize>,
    /// The unit that multiplies; `None` takes HMX if the device has it and proves that it computes what HVX does.
    pub unit: Option<Unit>,
    /// Variants of the emulated program's model of HMX, for tests: bits of `MODEL_*` in hexagon/protocol.h.
    #[doc(hidden)]
    pub model: u64,
}

/// Instruction packets that a request took, as counted by the emulator; zeros on other transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// Packets of all threads.
    pub all: u64,
    /// Packets on the critical path: those that one thread executes alone, and in parallel sections those of the
    /// busiest thread. Waiting is not counted.
    pub longest: u64,
}

/// The processor of the part between the matmuls of a feed-forward: scaling, activation, requantization. Both give the
/// same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// The CPU, with its own kernels. A feed-forward takes two runs, and the sums of up and gate are transferred.
    Host,
    /// The device, on its scalar unit, which takes twice as long as the matmuls. A feed-forward takes one run. The CPU
    /// still computes GELU with the error function.
    Device,
}

impl HexagonOptions {
    /// Returns options for the device program at `program` and an emulator that is searched in the path.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            emulator: emulator(),
            window: WINDOW,
            sessions: 1,
            patience: Duration::from_secs(20),
            transfer_bytes: 64 << 20,
            between: Between::Host,
            threads: None,
            unit: None,
            model: 0,
        }
    }

    /// Returns the bytes of the memory that host and device share.
    fn file_bytes(&self) -> usize {
        protocol::HEADER + self.transfer_bytes.next_multiple_of(protocol::HEADER)
    }
}

/// Returns the path in the environment variable [`PROGRAM`].
///
/// # Errors
/// If it is not set.
pub fn program_from_environment() -> Result<PathBuf> {
    let path = std::env::var_os(PROGRAM).filter(|path| !path.is_empty());
    path.map(PathBuf::from)
        .ok_or(Error::HexagonUnnamed { variable: PROGRAM })
}

/// Returns the emulator that the environment names, or the first of [`EMULATORS`] that exists.
fn emulator() -> PathBuf {
    if let Some(named) = std::env::var_os(EMULATOR).filter(|path| !path.is_empty()) {
        return named.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| {
        std::env::split_paths(&path).any(|folder: PathBuf| folder.join(name).is_file())
    };
    EMULATORS
        .into_iter()
        .find(is_there)
        .unwrap_or(EMULATORS[0])
        .into()
}

/// Describes in one line what can run device programs on this machine, and what is missing.
pub fn transports() -> String {
    let emulator = emulator();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::new()]);
    let is_there = folders
        .map(|folder| folder.join(&emulator))
        .any(|path| path.is_file());
    let emulator = emulator.display();
    let emulated = if is_there {
        format!("{emulator} is there")
    } else {
        format!("{emulator} is not there")
    };
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let fastrpc = fastrpc::Places::default().report();
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let fastrpc = "Linux and Android have it";
    format!("emulator: {emulated}; FastRPC (never run on a phone): {fastrpc}")
}

/// A Hexagon NPU.
pub struct Hexagon {
    /// At least one session.
    sessions: Vec<Session>,
    capabilities: Capabilities,
    between: Between,
    build: u64,
}

/// A running device program, and its memory window.
struct Session {
    connection: SharedConnection,
    window: Window,
}

impl Hexagon {
    /// Starts the device program, once for each session, on the platform that it was built for.
    ///
    /// # Errors
    /// If there is no program, nothing can run it, or it is another program or another version.
    pub fn open(options: &HexagonOptions) -> Result<Self> {
        let mut connections = vec![Connection::start(options)?];
        // A DSP has one HMX, and its lock is the first session's.
        let without_hmx = HexagonOptions {
            unit: Some(Unit::Hvx),
            ..options.clone()
        };
        for _ in 1..options.sessions.clamp(1, MAX_SESSIONS) {
            let mut connection = Connection::start(&without_hmx)?;
            if options.unit != Some(Unit::Hvx) {
                connection.explain("it is for the first session");
            }
            connections.push(connection);
        }
        Ok(Self::over(options, connections))
    }

    /// Creates a device from one or more connections.
    fn over(options: &HexagonOptions, connections: Vec<Connection>) -> Self {
        let capabilities = Capabilities {
            formats: vec![LayerFormat::W8a8],
            static_shapes: false,
            own_memory: true,
            window: Some(options.window.saturating_mul(connections.len())),
            feed_forwards: true,
            whole_models: false,
        };
        let build = connections[0].build();
        let session = |connection| Session {
            connection: Arc::new(Mutex::new(connection)),
            window: Window::new(Some(options.window)),
        };
        Self {
            sessions: connections.into_iter().map(session).collect(),
            capabilities,
            between: options.between,
            build,
        }
    }

    /// Returns a hash of the sources that the device program was built from.
    pub fn build(&self) -> u64 {
        self.build
    }

    /// Returns the number of sessions with the device.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the number of compute threads in each session.
    pub fn threads(&self) -> usize {
        self.connection().threads()
    }

    /// Returns the instruction packets that the latest request of the first session took. Predictions of the time on a
    /// phone use them.
    pub fn packets(&self) -> Packets {
        self.connection().packets()
    }

    /// Returns the unit of the first session, the only one that may have HMX. A matmul with too many features for it runs
    /// on HVX.
    pub fn unit(&self) -> Unit {
        self.connection().unit().unit()
    }

    /// Describes the units of all sessions, with the reason of each that is HVX although HMX was asked for.
    pub fn unit_report(&self) -> String {
        let first = self.connection().unit().to_string();
        let others = &self.sessions[1..];
        let Some(second) = others.first() else {
            return first;
        };
        let second = lock(&second.connection).unit().to_string();
        if first == second {
            return first;
        }
        format!("{first}; of {} more: {second}", others.len())
    }

    /// Returns the work of HMX in all sessions.
    pub fn hmx_counts(&self) -> HmxCounts {
        let sessions = self.sessions.iter();
        sessions
            .map(|session| lock(&session.connection).hmx_counts())
            .fold(HmxCounts::default(), HmxCounts::and)
    }

    /// Multiplies one tile on the model of HMX, without a program, for tests of its instructions: `croutons` of activations, and as
    /// many tiles of weights of a kind: 0 for INT8, 1 for INT4, 2 for fp16. Returns 64 rows of 32 i32, or a crouton of
    /// fp16.
    ///
    /// # Errors
    /// If HMX is not modelled, the sizes do not fit each other, or the model of HMX refuses an instruction.
    #[doc(hidden)]
    pub fn multiply_tile(&self, kind: u64, activations: &[u8], weights: &[u8]) -> Result<Vec<u8>> {
        self.connection().multiply_tile(kind, activations, weights)
    }

    /// Executes one leaf of hexagon/hmx_leaves.h, by its number, with any registers, for tests of the model of HMX. The
    /// start of VTCM is added to r0 and r2.
    ///
    /// # Errors
    /// If HMX is not modelled, or the model refuses the operands.
    #[doc(hidden)]
    pub fn issue(&self, leaf: u64, registers: [u64; 4]) -> Result<()> {
        self.connection().issue(leaf, registers)
    }

    /// Returns the process ID of the first session, if it runs under the emulator.
    pub fn process(&self) -> Option<u32> {
        self.connection().process()
    }

    /// Returns a description of the place where the device program runs.
    pub fn place(&self) -> String {
        self.connection().place()
    }

    /// Returns the connection of the first session.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        lock(&self.sessions[0].connection)
    }
}

impl std::fmt::Debug for Hexagon {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Hexagon")
            .field("build", &self.build)
            .field("place", &self.place())
            .finish_non_exhaustive()
    }
}

impl Device for Hexagon {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&self, subgraph: &DeviceSubgraph, rows: usize) -> Result<Box<dyn Program>> {
        // Checks the parts before counting their bytes.
        subgraph.check()?;
        let bytes = subgraph.bytes(rows);
        let mut full = None;
        for Session { connection, window } in &self.sessions {
            match window.reserve(NAME, bytes) {
                Ok(window) => {
                    return Ok(Box::new(HexagonProgram::new(
                        connection,
                        subgraph,
                        (rows, self.between),
                        window,
                    )?));
                }
                Err(error) => full = Some(error),
            }
        }
        Err(full.expect("at least one session"))
    }

    fn work(&self) -> Option<String> {
        let (mut packets, mut loaded) = (0u64, [0; 2]);
        for session in &self.sessions {
            let connection = lock(&session.connection);
            packets = packets.saturating_add(connection.all_packets());
            for (all, count) in loaded.iter_mut().zip(connection.loaded()) {
                *all += count;
            }
        }
        let [on_hvx, on_hmx] = loaded;
        let mut text = format!("{NAME} on {}", self.unit_report());
        if self.unit() == Unit::Hmx {
            let _ = write!(text, ", {on_hmx} of {} programs", on_hvx + on_hmx);
        }
        // Only the emulated program counts.
        if packets > 0 {
            let _ = write!(text, ": {:.1} million packets", packets as f64 / 1e6);
        }
        let counts = self.hmx_counts();
        if counts.instructions > 0 {
            let [moved, used] =
                [counts.bytes, counts.used].map(|bytes| bytes as f64 / f64::from(1 << 20));
            let _ = write!(
                text,
                ", {} instructions of HMX, which read and wrote {moved:.1} MiB of VTCM and used {used:.1} MiB of it",
                counts.instructions
            );
        }
        Some(text)
    }
}
