//! Errors of values that `serde` can't read, with the field's name and in JSON's words.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

use crate::error::{ApiError, ApiResult};

/// Reads the value in `field`, or a whole body if it is empty.
///
/// # Errors
/// If the value has another form than a `T`. The error names the field within the value.
pub(crate) fn read<'de, T, D>(field: &str, deserializer: D) -> ApiResult<T>
where
    T: Deserialize<'de>,
    D: Deserializer<'de, Error = serde_json::Error>,
{
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path().to_string();
        let path = match path.as_str() {
            "." => "",
            path => path,
        };
        field_error(&joined(field, path), error.inner())
    })
}

/// Returns the name of the field `name` in `field`.
fn joined(field: &str, name: &str) -> String {
    match (field, name) {
        (field, "") => field.to_owned(),
        ("", name) => name.to_owned(),
        (field, name) if name.starts_with('[') => format!("{field}{name}"),
        (field, name) => format!("{field}.{name}"),
    }
}

/// Returns the error of a value in `field`.
fn field_error(field: &str, cause: &serde_json::Error) -> ApiError {
    let text = cause.to_string();
    let place = format!(" at line {} column {}", cause.line(), cause.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    if let Some(name) = quoted(text, "missing field ") {
        return ApiError::field(&joined(field, name), "it is missing");
    }
    let message = in_words(text);
    if field.is_empty() {
        return ApiError::invalid(format!("the body {message}")).with_code("invalid_json");
    }
    ApiError::field(field, message)
}

/// Returns the text between `before` and the end that is in backticks.
fn quoted<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    text.strip_prefix(before)?
        .strip_prefix('`')?
        .strip_suffix('`')
}

/// Returns an error of `serde` in JSON's words.
fn in_words(text: &str) -> String {
    // The value may have any text, what is expected may not.
    let (found, expected) = match text.rsplit_once(", expected ") {
        Some((found, expected)) => (found, kind(expected)),
        None => (text, ""),
    };
    if let Some(value) = found.strip_prefix("invalid type: ") {
        return format!("is {}, expected {expected}", described(value));
    }
    if let Some(value) = found.strip_prefix("invalid value: ") {
        return format!("is {}, expected {expected}", shown(value));
    }
    if found.starts_with("invalid length ") {
        return format!("is an array, expected {expected}");
    }
    if let Some(name) = found.strip_prefix("unknown variant ") {
        return format!("is {name}, expected {expected}");
    }
    match text {
        // A name of the API is expected, and there is no text.
        "expected value" | "key must be a string" | "expected ident" => {
            "expected a string".to_owned()
        }
        text => text.to_owned(),
    }
}

/// Returns the kind of value that a type of `serde` is read from.
fn kind(expected: &str) -> &str {
    match expected {
        "i8" | "i16" | "i32" | "i64" | "u8" | "u16" | "u32" | "u64" | "usize" | "isize" => {
            "a whole number"
        }
        "f32" | "f64" | "a JSON number" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "an array",
        "a map" => "an object",
        "string or map"
        | "map with a single key"
        | "unit variant"
        | "variant identifier"
        | "a borrowed string"
        | "str" => "a string",
        other if other.starts_with("enum ") => "a string",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

/// Returns the kind of a value of another kind than expected, or the value if it is short.
fn described(value: &str) -> Cow<'_, str> {
    match value {
        "sequence" => "an array".into(),
        "unit value" => "null".into(),
        text if text.starts_with("string ") => "a string".into(),
        other => shown(other),
    }
}

/// Returns a number or a truth value without its name.
fn shown(value: &str) -> Cow<'_, str> {
    if value == "map" {
        return "an object".into();
    }
    let names = ["integer ", "floating point ", "boolean "];
    let of = names.iter().find_map(|name| quoted(value, name));
    of.unwrap_or(value).into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::messages::{ChatMessage, Content};
    use crate::sampling::Sampling;

    fn message<'de, T: Deserialize<'de>>(field: &str, value: &'de Value) -> String {
        let error = read::<T, _>(field, value).err();
        error.map_or_else(String::new, |error| error.detail.message)
    }

    #[test]
    fn errors_name_the_field_and_what_json_has_for_it() {
        for (body, expected) in [
            (
                json!({"top_k": 1.5}),
                "top_k: is 1.5, expected a whole number",
            ),
            (
                json!({"n": -1}),
                "n: is -1, expected a whole number of at least 0",
            ),
            (
                json!({"seed": ", expected i64"}),
                "seed: is a string, expected a whole number",
            ),
            (json!({"top_p": true}), "top_p: is true, expected a number"),
            (
                json!({"ignore_eos": []}),
                "ignore_eos: is an array, expected true or false",
            ),
            (json!({"lora": {}}), "lora: is an object, expected an array"),
            (json!({"lora": [{}]}), "lora[0].name: it is missing"),
            (
                json!({"lora": [[]]}),
                "lora[0]: is an array, expected an object",
            ),
            (
                json!({"logit_bias": {"a": 1}}),
                "logit_bias.a: \"a\" is no token: expected the id of a token, a whole number without other characters",
            ),
            (
                json!({"logit_bias": {"1": "a"}}),
                "logit_bias.1: is a string, expected a number",
            ),
        ] {
            assert_eq!(message::<Sampling>("", &body), expected, "{body}");
        }
        let part = json!({"role": "user", "content": [{"type": "text", "text": 1}]});
        assert_eq!(
            message::<ChatMessage>("messages[2]", &part),
            "messages[2].content[0].text: is 1, expected a string"
        );
        assert_eq!(
            message::<Content>("input", &json!([{}])),
            "input[0].type: it is missing"
        );
        assert_eq!(
            message::<Map<String, Value>>("a", &json!(null)),
            "a: is null, expected an object"
        );
        let error = message::<ChatMessage>("", &json!({"role": "judge"}));
        assert!(
            error.starts_with("role: is `judge`, expected one of"),
            "{error}"
        );
        for role in [json!(1), json!({}), json!(["user"])] {
            let error = message::<ChatMessage>("", &json!({"role": role}));
            assert!(
                error.starts_with("role: ") && error.contains("a string"),
                "{error}"
            );
        }
    }
}
