//! What the tasks of a prompt are, for all prompts of an engine: where subgraphs run, how outputs are cut, which shadows
//! are tasks of their own. Decided once, when programs are prepared.

use triad_kernels::int8::Int8Weight;
use triad_model::description::ModelDescription;
use triad_plan::graph::{Graph, Role, Subgraph};
use triad_plan::joint::Joint;
use triad_plan::partition::plans::Plans;
use triad_plan::partition::{Alignment, ProductShape, products};
use triad_plan::placement::Placement;
use triad_plan::processors::{ProcessorId, Processors};
use triad_plan::schedule::parts::{Cut, CutError, Part, Piece};
use triad_plan::tasks::{
    Assigned, BlockShadows, Operation, PrefillTask, PrefillTasks, Shadow, TaskOptions,
};
use triad_processors::Device;

use super::costs;
use super::joint::Planned;
use super::programs::{Programs, Wanted};
use crate::error::{Error, Result, SubgraphError};
use crate::forward::FixedBlocks;
use crate::linear::{columns_of, layers};
use crate::linear_input::LinearInput;
use crate::model::Model;

/// Columns of a product are cut at multiples of this, or of a multiple of it.
const COLUMNS: usize = 64;
/// At so many places at most.
const MOST_PLACES: usize = 16;

/// How the prompts of an engine become tasks.
pub(crate) struct PromptTasks {
    /// By block, whether its feed-forward is three subgraphs.
    splits: Vec<bool>,
    chunk: usize,
    pub(super) options: TaskOptions,
    /// Of all products, where prompts are not planned one by one.
    pub(super) plans: Option<Plans>,
    /// What plans each prompt, if anything does.
    pub(super) joint: Option<Joint>,
    /// By processor, whether its programs are of one number of rows each.
    has_static_shapes: Vec<bool>,
}

