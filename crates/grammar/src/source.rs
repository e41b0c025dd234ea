//! Sources of grammars, and the checks before their compilation.

use serde_json::{Value, json};

use crate::annotations::without_annotations;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::numbers;
use crate::objects::{self, TooManyNames};
use crate::patterns;
use crate::references::without_escapes;
use crate::spellings::plain;

/// Maximum sizes of sources in bytes. The longest known schemas, which may also be parts of grammars, are a few hundred
/// kilobytes.
const LONGEST: usize = 1 << 20;
const LONGEST_REGEX: usize = 1 << 16;
/// Limits of the properties and options of a JSON schema, and of the rules and options of a grammar: the compile time
/// grows with the square of the number of siblings. The largest known schemas have some thousand.
const MAX_PARTS: usize = 8192;
const MAX_SIBLINGS: usize = 1024;
const MAX_RULES: usize = 8192;
/// The directive before a schema in a grammar.
const JSON_IN_LARK: &str = "%json";
/// Maximum depth of brackets in grammars and regular expressions. JSON has its own limit, 128.
const DEEPEST: usize = 200;

/// Whitespace between the parts of JSON: a space, or a new line with its indentation of spaces or tabs. Without the
/// limit, models sometimes generate spaces endlessly. Spaces and tabs can't be mixed, because an alternating sequence
/// would take one token per character.
const SPACE: &str = r" |\n( {0,64}|\t{0,16})";

/// The source of a grammar, which constrains the output.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GrammarSource {
    /// A JSON schema, of one of the drafts that `$schema` may name. Properties are generated in the schema's order.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// A regular expression that matches the whole output, in the syntax of the crate `regex`. As in patterns of JSON
    /// schemas, `\d` and `\w` stand for ASCII characters.
    Regex(String),
    /// A grammar in llguidance's variant of Lark. The output is derived from its rule `start`.
    Lark(String),
}

impl GrammarSource {
    /// Returns the kind of source.
    pub fn kind(&self) -> Kind {
        match self {
            Self::JsonSchema(_) | Self::JsonObject => Kind::JsonSchema,
            Self::Regex(_) => Kind::Regex,
            Self::Lark(_) => Kind::Lark,
        }
    }

    /// Returns the source text.
    pub fn text(&self) -> &str {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text,
            Self::JsonObject => "",
        }
    }

    /// Serializes the source for [`Self::from_json`].
    pub(crate) fn to_json(&self) -> Value {
        let name = match self {
            Self::JsonSchema(_) => "json_schema",
            Self::JsonObject => "json_object",
            Self::Regex(_) => "regex",
            Self::Lark(_) => "lark",
        };
        json!({ name: self.text() })
    }

    /// Deserializes the result of [`Self::to_json`].
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

    /// Refuses sources that exceed a limit.
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

/// Refuses grammars with too many rules and options. Schemas in them are limited as by [`check_parts`].
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
        // Invalid JSON is left to the compiler, whose error has the position.
        let mut schemas = serde_json::Deserializer::from_str(rest).into_iter();
        if let Some(Ok(schema)) = schemas.next() {
            parts += count_parts(&schema)?;
            rest = &rest[schemas.byte_offset()..];
        }
    }
    if rules > MAX_RULES {
        return Err(Error::TooMany {
            kind,
            what: "lines and options",
            count: rules,
            most: MAX_RULES,
        });
    }
    check_parts(kind, parts)
}

/// Refuses schemas with too many properties and options.
fn check_parts(kind: Kind, count: usize) -> Result<()> {
    if count > MAX_PARTS {
        return Err(Error::TooMany {
            kind,
            what: "properties and options",
            count,
            most: MAX_PARTS,
        });
    }
    Ok(())
}

/// Counts the properties, options and definitions of a schema.
///
/// # Errors
/// If too many of them are siblings.
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
                    if siblings > MAX_SIBLINGS {
                        let what = "properties or options next to each other";
                        return Err(Error::TooMany {
                            kind,
                            what,
                            count: siblings,
                            most: MAX_SIBLINGS,
                        });
                    }
                    if keyword != "required" {
                        count += siblings;
                    }
                }
                left.extend(objects::parts(keywords).map(|(_, part)| part));
            }
            _ => {}
        }
    }
    Ok(count)
}

/// Refuses brackets that are nested too deeply. Brackets in strings and character classes count as well, because no
/// known grammar has that many unbalanced ones.
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

