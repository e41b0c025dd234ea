//! From an order to the parts of its answers.
//!
//! Each prompt is admitted by the [`queue`](crate::queue) and computed on a thread of its own, several answers to it on as
//! many, all of them by the model's one engine. What comes is sent as [`Part`]s through one bounded channel. Where nobody
//! receives them any more, everything is cancelled; who receives too slowly is cut off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::AbortHandle;
use triad_engine::{
    Adapters, Cancel, Event, Finish, GenerateOptions, LogProbabilities, Session, Timing, generate,
};

use crate::blocking::{no_thread, spawn};
use crate::error::{ApiError, ApiResult};
use crate::guard::Caller;
use crate::hosted::Hosted;
use crate::prompt_timelines::PromptTimeline;
use crate::queue::{Permit, Place};

/// Parts that wait for a client, at most.
const PARTS: usize = 1024;
/// How often whoever waits for a client looks whether it took some.
const LOOK: Duration = Duration::from_millis(10);

/// Answers that are wanted.
pub(crate) struct Order {
    pub(crate) model: Arc<Hosted>,
    /// Tokens of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Answers to each.
    pub(crate) choices: usize,
    pub(crate) options: GenerateOptions,
    /// What is added to the model's weights.
    pub(crate) adapters: Adapters,
    /// Whether the prompts' own probabilities are wanted, with as many of the likeliest as of the answer.
    pub(crate) scores_prompt: bool,
    /// Whom it is for.
    pub(crate) client: Caller,
    /// When it was asked for.
    pub(crate) arrived: Instant,
    /// How long a client may leave parts where they are.
    pub(crate) time_out: Duration,
}

/// What comes of an order. Answers are counted through: `choices` to the first prompt, then those to the second.
#[derive(Debug)]
pub(crate) enum Part {
    /// Probabilities of a prompt's tokens from the second on, before anything of its answers.
    Prompt {
        prompt: usize,
        scores: Vec<LogProbabilities>,
    },
    /// More of an answer.
    Text {
        choice: usize,
        text: String,
        tokens: Vec<LogProbabilities>,
    },
    /// The end of an answer.
    End { choice: usize, end: End },
    /// The order can't be completed.
    Failed(ApiError),
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) finish: Finish,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
    /// Tokens of the answer.
    pub(crate) tokens: usize,
    pub(crate) timing: Timing,
    /// How its prompt was computed, where that is known.
    pub(crate) timeline: Option<Box<PromptTimeline>>,
}

/// The parts of an order as they come; dropped, it cancels what is not done.
pub(crate) struct Answers {
    pub(crate) parts: mpsc::Receiver<Part>,
    cancel: Cancel,
    driver: AbortHandle,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.driver.abort();
    }
}

