//! OpenBookQA: select the choice that completes a statement of elementary science. The harness's `openbookqa`.

use super::super::question::{Choice, Judgement, Question};
use super::super::rows::{DataError, Row};

const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

/// Returns a question with the stem, followed by each of the choices in one field: `(A) … (B) … (C) … (D) …`.
pub(in super::super) fn question(row: &Row) -> Result<Question, DataError> {
    let stem = row.text("Question Stem")?;
    let Some(choices) = split(row.text("Choices")?) else {
        return Err(row.wrong(
            "Choices",
            "does not list four choices",
            "\"(A) … (B) … (C) … (D) …\"",
        ));
    };
    let right = row.one_of("Answer Key", &LETTERS)?;
    let choices = choices
        .into_iter()
        .map(|choice| Choice::after_space(stem, choice))
        .collect();
    Ok(Question::new(
        row.line,
        choices,
        Judgement::LikeliestPerCharacter { right },
    ))
}

/// Returns the texts after `(A)`, `(B)`, `(C)` and `(D)`.
fn split(choices: &str) -> Option<[&str; 4]> {
    let mut rest = choices.trim_start().strip_prefix("(A)")?;
    let mut texts = [""; 4];
    for (text, next) in texts.iter_mut().zip(["(B)", "(C)", "(D)"]) {
        (*text, rest) = rest.split_once(next)?;
    }
    texts[3] = rest;
    let texts = texts.map(str::trim);
    texts.iter().all(|text| !text.is_empty()).then_some(texts)
}

#[cfg(test)]
mod tests {
    use super::super::super::rows::tests::row;
    use super::*;

    #[test]
    fn choices_follow_the_stem() {
        let row = row(
            r#"{"Question Stem": "Ice is", "Choices": "(A) hot (B) cold (dry) (C) a gas (D) alive", "Answer Key": "B"}"#,
        );
        let question = question(&row).unwrap();
        let expected = ["hot", "cold (dry)", "a gas", "alive"]
            .map(|choice| Choice::after_space("Ice is", choice));
        assert_eq!(question.choices, expected);
        assert_eq!(question.choices[1].characters(), 10);
        assert_eq!(
            question.judgement,
            Judgement::LikeliestPerCharacter { right: 1 }
        );
    }

    #[test]
    fn a_list_that_lacks_a_choice_is_an_error() {
        for choices in [
            "(A) a (B) b (C) c",
            "(A) a (C) c (B) b (D) d",
            "(A) a (B) (C) c (D) d",
            "a b c d",
        ] {
            assert_eq!(split(choices), None, "{choices}");
        }
    }
}
