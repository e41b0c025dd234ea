//! Encoders of llama.cpp's mmproj files: metadata fields and names of tensors.

mod names;

use std::collections::BTreeMap;

use super::description::{
    Positions, Projector, ProjectorNorm, VisionActivation, VisionDescription, VisionPairs, Windows,
};
use super::hugging_face::{gemma4_blocks, gemma4_projector, layer_norm};
use super::limits;
use super::tensors::Names;
use crate::description::{Norm, NormKind};
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::{Metadata, Value};
use crate::tensor::TensorInfo;
use names::names;

/// Projectors that Triad computes, by llama.cpp's names.
const PROJECTORS: [&str; 9] = [
    "idefics3",
    "gemma3",
    "gemma4v",
    "mlp",
    "qwen2vl_merger",
    "qwen2.5vl_merger",
    "qwen3vl_merger",
    "internvl",
    "lfm2",
];

/// The metadata of an mmproj file.
struct Fields<'a> {
    metadata: &'a Metadata,
    tensors: &'a BTreeMap<String, TensorInfo>,
}

impl Fields<'_> {
    fn size(&self, key: &str, most: usize) -> Result<Option<usize>> {
        let key = format!("clip.vision.{key}");
        match self.metadata.integer(&key)? {
            Some(size) if !(1..=most).contains(&size) => {
                let expected = format!("an integer from 1 to {most}");
                Err(wrong(&key, size, &expected))
            }
            size => Ok(size),
        }
    }

    fn required(&self, key: &str, most: usize) -> Result<usize> {
        self.size(key, most)?.ok_or_else(|| {
            let message = format!("metadata has no field `clip.vision.{key}`");
            Error::new(ErrorKind::Missing, message)
        })
    }

    fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.metadata.bool(key)?.unwrap_or(false))
    }

    fn has(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }

    /// Returns the first dimension of a tensor that must be there.
    fn first_dimension(&self, tensor: &str) -> Result<usize> {
        let info = super::tensors::find(self.tensors, tensor)?;
        let first = info.shape.first().copied().unwrap_or(0);
        match (1..=limits::WIDTH).contains(&first) {
            true => Ok(first),
            false => {
                let message = format!("tensor {tensor:?} has the shape {:?}", info.shape);
                Err(Error::new(ErrorKind::Malformed, message))
            }
        }
    }
}

/// Returns the name of an mmproj file's projector, and the field that states it.
///
/// # Errors
/// If the field is no text.
pub fn projector(metadata: &Metadata) -> Result<(&'static str, &str)> {
    let key = match metadata.get("clip.projector_type") {
        None if metadata.get("clip.vision.projector_type").is_some() => {
            "clip.vision.projector_type"
        }
        _ => "clip.projector_type",
    };
    // The oldest files do not name LLaVA's projector.
    Ok((key, metadata.string(key)?.unwrap_or("mlp")))
}

