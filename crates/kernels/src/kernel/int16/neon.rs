//! NEON (every aarch64): `smlal` adds products of 16-bit numbers to 32-bit sums.

use std::arch::aarch64::{
    float32x4_t, int16x8_t, int32x4_t, vaddq_s32, vaddvq_s32, vand_u8, vandq_s16, vandq_s32,
    vcvtq_f32_s32, vdup_n_u8, vdupq_laneq_f32, vdupq_n_f32, vdupq_n_s16, vdupq_n_s32, vfmaq_f32,
    vfmsq_f32, vget_low_s16, vld1_s8, vld1_u8, vld1q_s8, vld1q_s16, vmlal_high_s16, vmlal_s16,
    vmovl_s8, vmovl_u8, vmulq_s16, vmulq_s32, vorrq_s16, vpaddq_s32, vqtbl1_s8,
    vreinterpretq_s16_s32, vreinterpretq_s16_u16, vreinterpretq_s32_s16, vreinterpretq_s32_u32,
    vreinterpretq_u16_s16, vreinterpretq_u32_s16, vshlq_u16, vshr_n_u8, vshrq_n_u16, vshrq_n_u32,
    vst1q_f32, vst1q_s16, vsubq_s16, vtstq_s16,
};
use std::arch::asm;

use super::blocks::{self, Tiles, with_tiles};
use super::columns::{BlockColumns, Int4Columns, Int8Columns, Int16Kernel};
use super::registers::Registers;
use super::steps::{GROUPS, MASK, SHIFTS};
use super::tiled;
use super::vector::{Vector, WeightVector};

/// The kernel, which every aarch64 processor can run.
pub(in crate::kernel) struct Neon;

impl Int16Kernel for Neon {
    fn name(&self) -> &'static str {
        "neon-smlal"
    }

    fn multiply_int8(&self, task: &Int8Columns) {
        // SAFETY: NEON is part of aarch64.
        #[allow(unsafe_code)]
        unsafe {
            tiled::multiply_int8::<Quarter>(task);
        }
    }

    fn multiply_int4(&self, task: &Int4Columns) {
        // SAFETY: NEON is part of aarch64.
        #[allow(unsafe_code)]
        unsafe {
            tiled::multiply_int4::<Quarter>(task);
        }
    }

    fn multiply_blocks(&self, task: &BlockColumns) {
        with_tiles!(task.format, tiles => multiply_blocks(task, tiles));
    }
}

// A function for each layout: see [`Tiles`].
#[inline(never)]
fn multiply_blocks(task: &BlockColumns, tiles: &impl Tiles) {
    blocks::multiply::<Registers<Quarter>>(task, tiles);
}

/// 128-bit registers. 32-bit integers have the type of 16-bit ones with the same bits.
#[derive(Clone, Copy)]
struct Quarter;

// SAFETY (of all functions): NEON is part of aarch64; otherwise as the trait says.
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
impl Vector for Quarter {
    const LANES: usize = 4;
    type Integers = int16x8_t;
    type Floats = float32x4_t;
    /// Products of the lower and of the upper four pairs of numbers; neighbours are added at the end.
    type Exact = [int32x4_t; 2];
    type Sixteen<T: Copy> = [T; 4];

    #[inline(always)]
    fn sixteen<T: Copy>(register: T) -> [T; 4] {
        [register; 4]
    }

    #[inline(always)]
    unsafe fn load<T>(from: *const T) -> int16x8_t {
        vld1q_s16(from.cast())
    }

