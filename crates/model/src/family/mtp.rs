//! The head of a file that predicts one more token (MTP).
//!
//! A file may have a head that is not used: of another family, or with parts that Triad does not run. The model itself
//! needs no head, so that is no error: the reason is kept.

use std::collections::{BTreeMap, BTreeSet};

use super::names::Names;
use super::tensors::{Mapper, gguf_names, stacked};
use super::traits::Family;
use super::{IsQuantized, unsupported};
use crate::description::{BlockDescription, ModelDescription, Mtp};
use crate::error::Result;
use crate::tensor::TensorInfo;
use crate::tensor_map::{MtpTensors, TensorMap, TensorSlice};

/// Where a file has a head: the root of the block's names and its number, and the names of the other parts.
struct Place {
    root: &'static str,
    block: usize,
    projection: String,
    embedding_norm: String,
    state_norm: String,
    output_norm: String,
}

impl Place {
    fn hugging_face() -> Self {
        Self {
            root: "mtp.",
            block: 0,
            projection: "mtp.fc.weight".into(),
            embedding_norm: "mtp.pre_fc_norm_embedding".into(),
            state_norm: "mtp.pre_fc_norm_hidden".into(),
            output_norm: "mtp.norm".into(),
        }
    }

    fn gguf(block: usize) -> Self {
        let name = |part: &str| format!("blk.{block}.nextn.{part}");
        Self {
            root: "",
            block,
            projection: name("eh_proj.weight"),
            embedding_norm: name("enorm"),
            state_norm: name("hnorm"),
            output_norm: name("shared_head_norm"),
        }
    }
}

/// Adds the head of a Hugging Face checkpoint to `description` and `map`, or the reason why it is not used.
pub(super) fn add_hugging_face(
    family: &Family,
    (description, map): (&mut ModelDescription, &mut TensorMap),
    tensors: &BTreeMap<String, TensorInfo>,
    is_quantized: &IsQuantized<'_>,
) {
    if !map.more_tokens.is_empty() {
        let names = stacked(family.names, map.more_tokens.iter());
        let found = find(
            family,
            (description, map),
            (&names, &Place::hugging_face()),
            (tensors, is_quantized),
        );
        put(found, description, map);
    }
}

/// Adds the head of a GGUF file, as [`add_hugging_face`] does.
pub(super) fn add_gguf(
    family: &Family,
    (description, map): (&mut ModelDescription, &mut TensorMap),
    tensors: &BTreeMap<String, TensorInfo>,
) {
    if !map.more_tokens.is_empty() {
        let (names, place) = (
            gguf_names(family, tensors),
            Place::gguf(description.blocks.len()),
        );
        let tensors: (_, &IsQuantized<'_>) = (tensors, &|_| false);
        let found = find(family, (description, map), (&names, &place), tensors);
        put(found, description, map);
    }
}

fn put(found: Result<(Mtp, MtpTensors)>, description: &mut ModelDescription, map: &mut TensorMap) {
    match found {
        Ok((mtp, tensors)) => {
            description.mtp = Some(Box::new(mtp));
            map.mtp = Some(Box::new(tensors));
            map.more_tokens.clear();
        }
        Err(error) => map.mtp_refused = Some(error.to_string()),
    }
}

fn find(
    family: &Family,
    (description, map): (&ModelDescription, &TensorMap),
    (names, place): (&Names, &Place),
    (tensors, is_quantized): (&BTreeMap<String, TensorInfo>, &IsQuantized<'_>),
) -> Result<(Mtp, MtpTensors)> {
    if !family.runs_mtp {
        let family = &description.family;
        return Err(unsupported(format!(
            "Triad does not run the heads of the family {family}"
        )));
    }
    // The block is like those of the model that have attention.
    let has_attention = |block: &&BlockDescription| block.attention().is_some();
    let Some(block) = description.blocks.iter().rfind(has_attention) else {
        return Err(unsupported("the model has no block with attention"));
    };
    let mtp = Mtp {
        block: block.clone(),
        norm: description.output_norm,
    };
    let (hidden, norm) = (description.hidden, description.output_norm);
    let mut mapper = Mapper {
        names,
        root: place.root,
        output: "",
        description,
        places: vec![[place.block; 2]],
        tensors,
        is_quantized,
        used: BTreeSet::new(),
    };
    let projection = mapper.tensor(&place.projection, &[hidden, 2 * hidden])?;
    let found = MtpTensors {
        embedding_norm: mapper.norm(&place.embedding_norm, &norm, hidden)?,
        state_norm: mapper.norm(&place.state_norm, &norm, hidden)?,
        projection: TensorSlice::whole(projection),
        output_norm: mapper.norm(&place.output_norm, &norm, hidden)?,
        block: mapper.block(0, &mtp.block)?,
    };
    let mut others = map.more_tokens.iter();
    if let Some(name) = others.find(|name| !mapper.used.contains(*name)) {
        return Err(unsupported(format!(
            "tensor `{name}` has no part in a head of one block with the embedding and the output matrix of the model"
        )));
    }
    Ok((mtp, found))
}
