//! The filters of Jinja for lists and mappings.

use std::cmp::Ordering;
use std::collections::HashSet;

use minijinja::value::Kwargs;
use minijinja::{Error, Value};

use super::arguments::{Arguments, split};
use super::attributes::item;
use super::budget::{Budget, ELEMENT};
use super::names::{ADD, is_filter};
use super::objects::{Group, Once};
use super::operators;
use super::values::{self, Kind, compare, equal, items, kind, refused, string, unsupported};
use super::{filters, methods, predicates};

/// The filters whose result is no text, or one that is not marked, whatever the text to which they are applied.
const FOR_MARKED: [&str; 14] = [
    "count",
    "d",
    "default",
    "e",
    "escape",
    "float",
    "forceescape",
    "int",
    "join",
    "length",
    "replace",
    "safe",
    "string",
    "tojson",
];

/// Applies a filter.
pub(super) fn apply(
    name: &str,
    value: &Value,
    given: &[Value],
    budget: &Budget,
) -> Result<Value, Error> {
    budget.clock.check()?;
    if value.is_safe() && !FOR_MARKED.contains(&name) {
        return Err(refused(format!(
            "{name} of a text that is marked as safe is not supported"
        )));
    }
    let arguments = |names| Arguments::new(name, given, names);
    let all = || budget.items(value);
    let result = match name {
        "length" | "count" => {
            arguments(&[])?;
            return Ok(values::length(value)?.into());
        }
        "list" => {
            arguments(&[])?;
            all()?.into()
        }
        "first" => {
            arguments(&[])?;
            return match value.as_str() {
                Some(text) => Ok(text
                    .chars()
                    .next()
                    .map_or(Value::UNDEFINED, |first| first.to_string().into())),
                None => match kind(value) {
                    Kind::Iterator => Ok(items(value)?.into_iter().next().unwrap_or_default()),
                    Kind::Undefined => Ok(Value::UNDEFINED),
                    Kind::List | Kind::Tuple | Kind::Dict | Kind::View | Kind::Range => {
                        Ok(value.try_iter()?.next().unwrap_or_default())
                    }
                    _ => Err(unsupported("first", value)),
                },
            };
        }
        "last" => {
            arguments(&[])?;
            return match (value.as_str(), kind(value)) {
                (Some(text), _) => Ok(text
                    .chars()
                    .next_back()
                    .map_or(Value::UNDEFINED, |last| last.to_string().into())),
                (None, Kind::List | Kind::Tuple | Kind::Range) => item(value, &(-1).into()),
                (None, Kind::Dict | Kind::View) => Ok(items(value)?.pop().unwrap_or_default()),
                _ => Err(unsupported("last", value)),
            };
        }
        "reverse" => {
            arguments(&[])?;
            match (value.as_str(), kind(value)) {
                (Some(text), _) => text.chars().rev().collect::<String>().into(),
                (None, of_kind) => {
                    let mut reversed = all()?;
                    reversed.reverse();
                    match of_kind {
                        Kind::Iterator => reversed.into(),
                        _ => Once::value(reversed),
                    }
                }
            }
        }
        "items" => {
            arguments(&[])?;
            match kind(value) {
                Kind::Undefined => Once::value(Vec::new()),
                Kind::Dict => Once::value(methods::items_of(value)),
                _ => return Err(unsupported("items", value)),
            }
        }
        "join" => {
            let arguments = arguments(&["d", "attribute"])?;
            let between = arguments
                .get("d")
                .map_or(Ok(String::new()), |between| budget.text(between))?;
            let mut out = String::new();
            for (place, item) in all()?.into_iter().enumerate() {
                if place > 0 {
                    budget.spend(between.len())?;
                    out.push_str(&between);
                }
                let item = match arguments
                    .get("attribute")
                    .filter(|attribute| !attribute.is_none())
                {
                    Some(attribute) => attribute_of(&item, attribute, None)?,
                    None => item,
                };
                out.push_str(&budget.text(&item)?);
            }
            return Ok(out.into());
        }
        "batch" => {
            let arguments = arguments(&["linecount", "fill_with"])?;
            let count = arguments.need("linecount")?;
            let count = values::integer(count, name)?;
            let fill = arguments.get("fill_with").filter(|fill| !fill.is_none());
            let mut lines: Vec<Vec<Value>> = Vec::new();
            for (place, item) in all()?.into_iter().enumerate() {
                match lines.last_mut() {
                    Some(line) if line.len() as i64 != count => line.push(item),
                    Some(_) => lines.push(vec![item]),
                    // An empty line comes first where lines have no elements.
                    None if count == 0 && place == 0 => lines.extend([Vec::new(), vec![item]]),
                    None => lines.push(vec![item]),
                }
            }
            if let (Some(fill), Some(line)) = (fill, lines.last_mut()) {
                let count = usize::try_from(count).unwrap_or(0);
                budget.spend(ELEMENT.saturating_mul(count))?;
                while line.len() < count {
                    line.push(fill.clone());
                }
            }
            Once::value(lines.into_iter().map(Value::from).collect())
        }
        "slice" => {
            let arguments = arguments(&["slices", "fill_with"])?;
            let count = values::integer(arguments.need("slices")?, name)?;
            let count = usize::try_from(count).ok().filter(|count| *count > 0);
            let count = count.ok_or_else(|| refused("slice: expected at least one slice"))?;
            budget.spend(ELEMENT.saturating_mul(count))?;
            let fill = arguments.get("fill_with").filter(|fill| !fill.is_none());
            let all = all()?;
            let (each, longer) = (all.len() / count, all.len() % count);
            let mut rest = all.into_iter();
            let slices = (0..count).map(|place| {
                let width = each + usize::from(place < longer);
                let fill = fill.filter(|_| place >= longer).cloned();
                rest.by_ref()
                    .take(width)
                    .chain(fill)
                    .collect::<Vec<_>>()
                    .into()
            });
            Once::value(slices.collect())
        }
        "map" => return map(value, given, budget),
        "select" | "reject" | "selectattr" | "rejectattr" => {
            return select(name, value, given, budget);
        }
        "sum" => {
            let arguments = arguments(&["attribute", "start"])?;
            let start = arguments.get("start").cloned().unwrap_or_else(|| 0.into());
            if start.as_str().is_some() {
                return Err(refused("sum: a text cannot begin it"));
            }
            let mut sum = start;
            for item in all()? {
                let item = match arguments
                    .get("attribute")
                    .filter(|attribute| !attribute.is_none())
                {
                    Some(attribute) => attribute_of(&item, attribute, None)?,
                    None => item,
                };
                sum = operators::binary(ADD, &sum, &item, budget)?;
            }
            return Ok(sum);
        }
        "sort" => {
            let arguments = arguments(&["reverse", "case_sensitive", "attribute"])?;
            let all = all()?;
            let attribute = arguments.get("attribute");
            let attribute = attribute.filter(|attribute| !attribute.is_none());
            let attributes: Option<Vec<_>> = attribute.map(|attribute| match attribute.as_str() {
                Some(names) => names.split(',').map(Value::from).collect(),
                None => vec![attribute.clone()],
            });
            let is_exact = arguments.is_true("case_sensitive");
            let key = |item: &Value| {
                let Some(attributes) = &attributes else {
                    return Ok(folded(item, is_exact));
                };
                let keys = attributes
                    .iter()
                    .map(|attribute| Ok(folded(&attribute_of(item, attribute, None)?, is_exact)));
                keys.collect::<Result<Vec<_>, Error>>().map(Value::from)
            };
            sorted(all, key, arguments.is_true("reverse"), budget)?.into()
        }
        "dictsort" => {
            let arguments = arguments(&["case_sensitive", "by", "reverse"])?;
            let place = match arguments
                .get("by")
                .map_or(Ok("key"), |by| string(by, name))?
            {
                "key" => 0,
                "value" => 1,
                _ => return Err(refused("dictsort: by: expected key or value")),
            };
            if kind(value) != Kind::Dict {
                return Err(unsupported("dictsort", value));
            }
            let is_exact = arguments.is_true("case_sensitive");
            let key = |pair: &Value| Ok(folded(&item(pair, &place.into())?, is_exact));
            sorted(
                methods::items_of(value),
                key,
                arguments.is_true("reverse"),
                budget,
            )?
            .into()
        }
        "groupby" => {
            let arguments = arguments(&["attribute", "default", "case_sensitive"])?;
            let attribute = arguments.need("attribute")?;
            let is_exact = arguments.is_true("case_sensitive");
            let default = arguments
                .get("default")
                .filter(|default| !default.is_none());
            let exact = |item: &Value| attribute_of(item, attribute, default);
            let key = |item: &Value| Ok(folded(&exact(item)?, is_exact));
            let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
            for item in sorted(all()?, key, false, budget)? {
                let this = key(&item)?;
                match groups.last_mut() {
                    Some((last, group)) if equal(last, &this)? => group.push(item),
                    _ => groups.push((this, vec![item])),
                }
            }
            let groups = groups.into_iter().map(|(_, group)| {
                let key = group.first().map_or(Ok(Value::UNDEFINED), &exact)?;
                Ok(Value::from_object(Group([key, group.into()])))
            });
            groups.collect::<Result<Vec<_>, Error>>()?.into()
        }
        "min" | "max" => {
            let arguments = arguments(&["case_sensitive", "attribute"])?;
            let is_exact = arguments.is_true("case_sensitive");
            let expected = if name == "min" {
                Ordering::Less
            } else {
                Ordering::Greater
            };
            let mut best: Option<(Value, Value)> = None;
            for item in all()? {
                let key = match arguments
                    .get("attribute")
                    .filter(|attribute| !attribute.is_none())
                {
                    Some(attribute) => attribute_of(&item, attribute, None)?,
                    None => item.clone(),
                };
                let key = folded(&key, is_exact);
                let is_better = match &best {
                    Some((best, _)) => compare(&key, best)? == Some(expected),
                    None => true,
                };
                if is_better {
                    best = Some((key, item));
                }
            }
            return Ok(best.map_or(Value::UNDEFINED, |(_, item)| item));
        }
        "unique" => {
            let arguments = arguments(&["case_sensitive", "attribute"])?;
            let all = all()?;
            let others = all.iter().filter(|item| item.as_str().is_none()).count();
            budget.clock.hold_compared(&all.clone().into(), others)?;
            let (mut texts, mut seen) = (HashSet::new(), Vec::<Value>::new());
            let mut kept = Vec::new();
            for item in all {
                let key = match arguments
                    .get("attribute")
                    .filter(|attribute| !attribute.is_none())
                {
                    Some(attribute) => attribute_of(&item, attribute, None)?,
                    None => item.clone(),
                };
                values::check_key(&key)?;
                let key = folded(&key, arguments.is_true("case_sensitive"));
                budget.clock.check()?;
                let is_new = match key.as_str() {
                    Some(text) => texts.insert(text.to_owned()),
                    None => {
                        let mut is_new = true;
                        for other in &seen {
                            is_new &= !equal(other, &key)?;
                        }
                        seen.push(key);
                        is_new
                    }
                };
                if is_new {
                    kept.push(item);
                }
            }
            Once::value(kept)
        }
        _ => return filters::apply(name, value, given, budget),
    };
    budget.pay(result)
}

