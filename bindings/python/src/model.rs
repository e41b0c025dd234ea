//! Models, with the engines that run them.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use triad_engine::{Cancel, Engine, Model as EngineModel, SessionOptions};
use triad_evaluate::{Dataset, EvaluateOptions, Task, evaluate};
use triad_frontend::chat;
use triad_frontend::embedding::{self, Pooling, VectorOptions, embed};
use triad_frontend::open::{OpenOptions, open};
use triad_frontend::picture_reader::PictureReader;
use triad_model::tokenizer::EncodeOptions;

use crate::answer::{Answer, Stream};
use crate::error::{self, TriadError, chain};
use crate::messages::Messages;
use crate::options::{from_json, kv_format, threads};
use crate::prompt::{Name, Prompt, model_name};
use crate::running::wait;
use crate::session::Session;

/// A model, ready to run.
#[pyclass(frozen, module = "triad")]
pub struct Model {
    name: Name,
    engine: Engine,
    pictures: Arc<PictureReader>,
}

impl Model {
    fn model(&self) -> &Arc<EngineModel> {
        self.engine.model()
    }

    fn wrap(&self, session: triad_engine::Session) -> Session {
        Session::new(Arc::clone(&self.name), Arc::clone(&self.pictures), session)
    }

    fn new_session(&self) -> Session {
        self.wrap(self.engine.session())
    }
}

