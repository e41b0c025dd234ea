//! Failures of processors.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use triad_plan::graph::Task;
use triad_plan::processors::label;

use triad_engine::Error;

/// A processor that failed. If another processor is left, it takes over the tasks, and the answer is the same.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessorFailure {
    /// Name of the processor.
    pub processor: String,
    /// The task of this prompt that it ran; `None` if it ran something else, or had not returned when the prompt began.
    pub task: Option<Task>,
    /// The reason.
    pub reason: FailureReason,
}

/// The reason of a processor's failure.
#[derive(Clone, Debug)]
pub enum FailureReason {
    /// It returned an error.
    Error(Arc<Error>),
    /// Its thread panicked with this message.
    Panic(String),
    /// It ran one task for longer than this.
    TimeOut(Duration),
    /// It has not returned from an earlier task.
    Away,
}

impl ProcessorFailure {
    /// Returns the processor's name for use in sentences.
    pub fn label(&self) -> String {
        label(&self.processor)
    }

    /// Describes it as a sentence for the user, after another processor took over.
    pub fn took_over(&self) -> String {
        format!(
            "the {} failed, and its work went to another processor: {}",
            self.label(),
            self.reason
        )
    }
}

impl fmt::Display for ProcessorFailure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the {}: {}", self.label(), self.reason)
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Panic(message) => write!(f, "it panicked: {message}"),
            Self::TimeOut(limit) => write!(
                f,
                "it did not end a task within {:.1} s",
                limit.as_secs_f64()
            ),
            Self::Away => f.write_str("it has not come back from an earlier task"),
        }
    }
}

impl Serialize for FailureReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The failures of several processors, in an error.
#[derive(Clone, Debug)]
pub struct ProcessorFailures(pub Vec<ProcessorFailure>);

impl fmt::Display for ProcessorFailures {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (index, failure) in self.0.iter().enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(f, "{separator}{failure}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_processor_and_the_reason() {
        let failure = ProcessorFailure {
            processor: "npu".into(),
            task: None,
            reason: FailureReason::TimeOut(Duration::from_secs(60)),
        };
        let note = "the NPU failed, and its work went to another processor: it did not end a task within 60.0 s";
        assert_eq!(failure.took_over(), note);
    }
}
