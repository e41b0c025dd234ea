//! Letters as Python's methods of texts see them. What the standard library does not know is refused.

use minijinja::Error;

use super::values::refused;

/// Returns whether a letter has a case.
fn is_cased(letter: char) -> bool {
    letter.is_lowercase() || letter.is_uppercase() || is_digraph(letter)
}

/// Letters with a form of their own for the start of a word.
fn is_digraph(letter: char) -> bool {
    matches!(letter, '\u{1c4}'..='\u{1cc}' | '\u{1f1}'..='\u{1f3}')
}

/// Appends the form of a letter at the start of a word.
fn push_title(out: &mut String, letter: char) -> Result<(), Error> {
    let own = match letter {
        '\u{1c4}'..='\u{1c6}' => "\u{1c5}",
        '\u{1c7}'..='\u{1c9}' => "\u{1c8}",
        '\u{1ca}'..='\u{1cc}' => "\u{1cb}",
        '\u{1f1}'..='\u{1f3}' => "\u{1f2}",
        'ß' => "Ss",
        '\u{10d0}'..='\u{10ff}' | '\u{1f80}'..='\u{1fff}' | '\u{fb00}'..='\u{fb17}' => {
            return Err(refused(format!(
                "the letter {letter} at the start of a word is not supported"
            )));
        }
        _ if letter.to_uppercase().count() > 1 => {
            return Err(refused(format!(
                "the letter {letter} at the start of a word is not supported"
            )));
        }
        _ => {
            out.extend(letter.to_uppercase());
            return Ok(());
        }
    };
    out.push_str(own);
    Ok(())
}

/// Returns `text.title()`.
pub(super) fn title(text: &str) -> Result<String, Error> {
    check_sigma(text)?;
    let (mut titled, mut follows) = (String::with_capacity(text.len()), false);
    for letter in text.chars() {
        match follows {
            true => titled.extend(letter.to_lowercase()),
            false => push_title(&mut titled, letter)?,
        }
        follows = is_cased(letter);
    }
    Ok(titled)
}

/// Returns `text.capitalize()`.
pub(super) fn capitalized(text: &str) -> Result<String, Error> {
    check_sigma(text)?;
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    if let Some(first) = letters.next() {
        push_title(&mut out, first)?;
    }
    out.push_str(&letters.as_str().to_lowercase());
    Ok(out)
}

/// Returns the text of the filter `title`: words begin after spaces and some brackets.
pub(super) fn title_of_words(text: &str) -> Result<String, Error> {
    let is_between = |letter: char| super::spaces::is_space(letter) || "-({[<".contains(letter);
    let (mut titled, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(first) = rest.chars().next() {
        let end = rest
            .find(|letter| is_between(letter) != is_between(first))
            .unwrap_or(rest.len());
        titled.extend(first.to_uppercase());
        titled.push_str(&rest[first.len_utf8()..end].to_lowercase());
        rest = &rest[end..];
    }
    Ok(titled)
}

/// Returns `text.swapcase()`.
pub(super) fn swapped(text: &str) -> Result<String, Error> {
    check_sigma(text)?;
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match (letter.is_uppercase(), letter.is_lowercase()) {
            (true, _) => out.extend(letter.to_lowercase()),
            (_, true) => out.extend(letter.to_uppercase()),
            _ => out.push(letter),
        }
    }
    Ok(out)
}

/// Sigma has a form of its own at the end of a word.
fn check_sigma(text: &str) -> Result<(), Error> {
    match text.contains('Σ') {
        true => Err(refused("the letter Σ is not supported here")),
        false => Ok(()),
    }
}

/// Returns `text.casefold()`.
pub(super) fn casefolded(text: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            'ß' => out.push_str("ss"),
            'µ' => out.push('μ'),
            '\0'..='\u{ff}' => out.extend(letter.to_lowercase()),
            _ if !is_cased(letter) && !letter.is_alphabetic() => out.push(letter),
            _ => {
                return Err(refused(format!(
                    "casefold: the letter {letter} is not supported"
                )));
            }
        }
    }
    Ok(out)
}

