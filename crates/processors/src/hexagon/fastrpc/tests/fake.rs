//! A driver without a DSP. It checks each call like the kernel and a domain would, and runs the device program under
//! the emulator or on a thread. It was never compared with a phone: its expectations come from the kernel's headers and
//! the open-source library.
//!
//! The fake accesses memory at the addresses in calls through `/proc/self/mem`, which refuses unmapped memory, like the
//! kernel.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::hexagon::fastrpc::Places;
use crate::hexagon::fastrpc::domain::{MODULE, word, words};
use crate::hexagon::fastrpc::kernel::{Call, Driver, Interface, Structure};
use crate::hexagon::fastrpc::structures::Invoke;
use crate::hexagon::protocol::{DEVICE_MAGIC, HOST_MAGIC, VERSION, field};
use crate::hexagon::shared::SharedMemory;

/// DSP addresses of the shared memory, and of the pages of its heap.
const ADDRESS: u64 = 0x4000_0000;
const PAGES: u64 = 0x5000_0000;
/// The handle of the device program.
const PROGRAM: u32 = 0xbeef;
/// Contents of the vendor's shell.
pub const SHELL: &[u8] = b"the shell of unsigned domains, which is no multiple of a word long";

/// Implementation of the device program.
pub enum Runs {
    /// The emulator (first path) runs the second path in place of the loaded program.
    Emulator(PathBuf, PathBuf),
    /// A thread that announces itself and then does nothing until the host ends it.
    Nothing,
    /// Like `Nothing`, but it responds to requests as if they were done.
    Claims,
    /// Like `Nothing`, but it reports this number of compute threads.
    Threads(u64),
    /// It does nothing until its domain is ended.
    NothingForEver,
}

/// An error that the fake injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The call with this index in the log fails with this system error.
    Call(usize, i32),
    /// The call with this index in the log returns this DSP status.
    Status(usize, i32),
    /// The call with this index does not return until the domain ends or [`Fake::wake`] is called.
    Hangs(usize),
    /// The loader refuses the program.
    NotLoaded,
    /// The DSP has this architecture.
    Architecture(u32),
    /// The DSP maps memory here.
    Address(u64),
    /// Heaps return a file that can't be mapped.
    Unmappable,
    /// The DSP's session does not have mapped memory.
    Unmapped,
    /// The vendor's driver provides the heap memory of domains itself.
    OwnMemory,
    /// The DSP has this number of vector contexts.
    Contexts(u32),
}

#[derive(Default)]
struct State {
    log: Vec<String>,
    wrong: Vec<String>,
    buffer: Option<RawFd>,
    mapped_bytes: u64,
    /// Pages of a domain's heap: descriptor of their buffer, and bytes.
    pages: Option<(RawFd, u64)>,
    has_session: bool,
    is_created: bool,
    is_loaded: bool,
    is_over: bool,
    /// Request of the domain, and its response: a status and buffers.
    request: Option<(u32, u32, Vec<u8>)>,
    is_asked: bool,
    response: Option<(u32, Vec<u8>)>,
    child: Option<Child>,
}

pub struct Fake {
    name: String,
    interface: Interface,
    program: PathBuf,
    pub places: Places,
    runs: Runs,
    pub fault: Fault,
    state: Mutex<State>,
    changed: Condvar,
    _folder: tempfile::TempDir,
}

impl Fake {
    pub fn new(interface: Interface, program: &Path, runs: Runs, fault: Fault) -> Self {
        static LATEST: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // The fake opens them; other code only checks that they exist.
        let node = match interface {
            Interface::Mainline => "fastrpc-cdsp",
            Interface::Vendor => "adsprpc-smd",
        };
        for name in [node, "heap"] {
            fs::write(at(name), "").unwrap();
        }
        fs::write(at("shell"), SHELL).unwrap();
        let places = Places {
            nodes: vec![
                (at("fastrpc-none"), Interface::Mainline),
                (at("fastrpc-cdsp"), Interface::Mainline),
                (at("adsprpc-smd"), Interface::Vendor),
            ],
            heap: at("heap"),
            shells: vec![at("no-shell"), at("shell")],
        };
        let name = format!("fake-dsp-{}", LATEST.fetch_add(1, Ordering::Relaxed));
        let (state, changed) = Default::default();
        Self {
            name,
            interface,
            program: program.to_owned(),
            places,
            runs,
            fault,
            state,
            changed,
            _folder: folder,
        }
    }

