//! Other spellings of numbers in schemas. JSON Schema has no kinds of numbers: `5.0` and `5e0` are the integer 5, as clients without
//! integers write it. llguidance (1.9.1, `get_usize`) refuses these. In draft 4, `exclusiveMinimum` is a boolean about `minimum`;
//! llguidance reads it only if no `anyOf` or similar keyword stands between the two.

use serde_json::{Map, Value};

use crate::objects;

/// Keywords whose value is a count.
const COUNTS: [&str; 6] = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];
/// Keywords that are booleans in draft 4, each with the end of a range that it is about.
const EXCLUDED: [(&str, &str); 2] = [
    ("exclusiveMinimum", "minimum"),
    ("exclusiveMaximum", "maximum"),
];
/// The least magnitude of a float that may stand for several integers.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Returns `schema` with counts as integers and excluded ends as numbers, at any depth, but not in literal values.
pub(crate) fn plain(mut schema: Value) -> Value {
    change(&mut schema);
    schema
}

fn change(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(change),
        Value::Object(keywords) => {
            for count in COUNTS {
                let number = keywords.get_mut(count).filter(|count| count.is_f64());
                if let Some(number) = number
                    && let Some(whole) = number.as_f64().and_then(whole)
                {
                    *number = whole.into();
                }
            }
            for names in EXCLUDED {
                exclude(keywords, names);
            }
            objects::parts_mut(keywords).for_each(|(_, part)| change(part));
        }
        _ => {}
    }
}

/// Returns a float as an integer, if it is one.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < EXACT).then_some(number as i64)
}

/// Replaces a boolean `excluded` about the keyword `end`.
fn exclude(keywords: &mut Map<String, Value>, (excluded, end): (&str, &str)) {
    let Some(Value::Bool(is_excluded)) = keywords.get(excluded) else {
        return;
    };
    let end = is_excluded.then(|| keywords.remove(end)).flatten();
    match end {
        Some(end) => drop(keywords.insert(excluded.to_owned(), end)),
        None => drop(keywords.remove(excluded)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_floats_are_counts_and_booleans_are_about_ends() {
        for (schema, expected) in [
            (json!({"maxLength": 5.0}), json!({"maxLength": 5})),
            (json!({"minItems": -0.0}), json!({"minItems": 0})),
            (
                json!({"items": [{"properties": {"maxItems": {"minProperties": 2e0}}}]}),
                json!({"items": [{"properties": {"maxItems": {"minProperties": 2}}}]}),
            ),
            (
                json!({"minimum": 1, "exclusiveMinimum": true, "exclusiveMaximum": false}),
                json!({"exclusiveMinimum": 1}),
            ),
        ] {
            assert_eq!(plain(schema.clone()), expected, "{schema}");
        }
        for same in [
            json!({"maxLength": 5.5, "minItems": 1e300, "maxItems": "2.0", "minLength": -1}),
            json!({"const": {"maxLength": 5.0}, "enum": [{"exclusiveMinimum": true}]}),
            json!({"minimum": 1.0, "exclusiveMaximum": 2.0}),
        ] {
            assert_eq!(plain(same.clone()), same);
        }
    }
}
