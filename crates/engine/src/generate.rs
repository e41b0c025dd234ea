//! From a prompt to an answer.

use std::time::Instant;

use serde::Serialize;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::execute::Session;
use crate::sampler::{Sampler, SamplerOptions};
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
}

/// What a caller hears while an answer is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// So many of the prompt's tokens are through the model.
    Prefill {
        /// Tokens done, those reused from the session among them.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// More of the answer; always whole characters.
    Text(&'a str),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// The model said that it is done.
    EndToken,
    /// A stop string came up.
    StopString,
    /// As many tokens as asked for.
    Length,
    /// No room for another token.
    ContextFull,
    /// Another thread asked to stop.
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
    pub prefill_seconds: f64,
    /// Tokens that went through the model one by one: all of the answer but the last.
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
    if tokens == 0 { 0.0 } else { tokens as f64 / seconds }
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
    /// Where the time went.
    pub timing: Timing,
}

/// Continues `prompt`, which is the whole conversation: what the session has seen of it already is not
/// computed again, what it has seen beyond is forgotten.
///
/// A cancelled run is no error: the answer so far comes back with [`Finish::Cancelled`].
///
/// # Errors
/// If the prompt is empty, longer than the context, or holds a token outside the vocabulary; if an option is
/// out of range; if the model has no tokenizer or computes logits that are not finite.
pub fn generate(
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
    cancel: &Cancel,
    on_event: &mut dyn FnMut(Event),
) -> Result<Generation> {
    let start = Instant::now();
    let model = std::sync::Arc::clone(session.model());
    let tokenizer = model.tokenizer()?;
    let mut sampler = Sampler::new(&options.sampler)?;
    if prompt.len() > session.context() {
        let (prompt, context) = (prompt.len(), session.context());
        return Err(Error::PromptTooLong { prompt, free: context, context });
    }
    let reused = session.reuse(prompt);
    let mut timing = Timing { reused_tokens: reused, ..Timing::default() };
    let mut answer = Answer { tokens: Vec::new(), text: String::new(), stop: StopMatcher::new(&options.stop) };
    let mut stream = tokenizer.stream(prompt);

    let prefill = session.prefill(&prompt[reused..], cancel, |done| {
        on_event(Event::Prefill { done: reused + done, total: prompt.len() });
    });
    let prefill = prefill.map(|_logits| ());
    session.share();
    timing.prefill_seconds = start.elapsed().as_secs_f64();
    timing.prefill_tokens = session.tokens().len() - reused;
    let mut finish = match prefill {
        Err(Error::Cancelled) => Some(Finish::Cancelled),
        Err(error) => return Err(error),
        Ok(()) if options.max_tokens == Some(0) => Some(Finish::Length),
        Ok(()) => None,
    };
    let decode_start = Instant::now();
    while finish.is_none() {
        let token = sampler.sample(session.logits(), session.tokens());
        answer.tokens.push(token);
        if answer.tokens.len() == 1 {
            timing.time_to_first_token_seconds = start.elapsed().as_secs_f64();
        }
        if tokenizer.end_tokens().contains(&token) {
            finish = Some(Finish::EndToken);
            break;
        }
        if let Some(text) = stream.push(token)
            && answer.show(&text, on_event)
        {
            finish = Some(Finish::StopString);
            break;
        }
        if options.max_tokens == Some(answer.tokens.len()) {
            finish = Some(Finish::Length);
        } else if session.tokens().len() == session.context() {
            finish = Some(Finish::ContextFull);
        } else {
            match session.decode(token, cancel) {
                Err(Error::Cancelled) => finish = Some(Finish::Cancelled),
                Err(error) => return Err(error),
                Ok(_) => timing.decode_tokens += 1,
            }
        }
    }
    timing.decode_seconds = decode_start.elapsed().as_secs_f64();
    let finish = finish.expect("the loop ends with a reason");
    if finish != Finish::StopString {
        let rest = stream.finish();
        if answer.show(&rest, on_event) {
            return Ok(answer.end(Finish::StopString, timing, on_event));
        }
    }
    Ok(answer.end(finish, timing, on_event))
}

struct Answer<'a> {
    tokens: Vec<u32>,
    text: String,
    stop: StopMatcher<'a>,
}

impl Answer<'_> {
    /// Shows what may be shown of `text`; true if a stop string came up.
    fn show(&mut self, text: &str, on_event: &mut dyn FnMut(Event)) -> bool {
        let step = self.stop.push(text);
        self.emit(&step.text, on_event);
        step.stopped
    }

    fn emit(&mut self, text: &str, on_event: &mut dyn FnMut(Event)) {
        if !text.is_empty() {
            self.text.push_str(text);
            on_event(Event::Text(text));
        }
    }

    fn end(mut self, finish: Finish, timing: Timing, on_event: &mut dyn FnMut(Event)) -> Generation {
        let stop = std::mem::replace(&mut self.stop, StopMatcher::new(&[]));
        if finish != Finish::StopString {
            self.emit(&stop.finish(), on_event);
        }
        Generation { text: self.text, tokens: self.tokens, finish, timing }
    }
}
