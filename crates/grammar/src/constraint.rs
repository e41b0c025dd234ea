//! A compiled grammar, and the constraint that it puts on one completion.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use llguidance::Matcher;
use llguidance::api::StopReason;
use triad_engine::constraint::{Constraint, ConstraintError, ConstraintFactory, TokenMask};

use crate::compile::problem;
use crate::kind::Kind;
use crate::source::GrammarSource;
use crate::watch::{self, Watched};

/// A compiled grammar. It can constrain any number of completions, [as an option](triad_engine::GenerateOptions::constraint)
/// of each.
pub struct Grammar {
    source: GrammarSource,
    /// The matcher in its initial state.
    matcher: Mutex<Matcher>,
}

impl Grammar {
    pub(crate) fn new(source: GrammarSource, matcher: Matcher) -> Self {
        Self {
            source,
            matcher: Mutex::new(matcher),
        }
    }

    /// Returns the source of the grammar.
    pub fn source(&self) -> &GrammarSource {
        &self.source
    }

    /// Starts a completion.
    pub fn begin(&self) -> GrammarConstraint {
        // A deep clone has its own caches, so that completions don't use up each other's limits.
        let matcher = self
            .matcher
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .deep_clone()
            .into_cancellable();
        let watched = Watched::new(&matcher)
            .map_err(|error| format!("cannot start a thread to watch it: {error}"));
        GrammarConstraint {
            matcher,
            watched,
            kind: self.source.kind(),
        }
    }
}

impl ConstraintFactory for Grammar {
    fn constraint(&self) -> Result<Box<dyn Constraint>, ConstraintError> {
        let constraint = self.begin();
        match &constraint.watched {
            Ok(_) => Ok(Box::new(constraint)),
            Err(error) => Err(error.clone().into()),
        }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("Grammar").field(&self.source).finish()
    }
}

/// The constraint on one completion.
pub struct GrammarConstraint {
    matcher: Matcher,
    /// The watch that cancels slow steps, or the reason why there is none.
    watched: Result<Watched, String>,
    kind: Kind,
}

impl GrammarConstraint {
    /// Runs a step of the matcher under the watch.
    fn step<T>(&mut self, work: impl FnOnce(&mut Matcher) -> T) -> T {
        match &self.watched {
            Ok(watched) => watched.step(|| work(&mut self.matcher)),
            Err(_) => work(&mut self.matcher),
        }
    }

    /// Returns whether the output so far is complete: generation may end here or continue.
    pub fn may_end(&mut self) -> bool {
        self.step(Matcher::is_accepting).unwrap_or(false)
    }

    fn error(&self, error: impl fmt::Display) -> ConstraintError {
        if self.matcher.is_cancelled() {
            let limit = watch::LONGEST;
            return format!(
                "a token of the {} takes longer than {limit:?}: make it simpler",
                self.kind
            )
            .into();
        }
        let problem = problem(self.kind, &error.to_string());
        sentence(self.kind, &problem, self.matcher.stop_reason()).into()
    }
}

/// Returns the sentence for a problem, which may be only the name of a reason.
fn sentence(kind: Kind, problem: &str, reason: StopReason) -> String {
    if [StopReason::NoExtension, StopReason::NoExtensionBias]
        .iter()
        .any(|none| problem == none.to_string())
    {
        return format!("the {kind} lets no token come next; it may be too large: make it simpler");
    }
    format!("{problem} ({reason})")
}

impl Constraint for GrammarConstraint {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.step(|matcher| matcher.consume_token(token))
            .map_err(|error| self.error(error))
    }

    fn take_back(&mut self, count: usize) -> Result<(), ConstraintError> {
        self.step(|matcher| matcher.rollback(count))
            .map_err(|error| self.error(error))
    }

    fn is_complete(&mut self) -> bool {
        use StopReason::{EndOfSentence, NoExtension, NoExtensionBias};
        self.matcher.is_stopped()
            && matches!(
                self.matcher.stop_reason(),
                EndOfSentence | NoExtension | NoExtensionBias
            )
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        let tokens = self.step(Matcher::compute_ff_tokens);
        match self.matcher.get_error() {
            Some(error) => Err(self.error(error)),
            None => Ok(tokens),
        }
    }

    fn allowed(&mut self, tokens: &[u32]) -> Result<usize, ConstraintError> {
        self.step(|matcher| matcher.validate_tokens(tokens))
            .map_err(|error| self.error(error))
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        let mask = self
            .step(Matcher::compute_mask)
            .map_err(|error| self.error(error))?;
        Ok(TokenMask::from_words(mask.as_slice().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_reason_is_a_sentence() {
        let sentence = |problem| sentence(Kind::Regex, problem, StopReason::InternalError);
        let none = sentence("NoExtensionBias");
        assert!(
            none.starts_with("the regular expression lets no token"),
            "{none}"
        );
        assert_eq!(sentence("too many items"), "too many items (InternalError)");
    }
}
