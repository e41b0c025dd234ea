//! Limits for the memory of a rendering.
//!
//! Fuel limits the steps of a template, but a string that is doubled in forty steps has terabytes. So every step that
//! creates strings or lists first pays for it from a [`Budget`]: operators, which are compiled into the filters of
//! [`install`] in place of the engine's own instructions ([`rewrite`](super::rewrite)); output, captured or not; filters,
//! methods and functions.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value, functions};

use super::budget::{Budget, Bytes, ELEMENT, ENTRY, elements, repeated};
use super::python;
use super::rewrite::{
    ADD, CONCATENATE, GREATER, GREATER_OR_EQUAL, HOLD, HOLD_ARGUMENTS, HOLD_IN_NAMESPACE, LESS,
    LESS_OR_EQUAL, MULTIPLY, REFUSE, SLICE, TICK,
};
use super::slice;
use super::spaces;
use super::steps::Place;

/// Filters whose result is about as large as their input.
const FILTERS: [&str; 38] = [
    "abs",
    "attr",
    "bool",
    "capitalize",
    "chain",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "groupby",
    "int",
    "items",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "sort",
    "split",
    "sum",
    "title",
    "trim",
    "unique",
    "upper",
];
/// Filters and methods that convert their arguments to lists, strings included.
const LISTS: [&str; 12] = [
    "chain", "list", "map", "max", "min", "reject", "reverse", "select", "sort", "sum", "unique",
    "zip",
];
/// Filters that compare each element with many others.
const SORTS: [&str; 6] = ["dictsort", "groupby", "max", "min", "sort", "unique"];
/// Tests whose time is proportional to the size of their arguments.
const TESTS: [&str; 22] = [
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "in",
    "lower",
    "upper",
    "startingwith",
    "endingwith",
    "sameas",
    "iterable",
];
/// Filters that accept lists and maps directly. The others first convert them to text.
const TAKE_LISTS: [&str; 29] = [
    "attr",
    "bool",
    "chain",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "get",
    "groupby",
    "items",
    "join",
    "keys",
    "last",
    "length",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "sort",
    "sum",
    "tojson",
    "unique",
    "values",
];

/// Makes everything in `environment` that builds text or lists pay from `budget`.
pub(super) fn install(environment: &mut Environment<'static>, budget: &Budget) {
    // It writes all variables, however large.
    environment.remove_global("debug");
    let plain = Arc::new(environment.clone());
    install_operators(environment, &plain, budget);
    install_steps(environment, &plain, budget);
    let paying = budget.clone();
    environment.set_formatter(move |out, _, value| match value.as_str() {
        Some(text) => {
            paying.spend(text.len())?;
            Ok(out.write_str(text)?)
        }
        None => Ok(out.write_str(&paying.text(value)?)?),
    });
    // Filters that apply others by name (`map`) must also find those that pay.
    for round in [&FILTERS[..], &["map"]] {
        let before = Arc::new(environment.clone());
        for name in round.iter().copied() {
            let (before, budget) = (Arc::clone(&before), budget.clone());
            environment.add_filter(name, move |arguments: Rest<ValueOrKwargs>| {
                let arguments = arguments.into_values();
                check_arguments(&budget, name, &arguments)?;
                budget.pay(before.empty_state().apply_filter(name, &arguments)?)
            });
        }
        if round.len() > 1 {
            install_growing(environment, &plain, budget);
        }
    }
    let paying = budget.clone();
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        let all: Vec<_> = [value].into_iter().chain(arguments).cloned().collect();
        match method {
            "replace" => pay_replace(&paying, &all)?,
            "join" => pay_join(&paying, arguments.first(), value)?,
            "split" | "splitlines" => pay_split(&paying, &all)?,
            _ => check_arguments(&paying, method, &all)?,
        }
        let result = python::method(state, value, method, arguments)?;
        if matches!(method, "replace" | "join") {
            Ok(result)
        } else {
            paying.pay(result)
        }
    });
    let paying = budget.clone();
    environment.add_function("dict", move |value: Option<Value>, more: Kwargs| {
        paying.spend(ENTRY * value.as_ref().and_then(Value::len).unwrap_or(0))?;
        let made = functions::dict(value, more)?;
        paying.clock.hold(&made, Place::Any)?;
        Ok::<_, Error>(made)
    });
    let paying = budget.clone();
    environment.add_function("namespace", move |values: Option<ValueOrKwargs>| {
        let made = functions::namespace(values)?;
        paying.clock.hold(&made, Place::Any)?;
        Ok::<_, Error>(made)
    });
}

