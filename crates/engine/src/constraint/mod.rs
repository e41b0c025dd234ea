//! Constraints of the tokens of an answer, for example by a JSON schema.
//!
//! The engine has no grammar. A [`ConstraintFactory`] creates a [`Constraint`] for each answer, which returns the tokens
//! that may come next as a [`TokenMask`], or those that must. A [thread of the answer](guide) computes the masks while the
//! model runs, including those of proposals. Masks are applied to logits before everything else except penalties. Tokens
//! that must come are not sampled: they run as rows of one step.
//!
//! The crate `triad-grammar`, above this one, implements both traits for JSON schemas, regular expressions and
//! grammars.

mod guide;
#[cfg(test)]
mod tests;

pub use crate::token_mask::TokenMask;
pub(crate) use guide::{Allowed, Guide};

use std::fmt;

use serde::Serialize;

/// An error of a constraint: a limit was reached, or a token was not allowed.
pub type ConstraintError = Box<dyn std::error::Error + Send + Sync>;

/// Creates the constraints of answers in one form, for example of a JSON schema.
pub trait ConstraintFactory: fmt::Debug + Send + Sync {
    /// Creates the constraint of one answer, in its initial state.
    ///
    /// # Errors
    /// If there is no constraint for this form.
    fn constraint(&self) -> Result<Box<dyn Constraint>, ConstraintError>;
}

/// The tokens that may follow the tokens of one answer so far.
pub trait Constraint: Send {
    /// Accepts the next token of the answer.
    ///
    /// # Errors
    /// If it is not allowed, or a limit is reached.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Removes the latest `count` accepted tokens.
    ///
    /// # Errors
    /// If fewer tokens were accepted.
    fn take_back(&mut self, count: usize) -> Result<(), ConstraintError>;

    /// Returns whether the answer has the form and nothing may follow but its end.
    fn is_complete(&mut self) -> bool;

    /// Returns the tokens that must come next, whatever the model computes; empty if there is a choice.
    ///
    /// # Errors
    /// If a limit is reached.
    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError>;

    /// Returns how many of `tokens`, one after the other, may come next.
    ///
    /// # Errors
    /// If a limit is reached.
    fn allowed(&mut self, tokens: &[u32]) -> Result<usize, ConstraintError>;

    /// Returns the tokens that may come next. An end token may come only if the answer has the form.
    ///
    /// # Errors
    /// If a limit is reached.
    fn mask(&mut self) -> Result<TokenMask, ConstraintError>;
}

/// Counts and times of a constraint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ConstraintUse {
    /// The number of masks that were computed.
    pub masks: usize,
    /// Seconds of computing them, while the model runs.
    pub mask_seconds: f64,
    /// Seconds that the answer waited for masks.
    pub wait_seconds: f64,
    /// Tokens that the model did not choose, since no others were allowed.
    pub forced_tokens: usize,
}
