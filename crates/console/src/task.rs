//! The tasks of evaluations by the names that users give them.

use clap::ValueEnum;

/// The task of a model.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Task {
    /// The last word of a passage
    Lambada,
    /// Which ending continues a scene
    Hellaswag,
    /// The meaning of a blank in a sentence
    Winogrande,
    /// Which choice completes a statement of elementary science
    Openbookqa,
    /// The letter of the right choice, after five solved examples of the subject
    Mmlu,
    /// How well a plain text is predicted
    Perplexity,
}

impl From<Task> for triad_evaluate::Task {
    fn from(task: Task) -> Self {
        match task {
            Task::Lambada => Self::Lambada,
            Task::Hellaswag => Self::HellaSwag,
            Task::Winogrande => Self::WinoGrande,
            Task::Openbookqa => Self::OpenBookQa,
            Task::Mmlu => Self::Mmlu,
            Task::Perplexity => Self::Perplexity,
        }
    }
}
