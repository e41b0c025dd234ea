//! HellaSwag: select the ending that continues a scene. The harness's `hellaswag`.

use super::super::question::{Choice, Judgement, Question};
use super::super::rows::{DataError, Row};

/// Returns a question with the activity and the scene, followed by each of four endings.
///
/// If a row has the scene in two parts, `ctx_a` and `ctx_b`, the second is capitalized, as in the harness; a file with
/// only the joined `ctx` is used unchanged.
pub(in super::super) fn question(row: &Row) -> Result<Question, DataError> {
    let scene = if row.has("ctx_a") && row.has("ctx_b") {
        // The second part is empty in the rows from WikiHow.
        format!(
            "{} {}",
            row.text("ctx_a")?,
            capitalize(row.text("ctx_b").unwrap_or_default())
        )
    } else {
        row.text("ctx")?.to_owned()
    };
    let context = clean(&format!("{}: {scene}", row.text("activity_label")?));
    let endings = row.texts("endings", 4)?;
    let right = row.one_of("label", &["0", "1", "2", "3"])?;
    let choices = endings
        .iter()
        .map(|ending| Choice::after_space(&context, &clean(ending)))
        .collect();
    Ok(Question::new(
        row.line,
        choices,
        Judgement::LikeliestPerCharacter { right },
    ))
}

/// Converts the first letter to upper case and the others to lower case.
fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters.flat_map(char::to_lowercase)).collect()
}

/// Removes the bracketed markup of the WikiHow part of the dataset.
fn clean(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    // Like the harness's `\[.*?\]`, in which a dot matches no newline.
    while let Some(start) = rest.find('[') {
        let inside = &rest[start..];
        let end = inside
            .find(']')
            .filter(|end| !inside[..*end].contains('\n'))
            .map_or(1, |end| end + 1);
        kept.push_str(&rest[..start]);
        kept.push_str(if end == 1 { "[" } else { "" });
        rest = &inside[end..];
    }
    kept.push_str(rest);
    kept.replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use super::super::super::rows::tests::row;
    use super::*;

    #[test]
    fn endings_follow_activity_and_scene() {
        let row = row(
            r#"{"activity_label": "Rowing", "ctx": "A boat. he", "endings": ["sinks.", "rows [step] on.", "c", "d"], "label": "1"}"#,
        );
        let question = question(&row).unwrap();
        assert_eq!(
            question.choices[0],
            Choice::after_space("Rowing: A boat. he", "sinks.")
        );
        assert_eq!(question.choices[1].continuation, " rows on.");
        assert_eq!(
            question.judgement,
            Judgement::LikeliestPerCharacter { right: 1 }
        );
    }

    #[test]
    fn the_second_part_of_a_scene_is_capitalized() {
        let row = row(
            r#"{"activity_label": "Rowing", "ctx_a": "A boat.", "ctx_b": "he", "ctx": "A boat. he", "endings": ["a", "b", "c", "d"], "label": 1}"#,
        );
        assert_eq!(
            question(&row).unwrap().choices[0].context,
            "Rowing: A boat. He"
        );
    }

    #[test]
    fn brackets_of_wikihow_are_removed() {
        assert_eq!(
            clean(" How to row [title] Sit. [step] Pull  hard [sic]."),
            "How to row. Sit. Pull hard ."
        );
        assert_eq!(clean("a [b c"), "a [b c");
        assert_eq!(clean("[[x] y]"), " y]");
        assert_eq!(clean("[a\nb] [c]d"), "[a\nb] d");
    }
}
