//! Simulates HeteroLLM on a device: a prefill or a decoded token with INT4 weights and f16 activations. The
//! [solver](triad_plan::partition::solve) partitions the matmuls, and tasks run in virtual time.
//!
//! Subgraphs run one after the other. Norms, RoPE, attention and activations run on the GPU. A matmul runs on the GPU,
//! on the NPU, or partitioned across both. A join is a task of the CPU, which only controls (§4). [`rendering`] adds a
//! game that renders on the same GPU.

pub mod rendering;

use std::collections::HashMap;

use serde::Serialize;
use triad_model::description::{BlockDescription, ModelDescription};

use triad_plan::device::DeviceProfile;
use triad_plan::device::weight_only::WeightOnly;
use triad_plan::graph::{Format, Graph, Role, Subgraph};
use triad_plan::partition::costs::Joins;
use triad_plan::partition::profile::{Waiting, WeightOnlyCosts};
use triad_plan::partition::solve::{Choice, Restriction, Solver};
use triad_plan::partition::{
    self, Participant, PartitionError, Phase, ProductShape, Shapes, StandardLengths,
};
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::{Dag, Policy};
use triad_plan::simulate::simulate;
use triad_plan::timeline::Timeline;

/// Processor of joins.
const CPU: ProcessorId = ProcessorId::new(2);

/// Assignment of matmuls to processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All on the GPU, like PPL-OpenCL.
    GpuOnly,
    /// Each whole matmul on its fastest processor.
    HeteroLayer,
    /// Partitioned across both processors if that is faster.
    HeteroTensor,
    /// On the NPU, padded to the next standard length (§5.2.2).
    Padding,
    /// On the NPU, in several standard lengths (§5.2.2).
    Pipe,
    /// On the NPU, with graphs for the length of the prompt, which are built when it arrives (§5.2.2).
    OnlinePrepare,
}

impl Mode {
    fn participants(
        self,
        costs: &WeightOnlyCosts,
        rows: usize,
    ) -> Result<Vec<Participant>, PartitionError> {
        let npu = |shapes| Participant {
            processor: WeightOnlyCosts::NPU,
            shapes,
        };
        Ok(match self {
            Self::GpuOnly => vec![Participant {
                processor: WeightOnlyCosts::GPU,
                shapes: Shapes::Dynamic,
            }],
            Self::HeteroLayer | Self::HeteroTensor => {
                Participant::from_processors(costs.processors())
            }
            Self::Pipe => vec![npu(Shapes::Static(StandardLengths::default()))],
            Self::OnlinePrepare => vec![npu(Shapes::Dynamic)],
            Self::Padding => {
                let lengths = StandardLengths::default();
                let next = lengths
                    .lengths()
                    .iter()
                    .copied()
                    .find(|length| *length >= rows);
                vec![npu(Shapes::Static(StandardLengths::new(
                    next.into_iter().collect(),
                )?))]
            }
        })
    }

    fn restriction(self) -> Restriction {
        if self == Self::HeteroTensor {
            Restriction::Auto
        } else {
            Restriction::Layer
        }
    }
}

/// Error of a simulation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HeteroError {
    /// The profile has no W4A16.
    #[error(
        "the profile of {device} has no [w4a16]: expected rates of its GPU and NPU for INT4 weights in f16"
    )]
    Profile {
        /// The device.
        device: String,
    },
    /// A matmul has no plan.
    #[error(transparent)]
    Partition(#[from] PartitionError),
}

/// A device and a model on it.
#[derive(Clone, Copy, Debug)]
pub struct Hetero<'a> {
    device: &'a WeightOnly,
    description: &'a ModelDescription,
    /// Synchronization of a run. Plans are always made for [`Waiting::Fast`], so that runs differ only in
    /// synchronization (§5.4).
    waiting: Waiting,
}

/// A simulated run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The tasks, on the GPU, the NPU and the CPU.
    pub dag: Dag,
    /// When each task ran.
    pub timeline: Timeline,
    /// Seconds before the first task, in which the NPU's graphs for this prompt are built.
    pub prepare_seconds: f64,
    /// The distinct matmuls, and how each was partitioned.
    pub choices: Vec<(Role, Choice)>,
    /// Bytes of weights, activations and cache that the tasks read and write.
    pub bytes: f64,
    /// Busy and idle watts of the GPU and the NPU.
    watts: [(f64, f64); 2],
}

