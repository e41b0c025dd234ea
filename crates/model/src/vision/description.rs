//! The description of a vision encoder by parts, and the layers that it has.

use serde::{Deserialize, Serialize};

use super::limits;
use crate::description::{Linear, LinearShape, Norm, NormKind};
use crate::error::{Error, ErrorKind, Result};

/// A vision encoder: patches of a picture become rows of a transformer whose attention has no order, and a projector
/// makes rows of the text model's width from them.
///
/// Rows are computed in the order of *cells*: [`Projector::merge`] × `merge` patches become one row of the text model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VisionDescription {
    /// Family name, that of llama.cpp's projector: `idefics3`, `gemma3`, `qwen2.5vl_merger`.
    pub family: String,
    /// Pixels per side of a patch.
    pub patch: usize,
    /// Frames of a patch. A still picture is each of them.
    pub frames: usize,
    /// Whether the patch embedding is stored as `[hidden, patch, patch, 3]`, and not as `[hidden, 3, patch, patch]`.
    pub channels_last: bool,
    /// Whether the patch embedding has a bias.
    pub patch_bias: bool,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Heads of attention; divides `hidden`.
    pub heads: usize,
    /// Number of blocks that are computed.
    pub blocks: usize,
    /// Width of the feed-forward.
    pub inner: usize,
    /// Activation of the feed-forward.
    pub activation: VisionActivation,
    /// Whether the feed-forward has a gate.
    pub gated: bool,
    /// The norms of the blocks, and those of input and output.
    pub norm: Norm,
    /// Whether query, key and value are one linear layer.
    pub joined: bool,
    /// Whether query, key and value have biases.
    pub qkv_bias: bool,
    /// Whether the outputs of both halves of a block have a factor per channel.
    pub layer_scale: bool,
    /// Whether there is a row that belongs to no patch.
    pub class_token: bool,
    /// Learned embeddings of positions.
    pub positions: Positions,
    /// Base of RoPE's frequencies; the first half of a head's pairs rotates by the patch's row, the second by its column.
    pub rope_base: Option<f32>,
    /// Whether there is a norm before the first block.
    pub input_norm: bool,
    /// Whether there is a norm after the last block.
    pub output_norm: bool,
    /// The windows of attention; `None`: all blocks read the whole picture.
    pub windows: Option<Windows>,
    /// The projector.
    pub projector: Projector,
    /// Blocks after which another projector gives rows that are added to the residual stream after the text model's
    /// first blocks, one for each.
    pub deepstack: Vec<usize>,
    /// Width of the rows: that of the text model's residual stream.
    pub width: usize,
    /// Whether the rows of one view read each other in the text model's attention, also later ones.
    pub together: bool,
}

/// Activation of a vision encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VisionActivation {
    /// GELU with the error function.
    Gelu,
    /// GELU in its tanh form.
    GeluTanh,
    /// `x · sigmoid(1.702 · x)`.
    QuickGelu,
    /// `x · sigmoid(x)`.
    Silu,
}

/// Learned embeddings of positions: a square table with a row for each patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// None.
    None,
    /// One row per patch of the only size of views.
    Fixed {
        /// Rows and columns of the table.
        side: usize,
    },
    /// The row at the patch's place relative to the picture's size, in the arithmetic of `transformers`' Idefics3.
    Nearest {
        /// Rows and columns of the table.
        side: usize,
    },
    /// The table, resized to the patches: bilinear, and with antialias if it becomes smaller.
    Resized {
        /// Rows and columns of the table.
        side: usize,
    },
    /// Between four rows, so that the corners of picture and table coincide.
    Bilinear {
        /// Rows and columns of the table.
        side: usize,
    },
}

impl Positions {
    /// Returns the rows and columns of the table; 0 without one.
    pub fn side(self) -> usize {
        match self {
            Self::None => 0,
            Self::Fixed { side }
            | Self::Nearest { side }
            | Self::Resized { side }
            | Self::Bilinear { side } => side,
        }
    }
}

