//! The tasks of `triad eval`, and their data.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use triad_console::task::Task;
use triad_evaluate::Dataset;

/// A task, or all of them.
#[derive(Clone, Copy)]
enum Choice {
    One(Task),
    All,
}

impl ValueEnum for Choice {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::One(Task::Lambada),
            Self::One(Task::Hellaswag),
            Self::One(Task::Winogrande),
            Self::One(Task::Openbookqa),
            Self::One(Task::Mmlu),
            Self::One(Task::Perplexity),
            Self::All,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::One(task) => task.to_possible_value(),
            Self::All => Some(PossibleValue::new("all").help("All of these")),
        }
    }
}

/// The arguments that choose tasks and their data.
#[derive(clap::Args)]
pub struct TaskArguments {
    /// Task to evaluate; several are separated by commas
    #[arg(long, value_enum, required = true, value_delimiter = ',')]
    task: Vec<Choice>,
    /// Questions: one JSON object per line, or plain text for perplexity. In a folder, each task has the file whose
    /// name begins with the task's name and ends in .jsonl, or in .txt for perplexity; names with `train` or `fewshot`
    /// are ignored
    #[arg(long, value_name = "FILE|FOLDER")]
    data: PathBuf,
    /// Solved examples for mmlu [default: mmlu_fewshot.jsonl next to the data]
    #[arg(long, value_name = "FILE")]
    few_shot: Option<PathBuf>,
}

impl TaskArguments {
    /// Returns whether solved examples are given.
    pub fn has_few_shot(&self) -> bool {
        self.few_shot.is_some()
    }

    /// Reads the data of every task.
    pub fn read(&self) -> Result<Vec<Dataset>> {
        let mut tasks = Vec::new();
        for choice in &self.task {
            let chosen = match choice {
                Choice::One(task) => vec![(*task).into()],
                Choice::All => triad_evaluate::Task::ALL.to_vec(),
            };
            tasks.extend(chosen);
        }
        let mut seen = Vec::new();
        tasks.retain(|task| {
            !seen.contains(task) && {
                seen.push(*task);
                true
            }
        });
        let is_folder = self.data.is_dir();
        ensure!(
            is_folder || tasks.len() == 1,
            "{}: expected a folder with the data of {} tasks",
            self.data.display(),
            tasks.len()
        );
        let read = |task: triad_evaluate::Task| {
            let file = if is_folder {
                task.file_in(&self.data)?
            } else {
                self.data.clone()
            };
            Ok(Dataset::read(task, &file, self.few_shot.as_deref())?)
        };
        tasks.into_iter().map(read).collect()
    }
}
