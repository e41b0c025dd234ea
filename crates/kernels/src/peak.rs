//! Measures peak rates of this processor: the limits with which measurements are compared.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

#[cfg(target_arch = "aarch64")]
mod arm;
mod rounds;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::vectorize::vectorize;
#[cfg(target_arch = "aarch64")]
use arm::{bf16_round, int8_round, int16_round};
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use none::{bf16_round, int8_round, int16_round};
use rounds::{ACCUMULATORS, ITERATIONS, NARROW_ACCUMULATORS};
#[cfg(target_arch = "x86_64")]
use x86::{bf16_round, int8_round, int16_round};

const ROUNDS: usize = 30;
/// Number of checks by a waiting thread before it yields.
const LOOKS: u32 = 4096;

/// Measures the peak f32 arithmetic of `threads` concurrent threads, in operations per second (a fused multiply-add
/// counts two): multiply-adds in registers, the best of thirty rounds.
pub fn f32_operations_per_second(threads: usize) -> f64 {
    best(threads, ROUNDS, &|| {
        Box::new(|| pulp::Arch::new().dispatch(MultiplyAdd))
    })
}

/// A timed round of a thread, which returns its number of operations (or bytes).
pub(crate) type Round<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// Returns the combined rate per second of some threads in the best of many rounds, which all threads start together.
/// Each thread prepares a round.
pub(crate) fn best<'a>(
    threads: usize,
    rounds: usize,
    prepare: &(dyn Fn() -> Round<'a> + Sync),
) -> f64 {
    let arrived = AtomicUsize::new(0);
    let work = || {
        let mut round = prepare();
        let run = |index: usize| {
            arrived.fetch_add(1, Ordering::SeqCst);
            // Spins: waking a thread would take a considerable part of a round.
            let mut looks = 0u32;
            while arrived.load(Ordering::SeqCst) < (index + 1) * threads {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(LOOKS) {
                    // Another thread may be waiting for this core.
                    std::thread::yield_now();
                }
                std::hint::spin_loop();
            }
            let start = Instant::now();
            let operations = round();
            (operations, start, Instant::now())
        };
        (0..rounds).map(run).collect::<Vec<_>>()
    };
    let of_threads: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a measuring thread does not panic"))
            .collect()
    });
    let rates = (0..rounds).filter_map(|round| {
        let of_round = of_threads.iter().map(|rounds| rounds[round]);
        let start = of_round.clone().map(|(_, start, _)| start).min()?;
        let end = of_round.clone().map(|(_, _, end)| end).max()?;
        Some(of_round.map(|(operations, ..)| operations).sum::<f64>() / (end - start).as_secs_f64())
    });
    rates.fold(0.0, f64::max)
}

/// The loop of fused multiply-adds in the widest registers of this processor. It returns the number of operations.
struct MultiplyAdd;

impl pulp::WithSimd for MultiplyAdd {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> f64 {
        let (factor, summand) = (
            simd.splat_f32s(black_box(0.999)),
            simd.splat_f32s(black_box(0.001)),
        );
        if S::REGISTER_COUNT > ACCUMULATORS {
            multiply_add::<S, ACCUMULATORS>(simd, factor, summand)
        } else {
            multiply_add::<S, NARROW_ACCUMULATORS>(simd, factor, summand)
        }
    }
}

#[inline(always)]
fn multiply_add<S: pulp::Simd, const SUMS: usize>(
    simd: S,
    factor: S::f32s,
    summand: S::f32s,
) -> f64 {
    let mut sums = [simd.splat_f32s(black_box(1.0)); SUMS];
    for _ in 0..ITERATIONS {
        for sum in &mut sums {
            *sum = simd.mul_add_f32s(*sum, factor, summand);
        }
    }
    black_box(sums);
    (2 * S::F32_LANES * SUMS * ITERATIONS) as f64
}

/// Measures the peak INT8 arithmetic of `threads` concurrent threads, in operations per second (a product and its
/// addition count two), in registers, as [`f32_operations_per_second`] does. On x86-64 it uses tiles with AMX,
/// dot-product instructions with AVX-512 VNNI or AVX-VNNI, and products of 16-bit numbers and additions with AVX2. On
/// ARM without SME it uses matrix products or dot products. Returns `None` on other processors, which are not measured.
pub fn int8_operations_per_second(threads: usize) -> Option<f64> {
    let round = int8_round()?;
    Some(best(threads, ROUNDS, &|| Box::new(round)))
}

/// Measures the peak INT16 arithmetic of `threads` concurrent threads, in operations per second (a product and its
/// addition count two), in registers, as [`f32_operations_per_second`] does. On x86-64 it uses dot-product instructions
/// with AVX-512 VNNI or AVX-VNNI, and products and additions with AVX2. Returns `None` on other processors, where no
/// kernel multiplies pairs of INT16.
pub fn int16_operations_per_second(threads: usize) -> Option<f64> {
    let round = int16_round()?;
    Some(best(threads, ROUNDS, &|| Box::new(round)))
}

/// Measures the peak bf16 arithmetic of `threads` concurrent threads, in operations per second (a product and its
/// addition count two): tiles or dot-product instructions in registers, as [`f32_operations_per_second`] does. Returns
/// `None` if no kernel uses such an instruction of this processor.
pub fn bf16_operations_per_second(threads: usize) -> Option<f64> {
    let round = bf16_round()?;
    Some(best(threads, ROUNDS, &|| Box::new(round)))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod none {
    pub(super) fn int8_round() -> Option<fn() -> f64> {
        None
    }

    pub(super) use {int8_round as bf16_round, int8_round as int16_round};
}

/// More bytes than caches hold.
pub const MEMORY: usize = 256 << 20;
/// Rounds of reading; the fastest counts.
const READS: usize = 48;
/// Maximum number of bytes that a thread reads per round, so that it takes a few milliseconds and is seldom
/// interrupted.
const READ: usize = 16 << 20;
/// Total number of bytes that a thread reads per round if it reads a small buffer repeatedly.
const READ_AGAIN: usize = 128 << 20;

/// Measures the bandwidth of `threads` concurrent threads, in bytes per second, by the fastest of 48 rounds. Each
/// thread sums its share of `bytes`: a small one repeatedly, a large one in successive stretches. With [`MEMORY`], this
/// is the bandwidth of the memory; with fewer bytes, that of the cache that holds them.
pub fn bytes_read_per_second(threads: usize, bytes: usize) -> f64 {
    best(threads, READS, &|| {
        // Written to, so that it is backed by memory rather than the system's single page of zeros.
        let buffer = vec![black_box(1u64); (bytes / threads.max(1) / size_of::<u64>()).max(64)];
        let stretch = buffer.len().min(READ / size_of::<u64>());
        let times = if buffer.len() > stretch {
            1
        } else {
            READ_AGAIN.div_ceil(size_of_val(&buffer[..]))
        };
        let mut first = 0;
        let read_once = |buffer: &[u64]| {
            vectorize(
                #[inline(always)]
                || {
                    let mut sums = [0u64; 64];
                    for block in buffer.as_chunks::<64>().0 {
                        for (sum, number) in sums.iter_mut().zip(block) {
                            *sum = sum.wrapping_add(*number);
                        }
                    }
                    black_box(sums);
                },
            );
        };
        Box::new(move || {
            let stretch = &buffer[first..first + stretch];
            first += stretch.len();
            first = if first + stretch.len() > buffer.len() {
                0
            } else {
                first
            };
            (0..times).for_each(|_| read_once(stretch));
            (times * size_of_val(stretch)) as f64
        })
    })
}