impl Run {
    /// Returns the seconds from the prompt to the logits of the next token.
    pub fn seconds(&self) -> f64 {
        self.prepare_seconds + self.timeline.seconds()
    }

    /// Returns the energy of GPU and NPU in joules.
    pub fn joules(&self) -> f64 {
        let of = |(processor, (busy, idle)): (ProcessorId, &(f64, f64))| {
            let worked = self.timeline.busy(processor);
            worked * busy + (self.seconds() - worked) * idle
        };
        [WeightOnlyCosts::GPU, WeightOnlyCosts::NPU]
            .into_iter()
            .zip(&self.watts)
            .map(of)
            .sum()
    }

    /// Returns the mean power of GPU and NPU.
    pub fn watts(&self) -> f64 {
        self.joules() / self.seconds()
    }
}

impl<'a> Hetero<'a> {
    /// Creates the simulation of a model on a device.
    ///
    /// # Errors
    /// If the profile of the device has no W4A16.
    pub fn new(
        device: &'a DeviceProfile,
        description: &'a ModelDescription,
        waiting: Waiting,
    ) -> Result<Self, HeteroError> {
        let w4a16 = device.w4a16.as_ref().ok_or_else(|| HeteroError::Profile {
            device: device.name.clone(),
        })?;
        Ok(Self {
            device: w4a16,
            description,
            waiting,
        })
    }

    /// Simulates a prompt of `tokens` tokens in one chunk.
    ///
    /// # Errors
    /// If `tokens` is 0 or exceeds the maximum of a plan.
    pub fn prefill(&self, tokens: usize, mode: Mode) -> Result<Run, HeteroError> {
        let mut run = Building::new(self, mode, tokens)?;
        run.blocks(tokens, 0, Phase::Prefill)?;
        let prepare_seconds = if mode == Mode::OnlinePrepare {
            run.graphs_seconds()
        } else {
            0.0
        };
        run.output()?;
        Ok(run.finish(prepare_seconds))
    }

    /// Simulates one decoded token after `before` others.
    ///
    /// # Errors
    /// If the sizes of the model have no plan.
    pub fn decode(&self, before: usize, mode: Mode) -> Result<Run, HeteroError> {
        let mut run = Building::new(self, mode, 1)?;
        run.blocks(1, before, Phase::Decode)?;
        run.output()?;
        Ok(run.finish(0.0))
    }
}

/// A run under construction.
struct Building<'a> {
    device: &'a WeightOnly,
    description: &'a ModelDescription,
    solver: Solver<WeightOnlyCosts<'a>>,
    restriction: Restriction,
    /// Costs of joins in the run.
    joins: Joins,
    /// Processor, seconds and predecessors.
    tasks: Vec<(usize, f64, Vec<usize>)>,
    /// The tasks that the next one waits for.
    last: Vec<usize>,
    choices: HashMap<(Phase, ProductShape), Choice>,
    /// The keys of `choices`, in the order of insertion.
    made: Vec<(Role, Phase, ProductShape)>,
    bytes: f64,
}

impl<'a> Building<'a> {
    fn new(of: &Hetero<'a>, mode: Mode, rows: usize) -> Result<Self, HeteroError> {
        let costs = WeightOnlyCosts::new(of.device);
        let joins = costs.joins(of.waiting)?;
        let participants = mode.participants(&costs, rows)?;
        let planned = costs.joins(Waiting::Fast)?;
        Ok(Self {
            device: of.device,
            description: of.description,
            solver: Solver::new(participants, costs, planned)?,
            restriction: mode.restriction(),
            joins,
            tasks: Vec::new(),
            last: Vec::new(),
            choices: HashMap::new(),
            made: Vec::new(),
            bytes: 0.0,
        })
    }

