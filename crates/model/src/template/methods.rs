//! Python's methods of texts, lists, mappings and numbers.

use std::collections::HashSet;

use minijinja::value::Tuple;
use minijinja::{Error, State, Value};

use super::arguments::{Arguments, split};
use super::attributes::{self, own_attribute};
use super::budget::Budget;
use super::format::{self, aligned};
use super::letters;
use super::objects::{Cycler, View};
use super::spaces;
use super::values::{
    self, Kind, Number, equal, integer, kind, number, pairs, refused, string, unsupported,
};

/// Calls a method, or an attribute that is a function.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    name: &str,
    given: &[Value],
    budget: &Budget,
) -> Result<Value, Error> {
    budget.clock.check()?;
    let unknown = || {
        refused(format!(
            "{} has no method {name} that is supported",
            kind(value).name()
        ))
    };
    if value.is_safe() {
        return Err(refused(
            "a method of a text that is marked as safe is not supported",
        ));
    }
    let result = match kind(value) {
        Kind::Str => text_method(value.as_str().unwrap_or_default(), name, given, budget),
        Kind::List | Kind::Tuple | Kind::Range => list_method(value, name, given),
        Kind::Dict => match own_attribute(value, name)? {
            Some(_) => dict_method(value, name, given),
            None => return attributes::attribute(value, name)?.call(state, given),
        },
        Kind::Bool | Kind::Int | Kind::Float => number_method(value, name, given),
        Kind::Namespace => return attributes::attribute(value, name)?.call(state, given),
        Kind::Loop if matches!(name, "cycle" | "changed") => {
            if name == "cycle" && given.is_empty() {
                return Err(refused("loop.cycle: expected an argument"));
            }
            for argument in given {
                budget.clock.hold(argument, super::steps::Place::Any)?;
            }
            return value.call_method(state, name, given);
        }
        Kind::Callable => match (value.downcast_object_ref::<Cycler>(), name) {
            (Some(cycler), "next") if given.is_empty() => return Ok(cycler.next()),
            (Some(cycler), "reset") if given.is_empty() => {
                cycler.reset();
                return Ok(Value::from(()));
            }
            _ => Err(unknown()),
        },
        _ => Err(unknown()),
    }?;
    budget.pay(result)
}

fn list_method(value: &Value, name: &str, given: &[Value]) -> Result<Value, Error> {
    let found = |given: &Value| {
        value
            .try_iter()?
            .enumerate()
            .filter_map(|(place, item)| match equal(&item, given) {
                Ok(true) => Some(Ok(place)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            })
            .collect::<Result<Vec<_>, Error>>()
    };
    match (name, given) {
        ("count", [item]) => Ok(found(item)?.len().into()),
        ("index", [item]) => match found(item)?.first() {
            Some(place) => Ok((*place).into()),
            None => Err(refused("index: the list has no such element")),
        },
        ("copy", []) if kind(value) == Kind::List => Ok(value.clone()),
        _ => Err(refused(format!(
            "{name} of {} is not supported with these arguments",
            kind(value).name()
        ))),
    }
}

fn dict_method(value: &Value, name: &str, given: &[Value]) -> Result<Value, Error> {
    let view = |name, items| Ok(Value::from_object(View { name, items }));
    match (name, given) {
        ("get", [key]) if !key.is_kwargs() => {
            Ok(values::entry(value, key)?.unwrap_or_else(|| Value::from(())))
        }
        ("get", [key, default]) if !default.is_kwargs() => {
            Ok(values::entry(value, key)?.unwrap_or_else(|| default.clone()))
        }
        ("items", []) => view("dict_items", items_of(value)),
        ("keys", []) => view("dict_keys", pairs(value).map(|(key, _)| key).collect()),
        ("values", []) => view("dict_values", pairs(value).map(|(_, item)| item).collect()),
        ("copy", []) => Ok(value.clone()),
        _ => Err(refused(format!(
            "{name} of a mapping is not supported with these arguments"
        ))),
    }
}

/// Returns the entries of a mapping as tuples.
pub(super) fn items_of(value: &Value) -> Vec<Value> {
    pairs(value)
        .map(|(key, item)| Tuple::from([key, item]).into())
        .collect()
}

fn number_method(value: &Value, name: &str, given: &[Value]) -> Result<Value, Error> {
    match (name, number(value), given) {
        ("bit_length", Some(Number::Int(number)), []) => {
            Ok((128 - number.unsigned_abs().leading_zeros()).into())
        }
        ("conjugate", Some(Number::Int(number)), []) => Ok(values::from_integer(number)),
        ("conjugate", _, []) => Ok(value.clone()),
        ("is_integer", Some(Number::Float(number)), []) => Ok((number.fract() == 0.0).into()),
        _ => Err(unsupported(&format!("the method {name}"), value)),
    }
}

fn list<'t>(texts: impl IntoIterator<Item = &'t str>) -> Value {
    texts
        .into_iter()
        .map(Value::from)
        .collect::<Vec<_>>()
        .into()
}

