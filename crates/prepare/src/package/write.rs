//! Writes the weights of a package: quantizes one linear layer at a time and writes it to its place in the file.

use std::borrow::Cow;
use std::path::Path;

use triad_engine::package::StreamNames;
use triad_engine::package::preparation::PlanOptions;
use triad_engine::package::tensors::{
    self, EMBEDDING, Formats, OUTPUT_NORM, TOKEN_NORM, TOKEN_PROJECTION, TOKEN_TABLE,
    TokenInputFormats, linear_name, token_input_names,
};
use triad_engine::quantization::Quantization;
use triad_engine::weights::{
    Block, BlockStreams, Embedding, Linear, Streams, TokenInputs, Weight, quantize_linear,
    quantize_output,
};
use triad_engine::{Cancel, LinearInput, Model};
use triad_kernels::Matrix;
use triad_model::description::Linear as LinearName;
use triad_model::safetensors::Element;
use triad_model::tensor::Format;
use triad_model::{Error, ErrorKind};

use super::head;
use super::output::Output;
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
        file.rest_of_block("", index, block)?;
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
    if let Some(head) = model.mtp() {
        head::write(&mut file, head)?;
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