    /// Adds all layers, for `rows` tokens after `before` others.
    fn blocks(&mut self, rows: usize, before: usize, phase: Phase) -> Result<(), HeteroError> {
        let description = self.description;
        // The number of rows is checked to be at least one before a graph is made.
        let products = description
            .blocks
            .iter()
            .map(|block| partition::products(block, description.hidden, rows));
        let products: Vec<_> = products.collect::<Result<_, _>>()?;
        let graph = Graph::with_splits(description, rows, rows, |_| true);
        for subgraph in graph.subgraphs() {
            if subgraph.role.format() == Format::Float {
                self.float(subgraph, &description.blocks[subgraph.block], rows, before);
                continue;
            }
            for (role, shape) in products[subgraph.block]
                .iter()
                .filter(|(role, _)| *role == subgraph.role)
            {
                self.product(*role, *shape, phase)?;
            }
        }
        Ok(())
    }

    /// Adds the output matrix, for the last token only.
    fn output(&mut self) -> Result<(), HeteroError> {
        let shape = ProductShape::new(1, self.description.vocab, self.description.hidden)?;
        // A single row has its own graph, as in decode.
        self.product(Role::Down, shape, Phase::Decode)
    }

    fn float(&mut self, subgraph: &Subgraph, block: &BlockDescription, rows: usize, before: usize) {
        const BYTES_F16: usize = 2;
        let attention = block
            .attention()
            .filter(|_| subgraph.role == Role::Attention);
        let cache = attention.map_or(0, |attention| {
            2 * attention.kv_heads * attention.head_dim * before * BYTES_F16
        });
        let seconds = self.device.gpu_float(
            subgraph,
            rows,
            subgraph.operations(rows, before) as f64,
            cache as f64,
        );
        self.bytes += (subgraph.activation_numbers_per_row * rows * BYTES_F16 + cache) as f64;
        self.last = vec![self.push(WeightOnlyCosts::GPU, seconds)];
    }

    fn product(
        &mut self,
        role: Role,
        shape: ProductShape,
        phase: Phase,
    ) -> Result<(), HeteroError> {
        if !self.choices.contains_key(&(phase, shape)) {
            self.choices.insert(
                (phase, shape),
                self.solver.solve(shape, phase, self.restriction)?,
            );
            self.made.push((role, phase, shape));
        }
        let best = &self.choices[&(phase, shape)].best;
        let join = self.joins.seconds(best.busy.iter().copied());
        let pieces = best
            .partition
            .pieces
            .iter()
            .map(|piece| piece.shape(shape.depth()));
        let bytes = |piece: ProductShape| {
            self.device
                .product_bytes(piece.rows(), piece.columns(), piece.depth())
        };
        self.bytes += pieces.map(bytes).sum::<f64>();
        let busy = best.busy.clone();
        let parts: Vec<_> = busy
            .into_iter()
            .map(|(processor, seconds)| self.push(processor, seconds))
            .collect();
        self.last = parts;
        if join > 0.0 {
            self.last = vec![self.push(CPU, join)];
        }
        Ok(())
    }

    /// Adds a task that waits for the last ones.
    fn push(&mut self, processor: ProcessorId, seconds: f64) -> usize {
        self.tasks
            .push((processor.index(), seconds, self.last.clone()));
        self.tasks.len() - 1
    }

    /// Returns the seconds to build the graphs of the distinct matmuls so far.
    fn graphs_seconds(&self) -> f64 {
        let of = |(_, _, shape): &(Role, Phase, ProductShape)| {
            self.device
                .npu_graph(shape.rows(), shape.columns(), shape.depth())
        };
        self.made.iter().map(of).sum()
    }

    fn finish(mut self, prepare_seconds: f64) -> Run {
        let dag = Dag::new(self.tasks);
        let timeline = simulate(&dag, Policy::InOrder, |task| dag.seconds(task));
        let choice = |(role, phase, shape)| {
            self.choices
                .remove(&(phase, shape))
                .map(|choice| (role, choice))
        };
        let WeightOnly { gpu, npu, .. } = self.device;
        Run {
            dag,
            timeline,
            prepare_seconds,
            choices: self.made.into_iter().filter_map(choice).collect(),
            bytes: self.bytes,
            watts: [
                (gpu.busy_watts, gpu.idle_watts),
                (npu.busy_watts, npu.idle_watts),
            ],
        }
    }
}

#[cfg(test)]
mod tests;
