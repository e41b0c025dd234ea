//! Where and when the tasks of prompts ran, of the answers that ended last.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use triad_engine::execute::Execution;
use triad_plan::processors::{Processor, ProcessorId, Processors};
use triad_plan::timeline::Event;
use utoipa::ToSchema;

/// Answers whose timelines are kept.
pub(crate) const KEPT: usize = 32;
/// Tasks of a timeline, at most: longer ones are not kept.
const MOST_TASKS: usize = 100_000;

/// How the prompt of an answer was computed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct PromptTimeline {
    /// Of the prompt, without those that were cached.
    tokens: usize,
    chunks: usize,
    /// From the begin of the first task to the end of the last.
    seconds: f64,
    processors: Vec<TimelineProcessor>,
    /// In the order in which they began.
    tasks: Vec<TimelineTask>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct TimelineProcessor {
    name: String,
    /// While it ran tasks.
    busy_seconds: f64,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct TimelineTask {
    /// What it computes: `attention 3`, of the block of this number.
    name: String,
    /// The chunk of the prompt, from 0.
    chunk: usize,
    /// Where, by the place in the list of processors.
    processor: usize,
    /// Seconds since the first task began.
    start: f64,
    end: f64,
}

impl PromptTimeline {
    /// Of an execution on these processors; `None` if it has no tasks, or more than are kept.
    pub(crate) fn new(execution: &Execution, processors: &Processors) -> Option<Self> {
        let Execution { graph, tasks, timeline, .. } = execution;
        if timeline.events().len() > MOST_TASKS {
            return None;
        }
        let first = timeline.events().first()?.start;
        let of_processor = |(processor, description): (ProcessorId, &Processor)| TimelineProcessor {
            name: description.name.clone(),
            busy_seconds: timeline.busy(processor),
        };
        let task = |event: &Event| {
            let task = &tasks.tasks[event.task];
            let subgraph = &graph.subgraphs()[task.task.subgraph];
            TimelineTask {
                name: format!("{} {}", subgraph.role.name(), subgraph.block),
                chunk: task.task.chunk,
                processor: event.processor.index(),
                start: event.start - first,
                end: event.end - first,
            }
        };
        Some(Self {
            tokens: graph.chunks().iter().map(std::ops::Range::len).sum(),
            chunks: graph.chunks().len(),
            seconds: timeline.seconds() - first,
            processors: processors.iter().map(of_processor).collect(),
            tasks: timeline.events().iter().map(task).collect(),
        })
    }
}

/// The timelines that are kept, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Timelines(Mutex<VecDeque<(String, Arc<PromptTimeline>)>>);

impl Timelines {
    /// Keeps that of the answer `id`, and forgets the oldest one where there are too many.
    pub(crate) fn keep(&self, id: &str, timeline: PromptTimeline) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((id.to_owned(), Arc::new(timeline)));
    }

    /// That of the answer `id`, if it is kept.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<PromptTimeline>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().find(|(of, _)| of == id).map(|(_, timeline)| Arc::clone(timeline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_timelines_are_kept_and_the_oldest_forgotten() {
        let timelines = Timelines::default();
        for number in 0..KEPT + 3 {
            let (processors, tasks) = (Vec::new(), Vec::new());
            let timeline = PromptTimeline { tokens: 1, chunks: 1, seconds: 1.0, processors, tasks };
            timelines.keep(&number.to_string(), timeline);
        }
        assert!(timelines.find("2").is_none() && timelines.find("").is_none());
        assert!(timelines.find("3").is_some() && timelines.find(&(KEPT + 2).to_string()).is_some());
    }
}
