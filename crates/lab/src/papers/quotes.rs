//! Numbers in a paper's text, each with its surrounding words.

/// A number of a paper, with its section and its surrounding words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quote {
    /// The number.
    pub value: f64,
    /// Section of the paper, or "abstract".
    pub section: &'static str,
    /// The surrounding words.
    pub text: &'static str,
}

impl Quote {
    pub(super) const fn new(value: f64, section: &'static str, text: &'static str) -> Self {
        Self {
            value,
            section,
            text,
        }
    }

    /// Returns the factor for this percentage more: 23.4 % more is 1.234.
    pub fn more(&self) -> f64 {
        1.0 + self.value / 100.0
    }

    /// Returns the factor for this percentage less: 36.7 % less is 0.633.
    pub fn less(&self) -> f64 {
        1.0 - self.value / 100.0
    }
}

/// Declares constants of quotes, and `ALL`, a list of them for tests.
macro_rules! quotes {
    ($($(#[$doc:meta])* $name:ident = $value:expr, $section:expr, $text:expr;)*) => {
        $($(#[$doc])* pub const $name: Quote = Quote::new($value, $section, $text);)*
        /// All quotes.
        #[cfg(test)]
        pub(in crate::papers) const ALL: &[Quote] = &[$($name),*];
    };
}
pub(super) use quotes;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::{heterollm, llm_npu};

    #[test]
    fn every_number_stands_in_the_words_that_it_is_quoted_from() {
        for Quote {
            value,
            section,
            text,
        } in heterollm::paper::ALL.iter().chain(llm_npu::paper::ALL)
        {
            let text = text.replace(',', "");
            let written = |digits: usize| {
                let number = format!("{value:.digits$}");
                let apart = |before: Option<char>| {
                    before.is_none_or(|one| !one.is_ascii_digit() && one != '.')
                };
                text.match_indices(&number).any(|(at, _)| {
                    let next = text[at + number.len()..].chars().next();
                    apart(text[..at].chars().next_back())
                        && next.is_none_or(|one| !one.is_ascii_digit())
                })
            };
            assert!((0..=2).any(written), "§{section}, {text:?}: {value}");
        }
    }
}
