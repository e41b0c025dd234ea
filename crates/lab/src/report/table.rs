//! A table of the values of a file, as a page describes it.
//!
//! The description has a line for each setting:
//!
//! ```text
//! rows: model, threads
//! columns: test
//! cell: {tokens_per_second} ({share_of_limit:%})
//! where: threads = 1
//! ```
//!
//! `rows` are the labels that select a row of the table. Either `columns` is the label that selects a column, and `cell`
//! the template of what stands there, or there is a line `column: HEADER = TEMPLATE` for each column. `where` selects
//! some of the file's rows, one label a line. A cell may have several templates with ` | ` between them: the first one
//! whose values were measured is filled in. `provenance: none` leaves out machine, commit and commands.

use std::collections::BTreeMap;

use super::data::{Data, Row, Source};
use super::format::Template;

/// A parsed description.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<String>,
    columns: Columns,
    conditions: Vec<(String, String)>,
    has_provenance: bool,
}

#[derive(Debug)]
enum Columns {
    /// One for each value of a label.
    Label { label: String, cell: Template },
    /// Header and content of each.
    Each(Vec<(String, Template)>),
}

/// Labels of a table's row, and the file's rows that belong there.
type Group<'a> = (Vec<&'a str>, Vec<&'a Row>);

impl Table {
    /// Parses the lines of a description.
    ///
    /// # Errors
    /// Fails with the setting that is unknown, wrong or missing.
    pub(super) fn parse(lines: &[&str]) -> Result<Self, String> {
        let mut rows = Vec::new();
        let (mut label, mut cell, mut each) = (None, None, Vec::new());
        let (mut conditions, mut has_provenance) = (Vec::new(), true);
        for line in lines
            .iter()
            .map(|line| line.trim())
            .filter(|line| !line.is_empty())
        {
            let (setting, value) = line
                .split_once(':')
                .ok_or_else(|| format!("`{line}`: expected SETTING: VALUE"))?;
            let value = value.trim();
            let pair = |what: &str| {
                let (name, other) = value
                    .split_once(" = ")
                    .ok_or_else(|| format!("`{line}`: expected {setting}: {what}"))?;
                Ok::<_, String>((name.trim().to_owned(), other.trim()))
            };
            match setting {
                "rows" => {
                    rows = value
                        .split(',')
                        .map(|label| label.trim().to_owned())
                        .collect();
                }
                "columns" => label = Some(value.to_owned()),
                "cell" => cell = Some(Template::parse(value)?),
                "column" => {
                    let (header, template) = pair("HEADER = TEMPLATE")?;
                    each.push((header, Template::parse(template)?));
                }
                "where" => {
                    let (label, wanted) = pair("LABEL = VALUE")?;
                    conditions.push((label, wanted.to_owned()));
                }
                "provenance" if value == "none" => has_provenance = false,
                _ => {
                    return Err(format!(
                        "`{line}`: expected rows, columns, cell, column, where, or provenance: none"
                    ));
                }
            }
        }
        let columns = match (label, cell) {
            (Some(label), Some(cell)) if each.is_empty() => Columns::Label { label, cell },
            (None, None) if !each.is_empty() => Columns::Each(each),
            _ => return Err("expected columns and cell, or lines with column".into()),
        };
        if rows.is_empty() {
            return Err("expected rows".into());
        }
        Ok(Self {
            rows,
            columns,
            conditions,
            has_provenance,
        })
    }

    /// Returns the Markdown of the table: where its values are from, and the values.
    ///
    /// # Errors
    /// Fails if the file does not have a label or a value that the description names, if no row is selected, or if two
    /// rows belong into one cell.
    pub(super) fn markdown(&self, data: &Data) -> Result<String, String> {
        let selected: Vec<_> = data
            .rows()
            .filter(|row| {
                let is = |(label, wanted): &(String, String)| row.labels.get(label) == Some(wanted);
                self.conditions.iter().all(is)
            })
            .collect();
        self.check(data, &selected)?;
        let groups = self.groups(&selected);
        let lines = match &self.columns {
            Columns::Label { label, cell } => self.pivoted(&groups, &selected, label, cell)?,
            Columns::Each(columns) => self.listed(&groups, columns)?,
        };
        let table = lines
            .iter()
            .map(|cells| line(cells))
            .collect::<Vec<_>>()
            .join("\n");
        Ok(if self.has_provenance {
            format!("{}\n\n{table}", provenance(data))
        } else {
            table
        })
    }

