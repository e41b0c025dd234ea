//! The filter `tojson` as `transformers` defines it: Python's `json.dumps`, since Jinja's own filter escapes for HTML.

use std::io::{self, Write};

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};
use serde::ser::{Serialize, SerializeMap, SerializeSeq};
use serde_json::ser::{CharEscape, Formatter, Serializer};

use super::python;

/// Maximum indentation in characters.
const MAX_INDENT: usize = 64;

/// Writes `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)` with the `arguments`
/// of the filter, positional or named.
pub(super) fn write(
    value: &Value,
    arguments: &[Value],
    writer: &mut dyn Write,
) -> Result<(), Error> {
    let (places, names): (&[Value], Kwargs) = from_args(arguments)?;
    let mut all = Vec::new();
    for (place, name) in ["ensure_ascii", "indent", "separators", "sort_keys"]
        .into_iter()
        .enumerate()
    {
        let named: Option<Value> = names.get(name)?;
        if named.is_some() && places.len() > place {
            return Err(Error::new(
                ErrorKind::TooManyArguments,
                format!("tojson: {name} is given twice"),
            ));
        }
        all.push(
            named
                .or_else(|| places.get(place).cloned())
                .filter(|value| !value.is_none()),
        );
    }
    names.assert_all_used()?;
    if places.len() > all.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let is_true = |value: &Option<Value>| value.as_ref().is_some_and(Value::is_true);
    let indent = all[1].as_ref().map(indentation).transpose()?;
    let default = if indent.is_some() {
        (",", ": ")
    } else {
        (", ", ": ")
    };
    let (item, key) = match &all[2] {
        None => (default.0.to_owned(), default.1.to_owned()),
        Some(given) => separators(given)?,
    };
    let python = Python {
        is_ascii: is_true(&all[0]),
        indent,
        item,
        key,
        depth: 0,
        is_empty: true,
    };
    let value = Sorted {
        value,
        is_sorted: is_true(&all[3]),
    };
    let written = value.serialize(&mut Serializer::with_formatter(writer, python));
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// Reads the indentation of each level: a number of spaces, or a string.
fn indentation(indent: &Value) -> Result<String, Error> {
    let width = match (indent.as_str(), i64::try_from(indent.clone())) {
        (Some(text), _) => text.len(),
        (None, Ok(width)) => usize::try_from(width).unwrap_or(0),
        (None, Err(_)) if indent.kind() == ValueKind::Bool => usize::from(indent.is_true()),
        (None, Err(_)) => return Err(wrong("indent", "a number or a text")),
    };
    if width > MAX_INDENT {
        return Err(wrong("indent", "at most 64"));
    }
    Ok(indent
        .as_str()
        .map_or_else(|| " ".repeat(width), str::to_owned))
}

fn separators(given: &Value) -> Result<(String, String), Error> {
    let texts: Vec<_> = given.try_iter()?.take(3).collect();
    match texts.as_slice() {
        [item, key] => match (item.as_str(), key.as_str()) {
            (Some(item), Some(key)) => Ok((item.to_owned(), key.to_owned())),
            _ => Err(wrong("separators", "two texts")),
        },
        _ => Err(wrong("separators", "two texts")),
    }
}

fn wrong(argument: &str, expected: &str) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("tojson: {argument}: expected {expected}"),
    )
}

/// A value whose maps may be written in the order of their keys.
struct Sorted<'a> {
    value: &'a Value,
    is_sorted: bool,
}

impl Serialize for Sorted<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.is_sorted {
            return self.value.serialize(serializer);
        }
        let failed = |error: Error| serde::ser::Error::custom(error);
        match self.value.kind() {
            ValueKind::Map => {
                let mut keys: Vec<_> = self.value.try_iter().map_err(failed)?.collect();
                keys.sort_by_key(Value::to_string);
                let mut map = serializer.serialize_map(Some(keys.len()))?;
                for key in keys {
                    let value = self.value.get_item(&key).map_err(failed)?;
                    map.serialize_entry(
                        &key,
                        &Sorted {
                            value: &value,
                            is_sorted: true,
                        },
                    )?;
                }
                map.end()
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let mut list = serializer.serialize_seq(self.value.len())?;
                for value in self.value.try_iter().map_err(failed)? {
                    list.serialize_element(&Sorted {
                        value: &value,
                        is_sorted: true,
                    })?;
                }
                list.end()
            }
            _ => self.value.serialize(serializer),
        }
    }
}

/// Python's JSON format.
struct Python {
    is_ascii: bool,
    indent: Option<String>,
    /// Separators between items, and between a key and its value.
    item: String,
    key: String,
    depth: usize,
    /// Whether the innermost bracket is still empty.
    is_empty: bool,
}

impl Python {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.line(writer)?;
        }
        self.is_empty = false;
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if !is_first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.is_empty = false;
        self.line(writer)
    }

    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.is_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for letter in fragment.chars() {
            let mut units = [0; 2];
            match letter {
                ' '..='~' => writer.write_all(&[letter as u8])?,
                letter => {
                    letter
                        .encode_utf16(&mut units)
                        .iter()
                        .try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
                }
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        let letter = match escape {
            CharEscape::Quote => b'"',
            CharEscape::ReverseSolidus => b'\\',
            CharEscape::Solidus => b'/',
            CharEscape::Backspace => b'b',
            CharEscape::FormFeed => b'f',
            CharEscape::LineFeed => b'n',
            CharEscape::CarriageReturn => b'r',
            CharEscape::Tab => b't',
            CharEscape::AsciiControl(byte) => return write!(writer, "\\u{byte:04x}"),
        };
        writer.write_all(&[b'\\', letter])
    }

    /// Writes a number as Python's `repr` does.
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python::float(value).as_bytes())
    }
}
