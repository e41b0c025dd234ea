//! Kernels of mixers, from their descriptions.

use triad_kernels::mixer::{
    DeltaNet, DeltaNetShape, GateNorm, Mamba2, Mamba2Heads, Mamba2Norm, Mamba2Shape,
};
use triad_model::description::{self, HeadSharing, MixerWeight};

use crate::weights::MixerWeights;

/// Returns the kernel of a DeltaNet with these weights.
///
/// # Panics
/// If a weight is missing or has another shape.
pub fn delta_net_kernel<'a>(
    net: &description::DeltaNet,
    weights: &'a MixerWeights,
) -> DeltaNet<'a> {
    DeltaNet::new(
        delta_net_shape(net),
        &weights[&MixerWeight::Convolution],
        [MixerWeight::Decay, MixerWeight::DecayBias].map(|weight| &weights[&weight][..]),
        (&weights[&MixerWeight::HeadNorm], net.epsilon),
    )
}

/// Returns the sizes for the kernel.
pub(super) fn delta_net_shape(net: &description::DeltaNet) -> DeltaNetShape {
    DeltaNetShape {
        key_heads: net.key_heads,
        value_heads: net.value_heads,
        key_dim: net.key_dim,
        value_dim: net.value_dim,
        taps: net.taps,
        tiled: net.sharing == HeadSharing::Remainder,
    }
}

/// Returns the kernel of a Mamba-2 with these weights.
///
/// # Panics
/// If a weight is missing or has another shape.
pub fn mamba2_kernel<'a>(mamba: &description::Mamba2, weights: &'a MixerWeights) -> Mamba2<'a> {
    let get = |weight: MixerWeight| &weights[&weight][..];
    let bias = weights.get(&MixerWeight::ConvolutionBias);
    Mamba2::new(
        mamba2_shape(mamba),
        (get(MixerWeight::Convolution), bias.map(Vec::as_slice)),
        Mamba2Heads {
            decay: get(MixerWeight::Decay),
            step_bias: get(MixerWeight::DecayBias),
            skip: get(MixerWeight::Skip),
        },
        Mamba2Norm {
            place: match mamba.norm {
                description::GateNorm::AfterGate => GateNorm::AfterGate,
                description::GateNorm::BeforeGate => GateNorm::BeforeGate,
                description::GateNorm::Never => GateNorm::Never,
            },
            factors: weights
                .get(&MixerWeight::HeadNorm)
                .map_or(&[], Vec::as_slice),
            epsilon: mamba.epsilon,
        },
    )
}

/// Returns the sizes for the kernel.
pub(super) fn mamba2_shape(mamba: &description::Mamba2) -> Mamba2Shape {
    Mamba2Shape {
        heads: mamba.heads,
        head_dim: mamba.head_dim,
        groups: mamba.groups,
        state: mamba.state,
        taps: mamba.taps,
    }
}
