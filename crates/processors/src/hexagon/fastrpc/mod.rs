//! Runs the device program on a phone's DSP through FastRPC. It supports Linux' driver and the vendor's driver of
//! Android kernels ([`Interface`](kernel::Interface)). It has never run on a phone.
//!
//! The host opens a node of the driver, and the DSP creates a *protection domain* (its kind of process) for this
//! process. The domain is unsigned, so that it may run programs without the vendor's signature. It starts with a
//! *shell*, a file of the phone's vendor, in a dma-buf. Another dma-buf is the memory that host and DSP share. The
//! domain then loads the device program: it requests the file from this process, in the results of calls
//! ([`listener`]). One more call starts the program and returns when the program ends. All further communication goes
//! through shared memory, as with every other transport.
//!
//! A call of a hanging DSP does not return. So each call is made on its own thread, and no caller waits longer than the
//! patience of the options. The resources of such a thread are released when its call returns, or when this process
//! ends.

mod domain;
mod failure;
mod kernel;
mod listener;
mod structures;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use super::options::HexagonOptions;
use super::protocol::MAX_THREADS;
use super::shared::SharedMemory;
use super::transport::Transport;
use super::unit::{self, OLDEST_HMX, Unit};
use crate::error::{Error, Result};
use domain::{Domain, Mapped, Module};
use failure::{Ended, list};
pub(super) use kernel::System;
use kernel::{Driver, Interface};
use listener::Listener;

/// Time that a program has to end.
const GRACE: Duration = Duration::from_secs(2);

/// Paths of the parts of FastRPC.
#[derive(Clone, Debug)]
pub struct Places {
    /// Nodes of the compute DSP, with their drivers' interfaces. The first one that exists is used.
    pub nodes: Vec<(PathBuf, Interface)>,
    /// The dma-buf heap.
    pub heap: PathBuf,
    /// Possible paths of the shell for unsigned domains.
    pub shells: Vec<PathBuf>,
}

impl Default for Places {
    fn default() -> Self {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        Self {
            // The secure nodes are for signed programs, too. Fewer users may open them.
            nodes: [
                ("/dev/fastrpc-cdsp", Interface::Mainline),
                ("/dev/fastrpc-cdsp-secure", Interface::Mainline),
                ("/dev/adsprpc-smd", Interface::Vendor),
                ("/dev/adsprpc-smd-secure", Interface::Vendor),
            ]
            .map(|(path, interface)| (path.into(), interface))
            .to_vec(),
            heap: "/dev/dma_heap/system".into(),
            shells: paths(&[
                "/vendor/dsp/cdsp/fastrpc_shell_unsigned_3",
                "/vendor/dsp/fastrpc_shell_unsigned_3",
                "/usr/lib/dsp/cdsp/fastrpc_shell_unsigned_3",
                "/usr/lib/rfsa/adsp/fastrpc_shell_unsigned_3",
            ]),
        }
    }
}

impl Places {
    /// Describes what was found and what is missing.
    pub fn report(&self) -> String {
        let Some((node, interface)) = self.node() else {
            return self.no_node();
        };
        let missing = [
            (!may_exist(&self.heap)).then(|| format!("the heap {}", self.heap.display())),
            self.shell()
                .is_none()
                .then(|| format!("the shell {}", list(&self.shells))),
        ];
        let missing: Vec<_> = missing.into_iter().flatten().collect();
        let missing = if missing.is_empty() {
            String::new()
        } else {
            format!(", but not {}", missing.join(" nor "))
        };
        format!("{} ({interface}) is there{missing}", node.display())
    }

    fn no_node(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|(path, _)| path.clone()).collect();
        format!("this machine has no {}", list(&nodes))
    }

    fn node(&self) -> Option<(&Path, Interface)> {
        let nodes = self
            .nodes
            .iter()
            .map(|(path, interface)| (path.as_path(), *interface));
        nodes.into_iter().find(|(path, _)| may_exist(path))
    }

    fn shell(&self) -> Option<&Path> {
        self.shells
            .iter()
            .map(PathBuf::as_path)
            .find(|path| may_exist(path))
    }
}

