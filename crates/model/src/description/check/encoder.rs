//! The checks of encoders, and of the layers after pooling.

use super::{limits, malformed, size};
use crate::description::{
    AddedInputs, BlockDescription, Head, KeyValues, ModelDescription, Residual,
};
use crate::error::Result;

/// Checks the parts of `model` that only encoders have.
pub(super) fn check(model: &ModelDescription) -> Result<()> {
    let is_encoder = |block: &BlockDescription| {
        let attention = block.attention();
        attention.is_some_and(|it| it.bidirectional)
    };
    if model.is_encoder() {
        if !model.blocks.iter().all(is_encoder) {
            return Err(malformed(
                "some blocks read later positions and others do not, expected all or none",
            ));
        }
        let mut attentions = model.blocks.iter().filter_map(BlockDescription::attention);
        if attentions.any(|it| it.key_values != KeyValues::Own) || model.token_inputs.is_some() {
            return Err(malformed(
                "an encoder with shared keys and values or with inputs by token, expected none of them",
            ));
        }
    }
    let mut residuals = model.blocks.iter().map(|block| block.residual).skip(1);
    if residuals.any(|residual| residual == Residual::SerialAfterNorm) {
        return Err(malformed(
            "a block other than the first that reads the norm of the embedding, expected none",
        ));
    }
    check_inputs(&model.added_inputs, model)?;
    match &model.head {
        Some(head) => check_head(head, model),
        None => Ok(()),
    }
}

fn check_inputs(inputs: &AddedInputs, model: &ModelDescription) -> Result<()> {
    if *inputs == AddedInputs::default() {
        return Ok(());
    }
    if !model.is_encoder() {
        return Err(malformed(
            "learned positions in a model that is no encoder, expected none",
        ));
    }
    if inputs.token_types > 0 {
        let most = limits::VOCAB;
        size("the number of token types", inputs.token_types, most)?;
    }
    if let Some(positions) = &inputs.positions {
        size("the number of positions", positions.rows, limits::CONTEXT)?;
        if positions.first >= positions.rows || model.context > positions.count() {
            return Err(malformed(format!(
                "{} positions from row {} on for a context of {} tokens, expected at least as many",
                positions.rows, positions.first, model.context
            )));
        }
        if positions.padding.is_some() && positions.first == 0 {
            return Err(malformed(
                "padding without a row before the first position, expected one",
            ));
        }
    }
    Ok(())
}

fn check_head(head: &Head, model: &ModelDescription) -> Result<()> {
    size(
        "the number of layers after pooling",
        head.layers.len(),
        limits::LAYERS_AFTER_POOLING,
    )?;
    let mut width = model.hidden;
    for layer in &head.layers {
        size(
            "the width of a layer after pooling",
            layer.out_features,
            limits::WIDTH,
        )?;
        if layer.in_features != width {
            return Err(malformed(format!(
                "a layer after pooling reads {} numbers, expected {width}",
                layer.in_features
            )));
        }
        width = layer.out_features;
        if let Some(norm) = &layer.norm {
            norm.check()?;
        }
    }
    let Some(classifier) = &head.classifier else {
        return Ok(());
    };
    let expected = match (classifier.compares, classifier.labels.len()) {
        (true, _) => 2,
        (false, 0) => width,
        (false, labels) => labels,
    };
    if width != expected || head.width() > limits::CLASSES {
        return Err(malformed(format!(
            "a classifier with {width} outputs, expected {expected}, and at most {} classes",
            limits::CLASSES
        )));
    }
    Ok(())
}
