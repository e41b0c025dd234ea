//! The record of a real or a simulated run.
//!
//! [`Timeline`] contains the events. A [`Record`] adds the labels and dependencies of the tasks. It computes what each
//! event [waited](waits) for, the critical path, and the share of each kind of task in the time. [`trace`] writes a
//! record for Chrome's and Perfetto's viewers.

mod record;
mod trace;
mod waits;

use serde::Serialize;

use crate::processors::ProcessorId;
pub use record::{Kind, Label, ProcessorSummary, Record, Source, Summary};
pub use waits::{Waited, critical_path, waits};

/// A task on a processor. Times are in seconds since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Number of the task.
    pub task: usize,
    /// The processor.
    pub processor: ProcessorId,
    /// Start time.
    pub start: f64,
    /// End time.
    pub end: f64,
}

/// All events of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    events: Vec<Event>,
    processors: usize,
}

impl Timeline {
    /// Creates a timeline of `processors` processors, with the events sorted by start time.
    pub fn new(mut events: Vec<Event>, processors: usize) -> Self {
        events.sort_by(|one, other| one.start.total_cmp(&other.start));
        Self { events, processors }
    }

    /// Returns the events, sorted by start time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the number of processors.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Returns the ids of the processors in order.
    pub fn processor_ids(&self) -> impl Iterator<Item = ProcessorId> + use<> {
        (0..self.processors).map(ProcessorId::new)
    }

    /// Returns the seconds from the start to the end of the last event.
    pub fn seconds(&self) -> f64 {
        self.events
            .iter()
            .map(|event| event.end)
            .fold(0.0, f64::max)
    }

    /// Returns the seconds in which a processor worked.
    pub fn busy(&self, processor: ProcessorId) -> f64 {
        let of_processor = self
            .events
            .iter()
            .filter(|event| event.processor == processor);
        of_processor.map(|event| event.end - event.start).sum()
    }

    /// Returns for each event, in order, the seconds in which another processor worked, too.
    pub fn overlaps(&self) -> Vec<f64> {
        let edge = |(index, event): (usize, &Event)| {
            [(event.start, true, index), (event.end, false, index)]
        };
        let mut edges: Vec<_> = self.events.iter().enumerate().flat_map(edge).collect();
        edges.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut overlaps = vec![0.0; self.events.len()];
        // For each processor, its number of running events, and the seconds so far in which others worked.
        let mut processors = vec![(0usize, 0.0); self.processors];
        let (mut working, mut now) = (0, 0.0);
        for (time, is_start, index) in edges {
            for (own, concurrent) in &mut processors {
                *concurrent += if working > *own { time - now } else { 0.0 };
            }
            now = time;
            let (own, concurrent) = &mut processors[self.events[index].processor.index()];
            if is_start {
                (*own, working) = (*own + 1, working + 1);
                overlaps[index] -= *concurrent;
            } else {
                (*own, working) = (*own - 1, working - 1);
                overlaps[index] += *concurrent;
            }
        }
        overlaps
    }

    /// Returns the fraction of the time in which a processor was idle.
    pub fn bubble_rate(&self, processor: ProcessorId) -> f64 {
        let seconds = self.seconds();
        if seconds > 0.0 {
            1.0 - self.busy(processor) / seconds
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_busy_is_a_bubble() {
        let [first, second] = [0, 1].map(ProcessorId::new);
        let event = |task, processor, start, end| Event {
            task,
            processor,
            start,
            end,
        };
        let timeline = Timeline::new(
            vec![event(1, second, 2.0, 8.0), event(0, first, 0.0, 2.0)],
            2,
        );
        assert_eq!(timeline.events()[0].task, 0);
        assert_eq!(
            (
                timeline.seconds(),
                timeline.busy(first),
                timeline.busy(second)
            ),
            (8.0, 2.0, 6.0)
        );
        assert_eq!(
            (timeline.bubble_rate(first), timeline.bubble_rate(second)),
            (0.75, 0.25)
        );
        assert_eq!(Timeline::new(Vec::new(), 1).bubble_rate(first), 0.0);
    }

    #[test]
    fn events_overlap_while_another_processor_works() {
        let [first, second, third] = [0, 1, 2].map(ProcessorId::new);
        let event = |processor, start, end| Event {
            task: 0,
            processor,
            start,
            end,
        };
        let events = vec![
            event(first, 0.0, 4.0),
            event(second, 1.0, 3.0),
            event(third, 2.0, 6.0),
            event(first, 5.0, 5.0),
            event(second, 6.0, 8.0),
        ];
        assert_eq!(
            Timeline::new(events, 3).overlaps(),
            [3.0, 2.0, 2.0, 0.0, 0.0]
        );
    }
}
