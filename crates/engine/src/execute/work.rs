//! What the tasks of a prompt are, for all prompts of an engine: where subgraphs run, how outputs are cut, which shadows
//! are tasks of their own. Decided once, when programs are prepared.

use triad_kernels::int8::Int8Weight;
use triad_model::description::ModelDescription;
use triad_plan::graph::{Graph, Role, Subgraph};
use triad_plan::placement::Placement;
use triad_plan::processors::{ProcessorId, Processors};
use triad_plan::schedule::parts::{Cut, CutError, Part};
use triad_plan::tasks::{BlockShadows, PrefillTask, PrefillTasks, TaskOptions};
use triad_processors::Device;

use super::costs;
use super::programs::{Programs, Wanted};
use crate::error::{Error, Result, SubgraphError};
use crate::linear::{columns_of, layers};
use crate::linear_input::LinearInput;
use crate::model::Model;

/// How the prompts of an engine become tasks.
pub(crate) struct PromptTasks {
    /// By block, whether its feed-forward is three subgraphs.
    splits: Vec<bool>,
    chunk: usize,
    pub(super) options: TaskOptions,
}

/// The devices of an engine, by processor.
pub(super) type Devices<'a> = [Option<&'a dyn Device>];

impl PromptTasks {
    /// Places the subgraphs of `model` and has devices prepare theirs, feed-forwards first. What does not fit into the
    /// window of a device is placed on another processor ([`Reason::WindowFull`](triad_plan::placement::Reason)).
    /// `progress` is called with how many subgraphs of how many are prepared.
    ///
    /// # Errors
    /// If a subgraph has no place, a cut can't be made, or a device refuses a subgraph for another reason than room.
    pub(super) fn prepare(
        model: &Model,
        processors: &Processors,
        devices: &Devices,
        (chunk, chunks_in_flight): (usize, usize),
        cuts: &[(Role, Cut)],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(Self, Vec<Option<Programs>>)> {
        if let Some((role, _)) = cuts.iter().find(|(role, _)| !role.is_product()) {
            return Err(CutError::Role { role: *role }.into());
        }
        let is_twice = |(index, (role, _)): (usize, &(Role, Cut))| cuts[..index].iter().any(|(other, _)| other == role);
        if let Some((role, _)) = cuts.iter().enumerate().find(|cut| is_twice(*cut)).map(|(_, cut)| cut) {
            return Err(CutError::Twice { role: *role }.into());
        }
        let shadows = shadows(model);
        let shadows_apart = processors.iter().any(|(_, processor)| processor.multiplies_alone());
        let cuts_inside = cuts.iter().any(|(role, _)| matches!(role, Role::GateUp | Role::Down));
        let splits: Vec<_> = shadows.iter().map(|block| cuts_inside || (shadows_apart && block.splits())).collect();
        let graph = Graph::with_splits(model.description(), chunk, chunk, |block| splits[block]);
        let guess = |subgraph, _| costs::guess(&graph, &whole(&graph, subgraph));
        let placement = Placement::new(&graph, processors, guess)?;
        let cut =
            |subgraph: &Subgraph| cuts.iter().find(|(role, _)| *role == subgraph.role).map(|(_, cut)| cut.clone());
        let mut options = TaskOptions::whole(placement, chunks_in_flight);
        options.cuts = graph.subgraphs().iter().map(cut).collect();
        let mut all: Vec<_> = devices.iter().map(|device| device.map(|device| Programs::new(model, device))).collect();
        let mut order: Vec<_> = (0..graph.subgraphs().len()).collect();
        order.sort_by_key(|subgraph| !graph.subgraphs()[*subgraph].role.is_feed_forward());
        for (done, subgraph) in order.iter().enumerate() {
            prepare_one(model, processors, devices, &graph, &mut options, *subgraph, &mut all)?;
            progress(done + 1, order.len());
        }
        let options = options.with_shadows(&graph, processors, &shadows);
        let made = Self { splits, chunk, options };
        made.tasks(&graph, processors, |_, _| 0.0)?;
        Ok((made, all))
    }

    /// The subgraphs and chunks of a prompt.
    pub(super) fn graph(&self, description: &ModelDescription, rows: usize) -> Graph {
        Graph::with_splits(description, rows, self.chunk, |block| self.splits[block])
    }

    /// The tasks of a prompt.
    ///
    /// # Errors
    /// If a cut can't be made; which is so of all prompts or of none.
    pub(super) fn tasks(
        &self,
        graph: &Graph,
        processors: &Processors,
        seconds: impl Fn(&PrefillTask, ProcessorId) -> f64,
    ) -> Result<PrefillTasks> {
        Ok(PrefillTasks::new(graph, processors, &self.options, seconds)?)
    }

    /// Whether some shadows are tasks of their own.
    pub(super) fn has_shadows(&self) -> bool {
        self.options.shadows.iter().any(Option::is_some)
    }
}

/// Prepares what devices run of a subgraph, where one does; it is placed elsewhere where there is no room for it.
fn prepare_one(
    model: &Model,
    processors: &Processors,
    devices: &Devices,
    graph: &Graph,
    options: &mut TaskOptions,
    subgraph: usize,
    programs: &mut [Option<Programs>],
) -> Result<()> {
    let Subgraph { block, role, output_columns, .. } = graph.subgraphs()[subgraph];
    let chunk = graph.chunk_length();
    let whole = whole(graph, subgraph).part;
    let parts = match options.cut(subgraph) {
        // A shorter chunk may be cut into parts that have some rows more than their share.
        Some(cut) => cut
            .parts(chunk, output_columns)
            .into_iter()
            .map(|(home, part)| {
                let rows = (part.rows.len() + cut.multiple()).min(chunk);
                (home, part, rows)
            })
            .collect(),
        None => vec![(options.placement.places()[subgraph].processor, whole, chunk)],
    };
    for (home, part, rows) in parts {
        check_columns(model, block, role, &part)?;
        let (Some(device), Some(programs)) = (devices[home.index()], &mut programs[home.index()]) else { continue };
        if !role.is_product() && role != Role::FeedForward {
            continue;
        }
        match programs.prepare(model, device, &Wanted { block, role, part: &part, rows }) {
            Err(Error::Subgraph { source, .. }) if options.cut(subgraph).is_none() && has_no_room(&source) => {
                options.placement.move_off(graph, processors, subgraph)?;
            }
            prepared => prepared?,
        }
    }
    Ok(())
}

fn has_no_room(error: &SubgraphError) -> bool {
    use triad_processors::Error::{GpuMemory, WindowFull};
    matches!(error, SubgraphError::Processor(WindowFull { .. } | GpuMemory { .. }))
}

/// Whether INT8 weights can be cut where a part begins.
fn check_columns(model: &Model, block: usize, role: Role, part: &Part) -> Result<()> {
    const MULTIPLE: usize = Int8Weight::COLUMNS;
    if !model.weights().is_int8() || !role.is_product() {
        return Ok(());
    }
    let description = model.description();
    let layers = layers(&description.blocks[block], description.hidden, role);
    let columns = columns_of(&layers, &part.columns);
    match columns.iter().find(|(_, columns)| !columns.start.is_multiple_of(MULTIPLE)) {
        None => Ok(()),
        Some((linear, columns)) => {
            Err(Error::PartStart { role: role.name(), linear: *linear, start: columns.start, multiple: MULTIPLE })
        }
    }
}

/// A subgraph on a whole chunk, as a task.
fn whole(graph: &Graph, subgraph: usize) -> PrefillTask {
    PrefillTask::whole(graph, triad_plan::graph::Task { chunk: 0, subgraph, part: 0 })
}

/// Which inputs keep shadows that can be computed apart from their products: those with a static scale.
pub(super) fn shadows(model: &Model) -> Vec<BlockShadows> {
    let of_block = |block: &crate::weights::Block| {
        let has = |input: LinearInput| block.inputs.as_ref().is_some_and(|inputs| inputs[input.index()].has_shadow());
        BlockShadows {
            attention: has(LinearInput::Attention),
            attention_output: has(LinearInput::AttentionOutput),
            feed_forward: has(LinearInput::FeedForward),
            down: has(LinearInput::Down),
        }
    };
    model.weights().blocks.iter().map(of_block).collect()
}
