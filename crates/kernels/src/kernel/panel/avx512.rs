//! AVX-512 kernels for panels.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_castpd_ps, _mm512_castps_pd, _mm512_castsi512_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_unpackhi_pd,
    _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use super::{LANES, Panel, PanelKernel, check_transpose};
use crate::kernel::avx512::lanes;

/// Rows of the largest tile: with [`BLOCKS`] they use 24 registers for sums and leave eight for operands.
pub(super) const ROWS: usize = 6;
/// Blocks of columns of the largest tile.
pub(super) const BLOCKS: usize = 4;

/// Defines a kernel for one set of instructions that `new` has detected: `$multiply_add(x, factors, sums)` multiplies
/// words by words and adds the products to sums in f32.
macro_rules! kernel {
    ($kernel:ident, $name:literal, $features:literal, $multiply_add:path) => {
        use std::arch::x86_64::{
            _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_epi32,
            _mm512_setzero_ps, _mm512_setzero_si512,
        };

        impl PanelKernel for $kernel {
            fn name(&self) -> &'static str {
                $name
            }

            fn multiply(&self, panel: &Panel) {
                panel.check();
                // SAFETY: `new` has detected the instructions.
                #[allow(unsafe_code)]
                unsafe {
                    multiply(panel);
                }
            }

            fn transpose(
                &self,
                from: &[u32],
                from_stride: usize,
                to: &mut [u32],
                to_stride: usize,
            ) {
                check_transpose(from, from_stride, to, to_stride);
                // SAFETY: `new` has detected the instructions; the check verified that the sixteen rows are in the
                // slices.
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

        /// Multiplies a panel that has been checked.
        #[target_feature(enable = $features)]
        fn multiply(panel: &Panel) {
            let blocks = panel.columns.len().div_ceil(LANES);
            let mut block = 0;
            while block < blocks {
                block += match blocks - block {
                    1 => all_rows::<1>(panel, block),
                    2 | 3 => all_rows::<2>(panel, block),
                    _ => all_rows::<BLOCKS>(panel, block),
                };
            }
        }

        /// Computes all rows of some blocks of columns. Returns the number of blocks.
        #[target_feature(enable = $features)]
        fn all_rows<const BLOCKS: usize>(panel: &Panel, block: usize) -> usize {
            let rows = panel.out.rows();
            let mut row = 0;
            while row + ROWS <= rows {
                tile::<ROWS, BLOCKS>(panel, row, block);
                row += ROWS;
            }
            match rows - row {
                0 => {}
                1 => tile::<1, BLOCKS>(panel, row, block),
                2 => tile::<2, BLOCKS>(panel, row, block),
                3 => tile::<3, BLOCKS>(panel, row, block),
                4 => tile::<4, BLOCKS>(panel, row, block),
                _ => tile::<5, BLOCKS>(panel, row, block),
            }
            BLOCKS
        }

        /// Computes some rows of some blocks: all sums stay in registers from the first step to the last.
        #[target_feature(enable = $features)]
        fn tile<const ROWS: usize, const BLOCKS: usize>(panel: &Panel, row: usize, block: usize) {
            let mut sums = [[_mm512_setzero_ps(); BLOCKS]; ROWS];
            let first = panel.columns.start + block * LANES;
            let columns = |index: usize| {
                let first = first + index * LANES;
                first..(first + LANES).min(panel.columns.end)
            };
            if panel.add {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (index, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: only this task writes this panel's columns; the mask covers the slice's length.
                        #[allow(unsafe_code)]
                        unsafe {
                            let out = panel.out.row(row + r, columns(index));
                            *sum = _mm512_maskz_loadu_ps(lanes(out.len()), out.as_ptr());
                        }
                    }
                }
            }
            let left = panel.left[row * panel.left_stride..].as_ptr();
            let mut right = panel.right[block * LANES..].as_ptr();
            for step in 0..panel.steps {
                let mut factors = [_mm512_setzero_si512(); BLOCKS];
                for (index, factor) in factors.iter_mut().enumerate() {
                    // SAFETY: `check` verified that the slice has whole blocks of every step.
                    #[allow(unsafe_code)]
                    unsafe {
                        *factor = _mm512_loadu_si512(right.add(index * LANES).cast());
                    }
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: `check` verified that the slice has every step of every row.
                    #[allow(unsafe_code)]
                    let word = unsafe { *left.add(r * panel.left_stride + step) };
                    let x = _mm512_set1_epi32(word as i32);
                    for (sum, factor) in sums.iter_mut().zip(factors) {
                        *sum = $multiply_add(x, factor, *sum);
                    }
                }
                right = right.wrapping_add(panel.right_stride);
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (index, sum) in sums.into_iter().enumerate() {
                    // SAFETY: only this task writes this panel's columns; the mask covers the slice's length.
                    #[allow(unsafe_code)]
                    unsafe {
                        let out = panel.out.row(row + r, columns(index));
                        _mm512_mask_storeu_ps(out.as_mut_ptr(), lanes(out.len()), sum);
                    }
                }
            }
        }
    };
}
pub(super) use kernel;

/// The kernel. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct Avx512(());

impl Avx512 {
    pub(in crate::kernel) fn new() -> Option<Self> {
        crate::isa::Isa::Avx512.is_supported().then_some(Self(()))
    }
}

kernel!(Avx512, "avx512", "avx512f", multiply_add);

#[target_feature(enable = "avx512f")]
fn multiply_add(x: __m512i, factors: __m512i, sums: __m512) -> __m512 {
    _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(factors), sums)
}

/// # Safety
/// Sixteen numbers at each of sixteen rows must be readable and writable.
#[allow(unsafe_code)]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose(
    from: *const f32,
    from_stride: usize,
    to: *mut f32,
    to_stride: usize,
) {
    // SAFETY: as the caller promises.
    let rows: [__m512; LANES] =
        std::array::from_fn(|row| unsafe { _mm512_loadu_ps(from.add(row * from_stride)) });
    // Each quarter of a register holds pairs of rows, then groups of four rows, at one column each.
    let mut pairs = rows;
    for index in (0..LANES).step_by(2) {
        pairs[index] = _mm512_unpacklo_ps(rows[index], rows[index + 1]);
        pairs[index + 1] = _mm512_unpackhi_ps(rows[index], rows[index + 1]);
    }
    let mut fours = pairs;
    for four in (0..LANES).step_by(4) {
        for half in 0..2 {
            let (a, b) = (
                _mm512_castps_pd(pairs[four + half]),
                _mm512_castps_pd(pairs[four + 2 + half]),
            );
            fours[four + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[four + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    for column in 0..4 {
        let [a, b, c, d] = [
            fours[column],
            fours[4 + column],
            fours[8 + column],
            fours[12 + column],
        ];
        let low = (
            _mm512_shuffle_f32x4::<0x44>(a, b),
            _mm512_shuffle_f32x4::<0x44>(c, d),
        );
        let high = (
            _mm512_shuffle_f32x4::<0xee>(a, b),
            _mm512_shuffle_f32x4::<0xee>(c, d),
        );
        let columns = [
            _mm512_shuffle_f32x4::<0x88>(low.0, low.1),
            _mm512_shuffle_f32x4::<0xdd>(low.0, low.1),
            _mm512_shuffle_f32x4::<0x88>(high.0, high.1),
            _mm512_shuffle_f32x4::<0xdd>(high.0, high.1),
        ];
        for (quarter, transposed) in columns.into_iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { _mm512_storeu_ps(to.add((4 * quarter + column) * to_stride), transposed) };
        }
    }
}
