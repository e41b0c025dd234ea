//! Values as Python has them: their kinds, numbers, equality, order and elements.

use std::cmp::Ordering;

use minijinja::value::{DynObject, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::objects::{Cycler, Group, Method, Once, Range, View};

/// The kinds of values that Python tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Undefined,
    None,
    Bool,
    Int,
    Float,
    Str,
    List,
    Tuple,
    Dict,
    View,
    Range,
    /// A generator, or another iterator that can be read once.
    Iterator,
    Namespace,
    Loop,
    /// A method that is not called.
    Method,
    /// A macro or a function, a `cycler` or a `joiner`.
    Callable,
    Other,
}

impl Kind {
    /// Returns the name for errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Undefined => "an undefined value",
            Self::None => "none",
            Self::Bool => "a boolean",
            Self::Int => "an integer",
            Self::Float => "a float",
            Self::Str => "a text",
            Self::List => "a list",
            Self::Tuple => "a tuple",
            Self::Dict => "a mapping",
            Self::View => "a view of a mapping",
            Self::Range => "a range",
            Self::Iterator => "an iterator",
            Self::Namespace => "a namespace",
            Self::Loop => "a loop",
            Self::Method => "a method",
            Self::Callable => "a function",
            Self::Other => "a value of the engine",
        }
    }
}

/// Returns an error with a message.
pub(super) fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Returns the error of an operation that `value` does not have.
pub(super) fn unsupported(operation: &str, value: &Value) -> Error {
    refused(format!("{operation} of {}", kind(value).name()))
}

pub(super) fn kind(value: &Value) -> Kind {
    match value.kind() {
        ValueKind::String => return Kind::Str,
        ValueKind::Undefined => return Kind::Undefined,
        ValueKind::None => return Kind::None,
        ValueKind::Bool => return Kind::Bool,
        ValueKind::Number if value.is_integer() => return Kind::Int,
        ValueKind::Number => return Kind::Float,
        ValueKind::Bytes | ValueKind::Invalid => return Kind::Other,
        _ => {}
    }
    let Some(object) = value.as_object() else {
        return Kind::Other;
    };
    if object.downcast_ref::<Vec<Value>>().is_some() {
        Kind::List
    } else if value.is_tuple() || object.downcast_ref::<Group>().is_some() {
        Kind::Tuple
    } else if object.downcast_ref::<View>().is_some() {
        Kind::View
    } else if object.downcast_ref::<Range>().is_some() {
        Kind::Range
    } else if object.downcast_ref::<Once>().is_some() {
        Kind::Iterator
    } else if object.downcast_ref::<Method>().is_some() {
        Kind::Method
    } else if value.is_kwargs() {
        Kind::Other
    } else {
        match (value.kind(), object.type_name()) {
            (_, name) if name.ends_with("::Namespace") => Kind::Namespace,
            (_, name) if name.ends_with("::Loop") => Kind::Loop,
            (_, name) if name.ends_with("::Macro") => Kind::Callable,
            (ValueKind::Plain, _) => Kind::Callable,
            (ValueKind::Map, _) => Kind::Dict,
            (ValueKind::Seq, _) => Kind::List,
            _ => Kind::Other,
        }
    }
}

/// A number, with booleans as 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

pub(super) fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(value.is_true().into())),
        ValueKind::Number if value.is_integer() => {
            i128::try_from(value.clone()).ok().map(Number::Int)
        }
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

/// Returns an integer as a value.
pub(super) fn from_integer(integer: i128) -> Value {
    match i64::try_from(integer) {
        Ok(small) => small.into(),
        Err(_) => integer.into(),
    }
}

/// Returns an integer or a boolean as a number; `name` is for the error.
pub(super) fn integer(value: &Value, name: &str) -> Result<i64, Error> {
    match number(value) {
        Some(Number::Int(integer)) => Ok(integer.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
        _ => Err(refused(format!(
            "{name}: expected an integer, found {}",
            kind(value).name()
        ))),
    }
}

/// Returns a text; `name` is for the error.
pub(super) fn string<'v>(value: &'v Value, name: &str) -> Result<&'v str, Error> {
    value.as_str().ok_or_else(|| {
        refused(format!(
            "{name}: expected a text, found {}",
            kind(value).name()
        ))
    })
}

/// Returns `list(value)`.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(letters(text));
    }
    match kind(value) {
        Kind::Undefined => Ok(Vec::new()),
        Kind::List | Kind::Tuple | Kind::Dict | Kind::View | Kind::Range => {
            Ok(value.try_iter()?.collect())
        }
        Kind::Iterator => match value.downcast_object_ref::<Once>() {
            Some(once) => once.take(),
            None => Ok(Vec::new()),
        },
        _ => Err(unsupported("the elements", value)),
    }
}

pub(super) fn letters(text: &str) -> Vec<Value> {
    let mut buffer = [0; 4];
    let letters = text.chars();
    letters
        .map(|letter| Value::from(&*letter.encode_utf8(&mut buffer)))
        .collect()
}

