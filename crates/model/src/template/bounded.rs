//! Installs what [`rebuild`](super::rebuild) puts in place of the engine's operations, with limits.
//!
//! Fuel limits the steps of a template, but a string that is doubled in forty steps has terabytes. So every step that
//! creates strings or lists first pays for it from a [`Budget`]: operators, filters, methods, functions, and output,
//! captured or not. Further filters weigh the values that were built: see [`steps`](super::steps).

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::budget::Budget;
use super::names::{
    ATTRIBUTE, BINARY, ELEMENT, FILTER, HOLD, HOLD_IN_NAMESPACE, ITERATE, METHOD, NAMED, NEGATE,
    PASSED, REFUSE, SLICE, TEST, UNPACK,
};
use super::steps::Place;
use super::values::{Kind, kind, refused, string};
use super::{attributes, functions, methods, operators, predicates, sequences, slice};

/// Installs all operations in `environment`, which pay from `budget`.
pub(super) fn install(environment: &mut Environment<'static>, budget: &Budget) {
    let paying = budget.clone();
    environment.set_formatter(move |out, _, value| match value.as_str() {
        Some(text) => {
            paying.spend(text.len())?;
            Ok(out.write_str(text)?)
        }
        None => Ok(out.write_str(&paying.text(value)?)?),
    });
    functions::install(environment, budget);
    install_operators(environment, budget);
    install_checks(environment, budget);
    let paying = budget.clone();
    environment.add_filter(FILTER, move |given: Rest<ValueOrKwargs>| {
        let given = given.into_values();
        let (value, name, rest) = subject(&given)?;
        sequences::apply(name, value, rest, &paying)
    });
    let paying = budget.clone();
    environment.add_filter(TEST, move |given: Rest<ValueOrKwargs>| {
        let given = given.into_values();
        let (value, name, rest) = subject(&given)?;
        predicates::holds(name, value, rest, &paying)
    });
    let paying = budget.clone();
    environment.add_filter(
        METHOD,
        move |state: &mut State<'_, '_>, given: Rest<ValueOrKwargs>| {
            let given = given.into_values();
            let (value, name, rest) = subject(&given)?;
            methods::call(state, value, name, rest, &paying)
        },
    );
}

/// Returns the value, the name and the arguments of a filter, a test or a method.
fn subject(given: &[Value]) -> Result<(&Value, &str, &[Value]), Error> {
    match given {
        [value, name, rest @ ..] => Ok((value, string(name, "the name")?, rest)),
        _ => Err(refused("expected a value and a name")),
    }
}

fn install_operators(environment: &mut Environment<'static>, budget: &Budget) {
    for name in BINARY {
        let paying = budget.clone();
        environment.add_filter(name, move |a: &Value, b: &Value| {
            operators::binary(name, a, b, &paying)
        });
    }
    environment.add_filter(NEGATE, |value: &Value| operators::unary(NEGATE, value));
    environment.add_filter(ATTRIBUTE, |value: &Value, name: &str| {
        attributes::attribute(value, name)
    });
    let clock = budget.clock.clone();
    environment.add_filter(ELEMENT, move |value: &Value, key: &Value| {
        if key.as_str().is_none() {
            clock.check()?;
        }
        attributes::item(value, key)
    });
    let paying = budget.clone();
    environment.add_filter(
        SLICE,
        move |value: Value, start: Value, stop: Value, step: Value| {
            let size = value
                .as_str()
                .map_or_else(|| value.len().unwrap_or(0), str::len);
            paying.check_list(size)?;
            paying.pay(slice::slice(&value, &[start, stop, step])?)
        },
    );
}

/// Installs the filters that check their argument and return it, or its elements.
fn install_checks(environment: &mut Environment<'static>, budget: &Budget) {
    environment.add_filter(REFUSE, |message: &str| Err::<Value, _>(refused(message)));
    for (name, place) in [(HOLD, Place::Any), (HOLD_IN_NAMESPACE, Place::Namespace)] {
        let clock = budget.clock.clone();
        environment.add_filter(name, move |value: Value| {
            if kind(&value) == Kind::Dict {
                functions::check_dict(&value)?;
            }
            clock.hold(&value, place).map(|_| value)
        });
    }
    let paying = budget.clone();
    environment.add_filter(ITERATE, move |value: Value| {
        paying.clock.check()?;
        match kind(&value) {
            Kind::List | Kind::Tuple | Kind::Dict | Kind::View | Kind::Range => Ok(value),
            _ => paying.items(&value).map(Value::from),
        }
    });
    let paying = budget.clone();
    environment.add_filter(UNPACK, move |value: Value| {
        paying.items(&value).map(Value::from)
    });
    environment.add_filter(PASSED, |value: Value| match value.is_undefined() {
        true => {
            let message = "an undefined value for a parameter that has a default is not supported";
            Err(refused(message))
        }
        false => Ok(value),
    });
    environment.add_filter(NAMED, |value: &Value| functions::named(value));
}
