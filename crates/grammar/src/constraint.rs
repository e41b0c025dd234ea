//! A compiled grammar, and what may come next in one answer.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use llguidance::Matcher;
use llguidance::api::StopReason;
use triad_engine::constraint::{Constraint, ConstraintError, Form, TokenMask};

use crate::compile::problem;
use crate::kind::Kind;
use crate::source::GrammarSource;

/// A compiled grammar: the form of any number of answers, [as an option](triad_engine::GenerateOptions::form) of each.
pub struct Grammar {
    source: GrammarSource,
    /// At its beginning.
    matcher: Mutex<Matcher>,
}

impl Grammar {
    pub(crate) fn new(source: GrammarSource, matcher: Matcher) -> Self {
        Self { source, matcher: Mutex::new(matcher) }
    }

    /// What it was compiled from.
    pub fn source(&self) -> &GrammarSource {
        &self.source
    }

    /// What may come next in an answer, at its beginning.
    pub fn begin(&self) -> GrammarConstraint {
        // With caches of its own: what one answer needs of a limit, no other one lacks.
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        GrammarConstraint { matcher, kind: self.source.kind() }
    }
}

impl Form for Grammar {
    fn constraint(&self) -> Result<Box<dyn Constraint>, ConstraintError> {
        Ok(Box::new(self.begin()))
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("Grammar").field(&self.source).finish()
    }
}

/// What may come next in one answer.
pub struct GrammarConstraint {
    matcher: Matcher,
    kind: Kind,
}

impl GrammarConstraint {
    /// Whether the answer so far has its form: it may end here, or go on.
    pub fn may_end(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false)
    }

    fn error(&self, error: impl fmt::Display) -> ConstraintError {
        let problem = problem(self.kind, &error.to_string());
        format!("{} ({})", problem, self.matcher.stop_reason()).into()
    }
}

impl Constraint for GrammarConstraint {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.matcher.consume_token(token).map_err(|error| self.error(error))
    }

    fn take_back(&mut self, count: usize) -> Result<(), ConstraintError> {
        self.matcher.rollback(count).map_err(|error| self.error(error))
    }

    fn is_complete(&mut self) -> bool {
        use StopReason::{EndOfSentence, NoExtension, NoExtensionBias};
        self.matcher.is_stopped() && matches!(self.matcher.stop_reason(), EndOfSentence | NoExtension | NoExtensionBias)
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        let tokens = self.matcher.compute_ff_tokens();
        match self.matcher.get_error() {
            Some(error) => Err(self.error(error)),
            None => Ok(tokens),
        }
    }

    fn allowed(&mut self, tokens: &[u32]) -> Result<usize, ConstraintError> {
        self.matcher.validate_tokens(tokens).map_err(|error| self.error(error))
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        let mask = self.matcher.compute_mask().map_err(|error| self.error(error))?;
        Ok(TokenMask::from_words(mask.as_slice().to_vec()))
    }
}
