//! `config.json` of a Hugging Face checkpoint, in the style of `transformers` 4 (`rope_theta`,
//! `rope_scaling`) and 5 (`rope_parameters`, `layer_types`).

use serde_json::Value;

use super::config::Config;
use super::config_rope::{ConfigRope, has_rope};
use super::config_windows;
use super::draft::{Draft, head_dim};
use super::encoder;
use super::encoder_families;
use super::expert_families;
use super::experts;
use super::gemma_families;
use super::gemma3n;
use super::gemma4;
use super::kinds::{BlockShapes, Layout, Mixers, Multipliers, NoRope, QkNorms, SoftCaps};
use super::latent;
use super::layout;
use super::mixer;
use super::mixer_families;
use super::multipliers;
use super::parts::{PartFactors, Parts};
use super::traits::{self, Family};
use super::unsupported;
use crate::description::{Activation, Mixer, ModelDescription, NormKind, limits};
use crate::error::Result;

/// `model_type` of every family.
pub(super) const FAMILIES: [(&str, &Family); 58] = [
    ("llama", &traits::LLAMA),
    ("mistral", &traits::MISTRAL),
    ("qwen2", &traits::QWEN2),
    ("qwen3", &traits::QWEN3),
    ("gemma", &gemma_families::GEMMA),
    ("gemma2", &gemma_families::GEMMA2),
    ("gemma3", &gemma_families::GEMMA3),
    ("gemma3_text", &gemma_families::GEMMA3),
    ("gemma3n", &gemma_families::GEMMA3N),
    ("gemma3n_text", &gemma_families::GEMMA3N),
    ("gemma4", &gemma_families::GEMMA4),
    ("gemma4_text", &gemma_families::GEMMA4),
    ("gemma4_unified", &gemma_families::GEMMA4_UNIFIED),
    ("gemma4_unified_text", &gemma_families::GEMMA4_UNIFIED),
    ("phi", &traits::PHI2),
    ("phi3", &traits::PHI3),
    ("arcee", &traits::ARCEE),
    ("granite", &traits::GRANITE),
    ("minicpm", &traits::MINICPM),
    ("smollm3", &traits::SMOLLM3),
    ("ernie4_5", &traits::ERNIE4_5),
    ("seed_oss", &traits::SEED_OSS),
    ("ministral", &traits::MISTRAL),
    ("ministral3", &traits::MINISTRAL3),
    ("glm", &traits::GLM),
    ("glm4", &traits::GLM4),
    ("hunyuan_v1_dense", &traits::HUNYUAN),
    ("exaone4", &traits::EXAONE4),
    ("cohere2", &traits::COHERE2),
    ("olmo2", &traits::OLMO2),
    ("olmo3", &traits::OLMO3),
    ("lfm2", &mixer_families::LFM2),
    ("qwen2_moe", &expert_families::QWEN2_MOE),
    ("qwen3_moe", &expert_families::QWEN3_MOE),
    ("olmoe", &expert_families::OLMOE),
    ("gpt_oss", &expert_families::GPT_OSS),
    ("mixtral", &expert_families::MIXTRAL),
    ("lfm2_moe", &expert_families::LFM2_MOE),
    ("granitemoe", &expert_families::GRANITE_MOE),
    ("granitemoehybrid", &expert_families::GRANITE_HYBRID_MOE),
    ("ernie4_5_moe", &expert_families::ERNIE4_5_MOE),
    ("glm4_moe", &expert_families::GLM4_MOE),
    ("nemotron_h", &expert_families::NEMOTRON_H),
    ("falcon_h1", &mixer_families::FALCON_H1),
    ("deepseek_v2", &expert_families::DEEPSEEK2),
    ("deepseek_v3", &expert_families::DEEPSEEK3),
    ("glm4_moe_lite", &expert_families::GLM4_MOE_LITE),
    ("qwen2_vl_text", &traits::QWEN2_VL),
    ("qwen2_5_vl_text", &traits::QWEN2_VL),
    ("qwen3_vl_text", &traits::QWEN3_VL),
    ("qwen3_vl_moe_text", &expert_families::QWEN3_VL_MOE),
    ("qwen3_next", &expert_families::QWEN3_NEXT),
    ("qwen3_5_text", &mixer_families::QWEN3_5),
    ("qwen3_5_moe_text", &expert_families::QWEN3_5_MOE),
    ("bert", &encoder_families::BERT),
    ("roberta", &encoder_families::ROBERTA),
    ("xlm-roberta", &encoder_families::ROBERTA),
    ("modernbert", &encoder_families::MODERN_BERT),
];

