//! User texts in rendered templates: names of control tokens in them remain ordinary text.
//!
//! Before the template is rendered, each such name is broken by a mark, a character that no text contains. The rendered
//! text then only names the control tokens that the template itself writes; the text between these tokens is encoded
//! without the mark.

use aho_corasick::{AhoCorasick, MatchKind};

use super::limit::{Encoded, Limit};
use super::{EncodeOptions, Encoder, MAX_TEXT, TokenKind, Tokenizer};
use crate::error::{Error, ErrorKind, Result};

/// Marks user texts, and encodes rendered texts.
pub struct Letters<'a> {
    tokenizer: &'a Tokenizer,
    names: Option<AhoCorasick>,
    mark: char,
}

impl<'a> Letters<'a> {
    /// Creates marks for `texts`; only these may be marked.
    ///
    /// # Errors
    /// If the tokenizer has more control tokens than can be searched for.
    pub fn new(tokenizer: &'a Tokenizer, texts: &[&str]) -> Result<Self> {
        let is_free = |mark: &char| !texts.iter().any(|text| text.contains(*mark));
        // A private-use character that does not occur in these texts.
        let mark = ('\u{10f000}'..='\u{10fffd}').find(is_free);
        let failed = |message: String| Error::new(ErrorKind::Tokenizer, message);
        let mark =
            mark.ok_or_else(|| failed("the texts contain every private-use character".into()))?;
        let names = tokenizer
            .vocabulary
            .of_kind(TokenKind::Control)
            .map(|id| tokenizer.vocabulary.marker(id));
        let names: Vec<_> = names.filter(|name| name.chars().nth(1).is_some()).collect();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(&names);
        let automaton = automaton
            .map_err(|error| failed(format!("the special tokens are too many: {error}")))?;
        Ok(Self {
            tokenizer,
            names: (!names.is_empty()).then_some(automaton),
            mark,
        })
    }

    /// Returns `text` with a mark in each name of a control token.
    pub fn mark(&self, text: &str) -> String {
        let found = self
            .names
            .iter()
            .flat_map(|names| names.find_overlapping_iter(text));
        let mut starts: Vec<_> = found.map(|found| found.start()).collect();
        starts.sort_unstable();
        starts.dedup();
        let (mut marked, mut end) = (String::with_capacity(text.len()), 0);
        for start in starts {
            let next = start + text[start..].chars().next().map_or(0, char::len_utf8);
            marked.push_str(&text[end..next]);
            marked.push(self.mark);
            end = next;
        }
        marked + &text[end..]
    }

    /// Returns the tokens of a rendered text: control tokens where it names them, and ordinary text where names are
    /// marked.
    ///
    /// Encoding ends early if the text has more than `most` tokens, or if `stop` returns true.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub fn encode_within(
        &self,
        text: &str,
        most: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<Encoded> {
        let Self {
            tokenizer, mark, ..
        } = *self;
        if !text.contains(mark) || text.len() > MAX_TEXT {
            return tokenizer.encode_within(text, EncodeOptions::TEMPLATE, most, stop);
        }
        let limit = &Limit::new(most, stop);
        let mut tokens = Vec::new();
        let plain = |text: &str| text.replace(mark, "");
        match &tokenizer.encoder {
            Encoder::Own { words, markers } => words.encode_fragments(
                (&tokenizer.vocabulary, markers),
                (text, true),
                limit,
                Some(mark),
                &mut tokens,
            )?,
            Encoder::HuggingFace(encoder) => {
                // Between two control tokens, either no name is marked or all are plain text.
                let mut rest = text;
                while !rest.is_empty() {
                    let (start, end) = encoder
                        .next_control(rest)
                        .unwrap_or((rest.len(), rest.len()));
                    let (before, control) = (&rest[..start], &rest[start..end]);
                    if before.contains(mark) {
                        encoder.encode(&plain(before), false, limit, &mut tokens)?;
                        encoder.encode(control, true, limit, &mut tokens)?;
                    } else {
                        encoder.encode(&rest[..end], true, limit, &mut tokens)?;
                    }
                    rest = &rest[end..];
                }
            }
        }
        Ok(limit.outcome(tokens))
    }
}
