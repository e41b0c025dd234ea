//! Kernel calls with addresses in their arguments: those of the two FastRPC drivers, and of dma-buf heaps.
//!
//! A [`Call`] borrows the memory whose addresses it contains, and only this module can change a call. So making any
//! [`Call`] is safe.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

pub use super::structures::Structure;
use super::structures::{
    Capability, HeapAllocation, InitCreate, Invoke, InvokeArgument, MemMap, MemUnmap, Mmap, Munmap,
    VendorArgument, VendorCapability, VendorInit, VendorMemMap, VendorMemUnmap,
};
use crate::hexagon::shared::SharedMemory;

/// Makes calls of drivers.
pub trait Driver: Send + Sync {
    /// Opens a device node for reading. Phones allow this for every user, and calls need no more.
    fn open(&self, path: &Path) -> io::Result<OwnedFd>;

    /// Makes a call on `file`. Returns 0, or a status of the DSP.
    fn call(&self, file: BorrowedFd, call: &mut Call) -> io::Result<i32>;
}

/// The kernel of this machine.
pub struct System;

impl Driver for System {
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        File::open(path).map(OwnedFd::from)
    }

    fn call(&self, file: BorrowedFd, call: &mut Call) -> io::Result<i32> {
        // SAFETY: a `Call` combines a number of the kernel's headers with the structure of that number. It borrows all
        // memory that the structure points to, mutably if the kernel writes it. A driver without a call of this number
        // refuses it, since the number contains the driver's letter and the structure's size.
        #[allow(unsafe_code)]
        let status = unsafe { rustix::ioctl::ioctl(file, Pass(call)) }?;
        Ok(status)
    }
}

/// The driver that a node belongs to. It determines the calls that the node supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Linux' driver: `/dev/fastrpc-cdsp`, one node per DSP.
    Mainline,
    /// The vendor's driver in Android kernels: `/dev/adsprpc-smd`, one node for all DSPs.
    Vendor,
}

/// `enum fastrpc_proc_attr`: the domain runs unsigned programs.
const FASTRPC_MODE_UNSIGNED_MODULE: u8 = 1 << 3;
/// The vendor's `enum fastrpc_init_flags`: a domain for this process only.
const FASTRPC_INIT_CREATE: u32 = 1;
/// `enum fastrpc_map_flags`: mapped immediately and cached by the DSP. The device program maintains the cache.
const FASTRPC_MAP_FD: u32 = 2;
/// Flag with which the driver adds pages to the heap of a domain.
pub const ADD_PAGES: u32 = 0x1000;

impl Interface {
    /// Returns the name of the call that creates a domain.
    pub fn name_of_create(self) -> &'static str {
        match self {
            Self::Mainline => "FASTRPC_IOCTL_INIT_CREATE of an unsigned protection domain",
            Self::Vendor => "FASTRPC_IOCTL_INIT_ATTRS of an unsigned protection domain",
        }
    }
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Mainline => "the driver of Linux",
            Self::Vendor => "the vendor's driver",
        })
    }
}

