//! The layers of a vision encoder, and their shapes.

use super::description::{Positions, ProjectorNorm, VisionDescription};
use crate::description::{Linear, LinearShape, Norm, NormKind};

/// A layer of an encoder, which has weights and perhaps a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VisionLayer {
    /// Patch embedding `[hidden, 3, frames, patch, patch]`, or `[hidden, patch · patch · 3]` with the channels last.
    Patch,
    /// The row of no patch `[hidden]`.
    Class,
    /// Positions `[rows, hidden]`; that of the class token is the first. Those of axes are `[2, side, hidden]`.
    Positions,
    /// Norm before the first block.
    InputNorm,
    /// Norm after the last block.
    OutputNorm,
    /// A layer of this block.
    Block(usize, VisionBlockLayer),
    /// A layer of the projector, or of one for deepstack: these are numbered from 1.
    Projector(usize, ProjectorLayer),
}

/// A layer of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum VisionBlockLayer {
    AttentionNorm,
    QueryKeyValue,
    Query,
    Key,
    Value,
    QueryNorm,
    KeyNorm,
    AttentionOutput,
    AttentionPostNorm,
    AttentionScale,
    FeedForwardNorm,
    Gate,
    Up,
    Down,
    FeedForwardPostNorm,
    FeedForwardScale,
}

/// A layer of a projector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ProjectorLayer {
    /// Offset of averaged patches `[hidden]`, which is subtracted.
    Offset,
    /// Factor on what is left of it `[hidden]`.
    Factor,
    Norm,
    First,
    Last,
}

/// A layer with its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// The layer.
    pub layer: VisionLayer,
    /// Shape of the weights: `[out_features, in_features]` of a linear layer.
    pub shape: Vec<usize>,
    /// Whether it has a bias, as long as the first dimension.
    pub bias: bool,
    /// Whether it has four bounds: of the input the smallest and the largest value, and those of the output.
    pub bounded: bool,
}

impl VisionDescription {
    /// Returns the linear layers of each block, in the order in which they run, as those of a text model. Query, key and
    /// value are three layers however they are stored.
    pub fn linears(&self) -> Vec<LinearShape> {
        let (hidden, inner, bias) = (self.hidden, self.inner, self.bias);
        let attention = [Linear::Query, Linear::Key, Linear::Value]
            .map(|linear| (linear, hidden, hidden, self.qkv_bias));
        let gate = self.gated.then_some((Linear::Gate, inner, hidden, bias));
        let layers = attention
            .into_iter()
            .chain([(Linear::AttentionOutput, hidden, hidden, bias)])
            .chain(gate)
            .chain([(Linear::Up, inner, hidden, bias)])
            .chain([(Linear::Down, hidden, inner, bias)]);
        let shape = |(linear, out_features, in_features, bias)| LinearShape {
            linear,
            out_features,
            in_features,
            bias,
        };
        layers.map(shape).collect()
    }

    /// Returns the shape of the matrices of a projector, `[out_features, in_features]`, first to last; 0 is the one after
    /// the last block.
    pub fn projector_layers(&self) -> Vec<[usize; 2]> {
        let projector = &self.projector;
        let merged = match projector.mean {
            true => self.hidden,
            false => self.hidden * projector.merge * projector.merge,
        };
        let inputs = projector.inner.unwrap_or(merged);
        let first = projector.inner.map(|inner| [inner, merged]);
        first.into_iter().chain([[self.width, inputs]]).collect()
    }

    /// Returns all layers.
    pub fn layers(&self) -> Vec<LayerShape> {
        use VisionLayer as L;
        let hidden = self.hidden;
        let mut layers = Layers::default();
        let norm = with_bias(&self.norm);
        let patch = [hidden, 3, self.frames, self.patch, self.patch];
        match self.channels_last {
            true => layers.add(
                L::Patch,
                &[hidden, 3 * self.patch * self.patch],
                self.patch_bias,
            ),
            false => layers.add(L::Patch, &patch, self.patch_bias),
        }
        if self.class_token {
            layers.add(L::Class, &[hidden], false);
        }
        match self.positions {
            Positions::None => {}
            Positions::Axes { side } => layers.add(L::Positions, &[2, side, hidden], false),
            positions => {
                let rows = positions.rows() + usize::from(self.class_token);
                layers.add(L::Positions, &[rows, hidden], false);
            }
        }
        if self.input_norm {
            layers.add(L::InputNorm, &[hidden], norm);
        }
        for block in 0..self.blocks {
            self.add_block(block, &mut layers);
        }
        if self.output_norm {
            layers.add(L::OutputNorm, &[hidden], norm);
        }
        for stage in 0..=self.deepstack.len() {
            self.add_projector(stage, &mut layers);
        }
        layers.0
    }

