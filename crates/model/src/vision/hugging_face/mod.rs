//! Encoders of folders in the layout of `transformers`: fields of `config.json` and names of tensors.

mod families;
mod fields;
mod gemma4;
mod names;

use std::collections::BTreeMap;

use serde_json::Value;

use super::description::VisionDescription;
use super::layers::VisionLayer as L;
use super::limits;
use super::tensors::{LayerTensors, Names};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Config;
use crate::tensor::TensorInfo;
use families::{gemma3, idefics3, internvl, lfm2_vl, llava, qwen2_5_vl, qwen2_vl, qwen3_vl};
pub(super) use fields::layer_norm;
use gemma4::gemma4;
pub(super) use gemma4::{blocks as gemma4_blocks, projector as gemma4_projector};
use names::{gemma3_names, gemma4_names, internvl_names, qwen, qwen2_names, qwen3, siglip};

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

static FAMILIES: [Family; 9] = [
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
        model_types: &["gemma4"],
        read: gemma4,
        names: gemma4_names,
        prefixes: &[
            ["model.vision_tower.", "model.embed_vision."],
            ["vision_tower.", "embed_vision."],
        ],
        patch: GEMMA4_PATCH,
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
const GEMMA4_PATCH: &str = "patch_embedder.input_proj.weight";
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
    let of_text = text.string("model_type")?.unwrap_or("llama");
    let width = match text.size("hidden_size", limits::WIDTH)? {
        // LLaVA's files omit the defaults of Llama.
        None if model_type == "llava" && ["llama", "llava"].contains(&of_text) => Some(4096),
        width => width,
    };
    let width = text.required("hidden_size", width)?;
    let description = (family.read)(&outer, &vision, width)?.checked()?;
    let has = |prefix: &str| tensors.contains_key(&format!("{prefix}{}", family.patch));
    let prefixes = family.prefixes.iter().find(|[encoder, _]| has(encoder));
    let prefixes = prefixes.unwrap_or(&family.prefixes[0]).map(str::to_owned);
    let names = family.names;
    let block = match family.patch {
        SIGLIP_PATCH | GEMMA4_PATCH => "encoder.layers.",
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
