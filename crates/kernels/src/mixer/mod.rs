//! Operators of token mixers that keep a state. Each computes the outputs of some rows and brings the state from before
//! these rows to after them, so that rows in one call or in several give the same bits.

mod convolution;
mod delta_net;
mod mamba2;
mod short_conv;

pub use delta_net::{DeltaNet, DeltaNetShape, gate_heads};
pub use mamba2::{Mamba2, Mamba2Heads, Mamba2Shape};
pub use short_conv::ShortConv;

/// Rows that go through one step before the next step begins. Their intermediate values stay in the cache.
const BLOCK: usize = 32;

/// Returns the number of rows for which scratch memory is useful.
pub fn scratch_rows(rows: usize) -> usize {
    rows.min(BLOCK)
}
