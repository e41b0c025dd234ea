//! Finds the tokens that a text names literally: user-defined ones always, control ones on request.

use aho_corasick::{AhoCorasick, MatchKind};

use super::Special;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::error::{Error, ErrorKind, Result};

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    /// Text to encode; never empty. `is_first` states whether the whole text starts with it.
    Text { text: &'a str, is_first: bool },
    /// A token that the text names.
    Token {
        id: u32,
        is_first: bool,
        is_control: bool,
    },
}

/// A token that a text names.
#[derive(Clone, Debug)]
pub(super) struct Marker {
    pub(super) id: u32,
    /// Its name in a text; never empty.
    pub(super) text: String,
    /// Whether only rendered templates name it.
    pub(super) is_control: bool,
    /// Whether white space before and after it is dropped.
    pub(super) strips: (bool, bool),
}

/// Splits a text at the tokens that it names. If several markers start at one place, the longest is used.
pub(super) struct Markers {
    user_defined: Automaton,
    all: Automaton,
}

struct Automaton {
    automaton: Option<AhoCorasick>,
    markers: Vec<Marker>,
}

impl Automaton {
    fn new(markers: Vec<Marker>) -> Result<Self> {
        if markers.is_empty() {
            return Ok(Self {
                automaton: None,
                markers,
            });
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(markers.iter().map(|marker| &marker.text))
            .map_err(|error| {
                Error::new(
                    ErrorKind::Malformed,
                    format!("the special tokens are too many: {error}"),
                )
            })?;
        Ok(Self {
            automaton: Some(automaton),
            markers,
        })
    }
}

impl Markers {
    /// Returns the tokens of a vocabulary that texts name by their kinds. `strips` returns whether white space before
    /// and after a token is dropped.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        strips: impl Fn(&str, TokenKind) -> (bool, bool),
    ) -> Result<Self> {
        let kinds = [
            TokenKind::UserDefined,
            TokenKind::Control,
            TokenKind::Unknown,
        ];
        let markers = kinds.into_iter().flat_map(|kind| {
            let ids = vocabulary.of_kind(kind);
            let ids = ids.filter(|&id| !vocabulary.piece(id).is_empty());
            let strips = &strips;
            ids.map(move |id| Marker {
                id,
                text: vocabulary.marker(id),
                is_control: kind != TokenKind::UserDefined,
                strips: strips(vocabulary.piece(id), kind),
            })
        });
        Self::of(markers.collect())
    }

    /// Returns `markers`, in any order.
    pub(super) fn of(markers: Vec<Marker>) -> Result<Self> {
        let is_text = |marker: &&Marker| !marker.is_control;
        let user_defined = markers.iter().filter(is_text).cloned().collect();
        Ok(Self {
            user_defined: Automaton::new(user_defined)?,
            all: Automaton::new(markers)?,
        })
    }

    /// Returns whether white space at a token may be dropped.
    pub(super) fn strips(&self) -> bool {
        self.all
            .markers
            .iter()
            .any(|marker| marker.strips != (false, false))
    }

    /// Calls `fragment` with the parts of `text`, first to last.
    pub(super) fn split(
        &self,
        text: &str,
        special: Special,
        mut fragment: impl FnMut(Fragment<'_>),
    ) {
        let Automaton { automaton, markers } = match special {
            Special::AsText => &self.user_defined,
            Special::Parsed => &self.all,
        };
        let mut position = 0;
        for found in automaton
            .iter()
            .flat_map(|automaton| automaton.find_iter(text))
        {
            // White space that a token dropped may contain the start of this match.
            if found.end() <= position {
                continue;
            }
            let marker = &markers[found.pattern().as_usize()];
            let mut before = text.get(position..found.start()).unwrap_or_default();
            if marker.strips.0 {
                before = before.trim_end();
            }
            if !before.is_empty() {
                fragment(Fragment::Text {
                    text: before,
                    is_first: position == 0,
                });
            }
            fragment(Fragment::Token {
                id: marker.id,
                is_first: position == 0 && before.is_empty(),
                is_control: marker.is_control,
            });
            position = found.end();
            if marker.strips.1 {
                position = text.len() - text[position..].trim_start().len();
            }
        }
        if position < text.len() {
            fragment(Fragment::Text {
                text: &text[position..],
                is_first: position == 0,
            });
        }
    }
}
