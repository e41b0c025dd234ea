//! The axes of RoPE in the text of models with pictures.

use serde_json::Value;

use super::config::Config;
use super::traits::{self, Family};
use crate::description::{ModelDescription, PictureRope};
use crate::error::Result;
use crate::gguf::Metadata;

/// Reads `mrope_section` of `config.json`. Files without it have the sections that their `model_type` has by default.
pub(super) fn of_config(
    family: &Family,
    description: &ModelDescription,
    config: &Value,
) -> Result<Option<PictureRope>> {
    if !family.images {
        return Ok(None);
    }
    let outer = Config::new(config)?;
    let text = outer.object("text_config", "text_config.")?;
    let mut sections = None;
    for place in [text, Some(outer)].into_iter().flatten() {
        for key in ["rope_parameters", "rope_scaling"] {
            if let Some(rope) = place.object(key, "rope_parameters.")?
                && sections.is_none()
            {
                sections = rope.counts("mrope_section")?;
            }
        }
    }
    let default = match is_interleaved(family) {
        true => vec![24, 20, 20],
        false => vec![16, 24, 24],
    };
    Ok(rope(family, description, &sections.unwrap_or(default)))
}

/// Reads `rope.dimension_sections`, which [`super::gguf_rope`] has checked.
pub(super) fn of_gguf(
    family: &Family,
    description: &ModelDescription,
    metadata: &Metadata,
) -> Result<Option<PictureRope>> {
    let architecture = metadata.string("general.architecture")?.unwrap_or_default();
    let key = format!("{architecture}.rope.dimension_sections");
    if !family.images || metadata.get(&key).is_none() {
        return Ok(None);
    }
    let sections = metadata.integers(&key)?.unwrap_or_default();
    let sections: Vec<usize> = sections.iter().map(|it| *it as usize).collect();
    Ok(rope(family, description, &sections))
}

/// Returns the axes if the sections are those of all pairs: only pictures need them.
fn rope(
    family: &Family,
    description: &ModelDescription,
    sections: &[usize],
) -> Option<PictureRope> {
    let pairs = description
        .blocks
        .iter()
        .filter_map(|block| block.attention())
        .map(|attention| attention.rope.dims / 2);
    let (Some(least), Some(most)) = (pairs.clone().min(), pairs.max()) else {
        return None;
    };
    let (&[time, rows, columns] | &[time, rows, columns, _]) = sections else {
        return None;
    };
    let sum = time.checked_add(rows)?.checked_add(columns)?;
    (least == most && sum == most).then_some(PictureRope {
        sections: [time, rows, columns],
        interleaved: is_interleaved(family),
    })
}

fn is_interleaved(family: &Family) -> bool {
    family.name != traits::QWEN2_VL.name
}
