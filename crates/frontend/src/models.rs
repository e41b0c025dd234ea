//! Models by name: the path of a package, a GGUF file or a safetensors folder, or the name of a model that can be
//! fetched.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use triad_engine::package::Package;
use triad_engine::{LoadOptions, Model, memory};
use triad_model::checkpoint::Checkpoint;
use triad_model::description::ModelDescription;
use triad_model::fetch::{self, Progress};
use triad_model::tokenizer::Tokenizer;

use crate::error::Result;
use crate::{hashes, huge_pages};

/// Returns the path of the model `name`. Fetches the model if it is not in the cache.
///
/// # Errors
/// If there is no such model, or it cannot be fetched.
pub fn path_of(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    Ok(fetch::resolve(name, progress)?)
}

/// Loads the model at `path`: a model file in float, or a package as it was prepared. Its weights are in huge pages
/// where they [are worth it](huge_pages::are_worth_it).
///
/// Files of a package that changed since their hashes were last checked are checked first. `read` is called with the
/// bytes read so far and the bytes to read in total.
///
/// # Errors
/// If a file is damaged, a pull of the model has not ended, or Triad does not run such a model.
pub fn load(path: &Path, options: &LoadOptions, read: &mut dyn FnMut(u64, u64)) -> Result<Model> {
    let pulled = fetch::pulled(path)?;
    let model = load_files(path, options, read)?;
    pulled.check()?;
    Ok(model)
}

fn load_files(path: &Path, options: &LoadOptions, read: &mut dyn FnMut(u64, u64)) -> Result<Model> {
    // Experts that do not stay in memory are read from the file again and again.
    let is_copied = options.expert_memory.is_none();
    if Package::is_at(path) {
        let mut package = hashes::open_package(path, read)?;
        if is_copied && huge_pages::are_worth_it(package.weight_bytes())? {
            package
                .read_into_huge_pages()
                .map_err(triad_engine::Error::from)?;
        }
        return Ok(Model::from_package(&package, options)?);
    }
    let mut checkpoint = Checkpoint::open(path).map_err(triad_engine::Error::from)?;
    // Quantized tensors are converted: a copy of their file would take memory for no use.
    let is_used_in_place = checkpoint.quantized().is_empty();
    if is_copied && is_used_in_place && huge_pages::are_worth_it(checkpoint.weight_bytes())? {
        checkpoint
            .read_into_huge_pages()
            .map_err(triad_engine::Error::from)?;
    }
    Ok(Model::from_checkpoint(&Arc::new(checkpoint), options)?)
}

/// Returns the description of the model at `path` without loading its weights; `read` is as in [`load`].
///
/// # Errors
/// As [`load`].
pub fn description(path: &Path, read: &mut dyn FnMut(u64, u64)) -> Result<ModelDescription> {
    Ok(if Package::is_at(path) {
        hashes::open_package(path, read)?.description().clone()
    } else {
        Checkpoint::open(path)?.description().clone()
    })
}

/// Returns the memory of the weights of the model at `path`, from its header; for a package, the size of its files.
///
/// # Errors
/// If they cannot be read.
pub fn weight_bytes(path: &Path) -> Result<u64> {
    if Package::is_at(path) {
        let files =
            std::fs::read_dir(path).and_then(|files| files.map(|file| file?.metadata()).collect());
        let error = |source| triad_engine::Error::Io {
            path: path.to_owned(),
            source,
        };
        let files: Vec<std::fs::Metadata> = files.map_err(error)?;
        return Ok(files.iter().map(std::fs::Metadata::len).sum());
    }
    Ok(memory::of_weights(&Checkpoint::open(path)?) as u64)
}

/// The files of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// `gguf`, `safetensors` or `triad`.
    pub format: &'static str,
    /// Their size.
    pub bytes: u64,
    /// The time of the last change.
    pub modified: Option<SystemTime>,
}

/// Returns the files of the model at `path`: of a folder, all files in it, without those of its folders.
///
/// # Errors
/// If they cannot be read.
pub fn files_of(path: &Path) -> Result<ModelFiles> {
    let error = |source| triad_engine::Error::Io {
        path: path.to_owned(),
        source,
    };
    let whole = std::fs::metadata(path).map_err(error)?;
    let files: Vec<std::fs::Metadata> = if whole.is_dir() {
        let files = std::fs::read_dir(path).map_err(error)?;
        let files = files.map(|file| std::fs::metadata(file?.path()));
        files.collect::<std::io::Result<_>>().map_err(error)?
    } else {
        vec![whole]
    };
    let files = files.iter().filter(|file| file.is_file());
    let format = if Package::is_at(path) {
        "triad"
    } else if path.is_dir() || path.extension().is_some_and(|it| it == "safetensors") {
        "safetensors"
    } else {
        "gguf"
    };
    Ok(ModelFiles {
        format,
        bytes: files.clone().map(std::fs::Metadata::len).sum(),
        modified: files.filter_map(|file| file.modified().ok()).max(),
    })
}

/// Returns the tokenizer of the model at `path` without loading its weights; `read` is as in [`load`].
///
/// # Errors
/// As [`description`]; if the model has none.
pub fn tokenizer(path: &Path, read: &mut dyn FnMut(u64, u64)) -> Result<Tokenizer> {
    if Package::is_at(path) {
        let package = hashes::open_package(path, read)?;
        return Ok(Tokenizer::from_source(
            &package.source()?,
            &package.manifest().generation.end_tokens,
        )?);
    }
    Ok(Tokenizer::from_checkpoint(&Checkpoint::open(path)?)?)
}