fn text_method(text: &str, name: &str, given: &[Value], budget: &Budget) -> Result<Value, Error> {
    let wrong = || refused(format!("{name}: these arguments are not supported"));
    let (places, named) = split(given);
    if named.is_some()
        && !matches!(
            name,
            "split" | "rsplit" | "splitlines" | "expandtabs" | "format"
        )
    {
        return Err(refused(format!("{name} takes no named arguments")));
    }
    Ok(match (name, places) {
        ("lower", []) => text.to_lowercase().into(),
        ("upper", []) => text.to_uppercase().into(),
        ("title", []) => letters::title(text)?.into(),
        ("capitalize", []) => letters::capitalized(text)?.into(),
        ("swapcase", []) => letters::swapped(text)?.into(),
        ("casefold", []) => letters::casefolded(text)?.into(),
        (_, []) if name.starts_with("is") => letters::has_property(name, text)?.into(),
        ("strip" | "lstrip" | "rstrip", [] | [_]) => {
            let chosen = places.first().filter(|value| !value.is_none());
            let chosen = chosen.map(|chosen| string(chosen, name)).transpose()?;
            let chosen: Option<HashSet<char>> = chosen.map(|chosen| chosen.chars().collect());
            let is_stripped = |letter: char| match &chosen {
                Some(chosen) => chosen.contains(&letter),
                None => spaces::is_space(letter),
            };
            let text = if name == "lstrip" {
                text
            } else {
                text.trim_end_matches(is_stripped)
            };
            if name == "rstrip" {
                text
            } else {
                text.trim_start_matches(is_stripped)
            }
            .into()
        }
        ("split" | "rsplit", _) => return split_text(text, name, given, budget),
        ("splitlines", _) => {
            let arguments = Arguments::new(name, given, &["keepends"])?;
            let keeps = arguments.integer("keepends", 0)? != 0;
            budget.check_list(text.matches(spaces::ends_line).count())?;
            list(spaces::lines(text, keeps))
        }
        ("join", [values]) => join(text, values, budget)?,
        ("replace", [old, new] | [old, new, _]) => {
            let most = places.get(2).map_or(Ok(-1), |most| integer(most, name))?;
            replace(text, string(old, name)?, string(new, name)?, most, budget)?.into()
        }
        ("startswith" | "endswith", [part, range @ ..]) if range.len() <= 2 => {
            let Some(text) = within(text, range)? else {
                // Python finds not even an empty text there.
                return parts(part, name).map(|_| false.into());
            };
            let mut parts = parts(part, name)?.into_iter();
            let has = |part: String| match name {
                "startswith" => text.starts_with(&part),
                _ => text.ends_with(&part),
            };
            parts.any(has).into()
        }
        ("find" | "rfind" | "index" | "rindex" | "count", [part, range @ ..])
            if range.len() <= 2 =>
        {
            let part = string(part, name)?;
            let start = range.first().map_or(0, |start| {
                number(start).map_or(0, |start| match start {
                    Number::Int(start) if start < 0 => {
                        (text.chars().count() as i128 + start).max(0)
                    }
                    Number::Int(start) => start,
                    Number::Float(_) => 0,
                })
            });
            let inside = within(text, range)?;
            if name == "count" {
                let count = inside.map_or(0, |inside| match part.is_empty() {
                    true => inside.chars().count() + 1,
                    false => inside.matches(part).count(),
                });
                return Ok(count.into());
            }
            let place = inside.and_then(|inside| {
                let byte = if name.starts_with('r') {
                    inside.rfind(part)
                } else {
                    inside.find(part)
                };
                byte.map(|byte| inside[..byte].chars().count() as i128 + start)
            });
            match place {
                Some(place) => values::from_integer(place),
                None if name.ends_with("find") => Value::from(-1),
                None => return Err(refused(format!("{name}: the text does not contain it"))),
            }
        }
        ("partition" | "rpartition", [between]) => {
            let between = string(between, name)?;
            if between.is_empty() {
                return Err(refused(format!("{name}: an empty separator")));
            }
            let found = if name == "partition" {
                text.split_once(between)
            } else {
                text.rsplit_once(between)
            };
            let parts = match found {
                Some((before, after)) => [before, between, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Tuple::from(parts.map(Value::from)).into()
        }
        ("removeprefix", [part]) => text
            .strip_prefix(string(part, name)?)
            .unwrap_or(text)
            .into(),
        ("removesuffix", [part]) => text
            .strip_suffix(string(part, name)?)
            .unwrap_or(text)
            .into(),
        ("center" | "ljust" | "rjust", [width] | [width, _]) => {
            let align = match name {
                "center" => '^',
                "ljust" => '<',
                _ => '>',
            };
            aligned(text, integer(width, name)?, places.get(1), align, budget)?.into()
        }
        ("zfill", [width]) => {
            let sign = usize::from(text.starts_with(['+', '-']));
            let width = integer(width, name)?.saturating_sub(sign as i64);
            let zero = Value::from("0");
            (text[..sign].to_owned() + &aligned(&text[sign..], width, Some(&zero), '>', budget)?)
                .into()
        }
        ("expandtabs", _) => expand_tabs(
            text,
            Arguments::new(name, given, &["tabsize"])?.integer("tabsize", 8)?,
            budget,
        )?
        .into(),
        ("format", _) => {
            let named = |name: &str| {
                named
                    .as_ref()
                    .and_then(|named| named.peek::<Value>(name).ok())
            };
            format::braces(text, places, &named, budget)?.into()
        }
        _ => return Err(wrong()),
    })
}

/// Returns the text between two places, as far as it has them; `None` for a start after the end.
fn within<'t>(text: &'t str, range: &[Value]) -> Result<Option<&'t str>, Error> {
    if range.is_empty() {
        return Ok(Some(text));
    }
    let count = text.chars().count() as i64;
    let place = |value: Option<&Value>, default: i64| match value.filter(|value| !value.is_none()) {
        None => Ok(default),
        Some(value) => match integer(value, "a place")? {
            place if place < 0 => Ok::<_, Error>(place.saturating_add(count).max(0)),
            place => Ok(place),
        },
    };
    let (start, end) = (
        place(range.first(), 0)?,
        place(range.get(1), count)?.min(count),
    );
    if start > end {
        return Ok(None);
    }
    let byte = |place: i64| {
        text.char_indices()
            .nth(place as usize)
            .map_or(text.len(), |(byte, _)| byte)
    };
    Ok(Some(&text[byte(start)..byte(end)]))
}