/// Installs the filters that [`rewrite`] puts between instructions, and tests that check the clock.
fn install_steps(
    environment: &mut Environment<'static>,
    plain: &Arc<Environment<'static>>,
    budget: &Budget,
) {
    let clock = budget.clock.clone();
    environment.add_filter(TICK, move |value: ValueOrKwargs| {
        clock.check().map(|()| value.into_value())
    });
    environment.add_filter(REFUSE, |message: String| {
        Err::<Value, _>(Error::new(ErrorKind::InvalidOperation, message))
    });
    for (name, place) in [
        (HOLD, Place::Any),
        (HOLD_ARGUMENTS, Place::Arguments),
        (HOLD_IN_NAMESPACE, Place::Namespace),
    ] {
        let clock = budget.clock.clone();
        environment.add_filter(name, move |value: ValueOrKwargs| {
            let value = value.into_value();
            clock.hold(&value, place).map(|_| value)
        });
    }
    for name in TESTS {
        let (clock, plain) = (budget.clock.clone(), Arc::clone(plain));
        environment.add_test(name, move |arguments: Rest<ValueOrKwargs>| {
            clock.check()?;
            plain
                .empty_state()
                .perform_test(name, &arguments.into_values())
        });
    }
}

fn install_operators(
    environment: &mut Environment<'static>,
    plain: &Arc<Environment<'static>>,
    budget: &Budget,
) {
    let compute = |expression: &'static str, plain: &Arc<Environment<'static>>| {
        let plain = Arc::clone(plain);
        move |values: &[Value]| {
            let names = ["a", "b", "c", "d"];
            let context = Value::from_pairs(names.into_iter().zip(values.iter().cloned()));
            // The line in the template is appended later, and the filter's name is none that the template uses.
            let anonymous = |error: Error| {
                let detail = error.detail().unwrap_or_default();
                Error::new(
                    error.kind(),
                    detail.split(" (`").next().unwrap_or_default().to_owned(),
                )
            };
            plain
                .compile_expression(expression)?
                .eval(context)
                .map_err(anonymous)
        }
    };
    let (paying, add) = (budget.clone(), compute("a + b", plain));
    environment.add_filter(ADD, move |a: Value, b: Value| {
        match (a.as_str(), b.as_str()) {
            (Some(a), Some(b)) => paying.spend(a.len() + b.len())?,
            _ => paying.spend(ELEMENT * (elements(&a) + elements(&b)))?,
        }
        paying.pay_list(add(&[a, b])?)
    });
    let paying = budget.clone();
    environment.add_filter(CONCATENATE, move |a: Value, b: Value| {
        let mut text = paying.text(&a)?;
        text.push_str(&paying.text(&b)?);
        Ok::<_, Error>(Value::from(text))
    });
    let (paying, multiply) = (budget.clone(), compute("a * b", plain));
    environment.add_filter(MULTIPLY, move |a: Value, b: Value| {
        paying.spend(repeated(&a, &b))?;
        paying.pay_list(multiply(&[a, b])?)
    });
    for (name, expected) in [
        (LESS, &[Ordering::Less][..]),
        (LESS_OR_EQUAL, &[Ordering::Less, Ordering::Equal]),
        (GREATER, &[Ordering::Greater]),
        (GREATER_OR_EQUAL, &[Ordering::Greater, Ordering::Equal]),
    ] {
        let clock = budget.clock.clone();
        environment.add_filter(name, move |a: Value, b: Value| {
            clock.check()?;
            python::check_order(&a, &b)?;
            let order = a.partial_cmp(&b);
            Ok::<_, Error>(order.is_some_and(|order| expected.contains(&order)))
        });
    }
    let paying = budget.clone();
    environment.add_filter(SLICE, move |a: Value, b: Value, c: Value, d: Value| {
        paying.spend(a.as_str().map_or_else(|| ELEMENT * elements(&a), str::len))?;
        paying.pay_list(slice::slice(&a, [b, c, d])?)
    });
}

