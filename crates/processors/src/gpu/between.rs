//! The part of a feed-forward between its layers, on a GPU.

use bytemuck::{Pod, Zeroable};
use triad_kernels::activation::Activation;

use super::context::{Context, WORD};
use crate::error::Result;
use crate::subgraph::FeedForward;

/// The part of a feed-forward between gate, up and down.
pub(super) struct Between {
    pub width: usize,
    pub uniforms: FeedForwardUniforms,
    /// Parameters in the layout of `activate.wgsl`.
    pub parameters: wgpu::Buffer,
    pub returns_inner: bool,
}

/// Matches `FeedForward` in `activate.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct FeedForwardUniforms {
    pub rows: u32,
    pub width: u32,
    pub quads: u32,
    pub activation: u32,
    pub gated: u32,
    pub inverse_scale: f32,
}

impl Between {
    pub fn new(context: &Context, feed_forward: &FeedForward) -> Result<Self> {
        let FeedForward {
            input_scale,
            up,
            gate,
            activation,
            inner_scale,
            smoothing,
            down,
            return_inner,
            ..
        } = feed_forward;
        let width = down.weight().in_features;
        let mut parameters = Vec::with_capacity(5 * width);
        let zeros = vec![0.0; width];
        for layer in [Some(up), gate.as_ref()] {
            match layer {
                Some(layer) => {
                    parameters.extend(
                        layer
                            .weight()
                            .scales
                            .iter()
                            .map(|scale| input_scale * scale),
                    );
                    parameters.extend_from_slice(layer.bias().unwrap_or(&zeros));
                }
                None => [&zeros, &zeros]
                    .into_iter()
                    .for_each(|zeros| parameters.extend_from_slice(zeros)),
            }
        }
        match smoothing {
            Some(smoothing) => parameters.extend_from_slice(smoothing),
            None => parameters.resize(5 * width, 1.0),
        }
        let uniforms = FeedForwardUniforms {
            rows: 0,
            width: width as u32,
            quads: width.div_ceil(WORD) as u32,
            activation: match activation {
                Activation::Silu => 0,
                Activation::GeluTanh => 1,
                Activation::Gelu => 2,
                Activation::ReluSquared => 3,
            },
            gated: u32::from(gate.is_some()),
            inverse_scale: inner_scale.recip(),
        };
        let parameters = context.filled("scales and biases", &parameters)?;
        Ok(Self {
            width,
            uniforms,
            parameters,
            returns_inner: *return_inner,
        })
    }
}
