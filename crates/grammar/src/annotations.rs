//! Removal of keywords that restrict nothing: annotations, and assertions that every value satisfies. llguidance refuses
//! some of them, and treats others next to a reference as a restriction.

use serde_json::Value;

use crate::objects;

/// Keywords of JSON Schema and its libraries that restrict nothing, whatever their value is.
const ANNOTATIONS: [&str; 13] = [
    "$vocabulary",
    "contentSchema",
    "deprecated",
    "discriminator",
    "enumDescriptions",
    "enumNames",
    "errorMessage",
    "example",
    "externalDocs",
    "nullable",
    "propertyOrdering",
    "tags",
    "xml",
];

/// Keywords of all drafts that may restrict something, or that the compiler reads.
const KEYWORDS: [&str; 52] = [
    "$anchor",
    "$comment",
    "$defs",
    "$dynamicAnchor",
    "$dynamicRef",
    "$id",
    "$recursiveAnchor",
    "$recursiveRef",
    "$ref",
    "$schema",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "default",
    "definitions",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "description",
    "else",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "id",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "then",
    "type",
];

/// Keywords that restrict something only if their value is none of the neutral ones, each as JSON.
const NEUTRAL: [(&str, &[&str]); 7] = [
    ("uniqueItems", &["false"]),
    ("unevaluatedItems", &["true", "{}"]),
    ("unevaluatedProperties", &["true", "{}"]),
    ("dependencies", &["{}"]),
    ("dependentRequired", &["{}"]),
    ("dependentSchemas", &["{}"]),
    ("propertyNames", &["true", "{}", r#"{"type":"string"}"#]),
];

/// Formats that JSON Schema defines. Those that llguidance lacks are refused. All other formats are annotations.
const FORMATS: [&str; 20] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "idn-email",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "time",
    "unknown",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
];

/// Returns `schema` without keywords that restrict nothing, and with `false` in place of a `not` that excludes
/// everything.
pub(crate) fn without_annotations(schema: Value) -> Value {
    match schema {
        Value::Array(items) => items.into_iter().map(without_annotations).collect(),
        Value::Object(keywords) => {
            let excludes = |not: &Value| match not {
                Value::Bool(all) => Some(*all),
                Value::Object(keywords) => keywords.is_empty().then_some(true),
                _ => None,
            };
            let not = keywords.get("not").and_then(excludes);
            if not == Some(true) && keywords.len() == 1 {
                return Value::Bool(false);
            }
            let has = |keyword: &str| keywords.contains_key(keyword);
            let (has_if, has_then) = (has("if"), has("then") || has("else"));
            let has_contains = has("contains");
            let is_short = keywords
                .get("maxItems")
                .and_then(Value::as_u64)
                .is_some_and(|most| most <= 1);
            let restricts = |keyword: &str, value: &Value| match keyword {
                "format" => value
                    .as_str()
                    .is_none_or(|format| FORMATS.contains(&format)),
                "not" => not != Some(false),
                "if" => has_then,
                "then" | "else" => has_if,
                "minContains" | "maxContains" => has_contains,
                // One item is always unique.
                "uniqueItems" if is_short => false,
                keyword if ANNOTATIONS.contains(&keyword) => false,
                keyword => {
                    let neutral = NEUTRAL.iter().find(|(name, _)| *name == keyword);
                    let is = |text: &&str| {
                        serde_json::from_str(text).is_ok_and(|neutral: Value| neutral == *value)
                    };
                    match neutral {
                        Some((_, values)) => !values.iter().any(is),
                        // Other keywords are annotations. References may lead to schemas in them.
                        None => {
                            KEYWORDS.contains(&keyword) || value.is_object() || value.is_array()
                        }
                    }
                }
            };
            let restricting: Vec<_> = keywords
                .iter()
                .filter(|(keyword, value)| restricts(keyword, value))
                .map(|(keyword, _)| keyword.clone())
                .collect();
            let kept = keywords
                .into_iter()
                .filter(|(keyword, _)| restricting.contains(keyword));
            let kept = kept.map(|(keyword, value)| {
                let value = match value {
                    value if objects::is_value(&keyword) => value,
                    // The keys of this value are names, not keywords.
                    Value::Object(schemas) if objects::NAMED.contains(&keyword.as_str()) => {
                        Value::Object(
                            schemas
                                .into_iter()
                                .map(|(name, schema)| (name, without_annotations(schema)))
                                .collect(),
                        )
                    }
                    value => without_annotations(value),
                };
                (keyword, value)
            });
            Value::Object(kept.collect())
        }
        schema => schema,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keywords_that_restrict_nothing_are_removed_and_all_others_stay() {
        let kept = |schema: Value| without_annotations(schema);
        for neutral in [
            json!({"format": "password"}),
            json!({"uniqueItems": false}),
            json!({"propertyNames": {"type": "string"}}),
            json!({"not": false}),
            json!({"dependentRequired": {}}),
            json!({"then": {"type": "null"}}),
            json!({"if": {"type": "null"}}),
            json!({"maxContains": 1}),
            json!({"x-order": 3, "deprecated": true, "xml": {"name": "a"}}),
        ] {
            assert_eq!(kept(neutral.clone()), json!({}), "{neutral}");
        }
        for restricting in [
            json!({"format": "date"}),
            json!({"uniqueItems": true}),
            json!({"propertyNames": {"maxLength": 3}}),
            json!({"not": {"type": "null"}}),
            json!({"if": {"type": "null"}, "then": false}),
            json!({"contains": {"type": "null"}, "minContains": 2}),
            json!({"properties": {"xml": {"enum": [1]}, "uniqueItems": false}}),
            json!({"const": {"uniqueItems": false}}),
            // A reference may lead there.
            json!({"$ref": "#/components/a", "components": {"a": {"type": "null"}}}),
        ] {
            assert_eq!(kept(restricting.clone()), restricting);
        }
        assert_eq!(
            kept(json!({"uniqueItems": true, "maxItems": 1})),
            json!({"maxItems": 1})
        );
        assert_eq!(kept(json!({"items": {"not": {}}})), json!({"items": false}));
    }
}
