//! Rows of measurements from the output of a command.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::data::Row;
use super::{Error, Result};

/// Fields of an output that become labels and values.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Where the objects are: names and indices with dots between them, `*` for all elements (`results.*`). Empty for
    /// the output itself.
    pub rows: String,
    /// Labels that all rows get.
    pub constants: BTreeMap<String, String>,
    /// Names of labels, and the fields with their values.
    pub labels: Vec<(String, String)>,
    /// Names of values, and their fields.
    pub values: Vec<(String, String)>,
}

/// Adds what a round of a command printed, JSON or a Markdown table, to `rows`. Objects with the same labels are one row
/// with more values.
///
/// # Errors
/// Fails if the output is neither, if no object is where they should be, if an object has no field for a label, if a
/// value is no number, or if no object has one.
pub fn add(rows: &mut Vec<Row>, output: &str, selection: &Selection) -> Result<()> {
    let wrong = |problem: String| Error::Output { problem };
    let output = match serde_json::from_str(output) {
        Ok(json) => json,
        Err(error) => table(output)
            .ok_or_else(|| wrong(format!("neither JSON ({error}) nor a Markdown table")))?,
    };
    let steps: Vec<_> = selection
        .rows
        .split('.')
        .filter(|step| !step.is_empty())
        .collect();
    let mut objects = Vec::new();
    collect(&output, &steps, &Map::new(), &mut objects);
    if objects.is_empty() {
        return Err(wrong(format!("no object at {}", selection.rows)));
    }
    let mut found = false;
    for object in objects {
        let object = Value::Object(object);
        let mut labels = selection.constants.clone();
        for (name, field) in &selection.labels {
            let text = match at(&object, field) {
                Some(Value::String(text)) => text.clone(),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
                _ => {
                    return Err(wrong(format!(
                        "an object without the label {field}: expected a text or a number"
                    )));
                }
            };
            labels.insert(name.clone(), text);
        }
        let mut values = BTreeMap::new();
        for (name, field) in &selection.values {
            if let Some(value) = number(&object, field).map_err(wrong)? {
                values.insert(name.clone(), value);
            }
        }
        if values.is_empty() {
            continue;
        }
        found = true;
        let index = rows
            .iter()
            .position(|row| row.labels == labels)
            .unwrap_or_else(|| {
                rows.push(Row {
                    labels,
                    values: BTreeMap::new(),
                });
                rows.len() - 1
            });
        for (name, value) in values {
            rows[index].values.entry(name).or_default().push(value);
        }
    }
    found
        .then_some(())
        .ok_or_else(|| wrong("no object has one of the values".into()))
}

/// Collects the objects that `steps` lead to, each with the fields of the objects around it that it does not have itself.
fn collect(
    value: &Value,
    steps: &[&str],
    around: &Map<String, Value>,
    objects: &mut Vec<Map<String, Value>>,
) {
    let mut around = around.clone();
    if let Value::Object(own) = value {
        for (name, value) in own {
            if steps.is_empty() || !(value.is_array() || value.is_object()) {
                around.insert(name.clone(), value.clone());
            }
        }
    }
    match (steps, value) {
        ([], Value::Object(_)) => objects.push(around),
        (["*", rest @ ..], Value::Array(values)) => {
            for value in values {
                collect(value, rest, &around, objects);
            }
        }
        (["*", rest @ ..], Value::Object(values)) => {
            for (name, value) in values {
                around.insert("key".into(), name.clone().into());
                collect(value, rest, &around, objects);
            }
        }
        ([step, rest @ ..], _) => {
            if let Some(value) = step_into(value, step) {
                collect(value, rest, &around, objects);
            }
        }
        _ => {}
    }
}

fn step_into<'a>(value: &'a Value, step: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => fields.get(step),
        Value::Array(values) => values.get(step.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Returns a field of an object. A name with dots in it is found before one of its parts.
fn at<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    step_into(object, field).or_else(|| {
        field
            .split('.')
            .try_fold(object, |value, step| step_into(value, step))
    })
}

