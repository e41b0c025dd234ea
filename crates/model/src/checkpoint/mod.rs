//! An opened model file or folder: its tensors, mapped in place, and the other contents of the source.
//!
//! [`Checkpoint::open`] accepts a GGUF file, or a Hugging Face folder (`config.json` and safetensors). The result has
//! the same form for every source: tensors by name with a place in a mapped file, and a [`ModelDescription`] with the
//! role of each tensor in it.

mod dense;
mod embedding_defaults;
mod generation_defaults;
mod gguf_parts;
pub(crate) mod json;
mod other_types;
mod source;
mod vision_folder;
mod weights;
mod words;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use embedding_defaults::EmbeddingDefaults;
pub use generation_defaults::GenerationDefaults;
use gguf_parts::Parts;
pub use source::{Source, describes_model};
pub(crate) use source::{TOKENIZER_CONFIG, TOOL_TEMPLATES};
pub(crate) use vision_folder::vision_folder;
use weights::{Weights, files_of, weight_files};

use crate::dequantize::dequantize;
use crate::description::ModelDescription;
pub use crate::description::Pooling;
use crate::error::{Error, ErrorKind, Result};
use crate::family;
use crate::files;
use crate::gguf;
use crate::mapped::{MappedBytes, MappedFile};
use crate::quantized::{self, Plan, QuantizedTensor};
use crate::tensor::{Format, TensorInfo};
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
    quantized: BTreeMap<String, QuantizedTensor>,
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
        metadata.check_names()?;
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
            quantized: BTreeMap::new(),
            description,
            tensor_map,
        })
    }

    fn open_folder(path: &Path, folder: &Path, weights: Weights) -> Result<Self> {
        let config_path = folder.join(source::CONFIG);
        let config = json::read(&config_path)?.ok_or_else(|| {
            Error::new(
                ErrorKind::Missing,
                format!("there is no config.json; {EXPECTED}"),
            )
            .at(folder)
        })?;
        let generation_path = folder.join(source::GENERATION_CONFIG);
        let generation_config = json::read(&generation_path)?;
        let source = Source::folder(folder)?;
        let mut generation_defaults = GenerationDefaults::default();
        if let Some(generation_config) = &generation_config {
            generation_defaults = GenerationDefaults::from_generation_config(generation_config)
                .map_err(|error| error.at(&generation_path))?;
        }
        if generation_defaults.end_tokens.is_empty() {
            generation_defaults.end_tokens =
                generation_defaults::token_ids(&config, "eos_token_id")
                    .map_err(|error| error.at(&config_path))?;
        }
        let plan = Plan::new(&config)?;
        let (tensors, quantized, others) = weights.tensors(plan.as_ref())?;
        let config = match plan {
            Some(_) => Plan::without(&config),
            None => config,
        };
        let files = files_of(&weights.files);
        let bytes = |tensor: &TensorInfo| &files[tensor.file].bytes[tensor.bytes.clone()];
        let rows = |tensor: &TensorInfo, rows: Range<usize>, out: &mut [f32]| match quantized
            .get(&tensor.name)
        {
            Some(quantized) => quantized.dequantize(&files, rows, out),
            None => {
                let row_bytes = tensor.bytes.len() / tensor.shape[0].max(1);
                let bytes = &bytes(tensor)[rows.start * row_bytes..rows.end * row_bytes];
                dequantize(tensor.format, bytes, out);
            }
        };
        let is_plain = |tensor: &TensorInfo| tensors.contains_key(&tensor.name);
        let are_equal = |one: &TensorInfo, other: &TensorInfo| {
            if others.contains_key(&one.name) || others.contains_key(&other.name) {
                return false;
            }
            if is_plain(one) && is_plain(other) && one.format == other.format {
                return bytes(one) == bytes(other);
            }
            are_equal(one, other, &rows)
        };
        let describe = |tensors: &BTreeMap<String, TensorInfo>| {
            let is_quantized = |name: &str| quantized.contains_key(name);
            family::from_hugging_face(&config, (tensors, &is_quantized), &are_equal)
        };
        let of_weights = with_quantized(&tensors, &quantized);
        let (description, tensor_map) = other_types::describe(&of_weights, &others, describe)?;
        let mut checkpoint = Self {
            path: path.to_path_buf(),
            source,
            files: weights.files,
            tensors,
            quantized,
            description,
            tensor_map,
            generation_defaults,
        };
        dense::add(&mut checkpoint, folder)?;
        words::add(&mut checkpoint, folder)?;
        Ok(checkpoint)
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

    /// Returns every tensor that is not quantized, by name; blocks of GGUF are no quantized tensors in this sense.
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

    /// Returns the matrices that are stored as several tensors, by the names that they have in unquantized checkpoints.
    pub fn quantized(&self) -> &BTreeMap<String, QuantizedTensor> {
        &self.quantized
    }

    /// Logs how quantized tensors are computed: as stored where that is possible, or all of them widened.
    pub fn log_quantized(&self, as_stored: bool) {
        for summary in quantized::summary(self.quantized.values(), as_stored) {
            tracing::info!("matrices: {summary}");
        }
    }

    /// Writes some rows of a quantized tensor as the reference dequantizes them.
    ///
    /// # Panics
    /// If the rows are not rows of this matrix, or `out` has another length.
    pub fn dequantize(&self, tensor: &QuantizedTensor, rows: Range<usize>, out: &mut [f32]) {
        tensor.dequantize(&files_of(&self.files), rows, out);
    }

    /// Writes integers, scales and offsets by [`QuantizedTensor::integers`].
    ///
    /// # Panics
    /// As [`QuantizedTensor::integers`].
    pub fn integers(
        &self,
        tensor: &QuantizedTensor,
        rows: Range<usize>,
        out: &mut [f32],
        group: Option<usize>,
        scales: &mut [f32],
        offsets: &mut [f32],
    ) {
        tensor.integers(&files_of(&self.files), rows, out, group, scales, offsets);
    }

    /// Writes some rows as blocks of GGUF by [`QuantizedTensor::blocks`].
    ///
    /// # Panics
    /// As [`QuantizedTensor::blocks`].
    pub fn blocks(&self, tensor: &QuantizedTensor, rows: Range<usize>, out: &mut [u8]) -> bool {
        tensor.blocks(&files_of(&self.files), rows, out)
    }

    /// Does the same as [`Self::release`] for all parts of a quantized tensor.
    pub fn release_quantized(&self, tensor: &QuantizedTensor) {
        for (file, bytes) in tensor.places() {
            self.files[file].release(bytes);
        }
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
        let quantized = self.quantized.values().map(QuantizedTensor::stored_bytes);
        let plain = self.tensors.values().map(|tensor| tensor.bytes.len());
        plain.chain(quantized).sum()
    }

    /// Returns the author's settings for text generation, as far as the source has any.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.generation_defaults
    }
}

