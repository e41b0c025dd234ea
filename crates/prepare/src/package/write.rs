//! Writes the weights of a package: quantizes one linear layer at a time and writes it to its place in the file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use triad_engine::package::preparation::PlanOptions;
use triad_engine::package::tensors::{
    self, EMBEDDING, Formats, NormPlace, OUTPUT, OUTPUT_NORM, StreamNames, TOKEN_NORM,
    TOKEN_PROJECTION, TOKEN_TABLE, TokenInputFormats, linear_name, mixer_name, norm_name,
    router_name, scale_name, token_input_names,
};
use triad_engine::quantization::{DecodeWeights, Quantization};
use triad_engine::weights::{
    Block, BlockStreams, Embedding, Linear, Norm, RouterPart, Streams, TokenInputs, Weight,
    WeightMatrix, quantize_linear, quantize_output,
};
use triad_engine::{Cancel, LinearInput, Model};
use triad_kernels::Matrix;
use triad_kernels::int8::Int8Weight;
use triad_model::description::Linear as LinearName;
use triad_model::safetensors::Element;
use triad_model::safetensors::write::Layout;
use triad_model::tensor::Format;
use triad_model::{Error, ErrorKind};

use super::part::Part;
use super::recipe::Progress;
use crate::error::Result;
use crate::int4::Rounding;

/// The quantization of linear layers.
pub(super) enum LinearPlan<'a> {
    W8a8(Quantization),
    W4a16 {
        /// Rounds the layers of some blocks.
        rounding: Box<Rounding>,
        /// Returns what rounds the layers of the blocks from another one on.
        next: Box<NextRounding<'a>>,
    },
}

type NextRounding<'a> = dyn Fn(usize, &mut dyn FnMut(Progress)) -> Result<Rounding> + 'a;

impl LinearPlan<'_> {
    /// Prepares for the layers of a block.
    fn enter(&mut self, block: usize, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        if let Self::W4a16 { rounding, next } = self
            && !rounding.blocks().contains(&block)
        {
            // Its moments are dropped before those of other blocks take memory.
            rounding.clear();
            **rounding = next(block, progress)?;
        }
        Ok(())
    }

    fn quantize(
        &mut self,
        block: usize,
        name: LinearName,
        linear: &Linear,
        cancel: &Cancel,
    ) -> Result<Linear> {
        let input = LinearInput::read_by(name).index();
        match self {
            Self::W8a8(quantization) => Ok(quantize_linear(
                linear,
                &quantization.blocks[block][input],
                quantization,
            )),
            Self::W4a16 { rounding, .. } => rounding.round(block, name, linear, cancel),
        }
    }
}

