//! Conversations.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use triad_engine::{Branch, Session as EngineSession};
use triad_frontend::picture_reader::PictureReader;
use triad_frontend::tool_calls::ToolCallParser;

use crate::answer::{Answer, Stream};
use crate::error;
use crate::lent::Home;
use crate::messages::Messages;
use crate::options::{adapters, generate_options};
use crate::prompt::{Name, Prompt};
use crate::running::wait;

/// A conversation: the tokens that a model has processed, with their keys and values.
#[pyclass(frozen, module = "triad")]
pub struct Session {
    name: Name,
    pictures: Arc<PictureReader>,
    home: Home,
}

impl Session {
    /// Wraps a session of the engine, for the model that the user calls `name` and whose pictures `pictures` prepares.
    pub fn new(name: Name, pictures: Arc<PictureReader>, session: EngineSession) -> Self {
        Self {
            name,
            pictures,
            home: Home::new(session),
        }
    }

    /// Starts an answer.
    pub fn start(&self, prompt: Prompt, options: Option<&Bound<'_, PyDict>>) -> PyResult<Stream> {
        let mut session = self.home.lend()?;
        let engine = session.get();
        let adapters = adapters(engine.model(), options)?;
        engine.set_adapters(&adapters).map_err(error::engine)?;
        let mut options = generate_options(engine.model(), options)?;
        let mut parser = None;
        if !prompt.tools().is_empty() {
            if options.constraint.is_some() {
                let message = "tools: expected no schema, regex or grammar with them";
                return Err(PyValueError::new_err(message));
            }
            let made = ToolCallParser::for_model(engine.model(), prompt.tools());
            let (made, spelled) = made.map_err(error::frontend)?;
            (parser, options.spelled) = (Some(made), spelled);
        }
        let named = (&**engine.model(), &*self.name);
        let prompt = prompt.encode(named, &self.pictures, engine.context())?;
        Ok(Stream::start(session, prompt, options, parser))
    }
}

/// Converts a row of logits.
fn row<'py>(py: Python<'py>, logits: Vec<f32>) -> Bound<'py, PyArray1<f32>> {
    PyArray1::from_vec(py, logits)
}

#[pymethods]
impl Session {
    /// Returns the tokens that the session has processed.
    #[getter]
    fn tokens(&self) -> PyResult<Vec<u32>> {
        Ok(self.home.lend()?.get().tokens().to_vec())
    }

    /// Returns the maximum number of tokens of the session.
    #[getter]
    fn context(&self) -> PyResult<usize> {
        Ok(self.home.lend()?.get().context())
    }

    /// Continues `prompt`, a text or tokens, which is the whole conversation: the part that the session has already
    /// processed is not computed again, and processed tokens that differ from it are discarded.
    #[pyo3(signature = (prompt, **options))]
    fn generate(
        &self,
        py: Python,
        prompt: Prompt,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Answer>> {
        self.start(prompt, options)?.whole(py)
    }

    /// Does the same as `generate`, and returns the text part by part.
    #[pyo3(signature = (prompt, **options))]
    fn stream(&self, prompt: Prompt, options: Option<&Bound<'_, PyDict>>) -> PyResult<Stream> {
        self.start(prompt, options)
    }

    /// Answers the last of `messages`, which is the whole conversation, by the model's chat template. The model may call
    /// the functions `tools`, which are in the form of OpenAI's chat API; its calls are in `Answer.calls`.
    #[pyo3(signature = (messages, *, tools=None, **options))]
    fn chat(
        &self,
        py: Python,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Answer>> {
        let messages = Messages::read_with_tools(messages, tools)?;
        self.start(Prompt::Chat(messages), options)?.whole(py)
    }

    /// Does the same as `chat`, and returns the text part by part, without calls.
    #[pyo3(signature = (messages, *, tools=None, **options))]
    fn chat_stream(
        &self,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        let messages = Messages::read_with_tools(messages, tools)?;
        self.start(Prompt::Chat(messages), options)
    }

    /// Appends `tokens` and runs them. Returns the logits of the last one, `[vocab]`, or with `all` those of all of
    /// them, `[tokens, vocab]`, in the memory into which they were computed.
    #[pyo3(signature = (tokens, *, all=false))]
    fn prefill<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        all: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (mut session, count) = (self.home.lend()?, tokens.len());
        let logits = wait(py, None, move |cancel, _| {
            let session = session.get();
            let logits = if all {
                session.prefill_all_logits(&tokens, cancel)
            } else {
                session
                    .prefill(&tokens, cancel, |_| {})
                    .map(<[f32]>::to_vec)
            };
            logits.map_err(error::engine)
        })?;
        let logits = row(py, logits);
        if !all {
            return Ok(logits.into_any());
        }
        let vocab = logits.len() / count.max(1);
        let logits: Bound<'_, PyArray2<f32>> = logits.reshape([count, vocab])?;
        Ok(logits.into_any())
    }

    /// Appends one token and runs it; returns its logits, `[vocab]`.
    fn decode<'py>(&self, py: Python<'py>, token: u32) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let mut session = self.home.lend()?;
        let logits = wait(py, None, move |cancel, _| {
            session
                .get()
                .decode(token, cancel)
                .map(<[f32]>::to_vec)
                .map_err(error::engine)
        })?;
        Ok(row(py, logits))
    }

    /// Returns a copy of the logits after the last computed token, `[vocab]`.
    #[getter]
    fn logits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        Ok(row(py, self.home.lend()?.get().logits().to_vec()))
    }

    /// Returns, for each pair `(tokens, scored_from)`, the natural logarithms of the probabilities of
    /// `tokens[scored_from:]` as a continuation of the session, which does not change; and whether each token is the
    /// likeliest one.
    fn score(
        &self,
        py: Python,
        branches: Vec<(Vec<u32>, usize)>,
    ) -> PyResult<Vec<(Vec<f32>, bool)>> {
        let mut session = self.home.lend()?;
        wait(py, None, move |cancel, _| {
            let branches: Vec<_> = branches
                .iter()
                .map(|(tokens, scored_from)| Branch {
                    tokens,
                    scored_from: *scored_from,
                })
                .collect();
            let scores = session
                .get()
                .score(&branches, cancel, |_| {})
                .map_err(error::engine)?;
            Ok(scores
                .into_iter()
                .map(|score| (score.log_probabilities, score.greedy))
                .collect())
        })
    }

    /// Removes all tokens after the first `length` ones.
    fn truncate(&self, length: usize) -> PyResult<()> {
        self.home.lend()?.get().truncate(length);
        Ok(())
    }

    /// Returns a copy of the session; memory is shared until one of the two continues.
    fn fork(&self) -> PyResult<Self> {
        let fork = self.home.lend()?.get().fork();
        let pictures = Arc::clone(&self.pictures);
        Ok(Self::new(self.name.clone(), pictures, fork))
    }

    /// Writes the session to a file, for `Model.restore`.
    fn save(&self, py: Python, path: PathBuf) -> PyResult<()> {
        let mut session = self.home.lend()?;
        wait(py, None, move |_, _| {
            session.get().save(&path).map_err(error::engine)
        })
    }
}
