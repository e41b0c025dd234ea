//! Grammars as texts, and what is checked of a text before it is compiled.

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::objects::{self, TooManyNames};

/// Longest texts, in bytes; the longest schemas in use, which may be parts of grammars, are a few hundred kilobytes.
const LONGEST: usize = 1 << 20;
const LONGEST_REGEX: usize = 1 << 16;
/// Properties and options of a JSON schema, at most, and rules and options of a grammar: compiling takes as long as the square
/// of how many are next to each other. The largest schemas in use have some thousand.
const MOST_PARTS: usize = 8192;
const MOST_SIBLINGS: usize = 1024;
const MOST_RULES: usize = 8192;
/// What precedes a schema in a grammar.
const JSON_IN_LARK: &str = "%json";
/// Deepest brackets of grammars and regular expressions. JSON has a limit of its own, 128.
const DEEPEST: usize = 200;

/// Space between the parts of JSON: a space, or a new line with its indentation, of spaces or of tabs. A model that could go
/// on for ever with spaces sometimes does; with both by turns it needs a token for each.
const SPACE: &str = r" |\n( {0,64}|\t{0,16})";

/// What an answer must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GrammarSource {
    /// JSON that a schema describes, in the drafts that `$schema` may name. Properties come in the order of the schema.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// A text that a regular expression matches from its beginning to its end, in the syntax of the crate `regex`.
    Regex(String),
    /// A text of a grammar in llguidance's variant of Lark, from its rule `start`.
    Lark(String),
}

impl GrammarSource {
    /// Which it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::JsonSchema(_) | Self::JsonObject => Kind::JsonSchema,
            Self::Regex(_) => Kind::Regex,
            Self::Lark(_) => Kind::Lark,
        }
    }

    /// Its text.
    pub fn text(&self) -> &str {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text,
            Self::JsonObject => "",
        }
    }

    /// Returns it as [`Self::from_json`] reads it.
    pub(crate) fn to_json(&self) -> Value {
        let name = match self {
            Self::JsonSchema(_) => "json_schema",
            Self::JsonObject => "json_object",
            Self::Regex(_) => "regex",
            Self::Lark(_) => "lark",
        };
        json!({ name: self.text() })
    }

    /// Reads what [`Self::to_json`] returned.
    pub(crate) fn from_json(json: &Value) -> Option<Self> {
        let (name, text) = json.as_object()?.iter().next()?;
        let text = text.as_str()?.to_owned();
        Some(match name.as_str() {
            "json_schema" => Self::JsonSchema(text),
            "json_object" => Self::JsonObject,
            "regex" => Self::Regex(text),
            "lark" => Self::Lark(text),
            _ => return None,
        })
    }

    /// Refuses texts that are too long or too deep.
    pub(crate) fn check(&self) -> Result<()> {
        let (kind, text) = (self.kind(), self.text());
        let most = if kind == Kind::Regex {
            LONGEST_REGEX
        } else {
            LONGEST
        };
        if text.len() > most {
            return Err(Error::TooLong {
                kind,
                bytes: text.len(),
                most,
            });
        }
        if kind != Kind::JsonSchema {
            check_depth(kind, text)?;
        }
        if let Self::Lark(text) = self {
            check_rules(text)?;
        }
        Ok(())
    }
}

/// Refuses grammars of more rules and options than any in use, and schemas within them as [`check_parts`].
fn check_rules(text: &str) -> Result<()> {
    let kind = Kind::Lark;
    let (mut rest, mut rules, mut parts) = (text, 0, 0);
    while !rest.is_empty() {
        let end = rest.find(JSON_IN_LARK).unwrap_or(rest.len());
        rules += rest[..end]
            .bytes()
            .filter(|byte| matches!(byte, b'|' | b'\n'))
            .count();
        rest = rest[end..].strip_prefix(JSON_IN_LARK).unwrap_or_default();
        // What is no JSON is left to the compiler, which names the place.
        let mut schemas = serde_json::Deserializer::from_str(rest).into_iter();
        if let Some(Ok(schema)) = schemas.next() {
            parts += count_parts(&schema)?;
            rest = &rest[schemas.byte_offset()..];
        }
    }
    if rules > MOST_RULES {
        return Err(Error::TooMany {
            kind,
            what: "lines and options",
            count: rules,
            most: MOST_RULES,
        });
    }
    check_parts(kind, parts)
}

/// Refuses more properties and options of schemas than in any in use.
fn check_parts(kind: Kind, count: usize) -> Result<()> {
    if count > MOST_PARTS {
        return Err(Error::TooMany {
            kind,
            what: "properties and options",
            count,
            most: MOST_PARTS,
        });
    }
    Ok(())
}