impl Order {
    /// Waits in its `place` until the first prompt is admitted, and begins.
    ///
    /// # Errors
    /// If a prompt is empty or does not fit.
    pub(crate) async fn begin(self, place: Place) -> ApiResult<Answers> {
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
                    let outlet = Outlet {
                        sender,
                        cancel,
                        time_out: order.time_out,
                    };
                    let order = Arc::clone(&order);
                    let failed = (outlet.sender.clone(), outlet.cancel.clone());
                    if let Err(error) = spawn(move || order.answer(prompt, &outlet, permit)) {
                        let (sender, cancel) = failed;
                        let _ = sender.send(Part::Failed(error)).await;
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

    /// Computes all answers to one prompt.
    fn answer(&self, prompt: usize, outlet: &Outlet, permit: Permit) {
        if let Err(error) = self.try_answer(prompt, outlet) {
            self.model.metrics().count(if outlet.cancel.is_cancelled() {
                "cancelled"
            } else {
                "failed"
            });
            outlet.send(Part::Failed(error));
            outlet.cancel.cancel();
        }
        drop(permit);
    }

    fn try_answer(&self, index: usize, outlet: &Outlet) -> ApiResult<()> {
        let (prompt, cancel) = (&self.prompts[index], &outlet.cancel);
        let mut session = self.model.engine().session();
        session.set_salt(self.client.owner.salt());
        session.set_adapters(&self.adapters)?;
        let mut cached = None;
        if self.scores_prompt {
            let count = self.options.log_probabilities.unwrap_or(0);
            let scores = session.score_prompt(prompt, count, cancel, |_| {})?;
            outlet.send(Part::Prompt {
                prompt: index,
                scores,
            });
            // It was computed just now.
            cached = Some(0);
        }
        let first = index * self.choices;
        if self.choices == 1 {
            return self.one(&mut session, prompt, (first, cached), outlet);
        }
        let options = GenerateOptions {
            max_tokens: Some(0),
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
                            // The others have no one to be sent with.
                            outlet.cancel.cancel();
                            no_thread()
                        })
                })
                .collect();
            // An answer without a thread says why there is none, not the others that were cancelled for it.
            let (lacking, threads): (Vec<_>, Vec<_>) =
                threads.into_iter().partition(Result::is_err);
            let ends = lacking.into_iter().chain(threads).map(|thread| {
                let panicked = || ApiError::internal("a thread that computed an answer panicked");
                thread?.join().unwrap_or_else(|_| Err(panicked()))
            });
            // All of them, before the first error.
            ends.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Computes one answer.
    fn one(
        &self,
        session: &mut Session,
        prompt: &[u32],
        (choice, cached): (usize, Option<usize>),
        outlet: &Outlet,
    ) -> ApiResult<()> {
        let mut options = self.options.clone();
        options.sampler.seed = options
            .sampler
            .seed
            .wrapping_add((choice % self.choices) as u64);
        let mut clock = self.model.metrics().clock(self.arrived);
        let ends = if options.ignores_end_tokens {
            &[]
        } else {
            session.model().tokenizer()?.end_tokens()
        };
        let ends = ends.to_vec();
        let mut tokens = Vec::new();
        let answer = generate(
            session,
            prompt,
            &options,
            &outlet.cancel,
            &mut |event| match event {
                Event::Prefill { .. } => {}
                Event::Token {
                    token,
                    log_probabilities,
                } => {
                    clock.tick();
                    // The end is no part of the text.
                    let told = log_probabilities.filter(|_| !ends.contains(&token));
                    tokens.extend(told.cloned());
                }
                Event::Text(text) => {
                    outlet.send(Part::Text {
                        choice,
                        text: text.to_owned(),
                        tokens: std::mem::take(&mut tokens),
                    });
                }
            },
        )?;
        if answer.finish == Finish::Cancelled {
            return Err(triad_engine::Error::Cancelled.into());
        }
        let mut timing = answer.timing;
        timing.reused_tokens = cached.unwrap_or(timing.reused_tokens);
        // Without a text of their own, and no part of a stop string.
        if answer.finish != Finish::StopString && !tokens.is_empty() {
            outlet.send(Part::Text {
                choice,
                text: String::new(),
                tokens,
            });
        }
        let processors = self.model.engine().processors();
        let timeline = session
            .execution()
            .and_then(|execution| PromptTimeline::new(execution, processors))
            .map(Box::new);
        let end = End {
            finish: answer.finish,
            stop: answer.stop,
            tokens: answer.tokens.len(),
            timing,
            timeline,
        };
        let is_first = choice.is_multiple_of(self.choices);
        let counted = is_first.then_some((prompt.len(), timing.reused_tokens));
        self.model.metrics().ended(end.finish, end.tokens, counted);
        outlet.send(Part::End { choice, end });
        Ok(())
    }
}

/// Where parts go.
struct Outlet {
    sender: mpsc::Sender<Part>,
    time_out: Duration,
    cancel: Cancel,
}

impl Outlet {
    /// Passes a part on; cancels the order where nobody takes it in time.
    fn send(&self, part: Part) {
        let (mut left, start) = (Some(part), Instant::now());
        while let Some(part) = left.take() {
            left = match self.sender.try_send(part) {
                Ok(()) => None,
                Err(TrySendError::Full(part))
                    if start.elapsed() < self.time_out && !self.cancel.is_cancelled() =>
                {
                    std::thread::sleep(LOOK);
                    Some(part)
                }
                Err(_) => return self.cancel.cancel(),
            };
        }
    }
}
