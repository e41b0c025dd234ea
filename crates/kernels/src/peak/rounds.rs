//! The length of a timed round, and its independent sums.

/// Independent accumulators: enough to hide the latency of a fused multiply-add on two ports.
pub(super) const ACCUMULATORS: usize = 16;
/// Number of accumulators that fit, with operands, in sixteen registers. More would spill to memory, which would then
/// be measured.
pub(super) const NARROW_ACCUMULATORS: usize = 12;
/// Iterations per timed round, about a millisecond.
pub(super) const ITERATIONS: usize = 200_000;
