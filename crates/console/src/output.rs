//! Output of commands: JSON or text on stdout, and numbers with units.
//!
//! Texts from files, models and servers may contain control characters that change the terminal: titles, colours,
//! overwritten lines, links. All text that goes to a terminal therefore passes through [`printable`], or through
//! [`answer`] if a model writes it.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// Prints `value` as indented JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    // JSON escapes only control characters below U+0020. Strings may contain others.
    text(&escaped(&json, steers_terminal, |letter, escaped| {
        letter
            .encode_utf16(&mut [0; 2])
            .iter()
            .for_each(|unit| *escaped += &format!("\\u{unit:04x}"));
    }))
}

/// Prints `text` and a line end; on a terminal, as [`printable`] returns it.
pub fn text(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let text = if stdout.is_terminal() {
        printable(text)
    } else {
        text.into()
    };
    writeln!(stdout, "{}", text.trim_end_matches('\n'))?;
    Ok(stdout.flush()?)
}

/// Writes `text` to standard error, as [`printable`] returns it, and a line end. Ignores write errors.
pub fn note(text: &str) {
    let _ = writeln!(
        io::stderr().lock(),
        "{}",
        printable(text).trim_end_matches('\n')
    );
}

/// Returns `text` with control characters other than line ends and tabs replaced by escapes, such as `\u{1b}`.
/// Characters that change the direction of text are also replaced, because they can make one name look like another.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, steers_terminal, |letter, escaped| {
        escaped.extend(letter.escape_unicode());
    })
}

fn steers_terminal(letter: char) -> bool {
    let is_control = letter.is_control() && !matches!(letter, '\n' | '\t');
    is_control || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(
    text: &str,
    escapes: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.contains(&escapes) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if escapes(letter) {
            escape(letter, &mut escaped);
        } else {
            escaped.push(letter);
        }
    }
    escaped.into()
}

/// Prints a piece of a model's answer on stdout. On a terminal, characters that would steer it are replaced.
pub fn answer(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let is_terminal = stdout.is_terminal();
    write_answer(&mut stdout, text, is_terminal)
}

fn write_answer(out: &mut impl Write, text: &str, is_terminal: bool) -> io::Result<()> {
    let text = match is_terminal {
        true => escaped(text, steers_terminal, |letter, escaped| {
            // Lines may end in CR LF.
            if letter != '\r' {
                escaped.extend(letter.escape_unicode());
            }
        }),
        false => text.into(),
    };
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints names and values, one pair per line, with the names in a column.
pub fn fields(fields: &[(&str, String)]) -> Result<()> {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> = fields
        .iter()
        // A name in a file must not look like further fields.
        .map(|(name, value)| format!("{name:width$}  {}", value.replace('\n', "\\n")))
        .collect();
    text(&lines.join("\n"))
}

/// Returns a table with a header. The first `labels` columns are left-aligned, the others, which contain numbers,
/// right-aligned.
pub fn table(names: &[&str], labels: usize, rows: &[Vec<String>]) -> String {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let lines: Vec<_> = [&names].into_iter().chain(rows).collect();
    let length = |cell: &String| cell.chars().count();
    let widths: Vec<_> = (0..names.len())
        .map(|column| {
            lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(length)
                .max()
                .unwrap_or(0)
        })
        .collect();
    let line = |cells: &Vec<String>| {
        let cell = |(column, cell): (usize, &String)| match widths[column] {
            width if column < labels => format!("{cell:width$}"),
            width => format!("{cell:>width$}"),
        };
        cells
            .iter()
            .take(widths.len())
            .enumerate()
            .map(cell)
            .collect::<Vec<_>>()
            .join("  ")
            .trim_end()
            .to_owned()
    };
    lines.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats bytes: `1.5 GiB`.
pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "bytes";
    for next in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "bytes" {
        format!("{bytes} bytes")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// Formats bytes, or `unknown` if the system does not report them.
pub fn known_bytes(known: Option<u64>) -> String {
    known.map_or_else(|| "unknown".into(), bytes)
}

/// Formats a whole number with commas between thousands.
pub fn count(count: usize) -> String {
    grouped(&count.to_string())
}

/// Puts commas between the thousands of the decimal digits of a whole number.
pub fn grouped(digits: &str) -> String {
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_steers_a_terminal() {
        let all: String = (0..=0xff_u8)
            .map(char::from)
            .chain("\u{202e}\u{2066}é▁漢\u{200f}".chars())
            .collect();
        let shown = printable(&all);
        assert!(!shown.chars().any(steers_terminal), "{shown:?}");
        assert!(
            shown.contains("\\u{1b}") && shown.contains("\\u{9b}") && shown.contains("\\u{202e}"),
            "{shown:?}"
        );
        assert!(
            shown.contains("\t\n") && shown.ends_with("é▁漢\u{200f}"),
            "{shown:?}"
        );
        assert!(matches!(printable("plain\ttext\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn an_answer_is_escaped_on_a_terminal_alone() {
        let answer = "a\u{1b}]0;title\u{7}\u{9b}31m\r\n\t\u{202e}b\u{2066}\u{200f}";
        let written = |is_terminal| {
            let mut out = Vec::new();
            write_answer(&mut out, answer, is_terminal).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(false), answer);
        assert_eq!(
            written(true),
            "a\\u{1b}]0;title\\u{7}\\u{9b}31m\n\t\\u{202e}b\\u{2066}\u{200f}"
        );
    }

    #[test]
    fn bytes_have_the_largest_unit_that_keeps_them_above_one() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(98_362_432), "93.8 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn columns_of_a_table_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["é".to_owned(), "5".into()],
            vec!["three".into(), "1,000".into()],
        ];
        assert_eq!(
            table(&["of", "n"], 1, &rows),
            "of         n\né          5\nthree  1,000"
        );
        assert_eq!(table(&["of"], 1, &[]), "of");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(
            [count(0), count(999), count(1000), count(134_515_008)],
            ["0", "999", "1,000", "134,515,008"]
        );
    }
}
