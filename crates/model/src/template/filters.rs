//! The filters of Jinja. Those of lists are in [`sequences`](super::sequences).

use std::collections::HashSet;

use minijinja::value::Tuple;
use minijinja::{Error, Value};

use super::arguments::{Arguments, split};
use super::attributes::own_attribute;
use super::budget::Budget;
use super::values::{self, Kind, Number, integer, kind, number, refused, string, unsupported};
use super::{format, json, letters, methods, operators, spaces};

/// The filters that exist in Jinja, and are refused where a template applies them.
const REFUSED: [&str; 8] = [
    "filesizeformat",
    "pprint",
    "random",
    "striptags",
    "urlencode",
    "urlize",
    "wordwrap",
    "xmlattr",
];
const ENDS: &str = "...";

/// Applies a filter for anything but lists.
pub(super) fn apply(
    name: &str,
    value: &Value,
    given: &[Value],
    budget: &Budget,
) -> Result<Value, Error> {
    let arguments = |names| Arguments::new(name, given, names);
    let text = || budget.text(value);
    let result = match name {
        "abs" => {
            arguments(&[])?;
            match number(value) {
                Some(Number::Int(number)) => {
                    let positive = number.checked_abs();
                    let positive = positive.ok_or_else(|| operators::too_large(name))?;
                    values::from_integer(positive)
                }
                Some(Number::Float(number)) => number.abs().into(),
                None => return Err(unsupported("abs", value)),
            }
        }
        "attr" => {
            let arguments = arguments(&["name"])?;
            let name = string(arguments.need("name")?, name)?;
            own_attribute(value, name)?.unwrap_or_default()
        }
        "default" | "d" => {
            let arguments = arguments(&["default_value", "boolean"])?;
            match value.is_undefined() || arguments.is_true("boolean") && !value.is_true() {
                true => arguments
                    .get("default_value")
                    .cloned()
                    .unwrap_or_else(|| "".into()),
                false => value.clone(),
            }
        }
        "int" => {
            let arguments = arguments(&["default", "base"])?;
            let base = arguments.integer("base", 10)?;
            let default = || {
                arguments
                    .get("default")
                    .cloned()
                    .unwrap_or_else(|| 0.into())
            };
            to_integer(value, base)?.map_or_else(default, values::from_integer)
        }
        "float" => {
            let arguments = arguments(&["default"])?;
            let found = match (number(value), value.as_str()) {
                (Some(Number::Int(number)), _) => Some(number as f64),
                (Some(Number::Float(number)), _) => Some(number),
                (None, Some(text)) => parse_float(text)?,
                (None, None) => no_number(value)?,
            };
            match found {
                Some(found) => found.into(),
                None => arguments
                    .get("default")
                    .cloned()
                    .unwrap_or_else(|| 0.0.into()),
            }
        }
        "round" => round(value, &arguments(&["precision", "method"])?)?,
        "string" => {
            arguments(&[])?;
            match value.as_str() {
                Some(_) => value.clone(),
                None => text()?.into(),
            }
        }
        "safe" => match value.is_safe() {
            true => value.clone(),
            false => Value::from_safe_string(text()?),
        },
        "e" | "escape" | "forceescape" => {
            arguments(&[])?;
            match value.is_safe() && name != "forceescape" {
                true => value.clone(),
                false => Value::from_safe_string(escaped(&text()?, budget)?),
            }
        }
        "upper" => text()?.to_uppercase().into(),
        "lower" => text()?.to_lowercase().into(),
        "capitalize" => letters::capitalized(&text()?)?.into(),
        "title" => letters::title_of_words(&text()?)?.into(),
        "trim" => {
            let arguments = arguments(&["chars"])?;
            let chosen = arguments.get("chars").filter(|chosen| !chosen.is_none());
            let chosen = chosen.map(|chosen| string(chosen, name)).transpose()?;
            let chosen: Option<HashSet<char>> = chosen.map(|chosen| chosen.chars().collect());
            let text = text()?;
            let trimmed = match &chosen {
                Some(chosen) => text.trim_matches(|letter: char| chosen.contains(&letter)),
                None => text.trim_matches(spaces::is_space),
            };
            trimmed.into()
        }
        "replace" => {
            let arguments = arguments(&["old", "new", "count"])?;
            let most = match arguments.get("count").filter(|count| !count.is_none()) {
                Some(count) => integer(count, name)?,
                None => -1,
            };
            let [old, new] = [arguments.need("old")?, arguments.need("new")?];
            methods::replace(
                &text()?,
                &budget.text(old)?,
                &budget.text(new)?,
                most,
                budget,
            )?
            .into()
        }
        "center" => {
            let width = arguments(&["width"])?.integer("width", 80)?;
            format::aligned(&text()?, width, None, '^', budget)?.into()
        }
        "format" => {
            let (places, named) = split(given);
            let given = match (named, places) {
                (Some(named), []) => Value::from_pairs(
                    named
                        .args()
                        .map(|name| (name, named.peek::<Value>(name).unwrap_or_default())),
                ),
                (None, places) => Tuple::from(places).into(),
                (Some(_), _) => return Err(refused("format: arguments by place and by name")),
            };
            format::percent(&text()?, &given, budget)?.into()
        }
        "indent" => indent(
            string(value, name)?,
            &arguments(&["width", "first", "blank"])?,
            budget,
        )?
        .into(),
        "truncate" => truncate(
            value,
            &arguments(&["length", "killwords", "end", "leeway"])?,
        )?,
        "wordcount" => {
            arguments(&[])?;
            let text = text()?;
            let is_word = |letter: char| {
                Ok::<_, Error>(
                    letter == '_'
                        || letters::has_property("isalnum", letter.encode_utf8(&mut [0; 4]))?,
                )
            };
            let (mut count, mut follows) = (0, false);
            for letter in text.chars() {
                let is_word = is_word(letter)?;
                count += usize::from(is_word && !follows);
                follows = is_word;
            }
            count.into()
        }
        "tojson" => return json::write(value, given, budget).map(Value::from),
        _ if REFUSED.contains(&name) => {
            return Err(refused(format!("the filter {name} is not supported")));
        }
        _ => return Err(refused(format!("filter {name} is unknown"))),
    };
    match result.as_object() {
        Some(_) => Ok(result),
        None => budget.pay(result),
    }
}

