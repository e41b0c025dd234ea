//! Conversion of a record to Chrome's trace event format, which `chrome://tracing` and ui.perfetto.dev read.

use serde_json::{Value, json};

use super::Record;

/// The format's time unit per second.
const MICROSECONDS: f64 = 1e6;

impl Record<'_> {
    /// Returns the record as one JSON object: a thread for each processor, and a complete event for each task with its
    /// chunk, block, kind and the reason for waiting. The totals are in `otherData`.
    pub fn trace(&self) -> Value {
        let name = |thread: usize, name: &str| json!({ "ph": "M", "pid": 0, "tid": thread, "name": "thread_name", "args": { "name": name } });
        let mut events = vec![
            json!({ "ph": "M", "pid": 0, "name": "process_name", "args": { "name": self.heading() } }),
        ];
        events.extend(
            self.timeline
                .processor_ids()
                .map(|id| name(id.index(), &self.processor(id))),
        );
        for (event, waited) in self.timeline.events().iter().zip(self.waits()) {
            let label = self.label(event);
            events.push(json!({
                "ph": "X",
                "pid": 0,
                "tid": event.processor,
                "name": label.kind,
                "cat": format!("chunk {}", label.chunk),
                "ts": event.start * MICROSECONDS,
                "dur": (event.end - event.start) * MICROSECONDS,
                "args": { "task": event.task, "chunk": label.chunk, "block": label.block, "waited": waited },
            }));
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ms", "otherData": { "title": self.title, "summary": self.summary() } })
    }

    /// Returns the title and the source of the times.
    pub fn heading(&self) -> String {
        format!("{} ({})", self.title, self.source.name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Label, Source};
    use super::*;
    use crate::schedule::{Dag, Policy};
    use crate::simulate::simulate;

    #[test]
    fn a_trace_has_an_event_for_each_task_in_microseconds() {
        let dag = Dag::new([(0, 0.5, vec![]), (1, 0.25, vec![0])]);
        let timeline = simulate(&dag, Policy::Fifo, |task| dag.seconds(task));
        let labels = ["attention", "feed-forward"].map(|kind| Label {
            chunk: 0,
            block: 3,
            kind: kind.into(),
        });
        let record = Record {
            title: "two tasks",
            source: Source::Measured,
            timeline: &timeline,
            dag: &dag,
            labels: &labels,
            processors: &["CPU", "NPU"],
        };
        let trace = record.trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let names: Vec<_> = events
            .iter()
            .filter(|event| event["ph"] == "M")
            .map(|event| &event["args"]["name"])
            .collect();
        assert_eq!(names, ["two tasks (measured)", "CPU", "NPU"]);
        let last = events.last().unwrap();
        assert_eq!(
            (last["ts"].as_f64(), last["dur"].as_f64()),
            (Some(500_000.0), Some(250_000.0))
        );
        assert_eq!(
            last["args"],
            json!({ "task": 1, "chunk": 0, "block": 3, "waited": { "for": "predecessor", "task": 0 } })
        );
        assert_eq!(trace["otherData"]["summary"]["seconds"], 0.75);
    }
}
