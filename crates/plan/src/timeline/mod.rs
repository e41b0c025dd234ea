//! What ran where and when: the record of a real or a simulated run.
//!
//! [`Timeline`] holds the events; a [`Record`] adds what their tasks are and what they wait for, and computes
//! what each event [waited](waits) for, which of them made the run as long as it is, and how much of the time each kind of
//! task took. [`trace`] writes a record for Chrome's and Perfetto's viewers.

mod record;
mod trace;
mod waits;

use serde::Serialize;

use crate::processors::ProcessorId;
pub use record::{Kind, Label, Lane, Record, Source, Summary};
pub use waits::{Waited, critical_path, waits};

/// A task on a processor, in seconds since the start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Number of the task.
    pub task: usize,
    /// Where.
    pub processor: ProcessorId,
    /// When it began.
    pub start: f64,
    /// When it was complete.
    pub end: f64,
}

/// All events of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    events: Vec<Event>,
    processors: usize,
}

impl Timeline {
    /// Of `processors` processors, in the order in which events began.
    pub fn new(mut events: Vec<Event>, processors: usize) -> Self {
        events.sort_by(|one, other| one.start.total_cmp(&other.start));
        Self { events, processors }
    }

    /// In the order in which they began.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many processors there were.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Their ids, in order.
    pub fn processor_ids(&self) -> impl Iterator<Item = ProcessorId> + use<> {
        (0..self.processors).map(ProcessorId::new)
    }

    /// From the start to the end of the last event.
    pub fn seconds(&self) -> f64 {
        self.events.iter().map(|event| event.end).fold(0.0, f64::max)
    }

    /// Seconds that a processor worked.
    pub fn busy(&self, processor: ProcessorId) -> f64 {
        let of_processor = self.events.iter().filter(|event| event.processor == processor);
        of_processor.map(|event| event.end - event.start).sum()
    }

    /// Share of the time in which a processor did not run anything.
    pub fn bubble_rate(&self, processor: ProcessorId) -> f64 {
        let seconds = self.seconds();
        if seconds > 0.0 { 1.0 - self.busy(processor) / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_busy_is_a_bubble() {
        let [first, second] = [0, 1].map(ProcessorId::new);
        let event = |task, processor, start, end| Event { task, processor, start, end };
        let timeline = Timeline::new(vec![event(1, second, 2.0, 8.0), event(0, first, 0.0, 2.0)], 2);
        assert_eq!(timeline.events()[0].task, 0);
        assert_eq!((timeline.seconds(), timeline.busy(first), timeline.busy(second)), (8.0, 2.0, 6.0));
        assert_eq!((timeline.bubble_rate(first), timeline.bubble_rate(second)), (0.75, 0.25));
        assert_eq!(Timeline::new(Vec::new(), 1).bubble_rate(first), 0.0);
    }
}
