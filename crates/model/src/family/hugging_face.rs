//! `config.json` of a Hugging Face checkpoint, in the style of `transformers` 4 (`rope_theta`,
//! `rope_scaling`) and 5 (`rope_parameters`, `layer_types`).

use serde_json::Value;

use super::config::Config;
use super::draft::Draft;
use super::rope::{Llama3, llama3_factors, long_rope_attention_factor};
use super::traits::{self, Family, Windows};
use super::{malformed, missing, unsupported};
use crate::description::{Activation, ModelDescription, NormKind, Rope, RopePairing, RopeScaling, limits};
use crate::error::Result;

/// `model_type` of every family.
const FAMILIES: [(&str, &Family); 10] = [
    ("llama", &traits::LLAMA),
    ("mistral", &traits::MISTRAL),
    ("qwen2", &traits::QWEN2),
    ("qwen3", &traits::QWEN3),
    ("gemma", &traits::GEMMA),
    ("gemma2", &traits::GEMMA2),
    ("gemma3", &traits::GEMMA3),
    ("gemma3_text", &traits::GEMMA3),
    ("phi", &traits::PHI2),
    ("phi3", &traits::PHI3),
];

/// Fields that would change the numbers in a way that Triad does not compute, unless null, false or 0.
const REFUSED: [&str; 6] = [
    "quantization_config",
    "qk_layernorm",
    "use_bidirectional_attention",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
];

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// The family that `config` names, and the model that it describes.
pub(super) fn describe(config: &Value) -> Result<(&'static Family, ModelDescription)> {
    let outer = Config::new(config)?;
    let model_type = outer.required("model_type", outer.string("model_type")?)?;
    let Some(&(_, family)) = FAMILIES.iter().find(|(name, _)| *name == model_type) else {
        let known: Vec<&str> = FAMILIES.iter().map(|(name, _)| *name).collect();
        return Err(unsupported(format!(
            "config.json: `model_type` is `{model_type}`, which Triad does not run; it runs {}",
            known.join(", ")
        )));
    };
    let config = outer.object("text_config", "text_config.")?.unwrap_or(outer);
    for part in [outer, config] {
        refuse(&part, &REFUSED)?;
    }
    if family.soft_caps.is_none_or(|caps| caps.scores.is_none()) {
        refuse(&config, &["attn_logit_softcapping"])?;
    }
    if family.soft_caps.is_none() {
        refuse(&config, &["final_logit_softcapping"])?;
    }
    let tied = match config.bool("tie_word_embeddings")? {
        Some(tied) => tied,
        None => outer.bool("tie_word_embeddings")?.unwrap_or(family.tied),
    };
    Ok((family, draft(family, &config, tied)?.describe(family)?))
}

fn refuse(config: &Config<'_>, fields: &[&str]) -> Result<()> {
    for field in fields {
        let neutral = |value: &Value| value.as_bool() == Some(false) || value.as_f64() == Some(0.0);
        if config.raw(field).is_some_and(|value| !neutral(value)) {
            return Err(unsupported(format!("config.json sets `{field}`, which Triad does not support")));
        }
    }
    Ok(())
}

fn draft(family: &Family, config: &Config<'_>, tied: bool) -> Result<Draft> {
    let default = |key: &str| family.sizes.iter().find(|(name, _)| *name == key).map(|(_, size)| *size);
    let size = |key: &str, most: usize| config.size(key, most).map(|size| size.or_else(|| default(key)));
    let required = |key: &str, most: usize| size(key, most).and_then(|size| config.required(key, size));

    let hidden = required("hidden_size", limits::HIDDEN)?;
    let blocks = required("num_hidden_layers", limits::BLOCKS)?;
    let heads = required("num_attention_heads", limits::HEADS)?;
    let head_dim = match config.size("head_dim", limits::HEAD_DIM)?.or(family.head_dim) {
        Some(head_dim) => head_dim,
        None => head_dim(hidden, heads)?,
    };
    let context = config.size("max_position_embeddings", limits::CONTEXT)?.unwrap_or(family.context);
    let epsilon = match family.norm {
        NormKind::Rms => "rms_norm_eps",
        NormKind::Layer => "layer_norm_eps",
    };
    let attention_bias = config.bool("attention_bias")?.unwrap_or(false);
    let query_scalar = match family.query_scalar {
        Some(default) => config.positive("query_pre_attn_scalar")?.map_or(default, |scalar| scalar as f32),
        None => head_dim as f32,
    };
    let cap = |key: &str, default: fn(&traits::SoftCaps) -> Option<f32>| match &family.soft_caps {
        // Absent means the default, null means none.
        Some(caps) if !config.has(key) => Ok(default(caps)),
        Some(_) => config.positive(key).map(|cap| cap.map(|cap| cap as f32)),
        None => Ok(None),
    };
    let rope = |layer| rope(family, config, layer, head_dim, context);
    Ok(Draft {
        name: None,
        hidden,
        vocab: required("vocab_size", limits::VOCAB)?,
        context,
        heads,
        kv_heads: size("num_key_value_heads", limits::HEADS)?.unwrap_or(heads),
        head_dim,
        width: required("intermediate_size", limits::WIDTH)?,
        epsilon: config.positive(epsilon)?.map_or(family.epsilon, |epsilon| epsilon as f32),
        norm_offset: if family.norms_less_one { 1.0 } else { 0.0 },
        query_scalar,
        qkv_bias: family.qkv_bias || attention_bias,
        attention_output_bias: family.all_biases || attention_bias,
        feed_forward_bias: family.all_biases || config.bool("mlp_bias")?.unwrap_or(false),
        activation: activation(family, config)?,
        score_soft_cap: cap("attn_logit_softcapping", |caps| caps.scores)?,
        logit_soft_cap: cap("final_logit_softcapping", |caps| caps.logits)?,
        windows: windows(family, config, blocks)?,
        rope: rope(FULL)?,
        local_rope: rope(SLIDING)?,
        tied,
    })
}