/// Returns an error for an undefined value, of which Python makes no number; `None` for others.
fn no_number<T>(value: &Value) -> Result<Option<T>, Error> {
    match kind(value) {
        Kind::Undefined => Err(unsupported("the number", value)),
        _ => Ok(None),
    }
}

/// Returns the integer of a value; `None` if it is none.
fn to_integer(value: &Value, base: i64) -> Result<Option<i128>, Error> {
    let of_float = |float: f64| match float.is_finite() {
        true if float.abs() < 1e36 => Ok(Some(float as i128)),
        true => Err(refused("int: the number is too large")),
        false if float.is_nan() => Ok(None),
        false => Ok(None),
    };
    match (number(value), value.as_str()) {
        (Some(Number::Int(number)), _) => Ok(Some(number)),
        (Some(Number::Float(number)), _) => of_float(number),
        (None, None) => no_number(value),
        (None, Some(text)) => match parse_integer(text, base)? {
            Some(number) => Ok(Some(number)),
            None => parse_float(text)?.map_or(Ok(None), of_float),
        },
    }
}

/// Returns `int(text, base)`; `None` for a text that is no integer.
fn parse_integer(text: &str, base: i64) -> Result<Option<i128>, Error> {
    if !(base == 0 || (2..=36).contains(&base)) {
        return Ok(None);
    }
    check_digits(text)?;
    let text = text.trim_matches(spaces::is_space).to_ascii_lowercase();
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) if text.starts_with('-') => (-1, digits),
        Some(digits) => (1, digits),
        None => (1, &*text),
    };
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)];
    let prefix = prefixed.into_iter().find_map(|(prefix, of)| {
        let digits = digits
            .strip_prefix(prefix)
            .filter(|_| base == of || base == 0)?;
        Some((digits.strip_prefix('_').unwrap_or(digits), of))
    });
    let (digits, base) = match prefix {
        Some(found) => found,
        None if base == 0
            && digits.starts_with('0')
            && digits.contains(|letter| letter != '0' && letter != '_') =>
        {
            return Ok(None);
        }
        None => (digits, if base == 0 { 10 } else { base }),
    };
    let is_grouped =
        |digits: &str| !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    if digits.is_empty() || !is_grouped(digits) {
        return Ok(None);
    }
    let digits = digits.replace('_', "");
    let base = base as u32;
    if !digits.chars().all(|digit| digit.is_digit(base)) {
        return Ok(None);
    }
    match i128::from_str_radix(&digits, base) {
        Ok(number) => Ok(Some(sign * number)),
        Err(_) => Err(refused("int: the number is too large")),
    }
}

