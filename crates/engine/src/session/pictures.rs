//! Pictures of a session, and checks of the tokens that may be their rows.

use std::ops::Range;

use triad_kernels::Phase;

use super::Session;
use crate::error::{Error, Result};
use crate::pictures::{Layout, Picture, is_of_picture};

impl Session {
    /// Makes the session hold a picture of its engine, so that its tokens may be the picture's. It does so until it
    /// [reuses](Session::reuse) prefixes for a prompt without the picture.
    pub fn hold(&mut self, picture: &Picture) {
        self.pictures.add(picture);
    }

    /// Returns where pictures put `tokens` that follow those so far.
    pub(super) fn layout(&mut self, tokens: &[u32]) -> Layout {
        let has_axes = self.model().description().picture_rope.is_some();
        self.pictures.layout(&self.tokens, tokens, has_axes)
    }

    /// Returns where pictures put a part of the tokens so far.
    pub(super) fn layout_again(&self, tokens: Range<usize>) -> Layout {
        let has_axes = self.model().description().picture_rope.is_some();
        let (before, tokens) = (&self.tokens[..tokens.start], &self.tokens[tokens]);
        self.pictures.layout_again(before, tokens, has_axes)
    }

    pub(super) fn check_length(&self, tokens: &[u32]) -> Result<()> {
        let free = self.context() - self.tokens.len();
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if tokens.len() > free {
            return Err(Error::PromptTooLong {
                prompt: tokens.len(),
                free,
                context: self.context(),
            });
        }
        Ok(())
    }

    /// Checks that `tokens`, of which some may be rows of pictures, can be run after those so far in this phase.
    pub(super) fn check_tokens(&self, tokens: &[u32], phase: Phase) -> Result<()> {
        self.model().check_writes()?;
        self.check_length(tokens)?;
        if phase == Phase::Decode {
            return self.check_vocabulary(tokens);
        }
        let vocab = self.model().description().vocab;
        let before = self.tokens.last().copied();
        self.pictures.check(before, tokens)?;
        let is_known = |token: &u32| (*token as usize) < vocab || is_of_picture(*token);
        match tokens.iter().find(|token| !is_known(token)) {
            Some(token) => Err(Error::TokenOutOfVocabulary {
                token: *token,
                vocab,
            }),
            None => Ok(()),
        }
    }

    /// Checks that the session and `tokens` after it have no pictures. Prompts with pictures are computed in batches alone.
    pub(super) fn check_text(&self, tokens: &[u32]) -> Result<()> {
        if self.tokens.iter().any(|token| is_of_picture(*token)) {
            let message = "a conversation with pictures is computed by prompts and answers alone";
            return Err(Error::Picture(message.into()));
        }
        self.check_vocabulary(tokens)
    }
}
