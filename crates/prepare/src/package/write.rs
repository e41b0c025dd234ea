//! Writes the weights of a package: quantizes one linear layer at a time and writes it to its place in the file.

use std::borrow::Cow;
use std::collections::BTreeMap;

use triad_engine::package::layers::{self, BitsOfLayers, layer_of};
use triad_engine::package::preparation::{LayerBits, PlanOptions};
use triad_engine::package::tensors::{
    self, EMBEDDING, Formats, OUTPUT_NORM, OutputFormat, TOKEN_NORM, TOKEN_PROJECTION, TOKEN_TABLE,
    TokenInputFormats, linear_name, token_input_names,
};
use triad_engine::package::{StreamNames, WEIGHTS};
use triad_engine::quantization::{Quantization, WeightBits};
use triad_engine::weights::{
    Block, BlockStreams, Embedding, Linear, Streams, TokenInputs, Weight, linear_to_bits,
    quantize_linear, quantize_output,
};
use triad_engine::{Cancel, LinearInput, Model};
use triad_kernels::Matrix;
use triad_model::description::{Linear as LinearName, ModelDescription};
use triad_model::safetensors::Element;
use triad_model::tensor::Format;
use triad_model::{Error, ErrorKind};

use super::head;
use super::output::Output;
use super::part::Part;
use super::recipe::Progress;
use crate::error::Result;
use crate::int4::Rounding;

/// The version of the [record](Output::resume) of written weights, and of how they are rounded. It rises with each change of
/// either, so that no package mixes weights of two roundings.
pub(super) const JOURNAL_FORMAT: u64 = 2;

/// The quantization of linear layers.
pub(super) enum LinearPlan<'a> {
    W8a8(Quantization),
    W4a16 {
        /// Rounds the layers of some blocks.
        rounding: Option<Box<Rounding>>,
        /// Returns what rounds the layers of the blocks from this one on.
        next: Box<NextRounding<'a>>,
        /// The bits of all layers, if there is a budget.
        bits: Option<(BitsOfLayers, WeightBits)>,
        /// Rounds the output matrix to these bits.
        round_output: Box<RoundOutput<'a>>,
        /// Identifies all that determines the weights.
        key: String,
    },
}

type RoundOutput<'a> = dyn Fn(WeightBits, &mut dyn FnMut(Progress)) -> Result<Linear> + 'a;
type NextRounding<'a> = dyn Fn(usize, &mut dyn FnMut(Progress)) -> Result<Rounding> + 'a;

impl LinearPlan<'_> {
    /// Prepares for the layers of a block. Complete blocks are recorded before a text is read for the next ones.
    fn enter(
        &mut self,
        block: usize,
        file: &mut Output,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let Self::W4a16 {
            rounding,
            next,
            bits,
            ..
        } = self
        else {
            return Ok(());
        };
        let is_known = |it: &Rounding| it.blocks().contains(&block);
        let has_rounded = |(bits, _): &(BitsOfLayers, WeightBits)| {
            let mut of_block = bits.range((block, "")..(block + 1, ""));
            of_block.any(|(_, bits)| bits.has_groups())
        };
        if rounding.as_deref().is_some_and(is_known) || !bits.as_ref().is_none_or(has_rounded) {
            return Ok(());
        }
        // Its moments are dropped before those of other blocks take memory.
        if rounding.take().is_some()
            && let Err(error) = file.keep(block)
        {
            tracing::warn!("the written weights are not kept: {error}");
        }
        *rounding = Some(Box::new(next(block, progress)?));
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
            Self::W4a16 { rounding, bits, .. } => {
                let bits = match bits {
                    Some((bits, _)) => bits[&(block, layer_of(name))],
                    None => WeightBits::Four,
                };
                if !bits.has_groups() {
                    return Ok(linear_to_bits(linear, bits));
                }
                let rounding = rounding.as_mut().expect("the block is entered");
                rounding.round((block, name), linear, bits, cancel)
            }
        }
    }

    /// Returns the output matrix with the bits that a budget gave it; `None` if there is no budget. The blocks are recorded
    /// before a text is read.
    fn output(
        &mut self,
        blocks: &[Block],
        file: &mut Output,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Linear>> {
        let Self::W4a16 {
            rounding,
            round_output,
            bits: Some((_, bits)),
            ..
        } = self
        else {
            return Ok(None);
        };
        // The moments of the blocks are dropped first.
        *rounding = None;
        if let Err(error) = file.keep(blocks.len()) {
            tracing::warn!("the written weights are not kept: {error}");
        }
        round_output(*bits, progress).map(Some)
    }

    /// Returns the bits of the blocks' layers and of the output matrix, if there is a budget.
    fn bits(&self) -> Option<(BitsOfLayers, WeightBits)> {
        match self {
            Self::W4a16 { bits, .. } => bits.clone(),
            Self::W8a8(_) => None,
        }
    }
}

/// Returns the bits of the blocks' layers and of the output matrix of a model with these `layers`.
pub(super) fn bits_of(
    model: &ModelDescription,
    layers: &[LayerBits],
) -> (BitsOfLayers, WeightBits) {
    let mut of_output = WeightBits::Eight;
    let mut of_blocks = BTreeMap::new();
    for (group, found) in layers::groups(model).iter().zip(layers) {
        match group.block {
            Some(block) => {
                of_blocks.insert((block, group.layer), found.bits);
            }
            None => of_output = found.bits,
        }
    }
    (of_blocks, of_output)
}

/// Quantizes the float weights of a model and writes them into `part`, with those of its `head`. `progress` is called with the number of finished
/// linear layers and the total. Returns the formats of output matrix and embedding.
///
/// # Errors
/// If `cancel` is set, the file cannot be written, or the weights are not finite.
pub(super) fn weights(
    (model, head): (&Model, Option<&Model>),
    mut linears: LinearPlan,
    options: &PlanOptions,
    part: &Part,
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
    let (bits, of_output) = linears.bits().unzip();
    let formats = Formats {
        token_inputs,
        linears: options.linears,
        decode: options.decode_weights,
        bits,
        output: match of_output {
            Some(bits) => OutputFormat::Bits(bits),
            None => tensors::output_format(options.output_weights, stored),
        },
        embedding: format,
    };
    let mut description = Cow::Borrowed(model.description());
    if head.is_none() && description.mtp.is_some() {
        description.to_mut().mtp = None;
    }
    let entries = tensors::entries(&description, &formats)?;
    let path = part.path(WEIGHTS);
    let (mut file, complete) = match &linears {
        LinearPlan::W4a16 { key, .. } => {
            let journal = part.path(Part::JOURNAL);
            Output::resume(&path, entries, (&journal, key.clone()))?
        }
        LinearPlan::W8a8(_) => {
            part.remove_written()?;
            (Output::create(&path, entries)?, 0)
        }
    };

    let total = weights
        .blocks
        .iter()
        .map(|block| block.linears.len())
        .sum::<usize>()
        + 1;
    let of_complete = weights.blocks.iter().take(complete);
    let mut done = of_complete.map(|block| block.linears.len()).sum();
    for (index, block) in weights.blocks.iter().enumerate().skip(complete) {
        linears.enter(index, &mut file, progress)?;
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
    let output = linears.output(&weights.blocks, &mut file, progress)?;
    let output = output.unwrap_or_else(|| {
        model.install(|| quantize_output(&weights.output, options.output_weights))
    });
    if let Some(head) = head {
        head::write(&mut file, head)?;
    }
    file.norm(OUTPUT_NORM, &weights.output_norm)?;
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