/// Returns `float(text)`; `None` for a text that is no number.
fn parse_float(text: &str) -> Result<Option<f64>, Error> {
    check_digits(text)?;
    let text = text.trim_matches(spaces::is_space);
    let bytes = text.as_bytes();
    for (place, _) in text.match_indices('_') {
        let is_digit = |place: Option<usize>| {
            place
                .and_then(|place| bytes.get(place))
                .is_some_and(u8::is_ascii_digit)
        };
        if !is_digit(place.checked_sub(1)) || !is_digit(Some(place + 1)) {
            return Ok(None);
        }
    }
    Ok(text.replace('_', "").parse().ok())
}

/// Refuses digits beyond ASCII, which Python reads.
fn check_digits(text: &str) -> Result<(), Error> {
    match text
        .chars()
        .any(|letter| !letter.is_ascii() && letter.is_numeric())
    {
        true => Err(refused(
            "a number with digits beyond ASCII is not supported",
        )),
        false => Ok(()),
    }
}

fn round(value: &Value, arguments: &Arguments<'_>) -> Result<Value, Error> {
    let precision = arguments.integer("precision", 0)?;
    let method = arguments
        .get("method")
        .map_or(Ok("common"), |method| string(method, "round"))?;
    let given = number(value).ok_or_else(|| unsupported("round", value))?;
    let places = usize::try_from(precision)
        .ok()
        .filter(|places| *places <= 20);
    match (method, given, places) {
        ("common", Number::Int(number), Some(_)) => Ok(values::from_integer(number)),
        // The nearest decimal text, and the even one of two, is what Python computes.
        ("common", Number::Float(number), Some(places)) if number.is_finite() => {
            let text = format!("{number:.places$}");
            Ok(text.parse::<f64>().unwrap_or(number).into())
        }
        ("floor" | "ceil", Number::Int(number), Some(_)) => Ok((number as f64).into()),
        ("floor" | "ceil", Number::Float(number), Some(places))
            if number.is_finite() && number.abs() < 1e15 =>
        {
            let factor = 10f64.powi(places as i32);
            let scaled = number * factor;
            let whole = if method == "floor" {
                scaled.floor()
            } else {
                scaled.ceil()
            };
            Ok((whole / factor).into())
        }
        ("common" | "floor" | "ceil", ..) => Err(refused(
            "round: this number, precision and method are not supported",
        )),
        _ => Err(refused("round: the method must be common, ceil or floor")),
    }
}

/// Returns a text with the signs of HTML as entities.
fn escaped(text: &str, budget: &Budget) -> Result<String, Error> {
    let special = text.matches(['&', '<', '>', '"', '\'']).count();
    budget.spend(special.saturating_mul(5))?;
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            letter => out.push(letter),
        }
    }
    Ok(out)
}

fn indent(text: &str, arguments: &Arguments<'_>, budget: &Budget) -> Result<String, Error> {
    let text = text.to_owned() + "\n";
    let lines = spaces::lines(&text, false);
    let width = match arguments.get("width") {
        Some(width) => match width.as_str() {
            Some(width) => Err(width.to_owned()),
            None => Ok(usize::try_from(integer(width, "indent")?).unwrap_or(0)),
        },
        None => Ok(4),
    };
    let size = width.as_ref().map_or_else(String::len, |width| *width);
    budget.spend(
        lines
            .len()
            .saturating_mul(size.saturating_add(1))
            .saturating_add(text.len()),
    )?;
    let indentation = width.map_or_else(|text| text, |width| " ".repeat(width));
    let mut out = String::new();
    for (place, line) in lines.iter().enumerate() {
        if place > 0 {
            out.push('\n');
        }
        let is_indented = match place {
            0 => arguments.is_true("first"),
            _ => arguments.is_true("blank") || !line.is_empty(),
        };
        if is_indented {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn truncate(value: &Value, arguments: &Arguments<'_>) -> Result<Value, Error> {
    let length = arguments.integer("length", 255)?;
    let end = arguments
        .get("end")
        .map_or(Ok(ENDS), |end| string(end, "truncate"))?;
    let leeway = match arguments.get("leeway").filter(|leeway| !leeway.is_none()) {
        Some(leeway) => integer(leeway, "truncate")?,
        None => 5,
    };
    let end_length = end.chars().count() as i64;
    if length < end_length || leeway < 0 {
        return Err(refused(format!(
            "truncate: expected a length of at least {end_length}, and a leeway of at least 0"
        )));
    }
    let limit = length.saturating_add(leeway);
    if values::length(value)? as i64 <= limit {
        return Ok(value.clone());
    }
    let text = string(value, "truncate")?;
    let kept: String = text.chars().take((length - end_length) as usize).collect();
    let kept = match arguments.is_true("killwords") {
        true => &*kept,
        false => kept.rsplit_once(' ').map_or(&*kept, |(before, _)| before),
    };
    Ok((kept.to_owned() + end).into())
}