/// `model_type` of models with images whose text Triad computes, and that of the text if `text_config` does not state it.
const WITH_IMAGES: [(&str, &str); 13] = [
    ("qwen2_vl", "qwen2_vl_text"),
    ("qwen2_5_vl", "qwen2_5_vl_text"),
    ("qwen3_vl", "qwen3_vl_text"),
    ("qwen3_vl_moe", "qwen3_vl_moe_text"),
    ("qwen3_5", "qwen3_5_text"),
    ("qwen3_5_moe", "qwen3_5_moe_text"),
    ("smolvlm", "llama"),
    ("idefics3", "llama"),
    ("llava", "llama"),
    ("internvl", "qwen2"),
    ("mistral3", "mistral"),
    ("lfm2_vl", "lfm2"),
    ("lfm2-vl", "lfm2"),
];

/// Fields that would change the computation in a way that Triad does not support, unless null, false, 0 or empty.
const REFUSED: [&str; 4] = [
    "quantization_config",
    "per_layer_config",
    "qk_layernorm",
    BIDIRECTIONAL,
];

/// The field of Gemma 3 that lets attention read later positions.
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

/// Returns the family that `config` names, and the description of the model.
pub(super) fn describe(config: &Value) -> Result<(&'static Family, ModelDescription)> {
    let outer = Config::new(config)?;
    let model_type = outer.required("model_type", outer.string("model_type")?)?;
    let config = outer
        .object("text_config", "text_config.")?
        .unwrap_or(outer);
    let with_images = WITH_IMAGES.iter().find(|(name, _)| *name == model_type);
    let (model_type, place) = match with_images {
        // The oldest files of Qwen2-VL have all fields at the top level.
        Some((_, text)) => match config.string("model_type")?.filter(|it| *it != model_type) {
            Some(stated) => (stated, "text_config."),
            None => (*text, ""),
        },
        None => (model_type, ""),
    };
    let Some(&(_, family)) = FAMILIES.iter().find(|(name, _)| *name == model_type) else {
        let known = FAMILIES.iter().map(|(name, _)| *name);
        let known: Vec<&str> = known.chain(WITH_IMAGES.map(|(name, _)| name)).collect();
        return Err(unsupported(format!(
            "config.json: `{place}model_type` is `{model_type}`, which Triad does not run; it runs {}",
            known.join(", ")
        )));
    };
    let family = match model_type {
        "llama" if outer.string("model_type")? == Some("llava") => &traits::LLAVA,
        "granitemoehybrid" if config.count("num_local_experts")? == Some(0) => {
            &mixer_families::GRANITE_HYBRID
        }
        _ if family.shapes == BlockShapes::Gemma4
            && config.bool("enable_moe_block")?.unwrap_or(false) =>
        {
            &expert_families::GEMMA4_MOE
        }
        // The models with images have no layers after pooling.
        "gemma3_text" if config.bool(BIDIRECTIONAL)?.unwrap_or(false) => {
            &encoder_families::EMBEDDING_GEMMA
        }
        _ => family,
    };
    if ["smolvlm", "idefics3"].contains(&outer.string("model_type")?.unwrap_or_default()) {
        // Versions of transformers differ in the default.
        config.required("rms_norm_eps", config.raw("rms_norm_eps"))?;
    }
    for part in [outer, config] {
        let own: &[&str] = match family.shapes {
            BlockShapes::Same | BlockShapes::Gemma3n => &[],
            BlockShapes::Gemma4 => &gemma4::FIELDS,
        };
        REFUSED
            .iter()
            .filter(|field| !own.contains(field))
            .filter(|field| !(family.bidirectional && **field == BIDIRECTIONAL))
            .try_for_each(|field| part.refuse(&[field]))?;
        if part.raw("clip_qkv").is_some() {
            // `transformers` asks whether it is null: 0 and false clip to 0.
            return Err(unsupported(
                "config.json sets `clip_qkv`, which Triad does not support",
            ));
        }
        experts::refuse_counts(family, &part)?;
        encoder::refuse_bidirectional(family, &part)?;
    }
    encoder::refuse(family, &config)?;
    if family.soft_caps.is_none_or(|caps| caps.scores.is_none()) {
        config.refuse(&["attn_logit_softcapping"])?;
    }
    mixer::refuse_ambiguous(family, &config)?;
    if family.sinks {
        // `transformers` has a default with scaling, also for an object without fields.
        let (older, newer) = ("rope_scaling", "rope_parameters");
        let is_empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
        let stated = |field| config.raw(field).filter(|value| !is_empty(value));
        config.required(older, stated(newer).or(stated(older)))?;
    }
    if family.remote {
        // Attention over some blocks of positions, from a length on that the file states.
        config.refuse(&["sparse_config"])?;
    }
    if family.soft_caps.is_none() {
        config.refuse(&["final_logit_softcapping"])?;
    }
    let own = mixer::tied(family, &config)?;
    let tied = match own.map_or_else(|| config.bool("tie_word_embeddings"), |own| Ok(Some(own)))? {
        Some(tied) => tied,
        None => outer.bool("tie_word_embeddings")?.unwrap_or(family.tied),
    };
    Ok((family, draft(family, &config, tied)?.describe(family)?))
}

