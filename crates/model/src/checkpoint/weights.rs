//! The safetensors files of a folder.

use std::collections::BTreeMap;
use std::path::Path;

use super::other_types::explained;
use super::{EXPECTED, is_there, json};
use crate::error::{Error, ErrorKind, Result};
use crate::mapped::MappedFile;
use crate::quantized::{File, Plan, QuantizedTensor};
use crate::safetensors::{self, Element, OtherTypes, Tensor};
use crate::tensor::TensorInfo;

/// Tensors that are stored as they are, quantized ones, and those of types that no weight may have.
pub(super) type StoredTensors = (
    BTreeMap<String, TensorInfo>,
    BTreeMap<String, QuantizedTensor>,
    OtherTypes,
);

/// Tensors with the position of their file, by name.
type InFiles = BTreeMap<String, (usize, Tensor)>;

/// The safetensors files of a folder.
pub(super) struct Weights {
    pub(super) files: Vec<MappedFile>,
    /// For a sharded model, from its index: the position in `files` for every tensor.
    pub(super) file_of: Option<BTreeMap<String, usize>>,
}

/// Opens `model.safetensors`, or the files that `model.safetensors.index.json` names.
pub(super) fn weight_files(folder: &Path) -> Result<Weights> {
    let single = folder.join("model.safetensors");
    if is_there(&single)? {
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
        if !is_there(&path)? {
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
    /// Returns the tensors that are stored as they are, the quantized ones, and those of types that no weight may have.
    pub(super) fn tensors(&self, plan: Option<&Plan>) -> Result<StoredTensors> {
        let elements = match plan {
            None => &Element::FLOATS[..],
            Some(_) => &Element::ALL,
        };
        let (stored, others) = self.stored(elements)?;
        let Some(plan) = plan else {
            let info = |(name, (file, tensor)): (String, (usize, Tensor))| {
                Some((name.clone(), tensor.info(name, file)?))
            };
            let floats = stored.into_iter().filter_map(info).collect();
            return Ok((floats, BTreeMap::new(), others));
        };
        let found = plan.find(stored, &files_of(&self.files));
        let (floats, quantized) = found.map_err(|error| explained(error, &others))?;
        Ok((floats, quantized, others))
    }

    /// Returns every tensor with its file, and the tensors of other types than `elements`.
    fn stored(&self, elements: &[Element]) -> Result<(InFiles, OtherTypes)> {
        let read = |file: &MappedFile| {
            let header = safetensors::read_model(file.bytes(), elements);
            let (header, others) = header.map_err(|error| error.at(file.path()))?;
            Ok((header.tensors, others))
        };
        let headers = self.files.iter().map(read).collect::<Result<Vec<_>>>()?;
        for (name, &file) in self.file_of.iter().flatten() {
            let (tensors, of_file) = &headers[file];
            if !tensors.contains_key(name) && !of_file.contains_key(name) {
                let message =
                    format!("tensor {name:?} is missing, but the index puts it in this file");
                return Err(Error::new(ErrorKind::Missing, message).at(self.files[file].path()));
            }
        }
        let (mut stored, mut others) = (BTreeMap::new(), BTreeMap::new());
        for (index, (tensors, of_file)) in headers.into_iter().enumerate() {
            let names = tensors.keys().chain(of_file.keys());
            if let Some(file_of) = &self.file_of {
                self.check_index(index, names, file_of)?;
            }
            let tensors = tensors.into_iter();
            stored.extend(tensors.map(|(name, tensor)| (name, (index, tensor))));
            others.extend(of_file);
        }
        Ok((stored, others))
    }

    /// Checks that the index puts the tensors of a file, called `names`, in this file.
    fn check_index<'a>(
        &self,
        file: usize,
        mut names: impl Iterator<Item = &'a String>,
        file_of: &BTreeMap<String, usize>,
    ) -> Result<()> {
        let Some(name) = names.find(|name| file_of.get(*name) != Some(&file)) else {
            return Ok(());
        };
        let place = match file_of.get(name) {
            None => "does not name it".to_owned(),
            Some(&other) => format!("puts it in {}", self.files[other].path().display()),
        };
        let message = format!(
            "tensor {name:?} is in this file, but the index {place}: expected the same in both"
        );
        Err(Error::new(ErrorKind::Malformed, message).at(self.files[file].path()))
    }
}

pub(super) fn files_of(files: &[MappedFile]) -> Vec<File<'_>> {
    let file = |file| File {
        path: MappedFile::path(file),
        bytes: file.bytes(),
    };
    files.iter().map(file).collect()
}
