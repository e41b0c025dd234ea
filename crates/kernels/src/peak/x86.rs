//! Timed rounds of x86's products in registers.

use std::arch::x86_64::{
    _mm256_add_epi32, _mm256_dpbusd_avx_epi32, _mm256_dpwssd_avx_epi32, _mm256_madd_epi16,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps,
    _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_set1_epi32, _mm512_set1_ps,
};
use std::hint::black_box;

use super::{ACCUMULATORS, ITERATIONS, NARROW_ACCUMULATORS};
use crate::amx;
use crate::isa::Isa;

/// Defines a round of an instruction with this many products and this many sums.
macro_rules! round {
    ($name:ident, $features:literal, $products:literal, $accumulators:ident, $sum:expr, [$a:expr, $b:expr], $instruction:expr) => {
        #[target_feature(enable = $features)]
        fn $name() -> f64 {
            let (a, b, mut sums) = ($a, $b, [$sum; $accumulators]);
            for _ in 0..ITERATIONS {
                for sum in &mut sums {
                    *sum = $instruction(*sum, a, b);
                }
            }
            black_box(sums);
            (2 * $products * $accumulators * ITERATIONS) as f64
        }
    };
}

round!(
    dot_products,
    "avx512f,avx512vnni",
    64,
    ACCUMULATORS,
    _mm512_set1_epi32(black_box(0)),
    [
        _mm512_set1_epi32(black_box(0x0101_0101)),
        _mm512_set1_epi32(black_box(0x0202_0202))
    ],
    _mm512_dpbusd_epi32
);
round!(
    narrow_dot_products,
    "avx2,avxvnni",
    32,
    NARROW_ACCUMULATORS,
    _mm256_set1_epi32(black_box(0)),
    [
        _mm256_set1_epi32(black_box(0x0101_0101)),
        _mm256_set1_epi32(black_box(0x0202_0202))
    ],
    _mm256_dpbusd_avx_epi32
);
round!(
    pairs,
    "avx512f,avx512vnni",
    32,
    ACCUMULATORS,
    _mm512_set1_epi32(black_box(0)),
    [
        _mm512_set1_epi32(black_box(0x0001_0001)),
        _mm512_set1_epi32(black_box(0x0002_0002))
    ],
    _mm512_dpwssd_epi32
);
round!(
    narrow_pairs,
    "avx2,avxvnni",
    16,
    NARROW_ACCUMULATORS,
    _mm256_set1_epi32(black_box(0)),
    [
        _mm256_set1_epi32(black_box(0x0001_0001)),
        _mm256_set1_epi32(black_box(0x0002_0002))
    ],
    _mm256_dpwssd_avx_epi32
);
// Each product depends on its sum, so the compiler can remove none.
round!(
    products_and_additions,
    "avx2",
    16,
    NARROW_ACCUMULATORS,
    _mm256_set1_epi32(black_box(1)),
    [_mm256_set1_epi16(black_box(3)), ()],
    |sum, factor, ()| _mm256_add_epi32(sum, _mm256_madd_epi16(sum, factor))
);
round!(
    bf16_products,
    "avx512f,avx512bw,avx512bf16",
    32,
    ACCUMULATORS,
    _mm512_set1_ps(black_box(1.0)),
    [
        _mm512_cvtne2ps_pbh(
            _mm512_set1_ps(black_box(0.999)),
            _mm512_set1_ps(black_box(0.999))
        ),
        _mm512_cvtne2ps_pbh(
            _mm512_set1_ps(black_box(0.001)),
            _mm512_set1_ps(black_box(0.001))
        )
    ],
    _mm512_dpbf16_ps
);

/// Returns a round whose instructions this processor has.
macro_rules! of {
    ($round:ident) => {
        Some(|| {
            // SAFETY: this closure exists only if the processor has the instructions.
            #[allow(unsafe_code)]
            unsafe {
                $round()
            }
        })
    };
}

pub(super) fn int8_round() -> Option<fn() -> f64> {
    match () {
        () if amx::Native::new().is_some() => {
            Some(|| amx::Native::new().map_or(0.0, amx::int8_operations))
        }
        () if has_vnni() => of!(dot_products),
        () if Isa::AvxVnni.is_supported() => of!(narrow_dot_products),
        () if Isa::Avx2.is_supported() => of!(products_and_additions),
        () => None,
    }
}

pub(super) fn int16_round() -> Option<fn() -> f64> {
    match () {
        () if has_vnni() => of!(pairs),
        () if Isa::AvxVnni.is_supported() => of!(narrow_pairs),
        () if Isa::Avx2.is_supported() => of!(products_and_additions),
        () => None,
    }
}

pub(super) fn bf16_round() -> Option<fn() -> f64> {
    let has_bf16 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512bf16");
    match () {
        () if amx::Native::new().is_some() => {
            Some(|| amx::Native::new().map_or(0.0, amx::bf16_operations))
        }
        () if has_bf16 => of!(bf16_products),
        () => None,
    }
}

fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni")
}
