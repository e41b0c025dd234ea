//! Escapes in the strings of a template.
//!
//! Jinja decodes them as Python does. The engine knows other ones: it takes `\/` for a slash and keeps `\U0001f600`, `\a`
//! and `\v` as they are. These are replaced by escapes that mean the same to both.

use minijinja::machinery::{self, Token};

use super::{NAME, syntax};
use crate::error::{Error, ErrorKind, Result};

/// Hexadecimal digits after `\U`.
const DIGITS: usize = 8;

/// Returns `source` with escapes that the engine decodes as Python decodes those of `source`.
///
/// # Errors
/// [`ErrorKind::Template`], with the line, for an escape that Python refuses, and for a character by its name.
pub(super) fn as_python(source: String) -> Result<String> {
    if !source.contains('\\') {
        return Ok(source);
    }
    let (mut replaced, mut end) = (String::new(), 0);
    for token in machinery::tokenize(&source, false, syntax()?) {
        // The compiler reports what is no token.
        let Ok((token, span)) = token else { break };
        let place = span.start_offset as usize..span.end_offset as usize;
        let is_string = matches!(token, Token::Str(_) | Token::String(_));
        let Some(literal) = source.get(place.clone()).filter(|_| is_string) else {
            continue;
        };
        let literal = of_literal(literal).map_err(|reason| {
            let message = format!("{NAME}, line {}: {reason}", span.start_line);
            Error::new(ErrorKind::Template, message)
        })?;
        if let Some(literal) = literal {
            replaced += &source[end..place.start];
            replaced += &literal;
            end = place.end;
        }
    }
    Ok(replaced + &source[end..])
}

/// Returns the literal with other escapes; `None` if none differs.
fn of_literal(literal: &str) -> Result<Option<String>, String> {
    let (mut replaced, mut rest, mut differs) = (String::new(), literal, false);
    while let Some(place) = rest.find('\\') {
        replaced += &rest[..place];
        let mut letters = rest[place + 1..].chars();
        let Some(letter) = letters.next() else { break };
        rest = letters.as_str();
        differs |= matches!(letter, 'a' | 'v' | '/' | '\n' | 'U');
        match letter {
            'a' => replaced += "\\x07",
            'v' => replaced += "\\x0b",
            '/' => replaced += "\\\\/",
            // The next line continues the string.
            '\n' => {}
            'U' => {
                let digits = rest.get(..DIGITS).filter(|digits| {
                    let mut digits = digits.bytes();
                    digits.all(|digit| digit.is_ascii_hexdigit())
                });
                let digits = digits.ok_or("expected eight hexadecimal digits after \\U")?;
                let letter = u32::from_str_radix(digits, 16)
                    .ok()
                    .and_then(char::from_u32);
                let letter = letter.ok_or_else(|| format!("\\U{digits} is not a character"))?;
                let mut units = [0; 2];
                for unit in letter.encode_utf16(&mut units) {
                    replaced += &format!("\\u{unit:04x}");
                }
                rest = &rest[DIGITS..];
            }
            'N' => return Err("a character by its name (\\N) is not supported".to_owned()),
            other => {
                replaced.push('\\');
                replaced.push(other);
            }
        }
    }
    replaced += rest;
    Ok(Some(replaced).filter(|_| differs))
}

#[cfg(test)]
mod tests {
    use super::super::ChatTemplate;

    #[test]
    fn a_string_is_decoded_as_python_decodes_it() {
        // As Jinja 3.1 renders them.
        for (source, expected) in [
            (r"{{ '\a\v\b\f' }}", "\u{7}\u{b}\u{8}\u{c}"),
            (
                r"{{ '\U0001F600' ~ '\u00e9\x41\101' }}",
                "\u{1f600}\u{e9}AA",
            ),
            (r"{{ '\/' }}{{ '\\/' }}", r"\/\/"),
            (r"{{ '\q' }}{{ '\\a' }}{{ '\'' }}", r"\q\a'"),
            ("{{ 'a\\\nb' }}", "ab"),
            (r"\a\/ {# '\U' #}{% raw %}'\U'{% endraw %}", r"\a\/ '\U'"),
            (r"{{ 'é\U000000e9' }}{% set a = '\v' %}{{ a }}", "éé\u{b}"),
        ] {
            let template = ChatTemplate::new(source, None, None).unwrap();
            assert_eq!(template.render(&[], false).unwrap(), expected, "{source}");
        }
        for (source, reason) in [
            (r"{{ '\N{BULLET}' }}", "by its name"),
            (r"{{ '\U0001F60' }}", "eight hexadecimal digits"),
            (r"{{ '\U00110000' }}", "not a character"),
        ] {
            let error = ChatTemplate::new(format!("\n{source}"), None, None).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("line 2") && error.contains(reason),
                "{error}"
            );
        }
    }
}
