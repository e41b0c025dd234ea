//! A file of weights that is written tensor by tensor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use triad_engine::package::StreamNames;
use triad_engine::package::tensors::{
    self, NormPlace, OUTPUT, mixer_name, norm_name, router_name, scale_name,
};
use triad_engine::quantization::DecodeWeights;
use triad_engine::weights::{Block, BlockStreams, Linear, Norm, RouterPart, Weight, WeightMatrix};
use triad_kernels::Matrix;
use triad_kernels::int8::Int8Weight;
use triad_model::safetensors::Element;
use triad_model::safetensors::write::Layout;
use triad_model::{Error, ErrorKind};

use super::part::Part;
use crate::error::Result;

/// A safetensors file that can be written in any order.
pub(super) struct Output {
    path: PathBuf,
    file: File,
    /// Places that are not written yet, by tensor.
    places: BTreeMap<String, Range<usize>>,
}

impl Output {
    pub(super) fn create(
        path: &Path,
        entries: Vec<triad_model::safetensors::write::Entry>,
    ) -> Result<Self> {
        let layout = Layout::new(&entries, &BTreeMap::new());
        let create = || {
            let mut file = File::create_new(path)?;
            file.set_len(layout.file_length() as u64)?;
            file.write_all(&layout.header)?;
            Ok(file)
        };
        let file = create().map_err(|error| write_error(error, path))?;
        let places = entries
            .into_iter()
            .map(|entry| entry.name)
            .zip(layout.places)
            .collect();
        Ok(Self {
            path: path.into(),
            file,
            places,
        })
    }

