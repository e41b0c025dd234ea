//! The INT8 subgraphs that devices prepare, with their weights.

use std::sync::Arc;

use triad_kernels::activation::Activation;
use triad_kernels::fixed_point::{FixedPoint, Middle, Scales};
use triad_kernels::int8::{Int8Weight, MAX_IN_FEATURES, packed_len};

use crate::error::{Error, Result};

/// Largest magnitude of an INT8 number.
pub(crate) const LARGEST: f32 = 127.0;

/// Bytes of an f32 number.
const F32: usize = 4;

/// Weights of one linear layer. A program may keep them and share them with other users.
pub trait Layer: Send + Sync {
    /// Returns the weight `[out_features, in_features]`.
    fn weight(&self) -> Int8Weight<'_>;

    /// Returns the bias `[out_features]`, if the layer has one.
    fn bias(&self) -> Option<&[f32]> {
        None
    }
}

/// A static INT8 subgraph with its weights (llm.npu, §3.2), which a device prepares.
#[derive(Clone)]
pub enum DeviceSubgraph {
    /// Query, key and value, or attention's output layer.
    Linear(Linear),
    /// Up and gate, activation, requantization, down.
    FeedForward(FeedForward),
}

/// Linear layers that read the same input.
#[derive(Clone)]
pub struct Linear {
    /// Static scale of the input.
    pub input_scale: f32,
    /// One or more layers. Each has an f32 output `[rows, out_features]`.
    pub layers: Vec<Arc<dyn Layer>>,
}

/// `down(quantize(activation(gate(x)) · up(x)))`, or without a gate `down(quantize(activation(up(x))))`.
#[derive(Clone)]
pub struct FeedForward {
    /// Static scale of the input.
    pub input_scale: f32,
    /// `[width, hidden]`.
    pub up: Arc<dyn Layer>,
    /// `[width, hidden]`.
    pub gate: Option<Arc<dyn Layer>>,
    /// Activation function.
    pub activation: Activation,
    /// Static scale of down's input.
    pub inner_scale: f32,
    /// Smoothing factors `[width]` on down's input. Down's weights contain their inverse.
    pub smoothing: Option<Arc<[f32]>>,
    /// `[hidden, width]`.
    pub down: Arc<dyn Layer>,
    /// Whether down's input before smoothing is an output, too: `[rows, width]` in f32, for down's shadow.
    pub return_inner: bool,
    /// Whether everything between the matmuls is computed in integers as [`triad_kernels::fixed_point`] defines it,
    /// instead of f32. Then there are no f32 inner activations to return, and GELU with the error function is not
    /// supported.
    pub fixed_point: bool,
}

impl FeedForward {
    /// Returns the fixed-point parameters of the part between the matmuls.
    ///
    /// # Errors
    /// If fixed point does not support the activation, or a number is not finite.
    ///
    /// # Panics
    /// If the parts of the subgraph contradict each other.
    pub fn fixed_point(&self) -> Result<FixedPoint> {
        fn scales(layer: &Arc<dyn Layer>) -> Scales<'_> {
            let weight = layer.weight();
            Scales {
                in_features: weight.in_features,
                scales: weight.scales,
                bias: layer.bias(),
            }
        }
        let middle = Middle {
            input_scale: self.input_scale,
            up: scales(&self.up),
            gate: self.gate.as_ref().map(scales),
            activation: self.activation,
            smoothing: self.smoothing.as_deref(),
            inner_scale: self.inner_scale,
        };
        FixedPoint::new(&middle).map_err(|reason| Error::Subgraph {
            part: "fixed point".to_owned(),
            found: reason.to_string(),
            expected: "SiLU or GELU in its tanh form, and numbers that are finite".to_owned(),
        })
    }
}

impl DeviceSubgraph {
    /// Returns the number of input features.
    pub fn in_features(&self) -> usize {
        self.layers()
            .next()
            .map_or(0, |(_, layer)| layer.weight().in_features)
    }

    /// Returns the static scale of the input.
    pub fn input_scale(&self) -> f32 {
        match self {
            Self::Linear(linear) => linear.input_scale,
            Self::FeedForward(feed_forward) => feed_forward.input_scale,
        }
    }

    /// Returns the features of each output: of every linear layer; or of down and, if it is returned, of down's input.
    pub fn outputs(&self) -> Vec<usize> {
        match self {
            Self::Linear(linear) => linear
                .layers
                .iter()
                .map(|layer| layer.weight().out_features)
                .collect(),
            Self::FeedForward(feed_forward) => {
                let down = feed_forward.down.weight();
                let inner = feed_forward.return_inner.then_some(down.in_features);
                [down.out_features].into_iter().chain(inner).collect()
            }
        }
    }

    /// Returns the bytes of the subgraph when it is built for `rows` rows: weights, inputs, outputs and intermediates,
    /// as `triad_plan::graph::Subgraph::graph_bytes` counts them.
    pub fn bytes(&self, rows: usize) -> usize {
        let of_layer = |layer: &dyn Layer| {
            let weight = layer.weight();
            let per_output = if layer.bias().is_some() { 3 } else { 2 };
            weight.out_features * (weight.in_features + per_output * F32)
        };
        let weights: usize = self.layers().map(|(_, layer)| of_layer(layer)).sum();
        let outputs: usize = match self {
            Self::Linear(_) => self.outputs().into_iter().sum(),
            Self::FeedForward(feed_forward) => feed_forward.down.weight().out_features,
        };
        let between = match self {
            Self::Linear(_) => 0,
            Self::FeedForward(FeedForward { gate, down, .. }) => {
                let inner = if gate.is_some() { 2 } else { 1 };
                down.weight().in_features * (inner * F32 + 1)
            }
        };
        weights + rows * (self.in_features() + outputs * F32 + between)
    }

