//! How many tokens a request took, and how long.

use serde::Serialize;
use triad_engine::Timing;
use utoipa::ToSchema;

/// Tokens of a request and its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Of all prompts, each counted once.
    pub(crate) prompt_tokens: usize,
    /// Of all answers, end tokens among them.
    pub(crate) completion_tokens: usize,
    /// Both.
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PromptTokensDetails {
    /// Tokens whose keys and values were there from an earlier request.
    pub(crate) cached_tokens: usize,
}

impl Usage {
    /// Counts a prompt.
    pub(crate) fn add_prompt(&mut self, tokens: usize) {
        self.prompt_tokens += tokens;
        self.total_tokens += tokens;
    }

    /// Counts what was cached of a prompt.
    pub(crate) fn add_cached(&mut self, tokens: usize) {
        self.prompt_tokens_details.cached_tokens += tokens;
    }

    /// Counts an answer.
    pub(crate) fn add_answer(&mut self, tokens: usize) {
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
    }
}

/// Where the time of the (last) answer went, by the names of llama.cpp's server: an extension to OpenAI's form.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct Timings {
    /// Tokens of the prompt that were cached.
    pub(crate) cache_n: usize,
    /// Tokens of the prompt that were computed.
    pub(crate) prompt_n: usize,
    pub(crate) prompt_ms: f64,
    pub(crate) prompt_per_second: f64,
    /// Tokens of the answer behind the first.
    pub(crate) predicted_n: usize,
    pub(crate) predicted_ms: f64,
    pub(crate) predicted_per_second: f64,
}

impl From<&Timing> for Timings {
    fn from(timing: &Timing) -> Self {
        Self {
            cache_n: timing.reused_tokens,
            prompt_n: timing.prefill_tokens,
            prompt_ms: 1e3 * timing.prefill_seconds,
            prompt_per_second: timing.prefill_tokens_per_second(),
            predicted_n: timing.decode_tokens,
            predicted_ms: 1e3 * timing.decode_seconds,
            predicted_per_second: timing.decode_tokens_per_second(),
        }
    }
}
