//! Tasks of a prefill, for both the simulator and the engine: whole or partial subgraphs on chunks, and shadows.
//!
//! A shadow (llm.npu, §3.3) computes the contribution of a subgraph's outlier inputs to its linear layers. If a
//! subgraph runs on a processor that doesn't compute shadows itself, the shadow is a separate task on a processor that
//! computes in float. The tasks that read the output wait for both.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::graph::{Format, Graph, Role, Subgraph, Task};
use crate::placement::Placement;
use crate::processors::{ProcessorId, Processors};
use crate::schedule::parts::{Cut, CutError, Part};
use crate::schedule::{Dag, Node};
use crate::timeline::Label;

/// The point at which the shadow of a subgraph can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shadow {
    /// Together with the linear layers, which read the same input.
    Concurrent,
    /// After the subgraph is complete, because the outliers are in an intermediate result, such as the input of down in
    /// a feed-forward that is one subgraph.
    After,
}

/// The operation of a task on its subgraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// The subgraph, or a part of its output, without the contribution of its shadow.
    Compute,
    /// The shadow.
    Shadow,
}

impl Operation {
    /// Returns the kind of the task, below [`KINDS`]. The scheduler assumes that tasks of one kind deviate from their
    /// expected time by the same factor.
    pub fn kind(self, role: Role) -> usize {
        match self {
            Self::Compute => role as usize,
            Self::Shadow => Role::ALL.len() + role as usize,
        }
    }
}

/// Number of task kinds: two for each role.
pub const KINDS: usize = 2 * Role::ALL.len();

/// Options for creating the tasks of a prefill.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskOptions {
    /// Processors of the subgraphs that are not cut.
    pub placement: Placement,
    /// Maximum number of chunks that have buffers at the same time. A chunk starts when an earlier chunk releases its
    /// buffers.
    pub chunks_in_flight: usize,
    /// Cut of each subgraph's output across processors, indexed by subgraph. Subgraphs past the end are not cut.
    pub cuts: Vec<Option<Cut>>,
    /// Shadow of each subgraph, if it is a separate task, indexed by subgraph. Subgraphs past the end have none.
    pub shadows: Vec<Option<Shadow>>,
    /// Further processors that may compute linear layers, in addition to the placement and the cuts, when each prompt
    /// has its own assignment ([`PrefillTasks::assigned`]).
    pub products_on: Vec<ProcessorId>,
}

impl TaskOptions {
    /// Creates options with one task for each subgraph of each chunk.
    pub fn whole(placement: Placement, chunks_in_flight: usize) -> Self {
        Self {
            placement,
            chunks_in_flight,
            cuts: Vec::new(),
            shadows: Vec::new(),
            products_on: Vec::new(),
        }
    }

    /// Returns the cut of a subgraph.
    pub fn cut(&self, subgraph: usize) -> Option<&Cut> {
        self.cuts.get(subgraph)?.as_ref()
    }

    /// Returns the shadow of a subgraph if it is a separate task.
    pub fn shadow(&self, subgraph: usize) -> Option<Shadow> {
        *self.shadows.get(subgraph)?
    }
}

/// Flags for the linear inputs of a block that keep their shadow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockShadows {
    /// Input of query, key and value.
    pub attention: bool,
    /// Input of attention's output layer.
    pub attention_output: bool,
    /// Input of gate and up.
    pub feed_forward: bool,
    /// Input of down.
    pub down: bool,
}

impl BlockShadows {
    /// Returns whether a feed-forward must be split if it runs on a processor without shadows. The shadow of gate and
    /// up must be added before the activation.
    pub fn splits(self) -> bool {
        self.feed_forward
    }

    /// Returns when the shadow of the block's subgraph with this role can start, or `None` if it has no shadow.
    pub fn of_role(self, role: Role) -> Option<Shadow> {
        let (is_kept, shadow) = match role {
            Role::QueryKeyValue => (self.attention, Shadow::Concurrent),
            Role::AttentionOutput => (self.attention_output, Shadow::Concurrent),
            Role::GateUp => (self.feed_forward, Shadow::Concurrent),
            Role::Down => (self.down, Shadow::Concurrent),
            Role::FeedForward => (self.down, Shadow::After),
            Role::AttentionNorm | Role::Attention | Role::FeedForwardNorm | Role::Activation => {
                (false, Shadow::Concurrent)
            }
        };
        is_kept.then_some(shadow)
    }
}

