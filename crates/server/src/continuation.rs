//! The common part of the endpoints that continue one text without a chat template.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use triad_engine::{Adapters, GenerateOptions};

use crate::app::App;
use crate::error::ApiResult;
use crate::forms::{self, AskedForm};
use crate::guard::Caller;
use crate::jobs::{Answers, GenerationJob};
use crate::queue::Place;
use crate::reply::Reply;
use crate::served::ServedModel;

/// A prompt to continue, by a request that has a place in the model's queue.
pub(crate) struct Continuation {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) place: Place,
    pub(crate) prompt: Vec<u32>,
    pub(crate) options: GenerateOptions,
    /// The LoRA adapters to apply.
    pub(crate) adapters: Adapters,
    /// The requested constraint.
    pub(crate) form: Option<AskedForm>,
    /// The number of completions.
    pub(crate) choices: usize,
}

impl Continuation {
    /// Waits for admission, and starts generation.
    ///
    /// # Errors
    /// If the prompt is empty or too long, or the constraint can't be compiled.
    pub(crate) async fn begin(self, app: &App, client: Caller) -> ApiResult<(Reply, Answers)> {
        let Self {
            model,
            place,
            prompt,
            mut options,
            adapters,
            form,
            choices,
        } = self;
        options.constraint = forms::prepare((&model, &place, client.owner), form, &options).await?;
        let reply = Reply::new("cmpl-", (&model, client.owner), [prompt.len()], choices);
        let job = GenerationJob {
            model,
            prompts: vec![prompt],
            choices,
            options,
            adapters,
            scores_prompt: false,
            pictures: Mutex::default(),
            client,
            arrived: Instant::now(),
            time_out: app.options.client_time_out,
        };
        Ok((reply, job.begin(place).await?))
    }
}
