//! Generation of an answer from a prompt.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use triad_model::tokenizer::{DecodeStream, Tokenizer};

use crate::cancel::Cancel;
use crate::constraint::{ConstraintFactory, ConstraintUse, Guide};
use crate::error::{Error, Result};
use crate::log_probabilities::LogProbabilities;
use crate::sampler::{Sampler, SamplerOptions};
use crate::session::Session;
use crate::speculate::{Speculate, Speculation, Speculator};
use crate::stop::StopMatcher;

/// Options of how an answer is generated.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// The maximum number of tokens of the answer; `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// The options of sampling.
    pub sampler: SamplerOptions,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer in addition to the model's own end tokens.
    pub end_tokens: Vec<u32>,
    /// Continues after an end token as after any other, for measurements of answers of one length.
    pub ignores_end_tokens: bool,
    /// Computes the log probability of each token, and of this number of the likeliest tokens at its position; `None`:
    /// computes none.
    pub log_probabilities: Option<usize>,
    /// The speculative decoding; `None`: one token per step. The tokens are the same either way, unless a draft model
    /// is [sampled](crate::speculate::Draft::sampled).
    pub speculate: Option<Speculate>,
    /// The constraint of the answer, which ends when nothing more may follow. `None`: no constraint.
    pub constraint: Option<Arc<dyn ConstraintFactory>>,
    /// Control tokens whose names are a part of the text, because the caller reads them: words that begin or end a
    /// function call or reasoning. Other control tokens have no text.
    pub spelled: Vec<u32>,
}

impl GenerateOptions {
    /// Returns all tokens that end the answer of a model with this tokenizer.
    pub fn all_end_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        if self.ignores_end_tokens {
            return Vec::new();
        }
        [tokenizer.end_tokens(), &self.end_tokens].concat()
    }
}

/// An event that a caller receives while an answer is generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// Progress of the prefill: first before anything is computed, then as chunks end.
    Prefill {
        /// Tokens done, including those that the session already held.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
        /// Tokens that need not be computed, because the session or the engine held them.
        reused: usize,
    },
    /// The next token of the answer. If it completes some text, an [`Event::Text`] follows.
    Token {
        /// The token; it may be the end token.
        token: u32,
        /// Its log probability, if [`GenerateOptions::log_probabilities`] is set.
        log_probabilities: Option<&'a LogProbabilities>,
    },
    /// The next text of the answer; always whole characters.
    Text(&'a str),
}

/// The reason why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// The model generated an end token, or the answer has its [form](GenerateOptions::constraint) and nothing may follow.
    EndToken,
    /// The answer contained a stop string.
    StopString,
    /// The answer has the requested number of tokens.
    Length,
    /// The context has no room for another token.
    ContextFull,
    /// Another thread cancelled the generation.
    Cancelled,
}

/// Token counts and times of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Tokens of the prompt that were computed.
    pub prefill_tokens: usize,
    /// Tokens of the prompt that the session already held.
    pub reused_tokens: usize,
    /// Seconds from the call to the logits of the prompt's last token. With a draft model, this includes its prefill,
    /// which runs afterwards.
    pub prefill_seconds: f64,
    /// Tokens of the answer that were computed: all but the last.
    pub decode_tokens: usize,
    /// Seconds of decode.
    pub decode_seconds: f64,
    /// Seconds from the call to the first token of the answer.
    pub time_to_first_token_seconds: f64,
}

impl Timing {
    /// Returns the prompt tokens per second.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill_seconds)
    }

    /// Returns the answer tokens per second.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.decode_tokens, self.decode_seconds)
    }
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if tokens == 0 {
        0.0
    } else {
        tokens as f64 / seconds
    }
}

/// An answer.
#[derive(Clone, Debug, Serialize)]
pub struct Generation {
    /// The text, without a stop string.
    pub text: String,
    /// The tokens; if there was an end token, it is the last.
    pub tokens: Vec<u32>,
    /// The reason why it ended.
    pub finish: Finish,
    /// The stop string that ended it.
    #[serde(skip)]
    pub stop: Option<String>,
    /// Token counts and times.
    pub timing: Timing,
    /// Counts of proposals, if speculative decoding was on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
    /// Counts and times of the constraint, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<ConstraintUse>,
}

