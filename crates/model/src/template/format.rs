//! Python's two ways to format values: `'%s' % value` and `'{}'.format(value)`.

use minijinja::{Error, Value};

use super::budget::Budget;
use super::python;
use super::values::{self, Kind, Number, kind, number, refused, string};

/// Maximum digits after the point.
const MAX_PRECISION: usize = 100;

/// How a field is written.
#[derive(Clone, Debug, Default)]
struct Field {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    sign: Option<char>,
    is_alternate: bool,
    width: usize,
    precision: Option<usize>,
    has_commas: bool,
    /// The letter of the presentation.
    letter: Option<char>,
}

/// Returns `text % arguments`.
pub(super) fn percent(text: &str, arguments: &Value, budget: &Budget) -> Result<String, Error> {
    let is_tuple = kind(arguments) == Kind::Tuple;
    let all = match is_tuple {
        true => values::items(arguments)?,
        false => vec![arguments.clone()],
    };
    // Python takes what has elements by name as a mapping, and does not ask for each of its elements to be used.
    let may_be_left = matches!(
        kind(arguments),
        Kind::Dict | Kind::List | Kind::Range | Kind::Undefined
    );
    let (mut next, mut uses_names) = (all.iter(), false);
    let mut letters = text.chars().peekable();
    let mut out = String::new();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let mut named = None;
        if letters.next_if_eq(&'(').is_some() {
            let name: String = letters
                .by_ref()
                .take_while(|letter| *letter != ')')
                .collect();
            if kind(arguments) != Kind::Dict {
                return Err(refused("format requires a mapping"));
            }
            let entry = values::entry(arguments, &name.as_str().into())?;
            named = Some(entry.ok_or_else(|| refused(format!("format: no entry {name}")))?);
            uses_names = true;
        }
        let mut field = Field::default();
        while let Some(flag) = letters.next_if(|letter| "#0- +".contains(*letter)) {
            match flag {
                '#' => field.is_alternate = true,
                '0' if field.align != Some('<') => {
                    (field.fill, field.align) = (Some('0'), Some('='));
                }
                '-' => (field.fill, field.align) = (None, Some('<')),
                ' ' if field.sign == Some('+') => {}
                ' ' | '+' => field.sign = Some(flag),
                _ => {}
            }
        }
        field.width = digits(&mut letters)?.unwrap_or(0);
        if letters.next_if_eq(&'.').is_some() {
            field.precision = Some(digits(&mut letters)?.unwrap_or(0));
        }
        while letters.next_if(|letter| "hlL".contains(*letter)).is_some() {}
        let conversion = letters
            .next()
            .ok_or_else(|| refused("format: it ends within a field"))?;
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => next
                .next()
                .cloned()
                .ok_or_else(|| refused("format: not enough arguments"))?,
        };
        let written = match conversion {
            's' | 'r' => {
                let text = match conversion {
                    's' => budget.text(&value)?,
                    _ => budget.literal(&value)?,
                };
                let text = match field.precision.take() {
                    Some(most) => text.chars().take(most).collect(),
                    None => text,
                };
                (field.fill, field.align) = (
                    None,
                    Some(field.align.filter(|align| *align == '<').unwrap_or('>')),
                );
                text
            }
            'd' | 'i' | 'u' => match number(&value) {
                Some(Number::Int(integer)) => whole(integer, &mut field, 'd')?,
                Some(Number::Float(float)) if float.abs() < 1e36 => {
                    whole(float as i128, &mut field, 'd')?
                }
                _ => {
                    return Err(refused(format!(
                        "%{conversion}: expected a number, found {}",
                        kind(&value).name()
                    )));
                }
            },
            'x' | 'X' | 'o' => match number(&value) {
                Some(Number::Int(integer)) if field.precision.is_none() && !field.is_alternate => {
                    whole(integer, &mut field, conversion)?
                }
                _ => return Err(refused(format!("%{conversion}: expected an integer"))),
            },
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match number(&value) {
                Some(_) if field.is_alternate => {
                    return Err(refused("format: the flag # is not supported"));
                }
                Some(number) => real(as_float(number), &field, conversion)?,
                None => {
                    return Err(refused(format!(
                        "%{conversion}: expected a number, found {}",
                        kind(&value).name()
                    )));
                }
            },
            'c' => match (value.as_str(), field.precision) {
                (Some(text), _) if text.chars().count() == 1 => text.to_owned(),
                _ => return Err(refused("%c: expected a letter")),
            },
            other => {
                return Err(refused(format!(
                    "format: the field %{other} is not supported"
                )));
            }
        };
        out.push_str(&padded(&written, &field, '>', budget)?);
        budget.check_text(&out)?;
    }
    if !uses_names && next.next().is_some() && !may_be_left {
        return Err(refused("format: not all arguments are used"));
    }
    budget.spend(out.len())?;
    Ok(out)
}

