//! Subgraphs of a model as devices prepare them, with the weights of the model.

use std::ops::Range;
use std::sync::Arc;

use triad_kernels::Matrix;
use triad_kernels::int8::Int8Weight;
use triad_model::description;
use triad_plan::graph::Role;
use triad_processors::model::Int8Input;
use triad_processors::{
    DeviceSubgraph, FeedForward, FixedFeedForward, FloatLayer, FloatLinear, Layer, LayerColumns,
    Linear,
};

use crate::error::{Error, Result, SubgraphError};
use triad_engine::LinearInput;
use triad_engine::Model;
use triad_engine::forward::activation;
use triad_engine::linear::{Layers, columns_of, layers};
use triad_engine::quantization::{INT8_MAX, InputQuantization};
use triad_engine::weights::{Block, Int8Matrix, Weight, WeightMatrix};

/// Layers whose outputs are concatenated, each with the computed features.
pub(super) type Outputs = Vec<(description::Linear, Range<usize>)>;

/// Returns, by block, the feed-forwards of a model that can be computed in fixed point between their products: those
/// that read INT8 with static scales and have no shadow.
pub(super) fn fixed_point(model: &Model) -> Vec<Option<FixedFeedForward>> {
    let of_block = |block| {
        let preparing = Preparing::text_block(model, block);
        if preparing.reads_floats() {
            return None;
        }
        let keeps_shadow =
            [LinearInput::FeedForward, LinearInput::Down].map(|input| preparing.scaled(input));
        let keeps_none = keeps_shadow
            .into_iter()
            .all(|input| input.is_ok_and(|input| !input.has_shadow));
        let subgraph = if keeps_none {
            let described = &model.description().blocks[block].feed_forward;
            preparing.feed_forward(described, false).ok()?
        } else {
            return None;
        };
        FixedFeedForward::new(&subgraph).ok()
    };
    (0..model.description().blocks.len())
        .map(of_block)
        .collect()
}

/// Returns the scale of the input of a role's layers; `None` if they read floats.
///
/// # Errors
/// If they read INT8 with a scale that is not static.
pub(super) fn input_scale(
    model: &Model,
    processor: &str,
    block: usize,
    role: Role,
) -> Result<Option<f32>> {
    let description = model.description();
    let layers = layers(&description.blocks[block], description.hidden, role);
    let (first, _) = layers.first().expect("a role that is products has layers");
    let preparing = Preparing::text_block(model, block);
    if preparing.reads_floats() {
        return Ok(None);
    }
    let scaled = preparing.scaled(LinearInput::read_by(*first));
    scaled
        .map(|scaled| Some(scaled.scale))
        .map_err(|error| refused(processor, block, role, error))
}

/// Returns a static quantization as devices take it; `None` if each token has its own scale.
pub(super) fn int8_input(quantization: &InputQuantization) -> Option<Int8Input<'_>> {
    match quantization {
        InputQuantization::Static {
            clip,
            shadow,
            smoothing,
        } => Some(Int8Input {
            scale: clip / INT8_MAX,
            smoothing: smoothing.as_deref(),
            has_shadow: *shadow,
        }),
        InputQuantization::Dynamic { .. } => None,
    }
}

/// Returns whether a device has refused a subgraph for want of memory.
pub(super) fn has_no_room(error: &SubgraphError) -> bool {
    use triad_processors::Error::{GpuMemory, HexagonMemory, WindowFull};
    matches!(
        error,
        SubgraphError::Processor(WindowFull { .. } | GpuMemory { .. } | HexagonMemory { .. })
    )
}

/// Returns whether a device has refused a subgraph for its shape, or has no graph of it that was compiled ahead.
pub(super) fn is_of_shape(error: &SubgraphError) -> bool {
    use triad_processors::Error::{Contexts, Subgraph};
    matches!(
        error,
        SubgraphError::Processor(Subgraph { .. } | Contexts { .. })
    )
}

pub(super) fn refused(processor: &str, block: usize, role: Role, source: SubgraphError) -> Error {
    Error::Subgraph {
        processor: processor.to_owned(),
        block,
        role: role.name(),
        source: Box::new(source),
    }
}

/// A block whose programs are being prepared, of a text model or of its encoder of pictures.
pub(super) struct Preparing<'a>(pub(super) &'a Block);

impl<'a> Preparing<'a> {
    pub(super) fn text_block(model: &'a Model, block: usize) -> Self {
        Self(&model.weights().blocks[block])
    }

