//! A protection domain and the resources opened in it. Dropping a value releases its resource.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, mpsc};
use std::thread;

use super::failure::{Ended, failed, list, refused};
use super::kernel::{self, Call, Driver, Interface};
use crate::error::{Error, Result};
use crate::hexagon::protocol::HEADER;
use crate::hexagon::shared::SharedMemory;

/// Number of the compute DSP in `GET_DSP_INFO`.
const COMPUTE_DSP: u32 = 3;
/// DSP attributes: number of 128-byte vector contexts, and architecture, whose last byte is the version.
const HVX_128_BYTES: u32 = 3;
const ARCHITECTURE: u32 = 6;
/// Attribute of the vendor's driver: whether this process must provide the heap memory of an unsigned domain.
const MEMORY_OF_PROCESSES: u32 = 258;
/// The architecture that the device program is built for.
const OLDEST: u32 = 0x67;

/// Handles that every domain has: the module loader, the listener, and the domain itself.
const LOADER: u32 = 0;
pub const LISTENER: u32 = 3;
const CURRENT_PROCESS: u32 = 4;
/// Methods of the loader.
const OPEN: u32 = 0;
const CLOSE: u32 = 1;
const EXIT: u32 = 2;
/// The method of the device program that serves requests.
const SERVE: u32 = 0;
/// The name by which the domain requests the device program, and the function in it.
pub const MODULE: &str = "libtriad_skel.so";
const URI: &[u8] = b"file:///libtriad_skel.so?triad_skel_invoke&_modver=1.0\0";
/// Bytes for the loader's message.
const MAX_PRINTED: usize = 255;

const INVOKE: &str = "FASTRPC_IOCTL_INVOKE";
const GET_DSP_INFO: &str = "FASTRPC_IOCTL_GET_DSP_INFO";
const ALL_TAKEN: &str = "all sessions of the DSP are taken: end another program that uses it";
const NO_RIGHTS: &str =
    "this user may not reach the DSP: run triad from adb's shell, or give it rights to that node";
pub const RESTART: &str =
    "restart the phone, and see what its kernel printed (dmesg, or adb logcat)";

/// An open node of the driver. It corresponds to one domain after [`Domain::create`].
pub struct Domain {
    driver: Arc<dyn Driver>,
    node: OwnedFd,
    interface: Interface,
    path: PathBuf,
    heap: PathBuf,
    /// Whether this process must provide memory for the domain's heap; set after the driver was asked.
    gives_memory: OnceLock<bool>,
}

/// Pages of a domain's heap.
pub struct Pages {
    /// Address on the DSP.
    pub address: u64,
    pub bytes: u64,
    /// The dma-buf of the pages, if this process provided it. It is released with the value.
    memory: Option<(File, SharedMemory)>,
}

impl Pages {
    /// Returns the address of the pages in this process, or 0.
    pub fn address_here(&self) -> u64 {
        self.memory
            .as_ref()
            .map_or(0, |(_, memory)| memory.address())
    }
}

/// Result of a call.
pub type Outcome<T> = std::result::Result<T, Failure>;

/// Reason why a call failed.
pub enum Failure {
    /// The kernel refused it, or the domain has ended.
    Kernel(io::Error),
    /// The DSP refused it with this status.
    Dsp(i32),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Kernel(error) => error.fmt(f),
            Self::Dsp(status) => write!(f, "the DSP returned {status:#x}"),
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Kernel(error) => error,
            dsp @ Failure::Dsp(_) => Self::other(dsp.to_string()),
        }
    }
}

impl Domain {
    /// Opens the driver's node at `path`, which supports the calls of `interface`.
    pub fn open(
        driver: Arc<dyn Driver>,
        (path, interface): (PathBuf, Interface),
        heap: &Path,
    ) -> Result<Self> {
        let node = driver.open(&path).map_err(|error| {
            let advice = advice(&error);
            refused("open", &path, error, advice)
        })?;
        Ok(Self {
            driver,
            node,
            interface,
            path,
            heap: heap.to_owned(),
            gives_memory: OnceLock::new(),
        })
    }

