//! Converts texts to tokens and finds the first scored token, as the harness does.

use triad_engine::{Branch, Model};
use triad_model::tokenizer::{EncodeOptions, Tokenizer};

use crate::error::Result;

/// Tokens of a context and its continuation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Encoded {
    pub(super) tokens: Vec<u32>,
    pub(super) scored_from: usize,
}

impl Encoded {
    pub(super) fn branch(&self) -> Branch<'_> {
        Branch {
            tokens: &self.tokens,
            scored_from: self.scored_from,
        }
    }

    /// Returns the context that a session needs: the last token is not run.
    pub(super) fn context(&self) -> usize {
        self.tokens.len() - 1
    }
}

/// A tokenizer and its rules for the start and end of a text.
pub(super) struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    ends_with_eos: bool,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(model: &'a Model) -> Result<Self> {
        let tokenizer = model.tokenizer()?;
        let probe = tokenizer.encode("a", EncodeOptions::TEXT)?;
        Ok(Self {
            tokenizer,
            ends_with_eos: tokenizer.eos().is_some() && probe.last().copied() == tokenizer.eos(),
        })
    }

    /// Returns the tokens of `text`, with BOS if the model expects it, but without EOS: the text continues.
    pub(super) fn text(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = self.tokenizer.encode(text, EncodeOptions::TEXT)?;
        if self.ends_with_eos {
            tokens.pop();
        }
        Ok(tokens)
    }

    /// Returns the token before a text that has no context: BOS, or EOS if the model has no BOS.
    pub(super) fn start(&self) -> Option<u32> {
        self.tokenizer.bos().or(self.tokenizer.eos())
    }

    /// Returns whether [`Encoder::text`] starts with BOS.
    pub(super) fn adds_bos(&self) -> bool {
        self.tokenizer.adds_bos()
    }

    /// Encodes `context` and `continuation` as one text, split after the tokens of `context` alone. Spaces at the end
    /// of the context belong to the continuation, since most vocabularies join a space to the following word.
    ///
    /// Returns `None` if the continuation has no tokens of its own, or no token precedes it.
    pub(super) fn pair(&self, context: &str, continuation: &str) -> Result<Option<Encoded>> {
        let mut tokens = self.text(&[context, continuation].concat())?;
        let mut scored_from = match context.trim_end() {
            "" => usize::from(self.adds_bos()),
            context => self.text(context)?.len(),
        };
        if scored_from == 0 {
            let Some(start) = self.start() else {
                return Ok(None);
            };
            tokens.insert(0, start);
            scored_from = 1;
        }
        Ok((scored_from < tokens.len()).then_some(Encoded {
            tokens,
            scored_from,
        }))
    }
}