/// A call and the memory whose addresses it contains.
pub struct Call<'a> {
    structure: Structure,
    /// Arguments that an invocation points to, for either driver.
    _arguments: (Vec<InvokeArgument>, Vec<VendorArgument>),
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> Call<'a> {
    fn new(structure: Structure) -> Self {
        Self {
            structure,
            _arguments: Default::default(),
            buffers: PhantomData,
        }
    }

    /// Begins a session of the DSP `domain`. The vendor's driver requires it before all other calls.
    pub fn session(domain: u32) -> Self {
        Self::new(Structure::VendorInfo(domain))
    }

    /// Makes the DSP call `method` of the object `handle`. The method reads `inputs` and writes `outputs`.
    pub fn invoke(
        interface: Interface,
        (handle, method): (u32, u32),
        inputs: &[&'a [u8]],
        outputs: &'a mut [&mut [u8]],
    ) -> Self {
        let scalars = (method & 0x1f) << 24
            | (inputs.len() as u32 & 0xff) << 16
            | (outputs.len() as u32 & 0xff) << 8;
        let address = |pointer: *const u8| pointer.expose_provenance() as u64;
        let inputs = inputs
            .iter()
            .map(|buffer| (address(buffer.as_ptr()), buffer.len() as u64));
        let outputs = outputs
            .iter_mut()
            .map(|buffer| (address(buffer.as_mut_ptr()), buffer.len() as u64));
        let buffers = inputs.chain(outputs);
        let (mut mainline, mut vendor) = (Vec::new(), Vec::new());
        let structure = match interface {
            Interface::Mainline => {
                mainline = buffers
                    .map(|(pointer, length)| InvokeArgument {
                        pointer,
                        length,
                        fd: -1,
                        attributes: 0,
                    })
                    .collect();
                Structure::Invoke(Invoke {
                    handle,
                    scalars,
                    arguments: address_of(&mainline),
                })
            }
            Interface::Vendor => {
                vendor = buffers
                    .map(|(pointer, length)| VendorArgument { pointer, length })
                    .collect();
                Structure::VendorInvoke(Invoke {
                    handle,
                    scalars,
                    arguments: address_of(&vendor),
                })
            }
        };
        Self {
            structure,
            _arguments: (mainline, vendor),
            buffers: PhantomData,
        }
    }

    /// Creates the protection domain of this process from the first `bytes` of `shell`, which `memory` maps.
    pub fn create(
        interface: Interface,
        shell: BorrowedFd<'a>,
        memory: &'a SharedMemory,
        bytes: u32,
    ) -> Self {
        assert!(
            bytes as usize <= memory.bytes(),
            "the shell is within its memory"
        );
        let (file, file_length, file_fd) = (memory.address(), bytes, shell.as_raw_fd());
        Self::new(match interface {
            Interface::Mainline => Structure::InitCreate(InitCreate {
                file_length,
                file_fd,
                attributes: FASTRPC_MODE_UNSIGNED_MODULE.into(),
                signature_length: 0,
                file,
            }),
            // The driver provides the domain's memory itself, and refuses any other.
            Interface::Vendor => Structure::VendorInit(VendorInit {
                flags: FASTRPC_INIT_CREATE,
                file,
                file_length,
                file_fd,
                memory: 0,
                memory_length: 0,
                memory_fd: -1,
                attributes: FASTRPC_MODE_UNSIGNED_MODULE.into(),
                signature_length: 0,
            }),
        })
    }

    /// Adds `size` bytes to the heap of the domain, from `memory` (a mapping of the given file) or from the driver.
    pub fn add_pages(
        interface: Interface,
        flags: u32,
        size: u64,
        memory: Option<(BorrowedFd<'a>, &'a SharedMemory)>,
    ) -> Self {
        let (fd, address_in) = memory.map_or((-1, 0), |(file, memory)| {
            assert!(
                size <= memory.bytes() as u64,
                "the pages are within their memory"
            );
            (file.as_raw_fd(), memory.address())
        });
        let map = Mmap {
            fd,
            flags,
            address_in,
            size,
            address_out: 0,
        };
        Self::new(match interface {
            Interface::Mainline => Structure::Mmap(map),
            Interface::Vendor => Structure::VendorMmap(map),
        })
    }

    /// Removes pages that [`Self::add_pages`] added.
    pub fn remove_pages(interface: Interface, address: u64, size: u64) -> Self {
        let unmap = Munmap { address, size };
        Self::new(match interface {
            Interface::Mainline => Structure::Munmap(unmap),
            Interface::Vendor => Structure::VendorMunmap(unmap),
        })
    }

    /// Maps `memory`, a mapping of `file`, for the DSP.
    pub fn map(interface: Interface, file: BorrowedFd<'a>, memory: &'a SharedMemory) -> Self {
        let (fd, address_in, length) = (file.as_raw_fd(), memory.address(), memory.bytes() as u64);
        let (version, offset, flags, address_out, attributes, reserved) =
            (0, 0, FASTRPC_MAP_FD, 0, 0, [0; 4]);
        Self::new(match interface {
            Interface::Mainline => Structure::MemMap(MemMap {
                version,
                fd,
                offset,
                flags,
                address_in,
                length,
                address_out,
                attributes,
                reserved,
            }),
            Interface::Vendor => Structure::VendorMemMap(VendorMemMap {
                version,
                unused: 0,
                fd,
                offset,
                flags,
                attributes,
                address_in,
                length,
                address_out,
                reserved,
            }),
        })
    }

    /// Unmaps memory that [`Self::map`] mapped at `address` of the DSP.
    pub fn unmap(interface: Interface, file: BorrowedFd<'a>, address: u64, length: u64) -> Self {
        let (version, fd) = (0, file.as_raw_fd());
        Self::new(match interface {
            Interface::Mainline => Structure::MemUnmap(MemUnmap {
                version,
                fd,
                address,
                length,
                reserved: [0; 5],
            }),
            Interface::Vendor => Structure::VendorMemUnmap(VendorMemUnmap {
                version,
                unused: 0,
                fd,
                unused_after_fd: 0,
                address,
                length,
                reserved: [0; 4],
            }),
        })
    }

    /// Queries an attribute of the DSP `domain`.
    pub fn capability(interface: Interface, domain: u32, attribute: u32) -> Self {
        let capability = 0;
        Self::new(match interface {
            Interface::Mainline => Structure::Capability(Capability {
                domain,
                attribute,
                capability,
                reserved: [0; 4],
            }),
            Interface::Vendor => Structure::VendorCapability(VendorCapability {
                domain,
                attribute,
                capability,
            }),
        })
    }

    /// Allocates a dma-buf from a heap.
    fn allocate(length: u64) -> Self {
        let fd_flags = (rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC).bits();
        Self::new(Structure::HeapAllocation(HeapAllocation {
            length,
            fd: 0,
            fd_flags,
            heap_flags: 0,
        }))
    }

    /// Returns the call's result: the DSP address of mapped memory, or the queried number; 0 for other calls.
    pub fn returned(&self) -> u64 {
        match self.structure {
            Structure::Mmap(map) | Structure::VendorMmap(map) => map.address_out,
            Structure::MemMap(map) => map.address_out,
            Structure::VendorMemMap(map) => map.address_out,
            Structure::Capability(found) => found.capability.into(),
            Structure::VendorCapability(found) => found.capability.into(),
            Structure::VendorInfo(found) => found.into(),
            _ => 0,
        }
    }

    /// Returns the structure that is passed to the kernel, including results.
    #[cfg(test)]
    pub fn structure(&self) -> Structure {
        self.structure
    }

    /// Sets the structure, including results.
    #[cfg(test)]
    pub fn set_structure(&mut self, structure: Structure) {
        self.structure = structure;
    }
}

