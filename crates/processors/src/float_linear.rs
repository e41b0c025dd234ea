//! Linear layers that read float activations, which devices multiply next to other processors.

use std::sync::Arc;

use triad_kernels::{Matrix, OutputMut, Phase, int4};

use crate::error::{Error, Result};
use crate::layer_format::LayerFormat;

/// Weights of one linear layer that reads floats. A program may keep them and share them with other users.
pub trait FloatLayer: Send + Sync {
    /// Returns the weight `[out_features, in_features]`, in the format in which it is stored.
    fn weight(&self) -> Matrix<'_>;

    /// Returns the number of output features.
    fn out_features(&self) -> usize;

    /// Returns the bias `[out_features]`, if the layer has one.
    fn bias(&self) -> Option<&[f32]> {
        None
    }
}

/// Linear layers that read the same float input.
#[derive(Clone)]
pub struct FloatLinear {
    /// Features of the input.
    pub in_features: usize,
    /// One or more layers. Each has an f32 output `[rows, out_features]`.
    pub layers: Vec<Arc<dyn FloatLayer>>,
}

/// Linear layers that are ready to run on one device, which owns what it needs.
pub trait FloatProgram: Send {
    /// Multiplies `x[rows, in_features]` by the layers and adds their biases. `outputs` has an output
    /// `[rows, out_features]` for each layer, with any stride between rows. The `phase` selects the order of sums on a
    /// CPU.
    ///
    /// # Errors
    /// If the shapes of input or outputs are not those of the program, or the device fails.
    fn run(&mut self, x: &[f32], phase: Phase, outputs: &mut [OutputMut]) -> Result<()>;
}

impl FloatLinear {
    /// Returns the features of each output.
    pub fn outputs(&self) -> Vec<usize> {
        self.layers
            .iter()
            .map(|layer| layer.out_features())
            .collect()
    }

    /// Returns the formats of the layers, each once.
    pub fn formats(&self) -> impl Iterator<Item = LayerFormat> {
        let has = |format: &LayerFormat| {
            let mut layers = self.layers.iter();
            layers.any(|layer| LayerFormat::with_float_inputs(layer.weight()) == *format)
        };
        LayerFormat::ALL.into_iter().filter(has)
    }

    /// Checks that all parts are consistent.
    fn check(&self) -> Result<()> {
        let wrong = |part: String, found: String, expected: String| {
            Err(Error::Subgraph {
                part,
                found,
                expected,
            })
        };
        if self.layers.is_empty() || self.in_features == 0 {
            let found = format!("{} layers of {}", self.layers.len(), self.in_features);
            let expected = "one at least, of one feature at least".to_owned();
            return wrong(
                "layers with their input features".to_owned(),
                found,
                expected,
            );
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let (out_features, in_features) = (layer.out_features(), self.in_features);
            let of = |part: &str| format!("{part} of layer {index}");
            if out_features == 0 {
                let expected = "one at least".to_owned();
                return wrong(of("output features"), "none".to_owned(), expected);
            }
            let Some(elements) = out_features.checked_mul(in_features) else {
                let found = format!("{out_features} by {in_features}");
                return wrong(of("shape"), found, "one that memory holds".to_owned());
            };
            // Each storage with its numbers and scales, and those of the shape.
            let (found, expected) = match layer.weight() {
                Matrix::F32(values) => ((values.len(), 0), (elements, 0)),
                Matrix::F16(values) => ((values.len(), 0), (elements, 0)),
                Matrix::Bf16(values) => ((values.len(), 0), (elements, 0)),
                Matrix::Int8 { values, scales } => {
                    ((values.len(), scales.len()), (elements, out_features))
                }
                Matrix::Int4 { values, scales } => {
                    if !in_features.is_multiple_of(int4::GROUP) {
                        let expected = format!("a multiple of {}", int4::GROUP);
                        return wrong(of("input features"), in_features.to_string(), expected);
                    }
                    let numbers = (elements / 2, elements / int4::GROUP);
                    ((values.len(), scales.len()), numbers)
                }
                Matrix::Blocks(blocks) => {
                    let of_block = blocks.format.elements();
                    if !in_features.is_multiple_of(of_block) {
                        let expected = format!("a multiple of {of_block}");
                        return wrong(of("input features"), in_features.to_string(), expected);
                    }
                    ((blocks.elements(), 0), (elements, 0))
                }
            };
            if found != expected {
                let text = |(numbers, scales)| format!("{numbers} numbers and {scales} scales");
                return wrong(of("weight"), text(found), text(expected));
            }
            if let Some(bias) = layer.bias().filter(|bias| bias.len() != out_features) {
                let expected = out_features.to_string();
                return wrong(of("bias"), bias.len().to_string(), expected);
            }
        }
        Ok(())
    }
}

/// The shapes that a program of float layers was prepared for.
#[derive(Debug)]
pub(crate) struct FloatShapes {
    pub rows: usize,
    pub in_features: usize,
    /// Features of each output.
    pub outputs: Vec<usize>,
}

impl FloatShapes {
    /// Checks `linear` and returns its shapes.
    pub fn new(linear: &FloatLinear, rows: usize) -> Result<Self> {
        linear.check()?;
        if rows == 0 {
            let prepared = rows;
            return Err(Error::Rows { rows, prepared });
        }
        Ok(Self {
            rows,
            in_features: linear.in_features,
            outputs: linear.outputs(),
        })
    }

    /// Checks that input and outputs fit the program, and returns their rows.
    pub fn check(&self, x: &[f32], outputs: &[OutputMut]) -> Result<usize> {
        let rows = x.len() / self.in_features;
        if rows == 0 || rows > self.rows {
            let prepared = self.rows;
            return Err(Error::Rows { rows, prepared });
        }
        if x.len() != rows * self.in_features {
            return Err(Error::Input {
                found: format!("{} numbers", x.len()),
                expected: format!("rows of {}", self.in_features),
            });
        }
        let expected = self.outputs.iter().map(|features| [rows, *features]);
        let found = outputs.iter().map(|out| [out.rows(), out.columns()]);
        if !found.clone().eq(expected.clone()) {
            return Err(Error::Outputs {
                found: found.collect(),
                expected: expected.collect(),
            });
        }
        Ok(rows)
    }
}
