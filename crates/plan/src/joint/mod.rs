//! Cuts, placement and out-of-order execution as one search: how a prompt is divided into chunks, and for each subgraph
//! of each chunk, which processor computes it or that several do.
//!
//! HeteroLLM's solver ([`partition`](crate::partition), §4.3) takes the fastest partition of each product as if nothing
//! else ran, and llm.npu's schedule (§3.4) overlaps chunks of whole subgraphs. Each leaves out what the other one has: a
//! product that is cut keeps every processor busy, so that nothing is left to overlap, and one that is whole lets
//! another processor go on with another chunk. Here both are candidates, and so are mixtures of them; what a candidate
//! takes is simulated with the policy that the engine runs, and the least is chosen ([`Joint::plan`]).

mod measured;
mod search;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use triad_model::description::ModelDescription;

use crate::graph::{Graph, Role, Task};
use crate::partition::plans::{ModelProduct, Plans, ProductPlan};
use crate::partition::solve::Choice;
use crate::partition::{PartitionError, Piece, products};
use crate::processors::{ProcessorId, Processors};
use crate::schedule::Policy;
use crate::schedule::parts::CutError;
use crate::tasks::{Assigned, Operation, PrefillTask, TaskOptions};

pub use measured::MeasuredPrompt;
pub use search::fastest;

/// Blocks that a plan is searched for: those behind them repeat the last [`PERIOD`].
const BLOCKS: usize = 8;
/// Blocks whose pattern is repeated.
const PERIOD: usize = 4;

/// Who computes a subgraph of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// One processor; a product as it is fastest there, padded or in several lengths where shapes are static.
    On(ProcessorId),
    /// A product, several processors: its fastest cut.
    Cut,
}

/// Seconds from the end of what a task waited for to its beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gaps {
    /// On the same processor.
    pub own: f64,
    /// On another one.
    pub other: f64,
}

/// The ways in which the products of a model can be computed on some processors, with what they take.
#[derive(Clone, Debug, PartialEq)]
pub struct Joint {
    /// Each product whole on each processor.
    whole: Vec<(ProcessorId, Plans)>,
    /// Each product cut, if it can be.
    cut: Plans,
    /// Processors that compute floats.
    floats: Vec<ProcessorId>,
    gaps: Gaps,
    /// By block, by role, the place of a product in the plans.
    products: Vec<BTreeMap<Role, usize>>,
    /// What prompts took, in the order of lengths.
    measured: Vec<MeasuredPrompt>,
}

/// How a prompt is computed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JointPlan {
    /// Tokens of each chunk but the last, which may have fewer.
    pub chunk: usize,
    /// Which of the candidates it is.
    #[serde(flatten)]
    pub id: CandidateId,
    /// Simulated seconds.
    pub seconds: f64,
    /// The best candidate of each kind, and of each processor alone, the fastest by the simulation first; of three processors
    /// and more those that leave out who is not worth it.
    pub candidates: Vec<Candidate>,
    /// How each of them computes it.
    #[serde(skip)]
    found: Arc<Found>,
}

/// Ways by chunk, by subgraph of the blocks that were searched.
type Ways = Vec<Vec<Way>>;

/// How a candidate computes a prompt.
#[derive(Clone, Debug, PartialEq)]
struct Best {
    ways: Ways,
    chunk: usize,
    seconds: f64,
}

/// The best candidates.
type Found = BTreeMap<CandidateId, Best>;

/// The best way of a kind to compute a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Its kind, and who computes it.
    #[serde(flatten)]
    pub id: CandidateId,
    /// Simulated seconds.
    pub seconds: f64,
    /// What prompts of such a length took by plans of the kind, as a multiple of the simulated seconds, where that was
    /// measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
}

impl Candidate {
    /// Seconds that it is expected to take by what was measured of its kind, if anything was.
    pub fn measured_seconds(&self) -> Option<f64> {
        Some(self.factor? * self.seconds)
    }
}

/// Which of the candidates for a prompt it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct CandidateId {
    /// Its kind.
    pub kind: Kind,
    /// The processor that computes everything, of [`Kind::Alone`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone: Option<ProcessorId>,
}

impl CandidateId {
    /// One processor computes everything.
    pub const fn alone(processor: ProcessorId) -> Self {
        Self {
            kind: Kind::Alone,
            alone: Some(processor),
        }
    }

    /// Whether one processor computes everything.
    pub fn is_alone(self) -> bool {
        self.kind == Kind::Alone
    }
}

impl From<Kind> for CandidateId {
    /// The candidate of a kind that several processors compute.
    fn from(kind: Kind) -> Self {
        Self { kind, alone: None }
    }
}

/// Kinds of candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One processor computes everything.
    Alone,
    /// Each product whole on the processor that is fastest for it, all floats on one (Hetero-layer).
    Layer,
    /// Each product cut, all floats on one processor (Hetero-tensor).
    Tensor,
    /// Each product cut where that is faster by itself, all floats on one processor.
    Auto,
    /// Chunks take turns on the processors that compute floats.
    Chunks,
    /// Each subgraph of each chunk where it ends first, products whole.
    Placed,
    /// Each subgraph of each chunk where it ends first, products whole or cut.
    Mixed,
}

impl Kind {
    /// Name for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Layer => "layer",
            Self::Tensor => "tensor",
            Self::Auto => "auto",
            Self::Chunks => "chunks",
            Self::Placed => "placed",
            Self::Mixed => "mixed",
        }
    }
}

