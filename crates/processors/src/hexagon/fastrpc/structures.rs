//! Kernel calls by number and structure: those of Linux' FastRPC driver (`include/uapi/misc/fastrpc.h`), of the
//! vendor's driver in Android kernels (its `adsprpc_shared.h`; these have `Vendor` in their names here), and of dma-buf
//! heaps (`include/uapi/linux/dma-heap.h`). The layouts are those of a 64-bit process.

/// `struct fastrpc_invoke_args`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvokeArgument {
    pub pointer: u64,
    pub length: u64,
    pub fd: i32,
    pub attributes: u32,
}

/// `struct fastrpc_invoke`, and the vendor's `struct fastrpc_ioctl_invoke`, whose arguments are [`VendorArgument`]s.
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

/// `struct fastrpc_req_mmap`, and the vendor's `struct fastrpc_ioctl_mmap_64`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmap {
    pub fd: i32,
    pub flags: u32,
    pub address_in: u64,
    pub size: u64,
    pub address_out: u64,
}

/// `struct fastrpc_req_munmap`, and the vendor's `struct fastrpc_ioctl_munmap_64`.
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

/// The vendor's `union remote_arg`, for a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorArgument {
    pub pointer: u64,
    pub length: u64,
}

/// The vendor's `struct fastrpc_ioctl_init_attrs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorInit {
    pub flags: u32,
    pub file: u64,
    pub file_length: u32,
    pub file_fd: i32,
    pub memory: u64,
    pub memory_length: u32,
    pub memory_fd: i32,
    pub attributes: i32,
    pub signature_length: u32,
}

/// The vendor's `struct fastrpc_ioctl_mem_map`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorMemMap {
    pub version: i32,
    /// Padding of C, so that the following field is aligned to 8 bytes.
    pub unused: u32,
    pub fd: i32,
    pub offset: i32,
    pub flags: u32,
    pub attributes: i32,
    pub address_in: u64,
    pub length: u64,
    pub address_out: u64,
    pub reserved: [i32; 4],
}

/// The vendor's `struct fastrpc_ioctl_mem_unmap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorMemUnmap {
    pub version: i32,
    pub unused: u32,
    pub fd: i32,
    pub unused_after_fd: u32,
    pub address: u64,
    pub length: u64,
    pub reserved: [i32; 4],
}

/// The vendor's `struct fastrpc_ioctl_capability`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorCapability {
    pub domain: u32,
    pub attribute: u32,
    pub capability: u32,
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

/// Returns `_IOWR(letter, number, T)` of Linux' `ioctl.h`. It is the same on all architectures that have these drivers.
const fn read_and_write<T>(letter: u8, number: u8) -> u32 {
    (3 << 30) | ((size_of::<T>() as u32) << 16) | ((letter as u32) << 8) | number as u32
}

/// Declares [`Structure`] from calls: the variant's name, the structure, and the letter and number in the headers.
macro_rules! calls {
    ($($name:ident($structure:ty) = $letter:literal $number:literal,)*) => {
        /// A call: its structure, tagged with its number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Structure {
            $($name($structure),)*
        }

        impl Structure {
            /// Returns the number of the call.
            pub fn number(&self) -> u32 {
                match self {
                    $(Self::$name(_) => read_and_write::<$structure>($letter, $number),)*
                }
            }

            /// Returns a pointer to the structure.
            pub fn pointer(&mut self) -> *mut std::ffi::c_void {
                match self {
                    $(Self::$name(structure) => std::ptr::from_mut(structure).cast(),)*
                }
            }
        }
    };
}

