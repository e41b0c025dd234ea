//! AVX-512, and AVX2 with F16C.

use std::arch::x86_64::{
    __m256, __m512, _mm_add_ps, _mm_loadu_si128, _mm_storeu_ps, _mm256_add_ps, _mm256_castpd_ps,
    _mm256_castps256_ps128, _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_fmadd_ps,
    _mm256_hadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_set1_ps, _mm256_storeu_ps,
    _mm512_castps_pd, _mm512_castps512_ps256, _mm512_cvtph_ps, _mm512_extractf64x4_pd,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_storeu_ps,
};

use half::f16;

use super::{Functions, Halves, KEYS, Strip, scores, weighted};
use crate::isa::Isa;

/// Defines the functions for a set of instructions; they return `None` if the processor lacks it.
macro_rules! functions {
    ($name:ident, $isa:expr, $has:expr, $halves:ident, $features:literal) => {
        pub(super) fn $name() -> Option<Functions> {
            #[target_feature(enable = $features)]
            fn of_scores(strip: &Strip, out: &mut [f32]) {
                // SAFETY: this function is compiled for the instructions; the caller has checked lengths.
                #[allow(unsafe_code)]
                unsafe {
                    scores::<$halves>(strip, out);
                }
            }
            #[target_feature(enable = $features)]
            fn of_values(strip: &Strip, out: &mut [f32], stride: usize) {
                // SAFETY: as above.
                #[allow(unsafe_code)]
                unsafe {
                    weighted::<$halves>(strip, out, stride);
                }
            }
            #[allow(unsafe_code)]
            $has.then_some(Functions {
                isa: $isa,
                lanes: $halves::LANES,
                scores: |strip, out| {
                    // SAFETY: this closure exists only if the processor has the instructions.
                    unsafe { of_scores(strip, out) }
                },
                weighted: |strip, out, stride| {
                    // SAFETY: as above.
                    unsafe { of_values(strip, out, stride) }
                },
            })
        }
    };
}

functions!(
    avx512,
    Isa::Avx512,
    Isa::Avx512.is_supported(),
    Wide,
    "avx512f"
);
functions!(
    avx2,
    Isa::Avx2,
    (Isa::Avx2.is_supported() && is_x86_feature_detected!("f16c")),
    Narrow,
    "avx2,fma,f16c"
);

/// Registers of 512 bits.
struct Wide;

// SAFETY (of all functions): as the trait says.
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
impl Halves for Wide {
    const LANES: usize = 16;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn splat(number: f32) -> __m512 {
        _mm512_set1_ps(number)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }

    #[inline(always)]
    unsafe fn widen(from: *const f16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn store(numbers: __m512, to: *mut f32) {
        _mm512_storeu_ps(to, numbers);
    }

    #[inline(always)]
    unsafe fn totals(registers: [__m512; KEYS]) -> [f32; KEYS] {
        let mut halves = [_mm256_set1_ps(0.0); KEYS];
        for (half, register) in halves.iter_mut().zip(registers) {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(register)));
            *half = _mm256_add_ps(_mm512_castps512_ps256(register), high);
        }
        Narrow::totals(halves)
    }
}

/// Registers of 256 bits.
struct Narrow;

// SAFETY (of all functions): as the trait says.
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
impl Halves for Narrow {
    const LANES: usize = 8;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn splat(number: f32) -> __m256 {
        _mm256_set1_ps(number)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        _mm256_loadu_ps(from)
    }

    #[inline(always)]
    unsafe fn widen(from: *const f16) -> __m256 {
        _mm256_cvtph_ps(_mm_loadu_si128(from.cast()))
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn store(numbers: __m256, to: *mut f32) {
        _mm256_storeu_ps(to, numbers);
    }

    #[inline(always)]
    unsafe fn totals([a, b, c, d]: [__m256; KEYS]) -> [f32; KEYS] {
        // Halves of the four sums.
        let halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        let mut four = [0.0; KEYS];
        let sums = _mm_add_ps(
            _mm256_castps256_ps128(halves),
            _mm256_extractf128_ps::<1>(halves),
        );
        _mm_storeu_ps(four.as_mut_ptr(), sums);
        four
    }
}