/// Returns whether the path exists or can't be checked by this user. In the latter case, opening it reports the error.
fn may_exist(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

/// A device program in a domain of a DSP.
pub struct Session {
    node: PathBuf,
    architecture: u32,
    /// All open resources; `None` once they are released.
    open: Option<Open>,
    ended: Ended,
    grace: Duration,
}

/// Open resources, in the order in which they are released.
struct Open {
    /// Disconnected when the program has returned.
    running: mpsc::Receiver<()>,
    module: Module,
    mapped: Mapped,
    listener: Listener,
    domain: Arc<Domain>,
}

impl Session {
    /// Starts the program, with memory that host and DSP share.
    pub fn start(
        options: &HexagonOptions,
        driver: Arc<dyn Driver>,
        places: &Places,
    ) -> Result<(Self, SharedMemory)> {
        let wrong = |reason| Error::HexagonProgram {
            path: options.program.clone(),
            reason,
        };
        let none = || wrong(format!("it is for a phone's DSP, and {}", places.no_node()));
        let (node, interface) = places.node().ok_or_else(none)?;
        let (parts, places, path) = (options.clone(), places.clone(), node.to_owned());
        let opened = within(options.patience, move || {
            Self::open(&parts, driver, &places, (path, interface))
        });
        opened.unwrap_or_else(|| {
            let seconds = options.patience.as_secs_f64();
            Err(wrong(format!(
                "the DSP of {} did not start it within {seconds:.1} s",
                node.display()
            )))
        })
    }

    fn open(
        options: &HexagonOptions,
        driver: Arc<dyn Driver>,
        places: &Places,
        (node, interface): (PathBuf, Interface),
    ) -> Result<(Self, SharedMemory)> {
        let program = fs::read(&options.program).map_err(|reason| Error::HexagonMissing {
            path: options.program.clone(),
            reason,
        })?;
        let shell = places
            .shell()
            .ok_or_else(|| domain::no_shell(&places.shells))?;
        let domain = Arc::new(Domain::open(
            driver,
            (node.clone(), interface),
            &places.heap,
        )?);
        domain.begin_session()?;
        let (architecture, contexts) = domain.architecture()?;
        domain.create(shell)?;
        let listener = Listener::start(&domain, program)?;
        let (mapped, shared) = Mapped::new(&domain, options.file_bytes())?;
        let contexts = contexts as usize;
        let unit = if architecture < OLDEST_HMX {
            Some(Unit::Hvx)
        } else {
            options.unit
        };
        shared.begin(
            options
                .threads
                .unwrap_or(contexts)
                .min(contexts)
                .clamp(1, MAX_THREADS),
            unit::request(unit),
            options.model,
        );
        let module = Module::load(&domain, &options.program)?;
        let ended = Ended::default();
        let running = module.begin(mapped.address(), shared.bytes() as u64, Arc::clone(&ended))?;
        let open = Some(Open {
            running,
            module,
            mapped,
            listener,
            domain,
        });
        Ok((
            Self {
                node,
                architecture,
                open,
                ended,
                grace: GRACE.min(options.patience),
            },
            shared,
        ))
    }
}

impl Transport for Session {
    fn name(&self) -> &'static str {
        "its domain on the DSP"
    }

    fn place(&self) -> String {
        format!(
            "by FastRPC on the DSP of {} (v{:x})",
            self.node.display(),
            self.architecture
        )
    }

    fn ended(&mut self) -> Option<String> {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn end(&mut self) {
        let Some(open) = self.open.take() else { return };
        let grace = self.grace;
        // If the program does not end in time, its domain is ended. The other resources are released when its call
        // returns.
        let _ = within(3 * grace, move || open.release(grace));
    }

    fn no_hmx(&self) -> Option<String> {
        (self.architecture < OLDEST_HMX).then(|| {
            format!(
                "its DSP is a v{:x}, expected v{OLDEST_HMX:x} or later",
                self.architecture
            )
        })
    }

    fn process(&self) -> Option<u32> {
        None
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

impl Open {
    fn release(self, grace: Duration) {
        let Self {
            running,
            module,
            mapped,
            listener,
            domain,
        } = self;
        let has_ended = |grace| running.recv_timeout(grace) == Err(RecvTimeoutError::Disconnected);
        if !has_ended(grace) {
            domain.exit();
            // The program may use the memory until it has ended.
            let _ = running.recv();
        }
        drop(module);
        drop(mapped);
        drop(listener);
    }
}

/// Runs `work` on a new thread and returns its result, or `None` after `patience`.
fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("fastrpc".to_owned())
        .spawn(move || sender.send(work()))
        .ok()?;
    receiver.recv_timeout(patience).ok()
}
