//! W8A8: linear layers in INT8, and the shadow that gives back what clipping took away.
//!
//! A weight is quantized once, symmetric, with one scale for each output channel ([`quantize_weight_rows`]),
//! and laid out for the kernels ([`pack`], [`LAYOUT`]). Activations are quantized as they come
//! ([`QuantizedRows`]): with the static scale of the layer, whose clip threshold is 127 · scale, or with a
//! scale for each row. [`matmul_int8`] multiplies both in i32 and scales the sums back to f32.
//! Activations beyond the clip threshold are outliers: their remainders times the same weights, added by
//! [`shadow`], make the product that of the unclipped activations.
//!
//! `kernel` holds the table of kernels, best first: each is a type whose `new` answers `None` where the
//! processor lacks its instructions, and each equals `reference`, the plain one, bit for bit. Neither the
//! number of threads nor how rows are batched changes a bit of the outputs.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512_rows;
#[cfg(target_arch = "x86_64")]
mod avx512_vnni;
#[cfg(target_arch = "aarch64")]
mod dotprod;
#[cfg(target_arch = "aarch64")]
mod i8mm;
mod kernel;
mod layout;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
mod reference;
mod shadow;
#[cfg(test)]
mod tests;
mod tile;
pub(crate) mod weight;

pub use activations::{QuantizedRows, QuantizedView};
pub use layout::{LAYOUT, pack, packed_len, unpack};
pub use matmul::{Int8Product, matmul_int8, matmul_int8_each};
pub use shadow::{join_shadow, shadow, shadow_apart, shadow_float};
pub use weight::{Int8Weight, quantize_weight_rows, quantize_weight_tensor, row_sums};

/// The largest magnitude of a quantized number: symmetric, so −128 is never used.
const LARGEST: f32 = 127.0;

/// The most input features of a layer, so that no sum of products leaves i32.
pub const MAX_IN_FEATURES: usize = i32::MAX as usize / (127 * 127);

/// The name of the kernel that [`matmul_int8`] uses on this processor.
pub fn kernel_name() -> &'static str {
    kernel::available()[0].name()
}
