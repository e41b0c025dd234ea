//! Ends an answer at a stop string, and never emits a part of one.

/// Holds back text that may still become a stop string.
pub(crate) struct StopMatcher<'a> {
    stops: &'a [String],
    held: String,
}

/// The text to emit, and whether the answer ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) text: String,
    /// The index of the stop string that was found.
    pub(crate) stopped_by: Option<usize>,
}

impl<'a> StopMatcher<'a> {
    pub(crate) fn new(stops: &'a [String]) -> Self {
        Self {
            stops,
            held: String::new(),
        }
    }

    pub(crate) fn push(&mut self, text: &str) -> Step {
        self.held.push_str(text);
        let stops = self
            .stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty());
        // Of stop strings that begin at the same position, the shortest is found, since it is complete first.
        let found = stops
            .filter_map(|(place, stop)| Some((self.held.find(stop.as_str())?, stop.len(), place)));
        if let Some((start, _, place)) = found.min() {
            self.held.truncate(start);
            return Step {
                text: std::mem::take(&mut self.held),
                stopped_by: Some(place),
            };
        }
        let possible = self
            .held
            .char_indices()
            .map(|(index, _)| index)
            .find(|index| self.may_start_at(*index));
        let rest = self.held.split_off(possible.unwrap_or(self.held.len()));
        Step {
            text: std::mem::replace(&mut self.held, rest),
            stopped_by: None,
        }
    }

    /// Returns the text that was held back, at the end of the answer.
    pub(crate) fn finish(self) -> String {
        self.held
    }

    fn may_start_at(&self, index: usize) -> bool {
        let tail = &self.held[index..];
        self.stops
            .iter()
            .any(|stop| stop.len() > tail.len() && stop.starts_with(tail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            text += &step.text;
            if step.stopped_by.is_some() {
                return (text, true);
            }
        }
        (text + &matcher.finish(), false)
    }

    #[test]
    fn a_stop_string_over_several_pieces_is_found_and_not_shown() {
        assert_eq!(
            shown(&["\nUser:"], &["Hi", "\nUs", "er", ": more"]),
            ("Hi".into(), true)
        );
    }

    #[test]
    fn a_false_start_is_shown_after_all() {
        assert_eq!(
            shown(&["\nUser:"], &["Hi\nUs", "ually"]),
            ("Hi\nUsually".into(), false)
        );
        assert_eq!(shown(&["END"], &["the EN"]), ("the EN".into(), false));
    }

    #[test]
    fn the_earliest_of_several_stop_strings_counts() {
        assert_eq!(shown(&["b", "a"], &["xxabx"]), ("xx".into(), true));
        let stops = ["b", "abc", "ab", "a"].map(str::to_owned);
        assert_eq!(
            StopMatcher::new(&stops[..3]).push("xxabc").stopped_by,
            Some(2)
        );
        assert_eq!(StopMatcher::new(&stops).push("xxabc").stopped_by, Some(3));
    }

    proptest! {
        #[test]
        fn how_the_text_is_cut_into_pieces_does_not_matter(text in "[ab€]{0,12}", stop in "[ab€]{1,3}", cut in 0usize..12) {
            let cut = text.char_indices().map(|(index, _)| index).nth(cut).unwrap_or(text.len());
            let whole = shown(&[&stop], &[&text]);
            prop_assert_eq!(shown(&[&stop], &[&text[..cut], &text[cut..]]), whole.clone());
            prop_assert_eq!(whole.0, text.split(&stop).next().unwrap());
        }
    }
}