    /// Returns the node that exists.
    pub fn node(&self) -> &Path {
        self.places
            .nodes
            .iter()
            .map(|(path, _)| path.as_path())
            .find(|path| path.exists())
            .unwrap()
    }

    /// Returns the log of calls.
    pub fn log(&self) -> Vec<String> {
        self.state().log.clone()
    }

    /// Returns the mistakes in calls.
    pub fn wrong(&self) -> Vec<String> {
        self.state().wrong.clone()
    }

    /// Returns the descriptors and maps of nodes, heaps and buffers that this process has.
    pub fn open(&self) -> Vec<String> {
        let names = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let names = names.map(|name| format!("descriptor {}", name.display()));
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let maps: Vec<_> = maps.lines().map(|line| format!("map {line}")).collect();
        names
            .chain(maps)
            .filter(|text| text.contains(&format!("/memfd:{} ", self.name)))
            .collect()
    }

    /// Ends the domain, as when a DSP restarts.
    pub fn wake(&self) {
        self.over(&mut self.state());
    }

    fn over(&self, state: &mut State) {
        state.is_over = true;
        if let Some(child) = &mut state.child {
            let _ = child.kill();
        }
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn has(&self, what: impl FnOnce(&State) -> bool) -> bool {
        what(&self.state())
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap()
    }

    fn expect(&self, holds: bool, what: impl std::fmt::Display) -> io::Result<()> {
        if holds {
            return Ok(());
        }
        self.state().wrong.push(what.to_string());
        Err(io::Error::from_raw_os_error(
            rustix::io::Errno::INVAL.raw_os_error(),
        ))
    }

    /// Logs a call, and fails if it is the one with the injected fault.
    fn note(&self, call: &str) -> io::Result<i32> {
        let mut state = self.state();
        let index = state.log.len();
        state.log.push(call.to_owned());
        match self.fault {
            Fault::Call(at, error) if at == index => Err(io::Error::from_raw_os_error(error)),
            Fault::Status(at, status) if at == index => Ok(status),
            Fault::Hangs(at) if at == index => {
                while !state.is_over {
                    state = self.wait(state);
                }
                Err(io::Error::from_raw_os_error(
                    rustix::io::Errno::PIPE.raw_os_error(),
                ))
            }
            _ => Ok(0),
        }
    }

    fn address(&self) -> u64 {
        if let Fault::Address(address) = self.fault {
            address
        } else {
            ADDRESS
        }
    }

    fn file(&self, kind: &str, bytes: u64) -> io::Result<OwnedFd> {
        let file = File::from(memfd_create(
            format!("{} {kind}", self.name),
            MemfdFlags::CLOEXEC,
        )?);
        file.set_len(bytes)?;
        Ok(file.into())
    }

    fn is(&self, fd: RawFd, kind: &str) -> bool {
        let name = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        name.to_string_lossy()
            .starts_with(&format!("/memfd:{} {kind}", self.name))
    }

    /// Returns whether `bytes` bytes at `address` map the start of the buffer `fd`.
    fn maps(&self, fd: RawFd, address: u64, bytes: u64) -> bool {
        let inode = fs::metadata(format!("/proc/self/fd/{fd}"))
            .map(|meta| std::os::unix::fs::MetadataExt::ino(&meta));
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let (start, end) = fields[0].split_once('-').unwrap();
            let [start, end] =
                [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
            let is_buffer = inode
                .as_ref()
                .is_ok_and(|inode| fields[4] == inode.to_string());
            is_buffer
                && start == address
                && end - start >= bytes
                && fields[1] == "rw-s"
                && fields[2] == "00000000"
        })
    }
}

/// Reads bytes of this process. Fails if they are not mapped.
fn peek(address: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut found = vec![0; bytes as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut found, address)?;
    Ok(found)
}

fn poke(address: u64, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")?
        .write_all_at(bytes, address)
}

