//! Pages with tables of measurements.
//!
//! A table stands between two marks, and is written again by [`rendered`]:
//!
//! ```text
//! <!-- report NAME
//! rows: model
//! columns: test
//! cell: {tokens_per_second}
//! -->
//! <!-- end of report -->
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::data::Data;
use super::table::Table;
use super::{Error, Result};

/// How the first mark begins.
const BEGIN: &str = "<!-- report ";
/// How the description ends.
const DESCRIBED: &str = "-->";
/// The second mark.
const END: &str = "<!-- end of report -->";

/// A page with the tables that its marks describe.
#[derive(Debug)]
pub struct Rendered {
    /// The text of the page.
    pub text: String,
    /// Names of the files whose values it shows.
    pub used: BTreeSet<String>,
}

/// Writes the tables of a page again. All other text stays as it is.
///
/// # Errors
/// Fails with the line of a mark that has no end, names no file of `files`, or whose description cannot be followed.
pub fn rendered(page: &str, files: &BTreeMap<String, Data>) -> Result<Rendered> {
    let lines: Vec<_> = page.lines().collect();
    let (mut text, mut used) = (String::new(), BTreeSet::new());
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let wrong = |problem: String| Error::Page {
            line: at + 1,
            problem,
        };
        let Some(name) = line.strip_prefix(BEGIN) else {
            if line == END {
                return Err(wrong(format!("`{END}` without `{BEGIN}` before it")));
            }
            text += line;
            text.push('\n');
            at += 1;
            continue;
        };
        let end_of = |from: usize, mark: &str| {
            let found = lines[from..].iter().position(|line| *line == mark);
            found.map(|found| from + found).ok_or_else(|| {
                wrong(format!(
                    "the table has no `{mark}`: expected it on a line of its own"
                ))
            })
        };
        let described = end_of(at + 1, DESCRIBED)?;
        let end = end_of(described + 1, END)?;
        if lines[described..end]
            .iter()
            .any(|line| line.starts_with(BEGIN))
        {
            return Err(wrong(format!(
                "the table has no `{END}` before the next one"
            )));
        }
        let data = files
            .get(name)
            .ok_or_else(|| wrong(format!("there is no file {name}.json of measurements")))?;
        let table = Table::parse(&lines[at + 1..described]).and_then(|table| table.markdown(data));
        let table = table.map_err(|problem| wrong(format!("{name}: {problem}")))?;
        used.insert(name.to_owned());
        text += &format!("{}\n\n{table}\n\n{END}\n", lines[at..=described].join("\n"));
        at = end + 1;
    }
    Ok(Rendered { text, used })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Speed\n\n<!-- report speed\nrows: model\ncolumns: tokens\ncell: {rate}\nprovenance: none\n-->\n\n\
                        | model | 64 |\n| --- | ---: |\n| a | 2 |\n\n<!-- end of report -->\n\nText.\n";

    fn files(rate: f64) -> BTreeMap<String, Data> {
        let text = format!(
            r#"{{"machine": "m", "commit": "c", "source": "recorded", "runs": [{{"command": "x", "rounds": 1, "rows":
               [{{"labels": {{"model": "a", "tokens": "64"}}, "values": {{"rate": [{rate}]}}}}]}}]}}"#
        );
        [(
            "speed".to_owned(),
            Data::parse("speed.json", &text).unwrap(),
        )]
        .into()
    }

    #[test]
    fn a_table_follows_the_data_and_other_text_stays() {
        let same = rendered(PAGE, &files(2.0)).unwrap();
        assert_eq!(same.text, PAGE);
        assert_eq!(same.used.into_iter().collect::<Vec<_>>(), ["speed"]);
        let other = rendered(PAGE, &files(3.0)).unwrap().text;
        assert_eq!(other, PAGE.replace("| a | 2 |", "| a | 3 |"));
    }

    #[test]
    fn marks_that_cannot_be_followed_are_refused_with_their_line() {
        for (from, to, expected) in [
            (
                "report speed",
                "report sped",
                "line 3: there is no file sped.json",
            ),
            ("-->\n\n|", "\n|", "line 3: the table has no `-->`"),
            (
                "<!-- end of report -->",
                "",
                "line 3: the table has no `<!-- end",
            ),
            (
                "# Speed",
                "<!-- end of report -->",
                "line 1: `<!-- end of report -->` without",
            ),
            (
                "cell: {rate}",
                "cell: {speed}",
                "line 3: speed: no selected row has the value speed",
            ),
        ] {
            let error = rendered(&PAGE.replacen(from, to, 1), &files(2.0)).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        let twice = format!("{}{PAGE}", PAGE.split("<!-- end").next().unwrap());
        let error = rendered(&twice, &files(2.0)).unwrap_err();
        assert!(error.to_string().contains("before the next one"), "{error}");
    }
}
