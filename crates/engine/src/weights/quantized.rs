//! From float weights to INT8 ones.

use super::{Block, Int8Matrix, Linear, Weight, Weights};
use crate::linear_input::LinearInput;
use crate::quantize::{DecodeWeights, InputQuantization, OutputWeights, Quantization};

impl Weights {
    /// These float weights with every linear layer in INT8, on the current rayon pool. Norms and embedding are shared.
    ///
    /// # Panics
    /// If `quantization` is for another number of blocks.
    pub fn quantize(&self, quantization: &Quantization) -> Self {
        assert_eq!(self.blocks.len(), quantization.blocks.len(), "blocks");
        let block = |(block, inputs): (&Block, &[InputQuantization; 4])| Block {
            inputs: Some(inputs.clone()),
            linears: block
                .linears
                .iter()
                .map(|(name, linear)| {
                    let input = &inputs[LinearInput::of(*name).index()];
                    (*name, quantize_linear(linear, input, quantization))
                })
                .collect(),
            ..block.clone()
        };
        Self {
            embedding: self.embedding.clone(),
            blocks: self.blocks.iter().zip(&quantization.blocks).map(block).collect(),
            output_norm: self.output_norm.clone(),
            output: quantize_output(&self.output, quantization.output_weights),
        }
    }

    /// These INT8 weights with other clip thresholds and shadows. The weights themselves are shared.
    ///
    /// # Panics
    /// If `quantization` is for another number of blocks.
    pub fn with_inputs(&self, quantization: &Quantization) -> Self {
        assert_eq!(self.blocks.len(), quantization.blocks.len(), "blocks");
        let blocks = self.blocks.iter().zip(&quantization.blocks);
        Self {
            embedding: self.embedding.clone(),
            blocks: blocks.map(|(block, inputs)| Block { inputs: Some(inputs.clone()), ..block.clone() }).collect(),
            output_norm: self.output_norm.clone(),
            output: self.output.clone(),
        }
    }
}

/// One linear layer of a block in INT8; one that is in INT8 already stays as it is.
pub fn quantize_linear(linear: &Linear, input: &InputQuantization, quantization: &Quantization) -> Linear {
    let Weight::Float(float) = &linear.weight else { return linear.clone() };
    let matrix = Int8Matrix::quantize(float, quantization.weight_scales, input.smoothing());
    let matrix = match input {
        InputQuantization::Dynamic { .. } => matrix.with_float(float),
        InputQuantization::Static { .. } => matrix,
    };
    let decode_weight = match quantization.decode_weights {
        DecodeWeights::Int8 => None,
        DecodeWeights::Int4 => float.to_int4(),
    };
    Linear { weight: Weight::Int8(matrix), decode_weight, bias: linear.bias.clone() }
}

/// The output matrix in the format asked for.
pub fn quantize_output(output: &Linear, weights: OutputWeights) -> Linear {
    match (&output.weight, weights) {
        (Weight::Float(float), OutputWeights::Int8) => {
            Linear { weight: Weight::Float(float.to_int8()), decode_weight: None, bias: output.bias.clone() }
        }
        _ => output.clone(),
    }
}