/// Returns a grammar whose [schemas](JSON_IN_LARK) have exact patterns and ranges.
///
/// # Errors
/// As [`numbers::adapt`] and [`patterns::adapt`].
pub(crate) fn exact_lark(text: &str) -> Result<String> {
    let (mut exact, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find(JSON_IN_LARK) {
        let (before, after) = rest.split_at(start + JSON_IN_LARK.len());
        exact += before;
        let mut schemas = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        rest = match schemas.next() {
            Some(Ok(schema)) => {
                let mut schema = plain(schema);
                numbers::adapt(&mut schema)?;
                patterns::adapt(&mut schema)?;
                exact += &format!(" {schema}");
                &after[schemas.byte_offset()..]
            }
            // Invalid JSON is left to the compiler, whose error has the position.
            _ => after,
        };
    }
    Ok(exact + rest)
}

/// Parses the schema in `text` and adapts it for llguidance.
pub(crate) fn schema(text: &str) -> Result<Value> {
    let schema = serde_json::from_str(text).map_err(|error| {
        let problem = error.to_string();
        // The message ends with the position, which the error has separately.
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
    let schema = without_escapes(plain(schema));
    check_parts(Kind::JsonSchema, count_parts(&schema)?)?;
    let mut schema = objects::closed(&without_annotations(schema)).map_err(|_| too_many_names())?;
    check_keywords(&schema)?;
    numbers::adapt(&mut schema)?;
    adapt(&mut schema)?;
    Ok(schema)
}

fn too_many_names() -> Error {
    Error::Unsupported {
        kind: Kind::JsonSchema,
        problem: TooManyNames::TEXT.into(),
    }
}

/// Refuses objects that need more properties than they name: the output may repeat a free name, which llguidance counts
/// twice, but a JSON parser sees one property. Refuses empty lists of types, too.
fn check_keywords(schema: &Value) -> Result<()> {
    match schema {
        Value::Array(items) => items.iter().try_for_each(check_keywords),
        Value::Object(keywords) => {
            let types = keywords.get("type").and_then(Value::as_array);
            if types.is_some_and(Vec::is_empty) {
                return Err(Error::Unsupported {
                    kind: Kind::JsonSchema,
                    problem: "type is an empty list, expected at least one type".into(),
                });
            }
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
                        "minProperties {least} with free names, which the output may repeat: list as many names in \
                         `required`, or set `additionalProperties` to false"
                    ),
                }),
                _ => objects::parts(keywords).try_for_each(|(_, part)| check_keywords(part)),
            }
        }
        _ => Ok(()),
    }
}

/// Adapts a schema that is a part of a Lark grammar, so that it has the same meaning as in
/// [`GrammarSource::JsonSchema`]: whitespace, closed objects, and only [times](NARROWER) that exist.
#[must_use]
pub fn for_llguidance(schema: Value) -> Value {
    let schema = without_annotations(without_escapes(plain(schema)));
    // The compiler refuses this type, and its error contains the text.
    let mut schema =
        objects::closed(&schema).unwrap_or_else(|_| json!({ "type": TooManyNames::TEXT }));
    let adapted = numbers::adapt(&mut schema).and_then(|()| adapt(&mut schema));
    if let Err(error) = adapted {
        schema = json!({ "type": error.to_string() });
    }
    schema
}

/// Adds patterns of formats and the pattern of whitespace, and makes all patterns exact.
///
/// # Errors
/// As [`patterns::adapt`].
fn adapt(schema: &mut Value) -> Result<()> {
    narrow_formats(schema);
    patterns::adapt(schema)?;
    if let Some(keywords) = schema.as_object_mut() {
        keywords
            .entry("x-guidance")
            .or_insert_with(|| json!({ "whitespace_pattern": SPACE }));
    }
    Ok(())
}

/// A pattern of dates that exist: February 29 only in leap years. It narrows llguidance's format.
macro_rules! existing_date {
    () => {
        "([0-9]{4}-(0[13-9]|1[0-2])-[0-9]{2}|[0-9]{4}-02-([01][0-9]|2[0-8])\
         |([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
    };
}

/// Patterns for formats that llguidance implements more widely than RFC 3339, §5.7: it allows February 29 in any year,
/// and second 60 in any minute. The patterns exclude real leap seconds as well.
const NARROWER: [(&str, &str); 3] = [
    ("date", concat!("^", existing_date!(), "$")),
    ("time", "^[0-9]+:[0-9]+:[0-5]"),
    (
        "date-time",
        concat!("^", existing_date!(), "[tT][0-9]+:[0-9]+:[0-5]"),
    ),
];

/// Adds the [patterns](NARROWER) to formats in all schemas within `schema`, but not in literal values.
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
            objects::parts_mut(keywords).for_each(|(_, part)| narrow_formats(part));
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
    fn an_empty_list_of_types_is_refused_by_name() {
        for text in [
            r#"{"type": []}"#,
            r#"{"properties": {"a": {"type": []}}}"#,
            r#"{"anyOf": [{"items": {"type": []}}]}"#,
        ] {
            let error = schema(text).unwrap_err().to_string();
            assert!(error.contains("type is an empty list"), "{text}: {error}");
        }
        schema(r#"{"enum": [{"type": []}], "default": {"type": []}}"#).unwrap();
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
