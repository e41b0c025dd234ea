//! Limits of numbers and rows in INT8.

/// The largest magnitude of a quantized number: quantization is symmetric, so −128 is never used.
pub(crate) const LARGEST: f32 = 127.0;

/// Maximum number of input features of a layer: with more, a sum of products could overflow i32.
pub const MAX_IN_FEATURES: usize = i32::MAX as usize / (127 * 127);
