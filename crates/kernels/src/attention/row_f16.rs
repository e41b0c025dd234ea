//! Scores and weighted sums of one query row with keys and values in f16. Kernels widen these in registers, once for
//! three heads of a group, and store only scores and sums. The code is generic over the registers of AVX-512, of AVX2
//! with F16C, and of NEON.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::f16;

use crate::Matrix;
use crate::isa::{self, Isa};

/// Keys whose scores are summed at once.
const KEYS: usize = 4;
/// Registers with the sums of values of a head.
const WIDE: usize = 4;

/// A set of instructions that can widen f16.
///
/// # Safety
/// All functions require a processor that has the instructions, and must be inlined into a function that is compiled
/// for them. Those with pointers read or write one register there.
#[allow(unsafe_code)]
trait Halves {
    /// Numbers per register.
    const LANES: usize;
    /// A register of numbers in f32.
    type Floats: Copy;

    /// Returns a register with one number in all lanes.
    unsafe fn splat(number: f32) -> Self::Floats;
    /// Loads a register of numbers in f32.
    unsafe fn load(from: *const f32) -> Self::Floats;
    /// Loads as many numbers in f16 and widens them.
    unsafe fn widen(from: *const f16) -> Self::Floats;
    /// Computes `a · b + c`, rounded once.
    unsafe fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Stores a register.
    unsafe fn store(numbers: Self::Floats, to: *mut f32);
    /// Returns the sum of each register.
    unsafe fn totals(registers: [Self::Floats; KEYS]) -> [f32; KEYS];
}

/// The functions for one set of instructions.
#[derive(Clone, Copy)]
struct Functions {
    isa: Isa,
    /// `head_dim` must be a multiple of this.
    lanes: usize,
    /// [`scores`].
    scores: fn(&Strip, &mut [f32]),
    /// [`weighted`].
    weighted: fn(&Strip, &mut [f32], usize),
}

/// Returns the sets of instructions that this processor has, best first.
fn supported() -> impl Iterator<Item = Functions> {
    #[cfg(target_arch = "x86_64")]
    return [x86::avx512(), x86::avx2()].into_iter().flatten();
    #[cfg(target_arch = "aarch64")]
    return std::iter::once(neon::functions());
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return std::iter::empty();
}

/// Heads of queries, or their weights, with keys or values in f16.
struct Strip<'a> {
    /// `[heads, head_dim]` or `[heads, positions]`.
    heads: &'a [f32],
    /// `[positions, head_dim]`.
    rows: &'a [f16],
    dim: usize,
}

/// Keys and values of some positions, each `[positions, head_dim]`. A value of this type proves that the processor has
/// the instructions.
pub(super) struct F16Rows<'a> {
    keys: &'a [f16],
    values: &'a [f16],
    dim: usize,
    functions: Functions,
}

impl<'a> F16Rows<'a> {
    /// Returns `None` if keys or values are not f16, if `head_dim` is no multiple of a register, or if the processor
    /// lacks the instructions.
    pub(super) fn new(keys: Matrix<'a>, values: Matrix<'a>, dim: usize) -> Option<Self> {
        let functions = supported().find(|functions| isa::may_be_used(functions.isa))?;
        Self::with(functions, keys, values, dim)
    }

    fn with(
        functions: Functions,
        keys: Matrix<'a>,
        values: Matrix<'a>,
        dim: usize,
    ) -> Option<Self> {
        let (Matrix::F16(keys), Matrix::F16(values)) = (keys, values) else {
            return None;
        };
        dim.is_multiple_of(functions.lanes).then_some(Self {
            keys,
            values,
            dim,
            functions,
        })
    }

    /// Computes `scores[heads, positions]` = queries · keys, for `queries[heads, head_dim]`.
    ///
    /// # Panics
    /// If a slice's length contradicts the others.
    pub(super) fn scores(&self, queries: &[f32], scores: &mut [f32]) {
        let Self { keys, dim, .. } = *self;
        let (heads, count) = (queries.len() / dim, keys.len() / dim);
        assert!(
            keys.len() == count * dim
                && queries.len() == heads * dim
                && scores.len() == heads * count
        );
        (self.functions.scores)(
            &Strip {
                heads: queries,
                rows: keys,
                dim,
            },
            scores,
        );
    }

