//! Answers, complete and streamed.

use std::sync::Mutex;
use std::time::Instant;

use pyo3::prelude::*;
use triad_engine::{Cancel, Event, Finish, Generation, LogProbabilities};
use triad_frontend::picture_reader::ShownPrompt;

use crate::error::{self, Busy, TriadError};
use crate::lent::Lent;
use crate::running::Running;

/// The probability of a token, and the likeliest ones at its position, each with the logarithm of its probability.
type TokenProbability = (u32, f32, Vec<(u32, f32)>);

/// The answer of a model.
#[pyclass(frozen, module = "triad")]
pub struct Answer {
    generation: Generation,
    prompt_tokens: usize,
    encode_seconds: f64,
    log_probabilities: Option<Vec<LogProbabilities>>,
}

#[pymethods]
impl Answer {
    /// Returns the text, without a stop string.
    #[getter]
    fn text(&self) -> &str {
        &self.generation.text
    }

    /// Returns the tokens, including a final end token.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.generation.tokens.clone()
    }

    /// Returns the reason why it ended: `end-token`, `stop-string`, `length`, `context-full` or `cancelled`.
    #[getter]
    fn finish(&self) -> &'static str {
        match self.generation.finish {
            Finish::EndToken => "end-token",
            Finish::StopString => "stop-string",
            Finish::Length => "length",
            Finish::ContextFull => "context-full",
            Finish::Cancelled => "cancelled",
        }
    }

    /// Returns, for each token, if `logprobs` requests it: the token, the natural logarithm of its probability, and the
    /// likeliest tokens at its position with theirs.
    #[getter]
    fn logprobs(&self) -> Option<Vec<TokenProbability>> {
        let each = |one: &LogProbabilities| (one.token, one.log_probability, one.likeliest.clone());
        self.log_probabilities
            .as_ref()
            .map(|all| all.iter().map(each).collect())
    }

    /// Returns the number of tokens of the prompt.
    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Returns the number of prompt tokens that were reused from the session instead of computed.
    #[getter]
    fn reused_tokens(&self) -> usize {
        self.generation.timing.reused_tokens
    }

    /// Returns the seconds in which the encoder made rows of pictures: those of pictures that were seen before are kept.
    #[getter]
    fn encode_seconds(&self) -> f64 {
        self.encode_seconds
    }

    /// Returns the seconds for the prompt.
    #[getter]
    fn prefill_seconds(&self) -> f64 {
        self.generation.timing.prefill_seconds
    }

    /// Returns the seconds for the answer, after its first token.
    #[getter]
    fn decode_seconds(&self) -> f64 {
        self.generation.timing.decode_seconds
    }

    /// Returns the seconds to the first token of the answer.
    #[getter]
    fn time_to_first_token_seconds(&self) -> f64 {
        self.generation.timing.time_to_first_token_seconds
    }

    /// Returns the computed prompt tokens per second.
    #[getter]
    fn prefill_tokens_per_second(&self) -> f64 {
        self.generation.timing.prefill_tokens_per_second()
    }

    /// Returns the answer tokens per second.
    #[getter]
    fn decode_tokens_per_second(&self) -> f64 {
        self.generation.timing.decode_tokens_per_second()
    }

    fn __str__(&self) -> &str {
        self.text()
    }

    fn __repr__(&self) -> String {
        let (text, tokens) = (&self.generation.text, self.generation.tokens.len());
        format!(
            "<triad.Answer {text:?}, {tokens} tokens, {}>",
            self.finish()
        )
    }
}

/// A streamed answer: an iterator over the parts of its text.
#[pyclass(frozen, module = "triad")]
pub struct Stream {
    state: Mutex<State>,
    /// Outside the state, which the waiting thread locks.
    cancel: Cancel,
}

enum State {
    Running {
        running: Running<Part, triad_frontend::Result<(Generation, f64)>>,
        prompt_tokens: usize,
        parts: Option<Parts>,
    },
    Ended(Py<Answer>),
    Failed,
}

