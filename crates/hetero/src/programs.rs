//! The programs of a device, which multiply instead of our own kernels.

use std::ops::Range;

use triad_kernels::OutputMut;
use triad_kernels::int8::QuantizedView;
use triad_model::description;
use triad_plan::graph::Role;
use triad_plan::schedule::parts::Part;
use triad_processors::{Device, DeviceSubgraph, FloatProgram, Program};

use crate::error::{Result, SubgraphError};
use crate::preparing::{Outputs, Preparing, refused};
use triad_engine::Model;
use triad_engine::linear::{Backend, CpuBackend, FloatRows, Layers, LinearOutput, Shadows, layers};
use triad_engine::weights::Block;

/// The programs of a model on a device, of whole subgraphs and of parts of their outputs. Shadows are in no program.
pub(super) struct Programs {
    /// The name of the device.
    processor: String,
    /// The programs of each block.
    blocks: Vec<Vec<SubgraphProgram>>,
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
    program: Prepared,
}

/// A program, by the format of the activations that it reads.
enum Prepared {
    Int8(Box<dyn Program>),
    Float(Box<dyn FloatProgram>),
}

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
    /// Creates an empty list for the blocks of a text model or of its encoder of pictures.
    pub(super) fn new(blocks: usize, processor: &dyn Device) -> Self {
        Self {
            processor: processor.name().to_owned(),
            blocks: (0..blocks).map(|_| Vec::new()).collect(),
        }
    }

    /// Has the device prepare a subgraph.
    ///
    /// # Errors
    /// If its layers read INT8 with scales that are not static, or the device refuses it.
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
        let (description, weights) = (model.description(), &model.weights().blocks[block]);
        if role == Role::FeedForward && weights.inputs.is_some() {
            let described = &description.blocks[block].feed_forward;
            let prepare = || -> Result<_, SubgraphError> {
                let feed_forward = Preparing(weights).feed_forward(described, fixed_point)?;
                Ok(SubgraphProgram {
                    role,
                    outputs: Vec::new(),
                    returns_inner: feed_forward.return_inner,
                    rows,
                    program: Prepared::Int8(
                        processor.prepare(&DeviceSubgraph::FeedForward(feed_forward), rows)?,
                    ),
                })
            };
            let prepared = prepare();
            let prepared =
                prepared.map_err(|error| refused(processor.name(), block, role, error))?;
            self.blocks[block].push(prepared);
            return Ok(());
        }
        let layers = layers(&description.blocks[block], description.hidden, role);
        let place = (block, role, weights);
        self.prepare_layers(place, (&layers, &part.columns), processor, rows)
    }

    /// Has the device prepare some columns of the layers of a role in a block, for inputs of up to `rows` rows.
    ///
    /// # Errors
    /// As [`Programs::prepare`].
    pub(super) fn prepare_layers(
        &mut self,
        (block, role, weights): (usize, Role, &Block),
        (layers, columns): (&Layers, &Range<usize>),
        processor: &dyn Device,
        rows: usize,
    ) -> Result<()> {
        let preparing = Preparing(weights);
        let prepare = || -> Result<_, SubgraphError> {
            let (outputs, program) = if preparing.reads_floats() {
                let (outputs, linear) = preparing.floats(layers, columns);
                let capabilities = processor.capabilities();
                let mut formats = linear.formats();
                if let Some(format) = formats.find(|one| !capabilities.formats.contains(one)) {
                    return Err(capabilities.refuse(processor.name(), format).into());
                }
                let program = processor.prepare_floats(&linear, rows)?;
                (outputs, Prepared::Float(program))
            } else {
                let (outputs, subgraph) = preparing.columns_of(layers, columns)?;
                (outputs, Prepared::Int8(processor.prepare(&subgraph, rows)?))
            };
            Ok(SubgraphProgram {
                role,
                outputs,
                returns_inner: false,
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

impl Programs {
    /// Returns the program for `rows` rows of these outputs of a role's layers, if there is one.
    fn find(
        &mut self,
        block: usize,
        role: Role,
        rows: usize,
        outs: &[LinearOutput],
    ) -> Option<&mut Prepared> {
        let is_same =
            |((linear, columns), out): (&(description::Linear, Range<usize>), &LinearOutput)| {
                *linear == out.linear && *columns == out.columns
            };
        let fits = |prepared: &&mut SubgraphProgram| {
            prepared.role == role
                && rows <= prepared.rows
                && prepared.outputs.len() == outs.len()
                && prepared.outputs.iter().zip(outs).all(is_same)
        };
        // With static shapes, a program computes all rows that it was prepared for.
        self.blocks[block]
            .iter_mut()
            .filter(fits)
            .min_by_key(|prepared| prepared.rows)
            .map(|prepared| &mut prepared.program)
    }
}

/// Returns views of the outputs.
fn views<'a>(outs: &'a mut [LinearOutput]) -> Vec<OutputMut<'a>> {
    let views = outs.iter_mut().map(|output| output.out.reborrow());
    views.collect()
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
        let Some(Prepared::Int8(program)) = self.programs.find(block, role, x.rows(), outs) else {
            return self.kernels.multiply(block, role, x, outs, shadows);
        };
        let run = program.run(x, &mut views(outs));
        run.map_err(|error| refused(&self.programs.processor, block, role, error.into()))?;
        Ok(false)
    }

    fn multiply_floats(
        &mut self,
        block: usize,
        role: Role,
        x: FloatRows,
        outs: &mut [LinearOutput],
    ) -> triad_engine::Result<()> {
        let Some(Prepared::Float(program)) = self.programs.find(block, role, x.rows, outs) else {
            return self.kernels.multiply_floats(block, role, x, outs);
        };
        let run = program.run(x.x, x.phase, &mut views(outs));
        run.map_err(|error| refused(&self.programs.processor, block, role, error.into()))?;
        Ok(())
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
            program: Prepared::Int8(program),
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
