//! Calls of the kernel: those of FastRPC's driver (`include/uapi/misc/fastrpc.h` of Linux) and of dma-buf heaps
//! (`include/uapi/linux/dma-heap.h`), the only ones that have addresses in them.
//!
//! A [`Call`] borrows the memory whose addresses it has, and nobody outside of this module can change one. So whoever holds a
//! [`Call`] may have it made.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

use crate::hexagon::shared::SharedMemory;

/// Who makes calls.
pub trait Driver: Send + Sync {
    /// Opens a device node, for reading, which is what phones let everybody do and all that calls need.
    fn open(&self, path: &Path) -> io::Result<OwnedFd>;

    /// Makes a call of `file`, and returns what it returns: 0, or a status of the DSP.
    fn call(&self, file: BorrowedFd, call: &mut Call) -> io::Result<i32>;
}

/// The kernel of this machine.
pub struct System;

impl Driver for System {
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        File::open(path).map(OwnedFd::from)
    }

    fn call(&self, file: BorrowedFd, call: &mut Call) -> io::Result<i32> {
        // SAFETY: a `Call` is a number of the kernel's headers with the structure of that number, and what this points at is borrowed
        // by it, for writing where the kernel writes. A driver that has no call of this number refuses it: the number has the letter
        // of the driver and the size of the structure in it.
        #[allow(unsafe_code)]
        let status = unsafe { rustix::ioctl::ioctl(file, Pass(call)) }?;
        Ok(status)
    }
}

/// `struct fastrpc_invoke_args`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvokeArgument {
    pub pointer: u64,
    pub length: u64,
    pub fd: i32,
    pub attributes: u32,
}

/// `struct fastrpc_invoke`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invoke {
    pub handle: u32,
    pub scalars: u32,
    pub arguments: u64,
}

/// `struct fastrpc_init_create`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitCreate {
    pub file_length: u32,
    pub file_fd: i32,
    pub attributes: u32,
    pub signature_length: u32,
    pub file: u64,
}

/// `struct fastrpc_req_mmap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmap {
    pub fd: i32,
    pub flags: u32,
    pub address_in: u64,
    pub size: u64,
    pub address_out: u64,
}

/// `struct fastrpc_req_munmap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Munmap {
    pub address: u64,
    pub size: u64,
}

/// `struct fastrpc_mem_map`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemMap {
    pub version: i32,
    pub fd: i32,
    pub offset: i32,
    pub flags: u32,
    pub address_in: u64,
    pub length: u64,
    pub address_out: u64,
    pub attributes: i32,
    pub reserved: [i32; 4],
}

/// `struct fastrpc_mem_unmap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemUnmap {
    pub version: i32,
    pub fd: i32,
    pub address: u64,
    pub length: u64,
    pub reserved: [i32; 5],
}

/// `struct fastrpc_ioctl_capability`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    pub domain: u32,
    pub attribute: u32,
    pub capability: u32,
    pub reserved: [u32; 4],
}

/// `struct dma_heap_allocation_data`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapAllocation {
    pub length: u64,
    pub fd: u32,
    pub fd_flags: u32,
    pub heap_flags: u64,
}

/// `enum fastrpc_proc_attr`: programs that nobody has signed.
pub const FASTRPC_MODE_UNSIGNED_MODULE: u32 = 1 << 3;
/// `enum fastrpc_map_flags`: mapped when it is asked for, cached by the DSP, whose program cares for that.
pub const FASTRPC_MAP_FD: u32 = 2;
/// The flag with which the driver adds pages to the heap of a domain.
pub const ADD_PAGES: u32 = 0x1000;

/// `_IOWR(letter, number, T)` of Linux' `ioctl.h`, as all architectures have it that have these drivers.
const fn read_and_write<T>(letter: u8, number: u8) -> u32 {
    (3 << 30) | ((size_of::<T>() as u32) << 16) | ((letter as u32) << 8) | number as u32
}

/// What a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    Invoke(Invoke),
    InitCreate(InitCreate),
    Mmap(Mmap),
    Munmap(Munmap),
    MemMap(MemMap),
    MemUnmap(MemUnmap),
    Capability(Capability),
    HeapAllocation(HeapAllocation),
}