/// Returns `text.format(*places, **names)`.
pub(super) fn braces(
    text: &str,
    places: &[Value],
    names: &dyn Fn(&str) -> Option<Value>,
    budget: &Budget,
) -> Result<String, Error> {
    let mut letters = text.chars().peekable();
    let (mut out, mut next, mut is_numbered) = (String::new(), 0, false);
    while let Some(letter) = letters.next() {
        match letter {
            '{' if letters.next_if_eq(&'{').is_some() => out.push('{'),
            '}' if letters.next_if_eq(&'}').is_some() => out.push('}'),
            '}' => return Err(refused("format: a single }")),
            '{' => {
                let mut inner = String::new();
                loop {
                    match letters.next() {
                        Some('}') => break,
                        Some('{') => {
                            return Err(refused("format: fields within fields are not supported"));
                        }
                        Some(letter) => inner.push(letter),
                        None => return Err(refused("format: a single {")),
                    }
                }
                let (name, spec) = inner.split_once(':').unwrap_or((&inner, ""));
                let (name, conversion) = match name.split_once('!') {
                    Some((name, conversion)) => (name, Some(conversion)),
                    None => (name, None),
                };
                let missing = || refused(format!("format: no argument {name}"));
                let value = match name {
                    "" if is_numbered => {
                        return Err(refused("format: fields with and without numbers"));
                    }
                    "" => {
                        next += 1;
                        places.get(next - 1).cloned().ok_or_else(missing)?
                    }
                    _ if name.bytes().all(|byte| byte.is_ascii_digit()) => {
                        if next > 0 {
                            return Err(refused("format: fields with and without numbers"));
                        }
                        is_numbered = true;
                        let place = name.parse::<usize>().ok();
                        place
                            .and_then(|place| places.get(place))
                            .cloned()
                            .ok_or_else(missing)?
                    }
                    _ if name.contains(['.', '[']) => {
                        return Err(refused("format: attributes in fields are not supported"));
                    }
                    _ => names(name).ok_or_else(missing)?,
                };
                let value = match conversion {
                    None => value,
                    Some("r") => budget.literal(&value)?.into(),
                    Some("s") => budget.text(&value)?.into(),
                    Some(other) => {
                        return Err(refused(format!(
                            "format: the conversion !{other} is not supported"
                        )));
                    }
                };
                out.push_str(&formatted(&value, spec, budget)?);
                budget.check_text(&out)?;
            }
            letter => out.push(letter),
        }
    }
    budget.spend(out.len())?;
    Ok(out)
}

