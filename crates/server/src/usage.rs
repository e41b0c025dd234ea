//! Token counts and timings of a request.

use serde::Serialize;
use triad_engine::Timing;
use triad_engine::speculate::Speculation;
use utoipa::ToSchema;

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Tokens of all prompts. Each prompt counts once, however many completions it has.
    pub(crate) prompt_tokens: usize,
    /// Tokens of all completions, including end tokens.
    pub(crate) completion_tokens: usize,
    /// The sum of prompt and completion tokens.
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptTokensDetails,
    pub(crate) completion_tokens_details: CompletionTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CompletionTokensDetails {
    /// Completion tokens of the model's reasoning.
    pub(crate) reasoning_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PromptTokensDetails {
    /// Prompt tokens whose KV cache was reused from an earlier request.
    pub(crate) cached_tokens: usize,
}

impl Usage {
    /// Adds a prompt.
    pub(crate) fn add_prompt(&mut self, tokens: usize) {
        self.prompt_tokens += tokens;
        self.total_tokens += tokens;
    }

    /// Adds cached tokens of a prompt.
    pub(crate) fn add_cached(&mut self, tokens: usize) {
        self.prompt_tokens_details.cached_tokens += tokens;
    }

    /// Adds tokens of reasoning, which are a part of a completion.
    pub(crate) fn add_reasoning(&mut self, tokens: usize) {
        self.completion_tokens_details.reasoning_tokens += tokens;
    }

    /// Adds a completion.
    pub(crate) fn add_answer(&mut self, tokens: usize) {
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
    }
}

/// Timings of the last completion, with the names of llama.cpp's server. An extension of OpenAI's format.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct Timings {
    /// Number of cached prompt tokens.
    pub(crate) cache_n: usize,
    /// Number of computed prompt tokens.
    pub(crate) prompt_n: usize,
    pub(crate) prompt_ms: f64,
    pub(crate) prompt_per_second: f64,
    /// Number of generated tokens, including an end token.
    pub(crate) predicted_n: usize,
    /// Milliseconds from the first generated token, which the time of the prompt includes, to the last.
    pub(crate) predicted_ms: f64,
    /// `predicted_n` per second of `predicted_ms`.
    pub(crate) predicted_per_second: f64,
    /// Number of tokens that were proposed by a head of the model or a lookup, if any were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) draft_n: Option<usize>,
    /// Number of those that are part of the completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) draft_n_accepted: Option<usize>,
}

impl Timings {
    /// Returns the timings of a completion of `tokens` tokens, as llama.cpp's server counts them: the first token adds
    /// to the number, but its time is that of the prompt. A completion therefore takes at least a microsecond.
    pub(crate) fn new(timing: &Timing, tokens: usize, speculation: Option<Speculation>) -> Self {
        let predicted_ms = match tokens {
            0 => 0.0,
            _ => (1e3 * timing.decode_seconds).max(1e-3),
        };
        let predicted_per_second = match tokens {
            0 => 0.0,
            _ => 1e3 * tokens as f64 / predicted_ms,
        };
        Self {
            cache_n: timing.reused_tokens,
            prompt_n: timing.prefill_tokens,
            prompt_ms: 1e3 * timing.prefill_seconds,
            prompt_per_second: timing.prefill_tokens_per_second(),
            predicted_n: tokens,
            predicted_ms,
            predicted_per_second,
            draft_n: speculation.map(|it| it.proposed),
            draft_n_accepted: speculation.map(|it| it.accepted),
        }
    }
}
