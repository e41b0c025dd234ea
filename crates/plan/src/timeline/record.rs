//! A timeline with the labels of its tasks, and its summary.

use std::borrow::Cow;

use serde::Serialize;

use super::waits::{Waited, critical_path, waits};
use super::{Event, Timeline};
use crate::processors::ProcessorId;
use crate::schedule::Dag;

/// Human-readable label of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Label {
    /// Index of its chunk.
    pub chunk: usize,
    /// Index of its block.
    pub block: usize,
    /// Kind of work: the name of a [`Role`](crate::graph::Role), or `shadow`.
    pub kind: Cow<'static, str>,
}

/// The source of a record's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The clock of a real run.
    Measured,
    /// A simulation on the model of a device.
    Simulated,
}

impl Source {
    /// Returns `measured` or `simulated`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Simulated => "simulated",
        }
    }
}

/// A run with its title, tasks and processors.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The model, the prompt and the policy.
    pub title: &'a str,
    /// Source of the times.
    pub source: Source,
    /// Start and end times of the tasks.
    pub timeline: &'a Timeline,
    /// Dependencies of the tasks.
    pub dag: &'a Dag,
    /// Label of each task of the dag.
    pub labels: &'a [Label],
    /// Names of the processors.
    pub processors: &'a [&'a str],
}

/// Total time of one kind of task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kind {
    /// Kind, as in the labels.
    pub kind: String,
    /// Sum over all tasks of this kind.
    pub seconds: f64,
    /// Share in the seconds of all kinds.
    pub share: f64,
}

/// Summary of one processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessorSummary {
    /// Name of the processor.
    pub processor: String,
    /// Number of tasks that it ran.
    pub tasks: usize,
    /// Seconds in which it worked.
    pub busy_seconds: f64,
    /// Fraction of the run in which it was idle.
    pub bubble_rate: f64,
}

/// Summary of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Source of the times.
    pub source: Source,
    /// Seconds from the start to the end of the last task.
    pub seconds: f64,
    /// Summary of each processor.
    pub processors: Vec<ProcessorSummary>,
    /// Time of each kind, over all tasks.
    pub kinds: Vec<Kind>,
    /// Time of each kind, over the tasks of the critical path.
    pub critical_path: Vec<Kind>,
    /// Number of tasks on the critical path.
    pub critical_tasks: usize,
}

impl<'a> Record<'a> {
    /// Returns the label of an event's task.
    ///
    /// # Panics
    /// If there are fewer labels than tasks.
    pub fn label(&self, event: &Event) -> &'a Label {
        &self.labels[event.task]
    }

    /// Returns the name of a processor.
    pub fn processor(&self, id: ProcessorId) -> Cow<'a, str> {
        let index = id.index();
        self.processors.get(index).map_or_else(
            || format!("processor {index}").into(),
            |name| (*name).into(),
        )
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.labels
            .iter()
            .map(|label| label.chunk + 1)
            .max()
            .unwrap_or(0)
    }

    /// Returns what each event waited for: [`waits`].
    pub fn waits(&self) -> Vec<Waited> {
        waits(self.timeline, self.dag)
    }

    /// Returns the totals.
    pub fn summary(&self) -> Summary {
        let events = self.timeline.events();
        let summary = |processor: ProcessorId| ProcessorSummary {
            processor: self.processor(processor).into_owned(),
            tasks: events
                .iter()
                .filter(|event| event.processor == processor)
                .count(),
            busy_seconds: self.timeline.busy(processor),
            bubble_rate: self.timeline.bubble_rate(processor),
        };
        let path = critical_path(self.timeline, self.dag);
        Summary {
            source: self.source,
            seconds: self.timeline.seconds(),
            processors: self.timeline.processor_ids().map(summary).collect(),
            kinds: self.kinds(events.iter()),
            critical_path: self.kinds(path.iter().map(|place| &events[*place])),
            critical_tasks: path.len(),
        }
    }

    /// Returns the time of each kind, the longest first.
    fn kinds<'e>(&self, events: impl Iterator<Item = &'e Event>) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = Vec::new();
        for event in events {
            let (name, seconds) = (&self.label(event).kind, event.end - event.start);
            match kinds.iter_mut().find(|kind| kind.kind == *name) {
                Some(kind) => kind.seconds += seconds,
                None => kinds.push(Kind {
                    kind: name.clone().into_owned(),
                    seconds,
                    share: 0.0,
                }),
            }
        }
        let total: f64 = kinds.iter().map(|kind| kind.seconds).sum();
        kinds.iter_mut().for_each(|kind| {
            kind.share = if total > 0.0 {
                kind.seconds / total
            } else {
                0.0
            }
        });
        kinds.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Policy;
    use crate::simulate::simulate;

    #[test]
    fn the_critical_path_of_one_chunk_is_all_of_it_and_shares_add_up() {
        let graph =
            crate::graph::Graph::new(&triad_model::family::shape("smollm2-135m").unwrap(), 64, 64);
        let processors = crate::processors::Processors::cpu_and_npu(None);
        let placement = crate::placement::Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
        let options = crate::tasks::TaskOptions::whole(placement, 1);
        let seconds =
            |task: &crate::tasks::PrefillTask, _| 1e-3 * (1 + task.task.subgraph % 3) as f64;
        let tasks =
            crate::tasks::PrefillTasks::new(&graph, &processors, &options, seconds).unwrap();
        let (dag, labels) = (tasks.dag.clone(), tasks.labels(&graph));
        let timeline = simulate(&dag, Policy::Fifo, |task| dag.seconds(task));
        let record = Record {
            title: "one chunk",
            source: Source::Simulated,
            timeline: &timeline,
            dag: &dag,
            labels: &labels,
            processors: &["CPU", "NPU"],
        };
        let summary = record.summary();
        assert_eq!(summary.critical_tasks, graph.subgraphs().len());
        assert_eq!(summary.kinds, summary.critical_path);
        let shares: f64 = summary.kinds.iter().map(|kind| kind.share).sum();
        assert!((shares - 1.0).abs() < 1e-9);
        let busy: f64 = summary
            .processors
            .iter()
            .map(|processor| processor.busy_seconds)
            .sum();
        assert!(
            (busy - summary.seconds).abs() < 1e-9,
            "one chunk keeps one processor busy at a time"
        );
    }
}
