//! The encoder of pictures in a package.

use std::collections::BTreeMap;

use triad_model::Result;
use triad_model::description::Linear as LinearName;
use triad_model::safetensors::Element;
use triad_model::vision::Positions;

use super::Package;
use super::tensor_file::{TensorFile, changed};
use super::tensors::{NormPlace, OUTPUT_NORM, linear_name, norm_name};
use super::vision::{
    CLASS, INPUT_NORM, PATCH, POSITIONS, PackagedVision, WEIGHTS, bounds_name, norm_places,
    projector_names, scale_names, standard_names,
};
use crate::quantization::DecodeWeights;
use crate::vision::weights::{projector_norm_of_ones, value_norm};
use crate::vision::{Bounds, Dense, LayerScales, Projector, Standard, VisionModel, VisionWeights};
use crate::weights::{Block, Linear, WeightMatrix};

impl Package {
    /// Returns the encoder of pictures; `None` if it was not prepared.
    ///
    /// # Errors
    /// If a scale is not a positive number, or a sum is impossible.
    pub(crate) fn vision(&self) -> Result<Option<VisionModel>> {
        let (Some(described), Some(file)) = (&self.manifest.vision, &self.vision) else {
            return Ok(None);
        };
        let weights = read(described, file).map_err(|error| error.at(self.path.join(WEIGHTS)))?;
        let model = described.model.clone();
        let place = (self.path(), &file.file);
        Ok(Some(VisionModel::packaged(place, model, weights)))
    }
}

fn read(described: &PackagedVision, file: &TensorFile) -> Result<VisionWeights> {
    let model = &described.model;
    let element = described.element()?;
    let (hidden, patch) = (model.hidden, 3 * model.patch * model.patch);
    let floats = |name: &str, exists: bool| exists.then(|| file.floats(name)).transpose();
    let dense = |name: &str, [outputs, inputs]: [usize; 2], element, has_bias| -> Result<Dense> {
        let weight: WeightMatrix =
            file.float(&format!("{name}.weight"), (outputs, inputs), element)?;
        Ok(Dense {
            weight,
            bias: floats(&format!("{name}.bias"), has_bias)?,
        })
    };
    let norm = |name: &str, exists: bool| exists.then(|| file.norm(name, &model.norm)).transpose();
    let plan = described.preparation.quantization();
    let plan = plan.ok_or_else(|| changed(WEIGHTS))?;
    let blocks = plan.blocks.into_iter().enumerate().map(|(index, inputs)| {
        let linears = model.linears().into_iter().map(|shape| {
            let name = linear_name(index, shape.linear);
            let (weight, decode_weight) = file.int8(&name, &shape, DecodeWeights::Int8)?;
            let linear = Linear {
                weight,
                decode_weight,
                bias: floats(&format!("{name}.bias"), shape.bias)?,
            };
            Ok::<(LinearName, Linear), triad_model::Error>((shape.linear, linear))
        });
        let places = norm_places(model);
        let norm = |place| file.norm(&norm_name(index, place), &model.norm);
        let optional = |place| {
            let exists = places.iter().any(|(other, _)| *other == place);
            exists.then(|| norm(place)).transpose()
        };
        let norms = [norm(NormPlace::Attention)?, norm(NormPlace::FeedForward)?];
        Ok(Block {
            attention_post_norm: optional(NormPlace::AttentionPost)?,
            feed_forward_post_norm: optional(NormPlace::FeedForwardPost)?,
            query_norm: optional(NormPlace::Query)?,
            key_norm: optional(NormPlace::Key)?,
            value_norm: value_norm(model),
            inputs: Some(inputs),
            ..Block::plain(norms, linears.collect::<Result<_>>()?)
        })
    });
    let scales = (0..model.blocks).map(|block| {
        let [attention, feed_forward] = scale_names(block);
        Ok(LayerScales {
            attention: floats(&attention, model.layer_scale)?,
            feed_forward: floats(&feed_forward, model.layer_scale)?,
        })
    });
    let bounds = (0..model.blocks).map(|block| {
        let name = bounds_name(block);
        let numbers = floats(&name, model.bounded)?.unwrap_or_default();
        let linears = model.linears().into_iter();
        let bounds = linears.zip(numbers.as_chunks().0).map(|(shape, numbers)| {
            let name = format!("tensor {name:?}, row of {:?},", shape.linear);
            Ok((shape.linear, Bounds::new(*numbers, &name)?))
        });
        bounds.collect::<Result<BTreeMap<_, _>>>()
    });
    let projector = |stage| {
        let [norm, first, last] = projector_names(stage);
        let shapes = model.projector_layers();
        let has_bias = model.projector.bias;
        let described = model.projector_norm(stage);
        let [offset, factor] = standard_names(stage);
        let offset = floats(&offset, model.projector.standardized)?;
        let factor = floats(&factor, model.projector.standardized)?;
        let standard = offset.zip(factor);
        Ok(Projector {
            standard: standard.map(|(offset, factor)| Standard { offset, factor }),
            norm: match described {
                Some(described) if described.weighted => Some(file.norm(&norm, &described.norm)?),
                Some(described) => Some(projector_norm_of_ones(model, &described)),
                None => None,
            },
            first: match shapes[..] {
                [shape, _] => Some(dense(&first, shape, element, has_bias)?),
                _ => None,
            },
            last: dense(&last, shapes[shapes.len() - 1], element, has_bias)?,
        })
    };
    Ok(VisionWeights {
        patch: dense(PATCH, [hidden, patch], Element::F32, model.patch_bias)?,
        class: floats(CLASS, model.class_token)?,
        positions: floats(POSITIONS, model.positions != Positions::None)?.unwrap_or_default(),
        input_norm: norm(INPUT_NORM, model.input_norm)?,
        blocks: blocks.collect::<Result<_>>()?,
        scales: scales.collect::<Result<_>>()?,
        bounds: bounds.collect::<Result<_>>()?,
        output_norm: norm(OUTPUT_NORM, model.output_norm)?,
        projectors: (0..=model.deepstack.len())
            .map(projector)
            .collect::<Result<_>>()?,
    })
}
