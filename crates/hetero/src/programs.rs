//! The programs of a device, which multiply instead of our own kernels.

use std::ops::Range;
use std::sync::Arc;

use triad_kernels::OutputMut;
use triad_kernels::int8::{Int8Weight, QuantizedView};
use triad_model::description;
use triad_plan::graph::Role;
use triad_plan::schedule::parts::Part;
use triad_processors::model::Int8Input;
use triad_processors::{
    Device, DeviceSubgraph, FeedForward, FixedFeedForward, Layer, LayerColumns, Linear, Program,
};

use crate::error::{Error, Result, SubgraphError};
use triad_engine::LinearInput;
use triad_engine::Model;
use triad_engine::forward::activation;
use triad_engine::linear::{Backend, CpuBackend, LinearOutput, Shadows, columns_of, layers};
use triad_engine::quantization::{INT8_MAX, InputQuantization};
use triad_engine::weights::{Int8Matrix, Weight};

/// The programs of a model on a device, of whole subgraphs and of parts of their outputs. Shadows are in no program.
pub(super) struct Programs {
    /// The name of the device.
    processor: String,
    /// The programs of each block.
    blocks: Vec<Vec<SubgraphProgram>>,
}

/// Returns, by block, the feed-forwards of a model that can be computed in fixed point between their products: those
/// that read INT8 with static scales and have no shadow.
pub(super) fn fixed_point(model: &Model) -> Vec<Option<FixedFeedForward>> {
    let of_block = |block| {
        let preparing = Preparing { model, block };
        let keeps_shadow =
            [LinearInput::FeedForward, LinearInput::Down].map(|input| preparing.scaled(input));
        let keeps_none = keeps_shadow
            .into_iter()
            .all(|input| input.is_ok_and(|input| !input.has_shadow));
        let subgraph = if keeps_none {
            preparing.feed_forward(false).ok()?
        } else {
            return None;
        };
        FixedFeedForward::new(&subgraph).ok()
    };
    (0..model.description().blocks.len())
        .map(of_block)
        .collect()
}

/// The program of a subgraph, or of a part of its output.
struct SubgraphProgram {
    role: Role,
    /// Its layers and their columns; empty for a whole feed-forward.
    outputs: Outputs,
    /// Whether the input of down is an output, too, for its shadow; only of a whole feed-forward.
    returns_inner: bool,
    /// The rows that it was prepared for; a part of some rows has fewer than a chunk.
    rows: usize,
    program: Box<dyn Program>,
}

/// Layers whose outputs are concatenated, each with the computed features.
type Outputs = Vec<(description::Linear, Range<usize>)>;

/// A program to prepare.
pub(super) struct ProgramSpec<'a> {
    pub(super) block: usize,
    pub(super) role: Role,
    /// The part of the output on a whole chunk.
    pub(super) part: &'a Part,
    /// Maximum rows of an input.
    pub(super) rows: usize,
    /// Whether a feed-forward is computed in fixed point between its products.
    pub(super) fixed_point: bool,
}

impl Programs {
    pub(super) fn new(model: &Model, processor: &dyn Device) -> Self {
        let blocks = model
            .description()
            .blocks
            .iter()
            .map(|_| Vec::new())
            .collect();
        Self {
            processor: processor.name().to_owned(),
            blocks,
        }
    }

    /// Has the device prepare a subgraph.
    ///
    /// # Errors
    /// If its layers don't read INT8 with static scales, or the device refuses it.
    pub(super) fn prepare(
        &mut self,
        model: &Model,
        processor: &dyn Device,
        wanted: &ProgramSpec,
    ) -> Result<()> {
        let ProgramSpec {
            block,
            role,
            part,
            rows,
            fixed_point,
        } = *wanted;
        let preparing = Preparing { model, block };
        let prepare = || -> Result<_, SubgraphError> {
            let (outputs, subgraph) = match role {
                Role::FeedForward => (
                    Vec::new(),
                    DeviceSubgraph::FeedForward(preparing.feed_forward(fixed_point)?),
                ),
                _ => preparing.products(role, &part.columns)?,
            };
            let returns_inner = matches!(&subgraph, DeviceSubgraph::FeedForward(feed_forward) if feed_forward.return_inner);
            let program = processor.prepare(&subgraph, rows)?;
            Ok(SubgraphProgram {
                role,
                outputs,
                returns_inner,
                rows,
                program,
            })
        };
        let prepared = prepare().map_err(|error| refused(processor.name(), block, role, error))?;
        self.blocks[block].push(prepared);
        Ok(())
    }
}

impl Programs {
    /// Returns the linear layers of a block that the device has programs for.
    pub(super) fn linears(&self, block: usize) -> Vec<description::Linear> {
        use description::Linear::{Down, Gate, Up};
        let of_program = |program: &SubgraphProgram| match program.role {
            Role::FeedForward => vec![Up, Gate, Down],
            _ => program.outputs.iter().map(|(linear, _)| *linear).collect(),
        };
        self.blocks[block].iter().flat_map(of_program).collect()
    }
}

