//! A whole text in windows, with every token scored once.

use super::encode::{Encoded, Encoder};
use crate::error::Result;

/// A text as tokens, with the units in which its perplexities are counted.
pub(super) struct Text {
    /// The tokens, without BOS.
    tokens: Vec<u32>,
    /// The token before the first one.
    start: Option<u32>,
    /// Whether every window starts with `start`, rather than only the first one.
    starts_windows: bool,
    pub(super) words: usize,
    pub(super) bytes: usize,
}

impl Text {
    pub(super) fn new(text: &str, encoder: &Encoder) -> Result<Self> {
        let mut tokens = encoder.text(text)?;
        if encoder.adds_bos() {
            tokens.remove(0);
        }
        let words = text.split_whitespace().count();
        Ok(Self {
            tokens,
            start: encoder.start(),
            starts_windows: encoder.adds_bos(),
            words,
            bytes: text.len(),
        })
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the text in windows of `length` tokens, which are all scored; the last one may be shorter.
    ///
    /// A window is preceded by BOS if the model expects one, else by the token before the window: the harness's
    /// `loglikelihood_rolling` with one token of context. A first token with nothing before it is not scored.
    pub(super) fn windows(&self, length: usize) -> Vec<Encoded> {
        let mut before = self.start;
        let windows = self.tokens.chunks(length).map(|window| {
            let tokens: Vec<_> = before.into_iter().chain(window.iter().copied()).collect();
            if !self.starts_windows {
                before = window.last().copied();
            }
            Encoded {
                tokens,
                scored_from: 1,
            }
        });
        windows.filter(|window| window.tokens.len() > 1).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(start: Option<u32>, starts_windows: bool) -> Vec<Vec<u32>> {
        let text = Text {
            tokens: vec![1, 2, 3, 4, 5],
            start,
            starts_windows,
            words: 1,
            bytes: 1,
        };
        text.windows(2)
            .into_iter()
            .map(|window| window.tokens)
            .collect()
    }

    #[test]
    fn every_token_is_scored_once() {
        assert_eq!(
            windows(Some(0), false),
            [&[0, 1, 2][..], &[2, 3, 4], &[4, 5]]
        );
        assert_eq!(
            windows(Some(0), true),
            [&[0, 1, 2][..], &[0, 3, 4], &[0, 5]]
        );
        assert_eq!(windows(None, false), [&[1, 2][..], &[2, 3, 4], &[4, 5]]);
    }
}