impl TaskOptions {
    /// Makes the shadows of `blocks` separate tasks where a processor of a subgraph does not compute them:
    /// [`Processor::multiplies_alone`](crate::processors::Processor::multiplies_alone).
    #[must_use]
    pub fn with_shadows(
        mut self,
        graph: &Graph,
        processors: &Processors,
        blocks: &[BlockShadows],
    ) -> Self {
        let multiplies_alone = |id: ProcessorId| processors[id].multiplies_alone();
        let of_subgraph = |(index, subgraph): (usize, &Subgraph)| {
            let is_apart = match self.cut(index) {
                _ if self.products_on.iter().copied().any(multiplies_alone) => true,
                Some(cut) => cut.processors().any(multiplies_alone),
                None => multiplies_alone(self.placement.places()[index].processor),
            };
            blocks
                .get(subgraph.block)
                .filter(|_| is_apart)?
                .of_role(subgraph.role)
        };
        self.shadows = graph
            .subgraphs()
            .iter()
            .enumerate()
            .map(of_subgraph)
            .collect();
        self
    }
}

/// A task of a prefill.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PrefillTask {
    /// Subgraph and chunk, with the part's number. The part of a shadow is 0.
    pub task: Task,
    /// Operation on the subgraph.
    pub operation: Operation,
    /// Rectangle of the output.
    pub part: Part,
}

impl PrefillTask {
    /// Creates a task for a subgraph on a chunk that computes the whole output.
    pub fn whole(graph: &Graph, task: Task) -> Self {
        let (rows, columns) = (
            graph.chunks()[task.chunk].len(),
            graph.subgraphs()[task.subgraph].output_columns,
        );
        Self {
            task,
            operation: Operation::Compute,
            part: Part {
                rows: 0..rows,
                columns: 0..columns,
            },
        }
    }

    /// Returns the fraction of the whole output that the task computes.
    pub fn share(&self, graph: &Graph) -> f64 {
        let Self { part: all, .. } = Self::whole(graph, self.task);
        let area = |part: &Part| (part.rows.len() * part.columns.len()) as f64;
        area(&self.part) / area(&all)
    }
}

/// The processors that compute a subgraph of a chunk.
#[derive(Clone, Debug, PartialEq)]
pub enum Assigned {
    /// One processor.
    Whole(ProcessorId),
    /// Parts of a linear subgraph's output, which cover all of it without overlap.
    Parts(Vec<(ProcessorId, Part)>),
}

/// The tasks of a prefill and their dependencies.
#[derive(Clone, Debug)]
pub struct PrefillTasks {
    /// Dependencies and expected seconds of the tasks.
    pub dag: Dag,
    /// Tasks by their number in the dag: ordered by chunk, then by subgraph, then by part. A shadow comes before or
    /// after the parts of its subgraph, depending on when it starts.
    pub tasks: Vec<PrefillTask>,
    /// Numbers of the tasks after which an output is complete, `[chunks, subgraphs]`.
    pieces: Vec<Range<usize>>,
    subgraphs: usize,
}

impl PrefillTasks {
    /// Creates the tasks of `graph`. `seconds` returns the time that a task is expected to take on a processor that
    /// computes its format. Shadows are in float; their home is the processor of the subgraph that quantizes their
    /// input.
    ///
    /// # Errors
    /// If a subgraph that is not a linear layer is cut, or a processor has a share of a subgraph whose format it does
    /// not compute.
    ///
    /// # Panics
    /// If `chunks_in_flight` is 0, or a processor is not in the list.
    pub fn new(
        graph: &Graph,
        processors: &Processors,
        options: &TaskOptions,
        seconds: impl Fn(&PrefillTask, ProcessorId) -> f64,
    ) -> Result<Self, CutError> {
        let by_options = |whole: Task| {
            let PrefillTask { part: all, .. } = PrefillTask::whole(graph, whole);
            match options.cut(whole.subgraph) {
                Some(cut) => Ok(Assigned::Parts(
                    cut.parts(all.rows.len(), all.columns.len())?,
                )),
                None => Ok(Assigned::Whole(
                    options.placement.places()[whole.subgraph].processor,
                )),
            }
        };
        Self::assigned(graph, processors, options, &by_options, seconds)
    }

