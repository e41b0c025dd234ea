//! Kernels of mixers, from their descriptions.

use triad_kernels::mixer::{DeltaNet, DeltaNetShape};
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
