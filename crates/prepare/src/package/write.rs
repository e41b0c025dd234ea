//! Writes the weights of a package: one linear layer at a time is quantized and goes to its place in the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use triad_engine::package::tensors::{
    self, EMBEDDING, Formats, NormPlace, OUTPUT, OUTPUT_NORM, linear_name, norm_name,
};
use triad_engine::quantization::{DecodeWeights, Quantization};
use triad_engine::weights::{Embedding, Linear, Norm, Weight, WeightMatrix, quantize_linear, quantize_output};
use triad_engine::{Cancel, LinearInput, Model};
use triad_kernels::Matrix;
use triad_model::safetensors::Element;
use triad_model::safetensors::write::Layout;
use triad_model::{Error, ErrorKind};

use crate::error::Result;

/// Quantizes the float weights of `model` and writes them to `path`. `progress` is called with how many linear layers
/// of how many are done. What the formats of output matrix and embedding are comes back.
///
/// # Errors
/// If `cancel` is set, the file cannot be written, or the weights are not finite.
pub(super) fn weights(
    model: &Model,
    quantization: &Quantization,
    path: &Path,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Formats> {
    let weights = model.weights();
    let Embedding::Stored { bytes: embedding, format, .. } = &weights.embedding else {
        return Err(Error::new(ErrorKind::Unsupported, "a model with random weights cannot be prepared").into());
    };
    let stored = match &weights.output.weight {
        Weight::Float(matrix) => float_element(matrix.view()),
        Weight::Int8(_) => None,
    };
    let stored = stored.ok_or_else(|| Error::new(ErrorKind::Unsupported, "the model is quantized already"))?;
    let formats = Formats {
        decode: quantization.decode_weights,
        output: tensors::output_element(quantization.output_weights, stored),
        embedding: *format,
    };
    let description = model.description();
    let mut file = Output::create(path, tensors::entries(description, &formats)?)?;

    let total = weights.blocks.iter().map(|block| block.linears.len()).sum::<usize>() + 1;
    let mut done = 0;
    for (index, (block, inputs)) in weights.blocks.iter().zip(&quantization.blocks).enumerate() {
        for (place, norm) in NormPlace::all_of(block) {
            file.norm(&norm_name(index, place), norm)?;
        }
        for (name, linear) in &block.linears {
            cancel.check()?;
            let input = &inputs[LinearInput::of(*name).index()];
            let quantized = model.install(|| quantize_linear(linear, input, quantization));
            release(linear);
            file.linear(&linear_name(index, *name), &quantized, formats.decode)?;
            done += 1;
            progress(done, total);
        }
    }
    file.norm(OUTPUT_NORM, &weights.output_norm)?;
    let output = model.install(|| quantize_output(&weights.output, quantization.output_weights));
    release(&weights.output);
    file.output(&output)?;
    file.put(EMBEDDING, embedding)?;
    embedding.release();
    file.finish()?;
    progress(total, total);
    Ok(formats)
}

/// Lets the system drop the float weights of a layer that has been quantized.
fn release(linear: &Linear) {
    if let Weight::Float(matrix) = &linear.weight {
        matrix.release();
    }
}

fn float_element(matrix: Matrix<'_>) -> Option<Element> {
    match matrix {
        Matrix::F32(_) => Some(Element::F32),
        Matrix::F16(_) => Some(Element::F16),
        Matrix::Bf16(_) => Some(Element::Bf16),
        Matrix::Int8 { .. } | Matrix::Int4 { .. } => None,
    }
}

/// A safetensors file that is filled in any order.
struct Output {
    path: PathBuf,
    file: File,
    /// Places that are not written yet, by tensor.
    places: BTreeMap<String, Range<usize>>,
}

impl Output {
    fn create(path: &Path, entries: Vec<triad_model::safetensors::write::Entry>) -> Result<Self> {
        let layout = Layout::new(&entries, &BTreeMap::new());
        let create = || {
            let mut file = File::create(path)?;
            file.set_len(layout.file_length() as u64)?;
            file.write_all(&layout.header)?;
            Ok(file)
        };
        let file = create().map_err(|error| write_error(error, path))?;
        let places = entries.into_iter().map(|entry| entry.name).zip(layout.places).collect();
        Ok(Self { path: path.into(), file, places })
    }

    /// Writes one tensor.
    ///
    /// # Panics
    /// If the file has no place of this name and length.
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let place = self.places.remove(name).unwrap_or_else(|| panic!("no place for {name}"));
        assert_eq!(place.len(), bytes.len(), "bytes of {name}");
        let written = self.file.seek(SeekFrom::Start(place.start as u64)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| write_error(error, &self.path))
    }

    fn linear(&mut self, name: &str, linear: &Linear, decode: DecodeWeights) -> Result<()> {
        let Weight::Int8(matrix) = &linear.weight else { unreachable!("linear layers of a block are quantized") };
        let weight = matrix.view();
        check_finite(weight.scales)?;
        self.put(&format!("{name}.weight"), bytemuck::cast_slice(weight.packed))?;
        self.put(&format!("{name}.scales"), bytemuck::cast_slice(weight.scales))?;
        self.put(&format!("{name}.sums"), bytemuck::cast_slice(weight.sums))?;
        self.bias(name, linear)?;
        if tensors::has_int4(decode, weight.in_features) {
            let Some(Matrix::Int4 { values, scales }) = linear.decode_weight.as_ref().map(WeightMatrix::view) else {
                unreachable!("layers with whole groups have INT4 weights")
            };
            self.put(&format!("{name}.decode"), values)?;
            self.put(&format!("{name}.decode-scales"), bytemuck::cast_slice(scales))?;
        }
        Ok(())
    }

    fn output(&mut self, output: &Linear) -> Result<()> {
        let Weight::Float(matrix) = &output.weight else { unreachable!("the output matrix reads float activations") };
        let name = format!("{OUTPUT}.weight");
        match matrix.view() {
            Matrix::F32(values) => self.put(&name, bytemuck::cast_slice(values))?,
            Matrix::F16(values) => self.put(&name, bytemuck::cast_slice(values))?,
            Matrix::Bf16(values) => self.put(&name, bytemuck::cast_slice(values))?,
            Matrix::Int8 { values, scales } => {
                check_finite(scales)?;
                self.put(&name, bytemuck::cast_slice(values))?;
                self.put(&format!("{OUTPUT}.scales"), bytemuck::cast_slice(scales))?;
            }
            Matrix::Int4 { .. } => unreachable!("the output matrix is never in INT4"),
        }
        self.bias(OUTPUT, output)
    }

    fn bias(&mut self, name: &str, linear: &Linear) -> Result<()> {
        linear.bias.as_ref().map_or(Ok(()), |bias| self.put(&format!("{name}.bias"), bytemuck::cast_slice(bias)))
    }

    fn norm(&mut self, name: &str, norm: &Norm) -> Result<()> {
        check_finite(&norm.weight)?;
        self.put(&format!("{name}.weight"), bytemuck::cast_slice(&norm.weight))?;
        let bias = norm.bias.as_ref();
        bias.map_or(Ok(()), |bias| self.put(&format!("{name}.bias"), bytemuck::cast_slice(bias)))
    }

    /// # Panics
    /// If a tensor was not written.
    fn finish(self) -> Result<()> {
        assert!(self.places.is_empty(), "not written: {:?}", self.places.keys());
        self.file.sync_all().map_err(|error| write_error(error, &self.path))
    }
}

/// Damaged weights are found before they are in a package. The scale of a row with a weight that is not finite is not
/// a number.
fn check_finite(numbers: &[f32]) -> Result<()> {
    if numbers.iter().all(|number| number.is_finite()) { Ok(()) } else { Err(triad_engine::Error::NotFinite.into()) }
}

pub(super) fn write_error(error: std::io::Error, path: &Path) -> crate::Error {
    Error::new(ErrorKind::Io, "cannot write the file").caused_by(error).at(path).into()
}
