//! A protection domain and what is opened in it. Each part is released when its value is dropped.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread;

use super::kernel::{self, Call, Driver, Structure};
use super::{Ended, failed, list, refused};
use crate::error::{Error, Result};
use crate::hexagon::protocol::HEADER;
use crate::hexagon::shared::SharedMemory;

/// The DSP that computes, by its number in `GET_DSP_INFO`.
const COMPUTE_DSP: u32 = 3;
/// Attributes of a DSP: how many vector contexts of 128 bytes it has, and its architecture, whose version is the last byte.
const HVX_128_BYTES: u32 = 3;
const ARCHITECTURE: u32 = 6;
/// The architecture that the device program is built for.
const OLDEST: u32 = 0x67;

/// Handles that every domain has: of what loads modules, of what the listener calls, and of the domain itself.
const LOADER: u32 = 0;
pub const LISTENER: u32 = 3;
const CURRENT_PROCESS: u32 = 4;
/// Methods of these.
const OPEN: u32 = 0;
const CLOSE: u32 = 1;
const EXIT: u32 = 2;
/// The method of the device program that serves requests.
const SERVE: u32 = 0;
/// The name by which the domain asks for the device program, and the function in it.
pub const MODULE: &str = "libtriad_skel.so";
const URI: &[u8] = b"file:///libtriad_skel.so?triad_skel_invoke&_modver=1.0\0";
/// Room for what a loader prints.
const MOST_PRINTED: usize = 255;

const INVOKE: &str = "FASTRPC_IOCTL_INVOKE";
pub const RESTART: &str = "restart the phone, and see what its kernel printed (dmesg, or adb logcat)";

/// An open node of the driver, which is one domain once that is created.
pub struct Domain {
    driver: Arc<dyn Driver>,
    node: OwnedFd,
    path: PathBuf,
    heap: PathBuf,
}

/// What a call returns.
pub type Outcome<T> = std::result::Result<T, Failure>;

