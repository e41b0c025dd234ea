//! What commands print: JSON or text on stdout, numbers with units.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// Prints `value` as indented JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    text(&serde_json::to_string_pretty(value).context("cannot write JSON")?)
}

/// Prints `text` and ends the line.
pub fn text(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.trim_end_matches('\n'))?;
    Ok(stdout.flush()?)
}

/// Writes `text` to standard error and ends the line. Errors of writing are ignored.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text.trim_end_matches('\n'));
}

/// Prints what names are, one a line, names in a column of one width.
pub fn fields(fields: &[(&str, String)]) -> Result<()> {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> = fields.iter().map(|(name, value)| format!("{name:width$}  {value}")).collect();
    text(&lines.join("\n"))
}

/// A table: names above columns, the first `labels` columns to the left, numbers to the right.
pub fn table(names: &[&str], labels: usize, rows: &[Vec<String>]) -> String {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let lines: Vec<_> = [&names].into_iter().chain(rows).collect();
    let length = |cell: &String| cell.chars().count();
    let widths: Vec<_> = (0..names.len())
        .map(|column| lines.iter().filter_map(|line| line.get(column)).map(length).max().unwrap_or(0))
        .collect();
    let line = |cells: &Vec<String>| {
        let cell = |(column, cell): (usize, &String)| match widths[column] {
            width if column < labels => format!("{cell:width$}"),
            width => format!("{cell:>width$}"),
        };
        cells.iter().take(widths.len()).enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Bytes for people: `1.5 GiB`.
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
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{value:.1} {unit}") }
}

/// Bytes for people, or that the system does not tell them.
pub fn known_bytes(known: Option<u64>) -> String {
    known.map_or_else(|| "unknown".into(), bytes)
}

/// A whole number with a comma between thousands.
pub fn count(count: usize) -> String {
    let digits = count.to_string();
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
    fn bytes_have_the_largest_unit_that_keeps_them_above_one() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(98_362_432), "93.8 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn columns_of_a_table_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["é".to_owned(), "5".into()], vec!["three".into(), "1,000".into()]];
        assert_eq!(table(&["of", "n"], 1, &rows), "of         n\né          5\nthree  1,000");
        assert_eq!(table(&["of"], 1, &[]), "of");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([count(0), count(999), count(1000), count(134_515_008)], ["0", "999", "1,000", "134,515,008"]);
    }
}