/// Returns a text in lower case, unless the case matters.
fn folded(key: &Value, is_exact: bool) -> Value {
    match key.as_str() {
        Some(text) if !is_exact => text.to_lowercase().into(),
        _ => key.clone(),
    }
}

/// Returns the attribute of an element by its path, with points between names.
fn attribute_of(value: &Value, attribute: &Value, default: Option<&Value>) -> Result<Value, Error> {
    let Some(path) = attribute.as_str() else {
        let found = item(value, attribute)?;
        return Ok(match default {
            Some(default) if found.is_undefined() => default.clone(),
            _ => found,
        });
    };
    let mut found = value.clone();
    for part in path.split('.') {
        let key = match part.is_empty() || part.contains(|letter: char| !letter.is_ascii_digit()) {
            true => part.into(),
            false => part
                .parse::<i64>()
                .map_or_else(|_| Value::from(part), Value::from),
        };
        found = item(&found, &key)?;
        if let Some(default) = default.filter(|_| found.is_undefined()) {
            found = default.clone();
        }
    }
    Ok(found)
}

/// Returns the elements in the order of their keys, those with the same key as they were.
fn sorted(
    all: Vec<Value>,
    key: impl Fn(&Value) -> Result<Value, Error>,
    is_reversed: bool,
    budget: &Budget,
) -> Result<Vec<Value>, Error> {
    let keyed = all.into_iter().map(|item| Ok((key(&item)?, item)));
    let mut keyed = keyed.collect::<Result<Vec<_>, Error>>()?;
    let keys: Value = keyed.iter().map(|(key, _)| key.clone()).collect();
    budget.clock.hold_sorted(&keys)?;
    // An order that Python does not have is found before, so that the sort has one: neighbours are of one kind.
    for pair in keyed.windows(2) {
        compare(&pair[0].0, &pair[1].0)?;
    }
    let mut failure = None;
    keyed.sort_by(|(a, _), (b, _)| {
        let (a, b) = if is_reversed { (b, a) } else { (a, b) };
        compare(a, b)
            .unwrap_or_else(|error| {
                failure = Some(error);
                None
            })
            .unwrap_or(Ordering::Equal)
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
    }
}

fn map(value: &Value, given: &[Value], budget: &Budget) -> Result<Value, Error> {
    let (places, named) = split(given);
    // Jinja asks for nothing else if there is nothing to map.
    if !value.is_true() {
        return Ok(Once::value(Vec::new()));
    }
    let all = budget.items(value)?;
    let mut mapped = Vec::with_capacity(all.len());
    match (places, &named) {
        ([], Some(named)) if named.has("attribute") => {
            let arguments = Arguments::new("map", given, &["attribute", "default"])?;
            let default = arguments
                .get("default")
                .filter(|default| !default.is_none());
            for item in all {
                mapped.push(attribute_of(&item, arguments.need("attribute")?, default)?);
            }
        }
        ([name, rest @ ..], named) => {
            let name = string(name, "map")?;
            if !is_filter(name) && !all.is_empty() {
                return Err(refused(format!("filter {name} is unknown")));
            }
            let mut rest = rest.to_vec();
            rest.extend(named.clone().map(Value::from));
            for item in all {
                mapped.push(apply(name, &item, &rest, budget)?);
            }
        }
        ([], _) => return Err(refused("map: expected a filter")),
    }
    budget.pay(Once::value(mapped))
}

fn select(name: &str, value: &Value, given: &[Value], budget: &Budget) -> Result<Value, Error> {
    let (mut places, named): (&[Value], Option<Kwargs>) = split(given);
    // Jinja asks for nothing else if there is nothing to select from.
    if !value.is_true() {
        return Ok(Once::value(Vec::new()));
    }
    let all = budget.items(value)?;
    let mut attribute = None;
    if name.ends_with("attr") {
        let (first, rest) = places
            .split_first()
            .ok_or_else(|| refused(format!("{name}: expected an attribute")))?;
        (attribute, places) = (Some(first), rest);
    }
    let test = places
        .split_first()
        .map(|(test, rest)| {
            let mut rest = rest.to_vec();
            rest.extend(named.map(Value::from));
            string(test, name).map(|test| (test, rest))
        })
        .transpose()?;
    let mut kept = Vec::new();
    for item in all {
        let tested = match attribute {
            Some(attribute) => attribute_of(&item, attribute, None)?,
            None => item.clone(),
        };
        let is_true = match &test {
            Some((test, rest)) => predicates::holds(test, &tested, rest, budget)?,
            None => tested.is_true(),
        };
        if is_true != name.starts_with("reject") {
            kept.push(item);
        }
    }
    budget.pay(Once::value(kept))
}
