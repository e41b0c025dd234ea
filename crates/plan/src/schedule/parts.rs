//! Parts of a task: how the output of one subgraph on one chunk is cut across processors.
//!
//! A [`Cut`] gives each of several processors a share of the rows or of the columns of an output; [`Cut::parts`] makes
//! rectangles of it that cover the output without overlap. What reads the output waits for all of them:
//! [`PrefillTasks`] has the tasks of a prefill in which some subgraphs are cut.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Dag, Node};
use crate::graph::{Graph, Role, Task};
use crate::placement::Placement;
use crate::processors::{ProcessorId, Processors};

/// A rectangle of the output of a subgraph on a chunk, `[rows, columns]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Rows of the chunk, from its first token on.
    pub rows: Range<usize>,
    /// Output features: [`Subgraph::output_columns`](crate::graph::Subgraph::output_columns).
    pub columns: Range<usize>,
}

/// What is cut into shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// The tokens of a chunk: each processor reads all weights.
    Rows,
    /// The output features: each processor reads all of the input, and its share of the weights.
    Columns,
}

/// The share of one processor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The processor.
    pub processor: ProcessorId,
    /// Its share; of the sum of all shares.
    pub share: f64,
}

/// How an output is cut.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cut {
    axis: Axis,
    shares: Vec<Share>,
    multiple: usize,
}

/// A cut that is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CutError {
    /// Nobody computes anything.
    #[error("the shares of a cut are all zero: expected at least one above 0")]
    Empty,
    /// A share is negative or not finite.
    #[error("the share of processor {} is {share}: expected a finite number of 0 or above", processor.index())]
    Share {
        /// Whose it is.
        processor: ProcessorId,
        /// The share.
        share: f64,
    },
    /// A processor has two shares.
    #[error("processor {} has two shares of a cut: expected one", processor.index())]
    Duplicate {
        /// Which processor.
        processor: ProcessorId,
    },
    /// Parts would have to begin at multiples of 0.
    #[error("the multiple of a cut is 0: expected at least 1")]
    Multiple,
    /// A processor of a cut can't compute the subgraph.
    #[error("processor {} has a share of {} but does not compute it: expected {}", processor.index(), role.name(), role.format().name())]
    Format {
        /// Which processor.
        processor: ProcessorId,
        /// What is cut.
        role: Role,
    },
}

impl Cut {
    /// Cuts `axis` in the proportion of `shares`, in their order. All parts but the last begin and end at a multiple of
    /// `multiple`, as of the columns of a kernel's tile.
    ///
    /// # Errors
    /// If a share is negative or not finite, all are zero, a processor has two, or `multiple` is zero.
    pub fn new(axis: Axis, shares: Vec<Share>, multiple: usize) -> Result<Self, CutError> {
        for (index, Share { processor, share }) in shares.iter().copied().enumerate() {
            if !(share >= 0.0 && share.is_finite()) {
                return Err(CutError::Share { processor, share });
            }
            if shares[..index].iter().any(|other| other.processor == processor) {
                return Err(CutError::Duplicate { processor });
            }
        }
        let sum: f64 = shares.iter().map(|share| share.share).sum();
        match (sum > 0.0 && sum.is_finite(), multiple) {
            (false, _) => Err(CutError::Empty),
            (true, 0) => Err(CutError::Multiple),
            (true, _) => Ok(Self { axis, shares, multiple }),
        }
    }

    /// The shares, in order.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// The parts of an output of `rows` by `columns`, in the order of the shares: together they are all of it, without
    /// overlap. A share that comes to nothing has no part.
    pub fn parts(&self, rows: usize, columns: usize) -> Vec<(ProcessorId, Part)> {
        let length = if self.axis == Axis::Rows { rows } else { columns };
        let sum: f64 = self.shares.iter().map(|share| share.share).sum();
        let last = self.shares.iter().rposition(|share| share.share > 0.0);
        let (mut parts, mut start, mut before) = (Vec::new(), 0, 0.0);
        for (index, Share { processor, share }) in self.shares.iter().enumerate() {
            before += share;
            let tiles = (before / sum * length as f64 / self.multiple as f64).round() as usize;
            let end = if last.is_some_and(|last| index >= last) { length } else { tiles.saturating_mul(self.multiple) };
            let range = start..end.clamp(start, length);
            start = range.end;
            if !range.is_empty() {
                let part = match self.axis {
                    Axis::Rows => Part { rows: range, columns: 0..columns },
                    Axis::Columns => Part { rows: 0..rows, columns: range },
                };
                parts.push((*processor, part));
            }
        }
        parts
    }
}

