//! LAMBADA: the last word of a passage. The harness's `lambada_openai`.

use super::super::question::{Choice, Judgement, Question};
use super::super::rows::{DataError, Row};

/// The passage up to its last space, and what follows.
pub(in super::super) fn question(row: &Row) -> Result<Question, DataError> {
    let text = row.text("text")?;
    let (context, word) = text.rsplit_once(' ').unwrap_or(("", text));
    if word.is_empty() {
        return Err(row.wrong("text", "ends in a space", "a passage that ends in the word to predict"));
    }
    Ok(Question::new(row.line, vec![Choice::after_space(context, word)], Judgement::Greedy))
}

#[cfg(test)]
mod tests {
    use super::super::super::rows::tests::row;
    use super::*;

    #[test]
    fn the_last_word_is_the_target() {
        let question = question(&row(r#"{"text": "It was \"late\" in\nthe day."}"#)).unwrap();
        assert_eq!(question.choices, [Choice::after_space("It was \"late\" in\nthe", "day.")]);
        assert_eq!(question.choices[0].continuation, " day.");
    }

    #[test]
    fn a_passage_without_a_last_word_is_an_error() {
        let error = question(&row(r#"{"text": "It was "}"#)).unwrap_err();
        assert!(error.message.contains("ends in a space"), "{error}");
    }
}
