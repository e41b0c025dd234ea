//! Timelines of prompts: when and where the tasks ran, for the latest responses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use triad_engine::executor::LayerTimes;
use triad_engine::{Engine, Session};
use triad_hetero::{Execution, execution};
use triad_plan::processors::ProcessorId;
use triad_plan::timeline::Event;
use utoipa::ToSchema;

use crate::owner::Owner;

/// Number of timelines that are kept per owner.
pub(crate) const KEPT: usize = 32;
/// Maximum number of tasks of a timeline. Longer timelines are not kept.
const MAX_TASKS: usize = 100_000;

/// The timeline of a prompt's execution.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct PromptTimeline {
    /// Number of prompt tokens, without cached ones.
    tokens: usize,
    chunks: usize,
    /// Time from the start of the first task to the end of the last one.
    seconds: f64,
    processors: Vec<TimelineProcessor>,
    /// The tasks in the order of their start.
    tasks: Vec<TimelineTask>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct TimelineProcessor {
    name: String,
    /// Total time during which the processor ran tasks.
    busy_seconds: f64,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct TimelineTask {
    /// The operation with the number of its layer, such as `attention 3`, or the whole layer, such as `layer 3`.
    name: String,
    /// The chunk of the prompt, starting at 0.
    chunk: usize,
    /// The processor, as an index into `processors`.
    processor: usize,
    /// Start in seconds after the start of the first task.
    start: f64,
    end: f64,
}

impl PromptTimeline {
    /// Creates the timeline of the latest prompt of a session, of which `tokens` tokens were computed; its batches may have
    /// had rows of other prompts. Returns `None` if it has no tasks, or more than
    /// [`MAX_TASKS`].
    pub(crate) fn new(session: &Session, tokens: usize) -> Option<Self> {
        let engine = session.engine();
        let timeline = match execution(session) {
            Some(execution) => Self::of_tasks(execution, engine, tokens),
            None => Self::of_layers(session.reports(), engine, tokens),
        };
        timeline.filter(|timeline| (1..=MAX_TASKS).contains(&timeline.tasks.len()))
    }

    /// Returns the timeline of one processor, which computed batch by batch and layer by layer.
    fn of_layers<'a>(
        batches: impl Iterator<Item = &'a LayerTimes>,
        engine: &Engine,
        tokens: usize,
    ) -> Option<Self> {
        let batches: Vec<_> = batches.collect();
        let start = batches.first()?.start;
        let mut tasks = Vec::new();
        for (chunk, batch) in batches.iter().enumerate() {
            let offset = batch.start.saturating_duration_since(start);
            let layers = batch.layers.iter().enumerate();
            tasks.extend(layers.map(|(layer, times)| TimelineTask {
                name: format!("layer {layer}"),
                chunk,
                processor: 0,
                start: (offset + times.start).as_secs_f64(),
                end: (offset + times.end).as_secs_f64(),
            }));
        }
        let busy_seconds = tasks.iter().map(|task| task.end - task.start).sum();
        let processors = engine.processor_use().into_iter();
        Some(Self {
            tokens,
            chunks: batches.len(),
            seconds: tasks.last().map_or(0.0, |task| task.end),
            processors: processors
                .map(|processor| TimelineProcessor {
                    name: processor.name,
                    busy_seconds,
                })
                .collect(),
            tasks,
        })
    }

    /// Returns the timeline of tasks on several processors.
    fn of_tasks(execution: &Execution, engine: &Engine, tokens: usize) -> Option<Self> {
        let Execution {
            graph,
            tasks,
            timeline,
            ..
        } = execution;
        let first = timeline.events().first()?.start;
        let processors = engine.processor_use().into_iter().enumerate();
        let processors = processors.map(|(index, processor)| TimelineProcessor {
            name: processor.name,
            busy_seconds: timeline.busy(ProcessorId::new(index)),
        });
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
            tokens,
            chunks: graph.chunks().len(),
            seconds: timeline.seconds() - first,
            processors: processors.collect(),
            tasks: timeline.events().iter().map(task).collect(),
        })
    }
}

/// The kept timelines, the latest one last.
#[derive(Debug, Default)]
pub(crate) struct Timelines(Mutex<VecDeque<Kept>>);

/// The timeline of a response to an owner's request.
#[derive(Debug)]
struct Kept {
    owner: Owner,
    id: String,
    timeline: Arc<PromptTimeline>,
}

impl Timelines {
    /// Keeps the timeline of the response `id`. Drops the owner's oldest timeline if the owner has too many.
    pub(crate) fn keep(&self, owner: Owner, id: &str, timeline: PromptTimeline) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.iter().filter(|one| one.owner == owner).count() == KEPT
            && let Some(oldest) = kept.iter().position(|one| one.owner == owner)
        {
            kept.remove(oldest);
        }
        kept.push_back(Kept {
            owner,
            id: id.to_owned(),
            timeline: Arc::new(timeline),
        });
    }

    /// Returns the timeline of the response `id`, if it is kept and belongs to `owner`.
    pub(crate) fn find(&self, owner: Owner, id: &str) -> Option<Arc<PromptTimeline>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept
            .iter()
            .rev()
            .find(|one| one.owner == owner && one.id == id);
        found.map(|one| Arc::clone(&one.timeline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> PromptTimeline {
        let (processors, tasks) = (Vec::new(), Vec::new());
        PromptTimeline {
            tokens: 1,
            chunks: 1,
            seconds: 1.0,
            processors,
            tasks,
        }
    }

    #[test]
    fn the_latest_timelines_are_kept_and_the_oldest_forgotten() {
        let (timelines, owner) = (Timelines::default(), Owner::default());
        for number in 0..KEPT + 3 {
            timelines.keep(owner, &number.to_string(), timeline());
        }
        assert!(timelines.find(owner, "2").is_none() && timelines.find(owner, "").is_none());
        assert!(
            timelines.find(owner, "3").is_some()
                && timelines.find(owner, &(KEPT + 2).to_string()).is_some()
        );
    }

    #[test]
    fn a_timeline_is_found_by_its_owner_and_others_displace_none() {
        let (timelines, one, other) = (
            Timelines::default(),
            Owner::of_key("one"),
            Owner::of_key("other"),
        );
        timelines.keep(one, "a", timeline());
        for number in 0..2 * KEPT {
            timelines.keep(other, &number.to_string(), timeline());
        }
        assert!(timelines.find(one, "a").is_some() && timelines.find(other, "a").is_none());
        assert!(timelines.find(one, "40").is_none() && timelines.find(other, "40").is_some());
    }
}
