//! A timeline with what its tasks are, and what it amounts to.

use std::borrow::Cow;

use serde::Serialize;

use super::waits::{Waited, critical_path, waits};
use super::{Event, Timeline};
use crate::processors::ProcessorId;
use crate::schedule::Dag;

/// What a task is, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Label {
    /// Number of its chunk.
    pub chunk: usize,
    /// Number of its block.
    pub block: usize,
    /// What it does there: the name of a [`Role`](crate::graph::Role), or `shadow`.
    pub kind: Cow<'static, str>,
}

/// Where the times of a record come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A clock.
    Measured,
    /// A model of a device.
    Simulated,
}

impl Source {
    /// `measured` or `simulated`.
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
    /// What ran: the model, the prompt, the policy.
    pub title: &'a str,
    /// Where the times come from.
    pub source: Source,
    /// When.
    pub timeline: &'a Timeline,
    /// What waits for what.
    pub dag: &'a Dag,
    /// One for each task of the dag.
    pub labels: &'a [Label],
    /// Names of the processors.
    pub processors: &'a [&'a str],
}

/// How long one kind of task took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kind {
    /// Of its label.
    pub kind: String,
    /// Of all of them together.
    pub seconds: f64,
    /// Of the seconds of all kinds.
    pub share: f64,
}

/// What one processor did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lane {
    /// Name of the processor.
    pub processor: String,
    /// How many tasks it ran.
    pub tasks: usize,
    /// Seconds that it worked.
    pub busy_seconds: f64,
    /// Share of the run in which it had nothing to do.
    pub bubble_rate: f64,
}

/// What a run amounts to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Where the times come from.
    pub source: Source,
    /// From the start to the end of the last task.
    pub seconds: f64,
    /// One for each processor.
    pub processors: Vec<Lane>,
    /// By kind, all tasks.
    pub kinds: Vec<Kind>,
    /// By kind, those tasks alone that made the run as long as it is.
    pub critical_path: Vec<Kind>,
    /// How many tasks the critical path has.
    pub critical_tasks: usize,
}

impl<'a> Record<'a> {
    /// The label of an event's task.
    ///
    /// # Panics
    /// If there are fewer labels than tasks.
    pub fn label(&self, event: &Event) -> &'a Label {
        &self.labels[event.task]
    }

    /// The name of a processor.
    pub fn processor(&self, id: ProcessorId) -> Cow<'a, str> {
        let index = id.index();
        self.processors.get(index).map_or_else(
            || format!("processor {index}").into(),
            |name| (*name).into(),
        )
    }

    /// How many chunks the labels have.
    pub fn chunks(&self) -> usize {
        self.labels
            .iter()
            .map(|label| label.chunk + 1)
            .max()
            .unwrap_or(0)
    }

    /// What each event waited for: [`waits`].
    pub fn waits(&self) -> Vec<Waited> {
        waits(self.timeline, self.dag)
    }

    /// Totals.
    pub fn summary(&self) -> Summary {
        let events = self.timeline.events();
        let lane = |processor: ProcessorId| Lane {
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
            processors: self.timeline.processor_ids().map(lane).collect(),
            kinds: self.kinds(events.iter()),
            critical_path: self.kinds(path.iter().map(|place| &events[*place])),
            critical_tasks: path.len(),
        }
    }

    /// By kind, the longest first.
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
            .map(|lane| lane.busy_seconds)
            .sum();
        assert!(
            (busy - summary.seconds).abs() < 1e-9,
            "one chunk keeps one processor busy at a time"
        );
    }
}
