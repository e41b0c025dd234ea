//! The sums of products with blocks, in registers of any set of instructions.

use triad_blocks::simple::{Block, ELEMENTS};
use triad_blocks::super_block::{PARTS, SUPER_BLOCK, SuperBlock};

use super::blocks::Sums;
use super::steps::SUMS;
use super::vector::Vector;
use super::{simple_blocks, super_blocks};
use crate::dot::sum;

/// Sixteen sums of a row and column, in as many registers as they need.
#[derive(Clone, Copy)]
pub(super) struct Registers<V: Vector>(pub V::Sixteen<V::Floats>);

// SAFETY (of all functions): they are inlined into functions that are only called if the processor has the
// instructions.
#[allow(unsafe_code)]
impl<V: Vector> Sums for Registers<V> {
    type Scale = V::Floats;
    type Scales = V::Sixteen<V::Floats>;

    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: as above.
        Self(V::sixteen(unsafe { V::splat(0.0) }))
    }

    #[inline(always)]
    fn add_products(mut self, integers: &[i16], x: &[i16], scale: V::Floats) -> Self {
        // SAFETY: as above.
        unsafe {
            self.add(&Self::products(integers, x), V::splat_i16(0), scale);
        }
        self
    }

    #[inline(always)]
    fn add_halves(
        mut self,
        integers: &[i16; 2 * SUMS],
        x: &[i16; 2 * SUMS],
        scales: V::Sixteen<V::Floats>,
    ) -> Self {
        let exact = Self::products(integers, x);
        let sums = self.0.as_mut().iter_mut().zip(exact.as_ref());
        for ((to, exact), scale) in sums.zip(scales.as_ref()) {
            // SAFETY: as above.
            unsafe {
                let exact = V::to_floats(V::end(*exact, V::splat_i16(0)));
                *to = V::multiply_add(exact, *scale, *to);
            }
        }
        self
    }

    #[inline(always)]
    fn subtract_products(
        mut self,
        minimums: &[i32; PARTS],
        sums: &[i32; PARTS],
        scale: V::Floats,
    ) -> Self {
        // SAFETY: as above; sixteen numbers each.
        unsafe {
            for (register, to) in self.0.as_mut().iter_mut().enumerate() {
                let place = register * V::LANES;
                let exact = V::multiply_i32(
                    V::load(minimums.as_ptr().add(place)),
                    V::load(sums.as_ptr().add(place)),
                );
                *to = V::multiply_subtract(V::to_floats(exact), scale, *to);
            }
        }
        self
    }

    #[inline(always)]
    fn add_super_block<B: SuperBlock, const ROWS: usize>(
        sums: &mut [Self; ROWS],
        block: &[u8],
        x: [&[i16; SUPER_BLOCK]; ROWS],
        minimums: &mut [i32; PARTS],
    ) -> V::Floats {
        if !super_blocks::is_faster::<B, V>() {
            let mut integers = [0; SUPER_BLOCK];
            let [scale, minimum_scale] = B::unpack(block, &mut integers, minimums);
            let scale = Self::scale(scale);
            for (sums, x) in sums.iter_mut().zip(x) {
                *sums = sums.add_products(&integers, x, scale);
            }
            return Self::scale(minimum_scale);
        }
        let mut scales = [0; PARTS];
        let [scale, minimum_scale] = B::scales(block, &mut scales, minimums);
        let scale = Self::scale(scale);
        // SAFETY: as above.
        unsafe {
            let exact = super_blocks::products::<B, V, ROWS>(block, &scales, x);
            for (sums, exact) in sums.iter_mut().zip(&exact) {
                sums.add(exact, V::splat_i16(0), scale);
            }
        }
        Self::scale(minimum_scale)
    }

    #[inline(always)]
    fn scale(bits: u16) -> V::Floats {
        // SAFETY: as above.
        unsafe { V::splat_f16(bits) }
    }

    #[inline(always)]
    fn scale_of(number: f32) -> V::Floats {
        // SAFETY: as above.
        unsafe { V::splat(number) }
    }

    #[inline(always)]
    fn scales_of(numbers: [f32; 2]) -> V::Sixteen<V::Floats> {
        // SAFETY: as above.
        unsafe {
            let mut scales = V::sixteen(V::splat(0.0));
            for (register, scales) in scales.as_mut().iter_mut().enumerate() {
                *scales = V::splat_float_halves(numbers, register);
            }
            scales
        }
    }

    #[inline(always)]
    fn scale_and_number(bits: [u16; 2]) -> (V::Floats, f32) {
        // SAFETY: as above.
        unsafe { V::splat_and_widen(bits) }
    }

    #[inline(always)]
    fn unpack<B: Block>(block: &[u8], integers: &mut [i16; ELEMENTS]) -> [u16; 2] {
        // SAFETY: as above.
        unsafe {
            match (B::FIFTH_BITS, B::TABLE) {
                (Some(fifth), _) => simple_blocks::five_bits::<B, V>(block, fifth, integers),
                (_, Some(table)) => simple_blocks::from_table::<B, V>(block, table, integers),
                _ => B::unpack(block, integers),
            }
        }
    }

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn total(self) -> f32 {
        let mut sums = [0.0; PARTS];
        for (register, numbers) in self.0.as_ref().iter().enumerate() {
            // SAFETY: as above; sixteen numbers in all.
            unsafe { V::store(*numbers, sums.as_mut_ptr().add(register * V::LANES)) };
        }
        sum(sums)
    }
}

impl<V: Vector> Registers<V> {
    /// Returns the exact sums of products, as [`Sums::add_products`] defines them.
    #[inline(always)]
    #[allow(unsafe_code)]
    fn products(integers: &[i16], x: &[i16]) -> V::Sixteen<V::Exact> {
        assert!(integers.len() == x.len() && x.len().is_multiple_of(2 * SUMS));
        // SAFETY: as above; 32 numbers each.
        unsafe {
            let mut exact = V::sixteen(V::begin(V::splat_i16(0)));
            for first in (0..x.len()).step_by(2 * SUMS) {
                for (register, exact) in exact.as_mut().iter_mut().enumerate() {
                    let place = first + register * 2 * V::LANES;
                    let (integers, x) = (
                        V::load(integers.as_ptr().add(place)),
                        V::load(x.as_ptr().add(place)),
                    );
                    *exact = V::add_products(*exact, integers, x);
                }
            }
            exact
        }
    }

    /// Adds `scale` times exact sums.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(super) fn add(
        &mut self,
        exact: &V::Sixteen<V::Exact>,
        offset: V::Integers,
        scale: V::Floats,
    ) {
        // SAFETY: as above.
        unsafe {
            for (to, exact) in self.0.as_mut().iter_mut().zip(exact.as_ref()) {
                *to = V::multiply_add(V::to_floats(V::end(*exact, offset)), scale, *to);
            }
        }
    }
}