/// Returns the number of blocks that predict more than one token, which the number of blocks does not include.
pub(super) fn more_tokens(config: &Value) -> Result<usize> {
    let outer = Config::new(config)?;
    let config = outer
        .object("text_config", "text_config.")?
        .unwrap_or(outer);
    Ok(config.count("num_nextn_predict_layers")?.unwrap_or(0))
}

fn draft(family: &Family, config: &Config<'_>, tied: bool) -> Result<Draft> {
    let size = |key: &str, most: usize| {
        config
            .size(key, most)
            .map(|size| size.or_else(|| family.size(key)))
    };
    let required =
        |key: &str, most: usize| size(key, most).and_then(|size| config.required(key, size));

    let hidden = required("hidden_size", limits::HIDDEN)?;
    let parts = layout::hugging_face(family, config)?;
    let blocks = match &parts {
        Some(parts) => parts.len(),
        None => required("num_hidden_layers", limits::BLOCKS)?,
    };
    let heads = required("num_attention_heads", limits::HEADS)?;
    let latent = match &family.latent {
        Some(traits) => Some(latent::hugging_face(traits, config, heads)?),
        None => None,
    };
    let stated = config.size("head_dim", limits::HEAD_DIM)?;
    let head_dim = match (latent, stated.or(family.head_dim)) {
        (Some(latent), _) => latent.head_dim(),
        (None, Some(head_dim)) => head_dim,
        (None, None) => head_dim(hidden, heads)?,
    };
    if family.remote && head_dim * heads != hidden {
        return Err(unsupported(format!(
            "config.json: `head_dim` is {head_dim}, expected `hidden_size` / `num_attention_heads` for {}",
            family.name
        )));
    }
    let positions = config
        .size("max_position_embeddings", limits::CONTEXT)?
        .unwrap_or(family.context);
    let (added_inputs, context) = encoder::inputs(family, config, positions)?;
    let epsilon = match (family.epsilon_field, family.norm) {
        (Some(field), _) => field,
        (None, NormKind::Rms) => "rms_norm_eps",
        (None, NormKind::Layer | NormKind::Centered) => "layer_norm_eps",
    };
    let epsilon = config
        .positive(epsilon)?
        .map_or(family.epsilon, |epsilon| epsilon as f32);
    let activation = activation(family, config)?;
    let bias = |part: usize| {
        let (field, default) = family.bias_fields[part];
        if field.is_empty() {
            return Ok(false);
        }
        // `transformers` reads null as false, also where it takes true if the field is absent.
        let absent = default && !config.has(field);
        config.bool(field).map(|bias| bias.unwrap_or(absent))
    };
    let factors = multipliers::read(family, config, (hidden, blocks))?;
    let query_scalar = match family.query_scalar {
        Some(default) if family.shapes != BlockShapes::Same => default,
        Some(default) => config
            .positive("query_pre_attn_scalar")?
            .map_or(default, |scalar| scalar as f32),
        None => factors
            .scores
            .map_or(head_dim as f32, |factor| f64::from(factor).powi(-2) as f32),
    };
    let cap = |key: &str, default: fn(&SoftCaps) -> Option<f32>| match &family.soft_caps {
        // An absent field means the default; null means no cap.
        Some(caps) if !config.has(key) => Ok(default(caps)),
        Some(_) => config.positive(key).map(|cap| cap.map(|cap| cap as f32)),
        None => Ok(None),
    };
    let mut windows = config_windows::windows(family, config, blocks)?;
    if let (BlockShapes::Gemma4, Some(last)) = (family.shapes, windows.last_mut()) {
        // `transformers` changes what `layer_types` say of the last block.
        *last = None;
    }
    let has_experts = match &parts {
        Some(parts) => parts.iter().map(|part| part.has_experts).collect(),
        None => experts::blocks(family, config, blocks)?,
    };
    let vocab = required("vocab_size", limits::VOCAB)?;
    let kv_heads = match latent {
        Some(_) => 1,
        None => size("num_key_value_heads", limits::HEADS)?.unwrap_or(heads),
    };
    let width = match family.mixers {
        _ if family.shapes == BlockShapes::Gemma3n => gemma3n::widths(family, config, blocks)?[0],
        // Without a dense feed-forward, a file need not state its width.
        Mixers::DeltaNet if has_experts.iter().all(|it| *it) => 0,
        // Blocks may have experts, or no feed-forward at all.
        Mixers::Mamba2 if family.layout == Layout::SingleParts => {
            size(family.width_field, limits::WIDTH)?.unwrap_or(0)
        }
        Mixers::Attention | Mixers::DeltaNet | Mixers::Mamba2 => {
            required(family.width_field, limits::WIDTH)?
        }
        Mixers::ShortConv if family.experts.is_some() => {
            required("intermediate_size", limits::WIDTH)?
        }
        Mixers::ShortConv => mixer::adjusted_width(config)?,
    };
    let sizes = gemma4::Sizes {
        kv_heads,
        head_dim,
        width,
        vocab,
    };
    let own = match family.shapes {
        BlockShapes::Same => None,
        BlockShapes::Gemma3n => Some(gemma3n::hugging_face(family, config, &windows, sizes)?),
        BlockShapes::Gemma4 => Some(gemma4::hugging_face(family, config, &windows, sizes)?),
    };
    let rope = ConfigRope {
        family,
        config,
        head_dim: latent.map_or(head_dim, |latent| latent.rope_dims),
        context,
    };
    let own_ropes = own.as_ref().and_then(|own| own.ropes.clone());
    let mut ropes = match own_ropes {
        Some(ropes) => ropes,
        None if family.no_rope == NoRope::Everywhere => [rope.none(), rope.none()],
        None => [rope.read(false)?, rope.read(true)?],
    };
    let mut query_scalar = query_scalar;
    if let (Some(traits), Some(latent)) = (&family.latent, latent) {
        let pairing = latent::pairing(traits, config)?;
        ropes.iter_mut().for_each(|rope| rope.pairing = pairing);
        query_scalar = latent.query_scalar(rope.score_factor(&ropes[0])?);
    }
    let mut part_factors = PartFactors::NONE;
    let mut mixers = mixer::hugging_face(family, config, (hidden, blocks), (epsilon, activation))?;
    if let Some(parts) = &parts {
        let alone = |(mixer, part): (Option<Mixer>, &Parts)| mixer.filter(|_| !part.has_attention);
        mixers = mixers.into_iter().zip(parts).map(alone).collect();
    }
    if family.multipliers == Multipliers::Falcon {
        let falcon = multipliers::falcon(config)?;
        query_scalar /= (falcon.scores * falcon.scores) as f32;
        part_factors = falcon.parts;
        for mixer in mixers.iter_mut().flatten() {
            if let Mixer::Mamba2(mamba) = mixer {
                mamba.factors = Some(falcon.inputs);
            }
        }
    }
    let [of_all, of_local] = ropes;
    Ok(Draft {
        name: None,
        hidden,
        vocab,
        context,
        heads,
        kv_heads,
        head_dim,
        width,
        experts: experts::read(family, config)?,
        has_experts,
        epsilon,
        head_epsilon: latent.map_or(epsilon, |_| latent::EPSILON),
        norm_offset: if family.norms_less_one { 1.0 } else { 0.0 },
        query_scalar,
        qk_norm: match family.qk_norm {
            QkNorms::HeadsIfStated if config.bool("use_qk_norm")?.unwrap_or(false) => {
                QkNorms::Heads
            }
            QkNorms::HeadsIfStated => QkNorms::Never,
            stated => stated,
        },
        qkv_bias: family.qkv_bias || bias(0)?,
        attention_output_bias: family.all_biases || bias(1)?,
        feed_forward_bias: family.all_biases || bias(2)?,
        activation,
        score_soft_cap: cap("attn_logit_softcapping", |caps| caps.scores)?,
        logit_soft_cap: cap("final_logit_softcapping", |caps| caps.logits)?,
        embedding_scale: factors.embedding,
        residual_scale: factors.residual,
        logit_scale: factors.logits,
        mixers,
        parts,
        part_factors,
        has_rope: has_rope(family, config, &windows)?,
        temperature: match family.temperature {
            true => Some(rope.temperature()?),
            false => None,
        },
        windows,
        rope: of_all,
        local_rope: of_local,
        latent,
        tied,
        token_width: own.as_ref().and_then(|own| own.token_width),
        token_rows: own.as_ref().and_then(|own| own.token_rows),
        streams: own.as_ref().and_then(|own| own.streams),
        scaled: own.as_ref().is_some_and(|own| own.scaled),
        shapes: own.map(|own| own.shapes),
        added_inputs,
    })
}

fn activation(family: &Family, config: &Config<'_>) -> Result<Activation> {
    let field = family.activation_field;
    let Some(name) = config.string(field)? else {
        return Ok(family.activation);
    };
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        // Gemma's first configurations say `gelu`, but the model was trained with its tanh form. Version 4.57 of
        // `transformers` interprets the name literally.
        "gelu" if family.name == "gemma" => Ok(Activation::GeluTanh),
        "gelu" => Ok(Activation::Gelu),
        "relu2" => Ok(Activation::ReluSquared),
        _ => Err(unsupported(format!(
            "config.json: `{field}` is `{name}`, which Triad does not run; it runs silu, gelu, gelu_pytorch_tanh, relu2"
        ))),
    }
}
