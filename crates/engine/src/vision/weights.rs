//! The weights of a vision encoder, read from its files.

use std::collections::BTreeMap;

use triad_kernels::BlockArithmetic;
use triad_model::dequantize::dequantize;
use triad_model::description::{self, Norm as NormDescription};
use triad_model::vision::{
    LayerShape, ProjectorLayer, ProjectorNorm, Stored, VisionBlockLayer, VisionDescription,
    VisionFile, VisionLayer,
};
use triad_model::{Error, ErrorKind, Result};

use super::bounds::Bounds;
use crate::weights::{Block, Linear, Norm, Weight, WeightMatrix};

/// All weights of an encoder.
#[derive(Clone)]
pub struct VisionWeights {
    /// Patch embedding `[hidden, 3 · patch · patch]`, the sum of all frames.
    pub patch: Dense,
    /// The row of no patch `[hidden]`, with its position.
    pub class: Option<Vec<f32>>,
    /// `[rows, hidden]`, without that of the class token; empty if there is no table. Of a table for each axis, that of
    /// columns comes first.
    pub positions: Vec<f32>,
    /// Norm before the first block.
    pub input_norm: Option<Norm>,
    /// The blocks: their norms and linear layers, as those of a text model.
    pub blocks: Vec<Block>,
    /// Factors on the outputs of both halves of each block.
    pub scales: Vec<LayerScales>,
    /// The bounds of the linear layers of each block; empty if they have none.
    pub bounds: Vec<BTreeMap<description::Linear, Bounds>>,
    /// Norm after the last block.
    pub output_norm: Option<Norm>,
    /// The projector after the last block, then those of deepstack.
    pub projectors: Vec<Projector>,
}

/// A linear layer in float.
#[derive(Clone)]
pub struct Dense {
    /// `[out_features, in_features]`.
    pub weight: WeightMatrix,
    /// `[out_features]`.
    pub bias: Option<Vec<f32>>,
}

/// Factors on the outputs of a block `[hidden]`.
#[derive(Clone, Default)]
pub struct LayerScales {
    /// That of attention.
    pub attention: Option<Vec<f32>>,
    /// That of the feed-forward.
    pub feed_forward: Option<Vec<f32>>,
}

/// Offset and factor of averaged patches: the offset is subtracted, then the factor multiplies.
#[derive(Clone)]
pub struct Standard {
    /// `[hidden]`.
    pub offset: Vec<f32>,
    /// `[hidden]`.
    pub factor: Vec<f32>,
}

/// The weights of a projector.
#[derive(Clone)]
pub struct Projector {
    /// Offset and factor of averaged patches.
    pub standard: Option<Standard>,
    /// The norm.
    pub norm: Option<Norm>,
    /// The first of two layers.
    pub first: Option<Dense>,
    /// The last layer.
    pub last: Dense,
}

struct Reader<'a> {
    file: &'a VisionFile,
    description: &'a VisionDescription,
    shapes: BTreeMap<VisionLayer, LayerShape>,
    arithmetic: BlockArithmetic,
}

impl VisionWeights {
    /// Reads all weights.
    pub(super) fn load(
        file: &VisionFile,
        description: &VisionDescription,
        arithmetic: BlockArithmetic,
    ) -> Result<Self> {
        let shapes = description.layers().into_iter();
        let reader = Reader {
            file,
            description,
            shapes: shapes.map(|shape| (shape.layer, shape)).collect(),
            arithmetic,
        };
        let norm = &description.norm;
        let mut class = reader.vector(VisionLayer::Class)?;
        let mut positions = reader.vector(VisionLayer::Positions)?.unwrap_or_default();
        if let Some(class) = &mut class
            && !positions.is_empty()
        {
            let of_class = positions.drain(..description.hidden);
            class.iter_mut().zip(of_class).for_each(|(x, y)| *x += y);
        }
        let stages = 0..=description.deepstack.len();
        let scales = (0..description.blocks).map(|block| {
            let vector = |layer| reader.vector(VisionLayer::Block(block, layer));
            Ok(LayerScales {
                attention: vector(VisionBlockLayer::AttentionScale)?,
                feed_forward: vector(VisionBlockLayer::FeedForwardScale)?,
            })
        });
        let scales = scales.collect::<Result<_>>()?;
        let bounds = (0..description.blocks).map(|block| reader.bounds(block));
        Ok(Self {
            scales,
            bounds: bounds.collect::<Result<_>>()?,
            patch: reader.patch()?,
            class,
            positions,
            input_norm: reader.norm(VisionLayer::InputNorm, norm)?,
            blocks: (0..description.blocks)
                .map(|block| reader.block(block))
                .collect::<Result<_>>()?,
            output_norm: reader.norm(VisionLayer::OutputNorm, norm)?,
            projectors: stages
                .map(|stage| reader.projector(stage))
                .collect::<Result<_>>()?,
        })
    }