    /// Creates the tasks as [`PrefillTasks::new`] does, but `assignment` returns the processors of each task of
    /// [`Graph::tasks`]. It replaces the placement and the cuts of `options`.
    ///
    /// # Errors
    /// Those of [`PrefillTasks::new`] and of `assignment`.
    ///
    /// # Panics
    /// See [`PrefillTasks::new`].
    pub fn assigned(
        graph: &Graph,
        processors: &Processors,
        options: &TaskOptions,
        assignment: &dyn Fn(Task) -> Result<Assigned, CutError>,
        seconds: impl Fn(&PrefillTask, ProcessorId) -> f64,
    ) -> Result<Self, CutError> {
        assert!(options.chunks_in_flight > 0, "a chunk needs buffers");
        let subgraphs = graph.subgraphs().len();
        let mut made = Self {
            dag: Dag::from_nodes(0, []),
            tasks: Vec::new(),
            pieces: Vec::new(),
            subgraphs,
        };
        let mut nodes = Vec::new();
        for whole in graph.tasks() {
            let freed = whole
                .chunk
                .checked_sub(options.chunks_in_flight)
                .filter(|_| whole.subgraph == 0);
            let freed = freed.map(|chunk| Task {
                chunk,
                subgraph: subgraphs - 1,
                part: 0,
            });
            let before = graph.dependencies(whole).chain(freed);
            let before: Vec<usize> = before
                .flat_map(|before| made.pieces(before.chunk, before.subgraph))
                .collect();
            let first = nodes.len();
            for (home, task) in pieces(graph, processors, options, assignment(whole)?, whole)? {
                let role = graph.subgraphs()[whole.subgraph].role;
                let is_after = options.shadow(whole.subgraph) == Some(Shadow::After);
                let predecessors = match task.operation {
                    Operation::Shadow if is_after => (first..nodes.len()).collect(),
                    _ => before.clone(),
                };
                let format = match task.operation {
                    Operation::Compute => role.format(),
                    Operation::Shadow => Format::Float,
                };
                let on = |id: ProcessorId| {
                    // A processor whose memory window has no room for a subgraph now has none later either.
                    let has_room = id == home || processors[id].window.is_none();
                    (has_room && processors[id].computes(format)).then(|| seconds(&task, id))
                };
                let seconds = processors.ids().map(on).collect();
                nodes.push(Node {
                    home,
                    seconds,
                    predecessors,
                    kind: task.operation.kind(role),
                });
                made.tasks.push(task);
            }
            made.pieces.push(first..nodes.len());
        }
        made.dag = Dag::from_nodes(processors.len(), nodes);
        Ok(made)
    }

    /// Returns the numbers of the tasks after which a subgraph's output on a chunk is complete: its parts and its
    /// shadow.
    pub fn pieces(&self, chunk: usize, subgraph: usize) -> Range<usize> {
        self.pieces[chunk * self.subgraphs + subgraph].clone()
    }

    /// Returns a human-readable label for each task.
    pub fn labels(&self, graph: &Graph) -> Vec<Label> {
        let label = |PrefillTask {
                         task, operation, ..
                     }: &PrefillTask| {
            let subgraph = &graph.subgraphs()[task.subgraph];
            let kind = match operation {
                Operation::Compute => subgraph.role.name(),
                Operation::Shadow => "shadow",
            };
            Label {
                chunk: task.chunk,
                block: subgraph.block,
                kind: kind.into(),
            }
        };
        self.tasks.iter().map(label).collect()
    }
}