    /// Begins a session of the compute DSP. An open node of Linux' driver is a session already.
    pub fn begin_session(&self) -> Result<()> {
        if self.interface == Interface::Mainline {
            return Ok(());
        }
        let refused = |error: io::Error| {
            let advice = advice(&error);
            refused("FASTRPC_IOCTL_GETINFO", &self.path, error, advice)
        };
        let mut call = Call::session(COMPUTE_DSP);
        self.call(&mut call)
            .map_err(|failure| refused(failure.into()))?;
        match call.returned() {
            1 => Ok(()),
            // With other values, a buffer would have to be physically contiguous.
            other => Err(refused(io::Error::other(format!(
                "it returned {other}, expected 1: a DSP whose memory is mapped for it"
            )))),
        }
    }

    fn call(&self, call: &mut Call) -> Outcome<()> {
        match self.driver.call(self.node.as_fd(), call) {
            Ok(0) => Ok(()),
            Ok(status) => Err(Failure::Dsp(status)),
            Err(error) => Err(Failure::Kernel(error)),
        }
    }

    /// Returns the path of the driver's node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the call `name`. The error includes `advice`.
    fn require(&self, name: &'static str, call: &mut Call, advice: &'static str) -> Result<()> {
        self.call(call)
            .map_err(|failure| refused(name, &self.path, failure.into(), advice))
    }

    /// Calls a method of the object that `handle` refers to.
    pub fn invoke(
        &self,
        handle: u32,
        method: u32,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Outcome<()> {
        self.call(&mut Call::invoke(
            self.interface,
            (handle, method),
            inputs,
            outputs,
        ))
    }

    /// Returns an attribute of the DSP or of its driver.
    fn attribute(&self, attribute: u32) -> Result<u32> {
        let mut call = Call::capability(self.interface, COMPUTE_DSP, attribute);
        self.require(GET_DSP_INFO, &mut call, RESTART)?;
        Ok(call.returned() as u32)
    }

    /// Returns the DSP's instruction set version and its number of vector contexts. The device program must support the
    /// version, and there must be at least one context.
    pub fn architecture(&self) -> Result<(u32, u32)> {
        let (architecture, contexts) = (
            self.attribute(ARCHITECTURE)? & 0xff,
            self.attribute(HVX_128_BYTES)?,
        );
        if architecture < OLDEST || contexts == 0 {
            let found = format!("it is a v{architecture:x} with {contexts} vector contexts");
            let reason =
                io::Error::other(format!("{found}, expected v{OLDEST:x} or later with one"));
            return Err(refused(
                GET_DSP_INFO,
                &self.path,
                reason,
                "use another processor",
            ));
        }
        Ok((architecture, contexts))
    }

    /// Allocates and maps a dma-buf of at least `bytes`, rounded up to whole pages.
    fn allocate(&self, bytes: usize) -> Result<(File, SharedMemory)> {
        const ADVICE: &str = "memory that the DSP shares comes from there: give this user rights to it, or free memory";
        let bytes = bytes.next_multiple_of(HEADER);
        let of_heap = |call| move |error| refused(call, &self.heap, error, ADVICE);
        let heap = self.driver.open(&self.heap).map_err(of_heap("open"))?;
        let buffer = kernel::allocate(&*self.driver, heap.as_fd(), bytes)
            .map_err(of_heap("DMA_HEAP_IOCTL_ALLOC"))?;
        let memory = SharedMemory::map(&buffer, bytes).map_err(of_heap("mmap of a buffer"))?;
        Ok((buffer, memory))
    }

    /// Creates the unsigned domain with the shell at `path`.
    pub fn create(&self, path: &Path) -> Result<()> {
        let of_shell = |error| {
            refused(
                "read",
                path,
                error,
                "the phone's vendor has it there for unsigned programs",
            )
        };
        let shell = fs::read(path).map_err(of_shell)?;
        let bytes = u32::try_from(shell.len()).ok().filter(|bytes| *bytes > 0);
        let bytes = bytes
            .ok_or_else(|| of_shell(io::Error::other(format!("it has {} bytes", shell.len()))))?;
        let (buffer, memory) = self.allocate(shell.len())?;
        memory.write_bytes(&shell);
        let mut call = Call::create(self.interface, buffer.as_fd(), &memory, bytes);
        let name = self.interface.name_of_create();
        self.call(&mut call).map_err(|failure| {
            let error = io::Error::from(failure);
            let advice = match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    "this phone does not allow unsigned programs on its DSP: use another processor"
                }
                io::ErrorKind::PermissionDenied => {
                    "this user may run no programs on the DSP: run triad from adb's shell"
                }
                _ => RESTART,
            };
            refused(name, &self.path, error, advice)
        })
    }

    /// Adds pages to the heap of the domain. The driver provides them, or this process if the vendor's driver requires
    /// that.
    pub fn add_pages(&self, flags: u32, bytes: u64) -> Result<Pages> {
        let gives = match (self.interface, self.gives_memory.get()) {
            (Interface::Mainline, _) => false,
            (Interface::Vendor, Some(gives)) => *gives,
            (Interface::Vendor, None) => {
                // A driver that does not have the attribute provides the memory.
                let gives = self
                    .attribute(MEMORY_OF_PROCESSES)
                    .is_ok_and(|found| found != 0);
                *self.gives_memory.get_or_init(|| gives)
            }
        };
        let memory = if gives {
            Some(self.allocate(usize::try_from(bytes).map_err(failed)?)?)
        } else {
            None
        };
        let parts = memory.as_ref().map(|(file, memory)| (file.as_fd(), memory));
        let mut call = Call::add_pages(self.interface, flags, bytes, parts);
        self.require("FASTRPC_IOCTL_MMAP", &mut call, RESTART)?;
        let address = call.returned();
        drop(call);
        Ok(Pages {
            address,
            bytes,
            memory,
        })
    }

    /// Removes pages from the heap.
    pub fn remove_pages(&self, pages: &Pages) -> Outcome<()> {
        self.call(&mut Call::remove_pages(
            self.interface,
            pages.address,
            pages.bytes,
        ))
    }

    /// Ends the domain, which makes all pending calls return.
    pub fn exit(&self) {
        // This fails if the domain has ended already.
        let _ = self.invoke(CURRENT_PROCESS, EXIT, &[], &mut []);
    }
}

