//! Encoders of folders in the layout of `transformers`: fields of `config.json` and names of tensors.

use std::collections::BTreeMap;

use serde_json::Value;

use super::description::{
    Positions, Projector, ProjectorLayer as P, ProjectorNorm, VisionActivation,
    VisionBlockLayer as B, VisionDescription, VisionLayer as L, Windows,
};
use super::limits;
use super::tensors::{LayerTensors, Names};
use crate::description::{Norm, NormKind};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Config;
use crate::tensor::TensorInfo;

/// Reads the encoder of one family: `outer` is the whole configuration, `vision` that of the encoder.
type Reader =
    fn(outer: &Config<'_>, vision: &Config<'_>, width: usize) -> Result<VisionDescription>;

/// A family of models that read pictures.
struct Family {
    /// `model_type` of the configuration.
    model_types: &'static [&'static str],
    read: Reader,
    names: fn(prefixes: [String; 2], layer: L) -> LayerTensors,
    /// The places of encoder and projector, newest first, of which the first that has `patch` is taken.
    prefixes: &'static [[&'static str; 2]],
    /// The name of the patch embedding after its prefix.
    patch: &'static str,
}

static FAMILIES: [Family; 8] = [
    Family {
        model_types: &["smolvlm", "idefics3"],
        read: idefics3,
        names: siglip,
        prefixes: &[
            ["model.vision_model.", "model.connector."],
            ["vision_model.", "connector."],
        ],
        patch: SIGLIP_PATCH,
    },
    Family {
        model_types: &["gemma3"],
        read: gemma3,
        names: gemma3_names,
        prefixes: TOWER,
        patch: SIGLIP_PATCH,
    },
    Family {
        model_types: &["llava"],
        read: llava,
        names: siglip,
        prefixes: TOWER,
        patch: SIGLIP_PATCH,
    },
    Family {
        model_types: &["qwen2_vl"],
        read: qwen2_vl,
        names: qwen2_names,
        prefixes: VISUAL,
        patch: QWEN_PATCH,
    },
    Family {
        model_types: &["qwen2_5_vl"],
        read: qwen2_5_vl,
        names: qwen,
        prefixes: VISUAL,
        patch: QWEN_PATCH,
    },
    Family {
        model_types: &["qwen3_vl", "qwen3_vl_moe"],
        read: qwen3_vl,
        names: qwen3,
        prefixes: VISUAL,
        patch: QWEN_PATCH,
    },
    Family {
        model_types: &["internvl"],
        read: internvl,
        names: internvl_names,
        prefixes: TOWER,
        patch: "embeddings.patch_embeddings.projection.weight",
    },
    Family {
        model_types: &["lfm2_vl", "lfm2-vl"],
        read: lfm2_vl,
        names: siglip,
        prefixes: TOWER,
        patch: SIGLIP_PATCH,
    },
];

const SIGLIP_PATCH: &str = "embeddings.patch_embedding.weight";
const QWEN_PATCH: &str = "patch_embed.proj.weight";
const TOWER: &[[&str; 2]] = &[
    [
        "model.vision_tower.vision_model.",
        "model.multi_modal_projector.",
    ],
    ["model.vision_tower.", "model.multi_modal_projector."],
    ["vision_tower.vision_model.", "multi_modal_projector."],
    ["vision_tower.", "multi_modal_projector."],
];
const VISUAL: &[[&str; 2]] = &[["model.visual.", "model.visual."], ["visual.", "visual."]];

