//! How prompts become tasks: where subgraphs run, how outputs are cut, and which shadows are separate tasks. This is
//! decided once per engine, when devices prepare their programs, except for plans of single prompts.

use triad_kernels::int8::Int8Weight;
use triad_model::description::ModelDescription;
use triad_plan::graph::{Graph, Role, Subgraph};
use triad_plan::joint::PromptPlanner;
use triad_plan::partition::plans::Plans;
use triad_plan::partition::{Alignment, ProductShape, products};
use triad_plan::placement::Placement;
use triad_plan::processors::{ProcessorId, Processors};
use triad_plan::schedule::parts::{Cut, CutError};
use triad_plan::tasks::{Assigned, Operation, PrefillTask, PrefillTasks, Shadow, TaskOptions};
use triad_processors::Device;

use super::costs;
use super::programs::Programs;
use super::programs_of_parts::{Devices, prepare_one, whole};
use crate::error::{Error, Result};
use crate::fixed_point::FixedBlocks;
use crate::planned::Planned;
use crate::shadows::shadows;
use triad_engine::Model;
use triad_engine::linear::layers;

/// Columns of a product are cut at multiples of this, or of a multiple of it.
const COLUMNS: usize = 64;
/// Maximum places at which the columns of a product are cut.
const MAX_PLACES: usize = 16;

/// The rules by which prompts of an engine become tasks.
pub(crate) struct PromptTasks {
    /// By block, whether its feed-forward is split into three subgraphs.
    splits: Vec<bool>,
    chunk: usize,
    pub(super) options: TaskOptions,
    /// The plans of all products, unless prompts are planned one by one.
    pub(super) plans: Option<Plans>,
    /// The search that plans each prompt, if any.
    pub(super) joint: Option<PromptPlanner>,
    /// By processor, whether each of its programs is for a fixed number of rows.
    has_static_shapes: Vec<bool>,
}

/// How the outputs of products are cut.
#[derive(Clone, Copy)]
pub(super) struct Cuts<'a> {
    /// The cuts of roles, each role once.
    pub(super) by_role: &'a [(Role, Cut)],
    /// The cuts of all products; then none is cut by role.
    pub(super) plans: Option<&'a Plans>,
    /// The cuts of all products, chosen for each prompt; then there are no others.
    pub(super) joint: Option<&'a PromptPlanner>,
}

impl PromptTasks {
    /// Places the subgraphs of `model` and prepares those of devices, feed-forwards first. A subgraph that does not fit
    /// into the window of a device is placed on another processor
    /// ([`Reason::WindowFull`](triad_plan::placement::Reason)). `progress` is called with the number of prepared
    /// subgraphs and the number of all.
    ///
    /// # Errors
    /// If a subgraph has no place, a cut is impossible, or a device refuses a subgraph for another reason than memory.
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
        // Devices run feed-forwards whole in INT8 alone.
        let is_int8 = model.weights().is_int8();
        let devices_split = devices
            .iter()
            .flatten()
            .any(|one| !is_int8 || !one.capabilities().feed_forwards);
        let splits_all = devices_split || cuts.cuts_feed_forwards();
        let splits: Vec<_> = shadows
            .iter()
            .map(|block| splits_all || (shadows_apart && block.splits()))
            .collect();
        let graph = Graph::with_splits(model.description(), chunk, chunk, |block| splits[block]);
        let guess = |subgraph, _| costs::guess(&graph, &whole(&graph, subgraph));
        let placement = Placement::new(&graph, processors, guess)?;
        let mut options = TaskOptions::whole(placement, chunks_in_flight);
        let cut = |subgraph| Ok(cuts.cut(model.description(), subgraph)?.cloned());
        options.cuts = graph.subgraphs().iter().map(cut).collect::<Result<_>>()?;
        options.products_on = cuts
            .joint
            .iter()
            .flat_map(|joint| joint.processors())
            .collect();
        let mut all: Vec<_> = devices
            .iter()
            .map(|device| {
                device.map(|device| Programs::new(model.description().blocks.len(), device))
            })
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

    /// Returns the subgraphs and chunks of a prompt, by its plan if there is one. If one processor computes all of it,
    /// feed-forwards are not split.
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

    /// Returns the processor that computes all of a prompt by its plan, without separate shadows, if one does.
    fn alone(&self, planned: Option<&Planned>) -> Option<ProcessorId> {
        self.joint.as_ref().and(planned)?.alone()
    }

    /// Returns the maximum chunks in flight of a prompt. A processor that computes all of it gains nothing by a second
    /// chunk, whose floats would evict those of the first one from its caches.
    pub(super) fn chunks_in_flight(&self, planned: Option<&Planned>) -> usize {
        if self.alone(planned).is_some() {
            1
        } else {
            self.options.chunks_in_flight
        }
    }

    /// Returns the tasks of a prompt, assigned by its plan if there is one.
    ///
    /// # Errors
    /// If a cut is impossible, which is the case for all prompts or for none.
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

    /// Returns the measured seconds of planned parts of products on processors with static shapes: the times of whole
    /// chunks do not predict those of parts there, and later runs do not update them. `None` for other tasks, and if no
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

    /// Returns, by subgraph, the shadow that is a separate task.
    pub(super) fn shadows(&self, planned: Option<&Planned>) -> Vec<Option<Shadow>> {
        if self.alone(planned).is_some() {
            Vec::new()
        } else {
            self.options.shadows.clone()
        }
    }

    /// Returns whether some shadows are separate tasks.
    pub(super) fn has_shadows(&self) -> bool {
        self.options.shadows.iter().any(Option::is_some)
    }
}

impl<'a> Cuts<'a> {
    /// # Errors
    /// If something other than a product is cut, or a product twice.
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

    /// Returns whether feed-forwards are split into three subgraphs.
    pub(super) fn cuts_feed_forwards(&self) -> bool {
        let is_inside = |(role, _): &(Role, Cut)| matches!(role, Role::GateUp | Role::Down);
        self.plans.is_some() || self.joint.is_some() || self.by_role.iter().any(is_inside)
    }

    /// Returns the cut of a subgraph's output, if it is cut.
    ///
    /// # Errors
    /// If there are plans, but none for this product.
    pub(super) fn cut(
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

/// Returns the input features of a subgraph that consists of products.
pub(super) fn product_depth(description: &ModelDescription, subgraph: &Subgraph) -> Option<usize> {
    let products = products(&description.blocks[subgraph.block], description.hidden, 1).ok()?;
    products
        .iter()
        .find(|(other, _)| *other == subgraph.role)
        .map(|(_, shape)| shape.depth())
}

/// Returns where a plan may cut the output of a product: at multiples of packed INT8 weights in each of its layers, and
/// at no more than [`MAX_PLACES`] columns, so that all can be measured. Margins go to processors of dynamic shapes.
pub(super) fn alignment(
    description: &ModelDescription,
    role: Role,
    shape: ProductShape,
) -> Alignment {
    let columns = if columns_can_be_cut(description, role) {
        COLUMNS * shape.columns().div_ceil(MAX_PLACES * COLUMNS)
    } else {
        shape.columns()
    };
    Alignment {
        columns,
        margins: true,
        ..Alignment::default()
    }
}

/// Returns whether each layer of a role begins at a block of packed INT8 weights when their outputs are concatenated.
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
