//! Functions of Python's Jinja that templates use beyond Jinja itself, and Python's texts of values.

use std::fmt::{self, Write};

use minijinja::value::{DynObject, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::spaces;

/// Filters that allocate as much as a number in the template states. No chat template needs them.
const UNBOUNDED: [&str; 5] = ["batch", "format", "indent", "pprint", "slice"];

/// Adds `raise_exception`, and removes unbounded filters. Python's methods on strings and maps are [`method`], `tojson`
/// is [`super::json::write`].
pub(super) fn install(environment: &mut Environment<'_>) {
    UNBOUNDED
        .iter()
        .for_each(|filter| environment.remove_filter(filter));
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_filter("trim", |value: &Value, letters: Option<String>| {
        let text = text(value);
        let trimmed = match &letters {
            Some(letters) => text.trim_matches(|letter: char| letters.contains(letter)),
            None => text.trim_matches(spaces::is_space),
        };
        trimmed.to_owned()
    });
    // The engine iterates over none as over an empty list.
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    // Everything with a length and elements by number or name, as in Jinja.
    environment.add_test("sequence", |value: &Value| {
        let kinds = [
            ValueKind::Undefined,
            ValueKind::String,
            ValueKind::Seq,
            ValueKind::Map,
        ];
        kinds.contains(&value.kind())
            || value.kind() == ValueKind::Iterable && value.len().is_some()
    });
}

/// Implements Python's methods on strings and maps.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match (method, value.as_str(), arguments) {
        // Its widths are unbounded.
        ("format", ..) => return Err(Error::from(ErrorKind::UnknownMethod)),
        ("title", Some(text), []) => return Ok(title(text).into()),
        ("strip" | "lstrip" | "rstrip", Some(text), given) if are_none(given, 1) => {
            let text = match method {
                "lstrip" => text,
                _ => text.trim_end_matches(spaces::is_space),
            };
            let text = match method {
                "rstrip" => text,
                _ => text.trim_start_matches(spaces::is_space),
            };
            return Ok(text.into());
        }
        ("isspace", Some(text), []) => {
            return Ok((!text.is_empty() && text.chars().all(spaces::is_space)).into());
        }
        ("split", Some(text), given) if are_none(given, 2) => {
            return Ok(list(&spaces::words(text, None)));
        }
        ("split", Some(text), [between, most]) if between.is_none() => {
            let most = i64::try_from(most.clone())?;
            return Ok(list(&spaces::words(text, usize::try_from(most).ok())));
        }
        ("split", Some(_), [between, ..]) if between.as_str() == Some("") => {
            let message = "split: expected a text to split at, found an empty one";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        ("splitlines", Some(text), []) => return Ok(list(&spaces::lines(text, false))),
        ("splitlines", Some(text), [keeps]) if keeps.kind() == ValueKind::Bool => {
            return Ok(list(&spaces::lines(text, keeps.is_true())));
        }
        ("join", Some(_), [values]) => {
            let other = values.try_iter()?.find(|value| value.as_str().is_none());
            if let Some(other) = other {
                let message = format!("join: expected texts, found one {}", other.kind());
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

fn list(texts: &[&str]) -> Value {
    let texts = texts.iter().copied().map(Value::from);
    texts.collect::<Vec<_>>().into()
}

/// Returns whether a method got at most `most` arguments, and each is none.
fn are_none(arguments: &[Value], most: usize) -> bool {
    arguments.len() <= most && arguments.iter().all(Value::is_none)
}

/// Returns the text with an upper-case letter at the start of each sequence of letters.
fn title(text: &str) -> String {
    let (mut titled, mut follows_letter) = (String::with_capacity(text.len()), false);
    for letter in text.chars() {
        match follows_letter {
            true => titled.extend(letter.to_lowercase()),
            false => titled.extend(letter.to_uppercase()),
        }
        follows_letter = letter.is_alphabetic();
    }
    titled
}

/// Refuses the comparison of values that Python does not compare: `1 < 'a'`.
pub(super) fn check_order(a: &Value, b: &Value) -> Result<(), Error> {
    let is_number = |value: &Value| value.is_number() || value.kind() == ValueKind::Bool;
    let is_list = |value: &Value| value.kind() == ValueKind::Seq;
    let are_ordered = is_number(a) && is_number(b)
        || a.as_str().is_some() && b.as_str().is_some()
        || is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple();
    if are_ordered {
        return Ok(());
    }
    let message = format!("{} and {} have no order", a.kind(), b.kind());
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Returns `str(value)`.
pub(super) fn text(value: &Value) -> String {
    let mut text = String::new();
    // A `String` never fails.
    let _ = write(value, &mut text);
    text
}

/// Writes `str(value)`, up to the first error of `out`.
pub(super) fn write(value: &Value, out: &mut dyn Write) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_literal(value, out),
    }
}

/// Writes `repr(value)`.
fn write_literal(value: &Value, out: &mut dyn Write) -> fmt::Result {
    if let Some(text) = value.as_str() {
        return write_quoted(text, out);
    }
    let is_of_engine = value
        .as_object()
        .is_some_and(|object| object.type_name().contains("minijinja::vm"));
    let separator = |place: usize| if place == 0 { "" } else { ", " };
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.write_str(&float(number)),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::Map if !is_of_engine => {
            let entries = value.as_object().and_then(DynObject::try_iter_pairs);
            out.write_str("{")?;
            for (place, (key, item)) in entries.into_iter().flatten().enumerate() {
                out.write_str(separator(place))?;
                write_literal(&key, out)?;
                out.write_str(": ")?;
                write_literal(&item, out)?;
            }
            out.write_str("}")
        }
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
            let is_group = || {
                value
                    .as_object()
                    .is_some_and(|object| object.type_name().ends_with("GroupTuple"))
            };
            let is_tuple = value.is_tuple() || is_group();
            out.write_str(if is_tuple { "(" } else { "[" })?;
            for (place, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(separator(place))?;
                write_literal(&item, out)?;
            }
            out.write_str(match (is_tuple, value.len()) {
                (true, Some(1)) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            })
        }
        _ => write!(out, "{value}"),
    }
}

/// Writes `repr(text)`.
fn write_quoted(text: &str, out: &mut dyn Write) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.write_char(quote)?;
    for letter in text.chars() {
        match letter {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            _ if letter == quote => write!(out, "\\{letter}")?,
            ' '..='~' => out.write_char(letter)?,
            _ if is_printable(letter) => out.write_char(letter)?,
            '\0'..='\u{ff}' => write!(out, "\\x{:02x}", letter as u32)?,
            '\u{100}'..='\u{ffff}' => write!(out, "\\u{:04x}", letter as u32)?,
            _ => write!(out, "\\U{:08x}", letter as u32)?,
        }
    }
    out.write_char(quote)
}

