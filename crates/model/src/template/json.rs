//! The filter `tojson` as `transformers` defines it: Python's `json.dumps`, since Jinja's own filter escapes for HTML.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::arguments::Arguments;
use super::budget::Budget;
use super::python;
use super::values::{self, Kind, compare, kind, pairs, refused, string, unsupported};

/// Maximum indentation in characters.
const MAX_INDENT: usize = 64;

/// Returns `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)` with the `arguments`
/// of the filter.
pub(super) fn write(value: &Value, given: &[Value], budget: &Budget) -> Result<String, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let arguments = Arguments::new("tojson", given, &names)?;
    let is_true = |name| arguments.get(name).is_some_and(Value::is_true);
    let given = |name| arguments.get(name).filter(|value| !value.is_none());
    let indent = given("indent").map(indentation).transpose()?;
    let (item, key) = match given("separators") {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some(given) => separators(given)?,
    };
    let mut writer = Writer {
        is_ascii: is_true("ensure_ascii"),
        is_sorted: is_true("sort_keys"),
        indent,
        item,
        key,
        out: String::new(),
        paid: 0,
        budget,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// Reads the indentation of each level: a number of spaces, or a string.
fn indentation(indent: &Value) -> Result<String, Error> {
    let width = match indent.as_str() {
        Some(text) => text.len(),
        None => usize::try_from(values::integer(indent, "tojson: indent")?).unwrap_or(0),
    };
    if width > MAX_INDENT {
        return Err(refused("tojson: indent: expected at most 64"));
    }
    Ok(indent
        .as_str()
        .map_or_else(|| " ".repeat(width), str::to_owned))
}

fn separators(given: &Value) -> Result<(String, String), Error> {
    match (kind(given), values::items(given)?.as_slice()) {
        (Kind::List | Kind::Tuple, [item, key]) => {
            let text = |value| string(value, "tojson: separators").map(str::to_owned);
            Ok((text(item)?, text(key)?))
        }
        _ => Err(refused("tojson: separators: expected two texts")),
    }
}

struct Writer<'a> {
    is_ascii: bool,
    is_sorted: bool,
    indent: Option<String>,
    /// Separators between items, and between a key and its value.
    item: String,
    key: String,
    out: String,
    /// The bytes of the text that are paid for.
    paid: usize,
    budget: &'a Budget,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match kind(value) {
            Kind::None => self.out.push_str("null"),
            Kind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            Kind::Int => self.out.push_str(&value.to_string()),
            Kind::Float => self.out.push_str(&float(value)?),
            Kind::Str => self.string(value.as_str().unwrap_or_default()),
            Kind::List | Kind::Tuple => {
                self.out.push('[');
                for (place, item) in value.try_iter()?.enumerate() {
                    self.start(place, depth + 1);
                    self.value(&item, depth + 1)?;
                }
                self.end(value, depth);
                self.out.push(']');
            }
            Kind::Dict => {
                let mut entries: Vec<_> = pairs(value).collect();
                if self.is_sorted {
                    let mut failure = None;
                    entries.sort_by(|(a, _), (b, _)| {
                        compare(a, b)
                            .unwrap_or_else(|error| {
                                failure = Some(error);
                                None
                            })
                            .unwrap_or(Ordering::Equal)
                    });
                    failure.map_or(Ok(()), Err)?;
                }
                self.out.push('{');
                for (place, (key, item)) in entries.iter().enumerate() {
                    self.start(place, depth + 1);
                    let name = match kind(key) {
                        Kind::Str => key.as_str().unwrap_or_default().to_owned(),
                        Kind::None => "null".to_owned(),
                        Kind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
                        Kind::Int => key.to_string(),
                        Kind::Float => float(key)?,
                        _ => return Err(unsupported("tojson: a key", key)),
                    };
                    self.string(&name);
                    self.out.push_str(&self.key);
                    self.value(item, depth + 1)?;
                }
                self.end(value, depth);
                self.out.push('}');
            }
            _ => return Err(unsupported("tojson", value)),
        }
        let unpaid = self.out.len() - std::mem::replace(&mut self.paid, self.out.len());
        self.budget.spend(unpaid)
    }

    /// Starts an element of a list.
    fn start(&mut self, place: usize, depth: usize) {
        if place > 0 {
            self.out.push_str(&self.item);
        }
        self.line(depth);
    }

    /// Ends a list or a mapping.
    fn end(&mut self, value: &Value, depth: usize) {
        if value.len() != Some(0) {
            self.line(depth);
        }
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\u{1f}' => self.unit(letter as u16),
                ' '..='~' => self.out.push(letter),
                _ if self.is_ascii => {
                    let mut units = [0; 2];
                    for unit in letter.encode_utf16(&mut units) {
                        self.unit(*unit);
                    }
                }
                _ => self.out.push(letter),
            }
        }
        self.out.push('"');
    }

    fn unit(&mut self, unit: u16) {
        self.out.push_str(&format!("\\u{unit:04x}"));
    }
}

fn float(value: &Value) -> Result<String, Error> {
    let float = f64::try_from(value.clone())?;
    Ok(match float {
        _ if float.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => python::float(float),
    })
}
