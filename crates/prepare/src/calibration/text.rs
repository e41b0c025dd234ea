//! The texts for calibration: the built-in ones, or a file of the user.
//!
//! The channels with outliers depend on the text, so the built-in texts cover many domains: prose, dialogue, questions,
//! arithmetic, code, screens of apps, Chinese and other languages. Each domain is one file in `builtin/`, written for
//! this project, with its texts separated by a line of `---`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::{Result, TextError};

const DOMAINS: [(&str, &str); 11] = [
    ("encyclopedia", include_str!("builtin/encyclopedia.txt")),
    ("code", include_str!("builtin/code.txt")),
    ("dialogue", include_str!("builtin/dialogue.txt")),
    ("screens", include_str!("builtin/screens.txt")),
    ("chinese", include_str!("builtin/chinese.txt")),
    ("questions", include_str!("builtin/questions.txt")),
    ("news", include_str!("builtin/news.txt")),
    ("mathematics", include_str!("builtin/mathematics.txt")),
    ("stories", include_str!("builtin/stories.txt")),
    ("languages", include_str!("builtin/languages.txt")),
    ("everyday", include_str!("builtin/everyday.txt")),
];

/// Maximum bytes of a text in a file; longer ones are cut. This is about a thousand tokens, which any context holds.
const LONGEST_TEXT: usize = 4096;

/// Places to cut a long text, best first.
const BREAKS: [&str; 4] = ["\n\n", "\n", ". ", " "];

/// Maximum bytes of a file: a hundred times what a calibration can use.
const LARGEST_FILE: u64 = 64 << 20;

/// The fields in which a JSON line may have its text; the first existing one is used.
const FIELDS: [&str; 8] = [
    "text", "content", "sentence", "question", "prompt", "state", "input", "elements",
];

/// The texts for calibration.
#[derive(Clone, Debug)]
pub struct CalibrationText {
    /// Their name in reports: `built-in`, or the name of the file.
    pub name: String,
    /// The texts, each at most a few thousand characters long.
    pub texts: Vec<String>,
}

impl CalibrationText {
    /// Returns the built-in texts, about 15 thousand tokens. The domains alternate, so that any leading part is varied.
    pub fn builtin() -> Self {
        let domains = Self::builtin_domains()
            .into_iter()
            .map(|domain| domain.texts);
        Self {
            name: "built-in".into(),
            texts: in_turns(domains),
        }
    }

    /// Returns the built-in texts of each domain, with its name.
    pub fn builtin_domains() -> Vec<Self> {
        let texts = |domain: &str| {
            domain
                .split("\n---\n")
                .map(|text| text.trim_end().to_owned())
                .collect()
        };
        DOMAINS
            .iter()
            .map(|(name, domain)| Self {
                name: (*name).into(),
                texts: texts(domain),
            })
            .collect()
    }

    /// Joins several texts. They alternate, so that any leading part has some of each.
    pub fn join(parts: Vec<Self>) -> Self {
        let name = parts
            .iter()
            .map(|part| part.name.as_str())
            .collect::<Vec<_>>()
            .join(", ");
        Self {
            name,
            texts: in_turns(parts.into_iter().map(|part| part.texts)),
        }
    }

    /// Reads the texts of a file: JSON lines if the name ends in `.jsonl`, plain text otherwise. Long texts are cut
    /// between paragraphs, else between lines, sentences or words.
    ///
    /// A JSON line is an object with its text in the field `text`, else in the first existing one of `content`,
    /// `sentence`, `question`, `prompt`, `state`, `input` and `elements`; lists of strings are joined by newlines.
    ///
    /// # Errors
    /// If the file can't be read, is not UTF-8, is larger than 64 MiB or has no text; if a line is no such object.
    pub fn read(path: &Path) -> Result<Self> {
        let content = read_file(path)?;
        let texts = if path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("jsonl"))
        {
            json_lines(path, &content)?
        } else {
            pieces(&content)
        };
        if texts.is_empty() {
            return Err(text_error(path, None, "holds no text to calibrate on", None).into());
        }
        let name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned();
        Ok(Self { name, texts })
    }
}

/// Returns the first of each of `lists`, then the second of each, and so on.
fn in_turns(lists: impl Iterator<Item = Vec<String>>) -> Vec<String> {
    let mut lists: Vec<_> = lists.map(Vec::into_iter).collect();
    let mut texts = Vec::new();
    loop {
        let before = texts.len();
        texts.extend(lists.iter_mut().filter_map(Iterator::next));
        if texts.len() == before {
            return texts;
        }
    }
}