/// Returns `len(value)`.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    match kind(value) {
        Kind::Str => Ok(value.as_str().map_or(0, |text| text.chars().count())),
        Kind::Undefined => Ok(0),
        Kind::List | Kind::Tuple | Kind::Dict | Kind::View | Kind::Range => {
            Ok(value.len().unwrap_or(0))
        }
        _ => Err(unsupported("the length", value)),
    }
}

/// Returns `a == b`.
pub(super) fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(a == b);
    }
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return Ok(compare_numbers(a, b) == Some(Ordering::Equal));
    }
    match (kind(a), kind(b)) {
        (Kind::Undefined, Kind::Undefined) | (Kind::None, Kind::None) => Ok(true),
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) | (Kind::Range, Kind::Range) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.try_iter()?.zip(b.try_iter()?) {
                if !equal(&a, &b)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Kind::Dict, Kind::Dict) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (key, item) in pairs(a) {
                match entry(b, &key)? {
                    Some(other) if equal(&item, &other)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (a_kind, b_kind) if a_kind == b_kind => Err(unsupported("the comparison", a)),
        (Kind::Other, _) | (_, Kind::Other) => Err(unsupported("the comparison", a)),
        _ => Ok(false),
    }
}

/// Returns the order of two values; `None` if neither is less, as for NaN.
pub(super) fn compare(a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return Ok(compare_numbers(a, b));
    }
    match (kind(a), kind(b)) {
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            for (a, b) in a.try_iter()?.zip(b.try_iter()?) {
                if !equal(&a, &b)? {
                    return compare(&a, &b);
                }
            }
            Ok(a.len().partial_cmp(&b.len()))
        }
        (a, b) => Err(refused(format!(
            "{} and {} have no order",
            a.name(),
            b.name()
        ))),
    }
}

fn compare_numbers(a: Number, b: Number) -> Option<Ordering> {
    /// Integers up to this one are exact as floats.
    const EXACT: i128 = 1 << 53;
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
        (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
        (Number::Float(_), Number::Int(_)) => compare_numbers(b, a).map(Ordering::reverse),
        (Number::Int(a), Number::Float(b)) if a.abs() <= EXACT || !b.is_finite() => {
            (a as f64).partial_cmp(&b)
        }
        // A float beyond the exact integers is either one itself, or smaller than all of these.
        (Number::Int(a), Number::Float(b)) => Some(a.cmp(&(b as i128))),
    }
}

/// Returns the entries of a mapping.
pub(super) fn pairs(value: &Value) -> impl Iterator<Item = (Value, Value)> {
    let object = value.as_object().filter(|_| kind(value) == Kind::Dict);
    object
        .and_then(DynObject::try_iter_pairs)
        .into_iter()
        .flatten()
}

/// Refuses keys that Python cannot hash.
pub(super) fn check_key(key: &Value) -> Result<(), Error> {
    match kind(key) {
        Kind::Tuple => key.try_iter()?.try_for_each(|item| check_key(&item)),
        Kind::List | Kind::Dict | Kind::View | Kind::Other => Err(unsupported("the hash", key)),
        _ => Ok(()),
    }
}

/// Returns the entry of a mapping.
///
/// # Errors
/// For keys that Python cannot hash.
pub(super) fn entry(dict: &Value, key: &Value) -> Result<Option<Value>, Error> {
    if let Some(name) = key.as_str() {
        return Ok(named_entry(dict, name));
    }
    check_key(key)?;
    if let Some(found) = dict.as_object().and_then(|dict| dict.get_value(key)) {
        return Ok(Some(found));
    }
    for (other, item) in pairs(dict) {
        if other.as_str().is_none() && equal(&other, key)? {
            return Ok(Some(item));
        }
    }
    Ok(None)
}

pub(super) fn named_entry(dict: &Value, name: &str) -> Option<Value> {
    dict.as_object()?.get_value_by_str(name)
}

/// Returns `item in container`.
pub(super) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match kind(container) {
        Kind::Str => {
            let text = container.as_str().unwrap_or_default();
            Ok(text.contains(string(item, "in")?))
        }
        Kind::Dict => Ok(entry(container, item)?.is_some()),
        Kind::View => {
            // Keys are looked up, and so are the keys of pairs.
            let view = container.downcast_object_ref::<View>();
            match view.map(|view| view.name) {
                Some("dict_keys") => check_key(item)?,
                Some("dict_items") if kind(item) == Kind::Tuple && item.len() == Some(2) => {
                    for key in item.try_iter()?.take(1) {
                        check_key(&key)?;
                    }
                }
                _ => {}
            }
            any_equal(container, item)
        }
        _ => any_equal(container, item),
    }
}

/// Returns whether one of the elements equals `item`.
fn any_equal(container: &Value, item: &Value) -> Result<bool, Error> {
    for other in items(container)? {
        if equal(&other, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a value can be called.
pub(super) fn is_callable(value: &Value) -> bool {
    match kind(value) {
        // An undefined value has the method, which fails.
        Kind::Method | Kind::Undefined => true,
        Kind::Callable => value.downcast_object_ref::<Cycler>().is_none(),
        _ => false,
    }
}
