//! The common part of responses in all APIs.

use std::sync::Arc;

use triad_engine::Finish;

use crate::error::{ApiError, ApiResult};
use crate::jobs::End;
use crate::names::{new_id, now};
use crate::owner::Owner;
use crate::served::ServedModel;
use crate::usage::{Timings, Usage};

/// The response to a request: identity, usage, and the results of finished completions.
pub(crate) struct Reply {
    pub(crate) id: String,
    /// The creation time in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: Arc<ServedModel>,
    /// The owner of the request.
    owner: Owner,
    pub(crate) usage: Usage,
    /// The tokens of each prompt.
    prompts: Vec<usize>,
    /// The timings of the completion that ended last.
    pub(crate) timings: Option<Timings>,
    /// The number of completions per prompt.
    choices: usize,
    /// The results of the completions, in order; `None` until a completion ends.
    ends: Vec<Option<End>>,
}

impl Reply {
    /// Creates a response for an owner's prompts, given by their token counts, with `choices` completions each. The id
    /// begins with `prefix`.
    pub(crate) fn new(
        prefix: &str,
        (model, owner): (&Arc<ServedModel>, Owner),
        prompts: impl IntoIterator<Item = usize>,
        choices: usize,
    ) -> Self {
        let prompts: Vec<usize> = prompts.into_iter().collect();
        let (mut usage, mut ends) = (Usage::default(), Vec::new());
        for tokens in &prompts {
            usage.add_prompt(*tokens);
            ends.extend((0..choices).map(|_| None));
        }
        let model = Arc::clone(model);
        Self {
            id: new_id(prefix),
            created: now(),
            model,
            owner,
            usage,
            prompts,
            timings: None,
            choices,
            ends,
        }
    }

    /// Returns the total number of completions.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the usage of one completion that has `tokens` tokens so far.
    pub(crate) fn usage_of(&self, choice: usize, tokens: usize) -> Usage {
        let mut usage = Usage::default();
        usage.add_prompt(self.prompts[choice / self.choices]);
        usage.add_answer(tokens);
        usage
    }

    /// Records the end of a completion.
    pub(crate) fn end(&mut self, choice: usize, mut end: End) {
        if let Some(timeline) = end.timeline.take() {
            self.model.timelines().keep(self.owner, &self.id, *timeline);
        }
        self.usage.add_answer(end.tokens);
        if choice.is_multiple_of(self.choices) {
            self.usage.add_cached(end.timing.reused_tokens);
        }
        self.timings = Some(Timings::new(&end.timing, end.tokens, end.speculation));
        self.ends[choice] = Some(end);
    }

    /// Returns why a completion ended.
    ///
    /// # Errors
    /// If it has not ended, although no more parts arrive.
    pub(crate) fn finish(&self, choice: usize) -> ApiResult<Finish> {
        let end = self.ends[choice]
            .as_ref()
            .ok_or_else(|| ApiError::internal("the completion ended too early"))?;
        Ok(end.finish)
    }

    /// Returns the stop string that ended a completion.
    pub(crate) fn stop(&self, choice: usize) -> Option<&str> {
        self.ends[choice].as_ref()?.stop.as_deref()
    }

    /// Returns whether all completions have ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.ends.iter().all(Option::is_some)
    }
}

/// Returns the `finish_reason` in OpenAI's API.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::EndToken | Finish::StopString => "stop",
        Finish::Length | Finish::ContextFull | Finish::Cancelled => "length",
    }
}