/// The tasks of a prefill, of which some are parts.
#[derive(Clone, Debug)]
pub struct PrefillTasks {
    /// What each waits for and takes.
    pub dag: Dag,
    /// What each is, by its number in the dag: chunk after chunk, within a chunk subgraph after subgraph, and of a subgraph
    /// part after part.
    pub tasks: Vec<(Task, Part)>,
}

impl PrefillTasks {
    /// The tasks of a prefill with buffers for `in_flight` chunks: a chunk begins when the one whose buffers it takes is
    /// through. `cut(subgraph)` returns how a subgraph is cut, if it is; others are one part on the processor that they are
    /// placed on. A task waits for all parts of what it reads. `cost` returns the seconds that a part is expected to take
    /// on a processor that computes its format. Tasks of one role are of one kind.
    ///
    /// # Errors
    /// If a processor has a share of a subgraph that it does not compute.
    ///
    /// # Panics
    /// If `in_flight` is zero, or a processor is not in the list.
    pub fn new<'a>(
        graph: &Graph,
        processors: &Processors,
        placement: &Placement,
        in_flight: usize,
        cut: impl Fn(usize) -> Option<&'a Cut>,
        cost: impl Fn(Task, &Part, ProcessorId) -> f64,
    ) -> Result<Self, CutError> {
        assert!(in_flight > 0, "a chunk needs buffers");
        let last = graph.subgraphs().len().saturating_sub(1);
        let mut nodes = Vec::new();
        let mut tasks: Vec<(Task, Part)> = Vec::new();
        // The numbers of the parts of each subgraph of each chunk.
        let mut numbers: Vec<Range<usize>> = Vec::with_capacity(graph.chunks().len() * (last + 1));
        for whole in graph.tasks() {
            let (subgraph, rows) = (&graph.subgraphs()[whole.subgraph], graph.chunks()[whole.chunk].len());
            let columns = subgraph.output_columns;
            let format = subgraph.role.format();
            let parts = match cut(whole.subgraph) {
                Some(cut) => cut.parts(rows, columns),
                None => {
                    let part = Part { rows: 0..rows, columns: 0..columns };
                    vec![(placement.places()[whole.subgraph].processor, part)]
                }
            };
            if let Some((processor, _)) = parts.iter().find(|(processor, _)| !processors[*processor].computes(format)) {
                return Err(CutError::Format { processor: *processor, role: subgraph.role });
            }
            let freed = whole.chunk.checked_sub(in_flight).filter(|_| whole.subgraph == 0);
            let freed = freed.map(|chunk| Task { chunk, subgraph: last, part: 0 });
            let before = graph.dependencies(whole).chain(freed);
            let predecessors: Vec<usize> =
                before.flat_map(|before| numbers[before.chunk * (last + 1) + before.subgraph].clone()).collect();
            let first = nodes.len();
            let homes: Vec<_> = parts.iter().map(|(home, _)| *home).collect();
            for (number, (home, part)) in parts.into_iter().enumerate() {
                let task = Task { part: number, ..whole };
                let on = |id: ProcessorId| {
                    // A window that has no room for a subgraph has none later either.
                    let has_room = homes.contains(&id) || processors[id].window.is_none();
                    (has_room && processors[id].computes(format)).then(|| cost(task, &part, id))
                };
                let seconds = processors.ids().map(on).collect();
                nodes.push(Node { home, seconds, predecessors: predecessors.clone(), kind: subgraph.role as usize });
                tasks.push((task, part));
            }
            numbers.push(first..nodes.len());
        }
        Ok(Self { dag: Dag::from_nodes(processors.len(), nodes), tasks })
    }
}