/// Returns a value; `None` if the object has none.
fn number(object: &Value, field: &str) -> Result<Option<f64>, String> {
    let wrong = |text: &str| format!("the value {field} is `{text}`: expected a number");
    match at(object, field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64()),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => match text.replace(',', "").parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Some(value)),
            _ => Err(wrong(text)),
        },
        Some(other) => Err(wrong(&other.to_string())),
    }
}

/// Reads the first Markdown table of a text, as an array of objects whose names are those of the columns.
fn table(text: &str) -> Option<Value> {
    let cells = |line: &str| -> Option<Vec<String>> {
        let line = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        Some(line.split('|').map(|cell| cell.trim().to_owned()).collect())
    };
    let lines: Vec<_> = text.lines().collect();
    let rule = lines.iter().position(|line| {
        cells(line).is_some_and(|cells| {
            cells.iter().all(|cell| {
                cell.len() >= 3 && cell.chars().all(|letter| matches!(letter, '-' | ':'))
            })
        })
    })?;
    let head = cells(lines.get(rule.checked_sub(1)?)?)?;
    let rows = lines[rule + 1..].iter().map_while(|line| cells(line));
    let rows: Vec<Value> = rows
        .map(|row| {
            head.iter()
                .cloned()
                .zip(row.into_iter().map(Value::from))
                .collect::<Map<_, _>>()
                .into()
        })
        .collect();
    (!rows.is_empty()).then(|| rows.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(rows: &str, labels: &[&str], values: &[&str]) -> Selection {
        let pairs = |fields: &[&str]| {
            fields
                .iter()
                .map(|field| {
                    let (name, field) = field.split_once('=').unwrap_or((field, field));
                    (name.to_owned(), field.to_owned())
                })
                .collect()
        };
        Selection {
            rows: rows.into(),
            labels: pairs(labels),
            values: pairs(values),
            ..Selection::default()
        }
    }

    fn shown(rows: &[Row]) -> String {
        serde_json::to_string(rows).unwrap()
    }

    #[test]
    fn rounds_of_json_become_rows_with_the_fields_around_them() {
        let selection = selection(
            "runs.*.results.*",
            &["model", "tokens"],
            &["rate=rate.median", "share"],
        );
        let mut rows = Vec::new();
        for (rate, share) in [(1.5, "0.5"), (2.5, "null")] {
            let output = format!(
                r#"{{"runs": [{{"model": "a", "tokens": 1, "results": [{{"tokens": 64, "rate": {{"median": {rate}}}, "share": {share}}}]}}]}}"#
            );
            add(&mut rows, &output, &selection).unwrap();
        }
        assert_eq!(
            shown(&rows),
            r#"[{"labels":{"model":"a","tokens":"64"},"values":{"rate":[1.5,2.5],"share":[0.5]}}]"#
        );
    }

    #[test]
    fn a_table_becomes_rows() {
        let output = "running\n| checkpoint | W8A8 |\n| --- | ---: |\n| llama | 8.6e-7 |\n| qwen2 | 1,000.5 |\n\ntest ok\n";
        let mut rows = Vec::new();
        add(
            &mut rows,
            output,
            &selection("*", &["checkpoint"], &["int8=W8A8"]),
        )
        .unwrap();
        assert_eq!(
            shown(&rows),
            r#"[{"labels":{"checkpoint":"llama"},"values":{"int8":[8.6e-7]}},{"labels":{"checkpoint":"qwen2"},"values":{"int8":[1000.5]}}]"#
        );
    }

    #[test]
    fn an_output_without_the_fields_is_refused_by_name() {
        let json = r#"{"results": [{"test": "prefill", "rate": "fast", "none": null}]}"#;
        for (output, selection, expected) in [
            ("nothing", selection("*", &[], &["rate"]), "neither JSON"),
            (
                json,
                selection("result.*", &[], &["rate"]),
                "no object at result.*",
            ),
            (
                json,
                selection("results.*", &["tokens"], &["rate"]),
                "without the label tokens",
            ),
            (
                json,
                selection("results.*", &["test"], &["rate"]),
                "the value rate is `fast`",
            ),
            (
                json,
                selection("results.*", &["test"], &["none", "other"]),
                "no object has one of the values",
            ),
        ] {
            let error = add(&mut Vec::new(), output, &selection)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
