//! Execution of an order: runs the prompts and sends the parts of their completions.
//!
//! The [`queue`](crate::queue) admits each prompt, which then runs on its own thread. Several completions of a prompt
//! run on one thread each. All use the model's one engine. The output is sent as [`StreamItem`]s through one bounded channel.
//! If the receiver is dropped, everything is cancelled. A client that reads too slowly is disconnected.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::AbortHandle;
use triad_engine::speculate::Speculation;
use triad_engine::{
    Adapters, Cancel, Event, Finish, GenerateOptions, LogProbabilities, Session, Timing, generate,
};

use crate::blocking::{no_thread, spawn};
use crate::decoded_pictures::JobPictures;
use crate::error::{ApiError, ApiResult};
use crate::guard::Caller;
use crate::prompt_timelines::PromptTimeline;
use crate::queue::{Permit, Place as QueuePlace};
use crate::served::ServedModel;

/// Capacity of the channel: the maximum number of parts that a client has not read.
const PARTS: usize = 1024;
/// The interval at which a full channel is checked for room.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A request for completions of one or several prompts.
pub(crate) struct GenerationJob {
    pub(crate) model: Arc<ServedModel>,
    /// The tokens of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// The pictures of the only prompt, until they are encoded.
    pub(crate) pictures: Mutex<JobPictures>,
    /// The number of completions per prompt.
    pub(crate) choices: usize,
    pub(crate) options: GenerateOptions,
    /// The LoRA adapters to apply.
    pub(crate) adapters: Adapters,
    /// Whether log probabilities of the prompts' own tokens are returned, with as many alternatives as for the
    /// completions.
    pub(crate) scores_prompt: bool,
    /// The client that sent the request.
    pub(crate) client: Caller,
    /// The time when the request arrived.
    pub(crate) arrived: Instant,
    /// The maximum time that a client may leave the channel full.
    pub(crate) time_out: Duration,
}

/// A part of an order's output. The index `choice` counts all completions: first those of the first prompt, then those
/// of the second, and so on.
#[derive(Debug)]
pub(crate) enum StreamItem {
    /// The log probabilities of a prompt's tokens from the second on. Sent before its completions.
    Prompt {
        prompt: usize,
        scores: Vec<LogProbabilities>,
    },
    /// A part of a prompt was computed, and `cached` of its tokens need not be. Sent once for each completion, before
    /// its text.
    Begun { cached: usize },
    /// More text of a completion.
    Text {
        choice: usize,
        text: String,
        tokens: Vec<LogProbabilities>,
        /// The number of tokens since the text before.
        count: usize,
    },
    /// The end of a completion.
    End { choice: usize, end: End },
    /// The order failed.
    Failed(ApiError),
}

/// The result of a finished completion.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) finish: Finish,
    /// The stop string that ended the completion.
    pub(crate) stop: Option<String>,
    /// The number of tokens of the completion.
    pub(crate) tokens: usize,
    pub(crate) timing: Timing,
    /// Counts of tokens that were proposed, if any were.
    pub(crate) speculation: Option<Speculation>,
    /// The timeline of the prompt, if recorded.
    pub(crate) timeline: Option<Box<PromptTimeline>>,
}

/// The parts of an order in the order of their generation. Dropping it cancels the remaining work.
pub(crate) struct Answers {
    pub(crate) parts: mpsc::Receiver<StreamItem>,
    cancel: Cancel,
    driver: AbortHandle,
}