/// Returns [`files::is_there`] as an error of the model's file.
fn is_there(path: &Path) -> Result<bool> {
    files::is_there(path).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot read the file: {error}")).at(path)
    })
}

/// Returns all tensors by name and shape, for readers that need no more.
fn with_quantized(
    tensors: &BTreeMap<String, TensorInfo>,
    quantized: &BTreeMap<String, QuantizedTensor>,
) -> BTreeMap<String, TensorInfo> {
    let info = |(name, tensor): (&String, &QuantizedTensor)| {
        let info = TensorInfo {
            name: name.clone(),
            shape: tensor.shape().to_vec(),
            format: Format::F32,
            file: 0,
            bytes: 0..0,
        };
        (name.clone(), info)
    };
    let plain = tensors
        .iter()
        .map(|(name, info)| (name.clone(), info.clone()));
    plain.chain(quantized.iter().map(info)).collect()
}

/// Reads some rows of a tensor as f32.
type ReadRows<'a> = dyn Fn(&TensorInfo, Range<usize>, &mut [f32]) + 'a;

/// Returns whether two matrices of the same shape hold the same numbers, in any formats.
fn are_equal(one: &TensorInfo, other: &TensorInfo, read: &ReadRows<'_>) -> bool {
    // Row by row: all numbers of both at once may not fit in memory.
    let rows = one.shape.first().copied().unwrap_or(1);
    let width = one.elements() / rows.max(1);
    let mut values = [vec![0.0; width], vec![0.0; width]];
    (0..rows).all(|row| {
        read(one, row..row + 1, &mut values[0]);
        read(other, row..row + 1, &mut values[1]);
        values[0] == values[1]
    })
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
