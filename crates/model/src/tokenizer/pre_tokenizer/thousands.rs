//! Rules for digits that no pattern expresses in linear time: numbers are cut into groups of three from their end.

/// Calls `part` with the parts of `text` between its groups of three ASCII digits, counted from the end of a number.
pub(super) fn cut_groups(text: &str, part: &mut dyn FnMut(&str)) {
    let cuts = numbers(text, |digit| digit.is_ascii_digit()).flat_map(|(start, end)| {
        let has_whole_group = (end - start).is_multiple_of(GROUP);
        let first = has_whole_group.then_some(start);
        first
            .into_iter()
            .chain(boundaries(text, start, end))
            .collect::<Vec<_>>()
    });
    cut(text, cuts, part);
}

/// Calls `part` with the groups of numbers of any script; the text before a number stays with its first group.
pub(super) fn cut_after_groups(text: &str, part: &mut dyn FnMut(&str)) {
    let cuts = numbers(text, char::is_numeric).flat_map(|(start, end)| {
        boundaries(text, start, end)
            .chain([end])
            .collect::<Vec<_>>()
    });
    cut(text, cuts, part);
}

/// Number of digits in a group.
const GROUP: usize = 3;

/// Returns the start and the end of each run of digits.
fn numbers(
    text: &str,
    is_digit: impl Fn(char) -> bool + Copy,
) -> impl Iterator<Item = (usize, usize)> {
    let mut position = 0;
    std::iter::from_fn(move || {
        let start = position + text[position..].find(is_digit)?;
        let length = text[start..].find(|next| !is_digit(next));
        position = length.map_or(text.len(), |length| start + length);
        Some((start, position))
    })
}

/// Returns the places between the groups of the number `start..end`; only its first group may be shorter.
fn boundaries(text: &str, start: usize, end: usize) -> impl Iterator<Item = usize> {
    let number = &text[start..end];
    let count = number.chars().count();
    number
        .char_indices()
        .enumerate()
        .filter(move |(index, _)| *index > 0 && (count - index).is_multiple_of(GROUP))
        .map(move |(_, (offset, _))| start + offset)
}

/// Calls `part` with the parts of `text` between `cuts`, which ascend.
fn cut(text: &str, cuts: impl Iterator<Item = usize>, part: &mut dyn FnMut(&str)) {
    let mut position = 0;
    for end in cuts.chain([text.len()]) {
        if end > position {
            part(&text[position..end]);
            position = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SplitFunction;
    use super::*;

    fn parts(rule: SplitFunction, text: &str) -> Vec<String> {
        let mut parts = Vec::new();
        rule(text, &mut |part| parts.push(part.to_owned()));
        assert_eq!(parts.concat(), text);
        parts
    }

    #[test]
    fn numbers_are_cut_into_groups_of_three_from_their_end() {
        assert_eq!(parts(cut_groups, "1234567"), ["1", "234", "567"]);
        assert_eq!(parts(cut_groups, "²345"), ["²", "345"]);
        assert_eq!(parts(cut_groups, "12"), ["12"]);
        assert_eq!(parts(cut_after_groups, "a 1234b"), ["a 1", "234", "b"]);
        assert_eq!(parts(cut_after_groups, "١٢٣٤"), ["١", "٢٣٤"]);
    }
}
