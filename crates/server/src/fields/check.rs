//! The check of a request body against its table of fields.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::{Effect, Field, RequestFields};
use crate::error::{ApiError, ApiResult};

impl RequestFields {
    /// Refuses a body with an unsupported or unknown field.
    ///
    /// # Errors
    /// If there is such a field; the error names the first one. If the body is no JSON, or has a value that can't be read: the
    /// fields that follow it would not be checked.
    pub(crate) fn check(&self, body: &[u8]) -> ApiResult<()> {
        let error = RefCell::new(None);
        let seed = Checked {
            groups: self.groups,
            path: &Path::Root,
            error: &error,
        };
        let read = seed.deserialize(&mut serde_json::Deserializer::from_slice(body));
        refusal(error, read)
    }
}

/// Returns the error of a check that `read` a whole body, or ended with `error` or before.
pub(super) fn refusal(
    error: RefCell<Option<ApiError>>,
    read: serde_json::Result<()>,
) -> ApiResult<()> {
    match (error.into_inner(), read) {
        (Some(error), _) => Err(error),
        (None, read) => read.map_err(|cause| ApiError::no_json("", &cause)),
    }
}

/// The path of a value in the body.
pub(super) enum Path<'a> {
    Root,
    Field(&'a Self, &'a str),
    Item(&'a Self, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// The check of a value whose fields are in `groups`.
#[derive(Clone, Copy)]
struct Checked<'a> {
    groups: &'a [&'static [Field]],
    path: &'a Path<'a>,
    error: &'a RefCell<Option<ApiError>>,
}

impl Checked<'_> {
    /// Refuses a body and an item of an array that is no object. `serde` would take an array for the fields of an object,
    /// in their order.
    fn refuse_other<E: serde::de::Error>(&self, what: &str) -> Result<(), E> {
        let message = format!("is {what}, expected an object");
        let error = match self.path {
            Path::Root => ApiError::invalid(format!("the body {message}")),
            Path::Item(..) => ApiError::field(&self.path.to_string(), message),
            Path::Field(..) => return Ok(()),
        };
        *self.error.borrow_mut() = Some(error);
        Err(E::custom("refused"))
    }

    fn refuse<E: serde::de::Error>(&self, name: &str, code: &'static str, message: &str) -> E {
        let field = Path::Field(self.path, name).to_string();
        *self.error.borrow_mut() = Some(ApiError::field(&field, message).with_code(code));
        E::custom("refused")
    }
}

impl<'de> DeserializeSeed<'de> for Checked<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Checked<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            let field = self
                .groups
                .iter()
                .copied()
                .flatten()
                .find(|field| field.name == name);
            match field.map(|field| field.effect) {
                None => {
                    // A null value is the same as a missing field.
                    if map.next_value::<Option<IgnoredAny>>()?.is_some() {
                        let message =
                            "unknown field: neither this endpoint nor its originals have it";
                        return Err(self.refuse(&name, "unknown_parameter", message));
                    }
                }
                Some(Effect::Ignored) => drop(map.next_value::<IgnoredAny>()?),
                Some(Effect::Followed) => {
                    let inner = field.map_or(&[][..], |field| field.inner);
                    if inner.is_empty() {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let path = Path::Field(self.path, &name);
                        map.next_value_seed(Checked {
                            groups: &[inner],
                            path: &path,
                            error: self.error,
                        })?;
                    }
                }
                Some(Effect::Refused(neutral)) => {
                    let value = map.next_value::<Value>()?;
                    let is = |text: &&str| {
                        serde_json::from_str(text).is_ok_and(|neutral| is_same(&value, &neutral))
                    };
                    if !value.is_null() && !neutral.iter().any(is) {
                        let note = field.map_or("", |field| field.note);
                        return Err(self.refuse(
                            &name,
                            "unsupported_parameter",
                            &format!("it is not supported: {note}"),
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.refuse_other("an array")?;
        for index in 0.. {
            let path = &Path::Item(self.path, index);
            if items.next_element_seed(Checked { path, ..self })?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.refuse_other("true or false")
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.refuse_other("a number")
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.refuse_other("a number")
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.refuse_other("a number")
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<(), E> {
        self.refuse_other("a string")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.refuse_other("null")
    }
}

/// Returns whether two values are equal. Numbers are compared by value: 1 equals 1.0.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}
