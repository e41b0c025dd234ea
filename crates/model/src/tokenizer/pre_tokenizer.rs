//! Splits text into the words within which byte-level BPE merges, by the rules of each vocabulary.
//!
//! A [rule](rules) is one or more steps, each applied to the parts that the previous one left. Most are patterns: a match
//! is a word, and so is the text between two matches. The published patterns end in `\s+(?!\S)|\s+`, "white space, but not its last
//! character if a word follows". Here they end in `\s+`, and [`Pattern::split`] gives that last character back: without
//! look-ahead, the pattern matches in linear time for any text.

mod rules;
mod thousands;

use regex::Regex;

use crate::error::{Error, ErrorKind, Result};
use rules::RULES;

/// One rule for splitting text.
struct Rule {
    /// Names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Whether a word that is a token is not split into bytes and merged.
    keeps_known_words: bool,
    /// Whether prompts start with BOS unless the file states otherwise.
    adds_bos: bool,
    /// Whether a separator is put between two texts unless the file states otherwise.
    separates_pairs: bool,
    /// Whether words are merged from bytes; otherwise from characters.
    is_byte_level: bool,
}

/// One way of splitting a part.
enum Step {
    /// A match is a part, and so is the text between two matches.
    Pattern(&'static str),
    /// As [`thousands::cut_groups`].
    Thousands,
    /// As [`thousands::cut_after_groups`].
    ThousandsWithText,
}

/// Splits text into words.
pub(super) struct PreTokenizer {
    splitters: Vec<Splitter>,
    rule: &'static Rule,
}

impl PreTokenizer {
    /// Returns the rule called `name`; errors use `field` as the place of the name.
    pub(super) fn named(name: &str, field: &str) -> Result<Self> {
        let Some(rule) = RULES.iter().find(|rule| rule.names.contains(&name)) else {
            let known: Vec<&str> = RULES.iter().map(|rule| rule.names[0]).collect();
            let message = format!(
                "{field} is the pre-tokenizer {name:?}; Triad supports {}",
                known.join(", ")
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        Ok(Self {
            splitters: rule.steps.iter().map(Splitter::new).collect(),
            rule,
        })
    }

    /// Returns whether a word that is a token is not split into bytes and merged.
    pub(super) fn keeps_known_words(&self) -> bool {
        self.rule.keeps_known_words
    }

    /// Returns whether prompts start with BOS unless the file states otherwise.
    pub(super) fn adds_bos(&self) -> bool {
        self.rule.adds_bos
    }

    /// Returns whether a separator is put between two texts unless the file states otherwise.
    pub(super) fn separates_pairs(&self) -> bool {
        self.rule.separates_pairs
    }

    /// Returns whether words are merged from bytes; otherwise from characters.
    pub(super) fn is_byte_level(&self) -> bool {
        self.rule.is_byte_level
    }

    /// Calls `word` with every word of `text`, first to last; their concatenation is `text`.
    pub(super) fn split(&self, text: &str, word: &mut impl FnMut(&str)) {
        split_by(&self.splitters, text, word);
    }
}

fn split_by(splitters: &[Splitter], text: &str, word: &mut dyn FnMut(&str)) {
    match splitters.split_first() {
        None => word(text),
        Some((splitter, rest)) => splitter.split(text, &mut |part| split_by(rest, part, word)),
    }
}

/// A function that calls another one with each part of a text.
type SplitFunction = fn(&str, &mut dyn FnMut(&str));

/// A compiled [`Step`].
enum Splitter {
    Pattern(Pattern),
    Function(SplitFunction),
}

impl Splitter {
    fn new(step: &Step) -> Self {
        match step {
            Step::Pattern(pattern) => Self::Pattern(Pattern::new(pattern)),
            Step::Thousands => Self::Function(thousands::cut_groups),
            Step::ThousandsWithText => Self::Function(thousands::cut_after_groups),
        }
    }

    fn split(&self, text: &str, part: &mut dyn FnMut(&str)) {
        match self {
            Self::Pattern(pattern) => pattern.split(text, part),
            Self::Function(cut) => cut(text, part),
        }
    }
}

struct Pattern {
    regex: Regex,
    /// Whether the pattern ends in `\s+`, and therefore gives back the last character of white space before a word.
    gives_back: bool,
    /// Whether white space that ends in a line break was matched by `\s*[\r\n]+`, and is therefore kept whole.
    keeps_line_breaks: bool,
}

impl Pattern {
    fn new(pattern: &str) -> Self {
        Self {
            regex: Regex::new(pattern).expect("the patterns of RULES are valid"),
            gives_back: pattern.ends_with(r"|\s+"),
            keeps_line_breaks: pattern.contains(r"|\s*[\r\n]+|"),
        }
    }

    fn split(&self, text: &str, part: &mut dyn FnMut(&str)) {
        let mut position = 0;
        while let Some(found) = self.regex.find_at(text, position) {
            if found.start() > position {
                part(&text[position..found.start()]);
            }
            let end = self.end(text, found.start(), found.end());
            part(&text[found.start()..end]);
            position = end;
        }
        if position < text.len() {
            part(&text[position..]);
        }
    }

    /// Returns the end of the match `start..end` without the part that belongs to the next word.
    fn end(&self, text: &str, start: usize, end: usize) -> usize {
        let found = &text[start..end];
        let Some(last) = found.chars().next_back() else {
            return end;
        };
        let is_line = self.keeps_line_breaks && matches!(last, '\r' | '\n');
        let gives_back = self.gives_back
            && end < text.len()
            && last.is_whitespace()
            && !is_line
            && found.len() > last.len_utf8()
            && found.chars().all(char::is_whitespace);
        if gives_back {
            end - last.len_utf8()
        } else {
            end
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        PreTokenizer::named(name, "`pre`")
            .unwrap()
            .split(text, &mut |word| words.push(word.to_owned()));
        assert_eq!(words.concat(), text);
        words
    }

    #[test]
    fn the_last_space_before_a_word_belongs_to_the_word() {
        assert_eq!(words("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(words("gpt-2", "a   "), ["a", "   "]);
        assert_eq!(words("gpt-2", "\n\nb"), ["\n", "\n", "b"]);
        assert_eq!(words("llama-bpe", "a  \n\n  b"), ["a", "  \n\n", " ", " b"]);
        assert_eq!(words("qwen2", "a\t\tb"), ["a", "\t", "\tb"]);
    }

    #[test]
    fn digits_are_cut_as_the_vocabulary_demands() {
        assert_eq!(words("gpt-2", "x 12345"), ["x", " 12345"]);
        assert_eq!(words("smollm", "x 123"), ["x", " ", "1", "2", "3"]);
        assert_eq!(words("qwen2", "x 123"), ["x", " ", "1", "2", "3"]);
        assert_eq!(words("llama-bpe", "x12345"), ["x", "123", "45"]);
        assert_eq!(words("tekken", "12"), ["1", "2"]);
    }

    #[test]
    fn contractions_are_words() {
        assert_eq!(words("gpt-2", "I'll DON'T"), ["I", "'ll", " DON", "'", "T"]);
        assert_eq!(words("llama-bpe", "I'll DON'T"), ["I", "'ll", " DON", "'T"]);
        assert_eq!(
            words("gpt-4o", "I'll camelCase"),
            ["I'll", " camel", "Case"]
        );
    }

    #[test]
    fn an_unknown_pre_tokenizer_is_an_error_that_names_it() {
        let error = PreTokenizer::named("klingon", "`tokenizer.ggml.pre`")
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("\"klingon\""), "{error}");
    }
}
