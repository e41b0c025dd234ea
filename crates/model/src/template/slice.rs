//! Slices of texts and lists as Python computes them.
//!
//! The engine's own slices differ where the step is negative, and panic on some of those.

use minijinja::value::Tuple;
use minijinja::{Error, ErrorKind, Value};

use super::values::{Kind, Number, items, kind, number, refused, unsupported};

/// Returns `value[start:stop:step]`, where each limit may be none.
pub(super) fn slice(value: &Value, limits: &[Value; 3]) -> Result<Value, Error> {
    match kind(value) {
        _ if value.is_safe() => {
            let message = "a part of a text that is marked as safe is not supported";
            return Err(refused(message));
        }
        Kind::Str | Kind::List | Kind::Tuple => {}
        _ => return Err(unsupported("a part", value)),
    }
    let mut numbers = [None; 3];
    for (limit, place) in limits.iter().zip(&mut numbers) {
        *place = match number(limit) {
            None if limit.is_none() => None,
            // A number beyond these is beyond both ends of any list.
            Some(Number::Int(limit)) => Some(limit.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
            _ => return Err(refused("the limits of a slice are integers or none")),
        };
    }
    let [start, stop, step] = numbers;
    let limits = (start, stop, step.unwrap_or(1));
    if let Some(text) = value.as_str() {
        let letters: Vec<char> = text.chars().collect();
        let chosen = places(letters.len(), limits)?;
        return Ok(chosen
            .map(|place| letters[place])
            .collect::<String>()
            .into());
    }
    let all = items(value)?;
    let chosen = places(all.len(), limits)?.map(|place| all[place].clone());
    let chosen: Vec<Value> = chosen.collect();
    Ok(match kind(value) {
        Kind::Tuple => Tuple::new(chosen).into(),
        _ => chosen.into(),
    })
}

/// Returns the places of a slice in a list of `length` elements.
fn places(
    length: usize,
    (start, stop, step): (Option<i64>, Option<i64>, i64),
) -> Result<impl Iterator<Item = usize>, Error> {
    if step == 0 {
        let message = "cannot slice by step size of 0";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let length = length as i64;
    // The places before the first element and after the last one are limits of steps to the left and to the right.
    let (low, high) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let limit = |limit: Option<i64>, default: i64| match limit {
        None => default,
        Some(limit) if limit < 0 => limit.saturating_add(length).max(low),
        Some(limit) => limit.min(high),
    };
    let (start, stop) = match step > 0 {
        true => (limit(start, low), limit(stop, high)),
        false => (limit(start, high), limit(stop, low)),
    };
    let is_inside = move |place: &i64| (step > 0 && *place < stop) || (step < 0 && *place > stop);
    let places = std::iter::successors(Some(start), move |place| place.checked_add(step));
    Ok(places.take_while(is_inside).map(|place| place as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_has_the_elements_of_pythons() {
        // As Python 3 returns them for 'abcde'.
        for (start, stop, step, expected) in [
            (None, None, None, "abcde"),
            (Some(1), Some(3), None, "bc"),
            (Some(-2), None, None, "de"),
            (Some(-9), Some(9), None, "abcde"),
            (None, None, Some(2), "ace"),
            (None, None, Some(-1), "edcba"),
            (Some(2), Some(0), Some(-1), "cb"),
            (Some(0), Some(2), Some(-1), ""),
            (Some(-9), None, Some(-1), ""),
            (None, Some(1), Some(-2), "ec"),
            (None, None, Some(i64::MIN), "e"),
            (None, None, Some(i64::MAX), "a"),
            (Some(i64::MIN), Some(i64::MAX), None, "abcde"),
        ] {
            let limit = |limit: Option<i64>| limit.map_or(Value::from(()), Value::from);
            let limits = || [start, stop, step].map(limit);
            let text = slice(&Value::from("abcde"), &limits()).unwrap();
            assert_eq!(text.as_str(), Some(expected), "{start:?}:{stop:?}:{step:?}");
            let letters: Vec<_> = "abcde".chars().map(String::from).collect();
            let list = slice(&Value::from(letters), &limits()).unwrap();
            let joined: String = list
                .try_iter()
                .unwrap()
                .map(|item| item.to_string())
                .collect();
            assert_eq!(joined, expected, "{start:?}:{stop:?}:{step:?}");
        }
        let zero = [Value::from(()), Value::from(()), Value::from(0)];
        assert!(slice(&Value::from("a"), &zero).is_err());
    }
}
