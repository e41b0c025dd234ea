//! Vision encoders: rows of the text model's width from the pixels of a picture.

mod activation;
mod block;
mod bounds;
mod cells;
mod encode;
pub(crate) mod weights;

use std::path::{Path, PathBuf};

use triad_kernels::BlockArithmetic;
use triad_model::description::{Linear, ModelDescription};
use triad_model::mapped::MappedFile;
use triad_model::role::Role;
use triad_model::vision::{VisionDescription, VisionFile};

use crate::error::{Error, Result};
use crate::linear::Layers;
use crate::quantization::Quantization;
use crate::weights::quantize_blocks;
pub use bounds::Bounds;
use bounds::groups;
pub use weights::{Dense, LayerScales, Projector, Standard, VisionWeights};

/// The pixels of one view: a picture or a tile of it, resized and normalized for the encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pixels<'a> {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// `[3][height][width]`: red, green, blue.
    pub planes: &'a [f32],
}

/// The vision encoder of a model.
pub struct VisionModel {
    description: VisionDescription,
    weights: VisionWeights,
    files: Vec<MappedFile>,
    path: PathBuf,
}

impl VisionModel {
    /// Opens the encoder at `path` for the text model `text`: an mmproj file, or the folder of a model that reads pictures.
    /// Matrices are used as they are stored, where the file is mapped.
    ///
    /// # Errors
    /// As [`VisionFile::open`]; if it is the encoder of another model.
    pub fn load(
        path: &Path,
        text: &ModelDescription,
        block_arithmetic: BlockArithmetic,
    ) -> Result<Self> {
        let file = VisionFile::open(path)?;
        let description = file.description_for(text);
        check_text(&description, text).map_err(|error| error.at(path))?;
        Ok(Self {
            weights: VisionWeights::load(&file, &description, block_arithmetic)
                .map_err(|error| error.at(path))?,
            description,
            files: file.mapped_files().to_vec(),
            path: path.to_owned(),
        })
    }

    /// Creates an encoder of these weights, which are in `file`, of the package at `path`.
    pub(crate) fn packaged(
        (path, file): (&Path, &MappedFile),
        description: VisionDescription,
        weights: VisionWeights,
    ) -> Self {
        Self {
            description,
            weights,
            files: vec![file.clone()],
            path: path.to_owned(),
        }
    }

    /// Returns the same encoder with the linear layers of its blocks in INT8, on the installed threads. Patch embedding and
    /// projectors stay in float. `known` is the result for a plan that differs only in clip thresholds, shadows and
    /// smoothing: equal matrices are shared with it.
    ///
    /// # Panics
    /// If `quantization` or `known` is for another number of blocks.
    pub fn quantize(&self, quantization: &Quantization, known: Option<&Self>) -> Self {
        let known = known.map(|known| &known.weights.blocks[..]);
        Self {
            description: self.description.clone(),
            weights: VisionWeights {
                blocks: quantize_blocks(&self.weights.blocks, quantization, known),
                ..self.weights.clone()
            },
            files: self.files.clone(),
            path: self.path.clone(),
        }
    }

    /// Returns the weights.
    pub fn weights(&self) -> &VisionWeights {
        &self.weights
    }

    /// Returns the path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the files of its weights.
    pub fn mapped_files(&self) -> &[MappedFile] {
        &self.files
    }

    /// Returns the description.
    pub fn description(&self) -> &VisionDescription {
        &self.description
    }

    /// Returns the layers of a role in each block that read one input, in the order of their outputs; none for roles without
    /// linear layers.
    pub fn layers(&self, role: Role) -> Layers {
        let (hidden, inner) = (self.description.hidden, self.description.inner);
        let of_role: &[_] = match role {
            Role::QueryKeyValue => &[
                (Linear::Query, hidden),
                (Linear::Key, hidden),
                (Linear::Value, hidden),
            ],
            Role::AttentionOutput => &[(Linear::AttentionOutput, hidden)],
            Role::GateUp if self.description.gated => &[(Linear::Gate, inner), (Linear::Up, inner)],
            Role::GateUp => &[(Linear::Up, inner)],
            Role::Down => &[(Linear::Down, hidden)],
            _ => &[],
        };
        of_role.iter().copied().collect()
    }

    /// Returns whether the layers of a role in a block read different inputs, since they have different bounds. Their
    /// products are then computed one by one.
    pub fn divides(&self, block: usize, role: Role) -> bool {
        let layers: Vec<_> = self
            .layers(role)
            .iter()
            .map(|(linear, _)| *linear)
            .collect();
        groups(&layers, &self.weights.bounds[block]).len() > 1
    }

    /// Returns the number of rows that a view of this size becomes.
    ///
    /// # Errors
    /// If the encoder cannot read views of this size.
    pub fn rows(&self, height: usize, width: usize) -> Result<usize> {
        let [high, wide] = self.description.cells(height, width)?;
        Ok(high * wide)
    }

    /// Returns the bytes of its weights.
    pub fn bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Checks that its files have not changed since they were opened.
    ///
    /// # Errors
    /// [`Error::Changed`] if another program changed one in place.
    pub fn check_unchanged(&self) -> Result<()> {
        let mut files = self.files.iter();
        files
            .try_for_each(MappedFile::check_unchanged)
            .map_err(Error::Changed)
    }
}

/// Checks that an encoder belongs to the text model `text`.
///
/// # Errors
/// If it is the encoder of another model.
pub(crate) fn check_text(
    description: &VisionDescription,
    text: &ModelDescription,
) -> triad_model::Result<()> {
    let refuse = |message: String| {
        let kind = triad_model::ErrorKind::Unsupported;
        Err(triad_model::Error::new(kind, message))
    };
    if description.width != text.hidden {
        return refuse(format!(
            "this encoder of pictures is of another model: its rows are {} wide, those of the model {}",
            description.width, text.hidden
        ));
    }
    if description.deepstack.len() > text.blocks.len() {
        return refuse(format!(
            "this encoder of pictures is of another model: it adds rows after {} blocks, and the model has {}",
            description.deepstack.len(),
            text.blocks.len()
        ));
    }
    let needs_axes = description.needs_axes();
    if needs_axes != text.picture_rope.is_some() {
        return refuse(format!(
            "this encoder of pictures is of another model: {} needs a text model {} RoPE of three axes",
            description.family,
            if needs_axes { "with" } else { "without" }
        ));
    }
    let families = description.text_families();
    if families.is_some_and(|families| !families.contains(&&text.family[..])) {
        return refuse(format!(
            "this encoder of pictures is of another model: {} is for {}, and the model is of the family {}",
            description.family,
            families.unwrap_or_default().join(" or "),
            text.family
        ));
    }
    if text.token_inputs.is_some() && !description.has_token_inputs() {
        return refuse(
            "the model has an input of each token in each block, which Triad does not support with pictures".into(),
        );
    }
    Ok(())
}
