//! AVX2: `vpmaddwd` adds two products of 16-bit numbers to each of eight sums. Both operands are widened on the way.

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm_set1_epi32, _mm256_add_epi32, _mm256_cvtepi8_epi16, _mm256_cvtepu8_epi16,
    _mm256_madd_epi16, _mm256_set1_epi16, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_sub_epi16,
};

use super::kernel::{Kernel, Rectangle};
use super::layout::{BLOCK, QUAD, STEP};
use super::tile::{self, Rows, Sums};
use crate::tier::Tier;

/// Rows of a tile: with [`PARTS`] they make twelve of sixteen registers.
const ROWS: usize = 3;
/// Registers with the sums of a block: eight hold four channels, two sums for each.
const PARTS: usize = BLOCK / 4;

/// The kernel; having one proves that the processor can run it.
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn new() -> Option<Self> {
        Tier::Avx2.is_supported().then_some(Self(()))
    }
}

impl Kernel for Avx2 {
    fn name(&self) -> &'static str {
        "avx2-vpmaddwd"
    }

    fn tier(&self) -> Tier {
        Tier::Avx2
    }

    fn multiply(&self, rectangle: &Rectangle) {
        // SAFETY: `new` has found the instructions.
        #[allow(unsafe_code)]
        tile::multiply(rectangle, |x, weights| unsafe { sum(x, weights) });
    }
}

#[target_feature(enable = "avx2")]
fn sum(x: Rows<ROWS>, weights: &[[i8; STEP]]) -> Sums<ROWS> {
    assert!(x.iter().all(|x| x.len() == weights.len()), "as many quads as steps");
    let mut sums = [[_mm256_setzero_si256(); PARTS]; ROWS];
    for (step, weights) in weights.iter().enumerate() {
        let mut quads = [_mm256_setzero_si256(); ROWS];
        for (quad, x) in quads.iter_mut().zip(x) {
            // Activations are stored 128 too large.
            let stored = _mm256_cvtepu8_epi16(_mm_set1_epi32(i32::from_le_bytes(x[step])));
            *quad = _mm256_sub_epi16(stored, _mm256_set1_epi16(128));
        }
        for part in 0..PARTS {
            // SAFETY: a step has sixteen bytes for each part.
            #[allow(unsafe_code)]
            let weights = unsafe { _mm_loadu_si128(weights.as_ptr().add(part * 4 * QUAD).cast()) };
            let weights = _mm256_cvtepi8_epi16(weights);
            for (sums, quad) in sums.iter_mut().zip(quads) {
                sums[part] = _mm256_add_epi32(sums[part], _mm256_madd_epi16(weights, quad));
            }
        }
    }
    let mut out = [[0; BLOCK]; ROWS];
    for (out, sums) in out.iter_mut().zip(sums) {
        let (out, _) = out.as_chunks_mut::<QUAD>();
        for (out, sums) in out.iter_mut().zip(sums) {
            *out = pairs(sums);
        }
    }
    out
}

/// Each two neighbours added.
#[target_feature(enable = "avx2")]
fn pairs(sums: __m256i) -> [i32; 4] {
    let mut halves = [[0i32; 2]; 4];
    // SAFETY: both are 256 bits.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_storeu_si256(halves.as_mut_ptr().cast(), sums);
    }
    halves.map(|[a, b]| a + b)
}
