//! AVX2 with fused multiply-adds.

use std::arch::x86_64::{
    __m256, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_permute2f128_ps, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::kernel::{Kernel, LANES, Panel, check_transpose};
use crate::tier::Tier;

/// Rows of the largest tile: with [`PARTS`] they make twelve registers of sums and leave four for operands.
const ROWS: usize = 6;
/// Numbers of a register.
const WIDTH: usize = 8;
/// Registers of a block of columns.
const PARTS: usize = LANES / WIDTH;

/// The kernel; having one proves that the processor can run it.
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn new() -> Option<Self> {
        Tier::Avx2.is_supported().then_some(Self(()))
    }
}

impl Kernel for Avx2 {
    fn name(&self) -> &'static str {
        "avx2"
    }

    fn tier(&self) -> Tier {
        Tier::Avx2
    }

    fn multiply(&self, panel: &Panel) {
        panel.check();
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        unsafe {
            multiply(panel);
        }
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        check_transpose(from, from_stride, to, to_stride);
        for (row, column) in [(0, 0), (0, WIDTH), (WIDTH, 0), (WIDTH, WIDTH)] {
            let (from, to) = (&from[row * from_stride + column..], &mut to[column * to_stride + row..]);
            // SAFETY: `new` has found the instructions; the eight rows of each quarter lie in the slices by the check.
            #[allow(unsafe_code)]
            unsafe {
                transpose(from.as_ptr().cast(), from_stride, to.as_mut_ptr().cast(), to_stride);
            }
        }
    }
}

/// A checked panel.
#[target_feature(enable = "avx2,fma")]
fn multiply(panel: &Panel) {
    let rows = panel.out.rows();
    for block in (0..panel.columns.len()).step_by(LANES) {
        let mut row = 0;
        while row + ROWS <= rows {
            tile::<ROWS>(panel, row, block);
            row += ROWS;
        }
        match rows - row {
            0 => {}
            1 => tile::<1>(panel, row, block),
            2 => tile::<2>(panel, row, block),
            3 => tile::<3>(panel, row, block),
            4 => tile::<4>(panel, row, block),
            _ => tile::<5>(panel, row, block),
        }
    }
}

/// Some rows of one block of columns: all sums stay in registers from the first step to the last.
#[target_feature(enable = "avx2,fma")]
fn tile<const ROWS: usize>(panel: &Panel, row: usize, block: usize) {
    let columns = panel.columns.start + block..(panel.columns.start + block + LANES).min(panel.columns.end);
    // SAFETY: this panel's columns belong to this task alone, and no slice of them lives beyond a statement.
    #[allow(unsafe_code)]
    let out = |r: usize| unsafe { panel.out.row(row + r, columns.clone()) };
    let mut sums = [[_mm256_setzero_ps(); PARTS]; ROWS];
    if panel.add {
        for (r, sums) in sums.iter_mut().enumerate() {
            let mut values = [0.0; LANES];
            values[..columns.len()].copy_from_slice(out(r));
            *sums = load(&values);
        }
    }
    let left = panel.left[row * panel.left_stride..].as_ptr().cast::<f32>();
    let right = &panel.right[block..];
    for step in 0..panel.steps {
        // SAFETY: `check` found whole blocks of every step in the slice.
        #[allow(unsafe_code)]
        let factors = load(unsafe { &*right.as_ptr().add(step * panel.right_stride).cast() });
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `check` found every step of every row in the slice.
            #[allow(unsafe_code)]
            let x = _mm256_set1_ps(unsafe { *left.add(r * panel.left_stride + step) });
            for (sum, factor) in sums.iter_mut().zip(factors) {
                *sum = _mm256_fmadd_ps(x, factor, *sum);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        let mut values = [0.0; LANES];
        for (values, sum) in values.as_chunks_mut::<WIDTH>().0.iter_mut().zip(sums) {
            // SAFETY: a chunk is as long as a register.
            #[allow(unsafe_code)]
            unsafe {
                _mm256_storeu_ps(values.as_mut_ptr(), sum);
            }
        }
        out(r).copy_from_slice(&values[..columns.len()]);
    }
}

#[target_feature(enable = "avx2")]
fn load(values: &[f32; LANES]) -> [__m256; PARTS] {
    // SAFETY: the array holds both.
    #[allow(unsafe_code)]
    unsafe {
        [_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(WIDTH))]
    }
}

/// # Safety
/// Eight numbers at each of eight rows can be read and written.
#[allow(unsafe_code)]
#[target_feature(enable = "avx2")]
unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: as the caller promises.
    let rows: [__m256; WIDTH] = std::array::from_fn(|row| unsafe { _mm256_loadu_ps(from.add(row * from_stride)) });
    // In each half of a register: four rows at one column each, of the first four rows and of the others.
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
            _mm256_storeu_ps(to.add(column * to_stride), _mm256_permute2f128_ps::<0x20>(a, b));
            _mm256_storeu_ps(to.add((4 + column) * to_stride), _mm256_permute2f128_ps::<0x31>(a, b));
        }
    }
}
