//! Templates of cells: `{rate} ({share:%})`.
//!
//! A field is `{NAME}`, with a factor (`{bytes/1048576}`, `{seconds*1000}`) and a format (`{share:%1}`) if need be. The
//! formats are `N` for so many decimals, `%` or `%N` for a share in percent, `+` before them for a sign, and `e` for
//! powers of ten. Without a format, a number below 100 has up to two decimals, and a larger one none.

use triad_console::output;

/// Separator of templates of which the first one with all its values is filled in.
const OR: &str = " | ";

/// A parsed cell: templates, of which the first one with all its values is filled in.
#[derive(Debug)]
pub(super) struct Template(Vec<Vec<Piece>>);

#[derive(Debug)]
enum Piece {
    Text(String),
    Field(Field),
}

#[derive(Debug)]
struct Field {
    name: String,
    factor: f64,
    form: NumberFormat,
}

#[derive(Debug)]
enum NumberFormat {
    Digits,
    Decimals {
        decimals: usize,
        percent: bool,
        sign: bool,
    },
    Powers,
}

/// Maximum number of decimals of a format.
const MAX_DECIMALS: usize = 9;

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Fails with the field that cannot be read.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        text.split(OR)
            .map(pieces)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns the names of the values that this template needs.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().filter_map(|piece| match piece {
            Piece::Field(field) => Some(field.name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// Fills in values. Returns an empty text if no template has all of its own.
    pub(super) fn fill(&self, value: impl Fn(&str) -> Option<f64>) -> String {
        let filled = |pieces: &Vec<Piece>| -> Option<String> {
            let text = pieces.iter().map(|piece| match piece {
                Piece::Text(text) => Some(text.clone()),
                Piece::Field(field) => Some(field.form.text(value(&field.name)? * field.factor)),
            });
            text.collect()
        };
        self.0.iter().find_map(filled).unwrap_or_default()
    }
}

/// Parses one template.
fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (field, after) = after
            .split_once('}')
            .ok_or_else(|| format!("`{text}` has a field without end: expected `}}`"))?;
        pieces.push(Piece::Text(before.into()));
        pieces.push(Piece::Field(Field::parse(field).ok_or_else(|| {
            format!(
                "`{{{field}}}` is no field: expected {{NAME}}, {{NAME*FACTOR}} or {{NAME/FACTOR}}, each with :FORMAT if need be"
            )
        })?));
        rest = after;
    }
    pieces.push(Piece::Text(rest.into()));
    Ok(pieces)
}

impl Field {
    fn parse(text: &str) -> Option<Self> {
        let (name, form) = match text.split_once(':') {
            Some((name, form)) => (name, NumberFormat::parse(form)?),
            None => (text, NumberFormat::Digits),
        };
        let (name, factor) = if let Some((name, factor)) = name.split_once('*') {
            (name, factor.parse().ok()?)
        } else if let Some((name, factor)) = name.split_once('/') {
            (name, 1.0 / factor.parse::<f64>().ok()?)
        } else {
            (name, 1.0)
        };
        (!name.is_empty() && factor.is_finite()).then(|| Self {
            name: name.into(),
            factor,
            form,
        })
    }
}

impl NumberFormat {
    fn parse(text: &str) -> Option<Self> {
        if text == "e" {
            return Some(Self::Powers);
        }
        let unsigned = text.strip_prefix('+');
        let text_of_number = unsigned.unwrap_or(text);
        let share = text_of_number.strip_prefix('%');
        let decimals = match share.unwrap_or(text_of_number) {
            "" if share.is_some() => 0,
            digits => digits
                .parse()
                .ok()
                .filter(|decimals| *decimals <= MAX_DECIMALS)?,
        };
        Some(Self::Decimals {
            decimals,
            percent: share.is_some(),
            sign: unsigned.is_some(),
        })
    }

    fn text(&self, value: f64) -> String {
        match self {
            Self::Powers => format!("{value:.1e}"),
            Self::Digits => grouped(&rounded(value)),
            Self::Decimals {
                decimals,
                percent,
                sign,
            } => {
                let value = if *percent { 100.0 * value } else { value };
                let mut text = grouped(&format!("{value:.decimals$}"));
                // A minus of a zero, or of a number that is rounded to zero, says nothing.
                if text.starts_with('-') && !text.contains(|digit| matches!(digit, '1'..='9')) {
                    text.remove(0);
                }
                let plus = if *sign && !text.starts_with('-') {
                    "+"
                } else {
                    ""
                };
                let unit = if *percent { " %" } else { "" };
                format!("{plus}{}{unit}", text.replace('-', "−"))
            }
        }
    }
}

/// Rounds to two decimals below 10, one below 100, none above; whole numbers have none. Numbers below a tenth have four.
fn rounded(value: f64) -> String {
    let decimals = match value.abs() {
        _ if value.fract() == 0.0 => 0,
        small if small < 0.1 => 4,
        // Not 10, which would be written as 10.00.
        some if some < 9.995 => 2,
        some if some < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Puts commas between the thousands of a number with decimals.
fn grouped(number: &str) -> String {
    let (sign, digits) = number.split_at(usize::from(number.starts_with('-')));
    let (whole, decimals) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    format!("{sign}{}{decimals}", output::grouped(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_format_of_their_field() {
        for (template, value, expected) in [
            ("{x}", 1555.4, "1,555"),
            ("{x}", 14.23, "14.2"),
            ("{x}", 1.256, "1.26"),
            ("{x}", 0.0567, "0.0567"),
            ("{x}", 9.996, "10.0"),
            ("{x}", 64.0, "64"),
            ("{x:1}", 64.0, "64.0"),
            ("{x:%}", 0.5567, "56 %"),
            ("{x:%1}", 0.5567, "55.7 %"),
            ("{x:+%1}", 0.0, "+0.0 %"),
            ("{x:+%1}", -0.0087, "−0.9 %"),
            ("{x:+%1}", -0.0001, "+0.0 %"),
            ("{x:e}", 8.64e-7, "8.6e-7"),
            ("{x*1000:0} ms", 1.2345, "1,234 ms"),
            ("a {x/2} b {x:2}", 3.0, "a 1.50 b 3.00"),
        ] {
            let template = Template::parse(template).unwrap();
            assert_eq!(template.fill(|_| Some(value)), expected);
        }
    }

    #[test]
    fn a_cell_without_its_value_is_empty() {
        let template = Template::parse("{a} of {b}").unwrap();
        assert_eq!(template.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(template.fill(|name| (name == "a").then_some(1.0)), "");
        let either = Template::parse("{b} | {a:1}").unwrap();
        assert_eq!(either.fill(|name| (name == "a").then_some(1.0)), "1.0");
    }

    #[test]
    fn a_wrong_field_is_refused_by_name() {
        for template in ["{a", "{}", "{a*}", "{a/0}", "{a:x}", "{a:99}", "{a:}"] {
            let error = Template::parse(template).unwrap_err();
            assert!(error.contains(template.trim_end_matches('}')), "{error}");
        }
    }
}
