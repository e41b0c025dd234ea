//! Python's operators.

use std::cmp::Ordering;

use minijinja::value::Tuple;
use minijinja::{Error, Value};

use super::budget::{Budget, ELEMENT};
use super::format;
use super::names::{
    ADD, CONCATENATE, DIVIDE, EQUAL, FLOOR, GREATER, GREATER_OR_EQUAL, IN, LESS, LESS_OR_EQUAL,
    MULTIPLY, NEGATE, NOT_EQUAL, NOT_IN, POWER, REMAINDER, SUBTRACT,
};
use super::values::{
    Kind, Number, compare, contains, equal, from_integer, integer, items, kind, number, refused,
    unsupported,
};

/// Maximum exponent of a power of integers: each result has at most 127 bits.
const MAX_EXPONENT: u32 = 127;

/// Returns the result of a binary operator.
pub(super) fn binary(name: &str, a: &Value, b: &Value, budget: &Budget) -> Result<Value, Error> {
    let is_ordered = |expected: &[Ordering]| {
        budget.clock.check()?;
        let order = compare(a, b)?;
        Ok(order.is_some_and(|order| expected.contains(&order)).into())
    };
    let checked = |result: Result<bool, Error>, is_not: bool| {
        budget.clock.check()?;
        result.map(|result| Value::from(result != is_not))
    };
    match name {
        EQUAL => checked(equal(a, b), false),
        NOT_EQUAL => checked(equal(a, b), true),
        IN => checked(contains(b, a), false),
        NOT_IN => checked(contains(b, a), true),
        LESS => is_ordered(&[Ordering::Less]),
        LESS_OR_EQUAL => is_ordered(&[Ordering::Less, Ordering::Equal]),
        GREATER => is_ordered(&[Ordering::Greater]),
        GREATER_OR_EQUAL => is_ordered(&[Ordering::Greater, Ordering::Equal]),
        CONCATENATE => {
            let mut text = budget.text(a)?;
            text.push_str(&budget.text(b)?);
            Ok(text.into())
        }
        ADD => add(a, b, budget),
        MULTIPLY => multiply(a, b, budget),
        REMAINDER => match a.as_str() {
            Some(_) if a.is_safe() || b.is_safe() => Err(unsafe_text("%")),
            Some(text) => format::percent(text, b, budget).map(Value::from),
            None => arithmetic(name, a, b),
        },
        _ => arithmetic(name, a, b),
    }
}

fn unsafe_text(operator: &str) -> Error {
    refused(format!(
        "{operator} of a text that is marked as safe is not supported"
    ))
}

fn add(a: &Value, b: &Value, budget: &Budget) -> Result<Value, Error> {
    match (kind(a), kind(b)) {
        (Kind::Str, Kind::Str) => {
            let (first, second) = (
                a.as_str().unwrap_or_default(),
                b.as_str().unwrap_or_default(),
            );
            budget.spend(first.len() + second.len())?;
            let text = [first, second].concat();
            if !a.is_safe() && !b.is_safe() {
                return Ok(text.into());
            }
            // A text that is marked escapes what is added to it.
            let is_plain = |value: &Value, text: &str| {
                value.is_safe() || !text.contains(['&', '<', '>', '"', '\''])
            };
            match is_plain(a, first) && is_plain(b, second) {
                true => Ok(Value::from_safe_string(text)),
                false => Err(unsafe_text("+")),
            }
        }
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            let count = a.len().unwrap_or(0) + b.len().unwrap_or(0);
            budget.spend(ELEMENT.saturating_mul(count))?;
            let mut all = items(a)?;
            all.extend(b.try_iter()?);
            budget.hold(sequence(all, kind(a)))
        }
        _ => arithmetic(ADD, a, b),
    }
}

/// Returns a tuple or a list.
fn sequence(items: Vec<Value>, kind: Kind) -> Value {
    match kind {
        Kind::Tuple => Tuple::new(items).into(),
        _ => items.into(),
    }
}