/// Describes the encoder of an mmproj file.
pub(super) fn describe(
    metadata: &Metadata,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<(VisionDescription, Names)> {
    let architecture = metadata.string("general.architecture")?.unwrap_or("");
    if architecture != "clip" {
        let message = format!(
            "this is no encoder of pictures (metadata field `general.architecture` is `{architecture}`, expected `clip`)"
        );
        return Err(Error::new(ErrorKind::Missing, message));
    }
    let fields = Fields { metadata, tensors };
    if metadata.bool("clip.has_vision_encoder")? == Some(false) {
        return Err(wrong("clip.has_vision_encoder", "false", "true"));
    }
    let (key, projector) = projector(metadata)?;
    let Some(family) = PROJECTORS.iter().find(|it| **it == projector) else {
        return Err(wrong(key, projector, &PROJECTORS.join(", ")));
    };
    let description = match *family {
        "idefics3" => idefics3(&fields),
        "gemma3" => gemma3(&fields),
        "gemma4v" => gemma4(&fields),
        "mlp" => llava(&fields),
        "internvl" => internvl(&fields),
        "lfm2" => lfm2(&fields),
        family => qwen(family, &fields),
    }?;
    let description = description.checked()?;
    let names = names(&description, tensors);
    Ok((description, names))
}

/// Returns what most encoders have in common; `last` is the last linear layer, whose rows are the outputs.
fn common(family: &str, width: usize, fields: &Fields<'_>) -> Result<VisionDescription> {
    let epsilon = "clip.vision.attention.layer_norm_epsilon";
    let epsilon = fields.metadata.float(epsilon)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Missing,
            format!("metadata has no field `{epsilon}`"),
        )
    })?;
    if !(1e-20..=1.0).contains(&epsilon) {
        let key = "clip.vision.attention.layer_norm_epsilon";
        return Err(wrong(key, epsilon, "a number from 1e-20 to 1"));
    }
    let hidden = fields.required("embedding_length", limits::WIDTH)?;
    let joined = fields.has("v.blk.0.attn_qkv.weight");
    let query = if joined { "attn_qkv" } else { "attn_q" };
    let activation = match (fields.flag("clip.use_gelu")?, fields.flag("clip.use_silu")?) {
        (true, false) => VisionActivation::GeluTanh,
        (false, true) => VisionActivation::Silu,
        (false, false) => VisionActivation::QuickGelu,
        (true, true) => return Err(wrong("clip.use_silu", "true", "one activation")),
    };
    Ok(VisionDescription {
        family: family.to_owned(),
        patch: fields.required("patch_size", limits::PATCH)?,
        frames: 1,
        channels_last: false,
        patch_bias: fields.has("v.patch_embd.bias"),
        centered: false,
        hidden,
        heads: fields.required("attention.head_count", limits::WIDTH)?,
        blocks: fields.required("block_count", limits::BLOCKS)?,
        inner: inner(fields, hidden)?,
        activation,
        gated: fields.has("v.blk.0.ffn_gate.weight"),
        norm: layer_norm(epsilon),
        joined,
        qkv_bias: fields.has(&format!("v.blk.0.{query}.bias")),
        bias: true,
        bounded: false,
        head_norms: false,
        post_norms: false,
        attention_scale: None,
        layer_scale: fields.has("v.blk.0.ls1.weight"),
        class_token: fields.has("v.class_embd"),
        positions: Positions::None,
        rope_base: None,
        rope_pairs: VisionPairs::RowThenColumn,
        input_norm: fields.has("v.pre_ln.weight"),
        output_norm: fields.has("v.post_ln.weight"),
        windows: None,
        projector: Projector::PLAIN,
        deepstack: Vec::new(),
        width,
        together: false,
        together_in_windows: false,
    })
}

/// Returns the width of the feed-forward. Older files of Qwen2-VL state 0: theirs follows from a matrix.
fn inner(fields: &Fields<'_>, hidden: usize) -> Result<usize> {
    let key = "feed_forward_length";
    let stated = fields.metadata.integer(&format!("clip.vision.{key}"))?;
    if stated != Some(0) {
        return fields.required(key, limits::WIDTH);
    }
    let name = "v.blk.0.ffn_up.weight";
    let shape = &super::tensors::find(fields.tensors, name)?.shape;
    match shape[..] {
        // Older files have the two matrices of the feed-forward under each other's name.
        [inner, inputs] | [inputs, inner]
            if inputs == hidden && (1..=limits::WIDTH).contains(&inner) =>
        {
            Ok(inner)
        }
        _ => {
            let message = format!(
                "tensor {name:?} has the shape {shape:?}, expected a matrix with a side of {hidden}"
            );
            Err(Error::new(ErrorKind::Malformed, message))
        }
    }
}

/// Returns the patches per side of a picture.
fn side(fields: &Fields<'_>, patch: usize) -> Result<usize> {
    let pixels = fields.required("image_size", limits::PATCHES * limits::PATCH)?;
    let side = pixels / patch;
    match side > 0 && side * side <= limits::PATCHES {
        true => Ok(side),
        false => {
            let expected = format!("1 to {} patches of {patch} pixels", limits::PATCHES);
            Err(wrong("clip.vision.image_size", pixels, &expected))
        }
    }
}