/// A part of an answer.
enum Part {
    Text(String),
    Token(LogProbabilities),
}

type Parts = Vec<LogProbabilities>;

impl Stream {
    /// Starts the answer to `prompt`, as a continuation of `session`.
    pub fn start(
        mut session: Lent,
        prompt: ShownPrompt,
        options: triad_engine::GenerateOptions,
    ) -> Self {
        let (prompt_tokens, parts) = (prompt.len(), options.log_probabilities.map(|_| Vec::new()));
        let running = Running::start(move |cancel, sender| {
            let (start, is_shown) = (Instant::now(), prompt.has_pictures());
            let prompt = prompt.hold(session.get(), cancel)?;
            let encoded = if is_shown {
                start.elapsed().as_secs_f64()
            } else {
                0.0
            };
            // If the receiver is gone, the answer is cancelled.
            let answer = triad_frontend::answer::stream(
                session.get(),
                &prompt,
                &options,
                cancel,
                &mut |event| {
                    match event {
                        Event::Text(text) => drop(sender.send(Part::Text(text.to_owned()))),
                        Event::Token {
                            log_probabilities: Some(one),
                            ..
                        } => drop(sender.send(Part::Token(one.clone()))),
                        Event::Token { .. } | Event::Prefill { .. } => {}
                    }
                    Ok(())
                },
            );
            Ok((answer?, encoded))
        });
        let cancel = running.canceller();
        Self {
            state: Mutex::new(State::Running {
                running,
                prompt_tokens,
                parts,
            }),
            cancel,
        }
    }

    /// Returns the next part of the text.
    fn next(&self, py: Python) -> PyResult<Option<String>> {
        let mut state = self
            .state
            .try_lock()
            .map_err(|_| Busy::new_err("another thread waits for this answer"))?;
        loop {
            let State::Running { running, parts, .. } = &mut *state else {
                return Ok(None);
            };
            match running.next(py) {
                Ok(Some(Part::Text(text))) => return Ok(Some(text)),
                Ok(Some(Part::Token(one))) => parts
                    .as_mut()
                    .into_iter()
                    .for_each(|parts| parts.push(one.clone())),
                Ok(None) => break,
                Err(error) => {
                    *state = State::Failed;
                    return Err(error);
                }
            }
        }
        let State::Running {
            mut running,
            prompt_tokens,
            parts,
        } = std::mem::replace(&mut *state, State::Failed)
        else {
            return Ok(None);
        };
        let Some(result) = running.result(py) else {
            return Ok(None);
        };
        let (generation, encode_seconds) = result?.map_err(error::frontend)?;
        let answer = Answer {
            generation,
            prompt_tokens,
            encode_seconds,
            log_probabilities: parts,
        };
        *state = State::Ended(Py::new(py, answer)?);
        Ok(None)
    }

    /// Waits for the complete answer.
    ///
    /// # Errors
    /// If the answer fails; also `KeyboardInterrupt`.
    pub fn whole(&self, py: Python) -> PyResult<Py<Answer>> {
        while self.next(py)?.is_some() {}
        match &*self
            .state
            .try_lock()
            .map_err(|_| Busy::new_err("another thread waits for this answer"))?
        {
            State::Ended(answer) => Ok(answer.clone_ref(py)),
            _ => Err(TriadError::new_err(
                "there is no answer: its stream was interrupted or failed",
            )),
        }
    }
}

#[pymethods]
impl Stream {
    fn __iter__(this: PyRef<Self>) -> PyRef<Self> {
        this
    }

    fn __next__(&self, py: Python) -> PyResult<Option<String>> {
        self.next(py)
    }

    /// Ends the answer at its present length, also from another thread; the iterator then ends.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Returns the complete answer, after waiting for it.
    #[getter]
    fn answer(&self, py: Python) -> PyResult<Py<Answer>> {
        self.whole(py)
    }
}