    /// Returns some columns of layers that read one input, concatenated.
    pub(super) fn columns_of(
        &self,
        layers: &Layers,
        columns: &Range<usize>,
    ) -> Result<(Outputs, DeviceSubgraph), SubgraphError> {
        let (first, _) = layers.first().expect("a role that is products has layers");
        let input_scale = self.scaled(LinearInput::read_by(*first))?.scale;
        let outputs: Vec<_> = columns_of(layers, columns).into_vec();
        let layers = outputs
            .iter()
            .map(|(linear, columns)| self.columns(*linear, columns));
        let layers = layers.collect::<triad_processors::Result<_>>()?;
        Ok((
            outputs,
            DeviceSubgraph::Linear(Linear {
                input_scale,
                layers,
            }),
        ))
    }

    /// Returns whether the layers of the block read floats.
    pub(super) fn reads_floats(&self) -> bool {
        self.0.inputs.is_none()
    }

    /// Returns some columns of layers that read one input, concatenated. The layers read floats.
    pub(super) fn floats(&self, layers: &Layers, columns: &Range<usize>) -> (Outputs, FloatLinear) {
        let outputs: Vec<_> = columns_of(layers, columns).into_vec();
        let linears = &self.0.linears;
        let shared = outputs.iter().map(|(name, columns)| {
            let Weight::Float(weight) = &linears[name].weight else {
                unreachable!("what reads floats has no weights for INT8")
            };
            SharedFloats {
                weight: weight.clone(),
                bias: linears[name].bias.clone(),
                columns: columns.clone(),
            }
        });
        let shared: Vec<_> = shared.collect();
        let in_features = shared.first().map_or(0, |layer| layer.weight.in_features());
        let shared = shared.into_iter();
        let linear = FloatLinear {
            in_features,
            layers: shared
                .map(|layer| Arc::new(layer) as Arc<dyn FloatLayer>)
                .collect(),
        };
        (outputs, linear)
    }

    pub(super) fn feed_forward(
        &self,
        described: &description::FeedForward,
        fixed_point: bool,
    ) -> Result<FeedForward, SubgraphError> {
        let (input, inner) = (
            self.scaled(LinearInput::FeedForward)?,
            self.scaled(LinearInput::Down)?,
        );
        debug_assert!(
            !input.has_shadow,
            "what is missing is added before the activation: the feed-forward is split"
        );
        Ok(FeedForward {
            input_scale: input.scale,
            up: self.layer(description::Linear::Up),
            gate: described
                .gated
                .then(|| self.layer(description::Linear::Gate)),
            activation: activation(described.activation),
            inner_scale: inner.scale,
            smoothing: inner.smoothing.map(Arc::from),
            down: self.layer(description::Linear::Down),
            return_inner: inner.has_shadow,
            fixed_point,
        })
    }

    fn scaled(&self, input: LinearInput) -> Result<Int8Input<'_>, SubgraphError> {
        let inputs = self.0.inputs.as_ref();
        let inputs = inputs.expect("layers that read INT8");
        int8_input(&inputs[input.index()]).ok_or(SubgraphError::DynamicScales)
    }

    fn columns(
        &self,
        linear: description::Linear,
        columns: &Range<usize>,
    ) -> triad_processors::Result<Arc<dyn Layer>> {
        let layer = self.layer(linear);
        if *columns == (0..layer.weight().out_features) {
            return Ok(layer);
        }
        Ok(Arc::new(LayerColumns::new(layer, columns.clone())?))
    }

    fn layer(&self, name: description::Linear) -> Arc<dyn Layer> {
        let linear = &self.0.linears[&name];
        let Weight::Int8(weight) = &linear.weight else {
            unreachable!("what reads INT8 has INT8 weights")
        };
        Arc::new(SharedLayer {
            weight: weight.clone(),
            bias: linear.bias.clone(),
        })
    }
}

/// A layer of the model; its weights are shared.
struct SharedLayer {
    weight: Int8Matrix,
    bias: Option<Vec<f32>>,
}

impl Layer for SharedLayer {
    fn weight(&self) -> Int8Weight<'_> {
        self.weight.view()
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }
}

/// Some columns of a layer of the model that reads floats; its weights are shared.
struct SharedFloats {
    weight: WeightMatrix,
    bias: Option<Vec<f32>>,
    columns: Range<usize>,
}

impl FloatLayer for SharedFloats {
    fn weight(&self) -> Matrix<'_> {
        let in_features = self.weight.in_features();
        self.weight.view().rows(self.columns.clone(), in_features)
    }

    fn out_features(&self) -> usize {
        self.columns.len()
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref().map(|bias| &bias[self.columns.clone()])
    }
}
