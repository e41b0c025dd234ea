//! What all forms of answers have in common.

use std::sync::Arc;

use triad_engine::Finish;

use crate::answers::End;
use crate::error::{ApiError, ApiResult};
use crate::hosted::Hosted;
use crate::names::{new_id, now};
use crate::owner::Owner;
use crate::usage::{Timings, Usage};

/// The answers to a request, as far as they have ended.
pub(crate) struct Reply {
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: Arc<Hosted>,
    /// Whose request it is.
    owner: Owner,
    pub(crate) usage: Usage,
    /// Of the answer that ended last.
    pub(crate) timings: Option<Timings>,
    /// Answers to each prompt.
    choices: usize,
    /// How each ended.
    ends: Vec<Option<End>>,
}

impl Reply {
    /// To an owner's prompts of so many tokens, `choices` answers to each, under a name that begins with `prefix`.
    pub(crate) fn new(
        prefix: &str,
        (model, owner): (&Arc<Hosted>, Owner),
        prompts: impl IntoIterator<Item = usize>,
        choices: usize,
    ) -> Self {
        let (mut usage, mut ends) = (Usage::default(), Vec::new());
        for tokens in prompts {
            usage.add_prompt(tokens);
            ends.extend((0..choices).map(|_| None));
        }
        let model = Arc::clone(model);
        Self {
            id: new_id(prefix),
            created: now(),
            model,
            owner,
            usage,
            timings: None,
            choices,
            ends,
        }
    }

    /// Answers in all.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// An answer has ended.
    pub(crate) fn end(&mut self, choice: usize, mut end: End) {
        if let Some(timeline) = end.timeline.take() {
            self.model.timelines().keep(self.owner, &self.id, *timeline);
        }
        self.usage.add_answer(end.tokens);
        if choice.is_multiple_of(self.choices) {
            self.usage.add_cached(end.timing.reused_tokens);
        }
        self.timings = Some((&end.timing).into());
        self.ends[choice] = Some(end);
    }

    /// Why an answer ended.
    ///
    /// # Errors
    /// If it has not, and nothing more comes.
    pub(crate) fn finish(&self, choice: usize) -> ApiResult<Finish> {
        let end = self.ends[choice]
            .as_ref()
            .ok_or_else(|| ApiError::internal("the answer ended before its time"))?;
        Ok(end.finish)
    }

    /// Returns the stop string that ended an answer.
    pub(crate) fn stop(&self, choice: usize) -> Option<&str> {
        self.ends[choice].as_ref()?.stop.as_deref()
    }

    /// Whether all answers have ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.ends.iter().all(Option::is_some)
    }
}

/// Why an answer ended, in OpenAI's words.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::EndToken | Finish::StopString => "stop",
        Finish::Length | Finish::ContextFull | Finish::Cancelled => "length",
    }
}