impl Driver for Fake {
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let (name, kind) = if path == self.node() {
            ("open node", "node")
        } else {
            ("open heap", "heap")
        };
        self.note(name)?;
        self.expect(
            kind == "node" || path == self.places.heap,
            format!("{} is opened", path.display()),
        )?;
        self.file(kind, 0)
    }

    fn call(&self, file: BorrowedFd, call: &mut Call) -> io::Result<i32> {
        let (structure, fd) = (call.structure(), file.as_raw_fd());
        let (owner, golden) = expected(&structure);
        let kind = if owner.is_none() { "heap" } else { "node" };
        let number = structure.number();
        self.expect(
            number == golden && self.is(fd, kind),
            format!("{number:#x} is a call of a {kind}"),
        )?;
        let is_theirs = owner.is_none_or(|owner| owner == self.interface);
        self.expect(
            is_theirs,
            format!("{:?} has no {structure:?}", self.interface),
        )?;
        match structure {
            Structure::HeapAllocation(mut allocation) => {
                self.note("allocate")?;
                let flags = 0o2 | 0o2_000_000;
                let is_right =
                    allocation.length > 0 && allocation.fd == 0 && allocation.fd_flags == flags;
                self.expect(
                    is_right && allocation.heap_flags == 0,
                    format!("{allocation:?}"),
                )?;
                let bytes = allocation.length.next_multiple_of(4096);
                let buffer = match self.fault {
                    Fault::Unmappable => File::open("/dev/null")?.into(),
                    _ => self.file("buffer", bytes)?,
                };
                allocation.fd = buffer.into_raw_fd().cast_unsigned();
                call.set_structure(Structure::HeapAllocation(allocation));
                Ok(0)
            }
            Structure::VendorInfo(domain) => {
                let status = self.note("session")?;
                let is_first = !self.has(|state| state.has_session);
                self.expect(
                    domain == 3 && is_first,
                    "a node is a session of the DSP that computes",
                )?;
                self.state().has_session = true;
                call.set_structure(Structure::VendorInfo(
                    (self.fault != Fault::Unmapped).into(),
                ));
                Ok(status)
            }
            Structure::Capability(mut asked) => {
                self.expect(
                    asked.capability == 0 && asked.reserved == [0; 4],
                    format!("{asked:?}"),
                )?;
                asked.capability = self.capability(asked.domain, asked.attribute)?;
                call.set_structure(Structure::Capability(asked));
                Ok(0)
            }
            Structure::VendorCapability(mut asked) => {
                self.expect(asked.capability == 0, format!("{asked:?}"))?;
                asked.capability = self.capability(asked.domain, asked.attribute)?;
                call.set_structure(Structure::VendorCapability(asked));
                Ok(0)
            }
            Structure::InitCreate(create) => {
                self.expect(
                    create.attributes == 8 && create.signature_length == 0,
                    "it is unsigned",
                )?;
                self.create(create.file_fd, create.file, create.file_length)
            }
            Structure::VendorInit(create) => {
                self.expect(create.flags == 1, "a domain is created")?;
                self.expect(
                    create.attributes == 8 && create.signature_length == 0,
                    "it is unsigned",
                )?;
                let is_the_drivers =
                    create.memory == 0 && create.memory_length == 0 && create.memory_fd == -1;
                self.expect(is_the_drivers, "its memory is the driver's")?;
                self.create(create.file_fd, create.file, create.file_length)
            }
            Structure::MemMap(mut map) => {
                let is_right =
                    map.version == 0 && map.offset == 0 && map.flags == 2 && map.attributes == 0;
                self.expect(
                    is_right && map.address_out == 0 && map.reserved == [0; 4],
                    format!("{map:?}"),
                )?;
                map.address_out = self.map(map.fd, map.address_in, map.length)?;
                call.set_structure(Structure::MemMap(map));
                Ok(0)
            }
            Structure::VendorMemMap(mut map) => {
                let is_right =
                    map.version == 0 && map.offset == 0 && map.flags == 2 && map.attributes == 0;
                let is_zero = map.address_out == 0 && map.reserved == [0; 4] && map.unused == 0;
                self.expect(is_right && is_zero, format!("{map:?}"))?;
                map.address_out = self.map(map.fd, map.address_in, map.length)?;
                call.set_structure(Structure::VendorMemMap(map));
                Ok(0)
            }
            Structure::MemUnmap(unmap) => {
                self.expect(
                    unmap.version == 0 && unmap.reserved == [0; 5],
                    format!("{unmap:?}"),
                )?;
                self.unmap(unmap.fd, unmap.address, unmap.length)
            }
            Structure::VendorMemUnmap(unmap) => {
                let is_zero =
                    unmap.unused == 0 && unmap.unused_after_fd == 0 && unmap.reserved == [0; 4];
                self.expect(unmap.version == 0 && is_zero, format!("{unmap:?}"))?;
                self.unmap(unmap.fd, unmap.address, unmap.length)
            }
            Structure::Mmap(mut map) | Structure::VendorMmap(mut map) => {
                self.note("add pages")?;
                self.expect(
                    map.flags == 0x1000 && map.address_out == 0 && map.size > 0,
                    format!("{map:?}"),
                )?;
                if self.takes_memory() {
                    self.expect(self.is(map.fd, "buffer"), "pages are those of a dma-buf")?;
                    self.expect(
                        self.maps(map.fd, map.address_in, map.size),
                        "pages are mapped here, too",
                    )?;
                } else {
                    self.expect(
                        map.fd == -1 && map.address_in == 0,
                        format!("{map:?}: pages are the driver's"),
                    )?;
                }
                map.address_out = PAGES;
                self.state().pages = Some((map.fd, map.size));
                call.set_structure(match self.interface {
                    Interface::Mainline => Structure::Mmap(map),
                    Interface::Vendor => Structure::VendorMmap(map),
                });
                Ok(0)
            }
            Structure::Munmap(unmap) | Structure::VendorMunmap(unmap) => {
                self.note("remove pages")?;
                let (fd, bytes) = self.state().pages.take().unwrap_or_default();
                self.expect(
                    unmap.address == PAGES && bytes == unmap.size,
                    format!("{unmap:?}"),
                )?;
                self.expect(
                    fd == -1 || self.is(fd, "buffer"),
                    "pages are there until they are taken back",
                )?;
                Ok(0)
            }
            // The numbers are bytes per argument.
            Structure::Invoke(invoke) => self.invocation(invoke, 24),
            Structure::VendorInvoke(invoke) => self.invocation(invoke, 16),
        }
    }
}

