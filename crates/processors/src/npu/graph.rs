//! Encodes a subgraph as an ONNX graph of static shapes, with its weights as constants.
//!
//! The input is unsigned with zero point 128, since x86 integer units multiply unsigned by signed numbers. The
//! [`Formulation`]s express the same computation in different operators.

use prost::Message;
use triad_kernels::activation::Activation;
use triad_kernels::int8::{Int8Weight, unpack};

use super::onnx::{
    Attribute, DataType, Graph, MICROSOFT, Model, Node, PLAIN, Tensor, ValueInfo, Versions, WORDS,
};
use super::sums::{MIDDLE, graph_scales};
use crate::error::{Error, Result};
use crate::subgraph::{DeviceSubgraph, FeedForward, LARGEST, Layer};

/// The zero point of the input.
pub(super) const ZERO: u8 = 128;
/// The unit of an input in 16 bits, in steps of the input: its lower 8 bits are zero.
const WIDE_STEP: f32 = 1.0 / 256.0;
/// Name of the graph's input.
pub(super) const INPUT: &str = "x";

/// The operators in which a graph expresses INT8 computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Formulation {
    /// ONNX Runtime's own integer matmuls, whose epilogue scales and adds the bias. They are exact, and the fastest of
    /// its CPU provider.
    Integer,
    /// Float operators between `QuantizeLinear` and `DequantizeLinear`. Device providers recognize the pattern as an
    /// integer matmul. A provider that does not computes it in float, with float rounding.
    QuantizeDequantize,
    /// Linear layers in integers throughout, without whole feed-forwards. Weights have 8 bits, activations 16. Each
    /// output is a sum, divided by a power of two and rounded to 16 bits (module `sums`); the host applies scales and
    /// bias. Qualcomm's provider multiplies this form in integers. It refuses the others, or computes them in float.
    RoundedSums,
}

impl Formulation {
    /// Returns whether it has whole feed-forwards.
    pub(super) fn has_feed_forwards(self) -> bool {
        self != Self::RoundedSums
    }

    /// Returns the versions of a graph's operators and format.
    fn versions(self) -> Versions {
        match self {
            Self::Integer | Self::QuantizeDequantize => PLAIN,
            Self::RoundedSums => WORDS,
        }
    }

    /// Returns the types of a graph's input and outputs.
    fn types(self) -> (DataType, DataType) {
        match self {
            Self::Integer | Self::QuantizeDequantize => (DataType::Uint8, DataType::Float),
            Self::RoundedSums => (DataType::Uint16, DataType::Uint16),
        }
    }
}

/// Encodes the graph of `subgraph` for the given rows, whose number is the product of `rows`. Each activation is
/// `[rows.., features]`; the values do not depend on how the rows are arranged. Outputs are named `y0`, `y1`, … in the
/// subgraph's order.
///
/// # Errors
/// If a weight or a bias is not finite, or activations between layers might not be: integers would hide it. If the
/// formulation does not hold the sums of so many input features.
pub(super) fn encode(
    subgraph: &DeviceSubgraph,
    rows: &[usize],
    formulation: Formulation,
) -> Result<Vec<u8>> {
    let graph = graph(subgraph, rows, formulation)?;
    Ok(Model::new(graph, formulation.versions()).encode_to_vec())
}

/// Returns the graph that [`encode`] encodes.
///
/// # Errors
/// As [`encode`].
pub(super) fn graph(
    subgraph: &DeviceSubgraph,
    rows: &[usize],
    formulation: Formulation,
) -> Result<Graph> {
    let mut builder = Builder {
        formulation,
        graph: Graph {
            name: "subgraph".to_owned(),
            ..Graph::default()
        },
    };
    let (input_type, output_type) = formulation.types();
    let of_features = |features: usize| [rows, &[features]].concat();
    builder.graph.input.push(ValueInfo::new(
        INPUT,
        input_type,
        &of_features(subgraph.in_features()),
    ));
    for (index, features) in subgraph.outputs().into_iter().enumerate() {
        builder.graph.output.push(ValueInfo::new(
            &output(index),
            output_type,
            &of_features(features),
        ));
    }
    builder.constant(Tensor::new("zero", &[], DataType::Uint8, vec![ZERO]));
    let input = builder.quantized(INPUT, "input", subgraph.input_scale());
    match subgraph {
        DeviceSubgraph::Linear(linear) => {
            for (index, layer) in linear.layers.iter().enumerate() {
                builder.linear(&format!("layer{index}"), &**layer, &input, &output(index))?;
            }
        }
        DeviceSubgraph::FeedForward(feed_forward) => builder.feed_forward(feed_forward, &input)?,
    }
    Ok(builder.graph)
}

/// Returns the name of an output of the graph.
pub(super) fn output(index: usize) -> String {
    format!("y{index}")
}

struct Builder {
    formulation: Formulation,
    graph: Graph,
}

/// Input of linear layers.
struct Quantized {
    /// The tensor that a matmul reads: integers or floats, depending on the formulation.
    name: String,
    /// Name of the constant with the scale.
    scale_name: String,
    scale: f32,
}