/// How outputs of products are cut.
#[derive(Clone, Copy)]
pub(super) struct Cuts<'a> {
    /// By role, each once.
    pub(super) by_role: &'a [(Role, Cut)],
    /// Of all products; none of them is cut by role, too.
    pub(super) plans: Option<&'a Plans>,
    /// Of all products, chosen for each prompt; there are no others then.
    pub(super) joint: Option<&'a Joint>,
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
        (cuts, fixed): (Cuts, Option<&FixedBlocks>),
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(Self, Vec<Option<Programs>>)> {
        cuts.check()?;
        let shadows = shadows(model);
        let shadows_apart = processors
            .iter()
            .any(|(_, processor)| processor.multiplies_alone());
        let cuts_inside = cuts.cuts_feed_forwards();
        let splits: Vec<_> = shadows
            .iter()
            .map(|block| cuts_inside || (shadows_apart && block.splits()))
            .collect();
        let graph = Graph::with_splits(model.description(), chunk, chunk, |block| splits[block]);
        let guess = |subgraph, _| costs::guess(&graph, &whole(&graph, subgraph));
        let placement = Placement::new(&graph, processors, guess)?;
        let mut options = TaskOptions::whole(placement, chunks_in_flight);
        let cut = |subgraph| Ok(cuts.of(model.description(), subgraph)?.cloned());
        options.cuts = graph.subgraphs().iter().map(cut).collect::<Result<_>>()?;
        options.products_on = cuts
            .joint
            .iter()
            .flat_map(|joint| joint.processors())
            .collect();
        let mut all: Vec<_> = devices
            .iter()
            .map(|device| device.map(|device| Programs::new(model, device)))
            .collect();
        let mut order: Vec<_> = (0..graph.subgraphs().len()).collect();
        order.sort_by_key(|subgraph| !graph.subgraphs()[*subgraph].role.is_feed_forward());
        for (done, subgraph) in order.iter().enumerate() {
            prepare_one(
                (model, fixed),
                processors,
                devices,
                &graph,
                (&mut options, cuts.joint),
                *subgraph,
                &mut all,
            )?;
            progress(done + 1, order.len());
        }
        let options = options.with_shadows(&graph, processors, &shadows);
        let is_static = |device: &Option<&dyn Device>| {
            device.is_some_and(|device| device.capabilities().static_shapes)
        };
        let has_static_shapes = devices.iter().map(is_static).collect();
        let made = Self {
            splits,
            chunk,
            options,
            plans: None,
            joint: None,
            has_static_shapes,
        };
        made.tasks(&graph, processors, None, |_, _| 0.0)?;
        Ok((made, all))
    }

    /// The subgraphs and chunks of a prompt, as its plan divides it, if there is one. One processor alone computes whole
    /// feed-forwards.
    pub(super) fn graph(
        &self,
        description: &ModelDescription,
        rows: usize,
        planned: Option<&Planned>,
    ) -> Graph {
        let chunk = planned.map_or(self.chunk, |planned| planned.plan.chunk);
        let is_alone = self.alone(planned).is_some();
        Graph::with_splits(description, rows, chunk, |block| {
            self.splits[block] && !is_alone
        })
    }

    /// The processor that computes a prompt by its plan as if there were no other one, shadows with their products.
    fn alone(&self, planned: Option<&Planned>) -> Option<ProcessorId> {
        self.joint.as_ref().and(planned)?.alone()
    }

    /// Chunks of a prompt that are computed at once. One processor alone gains nothing by a second one, whose floats would
    /// push the first one's out of its caches.
    pub(super) fn chunks_in_flight(&self, planned: Option<&Planned>) -> usize {
        if self.alone(planned).is_some() {
            1
        } else {
            self.options.chunks_in_flight
        }
    }

    /// The tasks of a prompt, as its plan assigns them, if there is one.
    ///
    /// # Errors
    /// If a cut can't be made; which is so of all prompts or of none.
    pub(super) fn tasks(
        &self,
        graph: &Graph,
        processors: &Processors,
        planned: Option<&Planned>,
        seconds: impl Fn(&PrefillTask, ProcessorId) -> f64,
    ) -> Result<PrefillTasks> {
        if let Some(processor) = self.alone(planned) {
            let options = TaskOptions::whole(
                self.options.placement.clone(),
                self.chunks_in_flight(planned),
            );
            let assignment = |_| Ok(Assigned::Whole(processor));
            return Ok(PrefillTasks::assigned(
                graph,
                processors,
                &options,
                &assignment,
                seconds,
            )?);
        }
        match (&self.joint, planned) {
            (Some(joint), Some(planned)) => {
                let assignment = joint.assignment(&planned.plan, graph);
                Ok(PrefillTasks::assigned(
                    graph,
                    processors,
                    &self.options,
                    &assignment,
                    seconds,
                )?)
            }
            _ => Ok(PrefillTasks::new(
                graph,
                processors,
                &self.options,
                seconds,
            )?),
        }
    }

    /// Seconds of parts of products on processors with static shapes, as they were measured for the plan: what whole chunks
    /// take there does not tell what parts do, and what runs took does not change it. `None` of other tasks, and where no
    /// product is planned.
    pub(super) fn planned_seconds<'a>(
        &'a self,
        description: &'a ModelDescription,
        graph: &'a Graph,
        planned: Option<&'a Planned>,
    ) -> impl Fn(&PrefillTask, ProcessorId) -> Option<f64> + 'a {
        let is_alone = self.alone(planned).is_some();
        let by_prompt = self
            .joint
            .as_ref()
            .zip(planned)
            .map(|(joint, planned)| joint.seconds(&planned.plan, graph));
        let by_product = move |plans: &Plans, task: &PrefillTask, processor| {
            let subgraph = &graph.subgraphs()[task.task.subgraph];
            let depth = product_depth(description, subgraph)?;
            let plan = plans.product(subgraph.role, subgraph.output_columns, depth)?;
            let rows = graph.chunks()[task.task.chunk].len();
            plan.choice(rows)?.seconds_of_part(&task.part, processor)
        };
        move |task, processor| {
            if is_alone
                || !self.has_static_shapes[processor.index()]
                || task.operation != Operation::Compute
            {
                return None;
            }
            match &by_prompt {
                Some(seconds) => seconds(task, processor),
                None => by_product(self.plans.as_ref()?, task, processor),
            }
        }
    }

    /// By subgraph, the shadow that is a task of its own.
    pub(super) fn shadows(&self, planned: Option<&Planned>) -> Vec<Option<Shadow>> {
        if self.alone(planned).is_some() {
            Vec::new()
        } else {
            self.options.shadows.clone()
        }
    }

    /// Whether some shadows are tasks of their own.
    pub(super) fn has_shadows(&self) -> bool {
        self.options.shadows.iter().any(Option::is_some)
    }
}

