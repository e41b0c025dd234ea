//! Answers, complete and streamed.

use std::sync::Mutex;
use std::time::Instant;

use pyo3::prelude::*;
use serde_json::json;
use triad_engine::{Cancel, Event, Finish, Generation, LogProbabilities};
use triad_frontend::picture_reader::ShownPrompt;
use triad_frontend::tool_calls::{AnswerPart, ToolCall as FrontendCall, ToolCallParser};

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
    calls: Vec<FrontendCall>,
}

/// A call of a function by the model.
#[pyclass(frozen, module = "triad")]
pub struct ToolCall(FrontendCall);

#[pymethods]
impl ToolCall {
    /// Returns the function's name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the function's arguments, by their names.
    #[getter]
    fn arguments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, &self.0.arguments)
    }

    fn __repr__(&self) -> String {
        format!("<triad.ToolCall {}({})>", self.0.name, self.0.arguments)
    }
}

/// Reads JSON as Python's objects.
fn from_json<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (text,))
}

#[pymethods]
impl Answer {
    /// Returns the calls of functions, if `tools` were given.
    #[getter]
    fn calls(&self) -> Vec<ToolCall> {
        self.calls.iter().cloned().map(ToolCall).collect()
    }

    /// Returns the answer as a message, which continues the conversation. A message with the result of a call follows
    /// it: `{"role": "tool", "name": …, "content": …}`.
    #[getter]
    fn message<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut message = json!({ "role": "assistant", "content": self.text() });
        if !self.calls.is_empty() {
            let call = |call: &FrontendCall| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "type": "function", "function": function })
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        from_json(py, &message.to_string())
    }

    /// Returns the text, without a stop string and without calls of `tools`.
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
        running: Running<Part, triad_frontend::Result<Whole>>,
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

/// A complete answer: its text without calls, the calls, and the seconds of pictures.
type Whole = (Generation, Vec<FrontendCall>, f64);

impl Stream {
    /// Starts the answer to `prompt`, as a continuation of `session`. With a `parser`, calls of functions are not a part
    /// of its text.
    pub fn start(
        mut session: Lent,
        prompt: ShownPrompt,
        options: triad_engine::GenerateOptions,
        parser: Option<ToolCallParser>,
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
            let (mut calls, mut spoken, mut parser) = (Vec::new(), String::new(), parser);
            // If the receiver is gone, the answer is cancelled.
            let mut take = |parts: Vec<AnswerPart>| {
                for part in parts {
                    match part {
                        AnswerPart::Text(text) => {
                            spoken.push_str(&text);
                            drop(sender.send(Part::Text(text)));
                        }
                        AnswerPart::Call(call) => calls.push(call),
                    }
                }
            };
            let mut answer = triad_frontend::answer::stream(
                session.get(),
                &prompt,
                &options,
                cancel,
                &mut |event| {
                    match event {
                        Event::Text(text) => take(match &mut parser {
                            Some(parser) => parser.push(text),
                            None => vec![AnswerPart::Text(text.to_owned())],
                        }),
                        Event::Token {
                            log_probabilities: Some(one),
                            ..
                        } => drop(sender.send(Part::Token(one.clone()))),
                        Event::Token { .. } | Event::Prefill { .. } => {}
                    }
                    Ok(())
                },
            )?;
            take(parser.map(ToolCallParser::finish).unwrap_or_default());
            answer.text = spoken;
            Ok((answer, calls, encoded))
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
        let (generation, calls, encode_seconds) = result?.map_err(error::frontend)?;
        let answer = Answer {
            generation,
            prompt_tokens,
            encode_seconds,
            log_probabilities: parts,
            calls,
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