/// Returns advice for an error of opening a node.
fn advice(error: &io::Error) -> &'static str {
    match error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error)
    {
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => NO_RIGHTS,
        // The first is returned by Linux' driver, the second by the vendor's.
        Some(rustix::io::Errno::BUSY | rustix::io::Errno::USERS) => ALL_TAKEN,
        _ => RESTART,
    }
}

/// Returns the error for a phone without a shell for unsigned domains.
pub fn no_shell(shells: &[PathBuf]) -> Error {
    let reason = io::Error::other(format!("there is none at {}", list(shells)));
    let advice =
        "the phone's vendor has it for unsigned programs on the DSP: use another processor";
    refused(
        "finding the shell",
        Path::new("fastrpc_shell_unsigned_3"),
        reason,
        advice,
    )
}

/// A dma-buf that this process and the DSP map.
pub struct Mapped {
    domain: Arc<Domain>,
    buffer: File,
    address: u64,
    bytes: u64,
}

impl Mapped {
    /// Allocates and maps a buffer.
    pub fn new(domain: &Arc<Domain>, bytes: usize) -> Result<(Self, SharedMemory)> {
        let (buffer, memory) = domain.allocate(bytes)?;
        let mut call = Call::map(domain.interface, buffer.as_fd(), &memory);
        domain.require(
            "FASTRPC_IOCTL_MEM_MAP",
            &mut call,
            "the DSP has no room for it: end another program that uses it",
        )?;
        let (address, bytes) = (call.returned(), memory.bytes() as u64);
        drop(call);
        let mapped = Self {
            domain: Arc::clone(domain),
            buffer,
            address,
            bytes,
        };
        // The DSP's addresses have 32 bits.
        if address == 0 || address.checked_add(bytes).is_none_or(|end| end > 1 << 32) {
            let reason = io::Error::other(format!(
                "it returned {address:#x}, which is no address of the DSP"
            ));
            return Err(refused(
                "FASTRPC_IOCTL_MEM_MAP",
                &domain.path,
                reason,
                RESTART,
            ));
        }
        Ok((mapped, memory))
    }