/// Returns the tasks of one subgraph on one chunk, each with its home processor.
fn pieces(
    graph: &Graph,
    processors: &Processors,
    options: &TaskOptions,
    assigned: Assigned,
    whole: Task,
) -> Result<Vec<(ProcessorId, PrefillTask)>, CutError> {
    let role = graph.subgraphs()[whole.subgraph].role;
    let PrefillTask { part: all, .. } = PrefillTask::whole(graph, whole);
    let home = |subgraph: usize| options.placement.places()[subgraph].processor;
    let parts = match assigned {
        Assigned::Parts(_) if !role.is_product() => return Err(CutError::Role { role }),
        Assigned::Parts(parts) => parts,
        Assigned::Whole(home) => vec![(home, all.clone())],
    };
    if let Some((processor, _)) = parts
        .iter()
        .find(|(processor, _)| !processors[*processor].computes(role.format()))
    {
        return Err(CutError::Format {
            processor: *processor,
            role,
        });
    }
    let compute = parts.into_iter().enumerate().map(|(number, (home, part))| {
        (
            home,
            PrefillTask {
                task: Task {
                    part: number,
                    ..whole
                },
                operation: Operation::Compute,
                part,
            },
        )
    });
    let mut pieces: Vec<_> = compute.collect();
    if let Some(shadow) = options.shadow(whole.subgraph) {
        // The preceding subgraph quantizes the input of the linear layers.
        let home = home(whole.subgraph.saturating_sub(1));
        let shadow_task = PrefillTask {
            task: whole,
            operation: Operation::Shadow,
            part: all,
        };
        let place = if shadow == Shadow::Concurrent {
            0
        } else {
            pieces.len()
        };
        pieces.insert(place, (home, shadow_task));
    }
    Ok(pieces)
}

