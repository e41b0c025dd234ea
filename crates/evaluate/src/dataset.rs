//! A task and the file with its questions, which is read and checked before a model is loaded.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::question::Question;
use super::rows::{self, DataError, Row};
use super::tasks::{hellaswag, lambada, mmlu, openbookqa, winogrande};

/// An evaluation task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Predicts the last word of a passage.
    Lambada,
    /// Selects the ending that continues a scene.
    HellaSwag,
    /// Selects the meaning of a blank in a sentence.
    WinoGrande,
    /// Selects the choice that completes a statement of elementary science.
    OpenBookQa,
    /// Selects the letter of the right choice, after five solved examples of the subject.
    Mmlu,
    /// Measures how well a plain text is predicted.
    Perplexity,
}

impl Task {
    /// All tasks.
    pub const ALL: [Self; 6] = [
        Self::Lambada,
        Self::HellaSwag,
        Self::WinoGrande,
        Self::OpenBookQa,
        Self::Mmlu,
        Self::Perplexity,
    ];

    /// Returns the name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lambada => "lambada",
            Self::HellaSwag => "hellaswag",
            Self::WinoGrande => "winogrande",
            Self::OpenBookQa => "openbookqa",
            Self::Mmlu => "mmlu",
            Self::Perplexity => "perplexity",
        }
    }
}

/// The questions of one file.
#[derive(Clone, Debug)]
pub struct Dataset {
    pub(super) task: Task,
    pub(super) file: PathBuf,
    pub(super) content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Questions(Vec<Question>),
    Text(String),
}

impl Dataset {
    /// Reads the file of a task: one JSON object per line, or plain text for [`Task::Perplexity`]. The solved examples
    /// of MMLU are in a separate file: `few_shot`, or `mmlu_fewshot.jsonl` in the folder of the data.
    ///
    /// # Errors
    /// If a file cannot be read, is empty, or has a row that does not belong to this task; the error names file, line
    /// and field.
    pub fn read(task: Task, file: &Path, few_shot: Option<&Path>) -> Result<Self, DataError> {
        let each = |question: &dyn Fn(&Row) -> Result<Question, DataError>| {
            rows::rows(file)?
                .iter()
                .map(question)
                .collect::<Result<Vec<_>, _>>()
                .map(Content::Questions)
        };
        let content = match task {
            Task::Lambada => each(&lambada::question)?,
            Task::HellaSwag => each(&hellaswag::question)?,
            Task::WinoGrande => each(&winogrande::question)?,
            Task::OpenBookQa => each(&openbookqa::question)?,
            Task::Mmlu => {
                let sibling = file.with_file_name("mmlu_fewshot.jsonl");
                let few_shot = mmlu::FewShot::read(few_shot.unwrap_or(&sibling))?;
                each(&|row| few_shot.question(row))?
            }
            Task::Perplexity => Content::Text(rows::text(file)?),
        };
        Ok(Self {
            task,
            file: file.into(),
            content,
        })
    }

    /// Returns the task.
    pub fn task(&self) -> Task {
        self.task
    }
}
