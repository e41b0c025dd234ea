//! The stored tensors of a checkpoint, of which several make up one quantized tensor.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use half::{bf16, f16};

use crate::error::{Error, ErrorKind, Result};
use crate::safetensors::{Element, Tensor};

/// Types of scales.
pub(super) const FLOATS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];

/// A file with tensors.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Its path, for errors.
    pub path: &'a Path,
    /// Its content.
    pub bytes: &'a [u8],
}

/// A stored tensor that is a part of a quantized one: checked to be in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) element: Element,
    pub(super) shape: Vec<usize>,
    file: usize,
    bytes: Range<usize>,
}

impl Part {
    /// Returns the stored bytes.
    pub(super) fn bytes<'a>(&self, files: &[File<'a>]) -> &'a [u8] {
        &files[self.file].bytes[self.bytes.clone()]
    }

    /// Returns the position in the checkpoint: its file, and the range there.
    pub(super) fn place(&self) -> (usize, Range<usize>) {
        (self.file, self.bytes.clone())
    }

    /// Returns the number of elements.
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns all numbers of a tensor of floats.
    pub(super) fn floats(&self, files: &[File]) -> Vec<f32> {
        let bytes = self.bytes(files);
        (0..self.elements())
            .map(|index| float(self.element, bytes, index))
            .collect()
    }
}

/// Reads the number at `index` of floats.
///
/// # Panics
/// If there are fewer numbers, or `element` is no type of floats.
pub(super) fn float(element: Element, bytes: &[u8], index: usize) -> f32 {
    match element {
        Element::F32 => f32::from_le_bytes(chunk(bytes, index)),
        Element::F16 => f16::from_le_bytes(chunk(bytes, index)).to_f32(),
        Element::Bf16 => bf16::from_le_bytes(chunk(bytes, index)).to_f32(),
        _ => panic!("{} is no type of floats", element.name()),
    }
}

/// Reads the number at `index` of 32-bit words.
///
/// # Panics
/// If there are fewer words.
pub(super) fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(chunk(bytes, index))
}

/// Reads the integer at `index` of I32 or I64.
///
/// # Panics
/// If there are fewer integers, or `element` is another type.
pub(super) fn integer(element: Element, bytes: &[u8], index: usize) -> i64 {
    match element {
        Element::I32 => i64::from(i32::from_le_bytes(chunk(bytes, index))),
        Element::I64 => i64::from_le_bytes(chunk(bytes, index)),
        _ => panic!("{} is no type of signed integers", element.name()),
    }
}

fn chunk<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
    bytes.as_chunks().0[index]
}

/// The stored tensors that no quantized tensor has taken yet.
pub(super) struct Table<'a> {
    pub(super) tensors: BTreeMap<String, (usize, Tensor)>,
    pub(super) files: &'a [File<'a>],
    /// The name of the scheme, for errors.
    pub(super) scheme: &'static str,
}

impl Table<'_> {
    /// Returns the names of modules with a tensor `module` + `suffix` of one of these types.
    pub(super) fn modules(&self, suffix: &str, elements: &[Element]) -> Vec<String> {
        let module = |(name, (_, tensor)): (&String, &(usize, Tensor))| {
            let module = name.strip_suffix(suffix)?;
            elements
                .contains(&tensor.element)
                .then(|| module.to_owned())
        };
        self.tensors.iter().filter_map(module).collect()
    }

    /// Returns whether there is such a tensor.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Removes a tensor from the table.
    ///
    /// # Errors
    /// If it is missing, or has a type that is not in `elements`. The error names `next_to`, whose part it is.
    pub(super) fn take(&mut self, name: &str, elements: &[Element], next_to: &str) -> Result<Part> {
        let Some((file, tensor)) = self.tensors.get(name) else {
            let message = format!(
                "tensor `{name}` is missing, expected it next to `{next_to}`, as {} has it",
                self.scheme
            );
            let error = Error::new(ErrorKind::Missing, message);
            return Err(self.at_file_of(next_to, error));
        };
        if !elements.contains(&tensor.element) {
            let expected: Vec<_> = elements.iter().map(|element| element.name()).collect();
            let message = format!(
                "tensor `{name}` has type {}, expected {} for {}",
                tensor.element.name(),
                expected.join(" or "),
                self.scheme
            );
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.at(self.files[*file].path));
        }
        let part = Part {
            element: tensor.element,
            shape: tensor.shape.clone(),
            file: *file,
            bytes: tensor.bytes.clone(),
        };
        self.tensors.remove(name);
        Ok(part)
    }

    /// Does the same as [`Self::take`] for a tensor that must have this shape.
    pub(super) fn take_shaped(
        &mut self,
        name: &str,
        elements: &[Element],
        shape: &[usize],
        next_to: &str,
    ) -> Result<Part> {
        let part = self.take(name, elements, next_to)?;
        if part.shape != shape {
            return Err(self.malformed(
                &part,
                format!(
                    "tensor `{name}` has shape {:?}, expected {shape:?} for {}",
                    part.shape, self.scheme
                ),
            ));
        }
        Ok(part)
    }

    /// Returns both sizes of a matrix without empty rows or columns.
    ///
    /// # Errors
    /// If the tensor has another shape.
    pub(super) fn matrix(&self, name: &str, part: &Part) -> Result<[usize; 2]> {
        match part.shape[..] {
            [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
            _ => Err(self.malformed(
                part,
                format!(
                    "tensor `{name}` has shape {:?}, expected a matrix for {}",
                    part.shape, self.scheme
                ),
            )),
        }
    }

    /// Removes tensors that do not change the weights, if they are there.
    pub(super) fn ignore(&mut self, module: &str, suffixes: &[&str]) {
        for suffix in suffixes {
            self.tensors.remove(&format!("{module}{suffix}"));
        }
    }

    /// Creates an error about the content of `part`.
    pub(super) fn malformed(&self, part: &Part, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Malformed, message).at(self.files[part.file].path)
    }

    /// Returns the file of `part`.
    pub(super) fn path(&self, part: &Part) -> &Path {
        self.files[part.file].path
    }

    fn at_file_of(&self, name: &str, error: Error) -> Error {
        match self.tensors.get(name) {
            Some((file, _)) => error.at(self.files[*file].path),
            None => match self.files {
                [file] => error.at(file.path),
                _ => error,
            },
        }
    }
}
