//! White space and ends of lines as Python has them: Unicode's, and the separators of ASCII (U+001C to U+001F).

/// Returns whether `str.isspace` is true for this letter.
pub(super) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\u{1c}'..='\u{1f}')
}

/// Returns whether `str.splitlines` ends a line at this letter.
pub(super) fn ends_line(letter: char) -> bool {
    matches!(
        letter,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// Returns `text.split(None, most)`; `None` splits at all white space.
pub(super) fn words(text: &str, most: Option<usize>) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text.trim_start_matches(is_space));
    while !rest.is_empty() {
        if most == Some(words.len()) {
            words.push(rest);
            break;
        }
        let (word, after) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
        words.push(word);
        rest = after.trim_start_matches(is_space);
    }
    words
}

/// Returns `text.rsplit(None, most)`.
pub(super) fn last_words(text: &str, most: usize) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text.trim_end_matches(is_space));
    while !rest.is_empty() {
        if words.len() == most {
            words.push(rest);
            break;
        }
        let start = rest
            .char_indices()
            .rev()
            .find(|(_, letter)| is_space(*letter));
        let start = start.map_or(0, |(place, letter)| place + letter.len_utf8());
        words.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    words.reverse();
    words
}

/// Returns `text.splitlines(keeps_ends)`.
pub(super) fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(place) = rest.find(ends_line) {
        let end = match rest[place..].starts_with("\r\n") {
            true => place + 2,
            false => place + rest[place..].chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keeps_ends { end } else { place }]);
        rest = &rest[end..];
    }
    lines.extend(Some(rest).filter(|rest| !rest.is_empty()));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_lines_are_pythons() {
        // As Python 3 returns them.
        assert_eq!(words(" a\u{1c}b\u{a0} c ", None), ["a", "b", "c"]);
        assert_eq!(words(" a b c ", Some(1)), ["a", "b c "]);
        assert_eq!(words(" a ", Some(0)), ["a "]);
        assert!(words(" \u{1f}", None).is_empty());
        let text = "a\u{1c}b\u{85}c\u{2028}d\u{b}e\u{c}f\rg\r\nh\u{1f}i\n";
        let expected = ["a", "b", "c", "d", "e", "f", "g", "h\u{1f}i"];
        assert_eq!(lines(text, false), expected);
        assert_eq!(lines("a\r\nb\n\nc", true), ["a\r\n", "b\n", "\n", "c"]);
        assert!(lines("", false).is_empty());
        assert_eq!(lines("\n", false), [""]);
    }
}