/// Width of a head where the file does not say it.
pub(super) fn head_dim(hidden: usize, heads: usize) -> Result<usize> {
    match hidden / heads {
        head_dim if hidden.is_multiple_of(heads) && head_dim <= limits::HEAD_DIM => Ok(head_dim),
        _ => Err(malformed(format!(
            "a width of {hidden} can't be cut into {heads} heads of at most {} each, and no head width is given",
            limits::HEAD_DIM
        ))),
    }
}

fn activation(family: &Family, config: &Config<'_>) -> Result<Activation> {
    let (field, name) = match config.string("hidden_activation")? {
        Some(name) => ("hidden_activation", name),
        None => match config.string("hidden_act")? {
            Some(name) => ("hidden_act", name),
            None => return Ok(family.activation),
        },
    };
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        // Gemma's first configurations say `gelu`, but the model was trained with its tanh form.
        "gelu" if family.name == "gemma" && field == "hidden_act" => Ok(Activation::GeluTanh),
        "gelu" => Ok(Activation::Gelu),
        _ => Err(unsupported(format!(
            "config.json: `{field}` is `{name}`, which Triad does not run; it runs silu, gelu, gelu_pytorch_tanh"
        ))),
    }
}

fn windows(family: &Family, config: &Config<'_>, blocks: usize) -> Result<Vec<Option<usize>>> {
    let in_use = match family.windows {
        Windows::Never => false,
        Windows::FromLayer => config.bool("use_sliding_window")?.unwrap_or(false),
        Windows::Everywhere | Windows::AllButEvery(_) => true,
    };
    let window = if !in_use {
        None
    } else if config.has("sliding_window") {
        config.size("sliding_window", limits::CONTEXT)?
    } else {
        family.window
    };
    if let Some(types) = config.strings("layer_types")? {
        return types_to_windows(&types, family, window, blocks);
    }
    let first = config.count("max_window_layers")?.unwrap_or(28);
    let every = match family.windows {
        Windows::AllButEvery(default) => config.size("sliding_window_pattern", limits::BLOCKS)?.unwrap_or(default),
        _ => 1,
    };
    let windowed = |block: usize| match family.windows {
        Windows::Never => false,
        Windows::Everywhere => true,
        Windows::FromLayer => block >= first,
        Windows::AllButEvery(_) => !(block + 1).is_multiple_of(every),
    };
    Ok((0..blocks).map(|block| window.filter(|_| windowed(block))).collect())
}

fn types_to_windows(
    types: &[&str],
    family: &Family,
    window: Option<usize>,
    blocks: usize,
) -> Result<Vec<Option<usize>>> {
    if types.len() != blocks {
        return Err(malformed(format!(
            "config.json: `layer_types` has {} entries, expected one for each of the {blocks} blocks",
            types.len()
        )));
    }
    let to_window = |(block, kind): (usize, &&str)| match *kind {
        // `transformers` gives every block of these families the window, whatever `layer_types` has.
        FULL | SLIDING if family.windows == Windows::Everywhere => Ok(window),
        FULL => Ok(None),
        SLIDING if window.is_some() => Ok(window),
        SLIDING => Err(malformed(format!(
            "config.json: `layer_types[{block}]` is `{SLIDING}`, but no sliding window is in use"
        ))),
        other => Err(unsupported(format!(
            "config.json: `layer_types[{block}]` is `{}`, which Triad does not run; it runs {FULL} and {SLIDING}",
            other.chars().take(40).collect::<String>()
        ))),
    };
    types.iter().enumerate().map(to_window).collect()
}

