//! Ranges of numbers without one of their ends.
//!
//! llguidance (1.9.1, `rx_float_range`) lets the excluded end of a range through if it is an integer and the range has no
//! other integer part: 0 of 0 < x ≤ 0.5, and -5 of -5.5 ≤ x < -5. The end therefore moves inwards a little: fewer numbers
//! match, and all of them are in the range.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::objects;

/// Maximum number of digits of an end. llguidance reads decimals as 64-bit integers.
const MAX_DIGITS: i32 = 15;
/// The part of a range that is left out at its end.
const LEFT_OUT: f64 = 1e-3;
/// The width of a range with an end in another part of the schema.
const UNKNOWN: f64 = 1e-6;

/// Adapts all ranges in `schema`, but not literal values.
///
/// # Errors
/// If a range is too narrow.
pub(crate) fn adapt(schema: &mut Value) -> Result<()> {
    let is_joined = joins(schema);
    adapt_part(schema, is_joined)
}

/// Returns whether parts of a schema apply to the same value.
fn joins(schema: &Value) -> bool {
    match schema {
        Value::Array(items) => items.iter().any(joins),
        Value::Object(keywords) => {
            let has_siblings = keywords.contains_key("$ref") && keywords.len() > 1;
            let mut parts = keywords.iter();
            has_siblings
                || keywords.contains_key("allOf")
                || parts.any(|(keyword, part)| !objects::is_value(keyword) && joins(part))
        }
        _ => false,
    }
}

fn adapt_part(schema: &mut Value, is_joined: bool) -> Result<()> {
    match schema {
        Value::Array(items) => items
            .iter_mut()
            .try_for_each(|part| adapt_part(part, is_joined)),
        Value::Object(keywords) => {
            // From below, and mirrored from above.
            for (sign, [excluded, included], others) in [
                (
                    1.0,
                    ["exclusiveMinimum", "minimum"],
                    ["maximum", "exclusiveMaximum"],
                ),
                (
                    -1.0,
                    ["exclusiveMaximum", "maximum"],
                    ["minimum", "exclusiveMinimum"],
                ),
            ] {
                let number = |keyword: &str| keywords.get(keyword).and_then(Value::as_f64);
                let Some(end) = number(excluded).map(|end| sign * end) else {
                    continue;
                };
                let other = others.iter().filter_map(|other| number(other));
                let other = other.map(|other| sign * other).reduce(f64::min);
                let width = match other {
                    Some(other) => other - end,
                    None if is_joined => UNKNOWN,
                    None => f64::INFINITY,
                };
                let is_integer = keywords.get("type") == Some(&"integer".into());
                if is_integer || end < 0.0 || end.fract() != 0.0 || !(0.0..1.0).contains(&width) {
                    continue;
                }
                let moved = sign * moved(end, width)?;
                let kept = number(included).map(|kept| sign * kept);
                let moved = kept.map_or(moved, |kept| sign * kept.max(sign * moved));
                replace(keywords, excluded, included, moved);
            }
            let parts = keywords.iter_mut();
            parts
                .filter(|(keyword, _)| !objects::is_value(keyword))
                .try_for_each(|(_, part)| adapt_part(part, is_joined))
        }
        _ => Ok(()),
    }
}

/// Returns a number above `end` with few digits, at most a small part of `width` away.
fn moved(end: f64, width: f64) -> Result<f64> {
    let whole = end.max(1.0).log10().floor() as i32 + 1;
    let decimals = (-(width * LEFT_OUT).log10()).ceil();
    let step = 10f64.powi(-(decimals.min(f64::from(MAX_DIGITS)) as i32).min(MAX_DIGITS - whole));
    if step < width && end + step > end {
        return Ok(end + step);
    }
    Err(Error::Unsupported {
        kind: Kind::JsonSchema,
        problem: format!("a range of width {width} without one of its ends: it is too narrow"),
    })
}

fn replace(keywords: &mut Map<String, Value>, excluded: &str, included: &str, end: f64) {
    keywords.remove(excluded);
    keywords.insert(included.to_owned(), json!(end));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapted(mut schema: Value) -> Value {
        adapt(&mut schema).unwrap();
        schema
    }

    #[test]
    fn an_excluded_integer_moves_into_a_range_without_another_integer_part() {
        for (schema, expected) in [
            (
                json!({"exclusiveMinimum": 0, "maximum": 0.5}),
                json!({"maximum": 0.5, "minimum": 0.0001}),
            ),
            (
                json!({"exclusiveMaximum": -5, "minimum": -5.5}),
                json!({"minimum": -5.5, "maximum": -5.0001}),
            ),
            (
                json!({"exclusiveMinimum": 0, "exclusiveMaximum": 0.001}),
                json!({"exclusiveMaximum": 0.001, "minimum": 0.000_001}),
            ),
            (
                json!({"exclusiveMinimum": 0, "minimum": 0.25, "maximum": 0.5}),
                json!({"minimum": 0.25, "maximum": 0.5}),
            ),
        ] {
            assert_eq!(adapted(schema.clone()), expected, "{schema}");
        }
        for same in [
            json!({"exclusiveMinimum": 0}),
            json!({"exclusiveMinimum": 0, "maximum": 100}),
            json!({"exclusiveMinimum": 0.5, "maximum": 0.75}),
            json!({"exclusiveMinimum": -1, "maximum": -0.5}),
            json!({"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5}),
            json!({"const": {"exclusiveMinimum": 0, "maximum": 0.5}}),
        ] {
            assert_eq!(adapted(same.clone()), same);
        }
        // The other end may be in another part.
        let parts = json!({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]});
        assert_eq!(adapted(parts)["allOf"][0], json!({"minimum": 1e-9}));
    }

    #[test]
    fn a_range_of_too_many_digits_is_refused() {
        for mut schema in [
            json!({"exclusiveMinimum": 0, "maximum": 1e-15}),
            json!({"exclusiveMinimum": 123_456_789_012_345.0, "maximum": 123_456_789_012_345.5}),
        ] {
            let error = adapt(&mut schema).unwrap_err().to_string();
            assert!(error.contains("too narrow"), "{error}");
        }
    }
}