#[cfg(test)]
impl Answers {
    /// Returns the answers of parts that a test sends.
    pub(crate) fn of_parts(parts: mpsc::Receiver<StreamItem>, cancel: Cancel) -> Self {
        let driver = tokio::spawn(async {}).abort_handle();
        Self {
            parts,
            cancel,
            driver,
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.driver.abort();
    }
}

impl GenerationJob {
    /// Waits in its `place` until the first prompt is admitted, and starts the work.
    ///
    /// # Errors
    /// If a prompt is empty or too long.
    pub(crate) async fn begin(self, place: QueuePlace) -> ApiResult<Answers> {
        let need = |prompt: &Vec<u32>| {
            self.model
                .need(prompt, self.options.max_tokens, self.choices)
        };
        let needs: Vec<_> = self.prompts.iter().map(need).collect::<ApiResult<_>>()?;
        let Some(first) = needs.first() else {
            return Err(ApiError::field("prompt", "there is none"));
        };
        let queue = Arc::clone(self.model.queue());
        let permit = place.admit(*first).await;
        self.model.metrics().admitted(self.arrived.elapsed());
        let (sender, parts) = mpsc::channel(PARTS);
        let cancel = Cancel::new();
        let order = Arc::new(self);
        let driver = tokio::spawn({
            let cancel = cancel.clone();
            async move {
                let mut permit = Some(permit);
                for (prompt, need) in needs.into_iter().enumerate() {
                    let permit = match permit.take() {
                        Some(permit) => permit,
                        None => queue.admit_part(order.client.address, need).await,
                    };
                    let (sender, cancel) = (sender.clone(), cancel.clone());
                    let outlet = ResponseSink {
                        sender,
                        cancel,
                        time_out: order.time_out,
                    };
                    let order = Arc::clone(&order);
                    let failed = (outlet.sender.clone(), outlet.cancel.clone());
                    if let Err(error) = spawn(move || order.answer(prompt, &outlet, permit)) {
                        let (sender, cancel) = failed;
                        let _ = sender.send(StreamItem::Failed(error)).await;
                        return cancel.cancel();
                    }
                }
            }
        });
        Ok(Answers {
            parts,
            cancel,
            driver: driver.abort_handle(),
        })
    }

    /// Computes all completions of one prompt.
    fn answer(&self, prompt: usize, outlet: &ResponseSink, permit: Permit) {
        if let Err(error) = self.try_answer(prompt, outlet) {
            self.model.metrics().count(if outlet.cancel.is_cancelled() {
                "cancelled"
            } else {
                "failed"
            });
            outlet.send(StreamItem::Failed(error));
            outlet.cancel.cancel();
        }
        drop(permit);
    }