fn rope(family: &Family, config: &Config<'_>, layer: &str, head_dim: usize, context: usize) -> Result<Rope> {
    let parameters = match config.object("rope_parameters", "rope_parameters.")? {
        Some(all) => match all.object(layer, "rope_parameters.*.")? {
            Some(one) => Some(one),
            None if family.local_rope_base.is_some() => {
                return Err(missing(format!("config.json has no field `rope_parameters.{layer}`")));
            }
            None => Some(all),
        },
        None => None,
    };
    let local_base = family.local_rope_base.filter(|_| layer == SLIDING);
    let (base_field, default_base) = match local_base {
        Some(base) => ("rope_local_base_freq", base),
        None => ("rope_theta", family.rope_base),
    };
    let base = match &parameters {
        Some(parameters) => parameters.positive("rope_theta")?,
        None => config.positive(base_field)?,
    };
    let base = base.map_or(default_base, |base| base as f32);

    let from_parameters = match &parameters {
        Some(parameters) => parameters.positive("partial_rotary_factor")?,
        None => None,
    };
    let fraction = match from_parameters {
        Some(fraction) => Some(fraction),
        None => config.positive("partial_rotary_factor")?,
    };
    let dims = match (family.rotary_fraction, fraction) {
        (None, None | Some(1.0)) => head_dim,
        (None, Some(fraction)) => {
            let name = family.name;
            return Err(unsupported(format!(
                "config.json: `partial_rotary_factor` is {fraction}, which Triad does not support for {name}"
            )));
        }
        (Some(default), fraction) => (head_dim as f64 * fraction.unwrap_or(default)) as usize,
    };

    let scaling = match (parameters, config.object("rope_scaling", "rope_scaling.")?) {
        (Some(parameters), _) => {
            let kind = parameters.string("rope_type")?.or(parameters.string("type")?).unwrap_or("default");
            scaling(config, &parameters, kind, base, dims, context)?
        }
        (None, Some(old)) if local_base.is_none() => {
            let kind = old.string("rope_type")?.or(old.string("type")?);
            scaling(config, &old, old.required("rope_type", kind)?, base, dims, context)?
        }
        (None, _) => RopeScaling::None,
    };
    Ok(Rope { dims, base, pairing: RopePairing::Halves, scaling })
}

fn scaling(
    config: &Config<'_>,
    parameters: &Config<'_>,
    kind: &str,
    base: f32,
    dims: usize,
    context: usize,
) -> Result<RopeScaling> {
    let positive = |key: &str| parameters.positive(key).and_then(|value| parameters.required(key, value));
    let original = "original_max_position_embeddings";
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: positive("factor")? as f32 }),
        "llama3" => {
            let (low, high) = (positive("low_freq_factor")?, positive("high_freq_factor")?);
            if low >= high {
                return Err(malformed(format!(
                    "config.json: RoPE's `low_freq_factor` is {low}, expected less than `high_freq_factor`, {high}"
                )));
            }
            let original_context = parameters.size(original, limits::CONTEXT)?;
            let original_context = parameters.required(original, original_context)?;
            let scaling = Llama3 { factor: positive("factor")?, low, high, original_context };
            Ok(RopeScaling::Factors { factors: llama3_factors(scaling, base, dims) })
        }
        "longrope" | "su" => {
            let stated = match config.size(original, limits::CONTEXT)? {
                Some(stated) => Some(stated),
                None => parameters.size(original, limits::CONTEXT)?,
            };
            let stretch = match stated {
                Some(stated) => context as f64 / stated as f64,
                None => positive("factor")?,
            };
            let original_context = stated.unwrap_or(context);
            let attention_factor = parameters.positive("attention_factor")?.map(|factor| factor as f32);
            Ok(RopeScaling::LongRope {
                short: parameters.factors("short_factor", dims / 2)?,
                long: parameters.factors("long_factor", dims / 2)?,
                original_context,
                attention_factor: attention_factor
                    .unwrap_or_else(|| long_rope_attention_factor(stretch, original_context)),
            })
        }
        other => Err(unsupported(format!(
            "config.json: RoPE type `{}`, which Triad does not run; it runs default, linear, llama3, longrope",
            other.chars().take(40).collect::<String>()
        ))),
    }
}