impl Builder {
    fn constant(&mut self, tensor: Tensor) {
        self.graph.initializer.push(tensor);
    }

    fn scalar(&mut self, name: &str, value: f32) -> String {
        self.constant(Tensor::floats(name, &[], &[value]));
        name.to_owned()
    }

    fn node(
        &mut self,
        op_type: &str,
        domain: &str,
        inputs: &[&str],
        output: &str,
        attribute: Vec<Attribute>,
    ) {
        self.graph.node.push(Node {
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            name: format!("{op_type} {output}"),
            op_type: op_type.to_owned(),
            attribute,
            domain: domain.to_owned(),
        });
    }

    /// Returns the integers `x` as an input of linear layers.
    fn quantized(&mut self, x: &str, name: &str, scale: f32) -> Quantized {
        let scale_name = self.scalar(&format!("{name}.scale"), scale);
        let name = match self.formulation {
            Formulation::Integer => x.to_owned(),
            Formulation::QuantizeDequantize => {
                let float = format!("{name}.float");
                self.node(
                    "DequantizeLinear",
                    "",
                    &[x, &scale_name, "zero"],
                    &float,
                    vec![],
                );
                float
            }
            Formulation::RoundedSums => {
                let middle = MIDDLE.to_le_bytes().to_vec();
                self.constant(Tensor::new("middle", &[], DataType::Uint16, middle));
                self.scalar("one", 1.0);
                let (step, float) = (self.scalar("step", WIDE_STEP), format!("{name}.float"));
                self.node(
                    "DequantizeLinear",
                    "",
                    &[x, &step, "middle"],
                    &float,
                    vec![],
                );
                float
            }
        };
        Quantized {
            name,
            scale_name,
            scale,
        }
    }

    /// Adds one linear layer, and returns the largest magnitude that its outputs can have.
    fn linear(
        &mut self,
        name: &str,
        layer: &dyn Layer,
        input: &Quantized,
        out: &str,
    ) -> Result<f32> {
        let (weight, bias) = (layer.weight(), layer.bias());
        let largest = largest_output(name, weight, bias, input.scale)?;
        let part = |part: &str| format!("{name}.{part}");
        let (out_features, in_features) = (weight.out_features, weight.in_features);
        self.constant(Tensor::new(
            &part("weight"),
            &[in_features, out_features],
            DataType::Int8,
            transposed(weight),
        ));
        let is_rounded = self.formulation == Formulation::RoundedSums;
        let units = is_rounded.then(|| graph_scales(name, weight)).transpose()?;
        let scales = units.as_deref().unwrap_or(weight.scales);
        let bias = bias.filter(|_| !is_rounded);
        self.constant(Tensor::floats(&part("scales"), &[out_features], scales));
        if let Some(bias) = bias {
            self.constant(Tensor::floats(&part("bias"), &[out_features], bias));
        }
        match self.formulation {
            Formulation::Integer => {
                let bias_name = bias.map_or(String::new(), |_| part("bias"));
                let inputs = [
                    &input.name,
                    &part("weight"),
                    &input.scale_name,
                    &part("scales"),
                    "zero",
                    "",
                    &bias_name,
                ];
                self.node("MatMulIntegerToFloat", MICROSOFT, &inputs, out, vec![]);
            }
            Formulation::QuantizeDequantize | Formulation::RoundedSums => {
                self.constant(Tensor::new(
                    &part("zeros"),
                    &[out_features],
                    DataType::Int8,
                    vec![0; out_features],
                ));
                let inputs = ["weight", "scales", "zeros"].map(part);
                let inputs: Vec<_> = inputs.iter().map(String::as_str).collect();
                self.node(
                    "DequantizeLinear",
                    "",
                    &inputs,
                    &part("float"),
                    vec![Attribute::of_int("axis", 1)],
                );
                let product = if bias.is_some() || is_rounded {
                    part("product")
                } else {
                    out.to_owned()
                };
                self.node(
                    "MatMul",
                    "",
                    &[&input.name, &part("float")],
                    &product,
                    vec![],
                );
                if is_rounded {
                    self.node(
                        "QuantizeLinear",
                        "",
                        &[&product, "one", "middle"],
                        out,
                        vec![],
                    );
                } else if bias.is_some() {
                    self.node("Add", "", &[&product, &part("bias")], out, vec![]);
                }
            }
        }
        Ok(largest)
    }

    fn feed_forward(&mut self, feed_forward: &FeedForward, input: &Quantized) -> Result<()> {
        let FeedForward {
            up,
            gate,
            activation,
            inner_scale,
            smoothing,
            down,
            return_inner,
            ..
        } = feed_forward;
        let inner = if *return_inner {
            output(1)
        } else {
            "inner".to_owned()
        };
        let largest_up = self.linear("up", &**up, input, "up")?;
        let largest = match gate {
            Some(gate) => {
                let largest_gate = self.linear("gate", &**gate, input, "gate")?;
                self.activation(*activation, "gate", "activated");
                self.node("Mul", "", &["activated", "up"], &inner, vec![]);
                largest_gate * largest_up
            }
            None => {
                self.activation(*activation, "up", &inner);
                largest_up
            }
        };
        let quantized = self.requantize(&inner, *inner_scale, smoothing.as_deref(), largest)?;
        self.linear("down", &**down, &quantized, &output(0))?;
        Ok(())
    }