/// A call, with the memory that it has the addresses of.
pub struct Call<'a> {
    structure: Structure,
    /// What an invocation points at.
    _arguments: Vec<InvokeArgument>,
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> Call<'a> {
    fn new(structure: Structure) -> Self {
        Self { structure, _arguments: Vec::new(), buffers: PhantomData }
    }

    /// Has the DSP call `method` of what `handle` is: it reads `inputs` and writes `outputs`.
    pub fn invoke(handle: u32, method: u32, inputs: &[&'a [u8]], outputs: &'a mut [&mut [u8]]) -> Self {
        let scalars = (method & 0x1f) << 24 | (inputs.len() as u32 & 0xff) << 16 | (outputs.len() as u32 & 0xff) << 8;
        let argument = |pointer: *const u8, length: usize| InvokeArgument {
            pointer: pointer.expose_provenance() as u64,
            length: length as u64,
            fd: -1,
            attributes: 0,
        };
        let inputs = inputs.iter().map(|buffer| argument(buffer.as_ptr(), buffer.len()));
        let outputs = outputs.iter_mut().map(|buffer| argument(buffer.as_mut_ptr().cast_const(), buffer.len()));
        let arguments: Vec<_> = inputs.chain(outputs).collect();
        let pointer = if arguments.is_empty() { 0 } else { arguments.as_ptr().expose_provenance() as u64 };
        let invoke = Invoke { handle, scalars, arguments: pointer };
        Self { structure: Structure::Invoke(invoke), _arguments: arguments, buffers: PhantomData }
    }

    /// Creates the protection domain of this process, from the first `bytes` of `shell`, which `memory` maps.
    pub fn create(shell: BorrowedFd<'a>, memory: &'a SharedMemory, bytes: u32) -> Self {
        assert!(bytes as usize <= memory.bytes(), "the shell is within its memory");
        Self::new(Structure::InitCreate(InitCreate {
            file_length: bytes,
            file_fd: shell.as_raw_fd(),
            attributes: FASTRPC_MODE_UNSIGNED_MODULE,
            signature_length: 0,
            file: memory.address(),
        }))
    }

    /// Adds `size` bytes to the heap of the domain.
    pub fn add_pages(flags: u32, size: u64) -> Self {
        Self::new(Structure::Mmap(Mmap { fd: -1, flags, address_in: 0, size, address_out: 0 }))
    }

    /// Takes back what [`Self::add_pages`] added.
    pub fn remove_pages(address: u64, size: u64) -> Self {
        Self::new(Structure::Munmap(Munmap { address, size }))
    }

    /// Maps `memory`, which is `file`, for the DSP.
    pub fn map(file: BorrowedFd<'a>, memory: &'a SharedMemory) -> Self {
        Self::new(Structure::MemMap(MemMap {
            version: 0,
            fd: file.as_raw_fd(),
            offset: 0,
            flags: FASTRPC_MAP_FD,
            address_in: memory.address(),
            length: memory.bytes() as u64,
            address_out: 0,
            attributes: 0,
            reserved: [0; 4],
        }))
    }

    /// Takes back what [`Self::map`] mapped at `address` of the DSP.
    pub fn unmap(file: BorrowedFd<'a>, address: u64, length: u64) -> Self {
        let fd = file.as_raw_fd();
        Self::new(Structure::MemUnmap(MemUnmap { version: 0, fd, address, length, reserved: [0; 5] }))
    }

    /// Asks for an attribute of the DSP `domain`.
    pub fn capability(domain: u32, attribute: u32) -> Self {
        Self::new(Structure::Capability(Capability { domain, attribute, capability: 0, reserved: [0; 4] }))
    }

    /// Allocates a dma-buf of a heap.
    fn allocate(length: u64) -> Self {
        let fd_flags = (rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC).bits();
        Self::new(Structure::HeapAllocation(HeapAllocation { length, fd: 0, fd_flags, heap_flags: 0 }))
    }

    /// The number of the call.
    pub fn number(&self) -> u32 {
        match self.structure {
            Structure::Invoke(_) => read_and_write::<Invoke>(b'R', 3),
            Structure::InitCreate(_) => read_and_write::<InitCreate>(b'R', 5),
            Structure::Mmap(_) => read_and_write::<Mmap>(b'R', 6),
            Structure::Munmap(_) => read_and_write::<Munmap>(b'R', 7),
            Structure::MemMap(_) => read_and_write::<MemMap>(b'R', 10),
            Structure::MemUnmap(_) => read_and_write::<MemUnmap>(b'R', 11),
            Structure::Capability(_) => read_and_write::<Capability>(b'R', 13),
            Structure::HeapAllocation(_) => read_and_write::<HeapAllocation>(b'H', 0),
        }
    }

    /// What is handed over, and what came back.
    pub fn structure(&self) -> Structure {
        self.structure
    }

    /// Sets what comes back.
    #[cfg(test)]
    pub fn set_structure(&mut self, structure: Structure) {
        self.structure = structure;
    }

    fn pointer(&mut self) -> *mut std::ffi::c_void {
        match &mut self.structure {
            Structure::Invoke(invoke) => std::ptr::from_mut(invoke).cast(),
            Structure::InitCreate(create) => std::ptr::from_mut(create).cast(),
            Structure::Mmap(map) => std::ptr::from_mut(map).cast(),
            Structure::Munmap(unmap) => std::ptr::from_mut(unmap).cast(),
            Structure::MemMap(map) => std::ptr::from_mut(map).cast(),
            Structure::MemUnmap(unmap) => std::ptr::from_mut(unmap).cast(),
            Structure::Capability(capability) => std::ptr::from_mut(capability).cast(),
            Structure::HeapAllocation(allocation) => std::ptr::from_mut(allocation).cast(),
        }
    }
}

