//! Conversion of float weights to INT8 and INT4.

use half::f16;
use triad_kernels::int4::{quantize_int4, quantize_q5_0};
use triad_model::description;

use super::{Block, Int8Matrix, Linear, Weight, Weights};
use crate::linear_input::{Inputs, LinearInput};
use crate::quantization::{
    DecodeWeights, InputQuantization, OutputWeights, Quantization, WeightBits,
};

impl Weights {
    /// Quantizes every linear layer of these float weights to INT8, on the installed threads. Norms and embedding are
    /// shared.
    ///
    /// `known` are these weights, quantized by a plan that differs only in clip thresholds, shadows and smoothing:
    /// equal matrices are shared with it.
    ///
    /// # Panics
    /// If `quantization` or `known` is for another number of blocks.
    pub fn quantize(&self, quantization: &Quantization, known: Option<&Self>) -> Self {
        let output = match known {
            Some(known) => known.output.clone(),
            None => quantize_output(&self.output, quantization.output_weights),
        };
        Self {
            embedding: self.embedding.clone(),
            blocks: quantize_blocks(
                &self.blocks,
                quantization,
                known.map(|known| &known.blocks[..]),
            ),
            output_norm: self.output_norm.clone(),
            token_inputs: self.token_inputs.clone(),
            streams: self.streams.clone(),
            joined_input: self.joined_input.clone(),
            encoder: self.encoder.clone(),
            output,
            expert_memory: None,
        }
    }
}

impl Weights {
    /// Returns these weights with each linear layer of the blocks replaced by what `convert` returns for the index of its
    /// block, its name and its weights; the output matrix gets the given format. Norms and embedding are shared.
    ///
    /// # Errors
    /// Those of `convert`.
    pub fn convert_linears<E>(
        &self,
        output_weights: OutputWeights,
        mut convert: impl FnMut(usize, description::Linear, &Linear) -> Result<Linear, E>,
    ) -> Result<Self, E> {
        let mut blocks = self.blocks.clone();
        for (index, block) in blocks.iter_mut().enumerate() {
            for (name, linear) in &mut block.linears {
                *linear = convert(index, *name, linear)?;
            }
        }
        Ok(Self {
            embedding: self.embedding.clone(),
            blocks,
            output_norm: self.output_norm.clone(),
            token_inputs: self.token_inputs.clone(),
            streams: self.streams.clone(),
            joined_input: self.joined_input.clone(),
            encoder: self.encoder.clone(),
            output: quantize_output(&self.output, output_weights),
            expert_memory: None,
        })
    }
}

impl Weights {
    /// Returns these weights with the layers that `convert` returns in the place of those of one block, or of the output
    /// matrix if `block` is `None`. All others are shared.
    pub fn with_layers(
        &self,
        block: Option<usize>,
        convert: impl Fn(Option<description::Linear>, &Linear) -> Option<Linear>,
    ) -> Self {
        let mut blocks = self.blocks.clone();
        let output = match block {
            Some(block) => {
                for (name, linear) in &mut blocks[block].linears {
                    if let Some(converted) = convert(Some(*name), linear) {
                        *linear = converted;
                    }
                }
                None
            }
            None => convert(None, &self.output),
        };
        Self {
            embedding: self.embedding.clone(),
            blocks,
            output_norm: self.output_norm.clone(),
            token_inputs: self.token_inputs.clone(),
            streams: self.streams.clone(),
            joined_input: self.joined_input.clone(),
            encoder: self.encoder.clone(),
            output: output.unwrap_or_else(|| self.output.clone()),
            expert_memory: None,
        }
    }
}

impl Block {
    /// Returns [`Weights::rounds_activations`] of one block.
    pub fn rounds_activations(&self) -> bool {
        let rounds = |linear: &Linear| matches!(&linear.weight, Weight::Float(matrix) if matrix.view().rounds_activations());
        self.inputs.is_some() || self.linears.values().any(rounds)
    }
}

fn smoothing(block: &Block, input: usize) -> Option<&[f32]> {
    block
        .inputs
        .as_ref()
        .and_then(|inputs| inputs[input].smoothing())
}

