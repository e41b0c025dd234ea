//! LAMBADA: the last word of a passage. The harness's `lambada_openai`.

use super::super::question::{Choice, Judgement, Question};
use super::super::rows::{DataError, Row};

/// Returns a question with the passage up to its last space, and the rest as the continuation.
pub(in super::super) fn question(row: &Row) -> Result<Question, DataError> {
    let text = row.text("text")?;
    let expected = "a passage that ends in the word to predict";
    let Some((context, word)) = text
        .rsplit_once(' ')
        .filter(|(context, _)| !context.trim().is_empty())
    else {
        return Err(row.wrong("text", "is a single word", expected));
    };
    if word.is_empty() {
        return Err(row.wrong("text", "ends in a space", expected));
    }
    Ok(Question::new(
        row.line,
        vec![Choice::after_space(context, word)],
        Judgement::Greedy,
    ))
}

#[cfg(test)]
mod tests {
    use super::super::super::rows::tests::row;
    use super::*;

    #[test]
    fn the_last_word_is_the_target() {
        let question = question(&row(r#"{"text": "It was \"late\" in\nthe day."}"#)).unwrap();
        assert_eq!(
            question.choices,
            [Choice::after_space("It was \"late\" in\nthe", "day.")]
        );
        assert_eq!(question.choices[0].continuation, " day.");
    }

    #[test]
    fn a_passage_without_a_last_word_is_an_error() {
        let error = question(&row(r#"{"text": "It was "}"#)).unwrap_err();
        assert!(error.message.contains("ends in a space"), "{error}");
        for single in [r#"{"text": "word"}"#, r#"{"text": " word"}"#] {
            let error = question(&row(single)).unwrap_err();
            assert!(error.message.contains("is a single word"), "{error}");
        }
    }
}
