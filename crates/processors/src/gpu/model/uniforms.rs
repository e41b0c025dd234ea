//! The uniforms of the shaders of models.

use bytemuck::{Pod, Zeroable};

/// Stands for no norm, no bias or no window, as in `call.wgsl`.
pub(super) const NONE: u32 = u32::MAX;

/// Matches `Product` in `product.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct ProductUniforms {
    pub units: u32,
    pub columns: u32,
    pub first: u32,
    pub stride: u32,
    pub bias_at: u32,
    pub adds: u32,
    pub of_outputs: u32,
    pub scales_at: u32,
}

/// Matches `Join` in `join.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct JoinUniforms {
    pub units: u32,
    pub columns: u32,
    pub first: u32,
    pub stride: u32,
    pub computed_from: u32,
    pub computed_columns: u32,
    pub computed_at: u32,
    pub adds: u32,
    pub scales_at: u32,
    pub unused: [u32; 3],
}

/// Matches `Quantize` in `quantize.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct QuantizeUniforms {
    pub quads: u32,
    pub smoothing_at: u32,
    pub scale: f32,
    pub inverse_scale: f32,
    pub has_shadow: u32,
    pub unused: [u32; 3],
}

/// Matches `Norm` in `norm.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct NormUniforms {
    pub quads: u32,
    pub weight_at: u32,
    pub bias_at: u32,
    pub epsilon: f32,
    pub of_outputs: u32,
    pub adds: u32,
    pub unused: [u32; 2],
}

/// Matches `Rope` in `rope.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct RopeUniforms {
    pub heads: u32,
    pub kv_heads: u32,
    pub pairs: u32,
    pub adjacent: u32,
    pub angles_at: u32,
    pub query_norm_at: u32,
    pub key_norm_at: u32,
    pub query_epsilon: f32,
    pub key_epsilon: f32,
    pub words_before: u32,
    pub unused: [u32; 2],
}

/// Matches `Attention` in `attention.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct AttentionUniforms {
    pub heads: u32,
    pub kv_heads: u32,
    pub window: u32,
    pub scale: f32,
    pub soft_cap: f32,
    pub unused: [u32; 3],
}

/// Matches `Combine` in `combine.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct CombineUniforms {
    pub heads: u32,
    pub unused: [u32; 3],
}

/// Matches `FeedForward` in `activate.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct ActivateUniforms {
    pub quads: u32,
    pub gated: u32,
    pub activation: u32,
    pub unused: u32,
}