/// Returns how many properties, options and definitions a schema has.
///
/// # Errors
/// If more than in any in use are next to each other.
fn count_parts(schema: &Value) -> Result<usize> {
    let kind = Kind::JsonSchema;
    let (mut count, mut left) = (0, vec![schema]);
    while let Some(value) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(keywords) => {
                for (keyword, part) in keywords
                    .iter()
                    .filter(|(keyword, _)| !objects::is_value(keyword))
                {
                    let siblings = match (keyword.as_str(), part) {
                        ("properties" | "patternProperties", Value::Object(parts)) => parts.len(),
                        (
                            "required" | "anyOf" | "oneOf" | "allOf" | "prefixItems",
                            Value::Array(parts),
                        ) => parts.len(),
                        ("$defs" | "definitions", Value::Object(parts)) => {
                            count += parts.len();
                            0
                        }
                        _ => 0,
                    };
                    if siblings > MOST_SIBLINGS {
                        let what = "properties or options next to each other";
                        return Err(Error::TooMany {
                            kind,
                            what,
                            count: siblings,
                            most: MOST_SIBLINGS,
                        });
                    }
                    if keyword != "required" {
                        count += siblings;
                    }
                    left.push(part);
                }
            }
            _ => {}
        }
    }
    Ok(count)
}

/// Brackets in strings and classes count, too: no grammar in use has so many more that open than that close.
fn check_depth(kind: Kind, text: &str) -> Result<()> {
    let (mut depth, mut line) = (0usize, 1);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'\n' => line += 1,
            _ => {}
        }
        if depth > DEEPEST {
            return Err(Error::TooDeep {
                kind,
                line,
                depth,
                most: DEEPEST,
            });
        }
    }
    Ok(())
}

/// The schema in `text`, with the spaces that are allowed between its parts.
pub(crate) fn schema(text: &str) -> Result<Value> {
    let schema = serde_json::from_str(text).map_err(|error| {
        let problem = error.to_string();
        // The place is a part of the message, at its end.
        let problem = problem
            .split(" at line ")
            .next()
            .unwrap_or_default()
            .to_owned();
        Error::Json {
            line: error.line(),
            column: error.column(),
            problem,
        }
    })?;
    let schema = match schema {
        Value::Bool(true) => json!({}),
        schema => schema,
    };
    check_parts(Kind::JsonSchema, count_parts(&schema)?)?;
    let mut schema = objects::closed(&without_annotations(schema)).map_err(|_| too_many_names())?;
    check_counts(&schema)?;
    adapt(&mut schema);
    Ok(schema)
}

fn too_many_names() -> Error {
    Error::Unsupported {
        kind: Kind::JsonSchema,
        problem: TooManyNames::TEXT.into(),
    }
}

/// Refuses objects that need more properties than they name: an answer may have a free name twice, which llguidance counts
/// as two, and is one for who reads it.
fn check_counts(schema: &Value) -> Result<()> {
    match schema {
        Value::Array(items) => items.iter().try_for_each(check_counts),
        Value::Object(keywords) => {
            let named = keywords
                .get("required")
                .and_then(Value::as_array)
                .map_or(0, Vec::len)
                .max(1);
            let are_all_named = keywords.get("additionalProperties") == Some(&Value::Bool(false))
                && !keywords.contains_key("patternProperties");
            match keywords.get("minProperties").and_then(Value::as_u64) {
                Some(least) if least > named as u64 && !are_all_named => Err(Error::Unsupported {
                    kind: Kind::JsonSchema,
                    problem: format!(
                        "minProperties {least} with free names, of which an answer may have one twice: name as many in \
                         `required`, or set `additionalProperties` to false"
                    ),
                }),
                _ => keywords
                    .iter()
                    .filter(|(keyword, _)| !objects::is_value(keyword))
                    .try_for_each(|(_, part)| check_counts(part)),
            }
        }
        _ => Ok(()),
    }
}

/// Returns `schema` as llguidance is to read it, for one that is a part of a Lark grammar: with what
/// [`GrammarSource::JsonSchema`] means by it, which are spaces, closed objects, and [times](NARROWER) that exist.
#[must_use]
pub fn for_llguidance(schema: Value) -> Value {
    let schema = without_annotations(schema);
    // Refused by the text of its type.
    let mut schema =
        objects::closed(&schema).unwrap_or_else(|_| json!({ "type": TooManyNames::TEXT }));
    adapt(&mut schema);
    schema
}

/// Adds what llguidance is told of spaces and formats.
fn adapt(schema: &mut Value) {
    narrow_formats(schema);
    if let Some(keywords) = schema.as_object_mut() {
        keywords
            .entry("x-guidance")
            .or_insert_with(|| json!({ "whitespace_pattern": SPACE }));
    }
}

/// Keywords that restrict nothing, which llguidance does not know as such: next to a reference it takes them for a
/// restriction, and refuses references in a circle.
const ANNOTATIONS: [&str; 6] = [
    "deprecated",
    "discriminator",
    "example",
    "externalDocs",
    "nullable",
    "xml",
];