fn idefics3(fields: &Fields<'_>) -> Result<VisionDescription> {
    let width = fields.first_dimension("mm.model.fc.weight")?;
    let shared = common("idefics3", width, fields)?;
    let merge = fields.required("projector.scale_factor", limits::MERGE)?;
    Ok(VisionDescription {
        positions: Positions::Nearest {
            side: side(fields, shared.patch)?,
        },
        projector: Projector {
            merge,
            ..shared.projector
        },
        ..shared
    })
}

fn gemma3(fields: &Fields<'_>) -> Result<VisionDescription> {
    let matrix = super::tensors::find(fields.tensors, "mm.input_projection.weight")?;
    let width = matrix.shape.last().copied().unwrap_or(0);
    let shared = common("gemma3", width, fields)?;
    let side = side(fields, shared.patch)?;
    let merge = fields.size("projector.scale_factor", limits::MERGE)?;
    Ok(VisionDescription {
        positions: Positions::Fixed { side },
        together: true,
        projector: Projector {
            merge: merge.unwrap_or(4),
            mean: true,
            norm: Some(ProjectorNorm {
                // The file has the whole factor.
                norm: Norm {
                    kind: NormKind::Rms,
                    ..shared.norm
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

fn gemma4(fields: &Fields<'_>) -> Result<VisionDescription> {
    let width = fields.first_dimension("mm.input_projection.weight")?;
    let shared = common("gemma4v", width, fields)?;
    let norm = Norm {
        kind: NormKind::Rms,
        ..shared.norm
    };
    let positions = super::tensors::find(fields.tensors, "v.position_embd.weight")?;
    let side = match positions.shape[..] {
        [2, side, _] if (1..=limits::PATCHES).contains(&side) => side,
        ref shape => {
            let message = format!(
                "tensor \"v.position_embd.weight\" has the shape {shape:?}, expected [2, {}, {}]",
                limits::PATCHES,
                shared.hidden
            );
            return Err(Error::new(ErrorKind::Malformed, message));
        }
    };
    let activation = match shared.activation {
        // The converter states none for this encoder.
        VisionActivation::QuickGelu => VisionActivation::GeluTanh,
        other => other,
    };
    let merge = fields.size("projector.scale_factor", limits::MERGE)?;
    Ok(VisionDescription {
        centered: true,
        activation,
        norm,
        bounded: fields.has("v.blk.0.attn_q.input_max"),
        positions: Positions::Axes { side },
        rope_base: Some(100.0),
        // The file does not state it: the text model decides.
        together: true,
        projector: Projector {
            merge: merge.unwrap_or(3),
            standardized: fields.has("v.std_bias"),
            ..gemma4_projector(shared.hidden, norm)
        },
        ..gemma4_blocks(shared)
    })
}

fn llava(fields: &Fields<'_>) -> Result<VisionDescription> {
    let width = fields.first_dimension("mm.2.weight")?;
    let shared = common("mlp", width, fields)?;
    let side = side(fields, shared.patch)?;
    // Files have the blocks that the projector needs, without those after them.
    let blocks = match fields.metadata.integers("clip.vision.feature_layer")? {
        None => shared.blocks,
        Some([layer]) if (1..=shared.blocks as i64).contains(layer) => *layer as usize,
        Some(layers) => {
            let expected = format!("one number of {} blocks", shared.blocks);
            let layers = layers.iter().take(8).collect::<Vec<_>>();
            let key = "clip.vision.feature_layer";
            return Err(wrong(key, format!("{layers:?}"), &expected));
        }
    };
    Ok(VisionDescription {
        blocks,
        positions: Positions::Fixed { side },
        projector: Projector {
            inner: Some(fields.first_dimension("mm.0.weight")?),
            bias: true,
            ..shared.projector
        },
        ..shared
    })
}

fn internvl(fields: &Fields<'_>) -> Result<VisionDescription> {
    let width = fields.first_dimension("mm.model.mlp.3.weight")?;
    let shared = common("internvl", width, fields)?;
    let side = side(fields, shared.patch)?;
    let activation = match shared.activation {
        // The flag does not tell which GELU: the model's is that with the error function.
        VisionActivation::GeluTanh => VisionActivation::Gelu,
        other => other,
    };
    Ok(VisionDescription {
        activation,
        positions: Positions::Fixed { side },
        projector: Projector {
            merge: fields.required("projector.scale_factor", limits::MERGE)?,
            norm: Some(ProjectorNorm {
                norm: layer_norm(1e-5),
                weighted: true,
                after_merge: true,
            }),
            inner: Some(fields.first_dimension("mm.model.mlp.1.weight")?),
            bias: true,
            ..shared.projector
        },
        ..shared
    })
}

fn lfm2(fields: &Fields<'_>) -> Result<VisionDescription> {
    let width = fields.first_dimension("mm.2.weight")?;
    let shared = common("lfm2", width, fields)?;
    let rows = fields.first_dimension("v.position_embd.weight")?;
    Ok(VisionDescription {
        positions: Positions::Resized { side: rows.isqrt() },
        projector: Projector {
            merge: fields.required("projector.scale_factor", limits::MERGE)?,
            norm: fields.has("mm.input_norm.weight").then(|| ProjectorNorm {
                norm: layer_norm(1e-5),
                weighted: true,
                after_merge: true,
            }),
            inner: Some(fields.first_dimension("mm.1.weight")?),
            bias: fields.has("mm.1.bias"),
            ..shared.projector
        },
        ..shared
    })
}

fn qwen(family: &str, fields: &Fields<'_>) -> Result<VisionDescription> {
    let width = fields.first_dimension("mm.2.weight")?;
    let shared = common(family, width, fields)?;
    let merge = fields
        .size("spatial_merge_size", limits::MERGE)?
        .unwrap_or(2);
    let is_2_5 = family == "qwen2.5vl_merger";
    let kind = if is_2_5 {
        NormKind::Rms
    } else {
        NormKind::Layer
    };
    let norm = Norm {
        kind,
        ..shared.norm
    };
    let key = "clip.vision.wa_layer_indexes";
    if is_2_5 && fields.metadata.get(key).is_some() {
        let expected = "clip.vision.n_wa_pattern in its place";
        return Err(wrong(key, "an array", expected));
    }
    let windows = match is_2_5 {
        true => {
            let pattern = fields.required("n_wa_pattern", limits::BLOCKS)?;
            let pixels = fields.size("window_size", limits::WIDTH)?.unwrap_or(112);
            let side = pixels / shared.patch / merge;
            if side == 0 {
                let expected = format!("at least {} pixels", shared.patch * merge);
                return Err(wrong("clip.vision.window_size", pixels, &expected));
            }
            let whole = (1..=shared.blocks).map(|block| block.is_multiple_of(pattern));
            Some(Windows {
                side,
                whole: whole.collect(),
            })
        }
        false => None,
    };
    let positions = match fields.tensors.get("v.position_embd.weight") {
        Some(info) if family == "qwen3vl_merger" => {
            let rows = info.shape.first().copied().unwrap_or(0);
            Positions::Bilinear { side: rows.isqrt() }
        }
        _ => Positions::None,
    };
    let deepstack = match fields.metadata.get("clip.vision.is_deepstack_layers") {
        None => Vec::new(),
        Some(Value::Bools(layers)) => (0..layers.len()).filter(|it| layers[*it]).collect(),
        Some(_) => {
            let key = "clip.vision.is_deepstack_layers";
            return Err(wrong(key, "no array of booleans", "one"));
        }
    };
    Ok(VisionDescription {
        frames: match fields.has("v.patch_embd.weight.1") {
            true => 2,
            false => 1,
        },
        norm,
        positions,
        rope_base: Some(1e4),
        windows,
        deepstack,
        // This norm is that of the merger.
        output_norm: false,
        projector: Projector {
            merge,
            norm: Some(ProjectorNorm {
                norm,
                weighted: true,
                after_merge: false,
            }),
            inner: Some(fields.first_dimension("mm.0.weight")?),
            bias: true,
            ..shared.projector
        },
        ..shared
    })
}

fn wrong(key: &str, value: impl std::fmt::Display, expected: &str) -> Error {
    let message = format!("metadata field `{key}` is {value}, expected {expected}");
    Error::new(ErrorKind::Unsupported, message)
}