/// A device as a backend. The threads that drive it compute what it has no program for: tasks of a lost processor, and
/// subgraphs that it runs to catch up.
pub(super) struct DeviceBackend<'a> {
    pub(super) programs: &'a mut Programs,
    pub(super) kernels: CpuBackend<'a>,
}

impl Backend for DeviceBackend<'_> {
    fn multiply(
        &mut self,
        block: usize,
        role: Role,
        x: QuantizedView,
        outs: &mut [LinearOutput],
        shadows: Shadows,
    ) -> triad_engine::Result<bool> {
        let Programs { processor, blocks } = &mut *self.programs;
        let is_same = |(linear, columns): &(description::Linear, Range<usize>),
                       out: &LinearOutput| {
            *linear == out.linear && *columns == out.columns
        };
        let fits = |prepared: &&mut SubgraphProgram| {
            let outputs = prepared.outputs.iter().zip(&*outs);
            prepared.role == role
                && x.rows() <= prepared.rows
                && prepared.outputs.len() == outs.len()
                && outputs
                    .into_iter()
                    .all(|(output, out)| is_same(output, out))
        };
        // With static shapes, a program computes all rows that it was prepared for.
        let prepared = blocks[block]
            .iter_mut()
            .filter(fits)
            .min_by_key(|prepared| prepared.rows);
        let Some(prepared) = prepared else {
            return self.kernels.multiply(block, role, x, outs, shadows);
        };
        let mut outs: Vec<_> = outs
            .iter_mut()
            .map(|output| output.out.reborrow())
            .collect();
        let run = prepared.program.run(x, &mut outs);
        run.map_err(|error| refused(processor, block, role, error.into()))?;
        Ok(false)
    }

    fn feed_forward(
        &mut self,
        block: usize,
        x: QuantizedView,
        out: &mut [f32],
        inner: &mut [f32],
    ) -> triad_engine::Result<bool> {
        let Programs { processor, blocks } = &mut *self.programs;
        let prepared = blocks[block]
            .iter_mut()
            .find(|prepared| prepared.role == Role::FeedForward);
        let Some(SubgraphProgram {
            program,
            returns_inner,
            ..
        }) = prepared
        else {
            return Ok(false);
        };
        let (hidden, width) = (out.len() / x.rows(), inner.len() / x.rows());
        let mut outs = [OutputMut::new(out, hidden), OutputMut::new(inner, width)];
        let count = if *returns_inner { 2 } else { 1 };
        let run = program.run(x, &mut outs[..count]);
        run.map_err(|error| refused(processor, block, Role::FeedForward, error.into()))?;
        Ok(true)
    }
}

/// Returns the scale of the input of a role's layers.
///
/// # Errors
/// If they don't read INT8 with a static scale.
pub(super) fn input_scale(model: &Model, processor: &str, block: usize, role: Role) -> Result<f32> {
    let description = model.description();
    let layers = layers(&description.blocks[block], description.hidden, role);
    let (first, _) = layers.first().expect("a role that is products has layers");
    let preparing = Preparing { model, block };
    let scaled = preparing.scaled(LinearInput::of(*first));
    scaled
        .map(|scaled| scaled.scale)
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

fn refused(processor: &str, block: usize, role: Role, source: SubgraphError) -> Error {
    Error::Subgraph {
        processor: processor.to_owned(),
        block,
        role: role.name(),
        source: Box::new(source),
    }
}

/// A block whose programs are being prepared.
struct Preparing<'a> {
    model: &'a Model,
    block: usize,
}

impl Preparing<'_> {
    /// Returns some columns of the layers of a role, concatenated.
    fn products(
        &self,
        role: Role,
        columns: &Range<usize>,
    ) -> Result<(Outputs, DeviceSubgraph), SubgraphError> {
        let description = self.model.description();
        let layers = layers(&description.blocks[self.block], description.hidden, role);
        let (first, _) = layers.first().expect("a role that is products has layers");
        let input_scale = self.scaled(LinearInput::of(*first))?.scale;
        let outputs: Vec<_> = columns_of(&layers, columns).into_vec();
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

    fn feed_forward(&self, fixed_point: bool) -> Result<FeedForward, SubgraphError> {
        let (input, inner) = (
            self.scaled(LinearInput::FeedForward)?,
            self.scaled(LinearInput::Down)?,
        );
        debug_assert!(
            !input.has_shadow,
            "what is missing is added before the activation: the feed-forward is split"
        );
        let described = &self.model.description().blocks[self.block].feed_forward;
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
        let inputs = self.model.weights().blocks[self.block]
            .inputs
            .as_ref()
            .ok_or(SubgraphError::Float)?;
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
        let linear = &self.model.weights().blocks[self.block].linears[&name];
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