    /// Returns the bytes of all matrices.
    pub(super) fn bytes(&self) -> usize {
        let of_blocks = self.blocks.iter().flat_map(|block| block.linears.values());
        let of_blocks = of_blocks.map(|linear| linear.weight.bytes()).sum::<usize>();
        let of_projectors = self
            .projectors
            .iter()
            .flat_map(|projector| projector.first.iter().chain([&projector.last]));
        let floats = of_projectors.chain([&self.patch]);
        let floats = floats.map(|layer| layer.weight.bytes()).sum::<usize>();
        of_blocks + floats + size_of_val(&self.positions[..])
    }
}

impl Reader<'_> {
    fn block(&self, block: usize) -> Result<Block> {
        use VisionBlockLayer as B;
        let place = |layer| VisionLayer::Block(block, layer);
        let norm = |layer| self.required_norm(place(layer), &self.description.norm);
        let mut joined = match self.description.joined {
            true => Some(self.joined(place(B::QueryKeyValue))?.into_iter()),
            false => None,
        };
        let linears = self.description.linears().into_iter().map(|shape| {
            let layer = layer_of(shape.linear);
            let part = match layer {
                B::Query | B::Key | B::Value => joined.as_mut().and_then(Iterator::next),
                _ => None,
            };
            let dense = part.map_or_else(|| self.dense(place(layer)), Ok)?;
            let linear = Linear {
                weight: Weight::Float(dense.weight),
                decode_weight: None,
                bias: dense.bias,
            };
            Ok((shape.linear, linear))
        });
        let linears = linears.collect::<Result<_>>()?;
        let optional = |layer| self.norm(place(layer), &self.description.norm);
        let norms = [norm(B::AttentionNorm)?, norm(B::FeedForwardNorm)?];
        Ok(Block {
            attention_post_norm: optional(B::AttentionPostNorm)?,
            feed_forward_post_norm: optional(B::FeedForwardPostNorm)?,
            query_norm: optional(B::QueryNorm)?,
            key_norm: optional(B::KeyNorm)?,
            value_norm: value_norm(self.description),
            ..Block::plain(norms, linears)
        })
    }

    /// Reads the bounds of a block's linear layers.
    fn bounds(&self, block: usize) -> Result<BTreeMap<description::Linear, Bounds>> {
        let linears = self.description.linears().into_iter();
        let bounds = linears.filter_map(|shape| {
            let place = VisionLayer::Block(block, layer_of(shape.linear));
            let stored = self.file.bounds(place)?;
            let read = || {
                let mut numbers = [0.0; 4];
                for (number, stored) in numbers.iter_mut().zip(&stored) {
                    *number = widened(stored)?[0];
                }
                let name = format!("layer {:?} of block {block}", shape.linear);
                Ok((shape.linear, Bounds::new(numbers, &name)?))
            };
            Some(read())
        });
        bounds.collect()
    }

    /// Reads query, key and value, which are stored as one matrix, as three.
    fn joined(&self, layer: VisionLayer) -> Result<[Dense; 3]> {
        let stored = self.only(layer)?;
        let (hidden, bytes) = (self.description.hidden, stored.bytes.len() / 3);
        let bias = self.bias(layer)?;
        Ok([0, 1, 2].map(|part| {
            let values = stored.bytes.part(part * bytes..(part + 1) * bytes);
            let arithmetic = self.arithmetic;
            let bias = bias.as_ref();
            Dense {
                weight: WeightMatrix::stored(hidden, hidden, stored.format, values, arithmetic),
                bias: bias.map(|bias| bias[part * hidden..(part + 1) * hidden].to_vec()),
            }
        }))
    }

    fn projector(&self, stage: usize) -> Result<Projector> {
        let place = |layer| VisionLayer::Projector(stage, layer);
        let norm = match self.description.projector_norm(stage) {
            Some(norm) if !norm.weighted => Some(projector_norm_of_ones(self.description, &norm)),
            Some(norm) => self.norm(place(ProjectorLayer::Norm), &norm.norm)?,
            None => None,
        };
        let offset = self.vector(place(ProjectorLayer::Offset))?;
        let factor = self.vector(place(ProjectorLayer::Factor))?;
        let standard = offset.zip(factor);
        Ok(Projector {
            standard: standard.map(|(offset, factor)| Standard { offset, factor }),
            norm,
            first: self.optional(place(ProjectorLayer::First))?,
            last: match self.description.projector.transposed {
                true => self.transposed(place(ProjectorLayer::Last))?,
                false => self.dense(place(ProjectorLayer::Last))?,
            },
        })
    }

    /// Reads the patch embedding, with the matrices of all frames added: each of them is the same picture.
    fn patch(&self) -> Result<Dense> {
        let stored = self.file.weights(VisionLayer::Patch);
        if self.description.channels_last {
            return self.patch_of_channels_last(&stored);
        }
        let (hidden, side) = (self.description.hidden, self.description.patch);
        let (of_frame, frames) = (side * side, self.description.frames);
        let mut sums = vec![0.0f32; hidden * 3 * of_frame];
        let in_one = frames / stored.len();
        for stored in &stored {
            let values = widened(stored)?;
            let of_channels = values.chunks_exact(in_one * of_frame);
            for (sums, frames) in sums.chunks_exact_mut(of_frame).zip(of_channels) {
                for frame in frames.chunks_exact(of_frame) {
                    sums.iter_mut().zip(frame).for_each(|(sum, x)| *sum += x);
                }
            }
        }
        Ok(Dense {
            weight: WeightMatrix::of_floats(hidden, 3 * of_frame, sums),
            bias: self.bias(VisionLayer::Patch)?,
        })
    }

    fn patch_of_channels_last(&self, stored: &[Stored]) -> Result<Dense> {
        let (hidden, side) = (self.description.hidden, self.description.patch);
        let of_patch = 3 * side * side;
        let mut turned = Vec::with_capacity(hidden * of_patch);
        for stored in stored {
            for row in widened(stored)?.chunks_exact(of_patch) {
                let channel = |channel: usize| row.iter().skip(channel).step_by(3);
                turned.extend((0..3).flat_map(channel));
            }
        }
        Ok(Dense {
            weight: WeightMatrix::of_floats(hidden, of_patch, turned),
            bias: self.bias(VisionLayer::Patch)?,
        })
    }

    fn dense(&self, layer: VisionLayer) -> Result<Dense> {
        let stored = self.only(layer)?;
        let shape = &self.shapes[&layer].shape;
        let weight = WeightMatrix::stored(
            shape[0],
            shape[1],
            stored.format,
            stored.bytes,
            self.arithmetic,
        );
        Ok(Dense {
            weight,
            bias: self.bias(layer)?,
        })
    }

    fn optional(&self, layer: VisionLayer) -> Result<Option<Dense>> {
        match self.shapes.contains_key(&layer) {
            true => self.dense(layer).map(Some),
            false => Ok(None),
        }
    }

    /// Reads a matrix that is stored as `[in_features, out_features]`.
    fn transposed(&self, layer: VisionLayer) -> Result<Dense> {
        let values = widened(&self.only(layer)?)?;
        let [inputs, outputs] = [0, 1].map(|at| self.shapes[&layer].shape[at]);
        let mut turned = vec![0.0; values.len()];
        for (input, row) in values.chunks_exact(outputs).enumerate() {
            for (output, value) in row.iter().enumerate() {
                turned[output * inputs + input] = *value;
            }
        }
        Ok(Dense {
            weight: WeightMatrix::of_floats(outputs, inputs, turned),
            bias: None,
        })
    }

    fn norm(&self, layer: VisionLayer, described: &NormDescription) -> Result<Option<Norm>> {
        match self.shapes.contains_key(&layer) {
            true => self.required_norm(layer, described).map(Some),
            false => Ok(None),
        }
    }

    fn required_norm(&self, layer: VisionLayer, described: &NormDescription) -> Result<Norm> {
        let mut weight = widened(&self.only(layer)?)?;
        weight
            .iter_mut()
            .for_each(|weight| *weight += described.weight_offset);
        Ok(Norm {
            weight,
            bias: self.bias(layer)?,
            epsilon: described.epsilon,
        })
    }

    fn vector(&self, layer: VisionLayer) -> Result<Option<Vec<f32>>> {
        match self.shapes.contains_key(&layer) {
            true => widened(&self.only(layer)?).map(Some),
            false => Ok(None),
        }
    }

    fn bias(&self, layer: VisionLayer) -> Result<Option<Vec<f32>>> {
        let bias = self.file.bias(layer);
        bias.map(|bias| widened(&bias)).transpose()
    }

    fn only(&self, layer: VisionLayer) -> Result<Stored> {
        let mut weights = self.file.weights(layer);
        weights
            .pop()
            .ok_or_else(|| Error::new(ErrorKind::Missing, format!("no tensor for {layer:?}")))
    }
}

