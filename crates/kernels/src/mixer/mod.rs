//! Operators of token mixers that keep a state. Each computes the outputs of some rows and brings the state from before
//! these rows to after them, so that rows in one call or in several give the same bits.

mod delta_net;
mod short_conv;

pub use delta_net::{DeltaNet, DeltaNetShape, gate_heads};
pub use short_conv::ShortConv;