impl<'a> Cuts<'a> {
    /// # Errors
    /// If what is not a product is cut, or a product twice.
    fn check(&self) -> Result<()> {
        let Self {
            by_role,
            plans,
            joint,
        } = *self;
        if let Some((role, _)) = by_role.iter().find(|(role, _)| !role.is_product()) {
            return Err(CutError::Role { role: *role }.into());
        }
        let is_twice = |(index, (role, _)): (usize, &(Role, Cut))| {
            plans.is_some()
                || joint.is_some()
                || by_role[..index].iter().any(|(other, _)| other == role)
        };
        match by_role.iter().enumerate().find(|cut| is_twice(*cut)) {
            Some((_, (role, _))) => Err(CutError::Twice { role: *role }.into()),
            None => Ok(()),
        }
    }

    /// Whether feed-forwards are three subgraphs.
    pub(super) fn cuts_feed_forwards(&self) -> bool {
        let is_inside = |(role, _): &(Role, Cut)| matches!(role, Role::GateUp | Role::Down);
        self.plans.is_some() || self.joint.is_some() || self.by_role.iter().any(is_inside)
    }

    /// How the output of a subgraph is cut, if it is.
    ///
    /// # Errors
    /// If there are plans, and none for this product.
    pub(super) fn of(
        &self,
        description: &ModelDescription,
        subgraph: &Subgraph,
    ) -> Result<Option<&'a Cut>> {
        let Subgraph {
            role,
            output_columns: columns,
            ..
        } = *subgraph;
        let Some(plans) = self.plans.filter(|_| role.is_product()) else {
            return Ok(self
                .by_role
                .iter()
                .find(|(other, _)| *other == role)
                .map(|(_, cut)| cut));
        };
        let depth = product_depth(description, subgraph).unwrap_or(0);
        match plans.product(role, columns, depth) {
            Some(plan) => Ok(Some(plan.cut())),
            None => Err(Error::Unplanned {
                role: role.name(),
                columns,
                depth,
            }),
        }
    }
}

/// Input features of a subgraph that is products.
pub(super) fn product_depth(description: &ModelDescription, subgraph: &Subgraph) -> Option<usize> {
    let products = products(&description.blocks[subgraph.block], description.hidden, 1).ok()?;
    products
        .iter()
        .find(|(other, _)| *other == subgraph.role)
        .map(|(_, shape)| shape.depth())
}

/// Where the output of a product may be cut by a plan: at a multiple of packed INT8 weights in each of its layers, and
/// at no more than [`MOST_PLACES`] columns, so that they can all be measured; margins are left to processors that compute
/// any shape.
pub(super) fn alignment(
    description: &ModelDescription,
    role: Role,
    shape: ProductShape,
) -> Alignment {
    let columns = if columns_can_be_cut(description, role) {
        COLUMNS * shape.columns().div_ceil(MOST_PLACES * COLUMNS)
    } else {
        shape.columns()
    };
    Alignment {
        columns,
        margins: true,
        ..Alignment::default()
    }
}

/// Whether each layer of a role begins with a block of packed INT8 weights where their outputs are side by side.
pub(super) fn columns_can_be_cut(description: &ModelDescription, role: Role) -> bool {
    description.blocks.iter().all(|block| {
        let layers = layers(block, description.hidden, role);
        layers
            .iter()
            .rev()
            .skip(1)
            .all(|(_, features)| features.is_multiple_of(Int8Weight::COLUMNS))
    })
}