fn multiply(a: &Value, b: &Value, budget: &Budget) -> Result<Value, Error> {
    let is_repeated = |value: &Value| matches!(kind(value), Kind::Str | Kind::List | Kind::Tuple);
    let (value, count) = match (is_repeated(a), is_repeated(b)) {
        (true, false) => (a, b),
        (false, true) => (b, a),
        (true, true) => return Err(unsupported("the product", a)),
        (false, false) => return arithmetic(MULTIPLY, a, b),
    };
    let count = usize::try_from(integer(count, MULTIPLY)?).unwrap_or(0);
    if value.is_safe() {
        return Err(unsafe_text(MULTIPLY));
    }
    if let Some(text) = value.as_str() {
        budget.spend(text.len().saturating_mul(count))?;
        return Ok(text.repeat(count).into());
    }
    let length = value.len().unwrap_or(0).saturating_mul(count);
    budget.spend(ELEMENT.saturating_mul(length))?;
    let once = items(value)?;
    let repeated = once.iter().cycle().take(length).cloned().collect();
    budget.hold(sequence(repeated, kind(value)))
}

/// Returns the result of an operator on numbers.
fn arithmetic(name: &str, a: &Value, b: &Value) -> Result<Value, Error> {
    let (Some(x), Some(y)) = (number(a), number(b)) else {
        let (a, b) = (kind(a).name(), kind(b).name());
        return Err(refused(format!("`{name}` of {a} and {b}")));
    };
    let by_zero = || Err(refused(format!("`{name}` by zero")));
    if let (Number::Int(x), Number::Int(y)) = (x, y)
        && name != DIVIDE
    {
        let result = match name {
            ADD => x.checked_add(y),
            SUBTRACT => x.checked_sub(y),
            MULTIPLY => x.checked_mul(y),
            FLOOR | REMAINDER if y == 0 => return by_zero(),
            FLOOR => x
                .checked_div(y)
                .map(|quotient| quotient - i128::from(x % y != 0 && (x < 0) != (y < 0))),
            REMAINDER => x.checked_rem(y).map(|rest| {
                if rest != 0 && (rest < 0) != (y < 0) {
                    rest + y
                } else {
                    rest
                }
            }),
            POWER if y < 0 && x == 0 => return by_zero(),
            POWER if y < 0 => return Ok((x as f64).powf(y as f64).into()),
            POWER => u32::try_from(y)
                .ok()
                .filter(|y| *y <= MAX_EXPONENT || (-1..=1).contains(&x))
                .and_then(|y| x.checked_pow(y)),
            _ => None,
        };
        return result.map(from_integer).ok_or_else(|| too_large(name));
    }
    let float = |number: Number| match number {
        Number::Int(number) => number as f64,
        Number::Float(number) => number,
    };
    let (x, y) = (float(x), float(y));
    let result = match name {
        ADD => x + y,
        SUBTRACT => x - y,
        MULTIPLY => x * y,
        DIVIDE | FLOOR | REMAINDER if y == 0.0 => return by_zero(),
        DIVIDE => x / y,
        FLOOR => floor(x, y).0,
        REMAINDER => floor(x, y).1,
        POWER if x == 0.0 && y < 0.0 => return by_zero(),
        POWER if x < 0.0 && y.fract() != 0.0 => {
            return Err(refused("a complex number is not supported"));
        }
        POWER if x.powf(y).is_infinite() && x.is_finite() => {
            return Err(refused("`**`: the result is too large"));
        }
        POWER => x.powf(y),
        _ => return Err(refused(format!("unknown operator {name}"))),
    };
    Ok(result.into())
}

/// Returns the error of an operation whose result has too many bits.
pub(super) fn too_large(name: &str) -> Error {
    refused(format!(
        "`{name}`: an integer of more than 128 bits is not supported"
    ))
}

/// Returns quotient and remainder as CPython computes them for floats.
fn floor(x: f64, y: f64) -> (f64, f64) {
    let mut rest = x % y;
    let mut quotient = (x - rest) / y;
    if rest != 0.0 {
        if (y < 0.0) != (rest < 0.0) {
            rest += y;
            quotient -= 1.0;
        }
    } else {
        rest = 0f64.copysign(y);
    }
    let whole = match quotient == 0.0 {
        true => 0f64.copysign(x / y),
        false => match quotient.floor() {
            lower if quotient - lower > 0.5 => lower + 1.0,
            lower => lower,
        },
    };
    (whole, rest)
}

/// Returns `-value` or `+value`.
pub(super) fn unary(name: &str, value: &Value) -> Result<Value, Error> {
    match number(value) {
        Some(Number::Int(number)) if name == NEGATE => {
            let negative = number.checked_neg();
            negative.map(from_integer).ok_or_else(|| too_large("-"))
        }
        Some(Number::Float(number)) if name == NEGATE => Ok((-number).into()),
        Some(Number::Int(number)) => Ok(from_integer(number)),
        Some(Number::Float(number)) => Ok(number.into()),
        None => Err(unsupported("the negative", value)),
    }
}