    fn try_answer(&self, index: usize, outlet: &ResponseSink) -> ApiResult<()> {
        let cancel = &outlet.cancel;
        let mut session = self.model.engine().session();
        session.set_salt(self.client.owner.salt());
        let pictures = self.pictures.lock();
        let pictures = std::mem::take(&mut *pictures.unwrap_or_else(PoisonError::into_inner));
        let (tokens, of) = (
            self.prompts[index].clone(),
            (&*self.model, self.client.owner),
        );
        let prompt = &pictures.hold(of, &mut session, tokens, cancel)?[..];
        session.set_adapters(&self.adapters)?;
        let mut cached = None;
        if self.scores_prompt {
            let count = self.options.log_probabilities.unwrap_or(0);
            let scores = session.score_prompt(prompt, count, cancel, |_| {})?;
            outlet.send(StreamItem::Prompt {
                prompt: index,
                scores,
            });
            // Scoring computed the whole prompt, so nothing of it was cached before this request.
            cached = Some(0);
        }
        let first = index * self.choices;
        if self.choices == 1 {
            return self.one(&mut session, prompt, (first, cached), outlet);
        }
        let options = GenerateOptions {
            max_tokens: Some(0),
            speculate: self.options.speculate.clone(),
            ..GenerateOptions::default()
        };
        let shared = generate(&mut session, prompt, &options, cancel, &mut |_| {})?;
        let cached = cached.or(Some(shared.timing.reused_tokens));
        let sessions: Vec<_> = (0..self.choices).map(|_| session.fork()).collect();
        drop(session);
        std::thread::scope(|scope| {
            let threads: Vec<_> = sessions
                .into_iter()
                .enumerate()
                .map(|(choice, mut session)| {
                    let work =
                        move || self.one(&mut session, prompt, (first + choice, cached), outlet);
                    std::thread::Builder::new()
                        .spawn_scoped(scope, work)
                        .map_err(|_| {
                            // The completions of a prompt are returned together or not at all.
                            outlet.cancel.cancel();
                            no_thread()
                        })
                })
                .collect();
            // Errors of threads that did not start come first: the other errors only report the cancellation that
            // followed.
            let (lacking, threads): (Vec<_>, Vec<_>) =
                threads.into_iter().partition(Result::is_err);
            let ends = lacking.into_iter().chain(threads).map(|thread| {
                let panicked = || ApiError::internal("a thread of a completion panicked");
                thread?.join().unwrap_or_else(|_| Err(panicked()))
            });
            // Join all threads before returning the first error.
            ends.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Computes one completion.
    fn one(
        &self,
        session: &mut Session,
        prompt: &[u32],
        (choice, cached): (usize, Option<usize>),
        outlet: &ResponseSink,
    ) -> ApiResult<()> {
        let mut options = self.options.clone();
        options.sampler.seed = options
            .sampler
            .seed
            .wrapping_add((choice % self.choices) as u64);
        let mut clock = self.model.metrics().clock(self.arrived);
        let ends = options.all_end_tokens(session.model().tokenizer()?);
        let (mut tokens, mut count, mut has_begun) = (Vec::new(), 0, false);
        let answer = generate(
            session,
            prompt,
            &options,
            &outlet.cancel,
            &mut |event| match event {
                Event::Prefill { reused, .. } => {
                    if !std::mem::replace(&mut has_begun, true) {
                        let cached = cached.unwrap_or(reused);
                        outlet.send(StreamItem::Begun { cached });
                    }
                }
                Event::Token {
                    token,
                    log_probabilities,
                } => {
                    clock.tick();
                    count += 1;
                    // The end token is not part of the text.
                    let told = log_probabilities.filter(|_| !ends.contains(&token));
                    tokens.extend(told.cloned());
                }
                Event::Text(text) => {
                    outlet.send(StreamItem::Text {
                        choice,
                        text: text.to_owned(),
                        tokens: std::mem::take(&mut tokens),
                        count: std::mem::take(&mut count),
                    });
                }
            },
        )?;
        if answer.finish == Finish::Cancelled {
            return Err(triad_engine::Error::Cancelled.into());
        }
        let mut timing = answer.timing;
        timing.reused_tokens = cached.unwrap_or(timing.reused_tokens);
        // The remaining tokens have no text of their own. Tokens of a stop string are not sent.
        if answer.finish != Finish::StopString && !tokens.is_empty() {
            outlet.send(StreamItem::Text {
                choice,
                text: String::new(),
                tokens,
                count,
            });
        }
        let timeline = PromptTimeline::new(session, timing.prefill_tokens).map(Box::new);
        let end = End {
            finish: answer.finish,
            stop: answer.stop,
            tokens: answer.tokens.len(),
            timing,
            speculation: answer.speculation.filter(|it| it.proposed > 0),
            timeline,
        };
        let is_first = choice.is_multiple_of(self.choices);
        let counted = is_first.then_some((prompt.len(), timing.reused_tokens));
        self.model.metrics().ended(end.finish, end.tokens, counted);
        outlet.send(StreamItem::End { choice, end });
        Ok(())
    }
}

/// The sender of an order's parts.
struct ResponseSink {
    sender: mpsc::Sender<StreamItem>,
    time_out: Duration,
    cancel: Cancel,
}

impl ResponseSink {
    /// Sends a part. Cancels the order if the client does not read in time.
    fn send(&self, part: StreamItem) {
        let (mut left, start) = (Some(part), Instant::now());
        while let Some(part) = left.take() {
            left = match self.sender.try_send(part) {
                Ok(()) => None,
                Err(TrySendError::Full(part))
                    if start.elapsed() < self.time_out && !self.cancel.is_cancelled() =>
                {
                    std::thread::sleep(POLL_INTERVAL);
                    Some(part)
                }
                Err(_) => return self.cancel.cancel(),
            };
        }
    }
}
