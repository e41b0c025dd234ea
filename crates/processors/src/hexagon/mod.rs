//! Qualcomm's Hexagon NPU, by a program of our own: `hexagon/` in this repository, built from source, which holds subgraphs
//! in its memory and multiplies on HVX.
//!
//! It is run by one of two transports (`transport`). A shared object for the DSP of a phone goes to FastRPC (`fastrpc`); that never
//! ran on a phone. A Linux program runs where there is no phone, too: as a process under `qemu-hexagon` (`process`), which executes its
//! instructions exactly, and slowly. Both map the same memory (`shared`), in which a request and its number are written and a response
//! is polled (`connection`, `protocol`). An image (`image`) has the weights of a subgraph in the order in which the device streams them; a run
//! (`program`) writes quantized rows and reads sums in i32, which the CPU scales as its own kernels do, so that the bits are
//! the same. What is between the products of a feed-forward is computed by the CPU, or by the device in the operations and the
//! order of the CPU's kernels ([`Between`]).
//!
//! Nothing that the device returns is trusted. Each row of sums comes with what it must add up to, by columns that the device
//! multiplies beside those of the layer; images and inputs have hashes. A program that ended, does nothing any more, is of another
//! version, or whose memory was overwritten is an error that names what happened; it does not come back.

mod connection;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod fastrpc;
mod image;
mod process;
mod program;
mod protocol;
mod shared;
mod transport;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use triad_plan::graph::Format;

use crate::device::{Capabilities, Device, Program};
use crate::error::{Error, Result};
use crate::subgraph::DeviceSubgraph;
use crate::window::Window;
use connection::Connection;
use program::{HexagonProgram, SharedConnection};
pub use protocol::MOST_THREADS;
pub use transport::Target;

/// The environment variable with the path of the device program, as `hexagon/build` prints it.
pub const PROGRAM: &str = "TRIAD_HEXAGON";
/// The environment variable with the path of the emulator, where it is not one of [`EMULATORS`].
pub const EMULATOR: &str = "TRIAD_QEMU_HEXAGON";
/// The emulators that are looked for.
pub const EMULATORS: [&str; 2] = ["qemu-hexagon-static", "qemu-hexagon"];

/// The name of the device.
const NAME: &str = "npu:hexagon";
/// Sessions at most.
pub const MOST_SESSIONS: usize = 8;
/// What the programs of a process with addresses of 32 bits may take, with room for the memory that both map.
const WINDOW: usize = 3 << 30;

/// Which program, and how it is used.
#[derive(Clone, Debug)]
pub struct HexagonOptions {
    /// The device program, as `hexagon/build` writes it. What it was built for decides what runs it: see [`Target`].
    pub program: PathBuf,
    /// The emulator that runs it, if it was built for one.
    pub emulator: PathBuf,
    /// Bytes that the programs of a session may take together.
    pub window: usize,
    /// Sessions with the device, from 1 to [`MOST_SESSIONS`] (another number is taken as the nearest of these): protection
    /// domains of a DSP, or processes of the emulator, each with a window of its own. A subgraph is in the first one that has
    /// room for it, so that a model larger than one window runs on the device.
    pub sessions: usize,
    /// How long the device may do nothing before it is taken as lost.
    pub patience: Duration,
    /// Bytes of inputs and outputs that are handed over at once; rows that do not fit go in several runs.
    pub transfer_bytes: usize,
    /// Who computes what is between the products of a feed-forward.
    pub between: Between,
    /// Threads that compute, from 1 to [`MOST_THREADS`] (another number is taken as the nearest of these); `None` for as many as there are: vector
    /// contexts of a DSP, of which no more are used in any case, or cores of the machine that emulates. The bits are the same with any number.
    pub threads: Option<usize>,
}

/// Packets of instructions that a request took, as the emulator counts them; zeros elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// Of all threads together.
    pub all: u64,
    /// One behind the other: what one thread executes alone, and of all that threads share the packets of the one with the most.
    /// Nobody's waiting is counted.
    pub longest: u64,
}

/// Who computes what is between the products of a feed-forward: scales, activation, requantization. Both give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// The CPU, with its own kernels: a feed-forward is two runs, and the sums of up and gate are handed over.
    Host,
    /// The device, on its scalar unit, which takes twice as long as the products: a feed-forward is one run. GELU with the
    /// error function is left to the CPU all the same.
    Device,
}

impl HexagonOptions {
    /// The device program at `program` in an emulator that the path has.
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
        }
    }

    /// Bytes of the memory that both map.
    fn file_bytes(&self) -> usize {
        protocol::HEADER + self.transfer_bytes.next_multiple_of(protocol::HEADER)
    }
}

/// The path in the environment variable [`PROGRAM`].
///
/// # Errors
/// If it is not set.
pub fn program_from_environment() -> Result<PathBuf> {
    let path = std::env::var_os(PROGRAM).filter(|path| !path.is_empty());
    path.map(PathBuf::from)
        .ok_or(Error::HexagonUnnamed { variable: PROGRAM })
}

/// The emulator that the environment names, or the first of [`EMULATORS`] that is there.
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

/// What can run device programs on this machine, and what is missing, in a line.
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
    /// At least one.
    sessions: Vec<Session>,
    capabilities: Capabilities,
    between: Between,
    build: u64,
}

/// A device program that runs, and the memory that it addresses.
struct Session {
    connection: SharedConnection,
    window: Window,
}

impl Hexagon {
    /// Starts the device program, by what it was built for, once for each session.
    ///
    /// # Errors
    /// If there is no program, nothing that runs it, or the program is another one, or of another version.
    pub fn open(options: &HexagonOptions) -> Result<Self> {
        let connections =
            (0..options.sessions.clamp(1, MOST_SESSIONS)).map(|_| Connection::start(options));
        Ok(Self::over(options, connections.collect::<Result<_>>()?))
    }

    /// Over one connection or several.
    fn over(options: &HexagonOptions, connections: Vec<Connection>) -> Self {
        let capabilities = Capabilities {
            formats: vec![Format::Int8],
            static_shapes: false,
            own_memory: true,
            window: Some(options.window.saturating_mul(connections.len())),
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

    /// A hash of the sources that the device program was built from.
    pub fn build(&self) -> u64 {
        self.build
    }

    /// How many sessions there are with the device.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// How many threads of the device compute, in each session.
    pub fn threads(&self) -> usize {
        self.connection().threads()
    }

    /// Packets of instructions that the latest request of the first session took: what a prediction of the time on a phone begins with.
    pub fn packets(&self) -> Packets {
        self.connection().packets()
    }

    /// The process of the device's first session, where it is one: under the emulator.
    pub fn process(&self) -> Option<u32> {
        self.connection().process()
    }

    /// Where the device program runs, for people.
    pub fn place(&self) -> String {
        self.connection().place()
    }

    /// That of the first session.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.sessions[0]
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        // Before its parts are used to count.
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
}