type Source = Box<dyn std::error::Error + Send + Sync>;

fn text_error(
    path: &Path,
    line: Option<usize>,
    problem: impl Into<String>,
    source: Option<Source>,
) -> TextError {
    TextError {
        path: path.into(),
        line,
        problem: problem.into(),
        source,
    }
}

fn read_file(path: &Path) -> Result<String, TextError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| text_error(path, None, "cannot be read", Some(error.into())))?;
    if bytes.len() as u64 > LARGEST_FILE {
        let most = LARGEST_FILE >> 20;
        return Err(text_error(
            path,
            None,
            format!("is too large, expected at most {most} MiB of text"),
            None,
        ));
    }
    let content = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        text_error(
            path,
            None,
            format!("is not text, expected UTF-8 (byte {at} is none)"),
            None,
        )
    })?;
    Ok(content.trim_start_matches('\u{feff}').replace("\r\n", "\n"))
}

fn json_lines(path: &Path, content: &str) -> Result<Vec<String>, TextError> {
    let mut texts = Vec::new();
    for (index, line) in content
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let at_line = |problem: String, source| text_error(path, Some(index + 1), problem, source);
        let row = serde_json::from_str(line)
            .map_err(|error| at_line("is not JSON".into(), Some(error.into())))?;
        let text = text_of(&row).map_err(|problem| at_line(problem, None))?;
        texts.extend(pieces(&text));
    }
    Ok(texts)
}

/// Returns the text of one JSON line, or a description of the expected content.
fn text_of(row: &Value) -> Result<String, String> {
    let field = FIELDS.iter().find_map(|&name| Some((name, row.get(name)?)));
    let (name, value) = field.ok_or_else(|| {
        format!(
            "expected an object with one of the fields {}",
            FIELDS.join(", ")
        )
    })?;
    let of_list = |list: &Vec<Value>| {
        list.iter()
            .map(Value::as_str)
            .collect::<Option<Vec<_>>>()
            .map(|list| list.join("\n"))
    };
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => of_list(list),
        _ => None,
    }
    .ok_or_else(|| format!("the field {name} is neither a string nor a list of strings"))
}

/// Returns `text` in pieces of at most [`LONGEST_TEXT`] bytes, none of them blank.
fn pieces(text: &str) -> Vec<String> {
    let (mut rest, mut pieces) = (text, Vec::new());
    while !rest.trim().is_empty() {
        let (piece, after) = rest.split_at(if rest.len() <= LONGEST_TEXT {
            rest.len()
        } else {
            cut(rest)
        });
        if !piece.trim().is_empty() {
            pieces.push(piece.trim_matches('\n').trim_end().to_owned());
        }
        rest = after;
    }
    pieces
}

