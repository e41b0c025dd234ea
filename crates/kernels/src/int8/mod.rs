//! W8A8: linear layers in INT8, and the shadow that gives back what clipping took away.
//!
//! A weight is quantized once, symmetric, with one scale for each output channel ([`quantize_weight_rows`]),
//! and laid out for the kernels ([`pack`], [`LAYOUT`]). Activations are quantized as they come
//! ([`QuantizedRows`]): with the static scale of the layer, whose clip threshold is 127 · scale, or with a
//! scale for each row. [`matmul_int8`] multiplies both in i32 and scales the sums back to f32.
//! Activations beyond the clip threshold are outliers: their remainders times the same weights, added by
//! [`shadow()`], make the product that of the unclipped activations.
//!
//! All kernels give the same bits, and neither the number of threads nor how rows are batched changes one.

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