/// A prompt that a plan is searched for.
pub struct Prompt<'a> {
    /// The model whose products the ways are of.
    pub description: &'a ModelDescription,
    /// All processors.
    pub processors: &'a Processors,
    /// Where tasks are by default, how many chunks are in flight, and shadows; nothing is cut.
    pub options: &'a TaskOptions,
    /// Tokens.
    pub rows: usize,
    /// Tokens of a chunk, at most.
    pub most_rows: usize,
    /// What runs the tasks.
    pub policy: Policy,
    /// Seconds of what is no product, and of shadows.
    pub seconds: &'a dyn Fn(&Graph, &PrefillTask, ProcessorId) -> f64,
}

/// A list of processors that no prompt can be planned on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JointError {
    /// Nobody computes floats, or nobody products.
    #[error("expected a processor that computes floats and one that computes products")]
    NoProcessor,
    /// Plans of different products.
    #[error("expected plans of the same products of this model for all processors")]
    Products,
    /// Sizes of the model.
    #[error(transparent)]
    Partition(#[from] PartitionError),
}

impl Joint {
    /// The ways of a model: `whole` has the plans of each processor alone, `cut` those of all together. `floats` are the
    /// processors that compute floats.
    ///
    /// # Errors
    /// If there is no processor, or the plans are not all of the same products, those of this model.
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
        })
    }

    /// Chooses among kinds of candidates by what prompts took, too; kinds that were not measured are not chosen then.
    pub fn with_measured(mut self, mut measured: Vec<MeasuredPrompt>) -> Self {
        measured.sort_by_key(|one| one.rows);
        self.measured = measured;
        self
    }

    /// The processors that have a way for products.
    pub fn processors(&self) -> impl Iterator<Item = ProcessorId> {
        self.whole.iter().map(|(processor, _)| *processor)
    }

    /// What processors are given of a product of a block in all ways, on chunks of at most `rows` rows.
    ///
    /// # Errors
    /// If it is no product, or nobody planned so many rows.
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

    /// The candidate that is through first: by the simulation, and by what prompts of its kind took as multiples of that,
    /// where it was measured.
    ///
    /// # Errors
    /// If a chunk is longer than what was planned for.
    pub fn plan(&self, prompt: &Prompt) -> Result<JointPlan, CutError> {
        search::search(self, prompt)
    }

    /// Who computes the tasks of a prompt as a plan has it, for [`PrefillTasks::assigned`](crate::tasks::PrefillTasks).
    pub fn assignment<'a>(
        &'a self,
        plan: &'a JointPlan,
        graph: &'a Graph,
    ) -> impl Fn(Task) -> Result<Assigned, CutError> + 'a {
        let way = plan.ways_of(graph);
        move |task| assigned(self, graph, task, way(task))
    }

    /// Seconds of the tasks that compute products of a prompt as a plan has it, on a processor: what was measured of its
    /// parts. `None` for other tasks, and on processors that compute nothing of the product.
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

    fn plans(&self, way: Way) -> Option<&Plans> {
        match way {
            Way::On(processor) => self
                .whole
                .iter()
                .find(|(other, _)| *other == processor)
                .map(|(_, plans)| plans),
            Way::Cut => Some(&self.cut),
        }
    }

    /// Seconds of a part of a product on a processor, if a task is one, no shadow, and the processor computes any of it.
    fn seconds_of_part(
        &self,
        graph: &Graph,
        way: Way,
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

    /// The choice of a product on `rows` rows that is made by going this way.
    fn choice(&self, way: Way, block: usize, role: Role, rows: usize) -> Option<&Choice> {
        self.product(self.plans(way)?, block, role)?.choice(rows)
    }
}

impl JointPlan {
    /// The plan of another candidate for the same prompt, if there is one.
    pub fn by(&self, id: CandidateId) -> Option<Self> {
        let Best { chunk, seconds, .. } = *self.found.get(&id)?;
        Some(Self {
            chunk,
            id,
            seconds,
            ..self.clone()
        })
    }

    /// The processor that computes everything, if one does.
    pub fn alone(&self) -> Option<ProcessorId> {
        self.id.alone
    }

    fn ways(&self) -> &Ways {
        &self.found[&self.id].ways
    }

    /// How the subgraphs of a prompt are computed.
    fn ways_of<'a>(&'a self, graph: &Graph) -> impl Fn(Task) -> Way + 'a {
        // By subgraph: its block, and its place there.
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

    /// How a subgraph of a chunk is computed.
    fn way(&self, block: usize, chunk: usize, place: usize, of_block: usize) -> Way {
        let ways = &self.ways()[chunk.min(self.ways().len() - 1)];
        ways[searched(block, ways.len() / of_block) * of_block + place]
    }
}

/// The block of those that were searched, the first `blocks`, whose ways a block has.
fn searched(block: usize, blocks: usize) -> usize {
    if block < blocks {
        block
    } else {
        blocks - PERIOD + (block - blocks) % PERIOD
    }
}

/// The parts of a task where it goes a way.
fn assigned(joint: &Joint, graph: &Graph, task: Task, way: Way) -> Result<Assigned, CutError> {
    let subgraph = &graph.subgraphs()[task.subgraph];
    match way {
        Way::On(processor) if !subgraph.role.is_product() => Ok(Assigned::Whole(processor)),
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

/// Only the blocks that are searched.
fn truncated(description: &ModelDescription, blocks: usize) -> ModelDescription {
    let mut description = description.clone();
    description.blocks.truncate(blocks);
    description
}
