//! A file of weights of a package: matrices stay in the file's bytes; other tensors are small and are copied.

use std::collections::BTreeSet;
use std::path::PathBuf;

use triad_model::description::{LinearShape, Norm as NormDescription, NormKind};
use triad_model::mapped::{MappedBytes, MappedFile};
use triad_model::safetensors::write::Entry;
use triad_model::safetensors::{self, Element, Header};
use triad_model::{Error, ErrorKind, Result};

use super::tensors::{self, malformed};
use crate::quantization::DecodeWeights;
use crate::weights::{Int8Matrix, Norm, Weight, WeightMatrix};

/// The largest magnitude of an INT8 number in a file, which may have been written by another program.
const LARGEST: u64 = 128;

/// A mapped file of weights with the tensors that a package's description requires.
#[derive(Debug)]
pub(super) struct TensorFile {
    pub(super) file: MappedFile,
    header: Header,
}

impl TensorFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// If its tensors are not exactly those of `entries`. The error names the file.
    pub(super) fn open(path: PathBuf, entries: &[Entry]) -> Result<Self> {
        let file = MappedFile::open(path.clone())?;
        let header = header(file.bytes(), entries).map_err(|error| error.at(path))?;
        Ok(Self { file, header })
    }

    /// Returns a matrix of floats.
    pub(super) fn float(
        &self,
        name: &str,
        (rows, columns): (usize, usize),
        element: Element,
    ) -> Result<WeightMatrix> {
        let matrix = WeightMatrix::mapped_float(rows, columns, element, self.bytes_of(name)?);
        matrix.ok_or_else(|| changed(name))
    }

    /// Returns the weights and, if there is one, their second copy for decode.
    pub(super) fn int8(
        &self,
        name: &str,
        shape: &LinearShape,
        decode: DecodeWeights,
    ) -> Result<(Weight, Option<WeightMatrix>)> {
        let LinearShape {
            out_features,
            in_features,
            ..
        } = *shape;
        let scales = self.scales(&format!("{name}.scales"))?;
        let sums = self.numbers(&format!("{name}.sums"), i32::from_le_bytes)?;
        // Kernels multiply a sum by 128 in 32 bits.
        if let Some(sum) = sums
            .iter()
            .find(|sum| u64::from(sum.unsigned_abs()) > LARGEST * in_features as u64)
        {
            return Err(malformed(format!(
                "tensor \"{name}.sums\" has {sum}, which can't be the sum of {in_features} weights"
            )));
        }
        let packed = self.bytes_of(&format!("{name}.weight"))?;
        let matrix = Int8Matrix::mapped(out_features, in_features, packed, scales, sums);
        let decode_weight = if tensors::has_int4(decode, in_features) {
            let (values, scales) = (
                self.bytes_of(&format!("{name}.decode"))?,
                self.bytes_of(&format!("{name}.decode-scales"))?,
            );
            Some(
                WeightMatrix::mapped_int4(out_features, in_features, values, scales)
                    .ok_or_else(|| changed(name))?,
            )
        } else {
            None
        };
        Ok((
            Weight::Int8(matrix.ok_or_else(|| changed(name))?),
            decode_weight,
        ))
    }

    pub(super) fn norm(&self, name: &str, norm: &NormDescription) -> Result<Norm> {
        let weight = self.floats(&format!("{name}.weight"))?;
        let bias = match norm.kind {
            NormKind::Rms => None,
            NormKind::Centered => Some(vec![0.0; weight.len()]),
            NormKind::Layer => Some(self.floats(&format!("{name}.bias"))?),
        };
        Ok(Norm {
            weight,
            bias,
            epsilon: norm.epsilon,
        })
    }

    pub(super) fn bytes_of(&self, name: &str) -> Result<MappedBytes> {
        let tensor = self.header.tensors.get(name).ok_or_else(|| changed(name))?;
        Ok(self.file.part(tensor.bytes.clone()))
    }

    pub(super) fn numbers<T>(&self, name: &str, number: impl Fn([u8; 4]) -> T) -> Result<Vec<T>> {
        Ok(self
            .bytes_of(name)?
            .as_chunks()
            .0
            .iter()
            .map(|bytes| number(*bytes))
            .collect())
    }

    pub(super) fn floats(&self, name: &str) -> Result<Vec<f32>> {
        self.numbers(name, f32::from_le_bytes)
    }

    pub(super) fn scales(&self, name: &str) -> Result<Vec<f32>> {
        let scales = self.floats(name)?;
        match scales
            .iter()
            .find(|scale| !(scale.is_finite() && **scale > 0.0))
        {
            Some(scale) => Err(malformed(format!(
                "tensor {name:?} has the scale {scale}, expected a number above 0"
            ))),
            None => Ok(scales),
        }
    }
}

/// Returns the header of a file of weights. Fails unless the tensors are exactly these.
fn header(bytes: &[u8], entries: &[Entry]) -> Result<Header> {
    let elements = [
        Element::I8,
        Element::F32,
        Element::I32,
        Element::U8,
        Element::F16,
        Element::Bf16,
    ];
    let header = safetensors::read(bytes, &elements)?;
    for entry in entries {
        let name = &entry.name;
        let tensor = header
            .tensors
            .get(name)
            .ok_or_else(|| Error::new(ErrorKind::Missing, format!("tensor {name:?} is missing")))?;
        if (tensor.element, &tensor.shape) != (entry.element, &entry.shape) {
            return Err(malformed(format!(
                "tensor {name:?} is {} {:?}, expected {} {:?}",
                tensor.element.name(),
                tensor.shape,
                entry.element.name(),
                entry.shape
            )));
        }
        let alignment = tensors::alignment(entry);
        if !tensor.bytes.start.is_multiple_of(alignment) {
            let start = tensor.bytes.start;
            return Err(malformed(format!(
                "tensor {name:?} begins at byte {start}, expected a multiple of {alignment}"
            )));
        }
    }
    if header.tensors.len() > entries.len() {
        let known: BTreeSet<&String> = entries.iter().map(|entry| &entry.name).collect();
        let unknown = header
            .tensors
            .keys()
            .find(|name| !known.contains(name))
            .map_or("", String::as_str);
        return Err(malformed(format!(
            "tensor {unknown:?} plays no part in this model"
        )));
    }
    Ok(header)
}

/// Returns the error of a tensor that no longer fits its description, which [`header`] has checked.
pub(super) fn changed(name: &str) -> Error {
    malformed(format!(
        "tensor {name:?} is not what it was when the package was opened"
    ))
}
