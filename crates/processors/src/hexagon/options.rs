//! Options of a Hexagon NPU, and what its parts share.

use std::path::PathBuf;
use std::time::Duration;

use super::protocol;
use super::unit::Unit;
use crate::error::{Error, Result};

/// The environment variable with the path of the device program, which `hexagon/build` prints.
pub const PROGRAM: &str = "TRIAD_HEXAGON";
/// The environment variable with the path of the emulator, if it is not one of [`EMULATORS`].
pub const EMULATOR: &str = "TRIAD_QEMU_HEXAGON";
/// File names of the emulators that are searched for.
pub const EMULATORS: [&str; 2] = ["qemu-hexagon-static", "qemu-hexagon"];

/// The name of the device.
pub(super) const NAME: &str = "npu:hexagon";
/// Maximum number of sessions.
pub const MAX_SESSIONS: usize = 8;
/// Bytes that the programs of a process may take: its 32-bit address space minus room for the shared memory.
const WINDOW: usize = 3 << 30;

/// Selects a device program and configures how it is used.
#[derive(Clone, Debug)]
pub struct HexagonOptions {
    /// The device program that `hexagon/build` wrote. Its target determines what runs it: see [`Target`](super::Target).
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
    /// Number of compute threads, clamped to 1 to [`MAX_THREADS`](super::MAX_THREADS). `None` takes all vector contexts of a DSP, or all
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
    pub(super) fn file_bytes(&self) -> usize {
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
pub(super) fn emulator() -> PathBuf {
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
