//! The tasks of evaluations by their names on the command line.

use clap::ValueEnum;

/// A task for evaluating a model.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Task {
    /// Predict the last word of a passage
    Lambada,
    /// Choose the ending of a scene
    Hellaswag,
    /// Resolve a blank in a sentence
    Winogrande,
    /// Choose how to complete a statement of elementary science
    Openbookqa,
    /// Choose the letter of the right answer, after five solved examples of the subject
    Mmlu,
    /// Predict a plain text
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