impl Dag {
    /// Creates the tasks of a prefill in the order of [`Graph::tasks`]. Each subgraph is whole, without a shadow, and
    /// on the processor of its placement. `seconds` returns the time that a task is expected to take on a processor
    /// that computes its format.
    pub fn of_prefill(
        graph: &Graph,
        processors: &Processors,
        placement: &Placement,
        seconds: impl Fn(Task, ProcessorId) -> f64,
    ) -> Self {
        let options = TaskOptions::whole(placement.clone(), graph.chunks().len());
        let tasks = PrefillTasks::new(graph, processors, &options, |task, id| {
            seconds(task.task, id)
        });
        tasks.expect("a subgraph is placed where it can run").dag
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processors::Processor;
    use crate::schedule::parts::{Axis, Share};
    use proptest::prelude::*;

    /// Returns a graph of two blocks in four chunks. The feed-forward of the second block is split.
    fn graph() -> Graph {
        let mut description = triad_model::family::shape("smollm2-135m").unwrap();
        description.blocks.truncate(2);
        Graph::with_splits(&description, 100, 30, |block| block == 1)
    }

    fn cpus() -> Processors {
        Processors::new(
            (0..4)
                .map(|index| Processor::cpu(&format!("cpu{index}")))
                .collect(),
        )
        .unwrap()
    }

    prop_compose! {
        /// Generates cuts of linear subgraphs, and shadows of any subgraphs.
        fn options()(
            cuts in prop::collection::vec(prop::option::of((any::<bool>(), prop::collection::vec(0.1f64..1.0, 1..5), 1usize..40)), 14),
            shadows in prop::collection::vec(prop::option::of(any::<bool>()), 14),
            chunks_in_flight in 1usize..5,
        ) -> TaskOptions {
            let (graph, processors) = (graph(), cpus());
            let placement = Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
            let roles = || graph.subgraphs().iter().map(|subgraph| subgraph.role);
            let cut = |(of_rows, shares, multiple): (bool, Vec<f64>, usize)| {
                let shares = shares.into_iter().enumerate();
                let shares = shares.map(|(index, share)| Share { processor: ProcessorId::new(index), share });
                Cut::new(if of_rows { Axis::Rows } else { Axis::Columns }, shares.collect(), multiple).unwrap()
            };
            let shadow = |is_after: bool| if is_after { Shadow::After } else { Shadow::Concurrent };
            TaskOptions {
                placement,
                chunks_in_flight,
                cuts: roles().zip(cuts).map(|(role, found)| found.filter(|_| role.is_product()).map(cut)).collect(),
                shadows: roles()
                    .zip(shadows)
                    .map(|(role, found)| found.filter(|_| role.format() == Format::Int8).map(shadow))
                    .collect(),
                products_on: Vec::new(),
            }
        }
    }

    proptest! {
        #[test]
        fn what_reads_an_output_waits_for_all_of_its_parts_and_its_shadow(options in options()) {
            let graph = graph();
            let made = PrefillTasks::new(&graph, &cpus(), &options, |_, _| 1.0).unwrap();
            let whole = |task: Task| Task { part: 0, ..task };
            for (number, PrefillTask { task, operation, .. }) in made.tasks.iter().enumerate() {
                let mut expected: Vec<_> = graph.dependencies(whole(*task)).collect();
                if task.subgraph == 0 && task.chunk >= options.chunks_in_flight {
                    let chunk = task.chunk - options.chunks_in_flight;
                    expected.push(Task { chunk, subgraph: graph.subgraphs().len() - 1, part: 0 });
                }
                let mut of_expected = |other: &PrefillTask| expected.contains(&whole(other.task));
                let is_after = options.shadow(task.subgraph) == Some(Shadow::After);
                let mut following = |other: &PrefillTask| {
                    whole(other.task) == whole(*task) && other.operation == Operation::Compute
                };
                let waits: &mut dyn FnMut(&PrefillTask) -> bool =
                    if *operation == Operation::Shadow && is_after { &mut following } else { &mut of_expected };
                let expected: Vec<_> =
                    made.tasks.iter().enumerate().filter(|(_, other)| waits(other)).map(|(number, _)| number).collect();
                prop_assert_eq!(made.dag.predecessors(number), expected, "{:?}", made.tasks[number]);
            }
        }

        #[test]
        fn the_parts_of_a_task_are_all_of_its_output(options in options()) {
            let graph = graph();
            let area = |task: &PrefillTask, _| (task.part.rows.len() * task.part.columns.len()) as f64;
            let made = PrefillTasks::new(&graph, &cpus(), &options, area).unwrap();
            for whole in graph.tasks() {
                let (rows, columns) =
                    (graph.chunks()[whole.chunk].len(), graph.subgraphs()[whole.subgraph].output_columns);
                let of = |operation| {
                    let pieces = made.pieces(whole.chunk, whole.subgraph);
                    let pieces = pieces.filter(|number| made.tasks[*number].operation == operation);
                    pieces.map(|number| made.dag.seconds(number)).sum::<f64>()
                };
                let shadow = if options.shadow(whole.subgraph).is_some() { 1.0 } else { 0.0 };
                let all = (rows * columns) as f64;
                prop_assert_eq!((of(Operation::Compute), of(Operation::Shadow)), (all, shadow * all));
            }
        }
    }

    #[test]
    fn a_processor_has_no_share_of_what_it_does_not_compute() {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        let graph = Graph::with_splits(&description, 64, 64, |block| block > 0);
        let processors = Processors::new(vec![
            Processor::cpu("cpu"),
            Processor {
                formats: vec![Format::Float],
                ..Processor::gpu("gpu")
            },
        ]);
        let processors = processors.unwrap();
        let cut_of = |multiple| {
            let shares = processors
                .ids()
                .map(|processor| Share {
                    processor,
                    share: 1.0,
                })
                .collect();
            Cut::new(Axis::Columns, shares, multiple).unwrap()
        };
        let made = |processors: &Processors, role| {
            let is_role = |subgraph: &Subgraph| (subgraph.role == role).then(|| cut_of(64));
            let cuts = graph.subgraphs().iter().map(is_role).collect();
            let placement = Placement::new(&graph, processors, |_, _| 1.0).unwrap();
            let options = TaskOptions {
                cuts,
                ..TaskOptions::whole(placement, 4)
            };
            PrefillTasks::new(&graph, processors, &options, |_, _| 1.0)
        };
        let refused = made(&processors, Role::Down).unwrap_err().to_string();
        assert_eq!(
            refused,
            "processor 1 has a share of down but does not compute it: expected int8"
        );
        for role in [Role::Attention, Role::FeedForward, Role::Activation] {
            let refused = made(&processors, role).unwrap_err().to_string();
            let expected = "query-key-value, attention-output, gate-up or down";
            assert_eq!(
                refused,
                format!("{} can't be cut: expected {expected}", role.name())
            );
        }
        let tasks = made(&Processors::cpu_and_npu(None), Role::AttentionOutput)
            .unwrap()
            .tasks;
        let of_part = |part| {
            tasks
                .iter()
                .find(|task| task.task.subgraph == 3 && task.task.part == part)
                .unwrap()
        };
        let [one, two] = [0, 1].map(|part| &of_part(part).part.columns);
        assert_eq!(
            (one, two),
            (&(0..320), &(320..576)),
            "576 columns in tiles of 64"
        );
    }
}
