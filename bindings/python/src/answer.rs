//! Answers, whole and as they come.

use std::sync::Mutex;

use pyo3::prelude::*;
use triad_engine::{Cancel, Event, Finish, Generation, LogProbabilities};

use crate::error::{self, Busy, TriadError};
use crate::lent::Lent;
use crate::running::Running;

/// The probability of a token, and the likeliest ones at its place, each with the logarithm of its probability.
type TokenProbability = (u32, f32, Vec<(u32, f32)>);

/// What a model wrote.
#[pyclass(frozen, module = "triad")]
pub struct Answer {
    generation: Generation,
    prompt_tokens: usize,
    log_probabilities: Option<Vec<LogProbabilities>>,
}

#[pymethods]
impl Answer {
    /// Its text, without a stop string.
    #[getter]
    fn text(&self) -> &str {
        &self.generation.text
    }

    /// Its tokens, an end token last if there was one.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.generation.tokens.clone()
    }

    /// Why it ended: `end-token`, `stop-string`, `length`, `context-full` or `cancelled`.
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

    /// Of each token, if `logprobs` asked for it: the token, the natural logarithm of its probability, and the likeliest
    /// tokens of its place with theirs.
    #[getter]
    fn logprobs(&self) -> Option<Vec<TokenProbability>> {
        let each = |one: &LogProbabilities| (one.token, one.log_probability, one.likeliest.clone());
        self.log_probabilities
            .as_ref()
            .map(|all| all.iter().map(each).collect())
    }

    /// Tokens of the prompt.
    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens of the prompt that were not computed, since they were before.
    #[getter]
    fn reused_tokens(&self) -> usize {
        self.generation.timing.reused_tokens
    }

    /// Seconds for the prompt.
    #[getter]
    fn prefill_seconds(&self) -> f64 {
        self.generation.timing.prefill_seconds
    }

    /// Seconds for the answer, behind its first token.
    #[getter]
    fn decode_seconds(&self) -> f64 {
        self.generation.timing.decode_seconds
    }

    /// Seconds to the first token of the answer.
    #[getter]
    fn time_to_first_token_seconds(&self) -> f64 {
        self.generation.timing.time_to_first_token_seconds
    }

    /// Prompt tokens a second, of those that were computed.
    #[getter]
    fn prefill_tokens_per_second(&self) -> f64 {
        self.generation.timing.prefill_tokens_per_second()
    }

    /// Answer tokens a second.
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

/// An answer as it comes: an iterator over the parts of its text.
#[pyclass(frozen, module = "triad")]
pub struct Stream {
    state: Mutex<State>,
    /// Beside the state, which belongs to the thread that waits.
    cancel: Cancel,
}

enum State {
    Running {
        running: Running<Part, triad_frontend::Result<Generation>>,
        prompt_tokens: usize,
        parts: Option<Parts>,
    },
    Ended(Py<Answer>),
    Failed,
}

/// What comes of an answer.
enum Part {
    Text(String),
    Token(LogProbabilities),
}

type Parts = Vec<LogProbabilities>;

impl Stream {
    /// Begins the answer to `prompt` behind what `session` has seen.
    pub fn start(
        mut session: Lent,
        prompt: Vec<u32>,
        options: triad_engine::GenerateOptions,
    ) -> Self {
        let (prompt_tokens, parts) = (prompt.len(), options.log_probabilities.map(|_| Vec::new()));
        let running = Running::start(move |cancel, sender| {
            // Nobody may listen any more: the answer is cancelled then.
            triad_frontend::answer::stream(session.get(), &prompt, &options, cancel, &mut |event| {
                match event {
                    Event::Text(text) => drop(sender.send(Part::Text(text.to_owned()))),
                    Event::Token {
                        log_probabilities: Some(one),
                        ..
                    } => drop(sender.send(Part::Token(one.clone()))),
                    Event::Token { .. } | Event::Prefill { .. } => {}
                }
                Ok(())
            })
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

    /// The next part of the text.
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
        let generation = result?.map_err(error::frontend)?;
        let answer = Answer {
            generation,
            prompt_tokens,
            log_probabilities: parts,
        };
        *state = State::Ended(Py::new(py, answer)?);
        Ok(None)
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// If it cannot be made, and `KeyboardInterrupt`.
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

    /// Ends the answer where it is, also from another thread; the iterator ends behind it.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// The whole answer; waits for it.
    #[getter]
    fn answer(&self, py: Python) -> PyResult<Py<Answer>> {
        self.whole(py)
    }
}