/// Formats that JSON Schema defines: those that llguidance lacks are refused. All others are annotations.
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

/// Returns `schema` without keywords that restrict nothing, and with `false` for what `not` excludes as a whole.
fn without_annotations(schema: Value) -> Value {
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
            let restricts = |keyword: &str, value: &Value| match keyword {
                "format" => value
                    .as_str()
                    .is_none_or(|format| FORMATS.contains(&format)),
                "not" => not != Some(false),
                keyword => !ANNOTATIONS.contains(&keyword),
            };
            let kept = keywords
                .into_iter()
                .filter(|(keyword, value)| restricts(keyword, value));
            let kept = kept.map(|(keyword, value)| {
                let value = match value {
                    value if objects::is_value(&keyword) => value,
                    // Its keys are names, not keywords.
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

/// A date of llguidance's format that is no February 29, or is one of a leap year.
macro_rules! existing_date {
    () => {
        "([0-9]{4}-(0[13-9]|1[0-2])-[0-9]{2}|[0-9]{4}-02-([01][0-9]|2[0-8])\
         |([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
    };
}

/// Patterns of formats that llguidance takes more widely than RFC 3339, §5.7: with a February 29 in any year, and a
/// second 60 in any minute. The leap seconds that there were are left out, too.
const NARROWER: [(&str, &str); 3] = [
    ("date", concat!("^", existing_date!(), "$")),
    ("time", "^[0-9]+:[0-9]+:[0-5]"),
    (
        "date-time",
        concat!("^", existing_date!(), "[tT][0-9]+:[0-9]+:[0-5]"),
    ),
];

/// Adds [patterns](NARROWER) beside formats, wherever `schema` has schemas: values that are compared as they are stay.
fn narrow_formats(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(narrow_formats),
        Value::Object(keywords) => {
            let format = keywords.get("format").and_then(Value::as_str);
            let narrower = NARROWER
                .iter()
                .find(|(name, _)| Some(*name) == format)
                .map(|(_, pattern)| *pattern);
            if let Some(pattern) = narrower.map(Value::from) {
                if !keywords.contains_key("pattern") {
                    keywords.insert("pattern".into(), pattern);
                } else if let Some(all) = keywords
                    .entry("allOf")
                    .or_insert_with(|| json!([]))
                    .as_array_mut()
                {
                    all.push(json!({ "pattern": pattern }));
                }
            }
            keywords
                .iter_mut()
                .filter(|(keyword, _)| !objects::is_value(keyword))
                .for_each(|(_, part)| narrow_formats(part));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_or_too_deep_is_refused_unread() {
        let long = GrammarSource::JsonSchema(" ".repeat(LONGEST + 1))
            .check()
            .unwrap_err()
            .to_string();
        assert_eq!(
            long,
            "the JSON schema has 1048577 bytes, expected at most 1048576"
        );
        let deep = GrammarSource::Lark(format!("start: \n{}", "(".repeat(1000)))
            .check()
            .unwrap_err()
            .to_string();
        assert_eq!(
            deep,
            "line 2 of the Lark grammar: brackets are 201 deep, expected at most 200"
        );
        GrammarSource::Regex("(a)".repeat(1000)).check().unwrap();
    }

    #[test]
    fn an_object_that_needs_more_properties_than_it_names_is_refused() {
        let is_refused = |text: &str| {
            let result = schema(text).map_err(|error| error.to_string());
            result
                .is_err_and(|error| error.contains("minProperties") && error.contains("`required`"))
        };
        assert!(is_refused(r#"{"type": "object", "minProperties": 2}"#));
        assert!(is_refused(
            r#"{"anyOf": [{"items": {"required": ["a"], "minProperties": 2}}]}"#
        ));
        assert!(is_refused(
            r#"{"additionalProperties": false, "patternProperties": {"a": {}}, "minProperties": 2}"#
        ));
        assert!(!is_refused(r#"{"minProperties": 1}"#));
        assert!(!is_refused(
            r#"{"required": ["a", "b"], "minProperties": 2}"#
        ));
        assert!(!is_refused(
            r#"{"properties": {"a": {}, "b": {}}, "additionalProperties": false, "minProperties": 2}"#
        ));
        assert!(!is_refused(
            r#"{"properties": {"minProperties": {"type": "integer"}}}"#
        ));
        assert!(!is_refused(r#"{"const": {"minProperties": 5}}"#));
    }

    #[test]
    fn a_schema_that_is_not_json_names_the_place() {
        let error = schema("{\n  \"type\": \"object\",\n}")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "line 3, column 1 of the JSON schema: trailing comma");
        let deep = schema(&"[".repeat(100_000)).unwrap_err().to_string();
        assert!(deep.contains("recursion limit"), "{deep}");
    }
}
