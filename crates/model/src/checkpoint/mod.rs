//! An opened model file or folder: its tensors, mapped in place, and the other contents of the source.
//!
//! [`Checkpoint::open`] accepts a GGUF file, or a Hugging Face folder (`config.json` and safetensors). The result has
//! the same form for every source: tensors by name with a place in a mapped file, and a [`ModelDescription`] with the
//! role of each tensor in it.

mod generation_defaults;
mod gguf_parts;
pub(crate) mod json;
mod other_types;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use generation_defaults::GenerationDefaults;
use gguf_parts::Parts;
use other_types::OtherTypes;
pub use source::Source;
pub(crate) use source::TOOL_TEMPLATES;

use crate::dequantize::dequantize;
use crate::description::ModelDescription;
use crate::error::{Error, ErrorKind, Result};
use crate::family;
use crate::gguf;
use crate::mapped::{MappedBytes, MappedFile};
use crate::safetensors;
use crate::tensor::TensorInfo;
use crate::tensor_map::TensorMap;

/// The files that a checkpoint can be opened from, for error messages.
const EXPECTED: &str = "expected a .gguf file, a folder with config.json and safetensors, or a .safetensors file \
                        next to its config.json";

/// An opened model.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    source: Source,
    files: Vec<MappedFile>,
    tensors: BTreeMap<String, TensorInfo>,
    description: ModelDescription,
    tensor_map: TensorMap,
    generation_defaults: GenerationDefaults,
}

impl Checkpoint {
    /// Opens the model at `path`: a GGUF file, the first of several GGUF files, a folder with `config.json`, or a
    /// `.safetensors` file next to its `config.json`. Checks everything; reads no weights.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] for a file that can't be read, [`ErrorKind::Missing`] for a missing file,
    /// [`ErrorKind::Malformed`] and [`ErrorKind::Unsupported`] for invalid or unsupported content. The error names the
    /// file and the field.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let checkpoint = Self::open_any(&path).map_err(|error| error.at(path))?;
        checkpoint
            .mapped_files()
            .iter()
            .try_for_each(MappedFile::check_unchanged)?;
        Ok(checkpoint)
    }

    /// Returns the files of weights, or their copies in memory.
    pub fn mapped_files(&self) -> &[MappedFile] {
        &self.files
    }

    /// Returns the bytes of all files of weights.
    pub fn weight_bytes(&self) -> u64 {
        self.files
            .iter()
            .map(|file| file.bytes().len() as u64)
            .sum()
    }

    /// Reads all files of weights into huge pages by [`MappedFile::in_huge_pages`].
    ///
    /// # Errors
    /// As for [`MappedFile::in_huge_pages`].
    pub fn read_into_huge_pages(&mut self) -> Result<()> {
        self.files = self
            .files
            .iter()
            .map(MappedFile::in_huge_pages)
            .collect::<Result<_>>()?;
        Ok(())
    }

    fn open_any(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::open_folder(path, path, weight_files(path)?);
        }
        if !path.exists() {
            return Err(Error::new(
                ErrorKind::Missing,
                format!("there is no such file or folder; {EXPECTED}"),
            ));
        }
        let file = MappedFile::open(path)?;
        if has_extension(path, "safetensors") {
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let weights = Weights {
                files: vec![file],
                file_of: None,
            };
            return Self::open_folder(path, parent.unwrap_or(Path::new(".")), weights);
        }
        if !has_extension(path, "gguf") && !file.bytes().starts_with(&gguf::MAGIC) {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!("not a model file; {EXPECTED}"),
            ));
        }
        Self::open_gguf(path, file)
    }

    fn open_gguf(path: &Path, file: MappedFile) -> Result<Self> {
        let Parts {
            metadata,
            tensors,
            files,
        } = gguf_parts::open(path, file)?;
        if metadata.string("general.type")? == Some("adapter") {
            let message = "this is an adapter, expected a model: pass it together with its model, as with `triad run --lora`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let read_f32 = |tensor: &TensorInfo| {
            let bytes = &files[tensor.file].bytes()[tensor.bytes.clone()];
            Ok(elements(tensor, bytes))
        };
        let (description, tensor_map) = family::from_gguf(&metadata, &tensors, &read_f32)?;
        Ok(Self {
            path: path.to_path_buf(),
            generation_defaults: GenerationDefaults::from_gguf(&metadata)?,
            source: Source::Gguf(metadata),
            files,
            tensors,
            description,
            tensor_map,
        })
    }

    fn open_folder(path: &Path, folder: &Path, weights: Weights) -> Result<Self> {
        let config_path = folder.join("config.json");
        let config = json::read(&config_path)?.ok_or_else(|| {
            Error::new(
                ErrorKind::Missing,
                format!("there is no config.json; {EXPECTED}"),
            )
            .at(folder)
        })?;
        let generation_path = folder.join("generation_config.json");
        let generation_config = json::read(&generation_path)?;
        let source = Source::folder(folder)?;
        let mut generation_defaults = GenerationDefaults::default();
        if let Some(generation_config) = &generation_config {
            generation_defaults = GenerationDefaults::from_generation_config(generation_config)
                .map_err(|error| error.at(&generation_path))?;
        }
        if generation_defaults.end_tokens.is_empty() {
            generation_defaults.end_tokens =
                generation_defaults::end_tokens(&config).map_err(|error| error.at(&config_path))?;
        }
        let (tensors, others) = weights.tensors()?;
        let bytes = |tensor: &TensorInfo| &weights.files[tensor.file].bytes()[tensor.bytes.clone()];
        let are_equal = |one: &TensorInfo, other: &TensorInfo| {
            let of_floats = !others.contains_key(&one.name) && !others.contains_key(&other.name);
            of_floats && are_equal((one, bytes(one)), (other, bytes(other)))
        };
        let describe = |tensors: &BTreeMap<String, TensorInfo>| {
            family::from_hugging_face(&config, tensors, &are_equal)
        };
        let (description, tensor_map) = other_types::describe(&tensors, &others, describe)?;
        Ok(Self {
            path: path.to_path_buf(),
            source,
            files: weights.files,
            tensors,
            description,
            tensor_map,
            generation_defaults,
        })
    }

    /// Returns the path that was opened: a file or a folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the source of tokenizer and chat template.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the description of the model.
    pub fn description(&self) -> &ModelDescription {
        &self.description
    }

    /// Returns the role of each tensor.
    pub fn tensor_map(&self) -> &TensorMap {
        &self.tensor_map
    }

    /// Returns every tensor by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Returns the tensor called `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if there is none.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        self.tensors.get(name).ok_or_else(|| {
            Error::new(ErrorKind::Missing, format!("tensor {name:?} is missing")).at(&self.path)
        })
    }

    /// Returns the bytes of one of this checkpoint's tensors, in its format.
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.files[tensor.file].bytes()[tensor.bytes.clone()]
    }

    /// Does the same as [`Self::bytes`] with a handle that keeps the file mapped without the checkpoint.
    pub fn mapped(&self, tensor: &TensorInfo) -> MappedBytes {
        self.files[tensor.file].part(tensor.bytes.clone())
    }

    /// Lets the system drop a tensor's bytes from memory, for example after they have been converted. Reading them
    /// again works but takes longer.
    pub fn release(&self, tensor: &TensorInfo) {
        self.files[tensor.file].release(tensor.bytes.clone());
    }

    /// Returns the files with the tensors.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(MappedFile::path)
    }

    /// Returns the bytes of all tensors in their stored formats.
    pub fn stored_bytes(&self) -> usize {
        self.tensors.values().map(|tensor| tensor.bytes.len()).sum()
    }

    /// Returns the author's settings for text generation, as far as the source has any.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.generation_defaults
    }
}

