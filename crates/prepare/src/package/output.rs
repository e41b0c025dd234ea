//! Writes the file of weights of a package.

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
use triad_kernels::int8::Int8Weight;
use triad_kernels::{Blocks, Matrix};
use triad_model::safetensors::Element;
use triad_model::safetensors::write::{Entry, Layout};
use triad_model::{Error, ErrorKind};

use super::journal::Journal;
use super::part::Part;
use crate::error::Result;

/// A safetensors file that can be written in any order.
pub(super) struct Output {
    path: PathBuf,
    file: File,
    /// Places that are not written yet, by tensor.
    places: BTreeMap<String, Range<usize>>,
    /// Records what is written, if a later preparation can continue with it.
    journal: Option<Journal>,
}

impl Output {
    pub(super) fn create(path: &Path, entries: Vec<Entry>) -> Result<Self> {
        let layout = Layout::new(&entries, &BTreeMap::new());
        let create = || {
            let mut file = File::create_new(path)?;
            file.set_len(layout.file_length() as u64)?;
            file.write_all(&layout.header)?;
            Ok(file)
        };
        let file = create().map_err(|error| write_error(error, path))?;
        Ok(Self {
            path: path.into(),
            file,
            places: places(entries, layout),
            journal: None,
        })
    }

    /// Continues with the file that an earlier preparation left at `path` with the journal at `journal`, if it is one of
    /// these `entries` and of this `key`, which identifies all that determines the content. Creates it otherwise. Returns
    /// the number of complete blocks, too.
    pub(super) fn resume(
        path: &Path,
        entries: Vec<Entry>,
        (journal, key): (&Path, String),
    ) -> Result<(Self, usize)> {
        let layout = Layout::new(&entries, &BTreeMap::new());
        let read = Journal::read(journal, &key);
        let kept = read.and_then(|it| Some((it.open(path, &layout, &entries)?, it)));
        let Some((file, journal)) = kept else {
            Journal::discard(journal, path).map_err(|error| write_error(error, path))?;
            let journal = Some(Journal::new(journal, key));
            return Ok((
                Self {
                    journal,
                    ..Self::create(path, entries)?
                },
                0,
            ));
        };
        let mut places = places(entries, layout);
        places.retain(|name, _| !journal.has(name));
        let blocks = journal.blocks();
        Ok((
            Self {
                path: path.into(),
                file,
                places,
                journal: Some(journal),
            },
            blocks,
        ))
    }

    /// Records that this many blocks are complete, so that a later preparation continues after them.
    pub(super) fn keep(&mut self, blocks: usize) -> Result<()> {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let synced = self.file.sync_data();
        let kept = synced.and_then(|()| journal.write(blocks));
        kept.map_err(|error| write_error(error, &self.path))
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
        if let Some(journal) = &mut self.journal {
            journal.add(name, bytes);
        }
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
            Weight::Float(matrix) => self.matrix(name, matrix.view())?,
        }
        self.bias(name, linear)
    }

    /// Writes a matrix that is multiplied with float activations.
    fn matrix(&mut self, name: &str, weight: Matrix) -> Result<()> {
        let (weight_name, scales_name) = (format!("{name}.weight"), format!("{name}.scales"));
        match weight {
            Matrix::Int4 { values, scales } => {
                check_finite(scales.iter().map(|scale| scale.to_f32()))?;
                self.put(&weight_name, values)?;
                self.put(&scales_name, bytemuck::cast_slice(scales))
            }
            Matrix::Int8 { values, scales } => {
                check_finite(scales.iter().copied())?;
                self.put(&weight_name, bytemuck::cast_slice(values))?;
                self.put(&scales_name, bytemuck::cast_slice(scales))
            }
            Matrix::Blocks(Blocks { format, bytes, .. }) => {
                let mut wide = vec![0.0; format.elements()];
                for index in 0..bytes.len() / format.bytes() {
                    weight.widen_row(index, &mut wide);
                    check_finite(wide.iter().copied())?;
                }
                self.put(&weight_name, bytes)
            }
            Matrix::F32(values) => {
                check_finite(values.iter().copied())?;
                self.put(&weight_name, bytemuck::cast_slice(values))
            }
            Matrix::F16(values) => self.put(&weight_name, bytemuck::cast_slice(values)),
            Matrix::Bf16(values) => self.put(&weight_name, bytemuck::cast_slice(values)),
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
        self.matrix(OUTPUT, matrix.view())?;
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

/// Returns the place of each tensor.
fn places(entries: Vec<Entry>, layout: Layout) -> BTreeMap<String, Range<usize>> {
    let names = entries.into_iter().map(|entry| entry.name);
    names.zip(layout.places).collect()
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