/// Returns whether Python writes a letter as it is. Rust has the same rule for all but the first letter of a text.
fn is_printable(letter: char) -> bool {
    let text = ['a', letter].iter().collect::<String>();
    text.escape_debug()
        .nth(1)
        .is_some_and(|first| first != '\\')
}

/// Returns a number as Python's `repr` writes it: with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ -4..16 => {
            let is_whole = value.fract() == 0.0 && exponent >= 0 || value == 0.0;
            format!("{value}{}", if is_whole { ".0" } else { "" })
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_as_python_writes_it() {
        let list = |items: Vec<Value>| text(&Value::from(items));
        for (value, expected) in [
            (1e16, "1e+16"),
            (1e-5, "1e-05"),
            (1e15, "1000000000000000.0"),
            (-0.0, "-0.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e100, "1e+100"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(text(&Value::from(value)), expected);
            assert_eq!(list(vec![Value::from(value)]), format!("[{expected}]"));
        }
        let texts = [
            "it's",
            "\"",
            "'\"",
            "a\nb\\",
            "\u{e9}\u{200b}\u{7f}\u{301}",
            "\u{e0001}",
        ];
        assert_eq!(
            list(texts.map(Value::from).to_vec()),
            r#"["it's", '"', '\'"', 'a\nb\\', 'é\u200b\x7f́', '\U000e0001']"#
        );
        let map = Value::from_pairs([("a", Value::from(())), ("b", Value::from(true))]);
        assert_eq!(text(&map), "{'a': None, 'b': True}");
        assert_eq!(list(vec![Value::UNDEFINED]), "[Undefined]");
        assert_eq!(title("it's a-b 1x"), "It'S A-B 1X");
    }
}