/// Why a call failed.
pub enum Failure {
    /// The kernel refused it, or the domain is gone.
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
    /// Opens the node of the driver at `path`.
    pub fn open(driver: Arc<dyn Driver>, path: PathBuf, heap: &Path) -> Result<Self> {
        let advice = |error: &io::Error| match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
                "this user may not reach the DSP: run triad from adb's shell, or give it rights to that node"
            }
            Some(rustix::io::Errno::BUSY) => "all sessions of the DSP are taken: end another program that uses it",
            _ => RESTART,
        };
        let node = driver.open(&path).map_err(|error| {
            let advice = advice(&error);
            refused("open", &path, error, advice)
        })?;
        Ok(Self { driver, node, path, heap: heap.to_owned() })
    }

    fn call(&self, call: &mut Call) -> Outcome<()> {
        match self.driver.call(self.node.as_fd(), call) {
            Ok(0) => Ok(()),
            Ok(status) => Err(Failure::Dsp(status)),
            Err(error) => Err(Failure::Kernel(error)),
        }
    }

    /// The node of the driver.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The call `name`, with what to do if it fails.
    fn require(&self, name: &'static str, call: &mut Call, advice: &'static str) -> Result<()> {
        self.call(call).map_err(|failure| refused(name, &self.path, failure.into(), advice))
    }

    /// Calls a method of what `handle` is.
    pub fn invoke(&self, handle: u32, method: u32, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Outcome<()> {
        self.call(&mut Call::invoke(handle, method, inputs, outputs))
    }

    /// The version of the DSP's instructions, which has to be one that the device program is built for, and how many vector
    /// contexts it has, at least one.
    pub fn architecture(&self) -> Result<(u32, u32)> {
        let ask = |attribute| {
            let mut call = Call::capability(COMPUTE_DSP, attribute);
            self.require("FASTRPC_IOCTL_GET_DSP_INFO", &mut call, RESTART)?;
            let Structure::Capability(found) = call.structure() else { unreachable!("it was one") };
            Ok(found.capability)
        };
        let (architecture, contexts) = (ask(ARCHITECTURE)? & 0xff, ask(HVX_128_BYTES)?);
        if architecture < OLDEST || contexts == 0 {
            let found = format!("it is a v{architecture:x} with {contexts} vector contexts");
            let reason = io::Error::other(format!("{found}, expected v{OLDEST:x} or later with one"));
            return Err(refused("FASTRPC_IOCTL_GET_DSP_INFO", &self.path, reason, "use another processor"));
        }
        Ok((architecture, contexts))
    }

    /// A dma-buf of at least `bytes`, whole pages, with a map of it.
    fn allocate(&self, bytes: usize) -> Result<(File, SharedMemory)> {
        const ADVICE: &str = "memory that the DSP shares comes from there: give this user rights to it, or free memory";
        let bytes = bytes.next_multiple_of(HEADER);
        let of_heap = |call| move |error| refused(call, &self.heap, error, ADVICE);
        let heap = self.driver.open(&self.heap).map_err(of_heap("open"))?;
        let buffer = kernel::allocate(&*self.driver, heap.as_fd(), bytes).map_err(of_heap("DMA_HEAP_IOCTL_ALLOC"))?;
        let memory = SharedMemory::map(&buffer, bytes).map_err(of_heap("mmap of a buffer"))?;
        Ok((buffer, memory))
    }

    /// Creates the domain, unsigned, with the shell at `path`.
    pub fn create(&self, path: &Path) -> Result<()> {
        let of_shell = |error| refused("read", path, error, "the phone's vendor has it there for unsigned programs");
        let shell = fs::read(path).map_err(of_shell)?;
        let bytes = u32::try_from(shell.len()).ok().filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| of_shell(io::Error::other(format!("it has {} bytes", shell.len()))))?;
        let (buffer, memory) = self.allocate(shell.len())?;
        memory.write_bytes(&shell);
        let mut call = Call::create(buffer.as_fd(), &memory, bytes);
        let name = "FASTRPC_IOCTL_INIT_CREATE of an unsigned protection domain";
        self.call(&mut call).map_err(|failure| {
            let error = io::Error::from(failure);
            let advice = match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    "this phone lets nobody run unsigned programs on its DSP: use another processor"
                }
                io::ErrorKind::PermissionDenied => {
                    "this user may run no programs on the DSP: run triad from adb's shell"
                }
                _ => RESTART,
            };
            refused(name, &self.path, error, advice)
        })
    }

    /// Adds pages to the heap of the domain, and returns their address there.
    pub fn add_pages(&self, flags: u32, bytes: u64) -> Outcome<u64> {
        let mut call = Call::add_pages(flags, bytes);
        self.call(&mut call)?;
        let Structure::Mmap(added) = call.structure() else { unreachable!("it was one") };
        Ok(added.address_out)
    }

    /// Takes pages of the heap back.
    pub fn remove_pages(&self, address: u64, bytes: u64) -> Outcome<()> {
        self.call(&mut Call::remove_pages(address, bytes))
    }

    /// Ends the domain, and with it every call that did not return.
    pub fn exit(&self) {
        // It fails where the domain is gone.
        let _ = self.invoke(CURRENT_PROCESS, EXIT, &[], &mut []);
    }
}

/// There is no shell of unsigned domains.
pub fn no_shell(shells: &[PathBuf]) -> Error {
    let reason = io::Error::other(format!("there is none at {}", list(shells)));
    let advice = "the phone's vendor has it for unsigned programs on the DSP: use another processor";
    refused("finding the shell", Path::new("fastrpc_shell_unsigned_3"), reason, advice)
}

/// A dma-buf that both map.
pub struct Mapped {
    domain: Arc<Domain>,
    buffer: File,
    address: u64,
    bytes: u64,
}