/// Returns the driver's interface (none for a heap's call), and the call's number in the kernel's headers.
fn expected(structure: &Structure) -> (Option<Interface>, u32) {
    let (mainline, vendor) = (Some(Interface::Mainline), Some(Interface::Vendor));
    match structure {
        Structure::HeapAllocation(_) => (None, 0xc018_4800),
        Structure::Invoke(_) => (mainline, 0xc010_5203),
        Structure::InitCreate(_) => (mainline, 0xc018_5205),
        Structure::Mmap(_) => (mainline, 0xc020_5206),
        Structure::Munmap(_) => (mainline, 0xc010_5207),
        Structure::MemMap(_) => (mainline, 0xc040_520a),
        Structure::MemUnmap(_) => (mainline, 0xc030_520b),
        Structure::Capability(_) => (mainline, 0xc01c_520d),
        Structure::VendorInvoke(_) => (vendor, 0xc010_5201),
        Structure::VendorInfo(_) => (vendor, 0xc004_5208),
        Structure::VendorInit(_) => (vendor, 0xc030_520a),
        Structure::VendorMmap(_) => (vendor, 0xc020_520e),
        Structure::VendorMunmap(_) => (vendor, 0xc010_520f),
        Structure::VendorCapability(_) => (vendor, 0xc00c_5211),
        Structure::VendorMemMap(_) => (vendor, 0xc040_5213),
        Structure::VendorMemUnmap(_) => (vendor, 0xc030_5214),
    }
}

/// A DSP status, and the contents of the output buffers.
type Returned = (i32, Vec<Vec<u8>>);

impl Fake {
    fn has_session(&self) -> bool {
        self.interface == Interface::Mainline || self.has(|state| state.has_session)
    }

    /// Returns whether the process must provide memory for the heap of a domain.
    fn takes_memory(&self) -> bool {
        self.interface == Interface::Vendor && self.fault != Fault::OwnMemory
    }

    fn capability(&self, domain: u32, attribute: u32) -> io::Result<u32> {
        self.note(&format!("capability {attribute}"))?;
        self.expect(
            domain == 3 && self.has_session(),
            "the DSP that computes is asked",
        )?;
        match (attribute, self.fault) {
            (6, Fault::Architecture(architecture)) => Ok(architecture),
            (6, _) => Ok(0x8473),
            (3, Fault::Contexts(contexts)) => Ok(contexts),
            (3, _) => Ok(4),
            (258, _) if self.interface == Interface::Vendor => Ok(self.takes_memory().into()),
            _ => self
                .expect(false, format!("attribute {attribute} is not needed"))
                .map(|()| 0),
        }
    }