/// Returns whether a text has the property that Python's method `name` asks for.
pub(super) fn has_property(name: &str, text: &str) -> Result<bool, Error> {
    let unknown = |letter: char| {
        Err(refused(format!(
            "{name}: the letter {letter} is not supported"
        )))
    };
    let all = |property: &dyn Fn(char) -> Result<bool, Error>| {
        for letter in text.chars() {
            if !property(letter)? {
                return Ok(false);
            }
        }
        Ok(!text.is_empty())
    };
    let is_ideograph = |letter: char| matches!(letter, '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..);
    let is_alpha = |letter: char| match letter {
        _ if letter.is_ascii() => Ok(letter.is_ascii_alphabetic()),
        _ if !letter.is_alphabetic() => Ok(false),
        // Circled letters and signs that join others are alphabetic, but no letters.
        '\u{345}'
        | '\u{2160}'..='\u{2188}'
        | '\u{24b6}'..='\u{24e9}'
        | '\u{1f130}'..='\u{1f189}' => Ok(false),
        '\u{3041}'..='\u{30ff}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}' => Ok(true),
        _ if is_cased(letter) => Ok(true),
        _ => unknown(letter),
    };
    let is_digit = |letter: char| match letter {
        _ if letter.is_ascii() => Ok(letter.is_ascii_digit()),
        '\u{b2}'
        | '\u{b3}'
        | '\u{b9}'
        | '\u{660}'..='\u{669}'
        | '\u{966}'..='\u{96f}'
        | '\u{ff10}'..='\u{ff19}' => {
            Ok(name != "isdecimal" || !matches!(letter, '\u{b2}' | '\u{b3}' | '\u{b9}'))
        }
        '½' | '¼' | '¾' => Ok(name == "isnumeric"),
        _ if is_ideograph(letter) && name == "isnumeric" => unknown(letter),
        _ if !letter.is_numeric() => Ok(false),
        _ => unknown(letter),
    };
    match name {
        "isascii" => Ok(text.is_ascii()),
        "isspace" => all(&|letter| Ok(super::spaces::is_space(letter))),
        "isalpha" => all(&is_alpha),
        "isdigit" | "isdecimal" | "isnumeric" => all(&is_digit),
        "isalnum" => all(&|letter| {
            Ok(is_alpha(letter)?
                || letter.is_ascii_digit()
                || !letter.is_ascii()
                    && match letter.is_numeric() {
                        true => return unknown(letter),
                        false => false,
                    })
        }),
        "isprintable" => Ok(text.chars().all(super::python::is_printable)),
        "isidentifier" if text.is_ascii() => {
            let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            Ok(!text.is_empty()
                && text.chars().all(is_word)
                && !text.starts_with(|letter: char| letter.is_ascii_digit()))
        }
        "isidentifier" => Err(refused(
            "isidentifier: letters beyond ASCII are not supported",
        )),
        "islower" | "isupper" => {
            let is_other = |letter: char| match name {
                "islower" => letter.is_uppercase() || is_digraph(letter) && !letter.is_lowercase(),
                _ => letter.is_lowercase() || is_digraph(letter) && !letter.is_uppercase(),
            };
            Ok(!text.chars().any(is_other) && text.chars().any(is_cased))
        }
        "istitle" => {
            let (mut follows, mut is_any) = (false, false);
            for letter in text.chars() {
                let is_start =
                    letter.is_uppercase() || is_digraph(letter) && !letter.is_lowercase();
                if is_start == follows && is_cased(letter) {
                    return Ok(false);
                }
                is_any |= is_cased(letter);
                follows = is_cased(letter);
            }
            Ok(is_any)
        }
        _ => Err(refused(format!("the method {name} is not supported"))),
    }
}