/// Quantizes every linear layer of these float blocks to INT8, on the installed threads. `known` is as for
/// [`Weights::quantize`].
///
/// # Panics
/// If `quantization` or `known` is for another number of blocks.
pub(crate) fn quantize_blocks(
    blocks: &[Block],
    quantization: &Quantization,
    known: Option<&[Block]>,
) -> Vec<Block> {
    assert_eq!(blocks.len(), quantization.blocks.len(), "blocks");
    assert!(
        known.is_none_or(|known| known.len() == blocks.len()),
        "blocks"
    );
    let block = |(index, (block, inputs)): (usize, (&Block, &Inputs<InputQuantization>))| {
        let known = known.map(|known| &known[index]);
        let linear = |(name, linear): (&description::Linear, &Linear)| {
            let input = LinearInput::read_by(*name).index();
            let same = known.filter(|known| smoothing(known, input) == inputs[input].smoothing());
            let quantized = match same {
                Some(known) => known.linears[name].clone(),
                None => quantize_linear(linear, &inputs[input], quantization),
            };
            (*name, quantized)
        };
        Block {
            inputs: Some(inputs.clone()),
            linears: block.linears.iter().map(linear).collect(),
            ..block.clone()
        }
    };
    let blocks = blocks.iter().zip(&quantization.blocks);
    blocks.enumerate().map(block).collect()
}

/// Quantizes one linear layer of a block to INT8; one that is already INT8 is returned unchanged.
pub fn quantize_linear(
    linear: &Linear,
    input: &InputQuantization,
    quantization: &Quantization,
) -> Linear {
    let Weight::Float(float) = &linear.weight else {
        return linear.clone();
    };
    let matrix = Int8Matrix::quantize(float, quantization.weight_scales, input.smoothing());
    let matrix = match input {
        InputQuantization::Dynamic { .. } => matrix.with_float(float),
        InputQuantization::Static { .. } => matrix,
    };
    let decode_weight = match quantization.decode_weights {
        DecodeWeights::Int8 => None,
        DecodeWeights::Int4 => float.to_int4(quantize_int4),
    };
    Linear {
        weight: Weight::Int8(matrix),
        decode_weight,
        bias: linear.bias.clone(),
    }
}

/// Quantizes the weights of one linear layer to INT4, as [`WeightMatrix::to_int4`](super::WeightMatrix::to_int4) does. Converts them to f32 if the
/// rows are not whole groups.
///
/// # Panics
/// If the weights are not in float.
pub fn linear_to_int4(linear: &Linear, quantize: impl Fn(&[f32], &mut [u8], &mut [f16])) -> Linear {
    let Weight::Float(float) = &linear.weight else {
        panic!("the weights are in float")
    };
    let weight = Weight::Float(float.to_int4(quantize).unwrap_or_else(|| float.widened()));
    Linear {
        weight,
        decode_weight: None,
        bias: linear.bias.clone(),
    }
}

/// Quantizes the weights of one linear layer to five bits, as [`WeightMatrix::to_q5_0`](super::WeightMatrix::to_q5_0) does.
///
/// # Panics
/// If the weights are not in float, or rows are not whole groups.
pub fn linear_to_q5_0(linear: &Linear, quantize: impl Fn(&[f32], &mut [u8])) -> Linear {
    let Weight::Float(float) = &linear.weight else {
        panic!("the weights are in float")
    };
    let matrix = float.to_q5_0(quantize);
    Linear {
        weight: Weight::Float(matrix.expect("rows of whole groups")),
        decode_weight: None,
        bias: linear.bias.clone(),
    }
}

/// Quantizes the weights of one linear layer to these bits, each to the nearest number. Layers whose rows are not whole
/// groups get eight bits; blocks of the model's file stay as they are.
///
/// # Panics
/// If the weights are not in float, or not in the blocks that stay.
pub fn linear_to_bits(linear: &Linear, bits: WeightBits) -> Linear {
    let Weight::Float(float) = &linear.weight else {
        panic!("the weights are in float")
    };
    let matrix = match bits {
        WeightBits::Four => float.to_int4(quantize_int4),
        WeightBits::Five => float.to_q5_0(quantize_q5_0),
        WeightBits::Eight => None,
        WeightBits::Stored(format) => {
            assert_eq!(float.blocks(), Some(format), "blocks of the model's file");
            Some(float.clone())
        }
    };
    Linear {
        weight: Weight::Float(matrix.unwrap_or_else(|| float.to_int8())),
        decode_weight: None,
        bias: linear.bias.clone(),
    }
}

/// Converts the output matrix to the given format.
pub fn quantize_output(output: &Linear, weights: OutputWeights) -> Linear {
    match (&output.weight, weights) {
        (Weight::Float(float), OutputWeights::Int8) => Linear {
            weight: Weight::Float(float.to_int8()),
            decode_weight: None,
            bias: output.bias.clone(),
        },
        // A package has no quantized blocks.
        (Weight::Float(float), OutputWeights::Float) if !float.is_float() => Linear {
            weight: Weight::Float(float.widened()),
            decode_weight: None,
            bias: output.bias.clone(),
        },
        _ => output.clone(),
    }
}