/// Returns the address of arguments, or 0 if there are none.
fn address_of<T>(arguments: &[T]) -> u64 {
    if arguments.is_empty() {
        0
    } else {
        arguments.as_ptr().expose_provenance() as u64
    }
}

/// Adapts a call for rustix.
struct Pass<'a, 'b>(&'a mut Call<'b>);

// SAFETY: the number is that of the structure, which the kernel reads and writes.
#[allow(unsafe_code)]
unsafe impl Ioctl for Pass<'_, '_> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.0.structure.number() as Opcode
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        self.0.structure.pointer()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(output)
    }
}

/// Allocates a dma-buf of `bytes` from `heap`.
pub fn allocate(driver: &dyn Driver, heap: BorrowedFd, bytes: usize) -> io::Result<File> {
    let mut call = Call::allocate(bytes as u64);
    driver.call(heap, &mut call)?;
    let Structure::HeapAllocation(HeapAllocation { fd, .. }) = call.structure else {
        unreachable!("it was one")
    };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd > 2);
    let fd =
        fd.ok_or_else(|| io::Error::other("it returned a descriptor that can't be a new one"))?;
    // SAFETY: the kernel has just created this descriptor, and no other code has its number.
    #[allow(unsafe_code)]
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_call_of_a_file_without_these_calls_is_the_kernels_error() {
        let file = tempfile::tempfile().unwrap();
        for interface in [Interface::Mainline, Interface::Vendor] {
            let error = System
                .call(file.as_fd(), &mut Call::capability(interface, 3, 6))
                .unwrap_err();
            assert_eq!(
                error.raw_os_error(),
                Some(rustix::io::Errno::NOTTY.raw_os_error()),
                "{error}"
            );
        }
        let error = allocate(&System, file.as_fd(), 4096).unwrap_err();
        assert_eq!(
            error.raw_os_error(),
            Some(rustix::io::Errno::NOTTY.raw_os_error()),
            "{error}"
        );
        assert!(System.open(Path::new("/nowhere/fastrpc-cdsp")).is_err());
    }

    #[test]
    fn nodes_are_opened_for_reading_alone() {
        let node = System.open(Path::new("/dev/null")).unwrap();
        let flags = rustix::fs::fcntl_getfl(node).unwrap();
        assert_eq!(
            flags & rustix::fs::OFlags::RWMODE,
            rustix::fs::OFlags::RDONLY
        );
    }
}
