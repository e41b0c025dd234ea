//! The tasks of a step of decode whose products are cut across processors (HeteroLLM, §4.1.2): those of a chunk with the
//! step's rows, and behind them parts of the output matrix. A step of which nothing is cut is a chain of blocks instead.

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
use super::products::DecodePlans;
use super::programs::Programs;
use super::trial::Trial;
use super::work::{Cuts, Devices, prepare_cut, product_depth, shadows};
use crate::error::Result;
use crate::model::Model;

/// How the steps of an engine become tasks.
pub(super) struct Steps {
    plans: DecodePlans,
    options: TaskOptions,
    float: ProcessorId,
    /// Rows that there is a plan for, at most.
    most_rows: usize,
    /// By rows less one, those that were needed so far; `None` where nothing of a step is cut.
    made: Mutex<Vec<Option<Option<Arc<CutStep>>>>>,
}

/// The tasks of steps with one number of rows.
pub(super) struct CutStep {
    pub(super) graph: Graph,
    /// Of the blocks; their numbers are those in `dag`, too.
    pub(super) tasks: PrefillTasks,
    pub(super) options: TaskOptions,
    /// Columns of the output matrix, of each task behind those of the blocks.
    pub(super) outputs: Vec<Range<usize>>,
    /// All tasks.
    pub(super) dag: Arc<Dag>,
    /// Whether steps are cut.
    pub(super) trial: Mutex<Trial>,
}

impl Steps {
    /// Has devices prepare what they run of steps with up to `most_rows` rows.
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
        let cut = |subgraph| Ok(cuts.of(description, subgraph)?.cloned());
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
        // Whether the parts can be computed where they are does not depend on the step.
        steps.make(description, processors, 1)?;
        Ok(steps)
    }

    /// The tasks of a step of `rows` rows; `None` where nothing of it is cut, or nobody planned it.
    pub(super) fn of(
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

    /// Whether some shadows are tasks of their own.
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
            .expect("a step that is planned has an output");
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

    /// What a part of a product is expected to take on a processor, where the plan gives it one.
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

/// A step as one chunk, whose feed-forwards are three subgraphs each: products alone are cut.
fn graph(description: &ModelDescription, rows: usize) -> Graph {
    Graph::with_splits(description, rows, rows, |_| true)
}

/// A task of a dag as it was made.
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
