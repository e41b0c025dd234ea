//! Decode steps whose products are cut across processors (HeteroLLM, §4.1.2). Their tasks are those of a chunk with the
//! step's rows, followed by parts of the output matrix. A step without cuts is a chain of blocks instead.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use triad_kernels::lock;
use triad_model::description::ModelDescription;
use triad_plan::graph::{Format, Graph, Subgraph};
use triad_plan::placement::Placement;
use triad_plan::processors::{ProcessorId, Processors};
use triad_plan::schedule::{Dag, Node};
use triad_plan::tasks::{KINDS, Operation, PrefillTask, PrefillTasks, TaskOptions};

use super::costs;
use super::cut_selector::CutSelector;
use super::products::DecodePlans;
use super::programs::Programs;
use super::programs_of_parts::{Devices, prepare_cut};
use super::work::{Cuts, product_depth};
use crate::error::Result;
use crate::shadows::shadows;
use triad_engine::Model;

/// The cut steps of an engine.
pub(super) struct Steps {
    plans: DecodePlans,
    options: TaskOptions,
    float: ProcessorId,
    /// The maximum rows of a step that are planned.
    most_rows: usize,
    /// By rows less one, the steps that were needed so far; the inner `None` if nothing of a step is cut.
    made: Mutex<Vec<Option<Option<Arc<CutStep>>>>>,
}

/// The tasks of steps with a fixed number of rows.
pub(super) struct CutStep {
    pub(super) graph: Graph,
    /// The tasks of the blocks, with the same numbers as in `dag`.
    pub(super) tasks: PrefillTasks,
    pub(super) options: TaskOptions,
    /// The columns of the output matrix, for each task after those of the blocks.
    pub(super) outputs: Vec<Range<usize>>,
    /// All tasks.
    pub(super) dag: Arc<Dag>,
    /// Decides whether steps are cut.
    pub(super) trial: Mutex<CutSelector>,
}

impl Steps {
    /// Prepares the parts that devices run of steps with up to `most_rows` rows.
    ///
    /// # Errors
    /// If the plans are not those of this model, or a device refuses a part.
    pub(super) fn prepare(
        model: &Model,
        processors: &Processors,
        (devices, programs): (&Devices, &mut [Option<Programs>]),
        (plans, float): (&DecodePlans, ProcessorId),
        most_rows: usize,
    ) -> Result<Self> {
        let description = model.description();
        let most_rows = most_rows.min(plans.most_rows());
        let graph = graph(description, most_rows);
        let placement = Placement::new(&graph, processors, |_, _| 1.0)?;
        let mut options = TaskOptions::whole(placement, 1);
        let cuts = Cuts {
            by_role: &[],
            plans: Some(&plans.products),
            joint: None,
        };
        let cut = |subgraph| Ok(cuts.cut(description, subgraph)?.cloned());
        options.cuts = graph.subgraphs().iter().map(cut).collect::<Result<_>>()?;
        for subgraph in 0..graph.subgraphs().len() {
            if let Some(cut) = options.cut(subgraph) {
                prepare_cut(model, devices, &graph, subgraph, cut, programs)?;
            }
        }
        let options = options.with_shadows(&graph, processors, &shadows(model));
        let steps = Self {
            plans: plans.clone(),
            options,
            float,
            most_rows,
            made: Mutex::default(),
        };
        // Fails early: whether processors can compute their parts does not depend on the rows.
        steps.make(description, processors, 1)?;
        Ok(steps)
    }

    /// Returns the tasks of a step of `rows` rows; `None` if nothing of it is cut, or it has no plan.
    pub(super) fn step(
        &self,
        description: &ModelDescription,
        processors: &Processors,
        rows: usize,
    ) -> Option<Arc<CutStep>> {
        if rows > self.most_rows {
            return None;
        }
        let mut made = lock(&self.made);
        if made.len() < rows {
            made.resize(rows, None);
        }
        let make = || {
            let cuts = self.plans.cuts(rows, self.float);
            cuts.then(|| self.make(description, processors, rows))
                .and_then(Result::ok)
                .map(Arc::new)
        };
        made[rows - 1].get_or_insert_with(make).clone()
    }

    /// Returns whether some shadows are separate tasks.
    pub(super) fn has_shadows(&self) -> bool {
        self.options.shadows.iter().any(Option::is_some)
    }

    fn make(
        &self,
        description: &ModelDescription,
        processors: &Processors,
        rows: usize,
    ) -> Result<CutStep> {
        let graph = graph(description, rows);
        let expected = |task: &PrefillTask, processor| {
            let planned = self.seconds(
                description,
                &graph.subgraphs()[task.task.subgraph],
                rows,
                processor,
            );
            let planned = planned.filter(|_| task.operation == Operation::Compute);
            planned.unwrap_or_else(|| costs::guess(&graph, task))
        };
        let tasks = PrefillTasks::new(&graph, processors, &self.options, expected)?;
        let dag = &tasks.dag;
        let mut nodes: Vec<_> = (0..dag.len()).map(|task| node(dag, task)).collect();
        let last = tasks.pieces(0, graph.subgraphs().len() - 1);
        let choice = self
            .plans
            .output(rows)
            .expect("a planned step has an output");
        let mut outputs = Vec::new();
        for piece in &choice.best.partition.pieces {
            let busy = choice
                .best
                .busy
                .iter()
                .find(|(processor, _)| *processor == piece.processor);
            let seconds = busy.map_or(0.0, |(_, seconds)| *seconds);
            let on = |id: ProcessorId| processors[id].computes(Format::Float).then_some(seconds);
            nodes.push(Node {
                home: piece.processor,
                seconds: processors.ids().map(on).collect(),
                predecessors: last.clone().collect(),
                kind: KINDS,
            });
            outputs.push(piece.part.columns.clone());
        }
        let dag = Arc::new(Dag::from_nodes(processors.len(), nodes));
        Ok(CutStep {
            graph,
            tasks,
            options: self.options.clone(),
            outputs,
            dag,
            trial: Mutex::default(),
        })
    }

    /// Returns the expected seconds of a processor's part of a product, if the plan gives it one.
    fn seconds(
        &self,
        description: &ModelDescription,
        subgraph: &Subgraph,
        rows: usize,
        processor: ProcessorId,
    ) -> Option<f64> {
        let depth = product_depth(description, subgraph)?;
        let plan = self
            .plans
            .products
            .product(subgraph.role, subgraph.output_columns, depth)?;
        let busy = &plan.choice(rows)?.best.busy;
        busy.iter()
            .find(|(other, _)| *other == processor)
            .map(|(_, seconds)| *seconds)
    }
}

/// Returns a step as one chunk, with feed-forwards split into three subgraphs: only products are cut.
fn graph(description: &ModelDescription, rows: usize) -> Graph {
    Graph::with_splits(description, rows, rows, |_| true)
}

/// Returns a task of a DAG as the node that it was made from.
fn node(dag: &Dag, task: usize) -> Node {
    Node {
        home: dag.home(task),
        seconds: dag
            .processor_ids()
            .map(|id| dag.seconds_on(task, id))
            .collect(),
        predecessors: dag.predecessors(task).to_vec(),
        kind: dag.kind(task),
    }
}
