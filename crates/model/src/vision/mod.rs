//! Vision encoders in model files: their description and the tensors of their layers.
//!
//! [`VisionFile::open`] reads a folder in the layout of `transformers`, which usually also holds the text model, or an
//! *mmproj* file of llama.cpp, which holds the encoder alone. Every field is read, known to have no effect, or refused by
//! name.

mod check;
mod description;
mod gguf;
mod hugging_face;
mod layers;
pub(crate) mod limits;
mod tensors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use description::{
    Positions, Projector, ProjectorNorm, VisionActivation, VisionDescription, VisionPairs, Windows,
};
pub use gguf::projector;
pub use layers::{LayerShape, ProjectorLayer, VisionBlockLayer, VisionLayer};

use crate::checkpoint::vision_folder;
use crate::description::ModelDescription;
use crate::error::{Error, ErrorKind, Result};
use crate::mapped::{MappedBytes, MappedFile};
use crate::tensor::{Format, TensorInfo};
use tensors::LayerTensors;

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
    /// Whether the files state if rows of a view read each other in the text model.
    states_reach: bool,
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
            states_reach: true,
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
            states_reach: false,
        })
    }

    /// Returns the description.
    pub fn description(&self) -> &VisionDescription {
        &self.description
    }

    /// Returns the description for the text model `text`, which may decide what the files do not state.
    pub fn description_for(&self, text: &ModelDescription) -> VisionDescription {
        let mut description = self.description.clone();
        // In the published models of Gemma 4, rows read only earlier ones where blocks have an input by token.
        if !self.states_reach && description.together_in_windows && text.token_inputs.is_some() {
            description.together = false;
        }
        description
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

    /// Returns the bounds of a layer, if it has some: of the input the smallest and the largest value, and those of the
    /// output.
    pub fn bounds(&self, layer: VisionLayer) -> Option<[Stored; 4]> {
        let names = <&[String; 4]>::try_from(&self.layers.get(&layer)?.bounds[..]).ok()?;
        Some(names.each_ref().map(|name| self.stored(name)))
    }

    /// Returns the bytes of all weights and biases, as they are stored.
    pub fn bytes(&self) -> usize {
        let names = self.tensor_names();
        names.map(|name| self.tensors[name].bytes.len()).sum()
    }

    /// Returns the names of all tensors of the encoder in the files.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        let names = self.layers.values().flat_map(LayerTensors::all);
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
