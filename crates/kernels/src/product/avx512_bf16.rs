//! AVX-512 with BF16 (Cooper Lake, Zen 4 and later): `vdpbf16ps` adds two products to each of sixteen sums in f32.

use std::arch::x86_64::{__m512, __m512bh, __m512i, _mm512_dpbf16_ps};

use super::avx512::{BLOCKS, ROWS, kernel, lanes, transpose};
use super::kernel::{Kernel, LANES, Panel, check_transpose};

/// The kernel, whose words are pairs of bf16; having one proves that the processor can run it.
pub(super) struct Avx512Bf16(());

impl Avx512Bf16 {
    pub(super) fn new() -> Option<Self> {
        (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")).then_some(Self(()))
    }
}

kernel!(Avx512Bf16, "avx512-bf16", "avx512f,avx512bf16", multiply_add);

#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_add(x: __m512i, factors: __m512i, sums: __m512) -> __m512 {
    // SAFETY: both types are 512 bits.
    #[allow(unsafe_code)]
    let [x, factors] = [x, factors].map(|words| unsafe { std::mem::transmute::<__m512i, __m512bh>(words) });
    _mm512_dpbf16_ps(sums, x, factors)
}