    fn check(&self, data: &Data, selected: &[&Row]) -> Result<(), String> {
        let known = data.rows().next().ok_or("the file has no rows")?;
        let label = match &self.columns {
            Columns::Label { label, .. } => Some(label),
            Columns::Each(_) => None,
        };
        let conditions = self.conditions.iter().map(|(label, _)| label);
        if let Some(unknown) = self
            .rows
            .iter()
            .chain(label)
            .chain(conditions)
            .find(|label| !known.labels.contains_key(*label))
        {
            return Err(format!(
                "no label {unknown}: expected one of {}",
                known
                    .labels
                    .keys()
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
        }
        if selected.is_empty() {
            return Err("no row of the file is selected".into());
        }
        let templates: Vec<_> = match &self.columns {
            Columns::Label { cell, .. } => vec![cell],
            Columns::Each(columns) => columns.iter().map(|(_, template)| template).collect(),
        };
        let mut names = templates.iter().flat_map(|template| template.names());
        match names.find(|name| !selected.iter().any(|row| row.values.contains_key(*name))) {
            Some(unknown) => Err(format!("no selected row has the value {unknown}")),
            None => Ok(()),
        }
    }

    /// Returns the rows of the table in the order in which the file has them.
    fn groups<'a>(&self, selected: &[&'a Row]) -> Vec<Group<'a>> {
        let mut order: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
        let mut groups: Vec<Group<'a>> = Vec::new();
        for row in selected {
            let labels: Vec<&str> = self
                .rows
                .iter()
                .map(|label| row.labels[label].as_str())
                .collect();
            let index = *order.entry(labels.clone()).or_insert(groups.len());
            if index == groups.len() {
                groups.push((labels, Vec::new()));
            }
            groups[index].1.push(row);
        }
        groups
    }

    fn pivoted(
        &self,
        groups: &[Group<'_>],
        selected: &[&Row],
        label: &str,
        cell: &Template,
    ) -> Result<Vec<Vec<String>>, String> {
        let mut headers: Vec<&str> = Vec::new();
        for row in selected {
            let header = row.labels[label].as_str();
            if !headers.contains(&header) {
                headers.push(header);
            }
        }
        let mut lines = self.head(headers.iter().copied());
        for (index, (labels, rows)) in groups.iter().enumerate() {
            let mut cells = labels_below(groups, index);
            for header in &headers {
                let mut there = rows.iter().filter(|row| row.labels[label] == *header);
                cells.push(match (there.next(), there.next()) {
                    (None, _) => String::new(),
                    (Some(row), None) => cell.fill(|name| row.median(name)),
                    (Some(_), Some(_)) => {
                        return Err(format!(
                            "two rows of the file belong to {}, {header}",
                            labels.join(", ")
                        ));
                    }
                });
            }
            lines.push(cells);
        }
        Ok(lines)
    }

    fn listed(
        &self,
        groups: &[Group<'_>],
        columns: &[(String, Template)],
    ) -> Result<Vec<Vec<String>>, String> {
        let mut lines = self.head(columns.iter().map(|(header, _)| header.as_str()));
        for (index, (labels, rows)) in groups.iter().enumerate() {
            let [row] = rows[..] else {
                return Err(format!(
                    "{} rows of the file belong to {}: expected one",
                    rows.len(),
                    labels.join(", ")
                ));
            };
            let values = columns
                .iter()
                .map(|(_, template)| template.fill(|name| row.median(name)));
            lines.push(
                labels_below(groups, index)
                    .into_iter()
                    .chain(values)
                    .collect(),
            );
        }
        Ok(lines)
    }

    /// Returns the two lines above the values.
    fn head<'a>(&'a self, headers: impl Iterator<Item = &'a str>) -> Vec<Vec<String>> {
        let head: Vec<String> = self
            .rows
            .iter()
            .map(String::as_str)
            .chain(headers)
            .map(Into::into)
            .collect();
        let rule = (0..head.len()).map(|column| {
            if column < self.rows.len() {
                "---"
            } else {
                "---:"
            }
            .into()
        });
        let rule = rule.collect();
        vec![head, rule]
    }
}

