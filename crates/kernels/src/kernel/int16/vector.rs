//! Registers of a set of instructions: what kernels that are written once for all widths compute with.

use super::steps::{GROUPS, SHIFTS};

/// One set of instructions. Functions that use it are inlined into one that is compiled for these instructions.
///
/// # Safety
/// All functions need a processor with the instructions; those with pointers read or write a register there, or as many
/// numbers as they say.
#[allow(unsafe_code)]
pub(super) trait Vector: Copy {
    /// Numbers of 32 bits in a register; there are twice as many of 16 bits.
    const LANES: usize;
    /// Integers of 16 or 32 bits.
    type Integers: Copy;
    /// Numbers in f32.
    type Floats: Copy;
    /// Exact sums of products on their way.
    type Exact: Copy;
    /// As many registers as sixteen numbers of 32 bits, or 32 of 16 bits, take.
    type Sixteen<T: Copy>: Copy + AsRef<[T]> + AsMut<[T]>;

    /// As many registers, all the same.
    fn sixteen<T: Copy>(register: T) -> Self::Sixteen<T>;

    /// A register of integers.
    unsafe fn load<T>(from: *const T) -> Self::Integers;
    /// As many unsigned bytes as there are numbers of 16 bits.
    unsafe fn widen_unsigned(from: *const u8) -> Self::Integers;
    /// Of numbers of four bits in sixteen bytes, those in the low halves before those in the high halves, a register.
    #[inline(always)]
    unsafe fn four_bits(from: *const u8, register: usize) -> Self::Integers {
        const {
            assert!(
                Self::LANES < 16,
                "a register with numbers of both halves has its own function"
            )
        };
        let first = register * 2 * Self::LANES;
        // SAFETY: as the caller promises: as many of the sixteen bytes as a register takes.
        unsafe {
            let bytes = Self::widen_unsigned(from.add(first % 16));
            if first < 16 {
                Self::and(bytes, Self::splat_i16(15))
            } else {
                Self::shift_i16(bytes, 4)
            }
        }
    }
    /// Of 32 numbers, one for each bit, a register: 16 where the bit is set, 0 elsewhere.
    unsafe fn fifth_bits(bits: u32, register: usize) -> Self::Integers;
    /// One number of 16 bits everywhere.
    unsafe fn splat_i16(number: i16) -> Self::Integers;
    /// Of two numbers, one for each half of 32 numbers of 16 bits, what a register of these has.
    unsafe fn splat_halves(numbers: *const i16, register: usize) -> Self::Integers;
    /// Bits of both.
    unsafe fn and(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Bits of either.
    unsafe fn or(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Numbers of 16 bits shifted to the right, or, by a negative number of bits, to the left.
    unsafe fn shift_i16(numbers: Self::Integers, right: i32) -> Self::Integers;
    /// Differences of 16 bits.
    unsafe fn subtract_i16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Products of 16 bits.
    unsafe fn multiply_i16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Products of 32 bits.
    unsafe fn multiply_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// Sums that begin with `offset`, which [`end`](Self::end) gets as well.
    unsafe fn begin(offset: Self::Integers) -> Self::Exact;
    /// Adds the products of pairs of numbers of 16 bits to each sum.
    unsafe fn add_products(sums: Self::Exact, a: Self::Integers, b: Self::Integers) -> Self::Exact;
    /// The sums.
    unsafe fn end(sums: Self::Exact, offset: Self::Integers) -> Self::Integers;

    /// One number everywhere.
    unsafe fn splat(number: f32) -> Self::Floats;
    /// Numbers of 32 bits as floats.
    unsafe fn to_floats(numbers: Self::Integers) -> Self::Floats;
    /// `a · b + c`, rounded once.
    unsafe fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c − a · b`, rounded once.
    unsafe fn multiply_subtract(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Writes a register of integers.
    unsafe fn store_integers(numbers: Self::Integers, to: *mut i16);
    /// Writes a register.
    unsafe fn store(numbers: Self::Floats, to: *mut f32);
    /// The value of an f16 with these bits everywhere.
    unsafe fn splat_f16(bits: u16) -> Self::Floats;
    /// The values of two, the first everywhere.
    unsafe fn splat_and_widen(bits: [u16; 2]) -> (Self::Floats, f32);
}

/// What products with weights in INT8 and INT4 need besides.
///
/// # Safety
/// As [`Vector`] says.
#[allow(unsafe_code)]
pub(super) trait WeightVector: Vector {
    /// As many signed bytes.
    unsafe fn widen_signed(from: *const i8) -> Self::Integers;
    /// Words shifted by 0, 4, 8 and 12 bits, each with what `MASK` leaves of it.
    unsafe fn factors(words: Self::Integers) -> [Self::Integers; SHIFTS];
    /// The sum of sums that began with zeros.
    unsafe fn total_i32(sums: Self::Exact) -> i32;
    /// Scales of the groups of a step, each four times.
    unsafe fn group_scales(scales: *const [u16; GROUPS]) -> Self::Sixteen<Self::Floats>;
}