    /// Returns its address on the DSP.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // If the domain has ended, its mappings are gone already.
        let _ = self.domain.call(&mut Call::unmap(
            self.domain.interface,
            self.buffer.as_fd(),
            self.address,
            self.bytes,
        ));
    }
}

/// The loaded device program.
pub struct Module {
    domain: Arc<Domain>,
    handle: u32,
}

impl Module {
    /// Loads the device program from the file at `program`.
    pub fn load(domain: &Arc<Domain>, program: &Path) -> Result<Self> {
        let lengths = words(&[URI.len() as u32, MAX_PRINTED as u32]);
        let (mut outcome, mut printed) = ([0; 8], [0; MAX_PRINTED]);
        let loaded = domain.invoke(
            LOADER,
            OPEN,
            &[&lengths, URI],
            &mut [&mut outcome, &mut printed],
        );
        let name = "FASTRPC_IOCTL_INVOKE of the loader";
        loaded.map_err(|failure| refused(name, &domain.path, failure.into(), RESTART))?;
        let [handle, status] = [0, 4].map(|at| word(&outcome, at));
        if status != 0 {
            let printed = String::from_utf8_lossy(
                printed.split(|byte| *byte == 0).next().unwrap_or_default(),
            )
            .into_owned();
            let reason = format!("the DSP does not load it ({status:#x}): {}", printed.trim());
            return Err(Error::HexagonProgram {
                path: program.to_owned(),
                reason,
            });
        }
        Ok(Self {
            domain: Arc::clone(domain),
            handle,
        })
    }

    /// Starts the program on a new thread, with `bytes` of memory at `address` of the DSP. When the program returns,
    /// `ended` is set and then the returned channel is disconnected.
    pub fn begin(&self, address: u64, bytes: u64, ended: Ended) -> Result<mpsc::Receiver<()>> {
        let (sender, running) = mpsc::channel();
        let (domain, handle) = (Arc::clone(&self.domain), self.handle);
        let call = move || {
            // Disconnects when this thread returns, after the last use of the domain.
            let _running: mpsc::Sender<()> = sender;
            let domain = domain;
            let memory = [address, bytes].map(u64::to_le_bytes).concat();
            let reason = match domain.invoke(handle, SERVE, &[&memory], &mut []) {
                Ok(()) => "its program on the DSP returned".to_owned(),
                // Status values of hexagon/main.c and hexagon/qurt.c.
                Err(Failure::Dsp(4)) => {
                    "the memory was not written by this version of triad".to_owned()
                }
                Err(Failure::Dsp(20)) => "the DSP has no vector context for it".to_owned(),
                Err(failure) => {
                    format!(
                        "its domain on the DSP ended: {INVOKE} of {}: {failure}",
                        domain.path.display()
                    )
                }
            };
            *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        };
        thread::Builder::new()
            .name("fastrpc program".to_owned())
            .spawn(call)
            .map_err(failed)?;
        Ok(running)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let lengths = words(&[self.handle, MAX_PRINTED as u32]);
        let (mut outcome, mut printed) = ([0; 4], [0; MAX_PRINTED]);
        // If the domain has ended, the module is gone already.
        let _ = self.domain.invoke(
            LOADER,
            CLOSE,
            &[&lengths],
            &mut [&mut outcome, &mut printed],
        );
    }
}

/// Returns 32-bit words in the DSP's byte order.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the word at byte `at`.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}
