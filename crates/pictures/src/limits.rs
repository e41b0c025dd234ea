//! Limits on pictures, which come from users of a server too.

/// Maximum size of a picture's file in bytes.
pub const MAX_BYTES: usize = 64 << 20;
/// Maximum number of pixels: 64 Mi, more than the sensors of most phones have.
pub const MAX_PIXELS: u64 = 1 << 26;
/// Maximum number of pixels of a row or column.
pub const MAX_SIDE: u32 = 1 << 14;
/// Maximum ratio of the sides, that of Qwen2-VL's processor.
pub const MAX_ASPECT: u32 = 200;
