//! What this processor could do at most: the limit that measurements are compared with.

use std::hint::black_box;
use std::time::Instant;

/// Independent accumulators: enough to hide the latency of a fused multiply-add on two ports.
const ACCUMULATORS: usize = 16;
/// Iterations of one timed round, about a millisecond.
const ITERATIONS: usize = 200_000;
const ROUNDS: usize = 30;

/// Peak f32 arithmetic of `threads` threads at once, in operations a second (a fused multiply-add counts
/// two): multiply-adds in registers, the best of thirty rounds on every thread.
pub fn f32_operations_per_second(threads: usize) -> f64 {
    let one = || (0..ROUNDS).map(|_| round()).fold(0.0, f64::max);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a measuring thread does not panic")).sum()
    })
}

fn round() -> f64 {
    let start = Instant::now();
    let operations = pulp::Arch::new().dispatch(MultiplyAdd);
    operations / start.elapsed().as_secs_f64()
}

/// Runs the loop of fused multiply-adds at the widest registers of this processor; answers how many
/// operations it ran.
struct MultiplyAdd;

impl pulp::WithSimd for MultiplyAdd {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> f64 {
        let (factor, summand) = (simd.splat_f32s(black_box(0.999)), simd.splat_f32s(black_box(0.001)));
        let mut sums = [simd.splat_f32s(black_box(1.0)); ACCUMULATORS];
        for _ in 0..ITERATIONS {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(*sum, factor, summand);
            }
        }
        black_box(sums);
        (2 * S::F32_LANES * ACCUMULATORS * ITERATIONS) as f64
    }
}
