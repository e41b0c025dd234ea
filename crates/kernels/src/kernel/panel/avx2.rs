//! AVX2 with fused multiply-adds.

use std::arch::x86_64::{
    __m256, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_permute2f128_ps,
    _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::vector::{self, Vector};
use super::{LANES, Panel, PanelKernel, check_transpose};
use crate::isa::Isa;

/// Numbers per register.
pub(super) const WIDTH: usize = 8;

/// The kernel. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct Avx2(());

impl Avx2 {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Isa::Avx2.is_supported().then_some(Self(()))
    }
}

impl PanelKernel for Avx2 {
    fn name(&self) -> &'static str {
        "avx2"
    }

    fn multiply(&self, panel: &Panel) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            multiply(panel);
        }
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            transpose_square(from, from_stride, to, to_stride);
        }
    }
}

#[target_feature(enable = "avx2,fma")]
fn multiply(panel: &Panel) {
    // SAFETY: this function is only called if the processor has the instructions.
    #[allow(unsafe_code)]
    unsafe {
        vector::multiply::<__m256, { LANES / WIDTH }>(panel);
    }
}

#[allow(unsafe_code)]
impl Vector for __m256 {
    const WIDTH: usize = WIDTH;

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        // SAFETY: as the caller promises.
        unsafe { _mm256_broadcast_ss(&*from) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as the caller promises.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as the caller promises.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: as the caller promises.
        unsafe { _mm256_fmadd_ps(self, factor, sum) }
    }
}

/// Implements [`PanelKernel::transpose`].
#[target_feature(enable = "avx2")]
pub(super) fn transpose_square(from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
    check_transpose(from, from_stride, to, to_stride);
    for (row, column) in [(0, 0), (0, WIDTH), (WIDTH, 0), (WIDTH, WIDTH)] {
        let (from, to) = (
            &from[row * from_stride + column..],
            &mut to[column * to_stride + row..],
        );
        // SAFETY: the check verified that the eight rows of each quarter are in the slices.
        #[allow(unsafe_code)]
        unsafe {
            transpose(
                from.as_ptr().cast(),
                from_stride,
                to.as_mut_ptr().cast(),
                to_stride,
            );
        }
    }
}

/// # Safety
/// Eight numbers at each of eight rows must be readable and writable.
#[allow(unsafe_code)]
#[target_feature(enable = "avx2")]
unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: as the caller promises.
    let rows: [__m256; WIDTH] =
        std::array::from_fn(|row| unsafe { _mm256_loadu_ps(from.add(row * from_stride)) });
    // Each half of a register holds four rows at one column: the first four rows, and the others.
    let mut fours = rows;
    for four in [0, 4] {
        let [a, b, c, d] = [rows[four], rows[four + 1], rows[four + 2], rows[four + 3]];
        let low = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let high = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        fours[four] = _mm256_shuffle_ps::<0x44>(low.0, low.1);
        fours[four + 1] = _mm256_shuffle_ps::<0xee>(low.0, low.1);
        fours[four + 2] = _mm256_shuffle_ps::<0x44>(high.0, high.1);
        fours[four + 3] = _mm256_shuffle_ps::<0xee>(high.0, high.1);
    }
    for column in 0..4 {
        let (a, b) = (fours[column], fours[4 + column]);
        // SAFETY: as the caller promises.
        unsafe {
            _mm256_storeu_ps(
                to.add(column * to_stride),
                _mm256_permute2f128_ps::<0x20>(a, b),
            );
            _mm256_storeu_ps(
                to.add((4 + column) * to_stride),
                _mm256_permute2f128_ps::<0x31>(a, b),
            );
        }
    }
}
