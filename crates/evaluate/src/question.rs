//! The question of a row, the same for every task.

use std::sync::Arc;

/// The texts whose likelihoods decide one row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    /// Its line in the file.
    pub(super) line: usize,
    /// The text before the context of each choice.
    pub(super) preamble: Arc<Preamble>,
    pub(super) choices: Vec<Choice>,
    pub(super) judgement: Judgement,
}

/// A description and solved examples, which questions share.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Preamble {
    pub(super) description: String,
    /// Solved examples; the last ones are omitted if all of them do not fit in the context.
    pub(super) examples: Vec<String>,
}

/// One continuation whose likelihood is computed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) context: String,
    pub(super) continuation: String,
}

/// The rule that decides from likelihoods whether the model is right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Judgement {
    /// The only choice must be the likeliest text for the model.
    Greedy,
    /// The right choice must be the likeliest.
    Likeliest { right: usize },
    /// The right choice must be the likeliest, and also the likeliest per character; the latter is the score.
    LikeliestPerCharacter { right: usize },
}

impl Question {
    /// Creates a question without a preamble.
    pub(super) fn new(line: usize, choices: Vec<Choice>, judgement: Judgement) -> Self {
        Self {
            line,
            preamble: Arc::default(),
            choices,
            judgement,
        }
    }
}

impl Choice {
    /// Creates a choice of `continuation` after `context` and a space.
    pub(super) fn after_space(context: impl Into<String>, continuation: &str) -> Self {
        Self {
            context: context.into(),
            continuation: format!(" {continuation}"),
        }
    }

    /// Returns the number of characters for the likelihood per character: those after the space.
    pub(super) fn characters(&self) -> usize {
        self.continuation.chars().count().saturating_sub(1).max(1)
    }
}
