//! The encoder of each family: its fields, their defaults, and what no field states.

use super::fields::{
    activation, layer_norm, out_width, patches, rope_base, side, size_or, unsupported,
};
use crate::description::{Norm, NormKind};
use crate::error::{Error, Result};
use crate::family::Config;
use crate::vision::description::{
    Positions, Projector, ProjectorNorm, VisionDescription, VisionPairs, Windows,
};
use crate::vision::limits;

/// The fields that are the same in all encoders, with the defaults of their configuration.
pub(super) struct Common {
    pub(super) hidden: (&'static str, usize),
    pub(super) blocks: (&'static str, usize),
    pub(super) heads: (&'static str, usize),
    pub(super) channels: &'static str,
    pub(super) patch: usize,
    pub(super) activation: &'static str,
    pub(super) epsilon: Option<f32>,
}

/// Defaults of SigLIP, from which Idefics3 and Gemma 3 take theirs.
const SIGLIP: Common = Common {
    hidden: ("hidden_size", 768),
    blocks: ("num_hidden_layers", 12),
    heads: ("num_attention_heads", 12),
    channels: "num_channels",
    patch: 16,
    activation: "gelu_pytorch_tanh",
    epsilon: Some(1e-6),
};

const IDEFICS3: Common = Common {
    hidden: ("hidden_size", 1152),
    heads: ("num_attention_heads", 16),
    patch: 32,
    ..SIGLIP
};

const CLIP: Common = Common {
    patch: 32,
    activation: "quick_gelu",
    epsilon: Some(1e-5),
    ..SIGLIP
};

const QWEN: Common = Common {
    hidden: ("hidden_size", 3584),
    blocks: ("depth", 32),
    heads: ("num_heads", 16),
    channels: "in_channels",
    patch: 14,
    activation: "silu",
    epsilon: None,
};

const INTERNVL: Common = Common {
    hidden: ("hidden_size", 1024),
    blocks: ("num_hidden_layers", 24),
    heads: ("num_attention_heads", 16),
    channels: "num_channels",
    patch: 14,
    activation: "gelu",
    epsilon: Some(1e-6),
};

/// Returns a description with what most encoders have in common: layer norms, no positions, no class token.
pub(super) fn common(
    vision: &Config<'_>,
    defaults: &Common,
    inner: usize,
    (family, width): (&str, usize),
) -> Result<VisionDescription> {
    let size = |(key, default): (&str, usize), most: usize| {
        Ok::<_, Error>(vision.size(key, most)?.unwrap_or(default))
    };
    if let Some(channels) = vision.count(defaults.channels)?
        && channels != 3
    {
        return Err(unsupported(vision, defaults.channels, channels, "3"));
    }
    let epsilon = match defaults.epsilon {
        Some(default) => vision
            .positive("layer_norm_eps")?
            .map_or(default, |it| it as f32),
        None => 1e-6,
    };
    Ok(VisionDescription {
        family: family.to_owned(),
        patch: side(vision, "patch_size", limits::PATCH)?.unwrap_or(defaults.patch),
        frames: 1,
        channels_last: false,
        patch_bias: true,
        centered: false,
        hidden: size(defaults.hidden, limits::WIDTH)?,
        heads: size(defaults.heads, limits::WIDTH)?,
        blocks: size(defaults.blocks, limits::BLOCKS)?,
        inner,
        activation: activation(vision, "hidden_act", defaults.activation)?,
        gated: false,
        norm: layer_norm(epsilon),
        joined: false,
        qkv_bias: true,
        bias: true,
        bounded: false,
        head_norms: false,
        post_norms: false,
        attention_scale: None,
        layer_scale: false,
        class_token: false,
        positions: Positions::None,
        rope_base: None,
        rope_pairs: VisionPairs::RowThenColumn,
        input_norm: false,
        output_norm: true,
        windows: None,
        projector: Projector::PLAIN,
        deepstack: Vec::new(),
        width,
        together: false,
        together_in_windows: false,
    })
}

pub(super) fn idefics3(
    outer: &Config<'_>,
    vision: &Config<'_>,
    width: usize,
) -> Result<VisionDescription> {
    let inner = size_or(vision, "intermediate_size", 3072)?;
    let shared = common(vision, &IDEFICS3, inner, ("idefics3", width))?;
    let merge = outer.size("scale_factor", limits::MERGE)?.unwrap_or(2);
    let side = patches(vision, 224, shared.patch)?;
    Ok(VisionDescription {
        positions: Positions::Nearest { side },
        projector: Projector {
            merge,
            ..shared.projector
        },
        ..shared
    })
}

pub(super) fn gemma3(
    outer: &Config<'_>,
    vision: &Config<'_>,
    width: usize,
) -> Result<VisionDescription> {
    if let Some(model_type) = vision.string("model_type")?
        && model_type != "siglip_vision_model"
    {
        return Err(unsupported(
            vision,
            "model_type",
            model_type,
            "siglip_vision_model",
        ));
    }
    let inner = size_or(vision, "intermediate_size", 3072)?;
    let shared = common(vision, &SIGLIP, inner, ("gemma3", width))?;
    let side = patches(vision, 224, shared.patch)?;
    let tokens = outer.size("mm_tokens_per_image", limits::PATCHES)?;
    let tokens = tokens.unwrap_or(256);
    let per_side = tokens.isqrt();
    if per_side * per_side != tokens || !side.is_multiple_of(per_side) {
        return Err(unsupported(
            outer,
            "mm_tokens_per_image",
            tokens,
            &format!("the square of a divisor of {side} patches per side"),
        ));
    }
    let epsilon = shared.norm.epsilon;
    Ok(VisionDescription {
        positions: Positions::Fixed { side },
        together: true,
        projector: Projector {
            merge: side / per_side,
            mean: true,
            norm: Some(ProjectorNorm {
                norm: Norm {
                    kind: NormKind::Rms,
                    epsilon,
                    weight_offset: 1.0,
                },
                weighted: true,
                after_merge: true,
            }),
            transposed: true,
            ..shared.projector
        },
        ..shared
    })
}

pub(super) fn llava(
    outer: &Config<'_>,
    vision: &Config<'_>,
    width: usize,
) -> Result<VisionDescription> {
    let model_type = vision.required("model_type", vision.string("model_type")?)?;
    let is_clip = match model_type {
        "clip_vision_model" => true,
        "siglip_vision_model" => false,
        _ => {
            return Err(unsupported(
                vision,
                "model_type",
                model_type,
                "clip_vision_model or siglip_vision_model",
            ));
        }
    };
    let inner = size_or(vision, "intermediate_size", 3072)?;
    let defaults = if is_clip { &CLIP } else { &SIGLIP };
    let shared = common(vision, defaults, inner, ("mlp", width))?;
    let side = patches(vision, 224, shared.patch)?;
    // Only CLIP has the row that the strategy `default` drops.
    let strategy = outer
        .string("vision_feature_select_strategy")?
        .unwrap_or("default");
    let expected = if is_clip { "default" } else { "full" };
    if strategy != expected {
        let key = "vision_feature_select_strategy";
        return Err(unsupported(outer, key, strategy, expected));
    }
    // The number of a block whose output is read, of which -1 is the last; 0 is the input of the first.
    let layer = match outer.raw("vision_feature_layer") {
        None => -2,
        Some(value) => value.as_i64().ok_or_else(|| {
            let text = "an array or another value";
            unsupported(outer, "vision_feature_layer", text, "an integer")
        })?,
    };
    let all = shared.blocks as i64;
    let blocks = if layer < 0 { all + 1 + layer } else { layer };
    if !(1..=all).contains(&blocks) {
        let expected = format!("a number of {all} blocks");
        return Err(unsupported(outer, "vision_feature_layer", layer, &expected));
    }
    Ok(VisionDescription {
        patch_bias: !is_clip,
        blocks: blocks as usize,
        class_token: is_clip,
        positions: Positions::Fixed { side },
        input_norm: is_clip,
        output_norm: false,
        projector: Projector {
            inner: Some(width),
            activation: activation(outer, "projector_hidden_act", "gelu")?,
            bias: outer.bool("multimodal_projector_bias")?.unwrap_or(true),
            ..shared.projector
        },
        ..shared
    })
}

/// Returns the parts that all encoders of Qwen have in common.
fn of_qwen(vision: &Config<'_>, shared: VisionDescription) -> Result<VisionDescription> {
    let merge = vision
        .size("spatial_merge_size", limits::MERGE)?
        .unwrap_or(2);
    let frames = vision.size("temporal_patch_size", 8)?.unwrap_or(2);
    let hidden = shared.hidden;
    Ok(VisionDescription {
        frames,
        joined: true,
        rope_base: Some(rope_base(vision, 1e4)?),
        output_norm: false,
        projector: Projector {
            merge,
            norm: Some(ProjectorNorm {
                norm: shared.norm,
                weighted: true,
                after_merge: false,
            }),
            inner: Some(hidden.saturating_mul(merge * merge)),
            bias: true,
            ..shared.projector
        },
        ..shared
    })
}

pub(super) fn qwen2_vl(
    _outer: &Config<'_>,
    vision: &Config<'_>,
    width: usize,
) -> Result<VisionDescription> {
    let defaults = Common {
        hidden: ("embed_dim", 1280),
        activation: "quick_gelu",
        ..QWEN
    };
    let ratio = vision.size("mlp_ratio", 64)?.unwrap_or(4);
    let hidden = vision.size("embed_dim", limits::WIDTH)?.unwrap_or(1280);
    out_width(vision, "hidden_size", width)?;
    let family = ("qwen2vl_merger", width);
    let shared = common(vision, &defaults, ratio * hidden, family)?;
    of_qwen(
        vision,
        VisionDescription {
            patch_bias: false,
            ..shared
        },
    )
}

pub(super) fn qwen2_5_vl(
    _outer: &Config<'_>,
    vision: &Config<'_>,
    width: usize,
) -> Result<VisionDescription> {
    out_width(vision, "out_hidden_size", width)?;
    let inner = size_or(vision, "intermediate_size", 3420)?;
    let shared = common(vision, &QWEN, inner, ("qwen2.5vl_merger", width))?;
    let norm = Norm {
        kind: NormKind::Rms,
        ..shared.norm
    };
    let shared = of_qwen(
        vision,
        VisionDescription {
            patch_bias: false,
            gated: true,
            norm,
            ..shared
        },
    )?;
    let window = size_or(vision, "window_size", 112)?;
    let side = window / shared.projector.merge / shared.patch;
    if side == 0 {
        let expected = format!("at least {} pixels", shared.cell());
        return Err(unsupported(vision, "window_size", window, &expected));
    }
    let indexes = vision.counts("fullatt_block_indexes")?;
    let indexes = indexes.unwrap_or_else(|| vec![7, 15, 23, 31]);
    Ok(VisionDescription {
        windows: Some(Windows {
            side,
            whole: (0..shared.blocks)
                .map(|block| indexes.contains(&block))
                .collect(),
        }),
        ..shared
    })
}

pub(super) fn qwen3_vl(
    _outer: &Config<'_>,
    vision: &Config<'_>,
    width: usize,
) -> Result<VisionDescription> {
    out_width(vision, "out_hidden_size", width)?;
    let defaults = Common {
        hidden: ("hidden_size", 1152),
        blocks: ("depth", 27),
        patch: 16,
        activation: "gelu_pytorch_tanh",
        ..QWEN
    };
    let inner = size_or(vision, "intermediate_size", 4304)?;
    let shared = common(vision, &defaults, inner, ("qwen3vl_merger", width))?;
    let rows = vision.size("num_position_embeddings", limits::PATCHES)?;
    let rows = rows.unwrap_or(2304);
    let side = rows.isqrt();
    if side * side != rows {
        let key = "num_position_embeddings";
        return Err(unsupported(vision, key, rows, "a square"));
    }
    let deepstack = vision.counts("deepstack_visual_indexes")?;
    of_qwen(
        vision,
        VisionDescription {
            positions: Positions::Bilinear { side },
            deepstack: deepstack.unwrap_or_else(|| vec![8, 16, 24]),
            ..shared
        },
    )
}

pub(super) fn internvl(
    outer: &Config<'_>,
    vision: &Config<'_>,
    width: usize,
) -> Result<VisionDescription> {
    vision.refuse(&["use_qk_norm"])?;
    if let Some(kind) = vision.string("norm_type")?
        && kind != "layer_norm"
    {
        return Err(unsupported(vision, "norm_type", kind, "layer_norm"));
    }
    if vision.bool("use_absolute_position_embeddings")? == Some(false) {
        let key = "use_absolute_position_embeddings";
        return Err(unsupported(vision, key, false, "true"));
    }
    if let Some(strategy) = outer.string("vision_feature_select_strategy")?
        && strategy != "default"
    {
        let key = "vision_feature_select_strategy";
        return Err(unsupported(outer, key, strategy, "default"));
    }
    if let Some(layer) = outer.raw("vision_feature_layer")
        && layer.as_i64() != Some(-1)
    {
        return Err(unsupported(outer, "vision_feature_layer", layer, "-1"));
    }
    let inner = size_or(vision, "intermediate_size", 4096)?;
    let shared = common(vision, &INTERNVL, inner, ("internvl", width))?;
    let side = patches(vision, 448, shared.patch)?;
    let ratio = outer.positive("downsample_ratio")?.unwrap_or(0.5);
    let merge = (1.0 / ratio).round();
    if !(1.0..=limits::MERGE as f64).contains(&merge) || (merge * ratio - 1.0).abs() > 1e-9 {
        let expected = "1 divided by an integer";
        return Err(unsupported(outer, "downsample_ratio", ratio, expected));
    }
    Ok(VisionDescription {
        qkv_bias: vision.bool("attention_bias")?.unwrap_or(false),
        layer_scale: true,
        class_token: true,
        positions: Positions::Fixed { side },
        output_norm: !vision.bool("use_mean_pooling")?.unwrap_or(true),
        projector: Projector {
            merge: merge as usize,
            norm: Some(ProjectorNorm {
                norm: layer_norm(1e-5),
                weighted: true,
                after_merge: true,
            }),
            inner: Some(width),
            activation: activation(outer, "projector_hidden_act", "gelu")?,
            bias: true,
            ..shared.projector
        },
        ..shared
    })
}

pub(super) fn lfm2_vl(
    outer: &Config<'_>,
    vision: &Config<'_>,
    width: usize,
) -> Result<VisionDescription> {
    if let Some(model_type) = vision.string("model_type")?
        && model_type != "siglip2_vision_model"
    {
        let expected = "siglip2_vision_model";
        return Err(unsupported(vision, "model_type", model_type, expected));
    }
    let inner = size_or(vision, "intermediate_size", 3072)?;
    let shared = common(vision, &SIGLIP, inner, ("lfm2", width))?;
    let rows = vision.size("num_patches", limits::PATCHES)?.unwrap_or(256);
    let side = rows.isqrt();
    if side * side != rows {
        return Err(unsupported(vision, "num_patches", rows, "a square"));
    }
    let has_norm = outer.bool("projector_use_layernorm")?.unwrap_or(true);
    Ok(VisionDescription {
        channels_last: true,
        positions: Positions::Resized { side },
        projector: Projector {
            merge: outer.size("downsample_factor", limits::MERGE)?.unwrap_or(2),
            norm: has_norm.then(|| ProjectorNorm {
                norm: layer_norm(1e-5),
                weighted: true,
                after_merge: true,
            }),
            inner: Some(size_or(outer, "projector_hidden_size", 2560)?),
            activation: activation(outer, "projector_hidden_act", "gelu")?,
            bias: outer.bool("projector_bias")?.unwrap_or(true),
            ..shared.projector
        },
        ..shared
    })
}