/// Returns a text, or those of a tuple.
fn parts(part: &Value, name: &str) -> Result<Vec<String>, Error> {
    match kind(part) {
        Kind::Tuple => part
            .try_iter()?
            .map(|part| string(&part, name).map(str::to_owned))
            .collect(),
        _ => Ok(vec![string(part, name)?.to_owned()]),
    }
}

fn split_text(text: &str, name: &str, given: &[Value], budget: &Budget) -> Result<Value, Error> {
    let arguments = Arguments::new(name, given, &["sep", "maxsplit"])?;
    let most = usize::try_from(arguments.integer("maxsplit", -1)?).ok();
    let Some(between) = arguments.get("sep").filter(|between| !between.is_none()) else {
        budget.check_list(text.matches(spaces::is_space).count())?;
        return Ok(match (name, most) {
            ("rsplit", Some(most)) => list(spaces::last_words(text, most)),
            _ => list(spaces::words(text, most)),
        });
    };
    let between = string(between, name)?;
    if between.is_empty() {
        return Err(refused(format!(
            "{name}: expected a text to split at, found an empty one"
        )));
    }
    budget.check_list(text.matches(between).count())?;
    let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
    Ok(match name {
        "split" => list(text.splitn(most, between)),
        _ => {
            let mut parts: Vec<_> = text.rsplitn(most, between).collect();
            parts.reverse();
            list(parts)
        }
    })
}

fn join(between: &str, values: &Value, budget: &Budget) -> Result<Value, Error> {
    let mut out = String::new();
    for (place, item) in budget.items(values)?.iter().enumerate() {
        let text = string(item, "join")?;
        let between = if place > 0 { between } else { "" };
        budget.spend(between.len() + text.len())?;
        out.extend([between, text]);
    }
    Ok(out.into())
}

/// Returns `text.replace(old, new, most)`.
pub(super) fn replace(
    text: &str,
    old: &str,
    new: &str,
    most: i64,
    budget: &Budget,
) -> Result<String, Error> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let count = text.matches(old).count().min(most);
    budget.spend(text.len().saturating_add(count.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, count))
}

fn expand_tabs(text: &str, size: i64, budget: &Budget) -> Result<String, Error> {
    let size = usize::try_from(size).unwrap_or(0);
    budget.spend(
        text.matches('\t')
            .count()
            .saturating_mul(size)
            .saturating_add(text.len()),
    )?;
    let (mut out, mut column) = (String::new(), 0);
    for letter in text.chars() {
        match letter {
            '\t' => {
                let width = size - column % size.max(1);
                let width = if size == 0 { 0 } else { width };
                out.push_str(&" ".repeat(width));
                column += width;
            }
            letter => {
                out.push(letter);
                column = if matches!(letter, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    Ok(out)
}
