//! The weights of a vision encoder, read from its files.

use std::collections::BTreeMap;

use triad_kernels::BlockArithmetic;
use triad_model::dequantize::dequantize;
use triad_model::description::Norm as NormDescription;
use triad_model::vision::{
    LayerShape, ProjectorLayer, Stored, VisionBlockLayer, VisionDescription, VisionFile,
    VisionLayer,
};
use triad_model::{Error, ErrorKind, Result};

use crate::weights::{Norm, WeightMatrix};

/// All weights of an encoder.
pub(super) struct VisionWeights {
    /// Patch embedding `[hidden, 3 · patch · patch]`, the sum of all frames.
    pub(super) patch: Dense,
    /// `[hidden]`.
    pub(super) class: Option<Vec<f32>>,
    /// `[rows, hidden]`, without that of the class token, which is added to it.
    pub(super) positions: Vec<f32>,
    pub(super) input_norm: Option<Norm>,
    pub(super) blocks: Vec<Block>,
    pub(super) output_norm: Option<Norm>,
    /// That after the last block, then those of deepstack.
    pub(super) projectors: Vec<Projector>,
}

/// A linear layer.
pub(super) struct Dense {
    pub(super) weight: WeightMatrix,
    pub(super) bias: Option<Vec<f32>>,
}

/// The weights of a block.
pub(super) struct Block {
    pub(super) attention_norm: Norm,
    /// One layer for query, key and value, or three.
    pub(super) query_key_value: Vec<Dense>,
    pub(super) attention_output: Dense,
    pub(super) attention_scale: Option<Vec<f32>>,
    pub(super) feed_forward_norm: Norm,
    pub(super) gate: Option<Dense>,
    pub(super) up: Dense,
    pub(super) down: Dense,
    pub(super) feed_forward_scale: Option<Vec<f32>>,
}

/// The weights of a projector.
pub(super) struct Projector {
    pub(super) norm: Option<Norm>,
    pub(super) first: Option<Dense>,
    pub(super) last: Dense,
}

struct Reader<'a> {
    file: &'a VisionFile,
    description: &'a VisionDescription,
    shapes: BTreeMap<VisionLayer, LayerShape>,
    arithmetic: BlockArithmetic,
}

impl VisionWeights {
    /// Reads all weights.
    pub(super) fn load(file: &VisionFile, arithmetic: BlockArithmetic) -> Result<Self> {
        let description = file.description();
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
        Ok(Self {
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
        let of_blocks = self.blocks.iter().flat_map(|block| {
            let others = [&block.attention_output, &block.up, &block.down];
            let layers = block.query_key_value.iter().chain(&block.gate);
            layers.chain(others)
        });
        let of_projectors = self
            .projectors
            .iter()
            .flat_map(|projector| projector.first.iter().chain([&projector.last]));
        let all = of_blocks.chain(of_projectors).chain([&self.patch]);
        all.map(|layer| layer.weight.bytes()).sum::<usize>() + size_of_val(&self.positions[..])
    }
}

impl Reader<'_> {
    fn block(&self, block: usize) -> Result<Block> {
        use VisionBlockLayer as B;
        let place = |layer| VisionLayer::Block(block, layer);
        let norm = |layer| self.required_norm(place(layer), &self.description.norm);
        let query_key_value = match self.description.joined {
            true => &[B::QueryKeyValue][..],
            false => &[B::Query, B::Key, B::Value],
        };
        let query_key_value = query_key_value
            .iter()
            .map(|layer| self.dense(place(*layer)));
        Ok(Block {
            attention_norm: norm(B::AttentionNorm)?,
            query_key_value: query_key_value.collect::<Result<_>>()?,
            attention_output: self.dense(place(B::AttentionOutput))?,
            attention_scale: self.vector(place(B::AttentionScale))?,
            feed_forward_norm: norm(B::FeedForwardNorm)?,
            gate: self.optional(place(B::Gate))?,
            up: self.dense(place(B::Up))?,
            down: self.dense(place(B::Down))?,
            feed_forward_scale: self.vector(place(B::FeedForwardScale))?,
        })
    }

    fn projector(&self, stage: usize) -> Result<Projector> {
        let place = |layer| VisionLayer::Projector(stage, layer);
        let norm = match self.description.projector_norm(stage) {
            Some(norm) => self.norm(place(ProjectorLayer::Norm), &norm.norm)?,
            None => None,
        };
        Ok(Projector {
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
