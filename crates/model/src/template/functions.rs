//! The functions of `transformers`' Jinja.

use std::collections::BTreeMap;

use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, Value, functions};

use super::arguments::{Arguments, split};
use super::budget::{Budget, ENTRY};
use super::objects::{Cycler, Joiner, Range};
use super::steps::Place;
use super::time;
use super::values::{self, Kind, check_key, integer, kind, pairs, refused, string, unsupported};

/// Maximum numbers of a range in Jinja's sandbox.
const MAX_RANGE: usize = 100_000;

/// Adds the functions to `environment`. What they build is paid for from `budget`.
pub(super) fn install(environment: &mut Environment<'static>, budget: &Budget) {
    let mut add = |name: &'static str, function: fn(&[Value], &Budget) -> Result<Value, Error>| {
        let budget = budget.clone();
        environment.add_function(name, move |given: Rest<ValueOrKwargs>| {
            budget.clock.check()?;
            function(&given.into_values(), &budget)
        });
    };
    add("range", range);
    add("dict", dict);
    add("namespace", namespace);
    add("cycler", |given, _| {
        let is_scalar = |value: &Value| {
            matches!(
                kind(value),
                Kind::None | Kind::Bool | Kind::Int | Kind::Float | Kind::Str
            )
        };
        match given.is_empty() || !given.iter().all(is_scalar) {
            true => Err(refused("cycler: expected texts, numbers, booleans or none")),
            false => Ok(Cycler::value(given.to_vec())),
        }
    });
    add("joiner", |given, _| {
        let arguments = Arguments::new("joiner", given, &["sep"])?;
        let separator = arguments.get("sep").cloned().unwrap_or_else(|| ", ".into());
        string(&separator, "joiner")?;
        Ok(Joiner::value(separator))
    });
    add("raise_exception", |given, budget| {
        let message = match given {
            [message] => budget.text(message).unwrap_or_default(),
            _ => "raise_exception".to_owned(),
        };
        Err(refused(message))
    });
    add("strftime_now", |given, _| {
        let arguments = Arguments::new("strftime_now", given, &["format"])?;
        time::format_now(string(arguments.need("format")?, "strftime_now")?).map(Value::from)
    });
    add("lipsum", |_, _| Err(refused("lipsum is not supported")));
}

fn range(given: &[Value], _: &Budget) -> Result<Value, Error> {
    let number = |value: &Value| integer(value, "range");
    let (start, stop, step) = match given {
        [stop] => (0, number(stop)?, 1),
        [start, stop] => (number(start)?, number(stop)?, 1),
        [start, stop, step] => (number(start)?, number(stop)?, number(step)?),
        _ => return Err(refused("range: expected one to three integers")),
    };
    if step == 0 {
        return Err(refused("range: the step is zero"));
    }
    let range = Range { start, stop, step };
    match range.len() > MAX_RANGE {
        true => Err(refused(format!("range: more than {MAX_RANGE} numbers"))),
        false => Ok(Value::from_object(range)),
    }
}

/// Returns the entries that `dict(…)` has.
fn entries(of: &str, given: &[Value], budget: &Budget) -> Result<Vec<(Value, Value)>, Error> {
    let (places, named) = split(given);
    let mut all: Vec<(Value, Value)> = match places {
        [] => Vec::new(),
        [value] if kind(value) == Kind::Dict => pairs(value).collect(),
        [value] if value.is_undefined() => return Err(unsupported(of, value)),
        [value] => {
            let pair = |pair: &Value| match <[Value; 2]>::try_from(values::items(pair)?) {
                Ok([key, item]) => {
                    check_key(&key)?;
                    Ok((key, item))
                }
                Err(_) => Err(refused(format!("{of}: expected pairs"))),
            };
            let pairs = budget.items(value)?;
            pairs.iter().map(pair).collect::<Result<_, Error>>()?
        }
        _ => return Err(refused(format!("{of}: expected one mapping"))),
    };
    for name in named.iter().flat_map(Kwargs::args) {
        let value = named
            .as_ref()
            .and_then(|named| named.peek::<Value>(name).ok());
        all.push((name.into(), value.unwrap_or_default()));
    }
    budget.spend(ENTRY.saturating_mul(all.len()))?;
    Ok(all)
}

fn dict(given: &[Value], budget: &Budget) -> Result<Value, Error> {
    let made = Value::from_pairs(entries("dict", given, budget)?);
    check_dict(&made)?;
    budget.clock.hold(&made, Place::Any)?;
    Ok(made)
}

/// Refuses mappings with keys that Python cannot hash, or takes for the same, such as 1 and true.
pub(super) fn check_dict(made: &Value) -> Result<(), Error> {
    let others: Vec<Value> = pairs(made)
        .map(|(key, _)| key)
        .filter(|key| key.as_str().is_none())
        .collect();
    if others.len() > 100 {
        return Err(refused(
            "a mapping with so many keys that are no texts is not supported",
        ));
    }
    for (place, key) in others.iter().enumerate() {
        check_key(key)?;
        for other in &others[..place] {
            if values::equal(key, other)? {
                return Err(refused(
                    "a mapping with two keys that are equal is not supported",
                ));
            }
        }
    }
    Ok(())
}

fn namespace(given: &[Value], budget: &Budget) -> Result<Value, Error> {
    let mut named = BTreeMap::new();
    for (key, value) in entries("namespace", given, budget)? {
        let name = string(&key, "namespace")?;
        if name.starts_with('_') || name.is_empty() {
            return Err(refused(format!(
                "namespace: the name {name} is not supported"
            )));
        }
        named.insert(name.to_owned(), value);
    }
    // A namespace is true even if it is empty. No template can read this entry.
    named.insert(String::new(), Value::UNDEFINED);
    let made = functions::namespace(Some(Value::from_pairs(named).into()))?;
    budget.clock.hold(&made, Place::Any)?;
    Ok(made)
}

/// Returns a mapping that is given as named arguments, as the arguments.
pub(super) fn named(value: &Value) -> Result<Value, Error> {
    if kind(value) != Kind::Dict {
        return Err(unsupported("named arguments", value));
    }
    for (key, _) in pairs(value) {
        string(&key, "a named argument")?;
    }
    Ok(value.clone())
}
