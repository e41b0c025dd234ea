//! A joint search over cuts, placement and out-of-order execution. It chooses the chunks of a prompt, and for each
//! subgraph of each chunk the processor that computes it, or a cut across several.
//!
//! HeteroLLM's solver ([`partition`](crate::partition), §4.3) chooses the fastest partition of each product as if
//! nothing else ran. llm.npu's schedule (§3.4) overlaps chunks of whole subgraphs. A product that is cut keeps all
//! processors busy, so that nothing is left to overlap. A whole product lets another processor continue with another
//! chunk. Here both are candidates, and so are combinations of them. Each candidate is simulated with the engine's
//! policy, and the fastest is chosen ([`PromptPlanner::plan`]).

mod division;
mod kind;
mod measured;
mod search;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use triad_model::description::ModelDescription;

use crate::graph::{Graph, Role, Task};
use crate::partition::energy::{Objective, Powers};
use crate::partition::plans::{ModelProduct, Plans, ProductPlan};
use crate::partition::solve::Choice;
use crate::partition::{PartitionError, Piece, products};
use crate::processors::{ProcessorId, Processors};
use crate::schedule::Policy;
use crate::schedule::parts::CutError;
use crate::tasks::{Assigned, Operation, PrefillTask, TaskOptions};

pub use kind::Kind;
pub use measured::MeasuredPrompt;
pub use search::fastest;

/// Number of blocks for which a plan is searched. Later blocks repeat the last [`PERIOD`] of these.
const BLOCKS: usize = 8;
/// Number of blocks in the repeated pattern.
const PERIOD: usize = 4;

/// The processors that compute a subgraph of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Assignment {
    /// One processor. It computes a product in its fastest way: padded, or in several lengths if its shapes are static.
    On(ProcessorId),
    /// Several processors, by the fastest cut of the product.
    Cut,
}

/// Seconds between the end of a task's last predecessor and the start of the task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gaps {
    /// Gap after predecessors on the same processor.
    pub own: f64,
    /// Gap after a predecessor on another processor.
    pub other: f64,
}

/// The ways to compute the products of a model on some processors, with their times.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptPlanner {
    /// Plans of whole products on each processor.
    whole: Vec<(ProcessorId, Plans)>,
    /// Plans of products cut across processors, where possible.
    cut: Plans,
    /// Processors that compute in float.
    floats: Vec<ProcessorId>,
    gaps: Gaps,
    /// Index of each product in the plans, by block and role.
    products: Vec<BTreeMap<Role, usize>>,
    /// Measured times of prompts, sorted by length.
    measured: Vec<MeasuredPrompt>,
    /// The objective and the powers of processors, if energy counts.
    energy: Option<(Objective, Powers)>,
}

/// A plan for computing a prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JointPlan {
    /// Tokens per chunk. The last chunk may have fewer.
    pub chunk: usize,
    /// The candidate that was chosen.
    #[serde(flatten)]
    pub id: CandidateId,
    /// Simulated seconds.
    pub seconds: f64,
    /// The best candidate of each kind, and each processor alone, sorted by simulated time. With three or more
    /// processors, the candidates omit processors that do not make the prompt enough faster.
    pub candidates: Vec<Candidate>,
    /// The ways of all candidates.
    #[serde(skip)]
    found: Arc<Found>,
}

/// Assignments of each chunk and each subgraph of the searched blocks.
type Assignments = Vec<Vec<Assignment>>;

/// The way in which a candidate computes a prompt.
#[derive(Clone, Debug, PartialEq)]
struct Best {
    ways: Assignments,
    chunk: usize,
    seconds: f64,
    /// Joules, if the powers of the processors are known.
    joules: Option<f64>,
}

/// The best way found for each candidate.
type Found = BTreeMap<CandidateId, Best>;

/// A candidate with its times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Kind and processor.
    #[serde(flatten)]
    pub id: CandidateId,
    /// Simulated seconds.
    pub seconds: f64,
    /// Measured time of prompts of this length by plans of this kind, relative to the simulated time; `None` if it was
    /// not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Simulated joules, if the powers of the processors are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// The quantity that is minimized.
    #[serde(skip)]
    pub objective: Objective,
}

impl Candidate {
    /// Returns the value of the objective, if the candidate takes `factor` times the simulated time, and so much more
    /// energy.
    fn value(&self, factor: f64) -> f64 {
        let joules = self.joules.unwrap_or(self.seconds);
        self.objective.value(factor * self.seconds, factor * joules)
    }

    /// Returns the simulated seconds times the measured factor, if there is one.
    pub fn measured_seconds(&self) -> Option<f64> {
        Some(self.factor? * self.seconds)
    }
}

/// The identity of a candidate for a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct CandidateId {
    /// Kind of candidate.
    pub kind: Kind,
    /// The processor that computes everything, for [`Kind::Alone`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone: Option<ProcessorId>,
}

impl CandidateId {
    /// Creates the id of the candidate in which one processor computes everything.
    pub const fn alone(processor: ProcessorId) -> Self {
        Self {
            kind: Kind::Alone,
            alone: Some(processor),
        }
    }

