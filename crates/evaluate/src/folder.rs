//! Finds the file of a task in a folder of data.

use std::path::{Path, PathBuf};

use super::dataset::Task;
use super::rows::DataError;

/// Files with one of these words in their names are not evaluation data.
const OTHER_PARTS: [&str; 2] = ["train", "fewshot"];

impl Task {
    /// Returns the file of this task in `folder`: the only one whose name starts with that of the task and ends in
    /// `.jsonl`; for [`Task::Perplexity`], the only one that ends in `.txt`. Names that contain `train` or `fewshot`
    /// don't count.
    ///
    /// # Errors
    /// If the folder cannot be read, or has no such file or several.
    pub fn file_in(self, folder: &Path) -> Result<PathBuf, DataError> {
        let cannot_read =
            |error| DataError::new(folder, None, "cannot read the folder").caused_by(error);
        let mut names = Vec::new();
        for entry in folder.read_dir().map_err(cannot_read)? {
            let name = entry.map_err(cannot_read)?.file_name();
            if self.is_named(&name.to_string_lossy().to_lowercase()) {
                names.push(name);
            }
        }
        names.sort();
        let (task, pattern, others) = (self.name(), self.pattern(), OTHER_PARTS.join(" or "));
        let has = match &names[..] {
            [name] => return Ok(folder.join(name)),
            [] => "no file".into(),
            names => names
                .iter()
                .map(|name| name.to_string_lossy())
                .collect::<Vec<_>>()
                .join(" and "),
        };
        let message = format!(
            "the folder has {has} for {task}: expected one file {pattern}, without {others} in its name"
        );
        Err(DataError::new(folder, None, message))
    }

    fn is_named(self, name: &str) -> bool {
        let right = match self {
            Self::Perplexity => name.ends_with(".txt"),
            task => name.starts_with(task.name()) && name.ends_with(".jsonl"),
        };
        right && !OTHER_PARTS.iter().any(|part| name.contains(part))
    }

    fn pattern(self) -> String {
        match self {
            Self::Perplexity => "*.txt".into(),
            task => format!("{}*.jsonl", task.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_task_the_one_file_is_found_that_is_not_for_training() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "lambada_dev.jsonl",
            "Winogrande.jsonl",
            "winogrande_train_s.jsonl",
            "mmlu.jsonl",
            "README.md",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::write(folder.path().join("mmlu_fewshot.jsonl"), "").unwrap();
        std::fs::write(folder.path().join("wikitext2.txt"), "").unwrap();
        for (task, name) in [
            (Task::Lambada, "lambada_dev.jsonl"),
            (Task::WinoGrande, "Winogrande.jsonl"),
            (Task::Mmlu, "mmlu.jsonl"),
            (Task::Perplexity, "wikitext2.txt"),
        ] {
            assert_eq!(
                task.file_in(folder.path()).unwrap(),
                folder.path().join(name)
            );
        }
    }

    #[test]
    fn no_file_or_several_are_an_error_with_what_was_expected() {
        let folder = tempfile::tempdir().unwrap();
        let message = |task: Task| task.file_in(folder.path()).unwrap_err().message;
        let expected = "expected one file hellaswag*.jsonl, without train or fewshot in its name";
        assert_eq!(
            message(Task::HellaSwag),
            format!("the folder has no file for hellaswag: {expected}")
        );
        for name in ["hellaswag_b.jsonl", "hellaswag_a.jsonl"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let files = "hellaswag_a.jsonl and hellaswag_b.jsonl";
        assert_eq!(
            message(Task::HellaSwag),
            format!("the folder has {files} for hellaswag: {expected}")
        );
        assert!(message(Task::Perplexity).contains("expected one file *.txt"));
    }
}
