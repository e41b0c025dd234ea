//! Python's texts of values.

use minijinja::{Error, Value};

use super::objects::View;
use super::values::{Kind, kind, pairs, refused, unsupported};

/// A function that pays for bytes, or refuses them.
pub(super) type Pay<'a> = &'a dyn Fn(usize) -> Result<(), Error>;

/// Returns `str(value)`; `pay` pays for its bytes.
///
/// # Errors
/// For values whose text has an address in Python, such as a function, and if the text is too long.
pub(super) fn text(value: &Value, pay: Pay<'_>) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        pay(text.len())?;
        return Ok(text.to_owned());
    }
    if value.is_undefined() {
        return Ok(String::new());
    }
    literal(value, pay)
}

/// Returns `repr(value)`; `pay` pays for its bytes.
///
/// # Errors
/// As for [`text`].
pub(super) fn literal(value: &Value, pay: Pay<'_>) -> Result<String, Error> {
    let mut out = String::new();
    let mut paid = 0;
    write_literal(value, &mut out, &mut |out| {
        let unpaid = out.len() - std::mem::replace(&mut paid, out.len());
        pay(unpaid)
    })?;
    Ok(out)
}

/// Writes `repr(value)`, and calls `pay` after each part.
fn write_literal(
    value: &Value,
    out: &mut String,
    pay: &mut dyn FnMut(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    match kind(value) {
        Kind::Undefined => out.push_str("Undefined"),
        Kind::None => out.push_str("None"),
        Kind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        Kind::Int => out.push_str(&value.to_string()),
        Kind::Float => out.push_str(&float(f64::try_from(value.clone())?)),
        Kind::Str => {
            let text = value.as_str().unwrap_or_default();
            if value.is_safe() {
                out.push_str("Markup(");
            }
            write_quoted(text, out);
            if value.is_safe() {
                out.push(')');
            }
        }
        Kind::List => write_list("[", value, "]", out, pay)?,
        Kind::Tuple if value.len() == Some(1) => write_list("(", value, ",)", out, pay)?,
        Kind::Tuple => write_list("(", value, ")", out, pay)?,
        Kind::View => {
            let name = value
                .downcast_object_ref::<View>()
                .map_or("", |view| view.name);
            out.push_str(name);
            write_list("([", value, "])", out, pay)?;
        }
        Kind::Dict => {
            out.push('{');
            for (place, (key, item)) in pairs(value).enumerate() {
                if place > 0 {
                    out.push_str(", ");
                }
                write_literal(&key, out, pay)?;
                out.push_str(": ");
                write_literal(&item, out, pay)?;
            }
            out.push('}');
        }
        Kind::Range => {
            let range = value.downcast_object_ref::<super::objects::Range>();
            let range = range.ok_or_else(|| unsupported("the text", value))?;
            out.push_str(&format!("range({}, {}", range.start, range.stop));
            if range.step != 1 {
                out.push_str(&format!(", {}", range.step));
            }
            out.push(')');
        }
        kind => {
            return Err(refused(format!(
                "the text of {} is not supported",
                kind.name()
            )));
        }
    }
    pay(out)
}

fn write_list(
    open: &str,
    value: &Value,
    close: &str,
    out: &mut String,
    pay: &mut dyn FnMut(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push_str(open);
    for (place, item) in value.try_iter()?.enumerate() {
        if place > 0 {
            out.push_str(", ");
        }
        write_literal(&item, out, pay)?;
    }
    out.push_str(close);
    Ok(())
}

/// Writes `repr(text)`.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if letter == quote => out.extend(['\\', letter]),
            ' '..='~' => out.push(letter),
            _ if is_printable(letter) => out.push(letter),
            '\0'..='\u{ff}' => out.push_str(&format!("\\x{:02x}", letter as u32)),
            '\u{100}'..='\u{ffff}' => out.push_str(&format!("\\u{:04x}", letter as u32)),
            _ => out.push_str(&format!("\\U{:08x}", letter as u32)),
        }
    }
    out.push(quote);
}

/// Returns whether Python writes a letter as it is. Rust has the same rule for all but the first letter of a text.
pub(super) fn is_printable(letter: char) -> bool {
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

    fn text(value: &Value) -> String {
        super::text(value, &|_| Ok(())).unwrap()
    }

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
    }
}