    fn create(&self, fd: RawFd, address: u64, bytes: u32) -> io::Result<i32> {
        let (status, bytes) = (self.note("create")?, u64::from(bytes));
        let is_first = self.has_session() && !self.has(|state| state.is_created);
        self.expect(is_first, "the domain is created once, in a session")?;
        self.expect(self.is(fd, "buffer"), "the shell is in a dma-buf")?;
        self.expect(
            self.maps(fd, address, bytes),
            "the shell is where its buffer is mapped",
        )?;
        self.expect(peek(address, bytes)? == SHELL, "the shell is whole")?;
        self.state().is_created = status == 0;
        Ok(status)
    }

    fn map(&self, fd: RawFd, address: u64, length: u64) -> io::Result<u64> {
        self.note("map")?;
        self.expect(
            self.has(|state| state.is_created),
            "memory is mapped for a domain",
        )?;
        self.expect(self.is(fd, "buffer"), "a dma-buf is mapped")?;
        let all = fs::metadata(format!("/proc/self/fd/{fd}"))?.len();
        self.expect(length == all, "all of the buffer is mapped")?;
        self.expect(
            self.maps(fd, address, length),
            "it is mapped by the host, too",
        )?;
        let mut state = self.state();
        (state.buffer, state.mapped_bytes) = (Some(fd), length);
        drop(state);
        Ok(self.address())
    }

    fn unmap(&self, fd: RawFd, address: u64, length: u64) -> io::Result<i32> {
        self.note("unmap")?;
        let (buffer, bytes) = {
            let state = self.state();
            (state.buffer, state.mapped_bytes)
        };
        let is_same = buffer == Some(fd) && address == self.address() && length == bytes;
        self.expect(
            is_same && self.is(fd, "buffer"),
            format!("{fd}, {address:#x}, {length} are unmapped, {bytes} bytes were mapped"),
        )?;
        self.state().buffer = None;
        Ok(0)
    }

    fn invocation(&self, invoke: Invoke, argument: usize) -> io::Result<i32> {
        self.expect(self.has(|state| state.is_created), "a domain is called")?;
        let (inputs, outputs) = (
            (invoke.scalars >> 16 & 0xff) as usize,
            (invoke.scalars >> 8 & 0xff) as usize,
        );
        let count = inputs + outputs;
        let bytes = peek(invoke.arguments, (count * argument) as u64)?;
        let wide = |at: usize| u64::from(word(&bytes, at)) | u64::from(word(&bytes, at + 4)) << 32;
        let arguments: Vec<_> = (0..count)
            .map(|index| (wide(argument * index), wide(argument * index + 8)))
            .collect();
        // In the vendor's driver, an argument has only an address and a length.
        let is_plain =
            argument == 16 || (0..count).all(|index| wide(24 * index + 16) == 0xffff_ffff);
        self.expect(
            is_plain,
            "buffers are copied: they have no descriptor and no attributes",
        )?;
        // All of them must be mapped.
        let contents = arguments.iter().map(|(at, bytes)| {
            if *bytes == 0 {
                Ok(Vec::new())
            } else {
                peek(*at, *bytes)
            }
        });
        let contents = contents.collect::<io::Result<Vec<_>>>()?;
        let lengths: Vec<_> = contents[inputs..].iter().map(Vec::len).collect();
        let (status, written) =
            self.invoke(invoke.handle, invoke.scalars, &contents[..inputs], &lengths)?;
        for (bytes, (at, length)) in written.iter().zip(&arguments[inputs..]) {
            self.expect(
                bytes.len() as u64 <= *length,
                "there is room for what is returned",
            )?;
            poke(*at, bytes)?;
        }
        Ok(status)
    }