    /// Writes one tensor.
    ///
    /// # Panics
    /// If the file has no place of this name and length.
    pub(super) fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let place = self
            .places
            .remove(name)
            .unwrap_or_else(|| panic!("no place for {name}"));
        assert_eq!(place.len(), bytes.len(), "bytes of {name}");
        let written = self
            .file
            .seek(SeekFrom::Start(place.start as u64))
            .and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| write_error(error, &self.path))
    }

    /// Writes what a block has in addition to linear layers, with names after `prefix`.
    pub(super) fn rest_of_block(
        &mut self,
        prefix: &str,
        index: usize,
        block: &Block,
    ) -> Result<()> {
        let named = |name: String| format!("{prefix}{name}");
        for (place, norm) in NormPlace::all_of(block) {
            self.norm(&named(norm_name(index, place)), norm)?;
        }
        for (weight, values) in &block.mixer {
            self.floats(&named(mixer_name(index, *weight)), values)?;
        }
        if let Some(router) = &block.router {
            for part in RouterPart::present_in(&router.experts) {
                let values = router.part(part).expect("a router has its parts");
                self.floats(&named(router_name(index, part)), &values)?;
            }
        }
        let scale = block.scale.as_ref();
        scale.map_or(Ok(()), |scale| {
            self.floats(&named(scale_name(index)), &[*scale])
        })
    }

    pub(super) fn linear(
        &mut self,
        name: &str,
        linear: &Linear,
        decode: DecodeWeights,
    ) -> Result<()> {
        match &linear.weight {
            Weight::Int8(matrix) => {
                self.int8(name, matrix.view(), linear.decode_weight.as_ref(), decode)?;
            }
            Weight::Float(matrix) => self.int4(name, matrix.view())?,
        }
        self.bias(name, linear)
    }

    fn int4(&mut self, name: &str, weight: Matrix) -> Result<()> {
        let weight_name = format!("{name}.weight");
        match weight {
            Matrix::Int4 { values, scales } => {
                check_finite(scales.iter().map(|scale| scale.to_f32()))?;
                self.put(&weight_name, values)?;
                self.put(&format!("{name}.scales"), bytemuck::cast_slice(scales))
            }
            Matrix::F32(values) => {
                check_finite(values.iter().copied())?;
                self.put(&weight_name, bytemuck::cast_slice(values))
            }
            _ => unreachable!(
                "linear layers of a block are in INT4, or in f32 where their rows are no whole groups"
            ),
        }
    }

    fn int8(
        &mut self,
        name: &str,
        weight: Int8Weight,
        in_decode: Option<&WeightMatrix>,
        decode: DecodeWeights,
    ) -> Result<()> {
        check_finite(weight.scales.iter().copied())?;
        self.put(
            &format!("{name}.weight"),
            bytemuck::cast_slice(weight.packed),
        )?;
        self.put(
            &format!("{name}.scales"),
            bytemuck::cast_slice(weight.scales),
        )?;
        self.put(&format!("{name}.sums"), bytemuck::cast_slice(weight.sums))?;
        if tensors::has_int4(decode, weight.in_features) {
            let Some(Matrix::Int4 { values, scales }) = in_decode.map(WeightMatrix::view) else {
                unreachable!("layers with whole groups have INT4 weights")
            };
            self.put(&format!("{name}.decode"), values)?;
            self.put(
                &format!("{name}.decode-scales"),
                bytemuck::cast_slice(scales),
            )?;
        }
        Ok(())
    }

    pub(super) fn output(&mut self, output: &Linear) -> Result<()> {
        let Weight::Float(matrix) = &output.weight else {
            unreachable!("the output matrix reads float activations")
        };
        let name = format!("{OUTPUT}.weight");
        match matrix.view() {
            Matrix::F32(values) => self.put(&name, bytemuck::cast_slice(values))?,
            Matrix::F16(values) => self.put(&name, bytemuck::cast_slice(values))?,
            Matrix::Bf16(values) => self.put(&name, bytemuck::cast_slice(values))?,
            Matrix::Int8 { values, scales } => {
                check_finite(scales.iter().copied())?;
                self.put(&name, bytemuck::cast_slice(values))?;
                self.put(&format!("{OUTPUT}.scales"), bytemuck::cast_slice(scales))?;
            }
            Matrix::Int4 { .. } | Matrix::Blocks(_) => {
                unreachable!("the output matrix is in INT8 or floats")
            }
        }
        self.bias(OUTPUT, output)
    }

    fn bias(&mut self, name: &str, linear: &Linear) -> Result<()> {
        linear.bias.as_ref().map_or(Ok(()), |bias| {
            self.put(&format!("{name}.bias"), bytemuck::cast_slice(bias))
        })
    }

    /// Writes a matrix as floats, in f32 if it is not stored in `element`.
    pub(super) fn float(
        &mut self,
        name: &str,
        matrix: &WeightMatrix,
        element: Element,
    ) -> Result<()> {
        match (matrix.view(), element) {
            (Matrix::Bf16(values), Element::Bf16) => self.put(name, bytemuck::cast_slice(values)),
            (Matrix::F16(values), Element::F16) => self.put(name, bytemuck::cast_slice(values)),
            (Matrix::F32(values), _) => self.put(name, bytemuck::cast_slice(values)),
            _ => self.put(name, bytemuck::cast_slice(&matrix.to_f32())),
        }
    }

    pub(super) fn streams(
        &mut self,
        names: &StreamNames,
        streams: &BlockStreams,
        element: Element,
    ) -> Result<()> {
        for (name, matrix) in names.matrices.iter().zip(streams.matrices()) {
            self.float(name, matrix, element)?;
        }
        self.floats(&names.prediction, &streams.prediction)?;
        self.floats(&names.correction, &streams.correction)?;
        if let Some(scale) = &streams.scale {
            self.floats(&names.scale, scale)?;
        }
        self.norm(&names.router_norm, &streams.router_norm)?;
        self.norm(&names.norm, &streams.norm)
    }

    pub(super) fn floats(&mut self, name: &str, values: &[f32]) -> Result<()> {
        check_finite(values.iter().copied())?;
        self.put(name, bytemuck::cast_slice(values))
    }

    pub(super) fn norm(&mut self, name: &str, norm: &Norm) -> Result<()> {
        check_finite(norm.weight.iter().copied())?;
        self.put(
            &format!("{name}.weight"),
            bytemuck::cast_slice(&norm.weight),
        )?;
        let bias = norm.bias.as_ref();
        bias.map_or(Ok(()), |bias| {
            self.put(&format!("{name}.bias"), bytemuck::cast_slice(bias))
        })
    }

    /// # Panics
    /// If a tensor was not written.
    pub(super) fn finish(self) -> Result<()> {
        assert!(
            self.places.is_empty(),
            "not written: {:?}",
            self.places.keys()
        );
        self.file
            .sync_all()
            .map_err(|error| write_error(error, &self.path))
    }
}

/// Detects damaged weights before they are written to a package. The scale of a row or group is NaN if a weight in it
/// is not finite.
fn check_finite(mut numbers: impl Iterator<Item = f32>) -> Result<()> {
    if numbers.all(f32::is_finite) {
        Ok(())
    } else {
        Err(triad_engine::Error::NotFinite.into())
    }
}

/// Writes a file of the unfinished package.
pub(super) fn write_file(part: &Part, name: &str, content: &[u8]) -> Result<()> {
    let path = part.path(name);
    let write = || {
        let mut file = File::create_new(&path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(|error| write_error(error, &path))
}

fn write_error(error: std::io::Error, path: &Path) -> crate::Error {
    Error::new(ErrorKind::Io, "cannot write the file")
        .caused_by(error)
        .at(path)
        .into()
}
