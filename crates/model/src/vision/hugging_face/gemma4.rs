//! The encoder of Gemma 4.

use super::families::{Common, common};
use super::fields::{activation, rope_base, size_or, unsupported};
use crate::description::{Norm, NormKind};
use crate::error::Result;
use crate::family::Config;
use crate::vision::description::{
    Positions, Projector, ProjectorNorm, VisionDescription, VisionPairs,
};
use crate::vision::limits;

const DEFAULTS: Common = Common {
    hidden: ("hidden_size", 768),
    blocks: ("num_hidden_layers", 16),
    heads: ("num_attention_heads", 12),
    channels: "num_channels",
    patch: 16,
    activation: ACTIVATION,
    epsilon: None,
};

const ACTIVATION: &str = "gelu_pytorch_tanh";

pub(super) fn gemma4(
    outer: &Config<'_>,
    vision: &Config<'_>,
    width: usize,
) -> Result<VisionDescription> {
    if let Some(model_type) = vision.string("model_type")?
        && model_type != "gemma4_vision"
    {
        let expected = "gemma4_vision";
        return Err(unsupported(vision, "model_type", model_type, expected));
    }
    let inner = size_or(vision, "intermediate_size", 3072)?;
    let shared = common(vision, &DEFAULTS, inner, ("gemma4v", width))?;
    let [heads, hidden] = [shared.heads, shared.hidden];
    let kv_heads = size_or(vision, "num_key_value_heads", 12)?;
    if kv_heads != heads {
        let expected = format!("`num_attention_heads`, {heads}");
        return Err(unsupported(
            vision,
            "num_key_value_heads",
            kv_heads,
            &expected,
        ));
    }
    let head_dim = size_or(vision, "head_dim", 64)?;
    if head_dim.saturating_mul(heads) != hidden {
        let expected = format!("`hidden_size` / `num_attention_heads`, {hidden} / {heads}");
        return Err(unsupported(vision, "head_dim", head_dim, &expected));
    }
    let side = vision.size("position_embedding_size", limits::PATCHES)?;
    let epsilon = vision.positive("rms_norm_eps")?;
    let norm = Norm {
        kind: NormKind::Rms,
        epsilon: epsilon.map_or(1e-6, |it| it as f32),
        weight_offset: 0.0,
    };
    Ok(VisionDescription {
        channels_last: true,
        patch_bias: false,
        centered: true,
        activation: activation(vision, "hidden_activation", ACTIVATION)?,
        norm,
        bounded: vision.bool("use_clipped_linears")?.unwrap_or(false),
        positions: Positions::Axes {
            side: side.unwrap_or(10_240),
        },
        rope_base: Some(rope_base(vision, 100.0)?),
        together: together(outer)?,
        projector: Projector {
            merge: vision
                .size("pooling_kernel_size", limits::MERGE)?
                .unwrap_or(3),
            standardized: vision.bool("standardize")?.unwrap_or(false),
            ..projector(hidden, norm)
        },
        ..blocks(shared)
    })
}

/// Returns the parts of the encoder's blocks that no field states.
pub(in crate::vision) fn blocks(shared: VisionDescription) -> VisionDescription {
    VisionDescription {
        gated: true,
        qkv_bias: false,
        bias: false,
        head_norms: true,
        post_norms: true,
        attention_scale: Some(1.0),
        rope_pairs: VisionPairs::ColumnHalfThenRowHalf,
        output_norm: false,
        together_in_windows: true,
        ..shared
    }
}

/// Returns the parts of the projector that no field states. Cells are as in published models.
pub(in crate::vision) fn projector(hidden: usize, norm: Norm) -> Projector {
    Projector {
        merge: 3,
        mean: true,
        factor: Some((hidden as f32).sqrt()),
        norm: Some(ProjectorNorm {
            norm,
            weighted: false,
            after_merge: true,
        }),
        ..Projector::PLAIN
    }
}

/// Returns whether rows of a view read each other in the text model.
fn together(outer: &Config<'_>) -> Result<bool> {
    let Some(text) = outer.object("text_config", "text_config.")? else {
        return Ok(false);
    };
    // A row has the input by token of this id.
    let padding = text.count("pad_token_id")?.unwrap_or(0);
    let has_inputs = text.count("hidden_size_per_layer_input")?.unwrap_or(256) > 0;
    if has_inputs && padding != 0 {
        return Err(unsupported(&text, "pad_token_id", padding, "0"));
    }
    let key = "use_bidirectional_attention";
    match text.string(key)? {
        None => Ok(false),
        Some("vision") => Ok(true),
        Some(other) => Err(unsupported(&text, key, other, "vision")),
    }
}