    fn invoke(
        &self,
        handle: u32,
        scalars: u32,
        inputs: &[Vec<u8>],
        outputs: &[usize],
    ) -> io::Result<Returned> {
        match (handle, scalars) {
            (3, 0x0300_0000) => Ok((self.note("listen")?, Vec::new())),
            (3, 0x0402_0200) => self.next(inputs, outputs),
            (0, 0x0002_0200) => {
                let status = self.note("load")?;
                let uri = b"file:///libtriad_skel.so?triad_skel_invoke&_modver=1.0\0";
                self.expect(inputs[1] == uri, "the program is named")?;
                let is_right =
                    inputs[0] == words(&[uri.len() as u32, outputs[1] as u32]) && outputs[0] == 8;
                self.expect(is_right, "lengths are those of buffers")?;
                if status != 0 {
                    return Ok((status, Vec::new()));
                }
                self.load()?;
                if self.fault == Fault::NotLoaded {
                    return Ok((
                        0,
                        vec![words(&[0, 0x8000_0406]), b"no such symbol\0".to_vec()],
                    ));
                }
                self.state().is_loaded = true;
                Ok((0, vec![words(&[PROGRAM, 0])]))
            }
            (0, 0x0101_0200) => {
                self.note("unload")?;
                let is_right = inputs[0] == words(&[PROGRAM, outputs[1] as u32]) && outputs[0] == 4;
                self.expect(
                    is_right && self.has(|state| state.is_loaded),
                    "the program is unloaded",
                )?;
                self.state().is_loaded = false;
                Ok((0, vec![words(&[0])]))
            }
            (4, 0x0200_0000) => {
                self.note("exit")?;
                self.wake();
                Ok((0, Vec::new()))
            }
            (PROGRAM, 0x0001_0000) => {
                let status = self.note("serve")?;
                let bytes = self.state().mapped_bytes;
                let memory = [ADDRESS, bytes].map(u64::to_le_bytes).concat();
                self.expect(
                    inputs[0] == memory && self.has(|state| state.is_loaded),
                    "the program is given the memory",
                )?;
                Ok((if status == 0 { self.serve()? } else { status }, Vec::new()))
            }
            _ => {
                self.expect(false, format!("{handle} has no method {scalars:#x}"))?;
                unreachable!("it is wrong")
            }
        }
    }

    /// Implements the listener's call: takes the response to the latest request, and returns the next request.
    fn next(&self, inputs: &[Vec<u8>], outputs: &[usize]) -> io::Result<Returned> {
        let mut state = self.state();
        let is_right = word(&inputs[0], 8) as usize == inputs[1].len()
            && word(&inputs[0], 12) as usize == outputs[1];
        let is_context = !state.is_asked || word(&inputs[0], 0) == 7;
        if std::mem::take(&mut state.is_asked) {
            state.response = Some((word(&inputs[0], 4), inputs[1].clone()));
            self.changed.notify_all();
        }
        if !(is_right && is_context && outputs[0] == 16) {
            state
                .wrong
                .push(format!("the listener is called with {:?}", inputs[0]));
        }
        loop {
            if state.is_over {
                return Err(io::Error::from_raw_os_error(
                    rustix::io::Errno::PIPE.raw_os_error(),
                ));
            }
            if let Some((interface, scalars, bytes)) = state.request.take() {
                state.is_asked = true;
                return Ok((
                    0,
                    vec![words(&[7, interface, scalars, bytes.len() as u32]), bytes],
                ));
            }
            state = self.wait(state);
        }
    }

    /// Sends a request to the listener, and returns the buffers of its response, or its status.
    pub fn ask(
        &self,
        interface: u32,
        method: u32,
        inputs: &[&[u8]],
        outputs: &[usize],
    ) -> Result<Vec<Vec<u8>>, u32> {
        let mut bytes = Vec::new();
        for input in inputs {
            bytes.extend(words(&[input.len() as u32]));
            if !input.is_empty() {
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                bytes.extend_from_slice(input);
            }
        }
        bytes.extend(words(
            &outputs
                .iter()
                .map(|length| *length as u32)
                .collect::<Vec<_>>(),
        ));
        let scalars = method << 24 | (inputs.len() as u32) << 16 | (outputs.len() as u32) << 8;
        let (status, response) = self.ask_bytes(interface, scalars, bytes).ok_or(u32::MAX)?;
        if status != 0 {
            return Err(status);
        }
        let mut at = 0;
        Ok(outputs
            .iter()
            .map(|length| {
                assert_eq!(
                    word(&response, at) as usize,
                    *length,
                    "buffers have the lengths that were asked for"
                );
                at += 4;
                if *length > 0 {
                    at = at.next_multiple_of(8);
                }
                at += length;
                response[at - length..at].to_vec()
            })
            .collect())
    }

