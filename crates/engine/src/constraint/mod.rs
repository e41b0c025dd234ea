//! What tokens an answer may have: a form that it must keep, such as a JSON schema.
//!
//! The engine knows no grammar. A [`Form`] makes a [`Constraint`] for each answer, which returns the tokens that may
//! come next as a [`TokenMask`], or those that must. Masks are computed by a [thread of the answer](guide) while the
//! model runs, those of proposals among them, and applied before anything else is done with logits but penalties.
//! Tokens that must come are not chosen: they run as rows of one step.
//!
//! The crate `triad-grammar`, which implements both for JSON schemas, regular expressions and grammars, is above this one.

mod guide;
#[cfg(test)]
mod tests;

pub use crate::token_mask::TokenMask;
pub(crate) use guide::{Allowed, Guide};

use std::fmt;

use serde::Serialize;

/// Why a constraint cannot go on: a limit was reached, or a token came that it does not allow.
pub type ConstraintError = Box<dyn std::error::Error + Send + Sync>;

/// A form of answers. Shared by all answers that are to have it.
pub trait Form: fmt::Debug + Send + Sync {
    /// The constraint of one answer, at its beginning.
    ///
    /// # Errors
    /// If there cannot be one.
    fn constraint(&self) -> Result<Box<dyn Constraint>, ConstraintError>;
}

/// Which tokens may follow those of one answer so far.
pub trait Constraint: Send {
    /// Takes the next token of the answer.
    ///
    /// # Errors
    /// If it is not allowed, or a limit is reached.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Takes the latest `count` accepted tokens back.
    ///
    /// # Errors
    /// If so many were not accepted.
    fn take_back(&mut self, count: usize) -> Result<(), ConstraintError>;

    /// Whether the answer has the form and nothing may follow but its end.
    fn is_complete(&mut self) -> bool;

    /// The tokens that must come next, whatever the model computes; empty if it has a choice.
    ///
    /// # Errors
    /// If a limit is reached.
    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError>;

    /// How many of `tokens`, one behind the other, may come next.
    ///
    /// # Errors
    /// If a limit is reached.
    fn allowed(&mut self, tokens: &[u32]) -> Result<usize, ConstraintError>;

    /// The tokens that may come next: an end token only where the answer has the form.
    ///
    /// # Errors
    /// If a limit is reached.
    fn mask(&mut self) -> Result<TokenMask, ConstraintError>;
}

/// What keeping the form of an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ConstraintUse {
    /// Masks that were computed.
    pub masks: usize,
    /// Seconds in which they were, beside the model.
    pub mask_seconds: f64,
    /// Seconds that answer and model waited for them.
    pub wait_seconds: f64,
    /// Tokens that the model did not choose, since no others were allowed.
    pub forced_tokens: usize,
}
