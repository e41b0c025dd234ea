//! Files of measurements.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Error, Result};

/// A file of measurements: one machine, one commit.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The machine, or what simulated it.
    pub machine: String,
    /// Commit of the program that was measured.
    pub commit: String,
    /// Origin of the values.
    pub source: Source,
    /// Commands, and what each of them measured.
    pub runs: Vec<Run>,
}

/// Origin of the values of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// `triad-lab record` wrote what the commands printed.
    Recorded,
    /// From a page that was written by hand: one value stands for all rounds, rounded as the page had it.
    Transcribed,
}

/// A command, and what it measured.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The command line.
    pub command: String,
    /// Number of times that everything was measured; a table has the medians.
    pub rounds: usize,
    /// The cases that it measured.
    pub rows: Vec<Row>,
}

/// One case with what was measured in it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The case: names of its parameters, and their values.
    pub labels: BTreeMap<String, String>,
    /// Names of what was measured, and the value of each round.
    pub values: BTreeMap<String, Vec<f64>>,
}

impl Data {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Fails if the text is no JSON of this schema, if a text is empty, if a value has no round or more than the run,
    /// or if the rows of a file do not all have the same labels.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |problem: String| Error::Data {
            name: name.into(),
            problem,
        };
        let data: Self = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        for (field, text) in [("machine", &data.machine), ("commit", &data.commit)] {
            if text.trim().is_empty() {
                return Err(wrong(format!("{field} is empty: expected a text")));
            }
        }
        for (index, run) in data.runs.iter().enumerate() {
            let field = format!("runs[{index}]");
            if run.command.trim().is_empty() || run.rounds == 0 || run.rows.is_empty() {
                return Err(wrong(format!(
                    "{field}: expected a command, at least one round, and rows"
                )));
            }
            run.check()
                .map_err(|problem| wrong(format!("{field}.{problem}")))?;
        }
        let labels = |row: &Row| row.labels.keys().cloned().collect::<Vec<_>>();
        let first = data.rows().next().map(labels);
        let first = first.ok_or_else(|| wrong("runs is empty: expected at least one".into()))?;
        if let Some(other) = data.rows().map(labels).find(|labels| *labels != first) {
            return Err(wrong(format!(
                "a row has the labels {other:?}: expected {first:?}, those of the first row"
            )));
        }
        Ok(data)
    }

    /// Returns the rows of all runs.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.runs.iter().flat_map(|run| &run.rows)
    }

    /// Returns the text of a file, with one line for each row.
    ///
    /// # Errors
    /// Fails if a value is not finite, which JSON cannot say.
    pub fn text(&self) -> serde_json::Result<String> {
        let json = |text: &String| serde_json::to_string(text);
        let mut runs = Vec::new();
        for run in &self.runs {
            let rows: Vec<_> = run
                .rows
                .iter()
                .map(|row| Ok(format!("        {}", serde_json::to_string(row)?)))
                .collect::<serde_json::Result<_>>()?;
            runs.push(format!(
                "    {{\n      \"command\": {},\n      \"rounds\": {},\n      \"rows\": [\n{}\n      ]\n    }}",
                json(&run.command)?,
                run.rounds,
                rows.join(",\n")
            ));
        }
        Ok(format!(
            "{{\n  \"machine\": {},\n  \"commit\": {},\n  \"source\": {},\n  \"runs\": [\n{}\n  ]\n}}\n",
            json(&self.machine)?,
            json(&self.commit)?,
            serde_json::to_string(&self.source)?,
            runs.join(",\n")
        ))
    }
}

impl Run {
    fn check(&self) -> Result<(), String> {
        for (index, row) in self.rows.iter().enumerate() {
            if row.values.is_empty() {
                return Err(format!(
                    "rows[{index}].values is empty: expected at least one"
                ));
            }
            for (name, values) in &row.values {
                if values.is_empty() || values.len() > self.rounds {
                    return Err(format!(
                        "rows[{index}].values.{name} has {} values: expected one for each of at most {} rounds",
                        values.len(),
                        self.rounds
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Row {
    /// Returns the median over rounds of a value, if it was measured in this case.
    pub fn median(&self, name: &str) -> Option<f64> {
        let mut values = self.values.get(name)?.clone();
        values.sort_by(f64::total_cmp);
        let (low, high) = (
            values.get((values.len().checked_sub(1)?) / 2)?,
            values.get(values.len() / 2)?,
        );
        Some(low.midpoint(*high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
  "machine": "two cores",
  "commit": "0123456",
  "source": "recorded",
  "runs": [
    {
      "command": "triad bench",
      "rounds": 4,
      "rows": [
        {"labels":{"tokens":"64"},"values":{"rate":[4.0,1.0,3.0,2.0]}},
        {"labels":{"tokens":"256"},"values":{"rate":[7.0]}}
      ]
    }
  ]
}
"#;

    #[test]
    fn a_file_is_written_as_it_was_read_and_has_medians() {
        let data = Data::parse("a.json", TEXT).unwrap();
        assert_eq!(data.text().unwrap(), TEXT);
        let medians: Vec<_> = data.rows().map(|row| row.median("rate")).collect();
        assert_eq!(medians, [Some(2.5), Some(7.0)]);
        assert_eq!(data.rows().next().unwrap().median("other"), None);
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_name_of_the_field() {
        for (from, to, expected) in [
            (
                "\"commit\": \"0123456\"",
                "\"commit\": \" \"",
                "commit is empty",
            ),
            ("\"rounds\": 4", "\"rounds\": 3", "values.rate has 4 values"),
            ("\"rounds\": 4", "\"rounds\": 0", "runs[0]: expected"),
            ("[7.0]", "[]", "rows[1].values.rate has 0 values"),
            ("{\"rate\":[7.0]}", "{}", "rows[1].values is empty"),
            (
                "{\"tokens\":\"256\"}",
                "{\"token\":\"256\"}",
                "labels [\"token\"]",
            ),
            (
                "\"machine\"",
                "\"host\": 1, \"machine\"",
                "unknown field `host`",
            ),
            ("recorded", "guessed", "unknown variant `guessed`"),
        ] {
            let error = Data::parse("a.json", &TEXT.replacen(from, to, 1)).unwrap_err();
            let error = error.to_string();
            assert!(
                error.starts_with("a.json: ") && error.contains(expected),
                "{error}"
            );
        }
    }
}