/// Continues `prompt`, which is the whole conversation. The prefix that the session already holds is not computed
/// again; what the session holds after that prefix is dropped.
///
/// If the run is cancelled, returns the answer so far with [`Finish::Cancelled`]; this is not an error.
///
/// # Errors
/// If the prompt is empty, longer than the context, or contains a token outside the vocabulary; if an option is out of
/// range; if the model has no tokenizer or computes logits that are not finite; if the answer cannot satisfy its
/// constraint.
pub fn generate(
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
    cancel: &Cancel,
    on_event: &mut dyn FnMut(Event),
) -> Result<Generation> {
    let speculator = Speculator::new(options.speculate.as_ref(), session, &options.sampler)?;
    generate_with(session, prompt, options, speculator, cancel, on_event)
}

/// Generates as [`generate`] does, with the given speculator.
pub(crate) fn generate_with(
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
    mut speculator: Speculator,
    cancel: &Cancel,
    on_event: &mut dyn FnMut(Event),
) -> Result<Generation> {
    let start = Instant::now();
    let model = Arc::clone(session.model());
    let tokenizer = model.tokenizer()?;
    let mut sampler = Sampler::new(&options.sampler)?;
    if prompt.len() > session.context() {
        let (prompt, context) = (prompt.len(), session.context());
        return Err(Error::PromptTooLong {
            prompt,
            free: context,
            context,
        });
    }
    let biased: Vec<_> = options
        .sampler
        .logit_bias
        .iter()
        .map(|(token, _)| *token)
        .collect();
    session.check_vocabulary(&biased)?;
    sampler.begin_answer(prompt.len());
    if let Some(factory) = &options.constraint {
        speculator.guide(Guide::new(&**factory, model.description().vocab)?);
    }
    let reused = session.reuse(prompt);
    let mut timing = Timing {
        reused_tokens: reused,
        ..Timing::default()
    };
    let shown = Shown {
        text: String::new(),
        stop: StopMatcher::new(&options.stop),
        stopped_by: None,
    };
    // A constraint applies to all bytes of the answer.
    let stream = if options.constraint.is_some() {
        tokenizer.exact_stream()
    } else {
        tokenizer.stream(prompt)
    };
    let stream = stream.spelling(&options.spelled);
    let mut answer = Answer {
        tokens: Vec::new(),
        stream,
        shown,
    };

    let mut progress = |done| {
        on_event(Event::Prefill {
            done: reused + done,
            total: prompt.len(),
            reused,
        });
    };
    progress(0);
    let prefill = session.prefill(&prompt[reused..], cancel, progress);
    let prefill = prefill
        .map(|_logits| ())
        .and_then(|()| speculator.begin(prompt, cancel));
    session.share();
    timing.prefill_seconds = start.elapsed().as_secs_f64();
    timing.prefill_tokens = session.tokens().len() - reused;
    let finish = match prefill {
        Err(Error::Cancelled) => Some(Finish::Cancelled),
        Err(error) => return Err(error),
        Ok(()) if options.max_tokens == Some(0) => Some(Finish::Length),
        Ok(()) => None,
    };
    let decode_start = Instant::now();
    let finish = match finish {
        Some(finish) => finish,
        None => {
            let first = speculator.first(session, &mut sampler)?;
            timing.time_to_first_token_seconds = start.elapsed().as_secs_f64();
            let limits = Limits {
                max_tokens: options.max_tokens,
                end_tokens: &options.all_end_tokens(tokenizer),
                log_probabilities: options.log_probabilities,
            };
            match first {
                Some(first) => decode(
                    session,
                    first,
                    (&mut sampler, &mut speculator),
                    &mut answer,
                    &limits,
                    cancel,
                    on_event,
                )?,
                None => Finish::EndToken,
            }
        }
    };
    timing.decode_seconds = decode_start.elapsed().as_secs_f64();
    timing.decode_tokens = answer.tokens.len().saturating_sub(1);
    let (speculation, constraint) = (speculator.statistics(), speculator.constraint_use());
    let (generation, stopped_by) = answer.end(finish, timing, on_event);
    let stop = stopped_by.and_then(|place| options.stop.get(place).cloned());
    Ok(Generation {
        stop,
        speculation,
        constraint,
        ..generation
    })
}

/// The limits of an answer other than its text, and the log probabilities to compute.
struct Limits<'a> {
    max_tokens: Option<usize>,
    end_tokens: &'a [u32],
    /// The number of the likeliest tokens to return with each token.
    log_probabilities: Option<usize>,
}