/// Windows of attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windows {
    /// Cells per side of a window.
    pub side: usize,
    /// Whether each block reads the whole picture in spite of it.
    pub whole: Vec<bool>,
}

/// The layers that make rows of the text model from the patches of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Projector {
    /// Patches per side of a cell.
    pub merge: usize,
    /// Whether the patches of a cell are averaged; otherwise they are joined.
    pub mean: bool,
    /// The norm.
    pub norm: Option<ProjectorNorm>,
    /// Output width of the first of two linear layers; `None`: there is one.
    pub inner: Option<usize>,
    /// The activation between two linear layers.
    pub activation: VisionActivation,
    /// Whether linear layers have biases.
    pub bias: bool,
    /// Whether the last linear layer is stored as `[inputs, outputs]`.
    pub transposed: bool,
}

impl Projector {
    /// One linear layer without a bias: each reader says where a family differs.
    pub(super) const PLAIN: Self = Self {
        merge: 1,
        mean: false,
        norm: None,
        inner: None,
        activation: VisionActivation::Gelu,
        bias: false,
        transposed: false,
    };
}

/// The norm of a projector.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectorNorm {
    /// The norm.
    pub norm: Norm,
    /// Whether it is computed on joined or averaged patches, or on each patch before.
    pub after_merge: bool,
}

/// A layer of an encoder, which has weights and perhaps a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VisionLayer {
    /// Patch embedding `[hidden, 3, frames, patch, patch]`, or `[hidden, patch · patch · 3]` with the channels last.
    Patch,
    /// The row of no patch `[hidden]`.
    Class,
    /// Positions `[rows, hidden]`; that of the class token is the first.
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
    AttentionOutput,
    AttentionScale,
    FeedForwardNorm,
    Gate,
    Up,
    Down,
    FeedForwardScale,
}

/// A layer of a projector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ProjectorLayer {
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
}

impl VisionDescription {
    /// Returns the width of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Returns the pixels per side of a cell.
    pub fn cell(&self) -> usize {
        self.patch * self.projector.merge
    }

