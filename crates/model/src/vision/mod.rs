//! Vision encoders in model files: their description and the tensors of their layers.
//!
//! [`VisionFile::open`] reads a folder in the layout of `transformers`, which usually also holds the text model, or an
//! *mmproj* file of llama.cpp, which holds the encoder alone. Every field is read, known to have no effect, or refused by
//! name.

mod check;
mod description;
mod gguf;
mod hugging_face;
mod tensors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use description::{
    LayerShape, Positions, Projector, ProjectorLayer, ProjectorNorm, VisionActivation,
    VisionBlockLayer, VisionDescription, VisionLayer, Windows,
};
pub use gguf::projector;

use crate::checkpoint::vision_folder;
use crate::error::{Error, ErrorKind, Result};
use crate::mapped::{MappedBytes, MappedFile};
use crate::tensor::{Format, TensorInfo};
use tensors::LayerTensors;

/// Limits of untrusted numbers.
pub(crate) mod limits {
    /// Maximum patches of a view.
    pub(crate) const PATCHES: usize = 1 << 16;
    /// Maximum pixels per side of a patch.
    pub(crate) const PATCH: usize = 256;
    /// Maximum patches per side of a cell.
    pub(crate) const MERGE: usize = 16;
    /// Maximum width of anything.
    pub(crate) const WIDTH: usize = 1 << 17;
    /// Maximum number of blocks.
    pub(crate) const BLOCKS: usize = 1 << 10;
}

/// Describes the encoder of a model with this `config.json`, without its weights.
///
/// # Errors
/// As [`VisionFile::open`], without those of tensors.
pub fn describe(config: &serde_json::Value) -> Result<VisionDescription> {
    Ok(hugging_face::describe(config, &BTreeMap::new())?.0)
}

/// Returns whether the file at `path` is an encoder of pictures for the models next to it, by its name.
pub fn is_mmproj(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("mmproj") && name.ends_with(".gguf"))
}

/// Returns the files `mmproj*.gguf` next to the model at `path`, by name.
pub fn mmproj_next_to(path: &Path) -> Vec<PathBuf> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let files = std::fs::read_dir(folder.unwrap_or(Path::new(".")));
    let files = files.into_iter().flatten();
    let files = files.filter_map(|file| Some(file.ok()?.path()));
    let mut found: Vec<_> = files
        .filter(|file| is_mmproj(file) && file != path)
        .collect();
    found.sort();
    found
}

/// A vision encoder in its files. Its tensors are checked and mapped.
#[derive(Debug)]
pub struct VisionFile {
    path: PathBuf,
    description: VisionDescription,
    layers: BTreeMap<VisionLayer, LayerTensors>,
    files: Vec<MappedFile>,
    tensors: BTreeMap<String, TensorInfo>,
}

/// A stored tensor.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Element format.
    pub format: Format,
    /// The bytes, in the file.
    pub bytes: MappedBytes,
    /// Shape, without leading dimensions of 1.
    pub shape: Vec<usize>,
}

impl VisionFile {
    /// Opens the encoder at `path`: an mmproj file, a folder with `config.json` and safetensors, or a file in such a folder.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if the model reads no pictures or a field or tensor is absent, [`ErrorKind::Malformed`] and
    /// [`ErrorKind::Unsupported`] for invalid or unsupported content. The error names the file and the field.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = if path.is_dir() {
            Self::open_folder(path, path)
        } else if path.extension().is_some_and(|it| it == "safetensors") {
            let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
            Self::open_folder(path, folder.unwrap_or(Path::new(".")))
        } else {
            Self::open_gguf(path)
        };
        opened.map_err(|error| error.at(path))
    }

    fn open_folder(path: &Path, folder: &Path) -> Result<Self> {
        let (config, files, tensors, quantized) = vision_folder(path, folder)?;
        let (description, names) = hugging_face::describe(&config, &tensors)?;
        let find = |name: &str| match quantized.contains(name) {
            true => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "tensor {name:?} of the encoder of pictures is quantized, which Triad does not support"
                ),
            )),
            false => tensors::find(&tensors, name),
        };
        let layers = tensors::layers(&description, &names, &tensors, &find)?;
        Ok(Self {
            path: path.to_owned(),
            description,
            layers,
            files,
            tensors,
        })
    }

    fn open_gguf(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path)?;
        let head = crate::gguf::read(file.bytes())?;
        let (description, names) = gguf::describe(&head.metadata, &head.tensors)?;
        let find = |name: &str| tensors::find(&head.tensors, name);
        let layers = tensors::layers(&description, &names, &head.tensors, &find)?;
        Ok(Self {
            path: path.to_owned(),
            description,
            layers,
            files: vec![file],
            tensors: head.tensors,
        })
    }

    /// Returns the description.
    pub fn description(&self) -> &VisionDescription {
        &self.description
    }

    /// Returns the path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the files of weights.
    pub fn mapped_files(&self) -> &[MappedFile] {
        &self.files
    }

    /// Returns the weights of a layer: one tensor, or one for each frame of the patch embedding.
    ///
    /// # Panics
    /// If the description does not have the layer.
    pub fn weights(&self, layer: VisionLayer) -> Vec<Stored> {
        let layer = &self.layers[&layer];
        layer.weights.iter().map(|name| self.stored(name)).collect()
    }

    /// Returns the bias of a layer, if it has one.
    pub fn bias(&self, layer: VisionLayer) -> Option<Stored> {
        let bias = self.layers.get(&layer)?.bias.as_ref()?;
        Some(self.stored(bias))
    }

    /// Returns the bytes of all weights and biases, as they are stored.
    pub fn bytes(&self) -> usize {
        let names = self.tensor_names();
        names.map(|name| self.tensors[name].bytes.len()).sum()
    }

    /// Returns the names of all weights and biases in the files.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        let layers = self.layers.values();
        let names = layers.flat_map(|layer| layer.weights.iter().chain(&layer.bias));
        names.map(String::as_str)
    }

    fn stored(&self, name: &str) -> Stored {
        let info = &self.tensors[name];
        let ones = info.shape.iter().take_while(|size| **size == 1).count();
        Stored {
            format: info.format,
            bytes: self.files[info.file].part(info.bytes.clone()),
            shape: info.shape[ones..].to_vec(),
        }
    }
}