/// Describes the encoder of a model with this configuration and these tensors.
pub(super) fn describe(
    config: &Value,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<(VisionDescription, Names)> {
    let outer = Config::new(config)?;
    let model_type = outer.required("model_type", outer.string("model_type")?)?;
    let Some(family) = FAMILIES
        .iter()
        .find(|family| family.model_types.contains(&model_type))
    else {
        let known = FAMILIES.iter().flat_map(|family| family.model_types);
        let known: Vec<&str> = known.copied().collect();
        let has_images = outer.has("vision_config");
        let message = match has_images {
            true => format!(
                "Triad reads no pictures for the `model_type` `{model_type}`; it does for {}",
                known.join(", ")
            ),
            false => "the model reads text alone: config.json has no `vision_config`".to_owned(),
        };
        let kind = match has_images {
            true => ErrorKind::Unsupported,
            false => ErrorKind::Missing,
        };
        return Err(Error::new(kind, message));
    };
    let vision = outer.object("vision_config", "vision_config.")?;
    let vision = outer.required("vision_config", vision)?;
    let text = outer.object("text_config", "text_config.")?;
    let text = text.unwrap_or(outer);
    let width = text.size("hidden_size", limits::WIDTH)?;
    let width = text.required("hidden_size", width)?;
    let description = (family.read)(&outer, &vision, width)?.checked()?;
    let has = |prefix: &str| tensors.contains_key(&format!("{prefix}{}", family.patch));
    let prefixes = family.prefixes.iter().find(|[encoder, _]| has(encoder));
    let prefixes = prefixes.unwrap_or(&family.prefixes[0]).map(str::to_owned);
    let names = family.names;
    let block = match family.patch {
        SIGLIP_PATCH => "encoder.layers.",
        QWEN_PATCH => "blocks.",
        _ => "encoder.layer.",
    };
    let [encoder, _] = &prefixes;
    let ignored = IGNORED.iter().map(|name| format!("{encoder}{name}"));
    let mut ignored: Vec<String> = ignored.collect();
    if !description.output_norm {
        ignored.extend(["post_layernorm.", "layernorm."].map(|it| format!("{encoder}{it}")));
    }
    let names = Names {
        prefixes: prefixes.to_vec(),
        ignored,
        blocks: (format!("{encoder}{block}"), description.blocks),
        find: Box::new(move |layer| names(prefixes.clone(), layer)),
    };
    Ok((description, names))
}

/// Tensors of encoders that do not enter the computation: SigLIP's head, constants, and what stands for patches in
/// training.
const IGNORED: [&str; 4] = [
    "head.",
    "embeddings.position_ids",
    "embeddings.mask_token",
    "rotary_pos_emb.",
];

/// The fields that are the same in all encoders, with the defaults of their configuration.
struct Common {
    hidden: (&'static str, usize),
    blocks: (&'static str, usize),
    heads: (&'static str, usize),
    channels: &'static str,
    patch: usize,
    activation: &'static str,
    epsilon: Option<f32>,
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
fn common(
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
        hidden: size(defaults.hidden, limits::WIDTH)?,
        heads: size(defaults.heads, limits::WIDTH)?,
        blocks: size(defaults.blocks, limits::BLOCKS)?,
        inner,
        activation: activation(vision, "hidden_act", defaults.activation)?,
        gated: false,
        norm: layer_norm(epsilon),
        joined: false,
        qkv_bias: true,
        layer_scale: false,
        class_token: false,
        positions: Positions::None,
        rope_base: None,
        input_norm: false,
        output_norm: true,
        windows: None,
        projector: Projector {
            merge: 1,
            mean: false,
            norm: None,
            inner: None,
            activation: VisionActivation::Gelu,
            bias: false,
            transposed: false,
        },
        deepstack: Vec::new(),
        width,
        together: false,
    })
}

fn idefics3(outer: &Config<'_>, vision: &Config<'_>, width: usize) -> Result<VisionDescription> {
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

fn gemma3(outer: &Config<'_>, vision: &Config<'_>, width: usize) -> Result<VisionDescription> {
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
                after_merge: true,
            }),
            transposed: true,
            ..shared.projector
        },
        ..shared
    })
}

fn llava(outer: &Config<'_>, vision: &Config<'_>, width: usize) -> Result<VisionDescription> {
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
        rope_base: Some(rope_base(vision)?),
        output_norm: false,
        projector: Projector {
            merge,
            norm: Some(ProjectorNorm {
                norm: shared.norm,
                after_merge: false,
            }),
            inner: Some(hidden.saturating_mul(merge * merge)),
            bias: true,
            ..shared.projector
        },
        ..shared
    })
}