/// Returns the place to cut a text that is longer than [`LONGEST_TEXT`]: after the best break of the second half, so
/// that pieces don't become short.
fn cut(text: &str) -> usize {
    let (half, end) = (
        text.floor_char_boundary(LONGEST_TEXT / 2),
        text.floor_char_boundary(LONGEST_TEXT),
    );
    let breaks = BREAKS
        .iter()
        .find_map(|&found| Some(half + text[half..end].rfind(found)? + found.len()));
    breaks.unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;

    use super::*;

    fn read(name: &str, content: impl AsRef<[u8]>) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        let read = CalibrationText::read(&path);
        read.map(|read| read.texts).map_err(|error| {
            error
                .to_string()
                .replace(&*folder.path().to_string_lossy(), "")
        })
    }

    #[test]
    fn each_domain_is_among_the_first_builtin_texts() {
        let texts = CalibrationText::builtin().texts;
        let domain_of = |text: &String| {
            DOMAINS
                .iter()
                .position(|(_, domain)| domain.contains(text.as_str()))
                .unwrap()
        };
        let first: Vec<_> = texts.iter().take(DOMAINS.len()).map(domain_of).collect();
        assert_eq!(first, (0..DOMAINS.len()).collect::<Vec<_>>());
    }

    #[test]
    fn builtin_texts_are_whole_and_differ() {
        let texts = CalibrationText::builtin().texts;
        let separators: usize = DOMAINS
            .iter()
            .map(|(_, domain)| domain.lines().filter(|&line| line == "---").count())
            .sum();
        assert_eq!(texts.len(), DOMAINS.len() + separators);
        assert_eq!(texts.iter().collect::<HashSet<_>>().len(), texts.len());
        for text in &texts {
            assert!(
                (500..=LONGEST_TEXT).contains(&text.len()),
                "{} bytes: {text}",
                text.len()
            );
        }
    }

    #[test]
    fn a_builtin_line_is_in_one_text_only() {
        let mut seen = HashSet::new();
        for text in CalibrationText::builtin().texts {
            let lines: HashSet<String> = text
                .lines()
                .filter(|line| line.len() > 60)
                .map(str::to_owned)
                .collect();
            for line in lines {
                assert!(!seen.contains(&line), "twice: {line}");
                seen.insert(line);
            }
        }
    }

    #[test]
    fn plain_text_is_cut_between_paragraphs() {
        let paragraph = "A sentence with a few words. "
            .repeat(30)
            .trim_end()
            .to_owned();
        let content = vec![paragraph.clone(); 20].join("\n\n");
        let texts = read("text.txt", &content).unwrap();
        assert!(texts.len() > 1 && texts.iter().all(|text| text.len() <= LONGEST_TEXT));
        assert!(
            texts
                .iter()
                .all(|text| text.starts_with("A sentence") && text.ends_with("words."))
        );
        assert_eq!(texts.join("\n\n"), content);
    }

    #[test]
    fn text_without_breaks_is_cut_between_characters() {
        let content = "茶".repeat(10_000);
        let texts = read("text", &content).unwrap();
        assert!(texts.iter().all(|text| text.len() <= LONGEST_TEXT));
        assert_eq!(texts.concat(), content);
    }

    #[test]
    fn windows_line_ends_and_a_byte_order_mark_are_no_text() {
        assert_eq!(
            read("text.txt", "\u{feff}one\r\ntwo\r\n").unwrap(),
            ["one\ntwo"]
        );
    }

    #[test]
    fn json_lines_hold_their_text_in_the_first_field_known() {
        let content = r#"
{"title": "x", "text": "one", "question": "no"}
{"input": "no", "question": "two"}

{"elements": ["<p id=0>three</p>", "<p id=1>four</p>"]}
{"text": "  "}
"#;
        assert_eq!(
            read("rows.jsonl", content).unwrap(),
            ["one", "two", "<p id=0>three</p>\n<p id=1>four</p>"]
        );
    }

    #[test]
    fn a_bad_json_line_is_an_error_that_names_file_and_line() {
        let not_json = read("rows.jsonl", "{\"text\": \"one\"}\n{\"text\": ").unwrap_err();
        assert!(
            not_json.starts_with("/rows.jsonl, line 2: is not JSON"),
            "{not_json}"
        );
        let no_field = read("rows.jsonl", "\n{\"label\": 3}\n").unwrap_err();
        assert!(no_field.contains(
            "/rows.jsonl, line 2: expected an object with one of the fields text, content"
        ));
        let number = read("rows.jsonl", "{\"text\": 3}").unwrap_err();
        assert!(
            number.contains("line 1: the field text is neither a string nor a list of strings"),
            "{number}"
        );
        assert!(read("rows.jsonl", "[1, 2]").is_err());
        assert!(read("rows.jsonl", "{\"elements\": [1]}").is_err());
    }

    #[test]
    fn a_file_without_text_is_an_error() {
        assert!(
            read("text.txt", "\n \n")
                .unwrap_err()
                .contains("/text.txt: holds no text")
        );
        assert!(
            read("rows.jsonl", "")
                .unwrap_err()
                .contains("holds no text")
        );
        assert!(
            read("text.txt", b"abc\xff")
                .unwrap_err()
                .contains("expected UTF-8 (byte 3")
        );
        let missing = CalibrationText::read(Path::new("missing.txt")).unwrap_err();
        assert!(
            missing
                .to_string()
                .starts_with("missing.txt: cannot be read")
        );
    }

    #[test]
    fn a_file_that_is_too_large_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        File::create(&path)
            .unwrap()
            .set_len(LARGEST_FILE + 1)
            .unwrap();
        assert!(
            CalibrationText::read(&path)
                .unwrap_err()
                .to_string()
                .contains("at most 64 MiB")
        );
    }
}