#[pymethods]
impl Model {
    /// Opens a model: the path of a package, a GGUF file or a safetensors folder, or a name that can be fetched. A
    /// model file is prepared for INT8 once, unless `float` is set. `progress` is called with a sentence at the start
    /// of each step.
    #[new]
    #[pyo3(signature = (name=None, *, float=false, threads=None, context=None, chunk=256, kv="f16", progress=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn new(
        py: Python,
        name: Option<PathBuf>,
        float: bool,
        threads: Option<usize>,
        context: Option<usize>,
        chunk: usize,
        kv: &str,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let name: Name = model_name(name)?.into();
        let session = SessionOptions {
            chunk,
            kv_format: kv_format(kv)?,
            ..SessionOptions::default()
        };
        let options = OpenOptions {
            float,
            threads: self::threads(threads),
            context,
            session,
        };
        let opened = Arc::clone(&name);
        let engine = wait(py, progress, move |cancel, step| {
            open(&opened, &options, cancel, step).map_err(error::frontend)
        })?;
        let pictures = Arc::default();
        Ok(Self {
            name,
            engine,
            pictures,
        })
    }

    /// Returns the name or path with which it was opened.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns the maximum number of tokens of a prompt and its answer together.
    #[getter]
    fn context(&self) -> usize {
        self.engine.context()
    }

    /// Returns the size of the vocabulary.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.model().description().vocab
    }

    /// Returns the tokens that end an answer.
    #[getter]
    fn end_tokens(&self) -> PyResult<Vec<u32>> {
        Ok(self
            .model()
            .tokenizer()
            .map_err(error::engine)?
            .end_tokens()
            .to_vec())
    }

    /// Returns the tokens of a text. With `special`, texts of special tokens become those tokens.
    #[pyo3(signature = (text, *, special=false))]
    fn tokenize(&self, text: &str, special: bool) -> PyResult<Vec<u32>> {
        let options = if special {
            EncodeOptions::TEMPLATE
        } else {
            EncodeOptions::TEXT
        };
        let tokenizer = self.model().tokenizer().map_err(error::engine)?;
        tokenizer
            .encode(text, options)
            .map_err(|source| error::frontend(source.into()))
    }

    /// Returns the text of tokens.
    #[expect(clippy::needless_pass_by_value, reason = "a list of Python is copied")]
    fn detokenize(&self, tokens: Vec<u32>) -> PyResult<String> {
        let vocab = self.vocab_size();
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(TriadError::new_err(format!(
                "token {token} is outside the vocabulary of {vocab}"
            )));
        }
        Ok(self
            .model()
            .tokenizer()
            .map_err(error::engine)?
            .decode(&tokens))
    }

    /// Returns the text of a conversation by the model's chat template, with the functions `tools`.
    #[pyo3(signature = (messages, *, tools=None, add_generation_prompt=true))]
    fn apply_template(
        &self,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        add_generation_prompt: bool,
    ) -> PyResult<String> {
        let Messages {
            messages, tools, ..
        } = Messages::read_with_tools(messages, tools)?;
        let template = self.model().chat_template();
        let template = template
            .ok_or_else(|| TriadError::new_err(format!("{} has no chat template", self.name)))?;
        chat::render_with_tools(
            template,
            &self.name,
            (&messages, &tools),
            (add_generation_prompt, &Cancel::new()),
        )
        .map_err(error::frontend)
    }

    /// Returns the embedding of a text or of tokens, `[hidden]`, of length 1. `pooling` is `mean`, or `last` or `first`
    /// for the hidden state of one token. By default it is what the model's authors state, else `mean`.
    #[pyo3(signature = (prompt, *, pooling=None))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        prompt: Prompt,
        pooling: Option<&str>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let pooling = match pooling {
            None => None,
            Some("mean") => Some(Pooling::Mean),
            Some("last") => Some(Pooling::Last),
            Some("first") => Some(Pooling::First),
            Some(other) => {
                return Err(PyValueError::new_err(format!(
                    "pooling is {other:?}: expected \"mean\", \"last\" or \"first\""
                )));
            }
        };
        let pooling = embedding::pooling(self.model(), pooling).map_err(error::frontend)?;
        let tokens = prompt.text_tokens(self.model(), self.engine.context())?;
        let engine = self.engine.clone();
        let vector = wait(py, None, move |cancel, _| {
            let options = VectorOptions::of_length_1(pooling);
            embed(&engine, tokens, options, cancel).map_err(error::frontend)
        })?;
        Ok(PyArray1::from_vec(py, vector))
    }

    /// Returns an empty conversation.
    fn session(&self) -> Session {
        self.new_session()
    }

    /// Reads a conversation that `Session.save` wrote.
    fn restore(&self, py: Python, path: PathBuf) -> PyResult<Session> {
        let engine = self.engine.clone();
        let session = wait(py, None, move |_, _| {
            engine.restore(&path).map_err(error::engine)
        })?;
        Ok(self.wrap(session))
    }

    /// Continues `prompt`, a text or tokens, in a new session.
    #[pyo3(signature = (prompt, **options))]
    fn generate(
        &self,
        py: Python,
        prompt: Prompt,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Answer>> {
        self.new_session().start(prompt, options)?.whole(py)
    }

    /// Does the same as `generate`, and returns the text part by part.
    #[pyo3(signature = (prompt, **options))]
    fn stream(&self, prompt: Prompt, options: Option<&Bound<'_, PyDict>>) -> PyResult<Stream> {
        self.new_session().start(prompt, options)
    }

    /// Answers the last of `messages` by the model's chat template, in a new session. The model may call the functions
    /// `tools`, as in `Session.chat`.
    #[pyo3(signature = (messages, *, tools=None, **options))]
    fn chat(
        &self,
        py: Python,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Answer>> {
        let messages = Messages::read_with_tools(messages, tools)?;
        self.new_session()
            .start(Prompt::Chat(messages), options)?
            .whole(py)
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
        self.new_session().start(Prompt::Chat(messages), options)
    }

    /// Evaluates the model on the benchmark `task`, with the rows of the file `data`; returns what `triad eval --json`
    /// prints for one task.
    #[pyo3(signature = (task, data, *, few_shot=None, limit=None, window=1024, chunk=512))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        task: &str,
        data: PathBuf,
        few_shot: Option<PathBuf>,
        limit: Option<usize>,
        window: usize,
        chunk: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let known = Task::ALL.into_iter().find(|known| known.name() == task);
        let task = known.ok_or_else(|| {
            let names = Task::ALL.map(Task::name).join(", ");
            PyValueError::new_err(format!(
                "there is no task {task:?}: expected one of {names}"
            ))
        })?;
        let model = Arc::clone(self.model());
        let options = EvaluateOptions {
            limit,
            window,
            chunk,
            ..EvaluateOptions::default()
        };
        let text = wait(py, None, move |cancel, _| {
            let dataset = Dataset::read(task, &data, few_shot.as_deref());
            let dataset = dataset.map_err(|error| TriadError::new_err(chain(&error)))?;
            let evaluation = evaluate(&model, &dataset, &options, cancel, |_, _| {})
                .map_err(evaluation_error)?;
            serde_json::to_string(&evaluation)
                .map_err(|error| TriadError::new_err(error.to_string()))
        })?;
        from_json(py, &text)
    }

    fn __repr__(&self) -> String {
        format!("<triad.Model {}, context {}>", self.name, self.context())
    }
}

fn evaluation_error(error: triad_evaluate::Error) -> PyErr {
    match error {
        triad_evaluate::Error::Engine(error) => error::engine(error),
        other => TriadError::new_err(chain(&other)),
    }
}
