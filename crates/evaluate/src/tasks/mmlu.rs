//! MMLU: select the letter of the right choice, after five solved examples of the subject. The harness's `mmlu`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::super::question::{Choice, Judgement, Preamble, Question};
use super::super::rows::{self, DataError, Row};

/// Solved examples before each question.
const SHOTS: usize = 5;

const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

/// The text before the questions of each subject.
pub(in super::super) struct FewShot {
    preambles: HashMap<String, Arc<Preamble>>,
    file: String,
}

impl FewShot {
    /// Reads the solved examples: rows in the format of the questions, the first five of each subject.
    pub(in super::super) fn read(path: &Path) -> Result<Self, DataError> {
        let mut preambles: HashMap<String, Preamble> = HashMap::new();
        for row in rows::rows(path)? {
            let subject = row.text("subject")?;
            let preamble = preambles
                .entry(subject.to_owned())
                .or_insert_with(|| Preamble {
                    description: format!(
                        "The following are multiple choice questions (with answers) about {}.\n\n",
                        subject.replace('_', " ")
                    ),
                    examples: Vec::with_capacity(SHOTS),
                });
            if preamble.examples.len() < SHOTS {
                preamble
                    .examples
                    .push(format!("{} {}\n\n", ask(&row)?, LETTERS[answer(&row)?]));
            }
        }
        let file = path.display().to_string();
        for (subject, preamble) in &preambles {
            let examples = preamble.examples.len();
            if examples < SHOTS {
                let message =
                    format!("subject {subject:?} has {examples} solved examples: expected {SHOTS}");
                return Err(DataError::new(path, None, message));
            }
        }
        Ok(Self {
            preambles: preambles
                .into_iter()
                .map(|(subject, preamble)| (subject, Arc::new(preamble)))
                .collect(),
            file,
        })
    }

    /// Returns a question with each letter as a continuation.
    pub(in super::super) fn question(&self, row: &Row) -> Result<Question, DataError> {
        let subject = row.text("subject")?;
        let Some(preamble) = self.preambles.get(subject) else {
            let expected = format!("a subject with examples in {}", self.file);
            return Err(row.wrong("subject", format!("is {subject:?}"), expected));
        };
        let context = ask(row)?;
        let choices = LETTERS
            .iter()
            .map(|letter| Choice::after_space(&context, letter))
            .collect();
        let judgement = Judgement::Likeliest {
            right: answer(row)?,
        };
        Ok(Question {
            preamble: Arc::clone(preamble),
            ..Question::new(row.line, choices, judgement)
        })
    }
}

fn ask(row: &Row) -> Result<String, DataError> {
    let mut text = row.text("question")?.trim().to_owned();
    for (letter, field) in LETTERS
        .iter()
        .zip(["choice0", "choice1", "choice2", "choice3"])
    {
        text += &format!("\n{letter}. {}", row.text(field)?);
    }
    Ok(text + "\nAnswer:")
}

fn answer(row: &Row) -> Result<usize, DataError> {
    row.one_of("answer", &["0", "1", "2", "3"])
}

#[cfg(test)]
mod tests {
    use super::super::super::rows::tests::row;
    use super::*;

    const ROW: &str = r#"{"subject": "high_school_physics", "question": " What falls? ", "choice0": "a", "choice1": "b",
        "choice2": "c", "choice3": "d", "answer": 2}"#;

    #[test]
    fn examples_and_question_have_the_format_of_the_harness() {
        let folder = std::env::temp_dir().join(format!("triad-mmlu-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("few_shot.jsonl");
        std::fs::write(&path, (ROW.replace('\n', " ") + "\n").repeat(6)).unwrap();
        let few_shot = FewShot::read(&path).unwrap();
        let question = few_shot.question(&row(ROW)).unwrap();
        let description = "The following are multiple choice questions (with answers) about high school physics.\n\n";
        assert_eq!(question.preamble.description, description);
        assert_eq!(
            question.preamble.examples,
            ["What falls?\nA. a\nB. b\nC. c\nD. d\nAnswer: C\n\n"; 5]
        );
        assert_eq!(
            question.choices[3],
            Choice::after_space("What falls?\nA. a\nB. b\nC. c\nD. d\nAnswer:", "D")
        );
        assert_eq!(question.judgement, Judgement::Likeliest { right: 2 });
        let other = row(&ROW.replace("physics", "music"));
        assert!(
            few_shot
                .question(&other)
                .unwrap_err()
                .message
                .contains("few_shot.jsonl")
        );
        std::fs::write(&path, ROW.replace('\n', " ")).unwrap();
        let error = FewShot::read(&path).err().unwrap();
        assert!(
            error.message.contains("has 1 solved examples: expected 5"),
            "{error}"
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}
