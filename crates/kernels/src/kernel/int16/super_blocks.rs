//! Unpacks super-blocks in registers: each register of `scale · q` is multiplied by all rows before the next one is
//! unpacked.

use triad_blocks::BlockFormat;
use triad_blocks::super_block::{IQ4_XS, PARTS, SUPER_BLOCK, SuperBlock};

use super::vector::Vector;

/// Numbers per run; registers with the same index in all runs add to the same sums.
const RUN: usize = 32;
/// Bytes of the two-bit numbers of half a super-block.
const HALF: usize = 32;

/// Returns whether this is faster than unpacking to memory. It is not for numbers of four and five bits, nor, with
/// 512-bit registers, for those of six: LLVM unpacks these well.
#[inline(always)]
pub(super) const fn is_faster<B: SuperBlock, V: Vector>() -> bool {
    match B::FORMAT {
        BlockFormat::Q2_K | BlockFormat::Q3_K | BlockFormat::IQ4_XS => true,
        BlockFormat::Q6_K => V::LANES < PARTS,
        _ => false,
    }
}

/// The rows that a super-block is multiplied by, and their exact sums.
struct Rows<'a, V: Vector, const ROWS: usize> {
    x: [&'a [i16; SUPER_BLOCK]; ROWS],
    sums: [V::Sixteen<V::Exact>; ROWS],
    scales: &'a [i16; PARTS],
}

/// Computes the exact sums of the products of all rows with a super-block of the layout `B`, whose parts have these
/// scales. Neighbouring pairs are added together: numbers 2 i and 2 i + 1 of each 32 go to sum i.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) unsafe fn products<B: SuperBlock, V: Vector, const ROWS: usize>(
    block: &[u8],
    scales: &[i16; PARTS],
    x: [&[i16; SUPER_BLOCK]; ROWS],
) -> [V::Sixteen<V::Exact>; ROWS] {
    assert_eq!(block.len(), B::BYTES, "expected the bytes of a super-block");
    // SAFETY: as the caller promises; the block has the bytes of its format.
    unsafe {
        let mut rows = Rows::<V, ROWS> {
            x,
            sums: [V::sixteen(V::begin(V::splat_i16(0))); ROWS],
            scales,
        };
        for register in 0..PARTS / V::LANES {
            match B::FORMAT {
                BlockFormat::Q2_K => rows.q2(block, register),
                BlockFormat::Q3_K => rows.q3(block, register),
                BlockFormat::IQ4_XS => rows.iq4(block, register),
                _ => rows.q6(block, register),
            }
        }
        rows.sums
    }
}

/// The layouts are those of [`SuperBlock::unpack`], which writes the same numbers to memory.
// SAFETY (of all functions): as `products` says; a register is one of those of 32 numbers, and so are its bytes.
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
impl<V: Vector, const ROWS: usize> Rows<'_, V, ROWS> {
    /// Adds the products of the numbers in a register of a run, after multiplying them by the scales of its two parts.
    #[inline(always)]
    unsafe fn add_scaled(&mut self, run: usize, register: usize, numbers: V::Integers) {
        let scales = V::splat_halves(self.scales.as_ptr().add(2 * run), register);
        let integers = V::multiply_i16(numbers, scales);
        for (sums, x) in self.sums.iter_mut().zip(self.x) {
            let x = V::load(x.as_ptr().add(run * RUN + register * 2 * V::LANES));
            let sum = &mut sums.as_mut()[register];
            *sum = V::add_products(*sum, integers, x);
        }
    }

    /// Loads a register of bytes from `first` on.
    #[inline(always)]
    unsafe fn bytes(block: &[u8], first: usize, register: usize) -> V::Integers {
        V::widen_unsigned(block.as_ptr().add(first + register * 2 * V::LANES))
    }

    /// Shifts numbers right, or left by a negative count, and masks them.
    #[inline(always)]
    unsafe fn bits(numbers: V::Integers, right: i32, mask: i16) -> V::Integers {
        V::and(V::shift_i16(numbers, right), V::splat_i16(mask))
    }

    #[inline(always)]
    unsafe fn q2(&mut self, block: &[u8], register: usize) {
        for half in 0..2 {
            let packed = Self::bytes(block, 16 + half * HALF, register);
            for pair in 0..4 {
                self.add_scaled(
                    4 * half + pair,
                    register,
                    Self::bits(packed, 2 * pair as i32, 3),
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn q3(&mut self, block: &[u8], register: usize) {
        let high = Self::bytes(block, 0, register);
        for half in 0..2 {
            let packed = Self::bytes(block, 32 + half * HALF, register);
            for pair in 0..4 {
                let run = 4 * half + pair;
                let third = Self::bits(high, run as i32 - 2, 4);
                let number = V::or(Self::bits(packed, 2 * pair as i32, 3), third);
                self.add_scaled(run, register, V::subtract_i16(number, V::splat_i16(4)));
            }
        }
    }

    #[inline(always)]
    unsafe fn iq4(&mut self, block: &[u8], register: usize) {
        for run in 0..SUPER_BLOCK / RUN {
            let indices = block.as_ptr().add(IQ4_XS::INDICES + run * RUN / 2);
            let numbers = V::look_up(IQ4_XS::TABLE, indices, register);
            self.add_scaled(run, register, numbers);
        }
    }

    #[inline(always)]
    unsafe fn q6(&mut self, block: &[u8], register: usize) {
        for half in 0..2 {
            let high = Self::bytes(block, 128 + half * HALF, register);
            for pair in 0..4 {
                let low = Self::bytes(block, half * 2 * RUN + pair % 2 * RUN, register);
                let low = if pair < 2 {
                    V::and(low, V::splat_i16(15))
                } else {
                    V::shift_i16(low, 4)
                };
                let number = V::or(low, Self::bits(high, 2 * pair as i32 - 4, 48));
                self.add_scaled(
                    4 * half + pair,
                    register,
                    V::subtract_i16(number, V::splat_i16(32)),
                );
            }
        }
    }
}
