//! Splits text into the words within which byte-level BPE merges, by the rules of each vocabulary.
//!
//! A rule is one or more patterns, each applied to the parts that the previous one left: a match is a word, and so is
//! the text between two matches. The published patterns end in `\s+(?!\S)|\s+`, "white space, but not its last
//! character if a word follows". Here they end in `\s+`, and [`Pattern::split`] gives that last character back: without
//! look-ahead, the pattern matches in linear time for any text.

use regex::Regex;

use crate::error::{Error, ErrorKind, Result};

/// GPT-2's words.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
/// LLaMA 3: contractions in any case, at most three digits per word, line breaks separate from other white space.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
/// As LLaMA 3, with every digit as a word.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
/// Mistral's Tekken: words also end where lower case changes to upper case.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
/// GPT-4o (Phi-4-mini): as Tekken, with contractions joined to their word and up to three digits.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";

/// One rule for splitting text.
struct Rule {
    /// Names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// Whether a word that is a token is not split into bytes and merged.
    keeps_known_words: bool,
    /// Whether prompts start with BOS unless the file states otherwise.
    adds_bos: bool,
}

const RULES: &[Rule] = &[
    Rule {
        names: &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        patterns: &[GPT2],
        keeps_known_words: false,
        adds_bos: false,
    },
    Rule {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        patterns: &[r"\p{N}", GPT2],
        keeps_known_words: false,
        adds_bos: false,
    },
    Rule {
        names: &[
            "qwen2",
            "stablelm2",
            "deepseek-r1-qwen",
            "megrez",
            "hunyuan",
        ],
        patterns: &[QWEN2],
        keeps_known_words: false,
        adds_bos: false,
    },
    Rule {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "pixtral",
            "lfm2",
        ],
        patterns: &[LLAMA3],
        keeps_known_words: true,
        adds_bos: true,
    },
    Rule {
        names: &["dbrx", "smaug-bpe"],
        patterns: &[LLAMA3],
        keeps_known_words: false,
        adds_bos: false,
    },
    Rule {
        names: &["tekken"],
        patterns: &[TEKKEN],
        keeps_known_words: true,
        adds_bos: true,
    },
    Rule {
        names: &["gpt-4o", "llama4"],
        patterns: &[GPT4O],
        keeps_known_words: false,
        adds_bos: false,
    },
    // The rule of converters that did not recognize the vocabulary.
    Rule {
        names: &["default"],
        patterns: &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        keeps_known_words: false,
        adds_bos: false,
    },
];

/// Splits text into words.
pub(super) struct PreTokenizer {
    patterns: Vec<Pattern>,
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
            patterns: rule
                .patterns
                .iter()
                .map(|pattern| Pattern::new(pattern))
                .collect(),
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

    /// Calls `word` with every word of `text`, first to last; their concatenation is `text`.
    pub(super) fn split(&self, text: &str, word: &mut impl FnMut(&str)) {
        split_by(&self.patterns, text, word);
    }
}

fn split_by(patterns: &[Pattern], text: &str, word: &mut dyn FnMut(&str)) {
    match patterns.split_first() {
        None => word(text),
        Some((pattern, rest)) => pattern.split(text, &mut |part| split_by(rest, part, word)),
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
