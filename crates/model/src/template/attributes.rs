//! Attributes and elements of values, as Python's sandbox has them.

use minijinja::{Error, ErrorKind, Value};

use super::objects::{Cycler, Group, Method, Range};
use super::values::{
    Kind, Number, check_key, entry, kind, length, named_entry, number, refused, unsupported,
};

const TEXT_METHODS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const CHANGES_OF_LISTS: [&str; 8] = [
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];
const CHANGES_OF_DICTS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const DICT_METHODS: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const LOOP_ATTRIBUTES: [&str; 11] = [
    "depth",
    "depth0",
    "first",
    "index",
    "index0",
    "last",
    "length",
    "nextitem",
    "previtem",
    "revindex",
    "revindex0",
];

/// Returns `getattr(value, name)` in the sandbox: a method that would change a value is undefined there. `None` if Python
/// has no such attribute.
///
/// # Errors
/// For attributes that are not supported.
pub(super) fn own_attribute(value: &Value, name: &str) -> Result<Option<Value>, Error> {
    let one_of = |names: &[&str]| names.contains(&name);
    let of_kind = kind(value);
    if name.starts_with("__") || name.starts_with('_') && of_kind != Kind::Dict {
        return Err(refused(format!("the attribute {name} is not supported")));
    }
    let unknown = || {
        let owner = of_kind.name();
        Err(refused(format!(
            "the attribute {name} of {owner} is not supported"
        )))
    };
    let is_method = match of_kind {
        Kind::Undefined => {
            return Err(Error::new(
                ErrorKind::UndefinedError,
                format!("the attribute {name} of an undefined value"),
            ));
        }
        Kind::None => false,
        Kind::Str => one_of(&TEXT_METHODS),
        Kind::List if one_of(&CHANGES_OF_LISTS) => return Ok(Some(Value::UNDEFINED)),
        Kind::List => one_of(&["copy", "count", "index"]),
        Kind::Dict if one_of(&CHANGES_OF_DICTS) => return Ok(Some(Value::UNDEFINED)),
        Kind::Dict => one_of(&DICT_METHODS),
        Kind::Tuple => {
            if let Some(Group([key, list])) = value.downcast_object_ref::<Group>() {
                match name {
                    "grouper" => return Ok(Some(key.clone())),
                    "list" => return Ok(Some(list.clone())),
                    _ => {}
                }
            }
            one_of(&["count", "index"])
        }
        Kind::Range => {
            if let Some(range) = value.downcast_object_ref::<Range>() {
                match name {
                    "start" => return Ok(Some(range.start.into())),
                    "stop" => return Ok(Some(range.stop.into())),
                    "step" => return Ok(Some(range.step.into())),
                    _ => {}
                }
            }
            one_of(&["count", "index"])
        }
        Kind::Bool | Kind::Int | Kind::Float
            if one_of(&["denominator", "imag", "numerator", "real"]) =>
        {
            return unknown();
        }
        Kind::Bool | Kind::Int => one_of(&[
            "as_integer_ratio",
            "bit_count",
            "bit_length",
            "conjugate",
            "from_bytes",
            "to_bytes",
        ]),
        Kind::Float => one_of(&[
            "as_integer_ratio",
            "conjugate",
            "fromhex",
            "hex",
            "is_integer",
        ]),
        Kind::View if one_of(&["isdisjoint", "mapping"]) => return unknown(),
        Kind::Iterator if one_of(&["close", "send", "throw"]) || name.starts_with("gi_") => {
            return unknown();
        }
        Kind::View | Kind::Iterator => false,
        Kind::Namespace => return Ok(named_entry(value, name)),
        Kind::Loop if one_of(&LOOP_ATTRIBUTES) => return Ok(named_entry(value, name)),
        Kind::Loop => one_of(&["changed", "cycle"]),
        Kind::Callable => match value.downcast_object_ref::<Cycler>() {
            Some(cycler) if name == "current" => return Ok(Some(cycler.current())),
            _ => return unknown(),
        },
        // All attributes of Python's methods begin with an underscore.
        Kind::Method => false,
        Kind::Other => return unknown(),
    };
    Ok(is_method.then(|| Value::from_object(Method)))
}

/// Returns `value.name`: the attribute, else the entry, else an undefined value.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if let Some(found) = own_attribute(value, name)? {
        return Ok(found);
    }
    Ok(match kind(value) {
        Kind::Dict => named_entry(value, name).unwrap_or_default(),
        _ => Value::UNDEFINED,
    })
}

/// Returns `value[key]`: the entry or element, else the attribute, else an undefined value.
pub(super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    let of_kind = kind(value);
    if of_kind == Kind::Undefined {
        return Err(Error::new(
            ErrorKind::UndefinedError,
            "an element of an undefined value",
        ));
    }
    if value.is_safe() {
        return Err(refused("an element of a text that is marked as safe"));
    }
    if of_kind == Kind::Dict
        && check_key(key).is_ok()
        && let Some(found) = entry(value, key)?
    {
        return Ok(found);
    }
    if let Some(name) = key.as_str() {
        return Ok(own_attribute(value, name)?.unwrap_or_default());
    }
    let (true, Some(Number::Int(place))) = (
        matches!(of_kind, Kind::Str | Kind::List | Kind::Tuple | Kind::Range),
        number(key),
    ) else {
        return match of_kind {
            Kind::Callable | Kind::Loop | Kind::Other => Err(unsupported("an element", value)),
            _ => Ok(Value::UNDEFINED),
        };
    };
    let place = match place {
        0.. => place,
        _ => place + length(value)? as i128,
    };
    let Ok(place) = usize::try_from(place) else {
        return Ok(Value::UNDEFINED);
    };
    Ok(match value.as_str() {
        Some(text) => text
            .chars()
            .nth(place)
            .map(|letter| letter.to_string().into()),
        None => value
            .as_object()
            .and_then(|list| list.get_value(&place.into())),
    }
    .unwrap_or_default())
}
