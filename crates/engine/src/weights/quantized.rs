//! From float weights to INT8 and INT4 ones.

use triad_model::description;

use super::{Block, Int8Matrix, Linear, Weight, Weights};
use crate::linear_input::LinearInput;
use crate::quantization::{DecodeWeights, InputQuantization, OutputWeights, Quantization};

impl Weights {
    /// These float weights with every linear layer in INT8, on the threads that are installed. Norms and embedding are shared.
    ///
    /// `known` are these weights by a plan that differs in clip thresholds, shadows and smoothing only: matrices that
    /// come to the same are shared with it.
    ///
    /// # Panics
    /// If `quantization` or `known` is for another number of blocks.
    pub fn quantize(&self, quantization: &Quantization, known: Option<&Self>) -> Self {
        assert_eq!(self.blocks.len(), quantization.blocks.len(), "blocks");
        assert!(
            known.is_none_or(|known| known.blocks.len() == self.blocks.len()),
            "blocks"
        );
        let block = |(index, (block, inputs)): (usize, (&Block, &[InputQuantization; 4]))| {
            let known = known.map(|known| &known.blocks[index]);
            let linear = |(name, linear): (&description::Linear, &Linear)| {
                let input = LinearInput::of(*name).index();
                let same =
                    known.filter(|known| smoothing(known, input) == inputs[input].smoothing());
                let quantized = match same {
                    Some(known) => known.linears[name].clone(),
                    None => quantize_linear(linear, &inputs[input], quantization),
                };
                (*name, quantized)
            };
            let linears = block.linears.iter().map(linear).collect();
            Block {
                inputs: Some(inputs.clone()),
                linears,
                ..block.clone()
            }
        };
        let output = match known {
            Some(known) => known.output.clone(),
            None => quantize_output(&self.output, quantization.output_weights),
        };
        Self {
            embedding: self.embedding.clone(),
            blocks: self
                .blocks
                .iter()
                .zip(&quantization.blocks)
                .enumerate()
                .map(block)
                .collect(),
            output_norm: self.output_norm.clone(),
            output,
        }
    }
}

impl Weights {
    /// These float weights with every linear layer of the blocks in W4A16, on the threads that are installed, as
    /// [`linear_to_int4`] makes them. `mean_squares` are those of the channels of each block's inputs, in the order of
    /// [`LinearInput::ALL`]. Norms and embedding are shared.
    ///
    /// # Panics
    /// If `mean_squares` is for other blocks or channels, or the weights are not in float.
    pub fn quantize_int4(
        &self,
        mean_squares: &[[Vec<f32>; 4]],
        output_weights: OutputWeights,
    ) -> Self {
        assert_eq!(self.blocks.len(), mean_squares.len(), "blocks");
        let block = |(block, inputs): (&Block, &[Vec<f32>; 4])| {
            let linear = |(name, linear): (&description::Linear, &Linear)| {
                (
                    *name,
                    linear_to_int4(linear, &inputs[LinearInput::of(*name).index()]),
                )
            };
            Block {
                linears: block.linears.iter().map(linear).collect(),
                ..block.clone()
            }
        };
        Self {
            embedding: self.embedding.clone(),
            blocks: self.blocks.iter().zip(mean_squares).map(block).collect(),
            output_norm: self.output_norm.clone(),
            output: quantize_output(&self.output, output_weights),
        }
    }
}

fn smoothing(block: &Block, input: usize) -> Option<&[f32]> {
    block
        .inputs
        .as_ref()
        .and_then(|inputs| inputs[input].smoothing())
}

/// One linear layer of a block in INT8; one that is in INT8 already stays as it is.
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
        DecodeWeights::Int4 => float.to_int4(None),
    };
    Linear {
        weight: Weight::Int8(matrix),
        decode_weight,
        bias: linear.bias.clone(),
    }
}

/// One linear layer with its weights in INT4, by the scales with the least error for activations whose channels have
/// `mean_squares[in_features]`; in f32 where its rows are no whole groups.
///
/// # Panics
/// If there are other channels, or the weights are not in float.
pub fn linear_to_int4(linear: &Linear, mean_squares: &[f32]) -> Linear {
    let Weight::Float(float) = &linear.weight else {
        panic!("the weights are in float")
    };
    let weight = Weight::Float(
        float
            .to_int4(Some(mean_squares))
            .unwrap_or_else(|| float.widened()),
    );
    Linear {
        weight,
        decode_weight: None,
        bias: linear.bias.clone(),
    }
}

/// The output matrix in the given format.
pub fn quantize_output(output: &Linear, weights: OutputWeights) -> Linear {
    match (&output.weight, weights) {
        (Weight::Float(float), OutputWeights::Int8) => Linear {
            weight: Weight::Float(float.to_int8()),
            decode_weight: None,
            bias: output.bias.clone(),
        },
        // A package has no quantized blocks.
        (Weight::Float(float), OutputWeights::Float) if float.is_in_blocks() => Linear {
            weight: Weight::Float(float.widened()),
            decode_weight: None,
            bias: output.bias.clone(),
        },
        _ => output.clone(),
    }
}
