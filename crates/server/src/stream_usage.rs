//! The usage in streamed completions: after the last chunk, or in every chunk.

use crate::reply::Reply;
use crate::sampling::StreamOptions;
use crate::usage::Usage;

/// The usage that a stream sends.
#[derive(Debug)]
pub(crate) struct StreamUsage {
    is_included: bool,
    is_continuous: bool,
    /// The number of tokens of each completion so far.
    tokens: Vec<usize>,
}

impl StreamUsage {
    /// Creates the usage of a stream of as many completions as `reply` has. As in vLLM's server, usage in every chunk needs
    /// `include_usage`, too.
    pub(crate) fn new(options: Option<&StreamOptions>, reply: &Reply) -> Self {
        let is = |option: Option<bool>| option.unwrap_or(false);
        let is_included = options.is_some_and(|it| is(it.include_usage));
        Self {
            is_included,
            is_continuous: is_included && options.is_some_and(|it| is(it.continuous_usage_stats)),
            tokens: vec![0; reply.count()],
        }
    }

    /// Counts more tokens of a completion.
    pub(crate) fn add(&mut self, choice: usize, tokens: usize) {
        self.tokens[choice] += tokens;
    }

    /// Sets the number of tokens of a completion that ended.
    pub(crate) fn end(&mut self, choice: usize, tokens: usize) {
        self.tokens[choice] = tokens;
    }

    /// Returns the usage of a chunk of one completion: its own prompt, and its tokens so far.
    pub(crate) fn of_chunk(&self, reply: &Reply, choice: usize) -> Option<Usage> {
        self.is_continuous
            .then(|| reply.usage_of(choice, self.tokens[choice]))
    }

    /// Returns the usage that follows the last chunk, once all completions have ended.
    pub(crate) fn of_all(&self, reply: &Reply) -> Option<Usage> {
        (self.is_included && reply.is_complete()).then_some(reply.usage)
    }
}