    /// Sends a request in bytes; returns `None` when the domain is over.
    pub fn ask_bytes(
        &self,
        interface: u32,
        scalars: u32,
        bytes: Vec<u8>,
    ) -> Option<(u32, Vec<u8>)> {
        let mut state = self.state();
        state.request = Some((interface, scalars, bytes));
        self.changed.notify_all();
        loop {
            if let Some(response) = state.response.take() {
                return Some(response);
            }
            if state.is_over {
                return None;
            }
            state = self.wait(state);
        }
    }

    /// Reads the program like a loader, and requests memory for it.
    fn load(&self) -> io::Result<()> {
        let expected = fs::read(&self.program)?;
        let read = (|| {
            let opened = self.ask(0, 0, &[&words(&[9, 8]), b"apps_std\0"], &[8, 8])?;
            let std = word(&opened[0], 0);
            let name = [MODULE.as_bytes(), b"\0"].concat();
            let lengths = words(&[18, 2, name.len() as u32, 3]);
            let file = self.ask(
                std,
                19,
                &[&lengths, b"ADSP_LIBRARY_PATH\0", b";\0", &name, b"rb\0"],
                &[4],
            )?;
            let file = word(&file[0], 0);
            let length = u64::from_le_bytes(
                self.ask(std, 10, &[&words(&[file])], &[8])?[0][..]
                    .try_into()
                    .unwrap(),
            );
            // Reads the header twice, like a loader that first checks the file type.
            self.ask(std, 4, &[&words(&[file, 20])], &[8, 20])?;
            self.ask(std, 9, &[&words(&[file, 0, 0])], &[])?;
            let mut found = Vec::new();
            loop {
                let part = self.ask(std, 4, &[&words(&[file, 4096])], &[8, 4096])?;
                found.extend_from_slice(&part[1][..word(&part[0], 0) as usize]);
                if word(&part[0], 4) != 0 {
                    break;
                }
            }
            self.ask(std, 3, &[&words(&[file])], &[])?;
            let opened = self.ask(0, 0, &[&words(&[9, 8]), b"apps_mem\0"], &[8, 8])?;
            let mem = word(&opened[0], 0);
            let wide = [0, 0x1000, 0, 1 << 20].map(u64::to_le_bytes).concat();
            let pages = self.ask(mem, 2, &[&wide], &[16])?;
            let (here, address) = (
                word(&pages[0], 0) | word(&pages[0], 4),
                u64::from(word(&pages[0], 8)),
            );
            if (here != 0) != self.takes_memory() {
                return Err(0);
            }
            self.ask(
                mem,
                3,
                &[&[address, 1 << 20].map(u64::to_le_bytes).concat()],
                &[],
            )?;
            Ok::<_, u32>((length, found, address))
        })();
        self.expect(
            read == Ok((expected.len() as u64, expected, PAGES)),
            "the listener has the program, and pages",
        )
    }

    /// Runs the program until it ends, and returns its status.
    fn serve(&self) -> io::Result<i32> {
        let path = format!(
            "/proc/self/fd/{}",
            self.state().buffer.expect("it was mapped")
        );
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let over = || {
            Err(io::Error::from_raw_os_error(
                rustix::io::Errno::CONNRESET.raw_os_error(),
            ))
        };
        let Runs::Emulator(emulator, program) = &self.runs else {
            let memory = SharedMemory::map(&file, self.state().mapped_bytes as usize)?;
            memory.set_field(field::DEVICE_VERSION, VERSION);
            let threads = if let Runs::Threads(threads) = self.runs {
                threads
            } else {
                1
            };
            memory.set_field(field::DEVICE_THREADS, threads);
            memory.set_field(field::DEVICE_MAGIC, DEVICE_MAGIC);
            loop {
                if self.state().is_over {
                    return over();
                }
                if memory.field(field::HOST_MAGIC) != HOST_MAGIC
                    && !matches!(self.runs, Runs::NothingForEver)
                {
                    return Ok(0);
                }
                if matches!(self.runs, Runs::Claims) {
                    memory.set_field(field::RESPONSE, memory.field(field::REQUEST));
                }
                thread::sleep(Duration::from_millis(1));
            }
        };
        let child = Command::new(emulator)
            .arg(program)
            .stdin(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.state().child = Some(child);
        loop {
            let mut state = self.state();
            if let Some(status) = state
                .child
                .as_mut()
                .and_then(|child| child.try_wait().transpose())
            {
                return status?.code().map_or_else(over, Ok);
            }
            drop(state);
            thread::sleep(Duration::from_millis(1));
        }
    }
}
