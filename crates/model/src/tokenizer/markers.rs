//! Finds the tokens that a text names literally: user-defined ones always, control ones on request.

use aho_corasick::{AhoCorasick, MatchKind};

use super::bounds::{LONGEST_PIECE, MAX_ADDED};
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

/// The kinds of tokens of which automata are built.
const NAMED: [TokenKind; 3] = [
    TokenKind::UserDefined,
    TokenKind::Control,
    TokenKind::Unknown,
];

/// Refuses a vocabulary with longer tokens that texts name than any model has. Errors use `field` as their origin.
pub(super) fn check(vocabulary: &Vocabulary, field: &str) -> Result<()> {
    let ids = NAMED.into_iter().flat_map(|kind| vocabulary.of_kind(kind));
    let ids: Vec<u32> = ids.collect();
    check_lengths(ids.iter().map(|&id| vocabulary.piece(id).len()), |place| {
        format!("{field}[{}]", ids[place])
    })
}

/// Refuses tokens of which an automaton would take too long to build. `name` returns the name of one of them.
fn check_lengths(
    lengths: impl Iterator<Item = usize>,
    name: impl Fn(usize) -> String,
) -> Result<()> {
    let mut left = MAX_ADDED;
    for (place, length) in lengths.enumerate() {
        let message = if length > LONGEST_PIECE {
            format!(
                "has {length} bytes, expected at most {LONGEST_PIECE} for a token that is not plain text"
            )
        } else if length > left {
            format!("exceeds the {MAX_ADDED} bytes of all tokens that are not plain text")
        } else {
            left -= length;
            continue;
        };
        let message = format!("{} {message}", name(place));
        return Err(Error::new(ErrorKind::Malformed, message));
    }
    Ok(())
}

impl Markers {
    /// Returns the tokens of a vocabulary that texts name by their kinds. `strips` returns whether white space before
    /// and after a token is dropped. Errors use `field` as their origin.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        field: &str,
        strips: impl Fn(&str, TokenKind) -> (bool, bool),
    ) -> Result<Self> {
        check(vocabulary, field)?;
        let markers = NAMED.into_iter().flat_map(|kind| {
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
        Self::from_list(markers.collect())
    }

    /// Returns `markers`, in any order.
    pub(super) fn from_list(markers: Vec<Marker>) -> Result<Self> {
        check_lengths(markers.iter().map(|marker| marker.text.len()), |place| {
            let beginning = markers[place].text.chars().take(40);
            format!("the special token {:?}…", beginning.collect::<String>())
        })?;
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
        parse_special: bool,
        mut fragment: impl FnMut(Fragment<'_>),
    ) {
        let Automaton { automaton, markers } = if parse_special {
            &self.all
        } else {
            &self.user_defined
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