calls! {
    HeapAllocation(HeapAllocation) = b'H' 0,
    // FASTRPC_IOCTL_… of Linux: INVOKE, INIT_CREATE, MMAP, MUNMAP, MEM_MAP, MEM_UNMAP, GET_DSP_INFO.
    Invoke(Invoke) = b'R' 3,
    InitCreate(InitCreate) = b'R' 5,
    Mmap(Mmap) = b'R' 6,
    Munmap(Munmap) = b'R' 7,
    MemMap(MemMap) = b'R' 10,
    MemUnmap(MemUnmap) = b'R' 11,
    Capability(Capability) = b'R' 13,
    // FASTRPC_IOCTL_… of the vendor: INVOKE, GETINFO, INIT_ATTRS, MMAP_64, MUNMAP_64, GET_DSP_INFO, MEM_MAP, MEM_UNMAP.
    VendorInvoke(Invoke) = b'R' 1,
    VendorInfo(u32) = b'R' 8,
    VendorInit(VendorInit) = b'R' 10,
    VendorMmap(Mmap) = b'R' 14,
    VendorMunmap(Munmap) = b'R' 15,
    VendorCapability(VendorCapability) = b'R' 17,
    VendorMemMap(VendorMemMap) = b'R' 19,
    VendorMemUnmap(VendorMemUnmap) = b'R' 20,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Expected values: computed by gcc from the headers of Linux 6.12.
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
        assert_eq!(
            [
                offset_of!(InvokeArgument, length),
                offset_of!(InvokeArgument, fd)
            ],
            [8, 16]
        );
        assert_eq!(
            [offset_of!(Invoke, scalars), offset_of!(Invoke, arguments)],
            [4, 8]
        );
        assert_eq!(
            [
                offset_of!(InitCreate, file_fd),
                offset_of!(InitCreate, file)
            ],
            [4, 16]
        );
        assert_eq!(
            [offset_of!(Mmap, address_in), offset_of!(Mmap, address_out)],
            [8, 24]
        );
        assert_eq!(
            [
                offset_of!(MemMap, address_in),
                offset_of!(MemMap, address_out)
            ],
            [16, 32]
        );
        assert_eq!(
            [offset_of!(MemMap, flags), offset_of!(MemMap, attributes)],
            [12, 40]
        );
        assert_eq!(
            [offset_of!(MemUnmap, address), offset_of!(MemUnmap, length)],
            [8, 16]
        );
        assert_eq!(
            [
                offset_of!(Capability, attribute),
                offset_of!(Capability, capability)
            ],
            [4, 8]
        );
        assert_eq!(
            [
                offset_of!(HeapAllocation, fd),
                offset_of!(HeapAllocation, heap_flags)
            ],
            [8, 16]
        );
    }

    /// Expected values: computed by gcc from the vendor's header of 2022.
    #[test]
    fn numbers_and_structures_are_those_of_the_vendors_header() {
        let init = VendorInit {
            flags: 0,
            file: 0,
            file_length: 0,
            file_fd: 0,
            memory: 0,
            memory_length: 0,
            memory_fd: 0,
            attributes: 0,
            signature_length: 0,
        };
        let invoke = Invoke {
            handle: 0,
            scalars: 0,
            arguments: 0,
        };
        let map = Mmap {
            fd: 0,
            flags: 0,
            address_in: 0,
            size: 0,
            address_out: 0,
        };
        let calls = [
            (Structure::VendorInvoke(invoke), 0xc010_5201),
            (Structure::VendorInfo(3), 0xc004_5208),
            (Structure::VendorInit(init), 0xc030_520a),
            (Structure::VendorMmap(map), 0xc020_520e),
            (
                Structure::VendorMunmap(Munmap {
                    address: 0,
                    size: 0,
                }),
                0xc010_520f,
            ),
            (
                Structure::VendorCapability(VendorCapability {
                    domain: 0,
                    attribute: 0,
                    capability: 0,
                }),
                0xc00c_5211,
            ),
        ];
        for (call, golden) in calls {
            assert_eq!(call.number(), golden, "{call:?}, expected {golden:#x}");
        }
        assert_eq!(read_and_write::<VendorMemMap>(b'R', 19), 0xc040_5213);
        assert_eq!(read_and_write::<VendorMemUnmap>(b'R', 20), 0xc030_5214);
        assert_eq!(
            [
                size_of::<VendorArgument>(),
                offset_of!(VendorArgument, length)
            ],
            [16, 8]
        );
        assert_eq!(
            [
                offset_of!(VendorInit, file),
                offset_of!(VendorInit, file_length)
            ],
            [8, 16]
        );
        assert_eq!(
            [
                offset_of!(VendorInit, file_fd),
                offset_of!(VendorInit, memory)
            ],
            [20, 24]
        );
        assert_eq!(
            [
                offset_of!(VendorInit, memory_length),
                offset_of!(VendorInit, memory_fd)
            ],
            [32, 36]
        );
        assert_eq!(
            [
                offset_of!(VendorInit, attributes),
                offset_of!(VendorInit, signature_length)
            ],
            [40, 44]
        );
        assert_eq!(
            [
                offset_of!(VendorMemMap, fd),
                offset_of!(VendorMemMap, offset)
            ],
            [8, 12]
        );
        assert_eq!(
            [
                offset_of!(VendorMemMap, flags),
                offset_of!(VendorMemMap, attributes)
            ],
            [16, 20]
        );
        assert_eq!(
            [
                offset_of!(VendorMemMap, address_in),
                offset_of!(VendorMemMap, length)
            ],
            [24, 32]
        );
        assert_eq!(offset_of!(VendorMemMap, address_out), 40);
        assert_eq!(
            [
                offset_of!(VendorMemUnmap, fd),
                offset_of!(VendorMemUnmap, address)
            ],
            [8, 16]
        );
        assert_eq!(offset_of!(VendorMemUnmap, length), 24);
        assert_eq!(
            [
                offset_of!(VendorCapability, attribute),
                offset_of!(VendorCapability, capability)
            ],
            [4, 8]
        );
    }
}
