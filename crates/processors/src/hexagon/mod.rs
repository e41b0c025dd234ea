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
mod options;
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

use triad_kernels::lock;

use crate::device::{Capabilities, Device, Program};
use crate::error::Result;
use crate::layer_format::LayerFormat;
use crate::subgraph::DeviceSubgraph;
use crate::window::Window;
use connection::Connection;
pub use options::{
    Between, EMULATOR, EMULATORS, HexagonOptions, MAX_SESSIONS, PROGRAM, Packets,
    program_from_environment,
};
use options::{NAME, emulator};
use program::{HexagonProgram, SharedConnection};
pub use protocol::MAX_THREADS;
pub use transport::Target;
pub use unit::{HmxCounts, Unit};

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
