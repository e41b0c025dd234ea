//! WinoGrande: the meaning of a blank. The harness's `winogrande`, by partial evaluation: the text after the blank is
//! scored for each option.

use super::super::question::{Choice, Judgement, Question};
use super::super::rows::{DataError, Row};

/// Returns a question with the sentence up to the blank, each option in its place, and the rest of the sentence.
pub(in super::super) fn question(row: &Row) -> Result<Question, DataError> {
    let Some((before, after)) = row.text("sentence")?.split_once('_') else {
        return Err(row.wrong("sentence", "has no blank", "a sentence with \"_\""));
    };
    if after.trim().is_empty() {
        return Err(row.wrong("sentence", "ends in the blank", "a text after \"_\""));
    }
    let choice = |option| {
        Ok(Choice::after_space(
            format!("{before}{}", row.text(option)?),
            after.trim(),
        ))
    };
    let choices = vec![choice("option1")?, choice("option2")?];
    let right = row.one_of("answer", &["1", "2"])?;
    Ok(Question::new(
        row.line,
        choices,
        Judgement::Likeliest { right },
    ))
}

#[cfg(test)]
mod tests {
    use super::super::super::rows::tests::row;
    use super::*;

    #[test]
    fn the_rest_of_the_sentence_is_scored_after_each_option() {
        let row = row(
            r#"{"sentence": "The cup broke the plate because _ fell.", "option1": "it", "option2": "that", "answer": "2"}"#,
        );
        let question = question(&row).unwrap();
        let expected = ["it", "that"].map(|option| {
            Choice::after_space(format!("The cup broke the plate because {option}"), "fell.")
        });
        assert_eq!(question.choices, expected);
        assert_eq!(question.judgement, Judgement::Likeliest { right: 1 });
    }

    #[test]
    fn a_sentence_without_a_blank_is_an_error() {
        let row = row(
            r#"{"sentence": "The cup fell.", "option1": "it", "option2": "that", "answer": "2"}"#,
        );
        assert!(
            question(&row)
                .unwrap_err()
                .message
                .contains("expected a sentence with \"_\"")
        );
    }
}