    fn activation(&mut self, activation: Activation, x: &str, out: &str) {
        match (activation, self.formulation) {
            (Activation::Silu, Formulation::Integer) => {
                self.node(
                    "QuickGelu",
                    MICROSOFT,
                    &[x],
                    out,
                    vec![Attribute::of_float("alpha", 1.0)],
                );
            }
            (Activation::Silu, _) => {
                let sigmoid = format!("{out}.sigmoid");
                self.node("Sigmoid", "", &[x], &sigmoid, vec![]);
                self.node("Mul", "", &[x, &sigmoid], out, vec![]);
            }
            (Activation::ReluSquared, _) => {
                let positive = format!("{out}.positive");
                self.node("Relu", "", &[x], &positive, vec![]);
                self.node("Mul", "", &[&positive, &positive], out, vec![]);
            }
            (Activation::GeluTanh | Activation::Gelu, _) => {
                let approximate = if activation == Activation::GeluTanh {
                    "tanh"
                } else {
                    "none"
                };
                self.node(
                    "Gelu",
                    "",
                    &[x],
                    out,
                    vec![Attribute::of_string("approximate", approximate)],
                );
            }
        }
    }

    /// Requantizes in the steps in which Triad's kernels round: factors, then 1 / scale, then to integers from −127 to
    /// 127.
    fn requantize(
        &mut self,
        x: &str,
        scale: f32,
        smoothing: Option<&[f32]>,
        largest: f32,
    ) -> Result<Quantized> {
        let largest_factor =
            smoothing
                .unwrap_or(&[1.0])
                .iter()
                .fold(0.0, |largest: f32, factor| {
                    // This treats NaN as larger than any number.
                    if factor.abs() <= largest {
                        largest
                    } else {
                        factor.abs()
                    }
                });
        finite(
            "activations between the layers",
            largest * largest_factor * scale.recip(),
        )?;
        let mut x = x.to_owned();
        if let Some(smoothing) = smoothing {
            self.constant(Tensor::floats(
                "inner.smoothing",
                &[smoothing.len()],
                smoothing,
            ));
            self.node(
                "Mul",
                "",
                &[&x, "inner.smoothing"],
                "inner.smoothed",
                vec![],
            );
            x = "inner.smoothed".to_owned();
        }
        let inverse = self.scalar("inner.inverse", scale.recip());
        let bounds = [
            self.scalar("inner.lowest", -LARGEST),
            self.scalar("inner.highest", LARGEST),
        ];
        let one = self.scalar("inner.one", 1.0);
        self.node("Mul", "", &[&x, &inverse], "inner.scaled", vec![]);
        self.node(
            "Clip",
            "",
            &["inner.scaled", &bounds[0], &bounds[1]],
            "inner.clipped",
            vec![],
        );
        self.node(
            "QuantizeLinear",
            "",
            &["inner.clipped", &one, "zero"],
            "inner.quantized",
            vec![],
        );
        Ok(self.quantized("inner.quantized", "inner", scale))
    }
}

/// Returns the largest magnitude that an output of the layer can have, over all inputs.
fn largest_output(
    name: &str,
    weight: Int8Weight,
    bias: Option<&[f32]>,
    input_scale: f32,
) -> Result<f32> {
    let largest_sum = LARGEST * (LARGEST + 1.0) * weight.in_features as f32;
    let mut largest = 0.0f32;
    for (index, scale) in weight.scales.iter().enumerate() {
        let bias = bias.map_or(0.0, |bias| bias[index]);
        let output = finite(
            &format!("outputs of {name}"),
            largest_sum * (input_scale * scale).abs() + bias.abs(),
        )?;
        largest = largest.max(output);
    }
    Ok(largest)
}

/// Returns `largest` if it is finite. Otherwise integers would hide results that are not finite.
fn finite(part: &str, largest: f32) -> Result<f32> {
    if largest.is_finite() {
        return Ok(largest);
    }
    Err(Error::Subgraph {
        part: part.to_owned(),
        found: format!("up to {largest}"),
        expected: "finite scales, factors and biases, and no more than f32 holds".to_owned(),
    })
}

/// Returns the weight as `[in_features, out_features]`.
fn transposed(weight: Int8Weight) -> Vec<u8> {
    let (out_features, in_features) = (weight.out_features, weight.in_features);
    let mut row_major = vec![0; out_features * in_features];
    unpack(weight, &mut row_major);
    let mut transposed = vec![0; row_major.len()];
    // Copies square blocks, so that neither side leaves the cache.
    const SIDE: usize = 64;
    for first_row in (0..out_features).step_by(SIDE) {
        for first_column in (0..in_features).step_by(SIDE) {
            for row in first_row..(first_row + SIDE).min(out_features) {
                for column in first_column..(first_column + SIDE).min(in_features) {
                    transposed[column * out_features + row] =
                        row_major[row * in_features + column] as u8;
                }
            }
        }
    }
    transposed
}