impl Dag {
    /// The tasks of a prefill in the order of [`Graph::tasks`], where they are placed. `cost` returns the seconds that a
    /// task is expected to take on a processor that computes its format. Those of one role are of one kind.
    pub fn of_prefill(
        graph: &Graph,
        processors: &Processors,
        placement: &Placement,
        cost: impl Fn(Task, ProcessorId) -> f64,
    ) -> Self {
        Self::of_prefill_in_flight(graph, processors, placement, graph.chunks().len(), cost)
    }

    /// As [`Dag::of_prefill`], with buffers for `in_flight` chunks: a chunk begins when the one whose buffers it takes is
    /// through.
    ///
    /// # Panics
    /// If `in_flight` is zero.
    pub fn of_prefill_in_flight(
        graph: &Graph,
        processors: &Processors,
        placement: &Placement,
        in_flight: usize,
        cost: impl Fn(Task, ProcessorId) -> f64,
    ) -> Self {
        let cost = |task: Task, _: &Part, id: ProcessorId| cost(task, id);
        let tasks = PrefillTasks::new(graph, processors, placement, in_flight, |_| None, cost);
        tasks.expect("a subgraph is placed where it can run").dag
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn cuts()(
            axis in prop_oneof![Just(Axis::Rows), Just(Axis::Columns)],
            shares in prop::collection::vec(prop_oneof![1 => Just(0.0), 4 => 0f64..1.0], 1..5),
            some in 0usize..5,
            multiple in 1usize..40,
        ) -> Cut {
            let shares = shares.iter().enumerate();
            let mut shares: Vec<_> =
                shares.map(|(index, share)| Share { processor: ProcessorId::new(index), share: *share }).collect();
            let some = some % shares.len();
            shares[some].share += 0.1;
            Cut::new(axis, shares, multiple).unwrap()
        }
    }

    proptest! {
        #[test]
        fn every_element_of_an_output_is_in_one_part(cut in cuts(), rows in 1usize..40, columns in 1usize..90) {
            let parts = cut.parts(rows, columns);
            let mut computed = vec![0; rows * columns];
            for (processor, part) in &parts {
                prop_assert!(!part.rows.is_empty() && !part.columns.is_empty());
                let share = cut.shares().iter().find(|share| share.processor == *processor).unwrap();
                prop_assert!(share.share > 0.0, "nothing is computed without a share");
                part.rows.clone().for_each(|row| part.columns.clone().for_each(|column| computed[row * columns + column] += 1));
            }
            prop_assert!(computed.iter().all(|times| *times == 1));
            for pair in parts.windows(2) {
                let [end, start] = match cut.axis {
                    Axis::Rows => [pair[0].1.rows.end, pair[1].1.rows.start],
                    Axis::Columns => [pair[0].1.columns.end, pair[1].1.columns.start],
                };
                prop_assert!(end == start && end % cut.multiple == 0);
            }
        }

        #[test]
        fn a_part_is_as_large_as_its_share_but_for_a_tile(cut in cuts(), rows in 1usize..400, columns in 1usize..900) {
            let length = if cut.axis == Axis::Rows { rows } else { columns };
            let sum: f64 = cut.shares().iter().map(|share| share.share).sum();
            let parts = cut.parts(rows, columns);
            for share in cut.shares() {
                let part = parts.iter().find(|(processor, _)| *processor == share.processor);
                let of_axis = |part: &Part| if cut.axis == Axis::Rows { part.rows.len() } else { part.columns.len() };
                let size = part.map_or(0, |(_, part)| of_axis(part)) as f64;
                let exact = share.share / sum * length as f64;
                prop_assert!((size - exact).abs() <= cut.multiple as f64 + 1e-6, "{size} for {exact}");
            }
        }

        #[test]
        fn what_reads_an_output_waits_for_all_of_its_parts(cut in cuts(), in_flight in 1usize..4, role in 0usize..6) {
            let mut description = triad_model::family::shape("smollm2-135m").unwrap();
            description.blocks.truncate(2);
            let graph = Graph::new(&description, 100, 30);
            let list = (0..4).map(|index| crate::processors::Processor::cpu(&format!("cpu{index}"))).collect();
            let processors = Processors::new(list).unwrap();
            let placement = Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
            let cuts = |subgraph: usize| (graph.subgraphs()[subgraph].role as usize == role).then_some(&cut);
            let area = |_: Task, part: &Part, _| (part.rows.len() * part.columns.len()) as f64;
            let PrefillTasks { dag, tasks } =
                PrefillTasks::new(&graph, &processors, &placement, in_flight, cuts, area).unwrap();
            let whole = |task: Task| Task { part: 0, ..task };
            for (number, (task, _)) in tasks.iter().enumerate() {
                let mut expected: Vec<_> = graph.dependencies(whole(*task)).collect();
                if task.subgraph == 0 && task.chunk >= in_flight {
                    expected.push(Task { chunk: task.chunk - in_flight, subgraph: graph.subgraphs().len() - 1, part: 0 });
                }
                let parts = |(_, (other, _)): &(usize, &(Task, Part))| expected.contains(&whole(*other));
                let expected: Vec<_> = tasks.iter().enumerate().filter(parts).map(|(number, _)| number).collect();
                prop_assert_eq!(dag.predecessors(number), expected);
            }
            for whole_task in graph.tasks() {
                let (rows, columns) =
                    (graph.chunks()[whole_task.chunk].len(), graph.subgraphs()[whole_task.subgraph].output_columns);
                let parts = (0..tasks.len()).filter(|number| whole(tasks[*number].0) == whole_task);
                let area: f64 = parts.map(|number| dag.seconds(number)).sum();
                prop_assert_eq!(area, (rows * columns) as f64, "all of each output is computed");
            }
        }
    }