/// Quantizes the float weights of `model` and writes them to `path`. `progress` is called with the number of finished
/// linear layers and the total. Returns the formats of output matrix and embedding.
///
/// # Errors
/// If `cancel` is set, the file cannot be written, or the weights are not finite.
pub(super) fn weights(
    model: &Model,
    mut linears: LinearPlan,
    options: &PlanOptions,
    path: &Path,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<Formats> {
    let weights = model.weights();
    let (format, embedding) = embedding_of(&weights.embedding)?;
    let stored = match &weights.output.weight {
        Weight::Float(matrix) => Some(float_element(matrix.view())),
        Weight::Int8(_) => None,
    };
    let stored = stored
        .ok_or_else(|| Error::new(ErrorKind::Unsupported, "the model is quantized already"))?;
    let token_inputs = match &weights.token_inputs {
        Some(inputs) => {
            let streams = weights.streams.as_ref();
            Some(token_input_formats(inputs, streams, &weights.blocks)?)
        }
        None => None,
    };
    let formats = Formats {
        token_inputs,
        linears: options.linears,
        decode: options.decode_weights,
        output: tensors::output_element(options.output_weights, stored),
        embedding: format,
    };
    let description = model.description();
    let mut file = Output::create(path, tensors::entries(description, &formats)?)?;

    let total = weights
        .blocks
        .iter()
        .map(|block| block.linears.len())
        .sum::<usize>()
        + 1;
    let mut done = 0;
    for (index, block) in weights.blocks.iter().enumerate() {
        linears.enter(index, progress)?;
        for (place, norm) in NormPlace::all_of(block) {
            file.norm(&norm_name(index, place), norm)?;
        }
        for (weight, values) in &block.mixer {
            file.floats(&mixer_name(index, *weight), values)?;
        }
        if let Some(router) = &block.router {
            for part in RouterPart::present_in(&router.experts) {
                let values = router.part(part).expect("a router has its parts");
                file.floats(&router_name(index, part), &values)?;
            }
        }
        if let Some(scale) = &block.scale {
            file.floats(&scale_name(index), &[*scale])?;
        }
        if let (Some(formats), Some(input)) = (&token_inputs, &block.token_input) {
            let [gate, output, norm] = token_input_names(index);
            file.float(&gate, &input.gate, formats.matrices)?;
            file.float(&output, &input.output, formats.matrices)?;
            file.norm(&norm, &input.norm)?;
        }
        if let (Some(formats), Some(streams)) = (&token_inputs, &block.streams) {
            file.streams(&StreamNames::of_block(index), streams, formats.matrices)?;
        }
        for (name, linear) in &block.linears {
            cancel.check()?;
            let quantized = model.install(|| linears.quantize(index, *name, linear, cancel))?;
            release(linear);
            file.linear(&linear_name(index, *name), &quantized, formats.decode)?;
            done += 1;
            progress(Progress::Writing { done, total });
        }
    }
    file.norm(OUTPUT_NORM, &weights.output_norm)?;
    let output = model.install(|| quantize_output(&weights.output, options.output_weights));
    release(&weights.output);
    file.output(&output)?;
    file.put(EMBEDDING, &embedding)?;
    release_rows(&weights.embedding);
    if let (Some(formats), Some(inputs)) = (&token_inputs, &weights.token_inputs) {
        file.float(TOKEN_PROJECTION, &inputs.projection, formats.matrices)?;
        file.norm(TOKEN_NORM, &inputs.norm)?;
        let (_, table) = embedding_of(&inputs.table)?;
        file.put(TOKEN_TABLE, &table)?;
        release_rows(&inputs.table);
    }
    if let (Some(formats), Some(streams)) = (&token_inputs, &weights.streams) {
        let names = StreamNames::shared(streams.projections.len() + 1);
        for (name, matrix) in names.iter().flatten().zip(streams.matrices()) {
            file.float(name, matrix, formats.matrices)?;
        }
    }
    file.finish()?;
    progress(Progress::Writing { done: total, total });
    Ok(formats)
}

/// Lets the system drop the float weights of a layer that has been quantized.
fn release(linear: &Linear) {
    if let Weight::Float(matrix) = &linear.weight {
        matrix.release();
    }
}

pub(super) fn float_element(matrix: Matrix<'_>) -> Element {
    match matrix {
        // `quantize_output` widens all others.
        Matrix::F32(_) | Matrix::Blocks(_) | Matrix::Int8 { .. } | Matrix::Int4 { .. } => {
            Element::F32
        }
        Matrix::F16(_) => Element::F16,
        Matrix::Bf16(_) => Element::Bf16,
    }
}

/// Lets the system drop the rows of an embedding that has been written.
fn release_rows(embedding: &Embedding) {
    if let Embedding::Stored { bytes, .. } = embedding {
        bytes.release();
    }
}

/// Returns the formats of inputs by token: the table stays as stored, and all matrices have one element type, with those of
/// several residual streams.
fn token_input_formats(
    inputs: &TokenInputs,
    streams: Option<&Streams>,
    blocks: &[Block],
) -> Result<TokenInputFormats> {
    let of_blocks = blocks.iter().filter_map(|block| block.token_input.as_ref());
    let of_streams = blocks.iter().filter_map(|block| block.streams.as_ref());
    let mut matrices = of_blocks
        .flat_map(|input| [&input.gate, &input.output])
        .chain(of_streams.flat_map(BlockStreams::matrices))
        .chain(streams.into_iter().flat_map(Streams::matrices))
        .map(|matrix| float_element(matrix.view()));
    let first = float_element(inputs.projection.view());
    let (table, _) = embedding_of(&inputs.table)?;
    Ok(TokenInputFormats {
        table,
        matrices: match matrices.all(|element| element == first) {
            true => first,
            false => Element::F32,
        },
    })
}

/// Returns the rows of an embedding with their format.
fn embedding_of(rows: &Embedding) -> Result<(Format, Cow<'_, [u8]>)> {
    let rows = embedding(rows).ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            "a model with random weights cannot be prepared",
        )
    })?;
    Ok(rows)
}

/// Returns the rows of an embedding with their format; `None` for random weights.
fn embedding(embedding: &Embedding) -> Option<(Format, Cow<'_, [u8]>)> {
    let matrix = match embedding {
        Embedding::Stored { bytes, format, .. } => return Some((*format, Cow::Borrowed(bytes))),
        Embedding::Output => return None,
        Embedding::Matrix(matrix) => matrix,
    };
    let (format, bytes) = match matrix.view() {
        Matrix::F32(values) => (Format::F32, bytemuck::cast_slice(values)),
        Matrix::F16(values) => (Format::F16, bytemuck::cast_slice(values)),
        Matrix::Bf16(values) => (Format::Bf16, bytemuck::cast_slice(values)),
        Matrix::Blocks(blocks) => (Format::Blocks(blocks.format), blocks.bytes),
        Matrix::Int8 { .. } | Matrix::Int4 { .. } => {
            let values = bytemuck::cast_slice(&matrix.to_f32()).to_vec();
            return Some((Format::F32, Cow::Owned(values)));
        }
    };
    Some((format, Cow::Borrowed(bytes)))
}

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
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
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

    fn output(&mut self, output: &Linear) -> Result<()> {
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

    fn streams(
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

pub(super) fn write_error(error: std::io::Error, path: &Path) -> crate::Error {
    Error::new(ErrorKind::Io, "cannot write the file")
        .caused_by(error)
        .at(path)
        .into()
}
