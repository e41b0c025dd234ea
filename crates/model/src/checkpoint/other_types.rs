//! Tensors of a checkpoint whose numbers are no floats: they may be there if the model has no use for them.

use std::collections::BTreeMap;

use crate::description::ModelDescription;
use crate::error::{Error, ErrorKind, Result};
use crate::safetensors::{self, OtherTypes};
use crate::tensor::{Format, TensorInfo};
use crate::tensor_map::TensorMap;

/// Describes the model by its tensors of floats, and checks that the others have no part in it. `describe` maps tensors
/// to the parts of the model, and fails if one is missing or left over.
pub(super) fn describe(
    floats: &BTreeMap<String, TensorInfo>,
    others: &OtherTypes,
    describe: impl Fn(&BTreeMap<String, TensorInfo>) -> Result<(ModelDescription, TensorMap)>,
) -> Result<(ModelDescription, TensorMap)> {
    let described = describe(floats).map_err(|error| explained(error, others))?;
    if others.is_empty() {
        return Ok(described);
    }
    let info = |(name, (shape, _)): (&String, &(Vec<usize>, String))| {
        let info = TensorInfo {
            name: name.clone(),
            shape: shape.clone(),
            format: Format::F32,
            file: 0,
            bytes: 0..0,
        };
        (name.clone(), info)
    };
    let mut all = floats.clone();
    all.extend(others.iter().map(info));
    // Some parts are there if their tensors are.
    let (mut description, mut map) = describe(&all)?;
    map.unused.clone_from(&described.1.unused);
    map.more_tokens.clone_from(&described.1.more_tokens);
    // A head with such tensors is not used.
    map.mtp.clone_from(&described.1.mtp);
    map.mtp_refused.clone_from(&described.1.mtp_refused);
    description.mtp.clone_from(&described.0.mtp);
    if (&description, &map) == (&described.0, &described.1) {
        return Ok(described);
    }
    let names: Vec<_> = others.keys().take(3).cloned().collect();
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "a weight has another type than F32, F16 or BF16; the first tensors of other types are {}",
            names.join(", ")
        ),
    ))
}

/// Returns the error, or the type of the tensor that it calls missing, or of another one of its layer: quantized weights
/// have other names.
pub(super) fn explained(error: Error, others: &OtherTypes) -> Error {
    let message = error.to_string();
    let missing = |name: &&String| message.contains(&format!("tensor `{name}` is missing"));
    let of_layer = |name: &&String| {
        let layer = name.rsplit_once('.').map(|(layer, _)| layer);
        layer.is_some_and(|layer| message.contains(&format!("tensor `{layer}.weight` is missing")))
    };
    let names = || others.keys();
    match names().find(missing).or_else(|| names().find(of_layer)) {
        Some(name) => safetensors::not_a_float(name, &others[name].1),
        None => error,
    }
}