    /// Returns rows and columns of cells of a view of this size. Where patches are cut by a convolution (SigLIP, CLIP),
    /// what is less than a patch at the right and the bottom is left out.
    ///
    /// # Errors
    /// If the encoder cannot read views of this size.
    pub fn cells(&self, height: usize, width: usize) -> Result<[usize; 2]> {
        let fits = |size: usize| {
            let patches = size / self.patch;
            let is_whole = size.is_multiple_of(self.patch);
            match self.positions {
                Positions::Fixed { side } => patches == side,
                Positions::Nearest { .. } => patches.is_multiple_of(self.projector.merge),
                _ => is_whole && patches.is_multiple_of(self.projector.merge),
            }
        };
        let [high, wide] = [height, width].map(|size| size / self.patch);
        let count = high.checked_mul(wide);
        let is_within = count.is_some_and(|count| (1..=limits::PATCHES).contains(&count));
        if !(fits(height) && fits(width) && is_within) {
            let more = format!("up to {} pixels more", self.patch - 1);
            let expected = match self.positions {
                Positions::Fixed { side } => {
                    let pixels = side * self.patch;
                    format!("{pixels} × {pixels}, or {more}")
                }
                positions => {
                    let (side, most) = (self.cell(), limits::PATCHES);
                    let multiples = format!("multiples of {side} with at most {most} patches");
                    match positions {
                        Positions::Nearest { .. } => format!("{multiples}, or {more}"),
                        _ => multiples,
                    }
                }
            };
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "a view of {width} × {height} pixels for the encoder {}, expected {expected}",
                    self.family
                ),
            ));
        }
        Ok([high, wide].map(|patches| patches / self.projector.merge))
    }

    /// Returns the maximum rows of a view that read each other in the text model; 0 if they do not.
    pub fn together_rows(&self) -> usize {
        match self.together {
            true => {
                let side = self.positions.side() / self.projector.merge;
                side * side
            }
            false => 0,
        }
    }

    /// Returns the [families](crate::description::ModelDescription::family) of text models that the encoder is made for;
    /// `None`: no family is known to be the only one.
    pub fn text_families(&self) -> Option<&'static [&'static str]> {
        match &self.family[..] {
            "gemma3" => Some(&["gemma3"]),
            "lfm2" => Some(&["lfm2", "lfm2moe"]),
            "qwen2vl_merger" | "qwen2.5vl_merger" => Some(&["qwen2vl"]),
            "qwen3vl_merger" => Some(&["qwen3vl", "qwen3vlmoe"]),
            _ => None,
        }
    }

    /// Returns the linear layers of each block, in the order in which they run, as those of a text model. Query, key and
    /// value are three layers however they are stored.
    pub fn linears(&self) -> Vec<LinearShape> {
        let (hidden, inner) = (self.hidden, self.inner);
        let attention = [Linear::Query, Linear::Key, Linear::Value]
            .map(|linear| (linear, hidden, hidden, self.qkv_bias));
        let gate = self.gated.then_some((Linear::Gate, inner, hidden, true));
        let layers = attention
            .into_iter()
            .chain([(Linear::AttentionOutput, hidden, hidden, true)])
            .chain(gate)
            .chain([(Linear::Up, inner, hidden, true)])
            .chain([(Linear::Down, hidden, inner, true)]);
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
        use {ProjectorLayer as P, VisionBlockLayer as B, VisionLayer as L};
        let (hidden, inner) = (self.hidden, self.inner);
        let mut layers = Vec::new();
        let mut add = |layer: L, shape: &[usize], bias: bool| {
            let shape = shape.to_vec();
            layers.push(LayerShape { layer, shape, bias });
        };
        let with_bias = |norm: &Norm| norm.kind == NormKind::Layer;
        let norm = with_bias(&self.norm);
        let patch = [hidden, 3, self.frames, self.patch, self.patch];
        match self.channels_last {
            true => add(
                L::Patch,
                &[hidden, 3 * self.patch * self.patch],
                self.patch_bias,
            ),
            false => add(L::Patch, &patch, self.patch_bias),
        }
        if self.class_token {
            add(L::Class, &[hidden], false);
        }
        if self.positions != Positions::None {
            let side = self.positions.side();
            let rows = side * side + usize::from(self.class_token);
            add(L::Positions, &[rows, hidden], false);
        }
        if self.input_norm {
            add(L::InputNorm, &[hidden], norm);
        }
        for block in 0..self.blocks {
            let mut add =
                |layer: B, shape: &[usize], bias| add(L::Block(block, layer), shape, bias);
            add(B::AttentionNorm, &[hidden], norm);
            if self.joined {
                add(B::QueryKeyValue, &[3 * hidden, hidden], self.qkv_bias);
            } else {
                for layer in [B::Query, B::Key, B::Value] {
                    add(layer, &[hidden, hidden], self.qkv_bias);
                }
            }
            add(B::AttentionOutput, &[hidden, hidden], true);
            add(B::FeedForwardNorm, &[hidden], norm);
            if self.gated {
                add(B::Gate, &[inner, hidden], true);
            }
            add(B::Up, &[inner, hidden], true);
            add(B::Down, &[hidden, inner], true);
            if self.layer_scale {
                add(B::AttentionScale, &[hidden], false);
                add(B::FeedForwardScale, &[hidden], false);
            }
        }
        if self.output_norm {
            add(L::OutputNorm, &[hidden], norm);
        }
        let projector = &self.projector;
        let [.., merged] = self.projector_layers()[0];
        for stage in 0..=self.deepstack.len() {
            let mut add = |layer: P, shape: &[usize], bias| {
                add(L::Projector(stage, layer), shape, bias);
            };
            if let Some(norm) = self.projector_norm(stage) {
                let width = if norm.after_merge { merged } else { hidden };
                add(P::Norm, &[width], with_bias(&norm.norm));
            }
            let shapes = self.projector_layers();
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
        layers
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