/// Returns the layer of a file that a linear layer is, where query, key and value are apart.
fn layer_of(linear: description::Linear) -> VisionBlockLayer {
    use VisionBlockLayer as B;
    match linear {
        description::Linear::Query => B::Query,
        description::Linear::Key => B::Key,
        description::Linear::Value => B::Value,
        description::Linear::AttentionOutput => B::AttentionOutput,
        description::Linear::Gate => B::Gate,
        description::Linear::Up => B::Up,
        _ => B::Down,
    }
}

/// Returns the norm of the heads of values, which has no weights in files.
pub(crate) fn value_norm(description: &VisionDescription) -> Option<Norm> {
    let ones = || Norm::of_ones(&description.norm, description.head_dim());
    description.head_norms.then(ones)
}

/// Returns the norm of a projector that has no weights in files.
pub(crate) fn projector_norm_of_ones(
    description: &VisionDescription,
    norm: &ProjectorNorm,
) -> Norm {
    let features = match norm.after_merge {
        true => description.projector_layers()[0][1],
        false => description.hidden,
    };
    Norm::of_ones(&norm.norm, features)
}

fn widened(stored: &Stored) -> Result<Vec<f32>> {
    let count = stored.shape.iter().product();
    if stored.format.bytes_for(count) != Some(stored.bytes.len()) {
        let message = format!("a tensor of shape {:?} has other bytes", stored.shape);
        return Err(Error::new(ErrorKind::Malformed, message));
    }
    let mut values = vec![0.0; count];
    dequantize(stored.format, &stored.bytes, &mut values);
    Ok(values)
}