    #[test]
    fn a_cut_that_makes_no_sense_is_refused() {
        let share = |index, share| Share { processor: ProcessorId::new(index), share };
        let cut = |shares: &[Share], multiple| Cut::new(Axis::Columns, shares.to_vec(), multiple).unwrap_err();
        assert_eq!(cut(&[], 1), CutError::Empty);
        assert_eq!(cut(&[share(0, 0.0)], 1), CutError::Empty);
        assert_eq!(cut(&[share(0, 1.0)], 0), CutError::Multiple);
        assert!(cut(&[share(0, -1.0)], 1).to_string().contains("processor 0 is -1"));
        assert!(cut(&[share(0, f64::NAN)], 1).to_string().contains("NaN"));
        assert_eq!(cut(&[share(1, 1.0), share(1, 1.0)], 1), CutError::Duplicate { processor: ProcessorId::new(1) });
    }

    #[test]
    fn a_processor_has_no_share_of_what_it_does_not_compute() {
        let graph = Graph::new(&triad_model::family::shape("smollm2-135m").unwrap(), 64, 64);
        let processors = Processors::cpu_and_npu(None);
        let placement = Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
        let shares = processors.ids().map(|processor| Share { processor, share: 1.0 }).collect();
        let cut = Cut::new(Axis::Columns, shares, 64).unwrap();
        let tasks = |role| {
            let cuts = |subgraph: usize| (graph.subgraphs()[subgraph].role == role).then_some(&cut);
            PrefillTasks::new(&graph, &processors, &placement, 4, cuts, |_, _, _| 1.0)
        };
        let refused = tasks(Role::Attention).unwrap_err().to_string();
        assert_eq!(refused, "processor 1 has a share of attention but does not compute it: expected float");
        let parts = tasks(Role::AttentionOutput).unwrap().tasks;
        let [one, two] =
            [0, 1].map(|part| &parts.iter().find(|(task, _)| task.subgraph == 3 && task.part == part).unwrap().1);
        assert_eq!((&one.columns, &two.columns), (&(0..320), &(320..576)), "576 columns in tiles of 64");
    }
}
