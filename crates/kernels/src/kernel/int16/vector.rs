//! Registers of a set of instructions, for kernels that are generic over their width.

use super::steps::{GROUPS, SHIFTS};

/// One set of instructions. Functions that use it must be inlined into one that is compiled for these instructions.
///
/// # Safety
/// All functions require a processor with the instructions. Those with pointers read or write one register there, or as
/// many numbers as they state.
#[allow(unsafe_code)]
pub(super) trait Vector: Copy {
    /// 32-bit numbers per register; it holds twice as many 16-bit numbers.
    const LANES: usize;
    /// A register of 16-bit or 32-bit integers.
    type Integers: Copy;
    /// A register of numbers in f32.
    type Floats: Copy;
    /// Exact sums of products during accumulation.
    type Exact: Copy;
    /// As many registers as sixteen 32-bit numbers, or 32 16-bit numbers, need.
    type Sixteen<T: Copy>: Copy + AsRef<[T]> + AsMut<[T]>;

    /// Returns copies of one register.
    fn sixteen<T: Copy>(register: T) -> Self::Sixteen<T>;

    /// Loads a register of integers.
    unsafe fn load<T>(from: *const T) -> Self::Integers;
    /// Loads as many unsigned bytes as a register has 16-bit numbers, and widens them.
    unsafe fn widen_unsigned(from: *const u8) -> Self::Integers;
    /// Unpacks a register of four-bit numbers from sixteen bytes: those in the low halves come before those in the high
    /// halves.
    #[inline(always)]
    unsafe fn four_bits(from: *const u8, register: usize) -> Self::Integers {
        const {
            assert!(
                Self::LANES < 16,
                "a register with numbers of both halves has its own function"
            );
        };
        let first = register * 2 * Self::LANES;
        // SAFETY: as the caller promises; only as many of the sixteen bytes as a register takes are read.
        unsafe {
            let bytes = Self::widen_unsigned(from.add(first % 16));
            if first < 16 {
                Self::and(bytes, Self::splat_i16(15))
            } else {
                Self::shift_i16(bytes, 4)
            }
        }
    }
    /// Returns a register of the numbers of a table at four-bit indices, which are in sixteen bytes in the order of
    /// [`four_bits`](Self::four_bits).
    unsafe fn look_up(table: &[i8; 16], from: *const u8, register: usize) -> Self::Integers;
    /// Returns a register of 32 numbers, one for each bit: 16 if the bit is set, 0 otherwise.
    unsafe fn fifth_bits(bits: u32, register: usize) -> Self::Integers;
    /// Returns a register with one 16-bit number in all lanes.
    unsafe fn splat_i16(number: i16) -> Self::Integers;
    /// Returns a register of 32 16-bit numbers, whose halves are copies of the first and of the second of two numbers.
    unsafe fn splat_halves(numbers: *const i16, register: usize) -> Self::Integers;
    /// Computes the bitwise AND.
    unsafe fn and(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Computes the bitwise OR.
    unsafe fn or(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Shifts 16-bit numbers right, or left by a negative count.
    unsafe fn shift_i16(numbers: Self::Integers, right: i32) -> Self::Integers;
    /// Computes 16-bit differences.
    unsafe fn subtract_i16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Computes 16-bit products.
    unsafe fn multiply_i16(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Computes 32-bit products.
    unsafe fn multiply_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// Returns initial sums with the given `offset`, which [`end`](Self::end) also receives.
    unsafe fn begin(offset: Self::Integers) -> Self::Exact;
    /// Adds the products of pairs of 16-bit numbers to each sum.
    unsafe fn add_products(sums: Self::Exact, a: Self::Integers, b: Self::Integers) -> Self::Exact;
    /// Returns the final sums.
    unsafe fn end(sums: Self::Exact, offset: Self::Integers) -> Self::Integers;

    /// Returns a register with one number in all lanes.
    unsafe fn splat(number: f32) -> Self::Floats;
    /// Returns a register of sixteen numbers, whose halves are copies of the first and of the second of two numbers.
    unsafe fn splat_float_halves(numbers: [f32; 2], register: usize) -> Self::Floats;
    /// Converts 32-bit integers to floats.
    unsafe fn to_floats(numbers: Self::Integers) -> Self::Floats;
    /// Computes `a · b + c`, rounded once.
    unsafe fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Computes `c − a · b`, rounded once.
    unsafe fn multiply_subtract(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Stores a register of integers.
    unsafe fn store_integers(numbers: Self::Integers, to: *mut i16);
    /// Stores a register of floats.
    unsafe fn store(numbers: Self::Floats, to: *mut f32);
    /// Returns a register with the value of an f16 with these bits in all lanes.
    unsafe fn splat_f16(bits: u16) -> Self::Floats;
    /// Returns the values of two f16: the first in all lanes, the second as a number.
    unsafe fn splat_and_widen(bits: [u16; 2]) -> (Self::Floats, f32);
}

/// The further operations that products with weights in INT8 and INT4 need.
///
/// # Safety
/// As for [`Vector`].
#[allow(unsafe_code)]
pub(super) trait WeightVector: Vector {
    /// Loads as many signed bytes as a register has 16-bit numbers, and widens them.
    unsafe fn widen_signed(from: *const i8) -> Self::Integers;
    /// Shifts words by 0, 4, 8 and 12 bits, and masks each with `MASK`.
    unsafe fn factors(words: Self::Integers) -> [Self::Integers; SHIFTS];
    /// Returns the total of sums that began with zeros.
    unsafe fn total_i32(sums: Self::Exact) -> i32;
    /// Loads the scales of the groups of a step, each repeated four times.
    unsafe fn group_scales(scales: *const [u16; GROUPS]) -> Self::Sixteen<Self::Floats>;
}