    /// Computes the sums of the values times `weights[heads, positions]` into the first `head_dim` of each `stride`
    /// numbers of `out`, one head each.
    ///
    /// # Panics
    /// If a slice's length contradicts the others.
    pub(super) fn weighted(&self, weights: &[f32], out: &mut [f32], stride: usize) {
        let Self { values, dim, .. } = *self;
        let (heads, count) = (out.len() / stride, values.len() / dim);
        assert!(values.len() == count * dim && weights.len() == heads * count && stride >= dim);
        assert_eq!(out.len(), heads * stride, "heads of {stride} numbers");
        (self.functions.weighted)(
            &Strip {
                heads: weights,
                rows: values,
                dim,
            },
            out,
            stride,
        );
    }
}

/// Computes the scores of all heads.
///
/// # Safety
/// The processor must have the instructions, and lengths must be those of [`F16Rows::scores`].
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn scores<H: Halves>(strip: &Strip, scores: &mut [f32]) {
    let (heads, count) = (strip.heads.len() / strip.dim, strip.rows.len() / strip.dim);
    let mut head = 0;
    while head < heads {
        let (queries, scores) = (
            &strip.heads[head * strip.dim..],
            &mut scores[head * count..],
        );
        // SAFETY: as the caller promises.
        unsafe {
            head += match heads - head {
                1 => scores_of::<H, 1>(queries, strip, scores),
                2 => scores_of::<H, 2>(queries, strip, scores),
                _ => scores_of::<H, 3>(queries, strip, scores),
            };
        }
    }
}

/// Computes the scores of the first heads. Returns their number.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn scores_of<H: Halves, const HEADS: usize>(
    queries: &[f32],
    strip: &Strip,
    scores: &mut [f32],
) -> usize {
    let Strip {
        rows: keys, dim, ..
    } = *strip;
    let count = keys.len() / dim;
    assert!(
        queries.len() >= HEADS * dim
            && scores.len() >= HEADS * count
            && dim.is_multiple_of(H::LANES)
    );
    for first in (0..count).step_by(KEYS) {
        let mut rows = [keys.as_ptr(); KEYS];
        for (key, row) in rows.iter_mut().enumerate() {
            // Past the end, the last key is used again.
            *row = keys[(first + key).min(count - 1) * dim..][..dim].as_ptr();
        }
        let left = KEYS.min(count - first);
        // SAFETY: the processor has the instructions; each row and head has `dim` numbers, a multiple of a register's
        // lanes.
        unsafe {
            let mut sums = [[H::splat(0.0); KEYS]; HEADS];
            for lane in (0..dim).step_by(H::LANES) {
                let mut query = [H::splat(0.0); HEADS];
                for (head, query) in query.iter_mut().enumerate() {
                    *query = H::load(queries.as_ptr().add(head * dim + lane));
                }
                for (key, row) in rows.into_iter().enumerate() {
                    let wide = H::widen(row.add(lane));
                    for (sums, query) in sums.iter_mut().zip(query) {
                        sums[key] = H::multiply_add(query, wide, sums[key]);
                    }
                }
            }
            for (head, sums) in sums.into_iter().enumerate() {
                scores[head * count + first..][..left].copy_from_slice(&H::totals(sums)[..left]);
            }
        }
    }
    HEADS
}

/// Computes the weighted sums of all heads.
///
/// # Safety
/// The processor must have the instructions, and lengths must be those of [`F16Rows::weighted`].
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn weighted<H: Halves>(strip: &Strip, out: &mut [f32], stride: usize) {
    let (heads, count) = (out.len() / stride, strip.rows.len() / strip.dim);
    let mut head = 0;
    while head < heads {
        let (weights, out) = (&strip.heads[head * count..], &mut out[head * stride..]);
        // SAFETY: as the caller promises.
        unsafe {
            head += match heads - head {
                1 => weighted_of::<H, 1>(weights, strip, out, stride),
                2 => weighted_of::<H, 2>(weights, strip, out, stride),
                _ => weighted_of::<H, 3>(weights, strip, out, stride),
            };
        }
    }
}