/// Generates the answer that begins with the token `first`. Afterwards, the session holds all of it but the last token.
fn decode(
    session: &mut Session,
    first: u32,
    (sampler, speculator): (&mut Sampler, &mut Speculator),
    answer: &mut Answer,
    limits: &Limits,
    cancel: &Cancel,
    on_event: &mut dyn FnMut(Event),
) -> Result<Finish> {
    let vocab = session.model().description().vocab;
    let mut finish = answer.push(first, session.logits(), limits, on_event);
    let mut latest = first;
    loop {
        match finish {
            None | Some(Finish::Length) if speculator.is_complete() => return Ok(Finish::EndToken),
            Some(finish) => return Ok(finish),
            None => {}
        }
        let free = session.context() - session.tokens().len();
        if free == 0 {
            return Ok(Finish::ContextFull);
        }
        // The token that follows the last proposal also belongs to the answer.
        let of_answer = limits
            .max_tokens
            .map_or(usize::MAX, |most| most - answer.tokens.len() - 1);
        let chosen =
            match speculator.step(session, sampler, latest, of_answer.min(free - 1), cancel) {
                Err(Error::Cancelled) => return Ok(Finish::Cancelled),
                Err(error) => return Err(error),
                Ok(chosen) => chosen,
            };
        let mut remaining = chosen.len();
        for (token, logits) in chosen
            .iter()
            .zip(session.logits_of_rows().chunks_exact(vocab))
        {
            (latest, remaining) = (*token, remaining - 1);
            finish = answer.push(latest, logits, limits, on_event);
            if finish.is_none() && remaining > 0 && cancel.check().is_err() {
                finish = Some(Finish::Cancelled);
            }
            if finish.is_some() {
                speculator.end(session, remaining);
                break;
            }
        }
    }
}

struct Answer<'a> {
    tokens: Vec<u32>,
    stream: DecodeStream<'a>,
    shown: Shown<'a>,
}

impl Answer<'_> {
    /// Appends the next token, which was sampled from `logits[vocab]`. Returns why the answer ends with it, if it does.
    fn push(
        &mut self,
        token: u32,
        logits: &[f32],
        limits: &Limits,
        on_event: &mut dyn FnMut(Event),
    ) -> Option<Finish> {
        self.tokens.push(token);
        let log_probabilities = limits
            .log_probabilities
            .map(|count| LogProbabilities::new(logits, token, count));
        on_event(Event::Token {
            token,
            log_probabilities: log_probabilities.as_ref(),
        });
        if limits.end_tokens.contains(&token) {
            return Some(Finish::EndToken);
        }
        if let Some(text) = self.stream.push(token)
            && self.shown.push(&text, on_event)
        {
            return Some(Finish::StopString);
        }
        (limits.max_tokens == Some(self.tokens.len())).then_some(Finish::Length)
    }

    /// Returns the answer, and the index of the stop string that ended it.
    fn end(
        self,
        mut finish: Finish,
        timing: Timing,
        on_event: &mut dyn FnMut(Event),
    ) -> (Generation, Option<usize>) {
        let Self {
            tokens,
            stream,
            mut shown,
        } = self;
        if finish != Finish::StopString && shown.push(&stream.finish(), on_event) {
            finish = Finish::StopString;
        }
        if finish != Finish::StopString {
            shown.finish(on_event);
        }
        let stopped_by = shown.stopped_by;
        let (speculation, constraint) = (None, None);
        (
            Generation {
                text: shown.text,
                tokens,
                finish,
                stop: None,
                timing,
                speculation,
                constraint,
            },
            stopped_by,
        )
    }
}

/// The text of an answer that has been emitted so far.
struct Shown<'a> {
    text: String,
    stop: StopMatcher<'a>,
    stopped_by: Option<usize>,
}

impl Shown<'_> {
    /// Emits the part of `text` that cannot belong to a stop string. Returns whether a stop string was found.
    fn push(&mut self, text: &str, on_event: &mut dyn FnMut(Event)) -> bool {
        let step = self.stop.push(text);
        self.emit(&step.text, on_event);
        self.stopped_by = step.stopped_by;
        step.stopped_by.is_some()
    }

    /// Emits the text that was held back.
    fn finish(&mut self, on_event: &mut dyn FnMut(Event)) {
        let stop = std::mem::replace(&mut self.stop, StopMatcher::new(&[]));
        self.emit(&stop.finish(), on_event);
    }

    fn emit(&mut self, text: &str, on_event: &mut dyn FnMut(Event)) {
        if !text.is_empty() {
            self.text.push_str(text);
            on_event(Event::Text(text));
        }
    }
}