/// Returns the labels of a table's row; those that are as in the row above it are left out, but the last.
fn labels_below(groups: &[Group<'_>], index: usize) -> Vec<String> {
    let labels = &groups[index].0;
    let above = index
        .checked_sub(1)
        .map_or(&[][..], |above| &groups[above].0);
    let same = labels
        .iter()
        .zip(above)
        .take_while(|(own, other)| own == other)
        .count();
    let shown = |(column, label): (usize, &&str)| match column < same && column + 1 < labels.len() {
        true => String::new(),
        false => (*label).to_owned(),
    };
    labels.iter().enumerate().map(shown).collect()
}

fn line(cells: &[String]) -> String {
    let cells: Vec<_> = cells
        .iter()
        .map(|cell| {
            if cell.is_empty() {
                " ".into()
            } else {
                format!(" {} ", cell.replace('|', "\\|"))
            }
        })
        .collect();
    format!("|{}|", cells.join("|"))
}

/// Says where the values of a file are from.
fn provenance(data: &Data) -> String {
    let commands: Vec<_> = data.runs.iter().map(|run| run.command.as_str()).collect();
    let mut once: Vec<&str> = Vec::new();
    for command in commands.iter().flat_map(|command| command.lines()) {
        if !once.contains(&command) {
            once.push(command);
        }
    }
    let mut rounds: Vec<_> = data.runs.iter().map(|run| run.rounds).collect();
    rounds.sort_unstable();
    rounds.dedup();
    let rounds = match rounds[..] {
        [1] => "One round".to_owned(),
        [rounds] => format!("Medians of {rounds} rounds"),
        [least, .., most] => format!("Medians of {least} to {most} rounds"),
        [] => String::new(),
    };
    let transcribed = match data.source {
        Source::Recorded => "",
        Source::Transcribed => ", transcribed from an earlier page",
    };
    let lines: Vec<_> = once.iter().map(|line| format!("$ {line}")).collect();
    format!(
        "Machine: {}. Commit: {}. {rounds}{transcribed}.\n\n```console\n{}\n```",
        data.machine.trim_end_matches('.'),
        data.commit,
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Data {
        let row = |model: &str, tokens: &str, values: &[f64]| {
            let labels = [("model", model), ("tokens", tokens)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
            let values = [("rate".to_owned(), values.to_vec())];
            Row {
                labels: labels.into(),
                values: values.into(),
            }
        };
        let rows = vec![
            row("a", "64", &[1.0, 3.0, 2.0]),
            row("a", "256", &[40.25]),
            row("b", "64", &[5000.0]),
        ];
        let run = super::super::data::Run {
            command: "triad bench".into(),
            rounds: 3,
            rows,
        };
        Data {
            machine: "two cores.".into(),
            commit: "0123456".into(),
            source: Source::Recorded,
            runs: vec![run],
        }
    }

    fn markdown(lines: &[&str]) -> Result<String, String> {
        Table::parse(lines)?.markdown(&data())
    }

    #[test]
    fn a_label_makes_columns_and_medians_make_cells() {
        assert_eq!(
            markdown(&["rows: model", "columns: tokens", "cell: {rate}"]).unwrap(),
            "Machine: two cores. Commit: 0123456. Medians of 3 rounds.\n\n```console\n$ triad bench\n```\n\n\
             | model | 64 | 256 |\n| --- | ---: | ---: |\n| a | 2 | 40.2 |\n| b | 5,000 | |"
        );
    }

    #[test]
    fn columns_have_templates_of_their_own_and_repeated_labels_are_left_out() {
        let lines = [
            "rows: model, tokens",
            "column: tokens/s = {rate:1}",
            "column: ms = {rate*2}",
            "where: model = a",
            "provenance: none",
        ];
        assert_eq!(
            markdown(&lines).unwrap(),
            "| model | tokens | tokens/s | ms |\n| --- | --- | ---: | ---: |\n| a | 64 | 2.0 | 4 |\n| | 256 | 40.2 | 80.5 |"
        );
    }

    #[test]
    fn a_label_cannot_end_its_cell() {
        assert_eq!(line(&["a|b".into(), String::new()]), "| a\\|b | |");
    }

    #[test]
    fn a_wrong_description_is_refused_with_what_is_wrong() {
        for (lines, expected) in [
            (
                &["rows: modell", "columns: tokens", "cell: {rate}"][..],
                "no label modell",
            ),
            (
                &["rows: model", "columns: tokens", "cell: {speed}"],
                "the value speed",
            ),
            (
                &["rows: model", "columns: model", "cell: {rate}"],
                "two rows of the file belong to a, a",
            ),
            (
                &["rows: model", "column: x = {rate}"],
                "2 rows of the file belong to a",
            ),
            (
                &[
                    "rows: model",
                    "columns: tokens",
                    "cell: {rate}",
                    "where: model = c",
                ],
                "no row",
            ),
            (
                &["rows: model", "columns: tokens"],
                "expected columns and cell",
            ),
            (
                &["rows: model", "column: x"],
                "expected column: HEADER = TEMPLATE",
            ),
            (&["columns: tokens", "cell: {rate}"], "expected rows"),
            (&["row: model"], "expected rows, columns"),
            (&["rows"], "expected SETTING: VALUE"),
        ] {
            let error = markdown(lines).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