/// Computes the weighted sums of the first heads. Returns their number.
///
/// # Safety
/// As [`weighted`].
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn weighted_of<H: Halves, const HEADS: usize>(
    weights: &[f32],
    strip: &Strip,
    out: &mut [f32],
    stride: usize,
) -> usize {
    let mut lane = 0;
    while lane < strip.dim {
        // SAFETY: as the caller promises.
        unsafe {
            lane += H::LANES
                * if strip.dim - lane >= WIDE * H::LANES {
                    lanes_of::<H, HEADS, WIDE>(weights, strip, lane, out, stride)
                } else {
                    lanes_of::<H, HEADS, 1>(weights, strip, lane, out, stride)
                };
        }
    }
    HEADS
}

/// Computes some registers of the sums of some heads, from `lane` on. Returns the number of registers.
///
/// # Safety
/// As [`weighted`].
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn lanes_of<H: Halves, const HEADS: usize, const REGISTERS: usize>(
    weights: &[f32],
    strip: &Strip,
    lane: usize,
    out: &mut [f32],
    stride: usize,
) -> usize {
    let Strip {
        rows: values, dim, ..
    } = *strip;
    let (count, end) = (values.len() / dim, lane + REGISTERS * H::LANES);
    assert!(
        weights.len() >= HEADS * count && end <= dim && out.len() >= (HEADS - 1) * stride + end
    );
    // SAFETY: the processor has the instructions; all registers lie within a position's values and a head's sums.
    unsafe {
        let mut sums = [[H::splat(0.0); REGISTERS]; HEADS];
        for key in 0..count {
            let mut wide = [H::splat(0.0); REGISTERS];
            for (register, wide) in wide.iter_mut().enumerate() {
                *wide = H::widen(values.as_ptr().add(key * dim + lane + register * H::LANES));
            }
            for (head, sums) in sums.iter_mut().enumerate() {
                let weight = H::splat(*weights.get_unchecked(head * count + key));
                for (sum, wide) in sums.iter_mut().zip(wide) {
                    *sum = H::multiply_add(weight, wide, *sum);
                }
            }
        }
        for (head, sums) in sums.into_iter().enumerate() {
            for (register, sum) in sums.into_iter().enumerate() {
                H::store(
                    sum,
                    out.as_mut_ptr()
                        .add(head * stride + lane + register * H::LANES),
                );
            }
        }
    }
    REGISTERS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;

    #[test]
    fn scores_and_weighted_sums_of_every_set_of_instructions_agree_with_their_definition() {
        for functions in supported() {
            for (heads, count, dim) in [
                (1, 1, 16),
                (2, 3, 48),
                (3, 256, 64),
                (7, 9, 80),
                (5, 255, 144),
            ] {
                let halves = |seed| -> Vec<f16> {
                    values(count * dim, seed)
                        .into_iter()
                        .map(f16::from_f32)
                        .collect()
                };
                let (keys, of_values) = (halves(1), halves(2));
                let (queries, weights) = (values(heads * dim, 3), values(heads * count, 4));
                let rows =
                    F16Rows::with(functions, Matrix::F16(&keys), Matrix::F16(&of_values), dim)
                        .unwrap();
                let (mut scores, mut out) = (
                    vec![f32::NAN; heads * count],
                    vec![f32::NAN; heads * (dim + 2)],
                );
                rows.scores(&queries, &mut scores);
                rows.weighted(&weights, &mut out, dim + 2);
                let near = |found: f32, products: &mut dyn Iterator<Item = (f32, f16)>| {
                    let expected: f64 = products.map(|(a, b)| f64::from(a) * b.to_f64()).sum();
                    assert!(
                        (f64::from(found) - expected).abs() < 1e-4,
                        "{:?}: {found}, {expected}",
                        functions.isa
                    );
                };
                for (index, score) in scores.iter().enumerate() {
                    let (query, key) = (
                        &queries[index / count * dim..][..dim],
                        &keys[index % count * dim..],
                    );
                    near(*score, &mut query.iter().copied().zip(key.iter().copied()));
                }
                for (head, out) in out.chunks_exact(dim + 2).enumerate() {
                    let weights = &weights[head * count..][..count];
                    for (lane, sum) in out[..dim].iter().enumerate() {
                        let of_lane = of_values.iter().skip(lane).step_by(dim);
                        near(*sum, &mut weights.iter().copied().zip(of_lane.copied()));
                    }
                    assert!(
                        out[dim..].iter().all(|x| x.is_nan()),
                        "{:?} wrote beyond a head",
                        functions.isa
                    );
                }
            }
        }
    }
}
