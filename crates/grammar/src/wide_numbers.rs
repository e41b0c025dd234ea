//! Numbers of 2^53 and more in schemas.
//!
//! llguidance (1.9.1, `schema.rs`) reads all numbers as 64-bit floats, and ranges of integers from these as `i64`. A number that
//! is rounded there would let numbers outside of the schema through. The end of a range therefore moves to the next float within
//! the range, and an end that lies further out than llguidance can count comes nearer: fewer numbers match, and all of them are in
//! the range. A literal number that is no float is refused.

use serde_json::{Map, Number, Value, json};

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::objects;

/// The least magnitude of a float that may stand for several integers.
const EXACT: i128 = 1 << 53;
/// The largest float below 2^63, and the largest power of ten that ranges of fractions may have as an end.
const FAR_INTEGER: i128 = (1 << 63) - 1024;
const FAR: i128 = 1_000_000_000_000_000_000;
/// The largest integer that a range may begin with.
const MAX: i128 = i64::MAX as i128;

/// Adapts the numbers of all schemas in `schema`.
///
/// # Errors
/// If a literal number is not exact, or a range begins beyond 64 bits.
pub(crate) fn adapt(schema: &mut Value) -> Result<()> {
    match schema {
        Value::Array(items) => items.iter_mut().try_for_each(adapt),
        Value::Object(keywords) => {
            for keyword in ["const", "enum"] {
                if let Some(value) = keywords.get(keyword) {
                    check_literal(keyword, value)?;
                }
            }
            let has_numbers = match keywords.get("type") {
                None => true,
                Some(kinds) => ["number", "integer"].iter().any(|kind| states(kinds, kind)),
            };
            // From below, and mirrored from above.
            let ends = [
                (
                    1,
                    ["minimum", "exclusiveMinimum"],
                    ["maximum", "exclusiveMaximum"],
                ),
                (
                    -1,
                    ["maximum", "exclusiveMaximum"],
                    ["minimum", "exclusiveMinimum"],
                ),
            ];
            for (sign, names, others) in ends.into_iter().filter(|_| has_numbers) {
                let end = |name: &str| Some(sign * keywords.get(name).and_then(wide)?);
                let is_far = others
                    .iter()
                    .any(|name| end(name).is_some_and(|end| end < -FAR));
                move_end(keywords, sign, names, is_far)?;
            }
            objects::parts_mut(keywords).try_for_each(|(_, part)| adapt(part))
        }
        _ => Ok(()),
    }
}

/// Moves the ends of a range from below that have these names, inclusive and exclusive, if they are wide. All are multiplied by
/// `sign`. `is_far` is whether the other end lies far out on the same side.
fn move_end(
    keywords: &mut Map<String, Value>,
    sign: i128,
    [inclusive, exclusive]: [&str; 2],
    is_far: bool,
) -> Result<()> {
    let is_fraction = may_be_fraction(keywords.get("type"));
    for (name, more) in [(inclusive, 0), (exclusive, 1)] {
        let Some(end) = keywords.get(name).and_then(wide) else {
            continue;
        };
        let least = sign * end + more;
        if least > MAX {
            let most = sign * MAX;
            let problem = format!(
                "{name} {}: the range is beyond that of 64-bit integers, expected {most}",
                keywords[name]
            );
            return Err(unsupported(problem));
        }
        let far = if is_fraction { FAR } else { FAR_INTEGER };
        // llguidance cuts 2^63, the float of the largest integer, to that integer.
        let is_cut = sign < 0 && !is_fraction && least <= -MAX;
        let moved = if is_cut {
            -MAX
        } else if least < -far && !is_far {
            -far
        } else {
            above(least)
        };
        let moved = (sign * moved).clamp(-MAX, MAX) as i64;
        keywords.remove(name);
        let kept = keywords.get(inclusive).and_then(Value::as_f64);
        let is_within = |kept: f64| sign as f64 * (moved as f64 - kept) < 0.0;
        if !kept.is_some_and(is_within) {
            keywords.insert(inclusive.to_owned(), json!(moved));
        }
    }
    Ok(())
}

/// Returns the least float that is at least `number`.
fn above(number: i128) -> i128 {
    let near = number as f64;
    let above = if (near as i128) < number {
        near.next_up()
    } else {
        near
    };
    above as i128
}

/// Returns a number of 2^53 or more, or of -2^53 or less.
fn wide(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    let whole = integer(number).or_else(|| Some(number.as_f64()?.trunc() as i128));
    // Sums and negations of it stay in range.
    let whole = whole.map(|whole| whole.clamp(-(1 << 100), 1 << 100));
    whole.filter(|whole| whole.abs() >= EXACT)
}