/// Prepares what devices run of a subgraph, where one does; it is placed elsewhere where there is no room for it.
fn prepare_one(
    (model, fixed): (&Model, Option<&FixedBlocks>),
    processors: &Processors,
    devices: &Devices,
    graph: &Graph,
    (options, joint): (&mut TaskOptions, Option<&Joint>),
    subgraph: usize,
    programs: &mut [Option<Programs>],
) -> Result<()> {
    let Subgraph {
        block,
        role,
        output_columns,
        ..
    } = graph.subgraphs()[subgraph];
    let chunk = graph.chunk_length();
    let whole = whole(graph, subgraph).part;
    let pieces = match (joint.filter(|_| role.is_product()), options.cut(subgraph)) {
        (Some(joint), _) => joint.pieces(block, role, chunk)?,
        (None, Some(cut)) => cut.pieces(chunk, output_columns)?,
        (None, None) => {
            let processor = options.placement.places()[subgraph].processor;
            vec![Piece {
                processor,
                part: whole,
                rows: chunk,
            }]
        }
    };
    for Piece { part, .. } in &pieces {
        check_columns(model, block, role, part)?;
    }
    for Piece {
        processor: home,
        part,
        rows,
    } in distinct(pieces, devices)
    {
        let (Some(device), Some(programs)) = (devices[home.index()], &mut programs[home.index()])
        else {
            continue;
        };
        if !role.is_product() && role != Role::FeedForward {
            continue;
        }
        let fixed_point = fixed.is_some_and(|fixed| fixed.has(block));
        match programs.prepare(
            model,
            device,
            &Wanted {
                block,
                role,
                part: &part,
                rows,
                fixed_point,
            },
        ) {
            Err(Error::Subgraph { source, .. })
                if joint.is_none() && options.cut(subgraph).is_none() && has_no_room(&source) =>
            {
                options.placement.move_off(graph, processors, subgraph)?;
            }
            prepared => prepared?,
        }
    }
    Ok(())
}

/// Prepares what devices run of a subgraph that is cut.
///
/// # Errors
/// If a part begins within a block of packed weights, or a device refuses it.
pub(super) fn prepare_cut(
    model: &Model,
    devices: &Devices,
    graph: &Graph,
    subgraph: usize,
    cut: &Cut,
    programs: &mut [Option<Programs>],
) -> Result<()> {
    let Subgraph {
        block,
        role,
        output_columns,
        ..
    } = graph.subgraphs()[subgraph];
    let pieces = cut.pieces(graph.chunk_length(), output_columns)?;
    for Piece { part, .. } in &pieces {
        check_columns(model, block, role, part)?;
    }
    for Piece {
        processor: home,
        part,
        rows,
    } in distinct(pieces, devices)
    {
        if let (Some(device), Some(programs)) = (devices[home.index()], &mut programs[home.index()])
        {
            programs.prepare(
                model,
                device,
                &Wanted {
                    block,
                    role,
                    part: &part,
                    rows,
                    fixed_point: false,
                },
            )?;
        }
    }
    Ok(())
}

/// Pieces that take a program of their own: of static shapes, each number of rows of some columns; of others, the most
/// rows.
fn distinct(pieces: Vec<Piece>, devices: &Devices) -> Vec<Piece> {
    let mut distinct: Vec<Piece> = Vec::new();
    for piece in pieces {
        let is_static = devices[piece.processor.index()]
            .is_some_and(|device| device.capabilities().static_shapes);
        let known = distinct.iter_mut().find(|known| {
            known.processor == piece.processor
                && known.part.columns == piece.part.columns
                && (!is_static || known.rows == piece.rows)
        });
        match known {
            Some(known) => known.rows = known.rows.max(piece.rows),
            None => distinct.push(piece),
        }
    }
    distinct
}

fn has_no_room(error: &SubgraphError) -> bool {
    use triad_processors::Error::{GpuMemory, HexagonMemory, WindowFull};
    matches!(
        error,
        SubgraphError::Processor(WindowFull { .. } | GpuMemory { .. } | HexagonMemory { .. })
    )
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
    match columns
        .iter()
        .find(|(_, columns)| !columns.start.is_multiple_of(MULTIPLE))
    {
        None => Ok(()),
        Some((linear, columns)) => Err(Error::PartStart {
            role: role.name(),
            linear: *linear,
            start: columns.start,
            multiple: MULTIPLE,
        }),
    }
}

/// A subgraph on a whole chunk, as a task.
fn whole(graph: &Graph, subgraph: usize) -> PrefillTask {
    PrefillTask::whole(
        graph,
        triad_plan::graph::Task {
            chunk: 0,
            subgraph,
            part: 0,
        },
    )
}

/// Which inputs keep shadows that can be computed apart from their products: those with a static scale.
pub(super) fn shadows(model: &Model) -> Vec<BlockShadows> {
    let of_block = |block: &crate::weights::Block| {
        let has = |input: LinearInput| {
            block
                .inputs
                .as_ref()
                .is_some_and(|inputs| inputs[input.index()].has_shadow())
        };
        BlockShadows {
            attention: has(LinearInput::Attention),
            attention_output: has(LinearInput::AttentionOutput),
            feed_forward: has(LinearInput::FeedForward),
            down: has(LinearInput::Down),
        }
    };
    model.weights().blocks.iter().map(of_block).collect()
}
