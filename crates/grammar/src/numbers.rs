//! Ranges of numbers without one of their ends.
//!
//! llguidance (1.9.1, `rx_float_range`) lets the excluded end of a range through if it is an integer and the range has no
//! other integer part: 0 of 0 < x ≤ 0.5, and -5 of -5.5 ≤ x < -5. The end therefore moves inwards a little: fewer numbers
//! match, and all of them are in the range.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::objects;
use crate::wide_numbers::{self, may_be_fraction};

/// Maximum number of digits of an end. llguidance reads decimals as 64-bit integers.
const MAX_DIGITS: i32 = 15;
/// The part of a range that is left out at its end.
const LEFT_OUT: f64 = 1e-9;
/// The width of a range with an end in another part of the schema.
const UNKNOWN: f64 = 1e-4;

/// Adapts all ranges in `schema`, but not literal values.
///
/// # Errors
/// If a range is too narrow, or a number can't be exact.
pub(crate) fn adapt(schema: &mut Value) -> Result<()> {
    wide_numbers::adapt(schema)?;
    let is_joined = joins(schema);
    adapt_part(schema, is_joined)
}

/// Returns whether parts of a schema apply to the same value.
fn joins(schema: &Value) -> bool {
    match schema {
        Value::Array(items) => items.iter().any(joins),
        Value::Object(keywords) => {
            let in_place = ["$ref", "anyOf", "oneOf"];
            let has_siblings = keywords.len() > 1
                && in_place
                    .iter()
                    .any(|keyword| keywords.contains_key(*keyword));
            has_siblings
                || keywords.contains_key("allOf")
                || objects::parts(keywords).any(|(_, part)| joins(part))
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
                let width = other.map_or(f64::INFINITY, |other| other - end);
                if !may_be_fraction(keywords.get("type")) || end < 0.0 || end.fract() != 0.0 {
                    continue;
                }
                let is_narrow = (0.0..1.0).contains(&width);
                if !is_narrow && !is_joined {
                    continue;
                }
                let least = if is_joined { width.min(UNKNOWN) } else { width };
                let moved = match moved(end, least) {
                    Some(moved) => sign * moved,
                    None if is_narrow => return Err(too_narrow(width)),
                    None => continue,
                };
                let kept = number(included).map(|kept| sign * kept);
                let moved = kept.map_or(moved, |kept| sign * kept.max(sign * moved));
                replace(keywords, excluded, included, moved);
            }
            objects::parts_mut(keywords).try_for_each(|(_, part)| adapt_part(part, is_joined))
        }
        _ => Ok(()),
    }
}

/// Returns a number above `end` with few digits, at most a small part of `width` away; `None` if no number is.
fn moved(end: f64, width: f64) -> Option<f64> {
    let whole = end.max(1.0).log10().floor() as i32 + 1;
    let decimals = (-(width * LEFT_OUT).log10()).ceil();
    let decimals = (decimals.clamp(0.0, f64::from(MAX_DIGITS)) as i32).min(MAX_DIGITS - whole);
    let step = 10f64.powi(-decimals);
    (step < width && step < 1.0 && end + step > end).then_some(end + step)
}

fn too_narrow(width: f64) -> Error {
    Error::Unsupported {
        kind: Kind::JsonSchema,
        problem: format!("a range of width {width} without one of its ends: it is too narrow"),
    }
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
                json!({"maximum": 0.5, "minimum": 1e-10}),
            ),
            (
                json!({"exclusiveMaximum": -5, "minimum": -5.5}),
                json!({"minimum": -5.5, "maximum": -5.000_000_000_1}),
            ),
            (
                json!({"exclusiveMinimum": 0, "exclusiveMaximum": 0.001}),
                json!({"exclusiveMaximum": 0.001, "minimum": 1e-12}),
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
        for part in [
            json!({"exclusiveMinimum": 0}),
            json!({"exclusiveMinimum": 0, "maximum": 1}),
        ] {
            let parts = json!({"allOf": [part, {"maximum": 0.5}]});
            assert_eq!(adapted(parts)["allOf"][0]["minimum"], json!(1e-13));
        }
        let either = json!({"exclusiveMinimum": 0, "anyOf": [{"maximum": 0.5}, {"minimum": 10}]});
        assert_eq!(adapted(either)["minimum"], json!(1e-13));
        // A number of so many digits has no other end near.
        let far = json!({"allOf": [], "exclusiveMinimum": 1e15});
        assert_eq!(adapted(far.clone()), far);
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