    /// Returns whether one processor computes everything.
    pub fn is_alone(self) -> bool {
        self.kind == Kind::Alone
    }
}

impl From<Kind> for CandidateId {
    /// Creates the id of a kind's candidate on several processors.
    fn from(kind: Kind) -> Self {
        Self { kind, alone: None }
    }
}

/// The input of a search: a prompt, a model and processors.
pub struct Prompt<'a> {
    /// The model of the products.
    pub description: &'a ModelDescription,
    /// All processors, including those without products.
    pub processors: &'a Processors,
    /// Default placement, number of chunks in flight, and shadows. Nothing is cut.
    pub options: &'a TaskOptions,
    /// Number of tokens.
    pub rows: usize,
    /// Maximum number of tokens per chunk.
    pub most_rows: usize,
    /// Policy that schedules the tasks.
    pub policy: Policy,
    /// Seconds of tasks that are not products, and of shadows.
    pub seconds: &'a dyn Fn(&Graph, &PrefillTask, ProcessorId) -> f64,
}

/// An error in the input of a joint plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JointError {
    /// No processor computes in float, or none computes products.
    #[error("expected a processor that computes floats and one that computes products")]
    NoProcessor,
    /// The plans are of different products.
    #[error("expected plans of the same products of this model for all processors")]
    Products,
    /// A size of the model can't be planned.
    #[error(transparent)]
    Partition(#[from] PartitionError),
}

impl PromptPlanner {
    /// Creates the ways of a model. `whole` contains the plans of each processor alone, `cut` those of all processors
    /// together. `floats` are the processors that compute in float.
    ///
    /// # Errors
    /// If there is no processor, or the plans are not all of the products of this model.
    pub fn new(
        description: &ModelDescription,
        whole: Vec<(ProcessorId, Plans)>,
        cut: Plans,
        floats: Vec<ProcessorId>,
        gaps: Gaps,
    ) -> Result<Self, JointError> {
        if whole.is_empty() || floats.is_empty() {
            return Err(JointError::NoProcessor);
        }
        let of = |plans: &Plans| {
            plans
                .products()
                .iter()
                .map(|plan| plan.product)
                .collect::<Vec<ModelProduct>>()
        };
        let all = of(&cut);
        if whole.iter().any(|(_, plans)| of(plans) != all) {
            return Err(JointError::Products);
        }
        let place = |(role, shape): (Role, crate::partition::ProductShape)| {
            let is_it = |one: &ModelProduct| {
                one.role == role
                    && (one.shape.columns(), one.shape.depth()) == (shape.columns(), shape.depth())
            };
            Ok((
                role,
                all.iter().position(is_it).ok_or(JointError::Products)?,
            ))
        };
        let of_block = |block| {
            products(block, description.hidden, 1)?
                .into_iter()
                .map(place)
                .collect()
        };
        let products = description
            .blocks
            .iter()
            .map(of_block)
            .collect::<Result<_, JointError>>()?;
        Ok(Self {
            whole,
            cut,
            floats,
            gaps,
            products,
            measured: Vec::new(),
            energy: None,
        })
    }

    /// Has the planner choose by an objective. Powers are by the ids of processors.
    #[must_use]
    pub fn with_objective(self, objective: Objective, powers: Powers) -> Self {
        Self {
            energy: Some((objective, powers)),
            ..self
        }
    }

    /// Adds measured times of prompts. The choice among candidates then uses them, and kinds without measurements are
    /// not chosen.
    pub fn with_measured(mut self, mut measured: Vec<MeasuredPrompt>) -> Self {
        measured.sort_by_key(|one| one.rows);
        self.measured = measured;
        self
    }

    /// Returns the processors that can compute products.
    pub fn processors(&self) -> impl Iterator<Item = ProcessorId> {
        self.whole.iter().map(|(processor, _)| *processor)
    }

    /// Returns the pieces that processors compute of a block's product in all ways, on chunks of at most `rows` rows.
    ///
    /// # Errors
    /// If the subgraph is not a product, or there is no plan for so many rows.
    pub fn pieces(&self, block: usize, role: Role, rows: usize) -> Result<Vec<Piece>, CutError> {
        let all = self.whole.iter().map(|(_, plans)| plans).chain([&self.cut]);
        let mut pieces = Vec::new();
        for plans in all {
            let plan = self
                .product(plans, block, role)
                .ok_or(CutError::Role { role })?;
            pieces.extend(plan.cut().pieces(rows, plan.product.shape.columns())?);
        }
        Ok(pieces)
    }

    /// Returns the candidate that is expected to complete first. The expected time is the simulated one, multiplied by
    /// the measured factor of its kind and length if there are measurements.
    ///
    /// # Errors
    /// If a chunk is longer than the longest plan.
    pub fn plan(&self, prompt: &Prompt) -> Result<JointPlan, CutError> {
        search::search(self, prompt)
    }

