//! Prompt lookup: proposes the tokens that followed an earlier occurrence of the latest tokens.

use super::{Proposal, Propose};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::pictures::is_of_picture;

/// The n-gram lengths of a lookup. The longest match of the latest tokens is continued; of several, the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The minimum number of tokens that must match.
    pub shortest: usize,
    /// The maximum number of tokens that are compared.
    pub longest: usize,
}

impl Default for Lookup {
    fn default() -> Self {
        Self {
            shortest: 2,
            longest: 4,
        }
    }
}

impl Lookup {
    pub(super) fn check(&self) -> Result<()> {
        let Self { shortest, longest } = self;
        if (1..=*longest).contains(shortest) && *longest <= 64 {
            return Ok(());
        }
        let value = format!("{shortest} to {longest} tokens");
        Err(Error::Option {
            name: "the n-gram of a lookup",
            value,
            expected: "1 to 64 tokens, the shorter first",
        })
    }

    /// Returns where the continuation of `tokens` begins in them, and the length of the n-gram before it.
    pub(super) fn find(self, tokens: &[u32]) -> Option<(usize, usize)> {
        let mut best = None;
        for start in (1..tokens.len()).rev() {
            let pairs = tokens[..start].iter().rev().zip(tokens.iter().rev());
            let length = pairs
                .take(self.longest)
                .take_while(|(earlier, latest)| earlier == latest)
                .count();
            if length >= self.shortest && best.is_none_or(|(_, longest)| length > longest) {
                best = Some((start, length));
            }
            if length == self.longest {
                break;
            }
        }
        best
    }
}

/// A lookup in the tokens of one answer.
pub(super) struct LookupProposer {
    lookup: Lookup,
    start: usize,
}

impl LookupProposer {
    pub(super) fn new(lookup: Lookup) -> Self {
        Self { lookup, start: 0 }
    }
}

impl Propose for LookupProposer {
    fn find(&mut self, tokens: &[u32]) -> Option<usize> {
        let (start, length) = self.lookup.find(tokens)?;
        self.start = start;
        Some(length - self.lookup.shortest)
    }

    fn propose(
        &mut self,
        tokens: &[u32],
        count: usize,
        _: &Cancel,
        proposals: &mut Vec<Proposal>,
    ) -> Result<()> {
        let of_tokens = &tokens[self.start..];
        // If the continuation reaches the end of the tokens, it repeats: the tokens may be in a loop.
        let tokens = of_tokens.iter().cycle().take(count);
        // An answer has no rows of pictures.
        let tokens = tokens.take_while(|token| !is_of_picture(**token));
        proposals.extend(tokens.map(|token| Proposal {
            token: *token,
            drawn_from: None,
        }));
        Ok(())
    }
}