/// Returns `format(value, spec)`.
fn formatted(value: &Value, spec: &str, budget: &Budget) -> Result<String, Error> {
    if spec.is_empty() {
        return budget.text(value);
    }
    let mut field = parse(spec)?;
    if let Some(text) = value.as_str() {
        if !matches!(field.letter, None | Some('s'))
            || field.sign.is_some()
            || field.has_commas
            || field.is_alternate
            || field.align == Some('=')
        {
            return Err(refused(format!("format: {spec} is not for texts")));
        }
        let text = match field.precision {
            Some(most) => text.chars().take(most).collect(),
            None => text.to_owned(),
        };
        return padded(&text, &field, '<', budget);
    }
    let written = match (number(value), field.letter) {
        (_, _) if field.is_alternate => return Err(refused("format: # is not supported")),
        (Some(Number::Int(_)), None | Some('d' | 'x' | 'X' | 'o' | 'b'))
            if field.precision.is_some() =>
        {
            return Err(refused("format: an integer has no precision"));
        }
        (Some(Number::Int(integer)), None | Some('d' | 'x' | 'X' | 'o' | 'b')) => {
            let letter = field.letter.unwrap_or('d');
            whole(integer, &mut field, letter)?
        }
        (Some(number), Some(letter @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G'))) => {
            real(as_float(number), &field, letter)?
        }
        (Some(number), Some('%')) => format!("{}%", real(100.0 * as_float(number), &field, 'f')?),
        (Some(Number::Float(float)), None) if field.precision.is_none() => {
            signed(python::float(float.abs()), float.is_sign_negative(), &field)
        }
        _ => {
            return Err(refused(format!(
                "format: {spec} is not supported for {}",
                kind(value).name()
            )));
        }
    };
    let written = match field.has_commas {
        true => with_commas(&written, &field)?,
        false => written,
    };
    padded(&written, &field, '>', budget)
}

/// Reads `[[fill]align][sign][#][0][width][,][.precision][letter]`.
fn parse(spec: &str) -> Result<Field, Error> {
    let is_align = |letter: char| "<>^=".contains(letter);
    let mut field = Field::default();
    let all: Vec<char> = spec.chars().collect();
    let mut start = 0;
    match all.as_slice() {
        [fill, align, ..] if is_align(*align) => {
            (field.fill, field.align, start) = (Some(*fill), Some(*align), 2);
        }
        [align, ..] if is_align(*align) => (field.align, start) = (Some(*align), 1),
        _ => {}
    }
    let mut letters = spec
        .chars()
        .skip(start)
        .collect::<Vec<_>>()
        .into_iter()
        .peekable();
    field.sign = letters.next_if(|letter| "+- ".contains(*letter));
    field.is_alternate = letters.next_if_eq(&'#').is_some();
    if letters.next_if_eq(&'0').is_some() && field.align.is_none() {
        (field.fill, field.align) = (Some('0'), Some('='));
    }
    field.width = digits(&mut letters)?.unwrap_or(0);
    field.has_commas = letters.next_if_eq(&',').is_some();
    if letters.next_if_eq(&'.').is_some() {
        let precision = digits(&mut letters)?;
        field.precision =
            Some(precision.ok_or_else(|| refused("format: no precision after the point"))?);
    }
    field.letter = letters.next();
    match letters.next() {
        None => Ok(field),
        Some(_) => Err(refused(format!("format: {spec} is not supported"))),
    }
}

fn digits(
    letters: &mut std::iter::Peekable<impl Iterator<Item = char>>,
) -> Result<Option<usize>, Error> {
    let mut digits = String::new();
    while let Some(digit) = letters.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    if letters.peek() == Some(&'*') {
        return Err(refused("format: * is not supported"));
    }
    let too_large = |_| refused("format: a width that is too large");
    Ok(match digits.is_empty() {
        true => None,
        false => Some(digits.parse().map_err(too_large)?),
    })
}

fn as_float(number: Number) -> f64 {
    match number {
        Number::Int(number) => number as f64,
        Number::Float(number) => number,
    }
}

/// Puts the sign before the digits of a number.
fn signed(digits: String, is_negative: bool, field: &Field) -> String {
    match (is_negative, field.sign) {
        (true, _) => format!("-{digits}"),
        (false, Some(sign @ ('+' | ' '))) => format!("{sign}{digits}"),
        (false, _) => digits,
    }
}

fn whole(integer: i128, field: &mut Field, letter: char) -> Result<String, Error> {
    let size = integer.unsigned_abs();
    let mut digits = match letter {
        'x' => format!("{size:x}"),
        'X' => format!("{size:X}"),
        'o' => format!("{size:o}"),
        'b' => format!("{size:b}"),
        _ => size.to_string(),
    };
    if let Some(least) = field.precision.take() {
        if least > MAX_PRECISION {
            return Err(refused("format: a precision that is too large"));
        }
        digits = format!("{}{digits}", "0".repeat(least.saturating_sub(digits.len())));
    }
    Ok(signed(digits, integer < 0, field))
}

fn real(float: f64, field: &Field, letter: char) -> Result<String, Error> {
    let precision = field.precision.unwrap_or(6);
    if precision > MAX_PRECISION {
        return Err(refused("format: a precision that is too large"));
    }
    if !float.is_finite() {
        return Err(refused(
            "format: a number that is not finite is not supported",
        ));
    }
    let size = float.abs();
    let scientific = |precision: usize| {
        let text = format!("{size:.precision$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        (mantissa.to_owned(), exponent.parse::<i32>().unwrap_or(0))
    };
    let joined = |mantissa: &str, exponent: i32| {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    };
    let without_zeros = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    let digits = match letter.to_ascii_lowercase() {
        'e' => {
            let (mantissa, exponent) = scientific(precision);
            joined(&mantissa, exponent)
        }
        'g' => {
            let precision = precision.max(1);
            let (mantissa, exponent) = scientific(precision - 1);
            match usize::try_from(precision as i32 - 1 - exponent) {
                Ok(places) if exponent >= -4 => without_zeros(format!("{size:.places$}")),
                _ => joined(&without_zeros(mantissa), exponent),
            }
        }
        _ => format!("{size:.precision$}"),
    };
    let digits = match letter.is_ascii_uppercase() {
        true => digits.to_uppercase(),
        false => digits,
    };
    Ok(signed(digits, float.is_sign_negative(), field))
}

/// Puts a comma between thousands.
fn with_commas(written: &str, field: &Field) -> Result<String, Error> {
    if field.fill == Some('0')
        || written.contains('e')
        || matches!(field.letter, Some('x' | 'X' | 'o' | 'b'))
    {
        return Err(refused("format: a comma is not supported here"));
    }
    let start = written
        .find(|letter: char| letter.is_ascii_digit())
        .unwrap_or(0);
    let end = written[start..]
        .find('.')
        .map_or(written.len(), |end| start + end);
    let digits = &written[start..end];
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    Ok([&written[..start], &grouped, &written[end..]].concat())
}

/// Fills a text up to the width of its field, on the side that `field` or else `default` says.
fn padded(text: &str, field: &Field, default: char, budget: &Budget) -> Result<String, Error> {
    let missing = field.width.saturating_sub(text.chars().count());
    if missing == 0 {
        return Ok(text.to_owned());
    }
    let fill = field.fill.unwrap_or(' ');
    budget.spend(missing.saturating_mul(fill.len_utf8()))?;
    let filled = |count: usize| fill.to_string().repeat(count);
    Ok(match field.align.unwrap_or(default) {
        '<' => text.to_owned() + &filled(missing),
        '^' => [&filled(missing / 2), text, &filled(missing - missing / 2)].concat(),
        '=' => {
            let sign = text.len() - text.trim_start_matches(['+', '-', ' ']).len();
            [&text[..sign], &filled(missing), &text[sign..]].concat()
        }
        _ => filled(missing) + text,
    })
}

/// Returns `text.center(width, fill)` and its like: `align` is `^`, `<` or `>`.
pub(super) fn aligned(
    text: &str,
    width: i64,
    fill: Option<&Value>,
    align: char,
    budget: &Budget,
) -> Result<String, Error> {
    let fill = fill.map_or(Ok(" "), |fill| string(fill, "the fill"))?;
    let mut letters = fill.chars();
    let (Some(fill), None) = (letters.next(), letters.next()) else {
        return Err(refused("the fill: expected one letter"));
    };
    let width = usize::try_from(width).unwrap_or(0);
    let length = text.chars().count();
    if align != '^' {
        let field = Field {
            fill: Some(fill),
            align: Some(align),
            width,
            ..Field::default()
        };
        return padded(text, &field, align, budget);
    }
    let missing = width.saturating_sub(length);
    budget.spend(missing.saturating_mul(fill.len_utf8()))?;
    // CPython puts the odd letter to the left if the width is odd.
    let left = missing / 2 + (missing & width & 1);
    let filled = |count: usize| fill.to_string().repeat(count);
    Ok([&filled(left), text, &filled(missing - left)].concat())
}
