//! `metadata`: data of a client, which is stored and returned.

use serde_json::{Map, Value};

use crate::error::{ApiError, ApiResult};

/// Limits, which are those of OpenAI's API: the number of pairs, and the characters of a key and of a value.
const MAX_PAIRS: usize = 16;
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 512;

/// Checks the metadata of a request.
///
/// # Errors
/// If there are too many pairs, a key is too long, or a value is not a short text.
pub(crate) fn check(metadata: Option<&Map<String, Value>>) -> ApiResult<()> {
    let Some(metadata) = metadata else {
        return Ok(());
    };
    if metadata.len() > MAX_PAIRS {
        let message = format!("{} pairs, expected at most {MAX_PAIRS}", metadata.len());
        return Err(ApiError::field("metadata", message));
    }
    for (key, value) in metadata {
        let length = key.chars().count();
        if length > MAX_KEY {
            let message = format!("a key of {length} characters, expected at most {MAX_KEY}");
            return Err(ApiError::field("metadata", message));
        }
        let length = value.as_str().map(|value| value.chars().count());
        if length.is_none_or(|length| length > MAX_VALUE) {
            let message = format!("expected a text of at most {MAX_VALUE} characters");
            return Err(ApiError::field(&format!("metadata.{key}"), message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_has_the_bounds_of_its_api_and_is_refused_by_name() {
        let refused = |metadata: Value| {
            let error = check(metadata.as_object()).err()?;
            error.detail.param
        };
        let pairs = |count: usize| -> Value {
            let pairs = (0..count).map(|index| (index.to_string(), json!("é".repeat(512))));
            Value::Object(pairs.collect())
        };
        assert_eq!((refused(json!({})), refused(pairs(16))), (None, None));
        assert_eq!(refused(json!({"é".repeat(64): ""})), None);
        let whole = Some("metadata".to_owned());
        assert_eq!(refused(pairs(17)), whole);
        assert_eq!(refused(json!({"é".repeat(65): ""})), whole);
        for value in [json!("é".repeat(513)), json!(1), json!(null), json!(["a"])] {
            assert_eq!(refused(json!({"a": value})), Some("metadata.a".to_owned()));
        }
    }
}