    #[inline(always)]
    unsafe fn widen_unsigned(from: *const u8) -> int16x8_t {
        vreinterpretq_s16_u16(vmovl_u8(vld1_u8(from)))
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], from: *const u8, register: usize) -> int16x8_t {
        let bytes = vld1_u8(from.add(register % 2 * 8));
        let indices = if register < 2 {
            vand_u8(bytes, vdup_n_u8(15))
        } else {
            vshr_n_u8::<4>(bytes)
        };
        vmovl_s8(vqtbl1_s8(vld1q_s8(table.as_ptr()), indices))
    }

    #[inline(always)]
    unsafe fn fifth_bits(bits: u32, register: usize) -> int16x8_t {
        let places = vld1q_s16([1, 2, 4, 8, 16, 32, 64, 128].as_ptr());
        let set = vtstq_s16(vdupq_n_s16((bits >> (8 * register) & 0xff) as i16), places);
        vandq_s16(vreinterpretq_s16_u16(set), vdupq_n_s16(16))
    }

    #[inline(always)]
    unsafe fn splat_i16(number: i16) -> int16x8_t {
        vdupq_n_s16(number)
    }

    #[inline(always)]
    unsafe fn splat_halves(numbers: *const i16, register: usize) -> int16x8_t {
        vdupq_n_s16(*numbers.add(register / 2))
    }

    #[inline(always)]
    unsafe fn and(a: int16x8_t, b: int16x8_t) -> int16x8_t {
        vandq_s16(a, b)
    }

    #[inline(always)]
    unsafe fn or(a: int16x8_t, b: int16x8_t) -> int16x8_t {
        vorrq_s16(a, b)
    }

    #[inline(always)]
    unsafe fn shift_i16(numbers: int16x8_t, right: i32) -> int16x8_t {
        vreinterpretq_s16_u16(vshlq_u16(
            vreinterpretq_u16_s16(numbers),
            vdupq_n_s16(-right as i16),
        ))
    }

    #[inline(always)]
    unsafe fn subtract_i16(a: int16x8_t, b: int16x8_t) -> int16x8_t {
        vsubq_s16(a, b)
    }

    #[inline(always)]
    unsafe fn multiply_i16(a: int16x8_t, b: int16x8_t) -> int16x8_t {
        vmulq_s16(a, b)
    }

    #[inline(always)]
    unsafe fn multiply_i32(a: int16x8_t, b: int16x8_t) -> int16x8_t {
        vreinterpretq_s16_s32(vmulq_s32(
            vreinterpretq_s32_s16(a),
            vreinterpretq_s32_s16(b),
        ))
    }

    #[inline(always)]
    unsafe fn begin(_: int16x8_t) -> [int32x4_t; 2] {
        [vdupq_n_s32(0); 2]
    }

    #[inline(always)]
    unsafe fn add_products(
        [low, high]: [int32x4_t; 2],
        a: int16x8_t,
        b: int16x8_t,
    ) -> [int32x4_t; 2] {
        [
            vmlal_s16(low, vget_low_s16(a), vget_low_s16(b)),
            vmlal_high_s16(high, a, b),
        ]
    }

    #[inline(always)]
    unsafe fn end([low, high]: [int32x4_t; 2], offset: int16x8_t) -> int16x8_t {
        vreinterpretq_s16_s32(vaddq_s32(
            vpaddq_s32(low, high),
            vreinterpretq_s32_s16(offset),
        ))
    }

    #[inline(always)]
    unsafe fn splat(number: f32) -> float32x4_t {
        vdupq_n_f32(number)
    }

    #[inline(always)]
    unsafe fn splat_float_halves(numbers: [f32; 2], register: usize) -> float32x4_t {
        vdupq_n_f32(numbers[register / 2])
    }

    #[inline(always)]
    unsafe fn to_floats(numbers: int16x8_t) -> float32x4_t {
        vcvtq_f32_s32(vreinterpretq_s32_s16(numbers))
    }

    #[inline(always)]
    unsafe fn multiply_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }

    #[inline(always)]
    unsafe fn multiply_subtract(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmsq_f32(c, a, b)
    }

    #[inline(always)]
    unsafe fn store_integers(numbers: int16x8_t, to: *mut i16) {
        vst1q_s16(to, numbers);
    }

    #[inline(always)]
    unsafe fn store(numbers: float32x4_t, to: *mut f32) {
        vst1q_f32(to, numbers);
    }

    #[inline(always)]
    unsafe fn splat_f16(bits: u16) -> float32x4_t {
        vdupq_n_f32(widen(bits))
    }

    #[inline(always)]
    unsafe fn splat_and_widen(bits: [u16; 2]) -> (float32x4_t, f32) {
        (vdupq_n_f32(widen(bits[0])), widen(bits[1]))
    }
}

// SAFETY (of all functions): as the trait says.
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
impl WeightVector for Quarter {
    #[inline(always)]
    unsafe fn widen_signed(from: *const i8) -> int16x8_t {
        vmovl_s8(vld1_s8(from))
    }

    #[inline(always)]
    unsafe fn factors(words: int16x8_t) -> [int16x8_t; SHIFTS] {
        let (unsigned, mask) = (vreinterpretq_u32_s16(words), vdupq_n_s32(MASK));
        [
            vreinterpretq_s16_s32(vandq_s32(vreinterpretq_s32_s16(words), mask)),
            vreinterpretq_s16_s32(vandq_s32(
                vreinterpretq_s32_u32(vshrq_n_u32::<4>(unsigned)),
                mask,
            )),
            vreinterpretq_s16_s32(vandq_s32(
                vreinterpretq_s32_u32(vshrq_n_u32::<8>(unsigned)),
                mask,
            )),
            // A logical shift by 12 leaves only the upper four of sixteen bits.
            vreinterpretq_s16_u16(vshrq_n_u16::<12>(vreinterpretq_u16_s16(words))),
        ]
    }

    #[inline(always)]
    unsafe fn total_i32([low, high]: [int32x4_t; 2]) -> i32 {
        vaddvq_s32(vaddq_s32(low, high))
    }

    #[inline(always)]
    unsafe fn group_scales(scales: *const [u16; GROUPS]) -> [float32x4_t; 4] {
        let four = widen_four(scales);
        [
            vdupq_laneq_f32::<0>(four),
            vdupq_laneq_f32::<1>(four),
            vdupq_laneq_f32::<2>(four),
            vdupq_laneq_f32::<3>(four),
        ]
    }
}

/// Returns the value of an f16 with these bits.
#[inline(always)]
fn widen(bits: u16) -> f32 {
    let wide: f32;
    // SAFETY: one instruction on a register, which every aarch64 has.
    #[allow(unsafe_code)]
    unsafe {
        asm!("fcvt {wide:s}, {bits:h}", bits = in(vreg) f32::from_bits(u32::from(bits)), wide = lateout(vreg) wide,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// Loads four numbers in f16 as f32.
///
/// # Safety
/// Four numbers must be readable.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn widen_four(from: *const [u16; 4]) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: as the caller promises. By `asm!`, since the intrinsic's f16 type is recent.
    unsafe {
        let halves = std::arch::aarch64::vld1_u16(from.cast());
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", halves = in(vreg) halves, wide = lateout(vreg) wide,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}