/// A call as rustix makes it.
struct Pass<'a, 'b>(&'a mut Call<'b>);

// SAFETY: the number is that of the structure, which the kernel reads and writes.
#[allow(unsafe_code)]
unsafe impl Ioctl for Pass<'_, '_> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.0.number() as Opcode
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        self.0.pointer()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<i32> {
        Ok(output)
    }
}

/// Allocates a dma-buf of `bytes` from `heap`.
pub fn allocate(driver: &dyn Driver, heap: BorrowedFd, bytes: usize) -> io::Result<File> {
    let mut call = Call::allocate(bytes as u64);
    driver.call(heap, &mut call)?;
    let Structure::HeapAllocation(HeapAllocation { fd, .. }) = call.structure else { unreachable!("it was one") };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd > 2);
    let fd = fd.ok_or_else(|| io::Error::other("it returned a descriptor that can't be a new one"))?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has its number.
    #[allow(unsafe_code)]
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::os::fd::AsFd;

    use super::*;

    /// As gcc computes them from the headers of Linux 6.12.
    #[test]
    fn numbers_and_structures_are_those_of_the_kernels_headers() {
        let numbers = [
            (read_and_write::<Invoke>(b'R', 3), 0xc010_5203),
            (read_and_write::<InitCreate>(b'R', 5), 0xc018_5205),
            (read_and_write::<Mmap>(b'R', 6), 0xc020_5206),
            (read_and_write::<Munmap>(b'R', 7), 0xc010_5207),
            (read_and_write::<MemMap>(b'R', 10), 0xc040_520a),
            (read_and_write::<MemUnmap>(b'R', 11), 0xc030_520b),
            (read_and_write::<Capability>(b'R', 13), 0xc01c_520d),
            (read_and_write::<HeapAllocation>(b'H', 0), 0xc018_4800),
        ];
        for (number, golden) in numbers {
            assert_eq!(number, golden, "{number:#x}, expected {golden:#x}");
        }
        assert_eq!(size_of::<InvokeArgument>(), 24);
        assert_eq!([offset_of!(InvokeArgument, length), offset_of!(InvokeArgument, fd)], [8, 16]);
        assert_eq!([offset_of!(Invoke, scalars), offset_of!(Invoke, arguments)], [4, 8]);
        assert_eq!([offset_of!(InitCreate, file_fd), offset_of!(InitCreate, file)], [4, 16]);
        assert_eq!([offset_of!(Mmap, address_in), offset_of!(Mmap, address_out)], [8, 24]);
        assert_eq!([offset_of!(MemMap, address_in), offset_of!(MemMap, address_out)], [16, 32]);
        assert_eq!([offset_of!(MemMap, flags), offset_of!(MemMap, attributes)], [12, 40]);
        assert_eq!([offset_of!(MemUnmap, address), offset_of!(MemUnmap, length)], [8, 16]);
        assert_eq!([offset_of!(Capability, attribute), offset_of!(Capability, capability)], [4, 8]);
        assert_eq!([offset_of!(HeapAllocation, fd), offset_of!(HeapAllocation, heap_flags)], [8, 16]);
    }

    #[test]
    fn a_call_of_a_file_without_these_calls_is_the_kernels_error() {
        let file = tempfile::tempfile().unwrap();
        let error = System.call(file.as_fd(), &mut Call::capability(3, 6)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTTY.raw_os_error()), "{error}");
        let error = allocate(&System, file.as_fd(), 4096).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTTY.raw_os_error()), "{error}");
        assert!(System.open(Path::new("/nowhere/fastrpc-cdsp")).is_err());
    }

    #[test]
    fn nodes_are_opened_for_reading_alone() {
        let node = System.open(Path::new("/dev/null")).unwrap();
        let flags = rustix::fs::fcntl_getfl(node).unwrap();
        assert_eq!(flags & rustix::fs::OFlags::RWMODE, rustix::fs::OFlags::RDONLY);
    }
}