/// Installs filters whose result may be larger than all of their input.
fn install_growing(
    environment: &mut Environment<'static>,
    plain: &Arc<Environment<'static>>,
    budget: &Budget,
) {
    let (before, paying) = (Arc::clone(plain), budget.clone());
    environment.add_filter("replace", move |arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        pay_replace(&paying, &arguments)?;
        before.empty_state().apply_filter("replace", &arguments)
    });
    let (before, paying) = (Arc::clone(plain), budget.clone());
    environment.add_filter("join", move |arguments: Rest<ValueOrKwargs>| {
        let mut arguments = arguments.into_values();
        if let [value, rest @ ..] = &arguments[..] {
            pay_join(
                &paying,
                Some(value),
                rest.first().unwrap_or(&Value::UNDEFINED),
            )?;
            if rest.len() < 2 && !has_argument(rest, "attribute") {
                let texts = value.try_iter()?.map(|item| match item.as_str() {
                    Some(_) => item,
                    None => python::text(&item).into(),
                });
                arguments[0] = texts.collect();
            }
        }
        before.empty_state().apply_filter("join", &arguments)
    });
    let paying = budget.clone();
    environment.add_filter("string", move |value: Value| match value.as_str() {
        Some(_) => Ok(value),
        None => paying.text(&value).map(Value::from),
    });
    let paying = budget.clone();
    environment.add_filter(
        "tojson",
        move |value: &Value, arguments: Rest<ValueOrKwargs>| {
            let mut bytes = Bytes {
                bytes: Vec::new(),
                budget: paying.clone(),
            };
            super::json::write(value, &arguments.into_values(), &mut bytes)?;
            String::from_utf8(bytes.bytes)
                .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
        },
    );
}

/// Refuses arguments of `name`, a filter or a method, that would need more than the remaining budget during the call.
fn check_arguments(budget: &Budget, name: &str, arguments: &[Value]) -> Result<(), Error> {
    budget.clock.check()?;
    if let Some(value) = arguments.first().filter(|_| SORTS.contains(&name)) {
        budget.clock.hold_sorted(value)?;
    }
    if name == "sum" {
        check_sum(arguments)?;
    }
    if let [values, rest @ ..] = arguments
        && ["max", "min", "sort"].contains(&name)
        && !has_argument(rest, "attribute")
    {
        let values: Vec<Value> = values.try_iter()?.collect();
        values
            .windows(2)
            .try_for_each(|pair| python::check_order(&pair[0], &pair[1]))?;
    }
    for value in arguments {
        if LISTS.contains(&name) {
            budget.check(ELEMENT.saturating_mul(value.len().unwrap_or(0)))?;
        }
        if !TAKE_LISTS.contains(&name) && elements(value) > 0 {
            drop(budget.text(value)?);
        }
        if matches!(name, "split" | "lines") {
            return pay_split(budget, arguments);
        }
    }
    Ok(())
}

/// Returns whether the last of `arguments` has one called `name`.
fn has_argument(arguments: &[Value], name: &str) -> bool {
    let named = arguments.last().cloned().map(Kwargs::try_from);
    named.is_some_and(|named| named.is_ok_and(|named| named.has(name)))
}

/// Refuses sums that start with a string or a list, which would be copied for every element.
fn check_sum(arguments: &[Value]) -> Result<(), Error> {
    let named = arguments.last().and_then(|last| {
        Kwargs::try_from(last.clone())
            .ok()?
            .get::<Value>("start")
            .ok()
    });
    match named.or_else(|| arguments.get(2).cloned()) {
        Some(start) if !start.is_number() => Err(Error::new(
            ErrorKind::InvalidOperation,
            "sum: expected a number to begin with",
        )),
        _ => Ok(()),
    }
}

/// Pays for `arguments[0]` with each `arguments[1]` replaced by `arguments[2]`.
fn pay_replace(budget: &Budget, arguments: &[Value]) -> Result<(), Error> {
    let [Some(text), Some(from), Some(to)] =
        [0, 1, 2].map(|index| arguments.get(index).and_then(Value::as_str))
    else {
        return arguments
            .iter()
            .try_for_each(|value| budget.text(value).map(drop));
    };
    budget.spend(
        text.len()
            .saturating_add(text.matches(from).count().saturating_mul(to.len())),
    )
}

/// Pays for the elements of `values` joined by `between`.
fn pay_join(budget: &Budget, values: Option<&Value>, between: &Value) -> Result<(), Error> {
    let between = between.as_str().map_or(0, str::len);
    for value in values
        .and_then(|values| values.try_iter().ok())
        .into_iter()
        .flatten()
    {
        budget.spend(between)?;
        match value.as_str() {
            Some(text) => budget.spend(text.len())?,
            None => drop(budget.text(&value)?),
        }
    }
    Ok(())
}

/// Pays for the parts of `arguments[0]` between each `arguments[1]`, or between spaces or lines.
fn pay_split(budget: &Budget, arguments: &[Value]) -> Result<(), Error> {
    let Some(text) = arguments.first().and_then(Value::as_str) else {
        return Ok(());
    };
    let separates = |letter: char| spaces::is_space(letter) || spaces::ends_line(letter);
    let parts = match arguments.get(1).and_then(Value::as_str) {
        Some(between) if !between.is_empty() => text.matches(between).count(),
        _ => text.matches(separates).count(),
    };
    budget.check(text.len().saturating_add(ELEMENT.saturating_mul(parts + 1)))
}