fn integer(number: &Number) -> Option<i128> {
    let signed = number.as_i64().map(i128::from);
    signed.or_else(|| number.as_u64().map(i128::from))
}

/// Refuses a literal value in `keyword` with an integer that no float is, and the least one of 64 bits.
fn check_literal(keyword: &str, value: &Value) -> Result<()> {
    match value {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| check_literal(keyword, item)),
        Value::Object(fields) => fields
            .values()
            .try_for_each(|field| check_literal(keyword, field)),
        Value::Number(number) => {
            let is_exact = integer(number).is_none_or(|whole| match number.as_f64() {
                // The largest integer is the one that 2^63 is cut to.
                Some(near) => {
                    (near as i128 == whole && whole != i128::from(i64::MIN)) || whole == MAX
                }
                None => false,
            });
            if is_exact {
                return Ok(());
            }
            let problem = format!(
                "{keyword} has the number {number}, which no 64-bit float is: expected a number up to {EXACT}, or a text"
            );
            Err(unsupported(problem))
        }
        _ => Ok(()),
    }
}

/// Returns whether a schema of a `type` describes numbers that are no integers.
pub(crate) fn may_be_fraction(kind: Option<&Value>) -> bool {
    kind.is_none_or(|kinds| states(kinds, "number"))
}

/// Returns whether a `type` is or contains `kind`.
fn states(kinds: &Value, kind: &str) -> bool {
    match kinds {
        Value::Array(kinds) => kinds.iter().any(|it| it == kind),
        it => it == kind,
    }
}

fn unsupported(problem: String) -> Error {
    Error::Unsupported {
        kind: Kind::JsonSchema,
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapted(mut schema: Value) -> Value {
        adapt(&mut schema).unwrap();
        schema
    }

    #[test]
    fn an_end_moves_to_a_float_within_the_range() {
        for (schema, expected) in [
            (
                json!({"type": "integer", "minimum": 9_007_199_254_740_993_i64, "maximum": 9_007_199_254_740_995_i64}),
                json!({"type": "integer", "minimum": 9_007_199_254_740_994_i64, "maximum": 9_007_199_254_740_994_i64}),
            ),
            (
                json!({"type": "integer", "exclusiveMinimum": 9_007_199_254_740_992_i64}),
                json!({"type": "integer", "minimum": 9_007_199_254_740_994_i64}),
            ),
            (
                json!({"exclusiveMaximum": -9_007_199_254_740_992_i64, "maximum": 5}),
                json!({"maximum": -9_007_199_254_740_994_i64}),
            ),
            // What programs write for integers of 64 bits, and for floats.
            (
                json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
                json!({"type": "integer", "minimum": -9_223_372_036_854_774_784_i64, "maximum": i64::MAX}),
            ),
            (
                json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
                json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
            ),
            (
                json!({"type": "number", "minimum": f64::MIN, "maximum": f64::MAX}),
                json!({"type": "number", "minimum": -1_000_000_000_000_000_000_i64, "maximum": 1_000_000_000_000_000_000_i64}),
            ),
            (
                json!({"type": "integer", "minimum": i64::MAX - 1, "maximum": i64::MAX}),
                json!({"type": "integer", "minimum": i64::MAX, "maximum": i64::MAX}),
            ),
        ] {
            assert_eq!(adapted(schema.clone()), expected, "{schema}");
            assert_eq!(adapted(expected.clone()), expected);
        }
        for same in [
            json!({"minimum": -9_007_199_254_740_991_i64, "exclusiveMaximum": 9_007_199_254_740_991_i64}),
            json!({"const": {"minimum": 1e30}, "default": {"maximum": i64::MAX}}),
            json!({"type": "string", "minimum": 1e30}),
            json!({"enum": [1e30, 0.1, 9_007_199_254_740_992_i64, i64::MAX]}),
        ] {
            assert_eq!(adapted(same.clone()), same);
        }
    }

    #[test]
    fn literal_numbers_and_ranges_that_can_not_be_exact_are_refused_by_name() {
        for (mut schema, words) in [
            (
                json!({"const": 9_007_199_254_740_993_i64}),
                "const has the number 9007199254740993",
            ),
            (
                json!({"items": {"enum": [1, {"a": [u64::MAX]}]}}),
                "enum has the number 18446744073709551615",
            ),
            (
                json!({"properties": {"default": {"const": i64::MIN}}}),
                "const has the number -92",
            ),
            (json!({"type": "integer", "minimum": 1e30}), "minimum 1e+30"),
            (
                json!({"type": "integer", "maximum": i64::MIN}),
                "maximum -9223372036854775808",
            ),
        ] {
            let error = adapt(&mut schema).unwrap_err().to_string();
            assert!(error.contains(words), "{schema}: {error}");
        }
    }
}
