//! Followers of sessions: heads that predict one more token.

use std::sync::{Arc, Mutex};

use crate::cancel::Cancel;
use crate::error::Result;

/// The number of the last tokens of a request whose states a session keeps: what a head costs in prompts is bounded.
pub(crate) const PROMPT_ROWS: usize = 512;
/// The maximum number of tokens whose states wait for a head.
pub(crate) const WAITING_ROWS: usize = 2 * PROMPT_ROWS;

/// A head that follows a session: it gets the hidden states of the session's tokens, and predicts the token after the next
/// one.
pub(crate) trait Follower: Send {
    /// Returns the same head for a fork of the session.
    fn fork(&self) -> Arc<Mutex<dyn Follower>>;

    /// Adds the states `[rows, hidden]` of the model from `position` on.
    fn follow(&mut self, position: usize, states: &[f32]);

    /// Forgets what depends on tokens after the first `length`.
    fn truncate(&mut self, length: usize);

    /// Returns whether it can predict the token after `tokens` tokens: the state before the last of them is known.
    fn is_ready(&self, tokens: usize) -> bool;

    /// Returns how many tokens it can predict at most: it has room for their rows.
    fn room(&self) -> usize;

    /// Runs the rows that wait ahead, as far as `tokens` are known, if they are so many that they run as a prompt.
    ///
    /// # Errors
    /// If there is no memory for keys and values, a result is not finite, or `cancel` is set.
    fn catch_up(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<()>;

    /// Predicts the token after `tokens`: those of the session and the next one. [`Follower::logits`] has the result.
    ///
    /// # Errors
    /// As [`Follower::catch_up`].
    fn predict(&mut self, tokens: &[u32], cancel: &Cancel) -> Result<()>;

    /// Predicts the token after `token`, which was predicted before. The row is [undone](Follower::undo) afterwards.
    ///
    /// # Errors
    /// As [`Follower::catch_up`].
    fn predict_after(&mut self, token: u32, cancel: &Cancel) -> Result<()>;

    /// Removes the rows of predicted tokens.
    fn undo(&mut self);

    /// Returns the logits `[vocab]` of the latest prediction.
    fn logits(&self) -> &[f32];
}
