//! The tests of Jinja: `value is name`.

use minijinja::{Error, Value};

use super::budget::Budget;
use super::letters;
use super::names::{
    EQUAL, GREATER, GREATER_OR_EQUAL, IN, LESS, LESS_OR_EQUAL, NOT_EQUAL, REMAINDER, is_filter,
};
use super::operators;
use super::values::{Kind, equal, is_callable, kind, refused, string, unsupported};

const PLAIN: [&str; 21] = [
    "boolean",
    "callable",
    "defined",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "integer",
    "iterable",
    "lower",
    "mapping",
    "none",
    "number",
    "odd",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Returns the operator of a test that compares.
fn operator(name: &str) -> Option<&'static str> {
    Some(match name {
        "eq" | "equalto" | "==" => EQUAL,
        "ne" | "!=" => NOT_EQUAL,
        "lt" | "lessthan" | "<" => LESS,
        "le" | "<=" => LESS_OR_EQUAL,
        "gt" | "greaterthan" | ">" => GREATER,
        "ge" | ">=" => GREATER_OR_EQUAL,
        "in" => IN,
        _ => return None,
    })
}

/// Returns whether Jinja has a test.
pub(super) fn exists(name: &str) -> bool {
    PLAIN.contains(&name) || operator(name).is_some() || matches!(name, "divisibleby" | "sameas")
}

/// Returns whether `value is name(given)`.
pub(super) fn holds(
    name: &str,
    value: &Value,
    given: &[Value],
    budget: &Budget,
) -> Result<bool, Error> {
    let of_kind = kind(value);
    if let Some(operator) = operator(name) {
        return match given {
            [other] if !other.is_kwargs() => {
                operators::binary(operator, value, other, budget).map(|result| result.is_true())
            }
            _ => Err(refused(format!(
                "the test {name}: expected one value to compare with"
            ))),
        };
    }
    let is_rest = |divisor: &Value, rest: i64| {
        let found = operators::binary(REMAINDER, value, divisor, budget)?;
        equal(&found, &rest.into())
    };
    match (name, given) {
        ("divisibleby", [divisor]) => is_rest(divisor, 0),
        ("sameas", [other]) => match (of_kind, kind(other)) {
            (Kind::None | Kind::Bool, _) | (_, Kind::None | Kind::Bool) => {
                Ok(of_kind == kind(other) && value.is_true() == other.is_true())
            }
            (a, b) if a != b => Ok(false),
            _ => Err(unsupported("the test sameas", value)),
        },
        _ if !given.is_empty() || !PLAIN.contains(&name) => match exists(name) {
            true => Err(refused(format!(
                "the test {name} is not supported with these arguments"
            ))),
            false => Err(refused(format!("test {name} is unknown"))),
        },
        ("defined", _) => Ok(of_kind != Kind::Undefined),
        ("undefined", _) => Ok(of_kind == Kind::Undefined),
        ("none", _) => Ok(of_kind == Kind::None),
        ("boolean", _) => Ok(of_kind == Kind::Bool),
        ("true", _) => Ok(of_kind == Kind::Bool && value.is_true()),
        ("false", _) => Ok(of_kind == Kind::Bool && !value.is_true()),
        ("integer", _) => Ok(of_kind == Kind::Int),
        ("float", _) => Ok(of_kind == Kind::Float),
        ("number", _) => Ok(matches!(of_kind, Kind::Bool | Kind::Int | Kind::Float)),
        ("string", _) => Ok(of_kind == Kind::Str),
        ("mapping", _) => Ok(of_kind == Kind::Dict),
        ("callable", _) => Ok(is_callable(value)),
        ("escaped", _) => Ok(value.is_safe()),
        ("odd", _) => is_rest(&2.into(), 1),
        ("even", _) => is_rest(&2.into(), 0),
        ("lower" | "upper", _) => {
            let property = if name == "lower" {
                "islower"
            } else {
                "isupper"
            };
            letters::has_property(property, &budget.text(value)?)
        }
        ("filter", _) => Ok(is_filter(string(value, name)?)),
        ("test", _) => Ok(exists(string(value, name)?)),
        ("iterable" | "sequence", _) => match of_kind {
            Kind::Undefined | Kind::Str | Kind::List | Kind::Tuple | Kind::Dict | Kind::Range => {
                Ok(true)
            }
            Kind::View | Kind::Iterator => Ok(name == "iterable"),
            Kind::Loop | Kind::Other => Err(unsupported(&format!("the test {name}"), value)),
            _ => Ok(false),
        },
        _ => Err(refused(format!("test {name} is unknown"))),
    }
}