    fn add_block(&self, block: usize, layers: &mut Layers) {
        use VisionBlockLayer as B;
        let (hidden, inner, head) = (self.hidden, self.inner, self.head_dim());
        let norm = with_bias(&self.norm);
        let place = |layer| VisionLayer::Block(block, layer);
        let mut linear = |layer: B, shape: [usize; 2], bias| {
            layers.0.push(LayerShape {
                layer: place(layer),
                shape: shape.to_vec(),
                bias,
                bounded: self.bounded,
            });
        };
        if self.joined {
            linear(B::QueryKeyValue, [3 * hidden, hidden], self.qkv_bias);
        } else {
            for layer in [B::Query, B::Key, B::Value] {
                linear(layer, [hidden, hidden], self.qkv_bias);
            }
        }
        linear(B::AttentionOutput, [hidden, hidden], self.bias);
        if self.gated {
            linear(B::Gate, [inner, hidden], self.bias);
        }
        linear(B::Up, [inner, hidden], self.bias);
        linear(B::Down, [hidden, inner], self.bias);
        let vectors = [
            (true, B::AttentionNorm, hidden, norm),
            (true, B::FeedForwardNorm, hidden, norm),
            (self.head_norms, B::QueryNorm, head, norm),
            (self.head_norms, B::KeyNorm, head, norm),
            (self.post_norms, B::AttentionPostNorm, hidden, norm),
            (self.post_norms, B::FeedForwardPostNorm, hidden, norm),
            (self.layer_scale, B::AttentionScale, hidden, false),
            (self.layer_scale, B::FeedForwardScale, hidden, false),
        ];
        for (exists, layer, width, bias) in vectors {
            if exists {
                layers.add(place(layer), &[width], bias);
            }
        }
    }

    fn add_projector(&self, stage: usize, layers: &mut Layers) {
        use ProjectorLayer as P;
        let projector = &self.projector;
        let shapes = self.projector_layers();
        let mut add = |layer: P, shape: &[usize], bias| {
            layers.add(VisionLayer::Projector(stage, layer), shape, bias);
        };
        if projector.standardized {
            add(P::Offset, &[self.hidden], false);
            add(P::Factor, &[self.hidden], false);
        }
        if let Some(norm) = self.projector_norm(stage).filter(|norm| norm.weighted) {
            let width = if norm.after_merge {
                shapes[0][1]
            } else {
                self.hidden
            };
            add(P::Norm, &[width], with_bias(&norm.norm));
        }
        if let [first, _] = &shapes[..] {
            add(P::First, first, projector.bias);
        }
        let [outputs, inputs] = shapes[shapes.len() - 1];
        let shape = match projector.transposed {
            true => [inputs, outputs],
            false => [outputs, inputs],
        };
        add(P::Last, &shape, projector.bias);
    }

    /// Returns the norm of a projector: 0 is the one after the last block, others are those of deepstack, whose norm comes
    /// after the merge.
    pub fn projector_norm(&self, stage: usize) -> Option<ProjectorNorm> {
        let norm = self.projector.norm?;
        Some(ProjectorNorm {
            after_merge: norm.after_merge || stage > 0,
            ..norm
        })
    }
}

/// The layers so far.
#[derive(Default)]
struct Layers(Vec<LayerShape>);

impl Layers {
    /// Adds a layer without bounds.
    fn add(&mut self, layer: VisionLayer, shape: &[usize], bias: bool) {
        self.0.push(LayerShape {
            layer,
            shape: shape.to_vec(),
            bias,
            bounded: false,
        });
    }
}

fn with_bias(norm: &Norm) -> bool {
    norm.kind == NormKind::Layer
}
