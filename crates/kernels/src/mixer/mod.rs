//! Operators of token mixers that keep a state. Each computes the outputs of some rows and brings the state from before
//! these rows to after them, so that rows in one call or in several give the same bits.

mod blocks;
mod convolution;
mod delta_net;
mod mamba2;
mod short_conv;

pub use delta_net::{DeltaNet, DeltaNetShape, gate_heads};
pub use mamba2::{GateNorm, Mamba2, Mamba2Heads, Mamba2Norm, Mamba2Shape};
pub use short_conv::ShortConv;

/// Rows that go through one step before the next step begins. Their intermediate values stay in the cache.
const BLOCK: usize = 32;
/// Rows that one task of a convolution or of a norm computes.
const TASK_ROWS: usize = 2;
/// Steps with fewer values than this run on the calling thread alone.
const PARALLEL: usize = 1 << 14;

/// Returns the number of rows for which scratch memory is useful.
pub fn scratch_rows(rows: usize) -> usize {
    rows.min(BLOCK)
}

/// Computes `ln(1 + eˣ)`.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_its_definition() {
        for x in [-90.0f32, -3.0, -0.1, 0.0, 0.5, 4.0, 25.0, 100.0] {
            let expected = f64::from(x) + (-f64::from(x)).exp().ln_1p();
            assert!(
                (f64::from(softplus(x)) - expected).abs() < 1e-6 * (1.0 + expected),
                "{x}"
            );
        }
    }
}
