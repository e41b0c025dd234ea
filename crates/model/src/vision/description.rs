//! The description of a vision encoder by parts, and the layers that it has.

use serde::{Deserialize, Serialize};

use super::limits;
use crate::description::Norm;
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
    /// Whether the patch embedding reads 2 · x − 1 of pixels from 0 to 1.
    #[serde(default)]
    pub centered: bool,
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
    /// Whether the other linear layers of the blocks have biases.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Whether the linear layers of the blocks have [bounds](super::LayerShape::bounded) of their input and output.
    #[serde(default)]
    pub bounded: bool,
    /// Whether each head of queries and keys has a norm, and that of values one without weights.
    #[serde(default)]
    pub head_norms: bool,
    /// Whether the outputs of both halves of a block have a norm.
    #[serde(default)]
    pub post_norms: bool,
    /// Factor on the scores of attention; `None`: 1 / √ of the width of a head.
    #[serde(default)]
    pub attention_scale: Option<f32>,
    /// Whether the outputs of both halves of a block have a factor per channel.
    pub layer_scale: bool,
    /// Whether there is a row that belongs to no patch.
    pub class_token: bool,
    /// Learned embeddings of positions.
    pub positions: Positions,
    /// Base of RoPE's frequencies.
    pub rope_base: Option<f32>,
    /// The pairs that RoPE rotates.
    #[serde(default)]
    pub rope_pairs: VisionPairs,
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
    /// Whether they do so only in blocks with a sliding window, and earlier ones within it.
    #[serde(default)]
    pub together_in_windows: bool,
}

fn yes() -> bool {
    true
}

/// The pairs of a head that RoPE rotates, and their axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VisionPairs {
    /// A pair has one dimension in each half of the head. The first half of the pairs rotates by the patch's row, the second
    /// by its column.
    #[default]
    RowThenColumn,
    /// Each half of the head has pairs of its own, of its two quarters. The first half rotates by the patch's column, the
    /// second by its row.
    ColumnHalfThenRowHalf,
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

/// Learned embeddings of positions: a square table with a row for each patch, or a table for each axis.
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
    /// The sum of a row for the patch's column and one for its row. The table has all columns, then all rows.
    Axes {
        /// Columns, and rows, that the table has.
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
            | Self::Bilinear { side }
            | Self::Axes { side } => side,
        }
    }

    /// Returns the number of the table's embeddings.
    pub fn rows(self) -> usize {
        match self {
            Self::Axes { side } => 2 * side,
            other => other.side() * other.side(),
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
    /// Factor on averaged patches.
    #[serde(default)]
    pub factor: Option<f32>,
    /// Whether averaged patches have an offset, which is subtracted, and a factor per channel.
    #[serde(default)]
    pub standardized: bool,
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
        factor: None,
        standardized: false,
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
    /// Whether it has weights.
    #[serde(default = "yes")]
    pub weighted: bool,
    /// Whether it is computed on joined or averaged patches, or on each patch before.
    pub after_merge: bool,
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
                Positions::Axes { side } if patches > side => false,
                _ => is_whole && patches.is_multiple_of(self.projector.merge),
            }
        };
        let [high, wide] = [height, width].map(|size| size / self.patch);
        let (count, most) = (high.checked_mul(wide), self.most_patches());
        let is_within = count.is_some_and(|count| (1..=most).contains(&count));
        if !(fits(height) && fits(width) && is_within) {
            let more = format!("up to {} pixels more", self.patch - 1);
            let expected = match self.positions {
                Positions::Fixed { side } => {
                    let pixels = side * self.patch;
                    format!("{pixels} × {pixels}, or {more}")
                }
                positions => {
                    let side = self.cell();
                    let multiples = format!("multiples of {side} with at most {most} patches");
                    match positions {
                        Positions::Nearest { .. } => format!("{multiples}, or {more}"),
                        Positions::Axes { side } => format!("{multiples}, {side} per side"),
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

    /// Returns the maximum patches of a view.
    fn most_patches(&self) -> usize {
        match self.positions {
            Positions::Axes { .. } if self.together => {
                self.together_rows() * self.projector.merge * self.projector.merge
            }
            _ => limits::PATCHES,
        }
    }

    /// Returns the maximum rows of a view that read each other in the text model; 0 if they do not.
    pub fn together_rows(&self) -> usize {
        match self.positions {
            _ if !self.together => 0,
            Positions::Axes { .. } => limits::TOGETHER,
            positions => {
                let side = positions.side() / self.projector.merge;
                side * side
            }
        }
    }

    /// Returns whether the text model needs RoPE of three axes: those of encoders with such pairs (Qwen) have it.
    pub fn needs_axes(&self) -> bool {
        self.rope_base.is_some() && self.rope_pairs == VisionPairs::RowThenColumn
    }

    /// Returns whether the text model may have an input by token in each block. That of a row is then the one of token 0.
    pub fn has_token_inputs(&self) -> bool {
        self.family == "gemma4v"
    }

    /// Returns the [families](crate::description::ModelDescription::family) of text models that the encoder is made for;
    /// `None`: no family is known to be the only one.
    pub fn text_families(&self) -> Option<&'static [&'static str]> {
        match &self.family[..] {
            "gemma3" => Some(&["gemma3"]),
            "gemma4v" => Some(&["gemma4"]),
            "lfm2" => Some(&["lfm2", "lfm2moe"]),
            "qwen2vl_merger" | "qwen2.5vl_merger" => Some(&["qwen2vl"]),
            "qwen3vl_merger" => Some(&["qwen3vl", "qwen3vlmoe"]),
            _ => None,
        }
    }
}
