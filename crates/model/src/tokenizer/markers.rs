//! Finds the tokens that a text names literally: user-defined ones always, control ones on request.

use aho_corasick::{AhoCorasick, MatchKind};

use super::Special;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::error::{Error, ErrorKind, Result};

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    /// Text to encode; never empty.
    Text(&'a str),
    /// A token that the text names.
    Token(u32),
}

/// Splits a text at the tokens that it names. If several markers start at one place, the longest is used.
pub(super) struct Markers {
    user_defined: Automaton,
    all: Automaton,
    /// Whether white space after a control token is dropped (Phi-3).
    strips_after_control: bool,
}

struct Automaton {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Automaton {
    fn new(vocabulary: &Vocabulary, ids: Vec<u32>) -> Result<Self> {
        let ids: Vec<u32> = ids
            .into_iter()
            .filter(|&id| !vocabulary.piece(id).is_empty())
            .collect();
        if ids.is_empty() {
            return Ok(Self {
                automaton: None,
                ids,
            });
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().map(|&id| vocabulary.marker(id)))
            .map_err(|error| {
                Error::new(
                    ErrorKind::Malformed,
                    format!("the special tokens are too many: {error}"),
                )
            })?;
        Ok(Self {
            automaton: Some(automaton),
            ids,
        })
    }
}

impl Markers {
    pub(super) fn new(vocabulary: &Vocabulary, strips_after_control: bool) -> Result<Self> {
        let user_defined: Vec<u32> = vocabulary.of_kind(TokenKind::UserDefined).collect();
        let mut all = user_defined.clone();
        all.extend(vocabulary.of_kind(TokenKind::Control));
        all.extend(vocabulary.of_kind(TokenKind::Unknown));
        Ok(Self {
            user_defined: Automaton::new(vocabulary, user_defined)?,
            all: Automaton::new(vocabulary, all)?,
            strips_after_control,
        })
    }

    /// Returns whether white space after a control token is dropped.
    pub(super) fn strips_after_control(&self) -> bool {
        self.strips_after_control
    }

    /// Calls `fragment` with the parts of `text`, first to last.
    pub(super) fn split(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        special: Special,
        mut fragment: impl FnMut(Fragment<'_>),
    ) {
        let Automaton { automaton, ids } = match special {
            Special::AsText => &self.user_defined,
            Special::Parsed => &self.all,
        };
        let mut position = 0;
        for found in automaton
            .iter()
            .flat_map(|automaton| automaton.find_iter(text))
        {
            // White space that a control token dropped may contain the start of this match.
            if found.end() <= position {
                continue;
            }
            if found.start() > position {
                fragment(Fragment::Text(&text[position..found.start()]));
            }
            let id = ids[found.pattern().as_usize()];
            fragment(Fragment::Token(id));
            position = found.end();
            if self.strips_after_control && vocabulary.kind(id) == TokenKind::Control {
                position = text.len() - text[position..].trim_start().len();
            }
        }
        if position < text.len() {
            fragment(Fragment::Text(&text[position..]));
        }
    }
}
