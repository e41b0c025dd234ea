//! An adapter in a GGUF file, as llama.cpp's `convert_lora_to_gguf.py` writes it.

use super::{Adapter, Content, Factor, malformed, missing, unsupported};
use crate::description::ModelDescription;
use crate::error::Result;
use crate::family::Modules;
use crate::gguf;

/// Reads the adapter in the GGUF file whose content is `bytes`.
pub(super) fn read(bytes: &[u8], description: &ModelDescription) -> Result<Adapter> {
    let gguf::Gguf {
        metadata, tensors, ..
    } = gguf::read(bytes)?;
    let text = |key: &str| {
        Ok(metadata
            .string(key)?
            .map(|text| text.chars().take(40).collect::<String>()))
    };
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        match text(key)? {
            Some(found) if found == expected => {}
            Some(found) => {
                return Err(unsupported(format!(
                    "metadata field `{key}` is `{found}`, expected `{expected}`"
                )));
            }
            None => {
                return Err(missing(format!(
                    "metadata has no field `{key}`, expected `{expected}`"
                )));
            }
        }
    }
    let invocation = "adapter.alora.invocation_tokens";
    if metadata.get(invocation).is_some() {
        return Err(unsupported(format!(
            "metadata has the field `{invocation}`: an adapter that starts in the middle of the text is not supported"
        )));
    }
    let architecture = text("general.architecture")?;
    let architecture =
        architecture.ok_or_else(|| missing("metadata has no field `general.architecture`"))?;
    let key = "adapter.lora.alpha";
    let alpha = metadata
        .float(key)?
        .ok_or_else(|| missing(format!("metadata has no field `{key}`")))?;
    if !alpha.is_finite() {
        return Err(malformed(format!(
            "metadata field `{key}` is {alpha}, expected a number"
        )));
    }
    let content = Content {
        bytes,
        tensors: &tensors,
        modules: Modules::gguf(&architecture, description)?,
        split: &|name| {
            let factor = |end, factor| Some((name.strip_suffix(end)?, factor));
            factor(".weight.lora_a", Factor::A).or_else(|| factor(".weight.lora_b", Factor::B))
        },
        // As in llama.cpp, 0 means that the numbers are already scaled.
        scale: &|_, rank| {
            Ok(if alpha == 0.0 {
                1.0
            } else {
                alpha / rank as f32
            })
        },
    };
    content.adapter(description)
}
