//! Reasons for the start times of events, and the critical path: the chain of such reasons up to the end of the run.

use serde::Serialize;

use super::Timeline;
use crate::schedule::Dag;

/// The reason why an event did not start earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "for", content = "task")]
pub enum Waited {
    /// Nothing: it started the run.
    Nothing,
    /// A task whose result it reads and which was the last to complete. The processor was free by then.
    Predecessor(usize),
    /// Its processor, which ran this task after all predecessors were complete.
    Processor(usize),
}

impl Waited {
    /// Returns the task for which it waited.
    pub fn task(self) -> Option<usize> {
        match self {
            Self::Nothing => None,
            Self::Predecessor(task) | Self::Processor(task) => Some(task),
        }
    }
}

/// Returns what each event waited for, in the order of [`Timeline::events`]. For a task that ran twice, because its
/// processor was lost, the last end counts.
pub fn waits(timeline: &Timeline, dag: &Dag) -> Vec<Waited> {
    let mut ends = vec![f64::NEG_INFINITY; dag.len()];
    for event in timeline.events() {
        ends[event.task] = ends[event.task].max(event.end);
    }
    let mut before: Vec<Option<(f64, usize)>> = vec![None; timeline.processors()];
    let of_event = |event: &super::Event| {
        let processor = before[event.processor.index()].replace((event.end, event.task));
        let last = dag
            .predecessors(event.task)
            .iter()
            .map(|task| (ends[*task], *task))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        match (last, processor) {
            (None, None) => Waited::Nothing,
            (Some((_, predecessor)), None) => Waited::Predecessor(predecessor),
            (None, Some((_, task))) => Waited::Processor(task),
            (Some((last_end, predecessor)), Some((end, task))) => {
                if last_end >= end {
                    Waited::Predecessor(predecessor)
                } else {
                    Waited::Processor(task)
                }
            }
        }
    };
    timeline.events().iter().map(of_event).collect()
}

/// Returns the indices in [`Timeline::events`] of the critical path, from the first event to the last: each waited for
/// the one before it. If one of these events is shorter, the run is shorter by the same time, unless another chain is
/// as long.
pub fn critical_path(timeline: &Timeline, dag: &Dag) -> Vec<usize> {
    let (events, waits) = (timeline.events(), waits(timeline, dag));
    let mut place_of = vec![None; dag.len()];
    for (place, event) in events.iter().enumerate() {
        place_of[event.task] = Some(place);
    }
    let last = (0..events.len()).max_by(|a, b| events[*a].end.total_cmp(&events[*b].end));
    let mut path: Vec<usize> = last.into_iter().collect();
    while let Some(task) = path.last().and_then(|place| waits[*place].task())
        && let Some(place) = place_of[task]
        // A reason precedes its consequence, even if events have no length.
        && path.last().is_some_and(|later| place < *later)
    {
        path.push(place);
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Policy;
    use crate::simulate::simulate;

    /// The task of the second processor waits for the first processor's, which continues with another task.
    fn dag() -> Dag {
        Dag::new([
            (0, 1.0, vec![]),
            (1, 5.0, vec![0]),
            (0, 2.0, vec![]),
            (0, 1.0, vec![1]),
        ])
    }

    #[test]
    fn an_event_waits_for_its_last_predecessor_or_for_its_processor() {
        let dag = dag();
        let timeline = simulate(&dag, Policy::InOrder, |task| dag.seconds(task));
        let tasks: Vec<_> = timeline.events().iter().map(|event| event.task).collect();
        assert_eq!(tasks, [0, 2, 1, 3]);
        let waited = waits(&timeline, &dag);
        assert_eq!(
            waited,
            [
                Waited::Nothing,
                Waited::Processor(0),
                Waited::Predecessor(0),
                Waited::Predecessor(1)
            ]
        );
    }

    #[test]
    fn the_critical_path_reaches_from_the_start_to_the_end_without_a_gap() {
        let dag = dag();
        let timeline = simulate(&dag, Policy::Fifo, |task| dag.seconds(task));
        let path = critical_path(&timeline, &dag);
        let events: Vec<_> = path.iter().map(|place| timeline.events()[*place]).collect();
        assert_eq!(
            events.iter().map(|event| event.task).collect::<Vec<_>>(),
            [0, 1, 3]
        );
        assert!(events.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!((events[0].start, events[2].end), (0.0, timeline.seconds()));
    }
}