/// The safetensors files of a folder.
struct Weights {
    files: Vec<MappedFile>,
    /// For a sharded model, from its index: the position in `files` for every tensor.
    file_of: Option<BTreeMap<String, usize>>,
}

/// Opens `model.safetensors`, or the files that `model.safetensors.index.json` names.
fn weight_files(folder: &Path) -> Result<Weights> {
    let single = folder.join("model.safetensors");
    if single.exists() {
        return Ok(Weights {
            files: vec![MappedFile::open(single)?],
            file_of: None,
        });
    }
    let index_path = folder.join("model.safetensors.index.json");
    let Some(index) = json::read(&index_path)? else {
        let message = format!(
            "there is neither model.safetensors nor model.safetensors.index.json in the folder; {EXPECTED}"
        );
        return Err(Error::new(ErrorKind::Missing, message).at(folder));
    };
    let shards = safetensors::shards(&index).map_err(|error| error.at(&index_path))?;
    let open = |name: &String| {
        let path = folder.join(name);
        if !path.exists() {
            let message = format!("this file is missing, {} names it", index_path.display());
            return Err(Error::new(ErrorKind::Missing, message).at(path));
        }
        MappedFile::open(path)
    };
    Ok(Weights {
        files: shards.files.iter().map(open).collect::<Result<_>>()?,
        file_of: Some(shards.file_of),
    })
}

impl Weights {
    /// Returns the tensors of floats and the others.
    fn tensors(&self) -> Result<(BTreeMap<String, TensorInfo>, OtherTypes)> {
        let headers = self
            .files
            .iter()
            .enumerate()
            .map(|(index, file)| {
                safetensors::read_model(file.bytes(), index).map_err(|error| error.at(file.path()))
            })
            .collect::<Result<Vec<_>>>()?;
        let (mut floats, mut others) = (BTreeMap::new(), BTreeMap::new());
        let Some(file_of) = &self.file_of else {
            for header in headers {
                floats.extend(header.floats);
                others.extend(header.others);
            }
            return Ok((floats, others));
        };
        for (name, &file) in file_of {
            if let Some(info) = headers[file].floats.get(name) {
                floats.insert(name.clone(), info.clone());
            } else if let Some(other) = headers[file].others.get(name) {
                others.insert(name.clone(), other.clone());
            } else {
                let message =
                    format!("tensor {name:?} is missing, but the index puts it in this file");
                return Err(Error::new(ErrorKind::Missing, message).at(self.files[file].path()));
            }
        }
        Ok((floats, others))
    }
}

/// Returns whether two tensors of the same shape hold the same numbers, in any formats.
fn are_equal(
    (one, bytes): (&TensorInfo, &[u8]),
    (other, other_bytes): (&TensorInfo, &[u8]),
) -> bool {
    if one.format == other.format {
        return bytes == other_bytes;
    }
    // Row by row: all numbers of both at once may not fit in memory.
    let width = one.shape.last().copied().unwrap_or(1);
    let rows = (one.elements() / width.max(1)).max(1);
    let row = |format, bytes: &[u8]| {
        let mut values = vec![0.0; width];
        dequantize(format, bytes, &mut values);
        values
    };
    let pairs = bytes
        .chunks_exact(bytes.len() / rows)
        .zip(other_bytes.chunks_exact(other_bytes.len() / rows));
    pairs
        .into_iter()
        .all(|(bytes, others)| row(one.format, bytes) == row(other.format, others))
}

fn elements(tensor: &TensorInfo, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; tensor.elements()];
    dequantize(tensor.format, bytes, &mut values);
    values
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}