    /// Returns all layers with their names.
    pub(crate) fn layers(&self) -> impl Iterator<Item = (String, &dyn Layer)> {
        let (linears, feed_forward) = match self {
            Self::Linear(linear) => (linear.layers.as_slice(), None),
            Self::FeedForward(feed_forward) => (&[][..], Some(feed_forward)),
        };
        let linears = linears
            .iter()
            .enumerate()
            .map(|(index, layer)| (format!("layer {index}"), &**layer));
        let others = feed_forward
            .into_iter()
            .flat_map(|FeedForward { up, gate, down, .. }| {
                [
                    ("up", Some(up)),
                    ("gate", gate.as_ref()),
                    ("down", Some(down)),
                ]
            });
        linears.chain(others.filter_map(|(name, layer)| Some((name.to_owned(), &**layer?))))
    }

    /// Checks that a processor that computes only in f32 can run the subgraph.
    ///
    /// # Errors
    /// If the part between the matmuls requires fixed point.
    #[cfg(any(feature = "gpu", feature = "npu"))]
    pub(crate) fn check_float(&self, processor: &str) -> Result<()> {
        match self {
            Self::FeedForward(feed_forward) if feed_forward.fixed_point => Err(Error::FixedPoint {
                processor: processor.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Checks that all parts are consistent.
    pub(crate) fn check(&self) -> Result<()> {
        let scale = |part: &str, scale: f32| {
            check(
                is_scale(scale),
                part,
                || scale.to_string(),
                "a positive scale to divide by",
            )
        };
        scale("input scale", self.input_scale())?;
        check(
            self.layers().next().is_some(),
            "layers",
            || "none".to_owned(),
            "one at least",
        )?;
        for (name, layer) in self.layers() {
            check_layer(&name, layer)?;
        }
        let features = |part: &str, found: usize, expected: usize| {
            check(
                found == expected,
                part,
                || found.to_string(),
                &expected.to_string(),
            )
        };
        let hidden = self.in_features();
        match self {
            Self::Linear(linear) => {
                for (index, layer) in linear.layers.iter().enumerate() {
                    features(
                        &format!("input features of layer {index}"),
                        layer.weight().in_features,
                        hidden,
                    )?;
                }
            }
            Self::FeedForward(feed_forward) => {
                let FeedForward {
                    up,
                    gate,
                    inner_scale,
                    smoothing,
                    down,
                    ..
                } = feed_forward;
                let width = up.weight().out_features;
                scale("inner scale", *inner_scale)?;
                if let Some(gate) = gate {
                    features("input features of gate", gate.weight().in_features, hidden)?;
                    features("output features of gate", gate.weight().out_features, width)?;
                }
                features("input features of down", down.weight().in_features, width)?;
                if let Some(smoothing) = smoothing {
                    features("factors of smoothing", smoothing.len(), width)?;
                }
                if feed_forward.fixed_point {
                    let found = || "what down reads in f32 as an output".to_owned();
                    check(
                        !feed_forward.return_inner,
                        "fixed point",
                        found,
                        "no such output",
                    )?;
                    feed_forward.fixed_point()?;
                }
            }
        }
        Ok(())
    }
}

/// Returns whether activations can be quantized with this scale.
pub(crate) fn is_scale(scale: f32) -> bool {
    scale.is_normal() && scale > 0.0 && (LARGEST * scale).is_finite()
}

fn check_layer(name: &str, layer: &dyn Layer) -> Result<()> {
    let (weight, bias) = (layer.weight(), layer.bias());
    let (out_features, in_features) = (weight.out_features, weight.in_features);
    let of = |part: &str| format!("{part} of {name}");
    let inputs = || in_features.to_string();
    check(
        (1..=MAX_IN_FEATURES).contains(&in_features),
        &of("input features"),
        inputs,
        &format!("1 to {MAX_IN_FEATURES}"),
    )?;
    check(
        out_features > 0,
        &of("output features"),
        || "none".to_owned(),
        "one at least",
    )?;
    let length = packed_len(out_features, in_features);
    let packed = || format!("{} numbers", weight.packed.len());
    check(
        length == Some(weight.packed.len()),
        &of("packed weight"),
        packed,
        &format!("{length:?}"),
    )?;
    let lengths = [("scales", weight.scales.len()), ("sums", weight.sums.len())];
    let lengths = lengths
        .into_iter()
        .chain(bias.map(|bias| ("bias", bias.len())));
    for (part, length) in lengths {
        check(
            length == out_features,
            &of(part),
            || length.to_string(),
            &out_features.to_string(),
        )?;
    }
    Ok(())
}

fn check(holds: bool, part: &str, found: impl FnOnce() -> String, expected: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::Subgraph {
        part: part.to_owned(),
        found: found(),
        expected: expected.to_owned(),
    })
}