    /// Returns the processors of a prompt's tasks by a plan, for
    /// [`PrefillTasks::assigned`](crate::tasks::PrefillTasks).
    pub fn assignment<'a>(
        &'a self,
        plan: &'a JointPlan,
        graph: &'a Graph,
    ) -> impl Fn(Task) -> Result<Assigned, CutError> + 'a {
        let way = plan.ways_of(graph);
        move |task| assigned(self, graph, task, way(task))
    }

    /// Returns the measured seconds of a product's task on a processor by a plan. Returns `None` for other tasks, and
    /// for processors that compute nothing of the product.
    pub fn seconds<'a>(
        &'a self,
        plan: &'a JointPlan,
        graph: &'a Graph,
    ) -> impl Fn(&PrefillTask, ProcessorId) -> Option<f64> + 'a {
        let way = plan.ways_of(graph);
        move |task, processor| self.seconds_of_part(graph, way(task.task), task, processor)
    }

    fn product<'a>(&self, plans: &'a Plans, block: usize, role: Role) -> Option<&'a ProductPlan> {
        plans.products().get(*self.products.get(block)?.get(&role)?)
    }

    fn plans(&self, way: Assignment) -> Option<&Plans> {
        match way {
            Assignment::On(processor) => self
                .whole
                .iter()
                .find(|(other, _)| *other == processor)
                .map(|(_, plans)| plans),
            Assignment::Cut => Some(&self.cut),
        }
    }

    /// Returns the seconds of a part of a product on a processor; `None` if the task is a shadow or no product, or the
    /// processor does not compute the part.
    fn seconds_of_part(
        &self,
        graph: &Graph,
        way: Assignment,
        task: &PrefillTask,
        processor: ProcessorId,
    ) -> Option<f64> {
        if task.operation != Operation::Compute {
            return None;
        }
        let subgraph = &graph.subgraphs()[task.task.subgraph];
        let rows = graph.chunks()[task.task.chunk].len();
        self.choice(way, subgraph.block, subgraph.role, rows)?
            .seconds_of_part(&task.part, processor)
    }

    /// Returns the choice for a product on `rows` rows in a way.
    fn choice(&self, way: Assignment, block: usize, role: Role, rows: usize) -> Option<&Choice> {
        self.product(self.plans(way)?, block, role)?.choice(rows)
    }
}

impl JointPlan {
    /// Returns the plan of another candidate for the same prompt, if there is one.
    pub fn by(&self, id: CandidateId) -> Option<Self> {
        let Best { chunk, seconds, .. } = *self.found.get(&id)?;
        Some(Self {
            chunk,
            id,
            seconds,
            ..self.clone()
        })
    }

    /// Returns the processor that computes everything, if there is one.
    pub fn alone(&self) -> Option<ProcessorId> {
        self.id.alone
    }

    fn ways(&self) -> &Assignments {
        &self.found[&self.id].ways
    }

    /// Returns the way of each subgraph of a prompt.
    fn ways_of<'a>(&'a self, graph: &Graph) -> impl Fn(Task) -> Assignment + 'a {
        // Block of each subgraph, and its index within the block.
        let mut places: Vec<(usize, usize)> = Vec::new();
        for subgraph in graph.subgraphs() {
            let place = places
                .iter()
                .rev()
                .take_while(|(block, _)| *block == subgraph.block)
                .count();
            places.push((subgraph.block, place));
        }
        let of_block = places.iter().take_while(|(block, _)| *block == 0).count();
        move |task| {
            let (block, place) = places[task.subgraph];
            self.way(block, task.chunk, place, of_block)
        }
    }

    /// Returns the way of a subgraph of a chunk.
    fn way(&self, block: usize, chunk: usize, place: usize, of_block: usize) -> Assignment {
        let ways = &self.ways()[chunk.min(self.ways().len() - 1)];
        ways[searched(block, ways.len() / of_block) * of_block + place]
    }
}

/// Returns the searched block, one of the first `blocks`, that has the same ways as `block`.
fn searched(block: usize, blocks: usize) -> usize {
    if block < blocks {
        block
    } else {
        blocks - PERIOD + (block - blocks) % PERIOD
    }
}

/// Returns the processors of a task in a way.
fn assigned(
    joint: &PromptPlanner,
    graph: &Graph,
    task: Task,
    way: Assignment,
) -> Result<Assigned, CutError> {
    let subgraph = &graph.subgraphs()[task.subgraph];
    match way {
        Assignment::On(processor) if !subgraph.role.is_product() => Ok(Assigned::Whole(processor)),
        _ => {
            let plan = joint
                .plans(way)
                .and_then(|plans| joint.product(plans, subgraph.block, subgraph.role));
            let plan = plan.ok_or(CutError::Role {
                role: subgraph.role,
            })?;
            plan.cut()
                .parts(graph.chunks()[task.chunk].len(), subgraph.output_columns)
                .map(Assigned::Parts)
        }
    }
}

/// Returns a description of the first `blocks` blocks.
fn truncated(description: &ModelDescription, blocks: usize) -> ModelDescription {
    let mut description = description.clone();
    description.blocks.truncate(blocks);
    description
}