fn qwen2_vl(_outer: &Config<'_>, vision: &Config<'_>, width: usize) -> Result<VisionDescription> {
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

fn qwen2_5_vl(_outer: &Config<'_>, vision: &Config<'_>, width: usize) -> Result<VisionDescription> {
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

fn qwen3_vl(_outer: &Config<'_>, vision: &Config<'_>, width: usize) -> Result<VisionDescription> {
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

fn internvl(outer: &Config<'_>, vision: &Config<'_>, width: usize) -> Result<VisionDescription> {
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

fn lfm2_vl(outer: &Config<'_>, vision: &Config<'_>, width: usize) -> Result<VisionDescription> {
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

fn siglip([encoder, projector]: [String; 2], layer: L) -> LayerTensors {
    let stem = |stem: &str| LayerTensors::stem(&format!("{encoder}{stem}"));
    match layer {
        L::Patch => stem("embeddings.patch_embedding"),
        L::Class => LayerTensors::bare(format!("{encoder}embeddings.class_embedding")),
        L::Positions => stem("embeddings.position_embedding"),
        L::InputNorm => stem("pre_layrnorm"),
        L::OutputNorm => stem("post_layernorm"),
        L::Block(block, layer) => {
            let name = match layer {
                B::AttentionNorm => "layer_norm1",
                B::QueryKeyValue => "self_attn.qkv",
                B::Query => "self_attn.q_proj",
                B::Key => "self_attn.k_proj",
                B::Value => "self_attn.v_proj",
                B::AttentionOutput => "self_attn.out_proj",
                B::AttentionScale => "layer_scale1",
                B::FeedForwardNorm => "layer_norm2",
                B::Gate => "mlp.gate",
                B::Up => "mlp.fc1",
                B::Down => "mlp.fc2",
                B::FeedForwardScale => "layer_scale2",
            };
            stem(&format!("encoder.layers.{block}.{name}"))
        }
        L::Projector(_, layer) => {
            let is_idefics = projector.ends_with("connector.");
            match layer {
                P::Norm => LayerTensors::stem(&format!("{projector}layer_norm")),
                P::First => LayerTensors::stem(&format!("{projector}linear_1")),
                P::Last if is_idefics => {
                    LayerTensors::stem(&format!("{projector}modality_projection.proj"))
                }
                P::Last => LayerTensors::stem(&format!("{projector}linear_2")),
            }
        }
    }
}

fn gemma3_names(prefixes: [String; 2], layer: L) -> LayerTensors {
    match layer {
        L::Projector(_, P::Norm) => LayerTensors::stem(&format!("{}mm_soft_emb_norm", prefixes[1])),
        L::Projector(_, P::Last) => {
            LayerTensors::bare(format!("{}mm_input_projection_weight", prefixes[1]))
        }
        _ => siglip(prefixes, layer),
    }
}

fn qwen([encoder, _]: [String; 2], layer: L) -> LayerTensors {
    let stem = |stem: &str| LayerTensors::stem(&format!("{encoder}{stem}"));
    match layer {
        L::Patch => stem("patch_embed.proj"),
        L::Class => stem("class"),
        L::Positions => stem("pos_embed"),
        L::InputNorm => stem("pre_norm"),
        L::OutputNorm => stem("post_norm"),
        L::Block(block, layer) => {
            let name = match layer {
                B::AttentionNorm => "norm1",
                B::QueryKeyValue => "attn.qkv",
                B::Query => "attn.q",
                B::Key => "attn.k",
                B::Value => "attn.v",
                B::AttentionOutput => "attn.proj",
                B::AttentionScale => "scale1",
                B::FeedForwardNorm => "norm2",
                B::Gate => "mlp.gate_proj",
                B::Up => "mlp.up_proj",
                B::Down => "mlp.down_proj",
                B::FeedForwardScale => "scale2",
            };
            stem(&format!("blocks.{block}.{name}"))
        }
        L::Projector(_, layer) => stem(match layer {
            P::Norm => "merger.ln_q",
            P::First => "merger.mlp.0",
            P::Last => "merger.mlp.2",
        }),
    }
}

fn qwen2_names(prefixes: [String; 2], layer: L) -> LayerTensors {
    let up_or_down = match layer {
        L::Block(block, B::Up) => format!("blocks.{block}.mlp.fc1"),
        L::Block(block, B::Down) => format!("blocks.{block}.mlp.fc2"),
        _ => return qwen(prefixes, layer),
    };
    LayerTensors::stem(&format!("{}{up_or_down}", prefixes[0]))
}

fn qwen3(prefixes: [String; 2], layer: L) -> LayerTensors {
    let name = match layer {
        L::Block(block, B::Up) => format!("blocks.{block}.mlp.linear_fc1"),
        L::Block(block, B::Down) => format!("blocks.{block}.mlp.linear_fc2"),
        L::Projector(stage, layer) => {
            let merger = match stage {
                0 => "merger".to_owned(),
                _ => format!("deepstack_merger_list.{}", stage - 1),
            };
            let layer = match layer {
                P::Norm => "norm",
                P::First => "linear_fc1",
                P::Last => "linear_fc2",
            };
            format!("{merger}.{layer}")
        }
        _ => return qwen(prefixes, layer),
    };
    LayerTensors::stem(&format!("{}{name}", prefixes[0]))
}

fn internvl_names([encoder, projector]: [String; 2], layer: L) -> LayerTensors {
    let stem = |stem: &str| LayerTensors::stem(&format!("{encoder}{stem}"));
    let bare = |name: &str| LayerTensors::bare(format!("{encoder}{name}"));
    match layer {
        L::Patch => stem("embeddings.patch_embeddings.projection"),
        L::Class => bare("embeddings.cls_token"),
        L::Positions => bare("embeddings.position_embeddings"),
        L::InputNorm => stem("pre_layernorm"),
        L::OutputNorm => stem("layernorm"),
        L::Block(block, layer) => {
            let name = match layer {
                B::AttentionNorm => "layernorm_before",
                B::QueryKeyValue => "attention.qkv",
                B::Query => "attention.q_proj",
                B::Key => "attention.k_proj",
                B::Value => "attention.v_proj",
                B::AttentionOutput => "attention.projection_layer",
                B::AttentionScale => {
                    return bare(&format!("encoder.layer.{block}.lambda_1"));
                }
                B::FeedForwardNorm => "layernorm_after",
                B::Gate => "mlp.gate",
                B::Up => "mlp.fc1",
                B::Down => "mlp.fc2",
                B::FeedForwardScale => {
                    return bare(&format!("encoder.layer.{block}.lambda_2"));
                }
            };
            stem(&format!("encoder.layer.{block}.{name}"))
        }
        L::Projector(_, layer) => {
            let name = match layer {
                P::Norm => "layer_norm",
                P::First => "linear_1",
                P::Last => "linear_2",
            };
            LayerTensors::stem(&format!("{projector}{name}"))
        }
    }
}

pub(super) fn layer_norm(epsilon: f32) -> Norm {
    Norm {
        kind: NormKind::Layer,
        epsilon,
        weight_offset: 0.0,
    }
}

fn size_or(config: &Config<'_>, key: &str, default: usize) -> Result<usize> {
    Ok(config.size(key, limits::WIDTH)?.unwrap_or(default))
}

/// Returns an integer, which may be stated as an array of two equal ones.
fn side(config: &Config<'_>, key: &str, most: usize) -> Result<Option<usize>> {
    if !config.raw(key).is_some_and(Value::is_array) {
        return config.size(key, most);
    }
    let sides = config.counts(key)?.unwrap_or_default();
    match sides[..] {
        [one, other] if one == other && (1..=most).contains(&one) => Ok(Some(one)),
        _ => Err(unsupported(
            config,
            key,
            format!("{sides:?}"),
            "two equal numbers",
        )),
    }
}

/// Returns the patches per side of a picture of `image_size`.
fn patches(vision: &Config<'_>, default: usize, patch: usize) -> Result<usize> {
    let most = limits::PATCHES * limits::PATCH;
    let pixels = side(vision, "image_size", most)?.unwrap_or(default);
    let side = pixels / patch;
    if side == 0 || side * side > limits::PATCHES {
        let expected = format!("1 to {} patches of {patch} pixels", limits::PATCHES);
        return Err(unsupported(vision, "image_size", pixels, &expected));
    }
    Ok(side)
}

/// Refuses an encoder whose rows are wider or narrower than the text model.
fn out_width(vision: &Config<'_>, key: &str, width: usize) -> Result<()> {
    match vision.size(key, limits::WIDTH)? {
        Some(stated) if stated != width => {
            let expected = format!("{width}, the width of the text model");
            Err(unsupported(vision, key, stated, &expected))
        }
        _ => Ok(()),
    }
}

fn rope_base(vision: &Config<'_>) -> Result<f32> {
    let parameters = vision.object("rope_parameters", "vision_config.rope_parameters.")?;
    let Some(parameters) = parameters else {
        return Ok(1e4);
    };
    if let Some(kind) = parameters.string("rope_type")?
        && !["axial", "default"].contains(&kind)
    {
        return Err(unsupported(&parameters, "rope_type", kind, "axial"));
    }
    Ok(parameters
        .positive("rope_theta")?
        .map_or(1e4, |it| it as f32))
}

fn activation(config: &Config<'_>, key: &str, default: &str) -> Result<VisionActivation> {
    let name = config.string(key)?.unwrap_or(default);
    Ok(match name {
        "gelu" => VisionActivation::Gelu,
        "gelu_pytorch_tanh" => VisionActivation::GeluTanh,
        "quick_gelu" => VisionActivation::QuickGelu,
        "silu" | "swish" => VisionActivation::Silu,
        _ => {
            let expected = "gelu, gelu_pytorch_tanh, quick_gelu or silu";
            return Err(unsupported(config, key, name, expected));
        }
    })
}

fn unsupported(
    config: &Config<'_>,
    key: &str,
    value: impl std::fmt::Display,
    expected: &str,
) -> Error {
    let place = config.place();
    let message = format!("config.json: `{place}{key}` is {value}, expected {expected}");
    Error::new(ErrorKind::Unsupported, message)
}
