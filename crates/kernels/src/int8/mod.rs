//! W8A8: linear layers in INT8, and the shadow that restores what clipping removed.
//!
//! A weight is quantized once, symmetric, with one scale per output channel ([`quantize_weight_rows`]), and packed for
//! the kernels ([`pack`], [`LAYOUT`]). Activations are quantized at run time ([`QuantizedRows`]): with the static scale
//! of the layer, whose clip threshold is 127 · scale, or with a scale per row. [`matmul_int8`] multiplies both in i32
//! and scales the sums back to f32. Activations beyond the clip threshold are outliers: [`shadow()`] adds their
//! remainders times the same weights, which gives the product of the unclipped activations.
//!
//! All kernels give the same bits, for any number of threads and any batching of rows.

mod activations;
mod layout;
mod matmul;
mod shadow;
mod sums;
#[cfg(test)]
mod tests;
mod weight;

pub use crate::kernel::int8::MAX_IN_FEATURES;
pub use crate::kernel::int8::rows::QuantizedView;
pub use crate::kernel::int8::weight::{Int8Weight, packed_len};
pub use activations::{Gated, QuantizedRows};
pub use layout::{LAYOUT, pack, unpack};
pub use matmul::{Int8Product, matmul_int8, matmul_int8_each};
pub use shadow::{join_shadow, shadow, shadow_apart, shadow_float, shadow_of_channels};
pub use sums::{matmul_sums, scale_sums};
pub use weight::{quantize_weight_rows, quantize_weight_tensor, row_sums};
