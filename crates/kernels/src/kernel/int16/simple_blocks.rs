//! Unpacks blocks of 32 in registers.

use triad_blocks::bits_at;
use triad_blocks::simple::{Block, ELEMENTS};

use super::vector::Vector;

/// Bytes of the fifth bits of all elements.
const FIFTH: usize = 4;

/// Does the same as [`Block::unpack`] for numbers of five bits, the fifth ones at byte `fifth`. In plain code, LLVM
/// shifts the fifth bits one by one.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) unsafe fn five_bits<B: Block, V: Vector>(
    block: &[u8],
    fifth: usize,
    integers: &mut [i16; ELEMENTS],
) -> [u16; 2] {
    assert_eq!(block.len(), B::BYTES, "expected the bytes of a block");
    let bits = u32::from_le_bytes(
        *block[fifth..]
            .first_chunk()
            .expect("a block has a bit for each element"),
    );
    let four: &[u8; ELEMENTS / 2] = block[fifth + FIFTH..]
        .first_chunk()
        .expect("a block has four bits for each element");
    // SAFETY: as the caller promises; sixteen bytes, and 32 numbers.
    unsafe {
        let stored_more = V::splat_i16(if B::HAS_MINIMUM { 0 } else { 16 });
        for register in 0..ELEMENTS / (2 * V::LANES) {
            let number = V::or(
                V::four_bits(four.as_ptr(), register),
                V::fifth_bits(bits, register),
            );
            let to = integers.as_mut_ptr().add(register * 2 * V::LANES);
            V::store_integers(V::subtract_i16(number, stored_more), to);
        }
    }
    [
        bits_at(block, 0),
        if B::HAS_MINIMUM { bits_at(block, 2) } else { 0 },
    ]
}

/// Does the same as [`Block::unpack`] for numbers of a table, whose indices begin at a byte. In plain code, LLVM looks
/// them up one by one.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) unsafe fn from_table<B: Block, V: Vector>(
    block: &[u8],
    (table, indices): (&[i8; 16], usize),
    integers: &mut [i16; ELEMENTS],
) -> [u16; 2] {
    assert_eq!(block.len(), B::BYTES, "expected the bytes of a block");
    let indices: &[u8; ELEMENTS / 2] = block[indices..]
        .first_chunk()
        .expect("a block has four bits for each element");
    for register in 0..ELEMENTS / (2 * V::LANES) {
        // SAFETY: as the caller promises; sixteen bytes, and 32 numbers.
        unsafe {
            let to = integers.as_mut_ptr().add(register * 2 * V::LANES);
            V::store_integers(V::look_up(table, indices.as_ptr(), register), to);
        }
    }
    [B::scale_bits(block), 0]
}