impl Mapped {
    /// Maps a new one.
    pub fn new(domain: &Arc<Domain>, bytes: usize) -> Result<(Self, SharedMemory)> {
        let (buffer, memory) = domain.allocate(bytes)?;
        let mut call = Call::map(buffer.as_fd(), &memory);
        domain.require(
            "FASTRPC_IOCTL_MEM_MAP",
            &mut call,
            "the DSP has no room for it: end another program that uses it",
        )?;
        let Structure::MemMap(map) = call.structure() else { unreachable!("it was one") };
        let (address, bytes) = (map.address_out, memory.bytes() as u64);
        let mapped = Self { domain: Arc::clone(domain), buffer, address, bytes };
        // Addresses of the DSP have 32 bits.
        if address == 0 || address.checked_add(bytes).is_none_or(|end| end > 1 << 32) {
            let reason = io::Error::other(format!("it returned {address:#x}, which is no address of the DSP"));
            return Err(refused("FASTRPC_IOCTL_MEM_MAP", &domain.path, reason, RESTART));
        }
        Ok((mapped, memory))
    }

    /// Its address on the DSP.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Where the domain is gone, its maps are, too.
        let _ = self.domain.call(&mut Call::unmap(self.buffer.as_fd(), self.address, self.bytes));
    }
}

/// The device program, loaded.
pub struct Module {
    domain: Arc<Domain>,
    handle: u32,
}

impl Module {
    /// Loads it, which is the file at `program`.
    pub fn load(domain: &Arc<Domain>, program: &Path) -> Result<Self> {
        let lengths = words(&[URI.len() as u32, MOST_PRINTED as u32]);
        let (mut outcome, mut printed) = ([0; 8], [0; MOST_PRINTED]);
        let loaded = domain.invoke(LOADER, OPEN, &[&lengths, URI], &mut [&mut outcome, &mut printed]);
        let name = "FASTRPC_IOCTL_INVOKE of the loader";
        loaded.map_err(|failure| refused(name, &domain.path, failure.into(), RESTART))?;
        let [handle, status] = [0, 4].map(|at| word(&outcome, at));
        if status != 0 {
            let printed =
                String::from_utf8_lossy(printed.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
            let reason = format!("the DSP does not load it ({status:#x}): {}", printed.trim());
            return Err(Error::HexagonProgram { path: program.to_owned(), reason });
        }
        Ok(Self { domain: Arc::clone(domain), handle })
    }

    /// Begins the program, with `bytes` of memory at `address` of the DSP, on a thread of its own; `ended` is set, and then the returned
    /// channel disconnected, when it has returned.
    pub fn begin(&self, address: u64, bytes: u64, ended: Ended) -> Result<mpsc::Receiver<()>> {
        let (sender, running) = mpsc::channel();
        let (domain, handle) = (Arc::clone(&self.domain), self.handle);
        let call = move || {
            // Disconnects when this returns, behind the last use of the domain.
            let _running: mpsc::Sender<()> = sender;
            let domain = domain;
            let memory = [address, bytes].map(u64::to_le_bytes).concat();
            let reason = match domain.invoke(handle, SERVE, &[&memory], &mut []) {
                Ok(()) => "its program on the DSP returned".to_owned(),
                // Status of hexagon/main.c and hexagon/qurt.c.
                Err(Failure::Dsp(4)) => "the memory was not written by this version of triad".to_owned(),
                Err(Failure::Dsp(20)) => "the DSP has no vector context for it".to_owned(),
                Err(failure) => {
                    format!("its domain on the DSP ended: {INVOKE} of {}: {failure}", domain.path.display())
                }
            };
            *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        };
        thread::Builder::new().name("fastrpc program".to_owned()).spawn(call).map_err(failed)?;
        Ok(running)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let lengths = words(&[self.handle, MOST_PRINTED as u32]);
        let (mut outcome, mut printed) = ([0; 4], [0; MOST_PRINTED]);
        // Where the domain is gone, so is the module.
        let _ = self.domain.invoke(LOADER, CLOSE, &[&lengths], &mut [&mut outcome, &mut printed]);
    }
}

/// Words of 32 bits as the DSP has them.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The word at byte `at`.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}
