//! Opens a GGUF model that is in one file or in several.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::gguf::{self, Gguf, Metadata, PartName};
use crate::mapped::MappedFile;
use crate::tensor::TensorInfo;

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const TENSORS: &str = "split.tensors.count";

/// The content of all files of a model.
pub(super) struct Parts {
    /// The metadata of the first file.
    pub(super) metadata: Metadata,
    /// The tensors of all files.
    pub(super) tensors: BTreeMap<String, TensorInfo>,
    /// The files, the first one first.
    pub(super) files: Vec<MappedFile>,
}

/// Reads the model whose first file, at `path`, is `first`.
pub(super) fn open(path: &Path, first: MappedFile) -> Result<Parts> {
    let Gguf {
        metadata, tensors, ..
    } = gguf::read(first.bytes())?;
    let mut parts = Parts {
        metadata,
        tensors,
        files: vec![first],
    };
    let count = parts.metadata.integer(COUNT)?.unwrap_or(1);
    if count > 1 {
        for (index, path) in other_files(path, &parts.metadata, count)? {
            let file = part(&path, index, count)?;
            parts.add(file).map_err(|error| error.at(path))?;
        }
        parts.check_count()?;
    }
    Ok(parts)
}

/// Returns the places of all files but the first, with their indices.
fn other_files(path: &Path, metadata: &Metadata, count: usize) -> Result<Vec<(usize, PathBuf)>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name
        .and_then(PartName::parse)
        .filter(|name| name.count == count);
    let Some(name) = name else {
        return Err(malformed(format!(
            "metadata field `{COUNT}` is {count}, expected a file called `NAME-00001-of-{count:05}.gguf`"
        )));
    };
    let number = metadata.integer(NUMBER)?;
    if number != Some(0) || name.number != 1 {
        let first = name.all().next().unwrap_or_default();
        let number = number.map_or("absent".into(), |number| number.to_string());
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "metadata field `{NUMBER}` is {number}, expected 0, in the first of {count} files, called `{first}`: open \
                 that one"
            ),
        ));
    }
    let paths = name.all().map(|name| path.with_file_name(name));
    Ok(paths.enumerate().skip(1).collect())
}

/// Opens one of the other files.
fn part(path: &Path, index: usize, count: usize) -> Result<(usize, MappedFile, Gguf)> {
    if !path.exists() {
        let message = format!("this file is missing, the model has {count} files");
        return Err(Error::new(ErrorKind::Missing, message).at(path));
    }
    let file = MappedFile::open(path)?;
    let head = gguf::read(file.bytes()).and_then(|head| {
        for (field, expected) in [(COUNT, count), (NUMBER, index)] {
            let value = head.metadata.integer(field)?;
            if value != Some(expected) {
                let value = value.map_or("absent".into(), |value| value.to_string());
                return Err(malformed(format!(
                    "metadata field `{field}` is {value}, expected {expected}, as in the file's name"
                )));
            }
        }
        Ok(head)
    });
    Ok((index, file, head.map_err(|error| error.at(path))?))
}

impl Parts {
    /// Adds the tensors of another file.
    fn add(&mut self, (index, file, head): (usize, MappedFile, Gguf)) -> Result<()> {
        for (name, info) in head.tensors {
            match self.tensors.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(TensorInfo {
                        file: index,
                        ..info
                    });
                }
                Entry::Occupied(first) => {
                    return Err(malformed(format!(
                        "tensor {:?} is also in {}",
                        first.key(),
                        self.files[first.get().file].path().display()
                    )));
                }
            }
        }
        self.files.push(file);
        Ok(())
    }

    fn check_count(&self) -> Result<()> {
        let count = self.tensors.len();
        match self.metadata.integer(TENSORS)? {
            Some(expected) if expected != count => Err(malformed(format!(
                "metadata field `{TENSORS}` is {expected}, but the model's {} files have {count} tensors",
                self.files.len()
            ))),
            _ => Ok(()),
        }
    }
}

fn malformed(message: String) -> Error {
    Error::new(ErrorKind::Malformed, message)
}
