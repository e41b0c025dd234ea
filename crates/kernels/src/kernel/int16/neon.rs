//! NEON (every aarch64): `smlal` adds products of 16-bit numbers to 32-bit sums.

use std::arch::aarch64::{
    float32x4_t, int16x8_t, int32x4_t, vaddq_f32, vaddq_s32, vaddvq_s32, vandq_s32, vcvtq_f32_s32, vdupq_n_f32,
    vdupq_n_s32, vfmaq_n_f32, vget_low_s16, vld1_s8, vld1q_s16, vld1q_s32, vld1q_u8, vmlal_high_s16, vmlal_s16,
    vmovl_s8, vmulq_s32, vpaddq_s32, vreinterpretq_s16_s32, vreinterpretq_s32_u8, vreinterpretq_s32_u32,
    vreinterpretq_u32_s32, vshrq_n_u32, vst1q_f32,
};

use half::f16;

use triad_blocks::super_block::PARTS;

use super::blocks::{self, Sums};
use super::columns::{BlockColumns, Int4Columns, Int8Columns, Int16Kernel};
use super::steps::{GROUPS, MASK, SHIFTS, STEP, Step};
use super::tiles::{ROWS, each_tile};
use crate::dot::sum;
use crate::int4::HALF;

/// Numbers of a register.
const LANES: usize = 8;

/// The kernel, which every processor of this kind can run.
pub(in crate::kernel) struct Neon;

impl Int16Kernel for Neon {
    fn name(&self) -> &'static str {
        "neon-smlal"
    }

    fn multiply_int8(&self, task: &Int8Columns) {
        each_tile(task.x.rows(), task.columns.len(), task.x.in_features(), |rows, row, column| match rows {
            1 => int8_tile::<1>(task, row, column),
            2 => int8_tile::<2>(task, row, column),
            3 => int8_tile::<3>(task, row, column),
            _ => int8_tile::<ROWS>(task, row, column),
        });
    }

    fn multiply_int4(&self, task: &Int4Columns) {
        each_tile(task.x.rows(), task.columns.len(), task.groups() * HALF, |rows, row, column| match rows {
            1 => int4_tile::<1>(task, row, column),
            2 => int4_tile::<2>(task, row, column),
            3 => int4_tile::<3>(task, row, column),
            _ => int4_tile::<ROWS>(task, row, column),
        });
    }

    fn multiply_blocks(&self, task: &BlockColumns) {
        blocks::multiply::<FourQuarters>(task);
    }
}

fn int8_tile<const ROWS: usize>(task: &Int8Columns, row: usize, column: usize) {
    let depth = task.x.in_features();
    let x: [&[i16]; ROWS] = std::array::from_fn(|index| task.x.row(row + index));
    let weights = task.weights_of(column);
    assert!(weights.len() == depth && x.iter().all(|x| x.len() == depth));
    let whole = depth / LANES * LANES;
    // SAFETY: NEON is part of aarch64; every load covers numbers of one row or column.
    #[allow(unsafe_code)]
    let sums: [i32; ROWS] = unsafe {
        let mut sums = [[vdupq_n_s32(0); 2]; ROWS];
        for first in (0..whole).step_by(LANES) {
            let factor = vmovl_s8(vld1_s8(weights.as_ptr().add(first)));
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = vld1q_s16(x.as_ptr().add(first));
                sums[0] = vmlal_s16(sums[0], vget_low_s16(factor), vget_low_s16(x));
                sums[1] = vmlal_high_s16(sums[1], factor, x);
            }
        }
        sums.map(|[low, high]| vaddvq_s32(vaddq_s32(low, high)))
    };
    for (index, (sum, x)) in sums.into_iter().zip(x).enumerate() {
        let rest = x[whole..].iter().zip(&weights[whole..]);
        let sum = sum + rest.map(|(x, weight)| i32::from(*x) * i32::from(*weight)).sum::<i32>();
        task.write(row + index, column, sum as f32 * (task.x.scales()[row + index] * task.scales[column]));
    }
}

fn int4_tile<const ROWS: usize>(task: &Int4Columns, row: usize, column: usize) {
    let groups = task.groups();
    let x: [&[Step]; ROWS] = std::array::from_fn(|index| task.steps(row + index));
    assert!(x.iter().all(|x| x.len() == groups.div_ceil(GROUPS)));
    let (weights, scales) = task.column(column);
    // SAFETY: NEON is part of aarch64.
    #[allow(unsafe_code)]
    let mut sums = unsafe { [[vdupq_n_f32(0.0); GROUPS]; ROWS] };
    for (step, (weights, scales)) in weights.chunks(STEP).zip(scales.chunks(GROUPS)).enumerate() {
        for (group, (weights, scale)) in weights.as_chunks().0.iter().zip(scales).enumerate() {
            let factors = factors(weights);
            for (sums, x) in sums.iter_mut().zip(x) {
                sums[group] = add(sums[group], factors, &x[step], group, *scale);
            }
        }
    }
    for (index, sums) in sums.into_iter().enumerate() {
        let mut halves = [0.0; 4];
        // SAFETY: four numbers. Halves of sixteen sums first, then those of eight.
        #[allow(unsafe_code)]
        unsafe {
            let sums = vaddq_f32(vaddq_f32(sums[0], sums[2]), vaddq_f32(sums[1], sums[3]));
            vst1q_f32(halves.as_mut_ptr(), sums);
        }
        task.write(row + index, column, sum(halves) * task.x.scales()[row + index]);
    }
}

