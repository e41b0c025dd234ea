//! The number formats of a package's tensors.

use triad_kernels::int4;
use triad_model::safetensors::Element;
use triad_model::tensor::{BlockFormat, Format};

use super::layers::BitsOfLayers;
use crate::quantization::{DecodeWeights, LinearFormat, OutputWeights, WeightBits};

/// The number formats that a package can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formats {
    /// Formats of the linear layers of the blocks.
    pub linears: LinearFormat,
    /// In W8A8, the weights of decode.
    pub decode: DecodeWeights,
    /// In W4A16 with a budget, the bits of each layer: exactly those of the model.
    pub bits: Option<BitsOfLayers>,
    /// The format of the output matrix.
    pub output: OutputFormat,
    /// The format in the model's file.
    pub embedding: Format,
    /// The formats of inputs by token, if the model has them.
    pub token_inputs: Option<TokenInputFormats>,
}

/// The format of the output matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// A float.
    Float(Element),
    /// Integers with scales.
    Bits(WeightBits),
}

impl OutputFormat {
    /// Returns the name in `package.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float(element) => element.name(),
            Self::Bits(WeightBits::Four) => "I4",
            Self::Bits(WeightBits::Five) => BlockFormat::Q5_0.name(),
            Self::Bits(WeightBits::Eight) => Element::I8.name(),
            Self::Bits(WeightBits::Stored(format)) => format.name(),
        }
    }
}

/// The number formats of inputs by token, which are not quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenInputFormats {
    /// The format of the table in the model's file.
    pub table: Format,
    /// A float, in which all matrices are.
    pub matrices: Element,
}

/// Returns whether an INT8 linear layer has a second copy of its weights in INT4.
pub fn has_int4(decode: DecodeWeights, in_features: usize) -> bool {
    decode == DecodeWeights::Int4 && fits_int4(in_features)
}

/// Returns whether the weights of a linear layer can be INT4: rows must be whole groups.
pub fn fits_int4(in_features: usize) -> bool {
    in_features.is_multiple_of(int4::GROUP)
}

/// Returns the output matrix's format for `weights`, if the model's file has `stored`.
pub fn output_format(weights: OutputWeights, stored: Element) -> OutputFormat {
    match weights {
        OutputWeights::Int8 => OutputFormat::Bits(WeightBits::Eight),
        OutputWeights::Float => OutputFormat::Float(stored),
    }
}
