//! SentencePiece's normalization of a text: a map of characters, spaces, and the space before the text.

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};

use super::charsmap::Charsmap;
use super::vocabulary::VISIBLE_SPACE;
use crate::error::{Error, ErrorKind, Result};

/// Maximum bytes of all user-defined pieces: an automaton is built of them.
const MAX_USER_DEFINED: usize = 4 << 20;

/// The texts that get a space before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    Never,
    /// Every text between special tokens.
    Always,
    /// Only a text with which a prompt starts.
    First,
}

/// Normalizes texts.
pub(super) struct Normalizer {
    charsmap: Option<Charsmap>,
    user_defined: Option<AhoCorasick>,
    prefix: Prefix,
    removes_extra_spaces: bool,
}

impl Normalizer {
    /// Creates a normalizer that leaves the pieces `user_defined` as they are.
    pub(super) fn new(
        charsmap: Option<Charsmap>,
        user_defined: &[&str],
        prefix: Prefix,
        removes_extra_spaces: bool,
    ) -> Result<Self> {
        let bytes: usize = user_defined.iter().map(|piece| piece.len()).sum();
        if bytes > MAX_USER_DEFINED {
            let message = format!(
                "the user-defined pieces have {bytes} bytes, expected at most {MAX_USER_DEFINED}"
            );
            return Err(Error::new(ErrorKind::Malformed, message));
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Anchored)
            .build(user_defined)
            .map_err(|error| {
                let message = format!("the user-defined pieces are too many: {error}");
                Error::new(ErrorKind::Malformed, message)
            })?;
        Ok(Self {
            charsmap,
            user_defined: (!user_defined.is_empty()).then_some(automaton),
            prefix,
            removes_extra_spaces,
        })
    }

    /// Returns the texts that get a space before them.
    pub(super) fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// Returns whether every character of a text is in its normalized form, apart from spaces.
    pub(super) fn keeps_all(&self) -> bool {
        self.charsmap.is_none() && !self.removes_extra_spaces
    }

    /// Returns the length of the longest user-defined piece at the start of `text`.
    pub(super) fn user_defined(&self, text: &str) -> Option<usize> {
        let input = Input::new(text).anchored(Anchored::Yes);
        let found = self.user_defined.as_ref()?.find(input)?;
        Some(found.end())
    }

    /// Returns the normalized form of `text`; `is_first` states whether a prompt starts with it.
    pub(super) fn normalize(&self, text: &str, is_first: bool) -> Result<String> {
        let mut rest = text;
        let mut normalized = String::with_capacity(text.len() + text.len() / 4 + 3);
        if self.removes_extra_spaces {
            while let (length, " ") = self.next(rest)? {
                rest = &rest[length..];
            }
            if rest.is_empty() {
                return Ok(normalized);
            }
        }
        if self.prefix == Prefix::Always || self.prefix == Prefix::First && is_first {
            normalized.push(VISIBLE_SPACE);
        }
        let mut follows_space = self.removes_extra_spaces;
        while !rest.is_empty() {
            let (length, mut part) = self.next(rest)?;
            if follows_space {
                part = part.trim_start_matches(' ');
            }
            for character in part.chars() {
                normalized.push(if character == ' ' {
                    VISIBLE_SPACE
                } else {
                    character
                });
            }
            if !part.is_empty() {
                follows_space = self.removes_extra_spaces && part.ends_with(' ');
            }
            rest = &rest[length..];
        }
        if self.removes_extra_spaces {
            normalized.truncate(normalized.trim_end_matches(VISIBLE_SPACE).len());
        }
        Ok(normalized)
    }

    /// Returns the length of the next sequence of `text`, and what replaces it; nothing at its end.
    fn next<'a>(&'a self, text: &'a str) -> Result<(usize, &'a str)> {
        if let Some(length) = self.user_defined(text) {
            return Ok((length, &text[..length]));
        }
        if let Some(charsmap) = &self.charsmap
            && let Some(replaced) = charsmap.replacement(text)?
        {
            return Ok(replaced);
        }
        let length = text.chars().next().map_or(0, char::len_utf8);
        Ok((length, &text[..length]))
    }
}