/// The words of a group shifted and masked, as pairs of 16-bit numbers.
#[inline(always)]
fn factors(weights: &[u8; HALF]) -> [int16x8_t; SHIFTS] {
    // SAFETY: NEON is part of aarch64; sixteen bytes.
    #[allow(unsafe_code)]
    unsafe {
        let words = vreinterpretq_s32_u8(vld1q_u8(weights.as_ptr()));
        let unsigned = vreinterpretq_u32_s32(words);
        let shifted = [
            words,
            vreinterpretq_s32_u32(vshrq_n_u32::<4>(unsigned)),
            vreinterpretq_s32_u32(vshrq_n_u32::<8>(unsigned)),
            vreinterpretq_s32_u32(vshrq_n_u32::<12>(unsigned)),
        ];
        shifted.map(|words: int32x4_t| vreinterpretq_s16_s32(vandq_s32(words, vdupq_n_s32(MASK))))
    }
}

/// Adds the products of a group to its four sums.
#[inline(always)]
fn add(sums: float32x4_t, factors: [int16x8_t; SHIFTS], step: &Step, group: usize, scale: f16) -> float32x4_t {
    // SAFETY: NEON is part of aarch64; the loads cover the group's pairs and offsets.
    #[allow(unsafe_code)]
    unsafe {
        let mut pairs = [vdupq_n_s32(0); 2];
        for (factor, x) in factors.into_iter().zip(&step.x) {
            let x = vld1q_s16(x[2 * 4 * group..][..LANES].as_ptr());
            pairs[0] = vmlal_s16(pairs[0], vget_low_s16(factor), vget_low_s16(x));
            pairs[1] = vmlal_high_s16(pairs[1], factor, x);
        }
        let offset = vld1q_s32(step.offset[4 * group..][..4].as_ptr());
        let exact = vaddq_s32(vpaddq_s32(pairs[0], pairs[1]), offset);
        vfmaq_n_f32(sums, vcvtq_f32_s32(exact), scale.to_f32())
    }
}

/// Sixteen sums as four registers of four.
#[derive(Clone, Copy)]
struct FourQuarters([float32x4_t; 4]);

// SAFETY (of all functions): NEON is part of aarch64.
#[allow(unsafe_code)]
impl Sums for FourQuarters {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: as above.
        Self(unsafe { [vdupq_n_f32(0.0); 4] })
    }

    #[inline(always)]
    fn add_products(self, integers: &[i16], x: &[i16], scale: f32) -> Self {
        let numbers = integers.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0);
        // SAFETY: as above; eight numbers each.
        unsafe {
            // Of each register, the lower and the upper four products.
            let mut exact = [[vdupq_n_s32(0); 2]; 4];
            for (index, (integers, x)) in numbers.enumerate() {
                let [integers, x] = [integers, x].map(|numbers| vld1q_s16(numbers.as_ptr()));
                let [low, high] = &mut exact[index % 4];
                *low = vmlal_s16(*low, vget_low_s16(integers), vget_low_s16(x));
                *high = vmlal_high_s16(*high, integers, x);
            }
            self.add(exact.map(|[low, high]| vpaddq_s32(low, high)), scale)
        }
    }

    #[inline(always)]
    fn subtract_products(self, minimums: &[i32; PARTS], sums: &[i32; PARTS], scale: f32) -> Self {
        let quarter = |quarter: usize| {
            // SAFETY: as above; four numbers each.
            unsafe {
                let [minimums, sums] = [minimums, sums].map(|numbers| vld1q_s32(numbers[4 * quarter..].as_ptr()));
                vmulq_s32(minimums, sums)
            }
        };
        self.add(std::array::from_fn(quarter), -scale)
    }

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        triad_blocks::widen(bits)
    }

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn total(self) -> f32 {
        let Self(sums) = self;
        let mut halves = [0.0; 4];
        // SAFETY: as above; four numbers. Halves of sixteen sums first, then those of eight.
        unsafe {
            let sums = vaddq_f32(vaddq_f32(sums[0], sums[2]), vaddq_f32(sums[1], sums[3]));
            vst1q_f32(halves.as_mut_ptr(), sums);
        }
        sum(halves)
    }
}

impl FourQuarters {
    /// Adds integers, times `scale`.
    #[inline(always)]
    fn add(mut self, exact: [int32x4_t; 4], scale: f32) -> Self {
        for (sums, exact) in self.0.iter_mut().zip(exact) {
            // SAFETY: as above.
            #[allow(unsafe_code)]
            unsafe {
                *sums = vfmaq_n_f32(*sums, vcvtq_f32_s32(exact), scale);
            }
        }
        self
    }
}
