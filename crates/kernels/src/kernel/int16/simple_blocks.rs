//! Blocks of 32 unpacked in registers.

use triad_blocks::bits_at;
use triad_blocks::simple::{Block, ELEMENTS};

use super::vector::Vector;

/// Bytes of the fifth bits of all elements.
const FIFTH: usize = 4;

/// What [`Block::unpack`] does for numbers of five bits, of which the fifth ones begin at byte `fifth`: LLVM shifts them one by
/// one.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) unsafe fn five_bits<B: Block, V: Vector>(
    block: &[u8],
    fifth: usize,
    integers: &mut [i16; ELEMENTS],
) -> [u16; 2] {
    assert_eq!(block.len(), B::BYTES, "bytes of a block");
    let bits = u32::from_le_bytes(
        *block[fifth..]
            .first_chunk()
            .expect("a bit for each element"),
    );
    let four: &[u8; ELEMENTS / 2] = block[fifth + FIFTH..]
        .first_chunk()
        .expect("four bits for each element");
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
