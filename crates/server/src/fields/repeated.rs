//! The check that no object of a request body has a name twice.
//!
//! Parsers differ in which of the two values they keep: a proxy or the client's own check may read the other one.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::check::{Path, refusal};
use crate::error::{ApiError, ApiResult};

/// Refuses a body with an object that has a name twice, at any depth.
///
/// # Errors
/// If there is such an object. If the body is no JSON, or has a value that can't be read, such as half of a surrogate pair:
/// what follows it would not be checked. The error names the field.
pub(crate) fn refuse_repeated(body: &[u8]) -> ApiResult<()> {
    let error = RefCell::new(None);
    let seed = Named {
        path: &Path::Root,
        error: &error,
    };
    let read = seed.deserialize(&mut serde_json::Deserializer::from_slice(body));
    refusal(error, read)
}

/// A name, which is copied only if it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The check of a value.
#[derive(Clone, Copy)]
struct Named<'a> {
    path: &'a Path<'a>,
    error: &'a RefCell<Option<ApiError>>,
}

impl<'de> DeserializeSeed<'de> for Named<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self).inspect_err(|cause| {
            // The innermost value comes first.
            let error = || ApiError::no_json(&self.path.to_string(), cause);
            self.error.borrow_mut().get_or_insert_with(error);
        })
    }
}

impl<'de> Visitor<'de> for Named<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = Vec::new();
        while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
            let path = &Path::Field(self.path, &name);
            map.next_value_seed(Named { path, ..self })?;
            names.push(name);
        }
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let field = Path::Field(self.path, &pair[0]).to_string();
            let error = ApiError::field(&field, "it is given twice, expected it once");
            *self.error.borrow_mut() = Some(error);
            return Err(serde::de::Error::custom("refused"));
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for index in 0.. {
            let path = &Path::Item(self.path, index);
            if items.next_element_seed(Named { path, ..self })?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_can_not_be_read_is_named() {
        for (body, field) in [
            (r#"{"a": [1, {"b": "\ud800"}]}"#, Some("a[1].b")),
            (r#"{"a": "\udc00x"}"#, Some("a")),
            (r#"{"a": 1e999}"#, Some("a")),
            (r#"{"a": [1, }"#, Some("a[1]")),
            (r#"{"a": tru}"#, Some("a")),
            (r#"{"a": 1,}"#, None),
            ("{", None),
        ] {
            let error = refuse_repeated(body.as_bytes()).unwrap_err();
            assert_eq!(error.detail.param.as_deref(), field, "{body}");
            assert_eq!(error.detail.code, Some("invalid_json"), "{body}");
            let message = error.detail.message;
            assert!(message.contains(field.unwrap_or("the body")), "{message}");
        }
    }

    #[test]
    fn a_name_that_an_object_has_twice_is_refused_at_any_depth() {
        let refused = |body: &str| {
            let error = refuse_repeated(body.as_bytes()).err()?;
            error.detail.param
        };
        for (body, field) in [
            (r#"{"a": 1, "b": 2, "a": 1}"#, "a"),
            (r#"{"logit_bias": {"72": -100, "72": 0}}"#, "logit_bias.72"),
            (
                r#"{"a": [0, {"b": {"c": 1, "d": [], "c": null}}]}"#,
                "a[1].b.c",
            ),
            (r#"{"a": {"x\u0041": 1, "xA": 2}}"#, "a.xA"),
            (r#"[{"a": 1, "a": 1}]"#, "[0].a"),
        ] {
            assert_eq!(refused(body).as_deref(), Some(field), "{body}");
        }
        for body in [
            r#"{"a": {"a": {"a": [{"a": 1}, {"a": 1}]}}, "A": 0}"#,
            // Other checks refuse these.
            r#"{"a": 1, "a""#,
            "",
            "1",
        ] {
            assert_eq!(refused(body), None, "{body}");
        }
    }
}
