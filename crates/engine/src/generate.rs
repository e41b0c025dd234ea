//! From a prompt to an answer.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use triad_model::tokenizer::DecodeStream;

use crate::cancel::Cancel;
use crate::constraint::{ConstraintUse, Form, Guide};
use crate::error::{Error, Result};
use crate::execute::Session;
use crate::log_probabilities::LogProbabilities;
use crate::sampler::{Sampler, SamplerOptions};
use crate::speculate::{Speculate, Speculation, Speculator};
use crate::stop::StopMatcher;

/// How an answer is made.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Tokens of the answer at most; `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Goes on behind an end token, as if it were any other, for measurements of answers of one length.
    pub ignores_end_tokens: bool,
    /// Computes the probability of each token, and so many of the likeliest at its place; `None`: of none.
    pub log_probabilities: Option<usize>,
    /// Whether and how several tokens a step are tried; `None`: one token a step. Tokens are the same either way, unless
    /// a draft model is [sampled](crate::speculate::Draft::sampled).
    pub speculate: Option<Speculate>,
    /// What form the answer must have; it ends where nothing more may follow. `None`: any.
    pub form: Option<Arc<dyn Form>>,
}

/// What a caller receives while an answer is generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// So many of the prompt's tokens are through the model.
    Prefill {
        /// Tokens done, those reused from the session among them.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The next token of the answer. The text that it completes follows, if it completes some.
    Token {
        /// The token; perhaps the one that ends the answer.
        token: u32,
        /// Its probability, where [`GenerateOptions::log_probabilities`] asks for it.
        log_probabilities: Option<&'a LogProbabilities>,
    },
    /// More of the answer; always whole characters.
    Text(&'a str),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// The model generated an end token, or the answer has its [form](GenerateOptions::form) and nothing may follow.
    EndToken,
    /// A stop string came up.
    StopString,
    /// As many tokens as requested.
    Length,
    /// No room for another token.
    ContextFull,
    /// Another thread cancelled it.
    Cancelled,
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Tokens of the prompt that went through the model.
    pub prefill_tokens: usize,
    /// Tokens of the prompt that the session held already.
    pub reused_tokens: usize,
    /// Seconds from the first chunk to the logits of the prompt's last token.
    /// A draft model reads the prompt behind that, and its time is part of it.
    pub prefill_seconds: f64,
    /// Tokens of the answer that went through the model: all but the last.
    pub decode_tokens: usize,
    /// Seconds for them.
    pub decode_seconds: f64,
    /// Seconds from the call to the first token of the answer.
    pub time_to_first_token_seconds: f64,
}

impl Timing {
    /// Prompt tokens a second.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill_seconds)
    }

    /// Answer tokens a second.
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
    /// Its text, without a stop string.
    pub text: String,
    /// Its tokens, an end token last if there was one.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// The stop string that ended it.
    #[serde(skip)]
    pub stop: Option<String>,
    /// Where the time went.
    pub timing: Timing,
    /// What came of proposals, if there were to be some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
    /// What keeping its form took, if it was to have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<ConstraintUse>,
}

/// Continues `prompt`, which is the whole conversation: what the session has seen of it already is not
/// computed again, what it has seen beyond is forgotten.
///
/// A cancelled run is no error: the answer so far comes back with [`Finish::Cancelled`].
///
/// # Errors
/// If the prompt is empty, longer than the context, or holds a token outside the vocabulary; if an option is
/// out of range; if the model has no tokenizer or computes logits that are not finite; if the answer cannot be kept in its
/// form.
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

/// As [`generate`], with any proposals.
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
    if let Some(form) = &options.form {
        speculator.guide(Guide::new(&**form, model.description().vocab)?);
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
    // A form is that of all bytes.
    let stream = if options.form.is_some() {
        tokenizer.exact_stream()
    } else {
        tokenizer.stream(prompt)
    };
    let mut answer = Answer {
        tokens: Vec::new(),
        stream,
        shown,
    };

    let prefill = session.prefill(&prompt[reused..], cancel, |done| {
        on_event(Event::Prefill {
            done: reused + done,
            total: prompt.len(),
        });
    });
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
            let end_tokens = if options.ignores_end_tokens {
                &[]
            } else {
                tokenizer.end_tokens()
            };
            let limits = Limits {
                max_tokens: options.max_tokens,
                end_tokens,
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

/// What ends an answer, besides its text, and what is computed of each token.
struct Limits<'a> {
    max_tokens: Option<usize>,
    end_tokens: &'a [u32],
    /// How many of the likeliest tokens are told with each token.
    log_probabilities: Option<usize>,
}

/// Makes the answer that begins with the token `first`. The session has then seen all of it but the last token.
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
        // The token that follows the last proposal is one more of the answer.
        let of_answer = limits
            .max_tokens
            .map_or(usize::MAX, |most| most - answer.tokens.len() - 1);
        let chosen =
            match speculator.step(session, sampler, latest, of_answer.min(free - 1), cancel) {
                Err(Error::Cancelled) => return Ok(Finish::Cancelled),
                Err(error) => return Err(error),
                Ok(chosen) => chosen,
            };
        let mut behind = chosen.len();
        for (token, logits) in chosen
            .iter()
            .zip(session.logits_of_rows().chunks_exact(vocab))
        {
            (latest, behind) = (*token, behind - 1);
            finish = answer.push(latest, logits, limits, on_event);
            if finish.is_none() && behind > 0 && cancel.check().is_err() {
                finish = Some(Finish::Cancelled);
            }
            if finish.is_some() {
                speculator.end(session, behind);
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
    /// Takes the next token, which was chosen by `logits[vocab]`; why the answer ends with it, if it does.
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

    /// The answer, and the place of the stop string that ended it.
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

/// The text of an answer as far as it has been shown.
struct Shown<'a> {
    text: String,
    stop: StopMatcher<'a>,
    stopped_by: Option<usize>,
}

impl Shown<'_> {
    /// Shows what may be shown of `text`; true if a stop string came up.
    fn push(&mut self, text: &str, on_event: &mut dyn FnMut(Event)) -> bool {
        let step = self.stop.push(text);
        self.emit(&step.text, on_event);
        self.stopped_by = step.stopped_by;
        step.stopped_by.is_some()
    }

    /// Shows what was held back.
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
