//! Checks of parts of `package.json`.

use std::collections::BTreeMap;

use triad_model::description::ModelDescription;
use triad_model::safetensors::Element;
use triad_model::tensor::Format;
use triad_model::{Error, ErrorKind, Result};

use super::layers::{self, BitsOfLayers};
use super::preparation::{InputSummary, LayerBits};
use super::tensors::malformed;
use crate::linear_input::LinearInput;
use crate::quantization::{WeightBits, usable_clip};

/// Checks the inputs of the preparation in `field`: `expected` are block, input and channels.
pub(super) fn check_inputs(
    field: &str,
    inputs: &[InputSummary],
    expected: &[(usize, LinearInput, usize)],
) -> Result<()> {
    if inputs.len() != expected.len() {
        let message = format!(
            "field `{field}.inputs` has {} inputs, expected {}",
            inputs.len(),
            expected.len()
        );
        return Err(malformed(message));
    }
    for (index, (input, (block, place, channels))) in inputs.iter().zip(expected).enumerate() {
        check_input(input, *block, *place, *channels).map_err(|error| {
            malformed(format!("field `{field}.inputs[{index}]`")).caused_by(error)
        })?;
    }
    Ok(())
}

/// The element types of float matrices.
pub(super) const FLOATS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];

pub(super) fn format_of(field: &str, name: &str) -> Result<Format> {
    let mut all = Format::ALL.into_iter();
    all.find(|format| format.name() == name).ok_or_else(|| {
        malformed(format!(
            "field `{field}` is {name:?}, a format that is not read"
        ))
    })
}

pub(super) fn element_of(field: &str, name: &str, allowed: &[Element]) -> Result<Element> {
    let found = allowed.iter().find(|element| element.name() == name);
    found.copied().ok_or_else(|| {
        let allowed: Vec<_> = allowed.iter().map(|element| element.name()).collect();
        malformed(format!(
            "field `{field}` is {name:?}, expected one of {}",
            allowed.join(", ")
        ))
    })
}

/// Checks the `layers` of a manifest against the model, and returns the bits of the blocks' layers and of the output
/// matrix.
pub(super) fn check_layers(
    model: &ModelDescription,
    found: &[LayerBits],
) -> Result<(BitsOfLayers, WeightBits)> {
    let groups = layers::groups(model);
    if found.len() != groups.len() {
        return Err(malformed(format!(
            "field `preparation.layers` has {} layers, expected {}",
            found.len(),
            groups.len()
        )));
    }
    let mut of_blocks = BTreeMap::new();
    let mut of_output = WeightBits::Eight;
    for (index, (found, group)) in found.iter().zip(&groups).enumerate() {
        let wrong = |what: String| malformed(format!("field `preparation.layers[{index}]` {what}"));
        if (found.block, found.layer.as_str()) != (group.block, group.layer) {
            let place = |block: Option<usize>| {
                block.map_or_else(|| "no block".to_owned(), |block| format!("block {block}"))
            };
            return Err(wrong(format!(
                "is {:?} of {}, expected {:?} of {}",
                found.layer,
                place(found.block),
                group.layer,
                place(group.block)
            )));
        }
        if group.bits(found.bits).is_none() {
            return Err(wrong(found.bits.misfit(group.in_features)));
        }
        if !(found.divergence.is_finite() && found.divergence >= 0.0) {
            let divergence = found.divergence;
            return Err(wrong(format!(
                "has the divergence {divergence}, expected a number of at least 0"
            )));
        }
        match group.block {
            Some(block) => {
                of_blocks.insert((block, group.layer), found.bits);
            }
            None => of_output = found.bits,
        }
    }
    Ok((of_blocks, of_output))
}

fn check_input(
    input: &InputSummary,
    block: usize,
    place: LinearInput,
    channels: usize,
) -> Result<()> {
    if (input.block, input.input) != (block, place) {
        let (found, expected) = (input.input.name(), place.name());
        return Err(malformed(format!(
            "is {found} of block {}, expected {expected} of block {block}",
            input.block
        )));
    }
    if input.channels != channels {
        return Err(malformed(format!(
            "has {} channels, expected {channels}",
            input.channels
        )));
    }
    for clip in [input.clip, input.shadow_clip] {
        if usable_clip(clip) != clip {
            return Err(malformed(format!(
                "is clipped at {clip:?}, expected a number that can be divided by"
            )));
        }
    }
    if input.smoothing.channels() != channels {
        let found = input.smoothing.channels();
        return Err(malformed(format!(
            "has smoothing for {found} channels, expected {channels}"
        )));
    }
    let hot = &input.hot_channels;
    let ascending = hot.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || hot.last().is_some_and(|last| *last as usize >= channels) {
        return Err(malformed(format!(
            "has hot channels that are not ascending and below {channels}"
        )));
    }
    Ok(())
}

pub(super) fn unsupported(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}
