//! Chat templates: they convert a conversation to the text format that a model was trained on.
//!
//! Templates are Jinja as `transformers` runs it. They come with the model and are therefore untrusted: the source, the
//! steps of a rendering, its depth, its memory and its output are [`bounded`], as is the total [time](steps), and a
//! template can access nothing outside the conversation.

mod arguments;
mod attributes;
mod bounded;
mod budget;
mod conversation;
mod escapes;
mod expressions;
mod filters;
mod format;
mod functions;
mod json;
mod letters;
mod mentions;
mod methods;
mod names;
mod objects;
mod operators;
mod predicates;
mod python;
mod rebuild;
mod sequences;
mod slice;
mod sources;
mod spaces;
mod steps;
mod time;
mod values;

pub use conversation::RenderOptions;
pub use steps::Stop;

use std::error::Error as _;
use std::sync::OnceLock;

use budget::Budget;
use minijinja::machinery::Token;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Value, machinery};
use regex::Regex;
use sources::Sources;
use steps::Clock;

use crate::checkpoint::{Checkpoint, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::tokenizer::Tokenizer;

const NAME: &str = "chat template";
/// Maximum bytes of a template source; the longest in use have about 20 KB.
const MAX_SOURCE: usize = 1 << 16;
/// Maximum number of words and symbols in a tag, with a string counted as one: the engine recurses up to once per
/// symbol. The largest tags in use have a few hundred.
const MAX_WORDS: usize = 2048;
/// Maximum number of `elif` tags in a template: the engine recurses once for each in a chain.
const MAX_ELIFS: usize = 512;
/// Bytes of stack of the thread that compiles and renders. Every recursion is bounded: by the words of a tag, by the
/// engine's own limits, and by [`steps::DEEPEST`]. A test uses all of them.
const STACK: usize = 16 << 20;
/// Maximum steps of a rendering: a constant plus a number per message, and per byte of tools and documents. A template that
/// writes schemas itself takes up to 10 steps per byte. The bytes count up to a limit, which steps of a second reach.
const FUEL: u64 = 150_000;
const FUEL_PER_MESSAGE: u64 = 15_000;
const FUEL_PER_BYTE: u64 = 24;
const MAX_FUEL_OF_BYTES: u64 = 50_000_000;
/// Maximum bytes that a rendering may build, including captured strings and intermediate values: a constant plus a
/// multiple of the text of the messages.
const MAX_BUILT: usize = 1 << 23;
const MAX_BUILT_PER_BYTE: usize = 128;
/// Maximum bytes of output in addition to twice the text of the messages.
const MAX_ADDED_OUTPUT: usize = 1 << 22;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Role of the author: `system`, `user` or `assistant`.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

impl Message {
    /// Creates a message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
    /// The model's other template, for conversations with functions.
    for_tools: Option<Box<Self>>,
    reads: OnceLock<conversation::Reads>,
}

impl ChatTemplate {
    /// Returns the template of a model; `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Template`] for a template that is not Jinja, naming the line.
    pub fn from_checkpoint(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        Self::from_source(checkpoint.source(), tokenizer)
            .map_err(|error| error.at(checkpoint.path()))
    }

    /// Returns the template in `source`; `None` if there is none.
    ///
    /// # Errors
    /// As for [`ChatTemplate::from_checkpoint`].
    pub fn from_source(source: &Source, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let Some(Sources { default, tools }) = Sources::read(source)? else {
            return Ok(None);
        };
        let text = |token: Option<u32>| token.and_then(|token| tokenizer.piece(token));
        let new = |source| Self::new(source, text(tokenizer.bos()), text(tokenizer.eos()));
        let for_tools = tools.map(new).transpose()?.map(Box::new);
        Ok(Some(Self {
            for_tools,
            ..new(default)?
        }))
    }

    /// Returns the template of a query and a document in `source`, as messages of these two roles: that of GGUF which is
    /// called `rerank`, else the template for conversations if it reads these roles.
    ///
    /// # Errors
    /// As for [`ChatTemplate::from_checkpoint`].
    pub fn of_pairs(source: &Source, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let template = match sources::of_pairs(source)? {
            Some(text) => Some(Self::new(text, None, None)?),
            None => Self::from_source(source, tokenizer)?,
        };
        match template {
            Some(template) if template.reads_pairs()? => Ok(Some(template)),
            _ => Ok(None),
        }
    }

    /// Compiles `source`, which may use the texts of BOS and EOS.
    ///
    /// # Errors
    /// [`ErrorKind::Template`] for a source that is not Jinja, naming the line, or longer than 64 KiB.
    pub fn new(
        source: impl Into<String>,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<Self> {
        let source = source.into();
        if source.len() > MAX_SOURCE {
            let message = format!(
                "the {NAME} has {} bytes, expected at most {MAX_SOURCE}",
                source.len()
            );
            return Err(Error::new(ErrorKind::Template, message));
        }
        // Normalizes line ends, as Jinja does.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let source = without_generation_tags(source);
        check_tags(&source)?;
        let source = escapes::as_python(source)?;
        let environment = Environment::empty();
        on_a_deep_stack(|| rebuild::compile(NAME, &source, syntax()?).map(drop))?;
        let token = |token: Option<&str>| token.map(str::to_owned);
        let (bos_token, eos_token, reads) = (token(bos_token), token(eos_token), OnceLock::new());
        Ok(Self {
            environment,
            source,
            bos_token,
            eos_token,
            for_tools: None,
            reads,
        })
    }

    /// Returns the source text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the template for conversations with functions; this is a separate one if the model has it.
    pub fn for_tools(&self) -> &Self {
        self.for_tools.as_deref().unwrap_or(self)
    }

    /// Returns the text of `messages`; with `add_generation_prompt` it ends where the model's answer starts. Encode it
    /// with [`EncodeOptions::TEMPLATE`](crate::tokenizer::EncodeOptions::TEMPLATE).
    ///
    /// # Errors
    /// [`ErrorKind::Template`], with the line, if the template refuses the conversation (many allow only alternating
    /// roles), fails, or runs too long; [`ErrorKind::Exhausted`] if the system has no thread for it.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        self.render_until(messages, add_generation_prompt, None)
    }

    /// Does the same as [`ChatTemplate::render`]; the rendering ends early if `stop` returns true.
    ///
    /// # Errors
    /// As for [`ChatTemplate::render`].
    pub fn render_until(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        stop: Option<Stop>,
    ) -> Result<String> {
        let text = messages
            .iter()
            .map(|message| message.role.len() + message.content.len())
            .sum();
        let entries = messages.iter().map(|message| {
            let Message { role, content } = message;
            Value::from_pairs([("role", role.as_str()), ("content", content.as_str())])
        });
        let entries = entries.collect::<Vec<_>>();
        on_a_deep_stack(|| {
            self.render_here(
                (entries, text, 0),
                Value::from(()),
                add_generation_prompt,
                (Vec::new(), &Clock::start(stop)),
            )
        })
    }

    /// Does the same as [`ChatTemplate::render_until`] for messages in the form that templates read (`role`, `content`,
    /// `tool_calls`), with the functions that the model may call, each as `{"type": "function", "function": {…}}`.
    ///
    /// # Errors
    /// As for [`ChatTemplate::render`].
    pub fn render_with_tools(
        &self,
        messages: &[serde_json::Value],
        tools: &[serde_json::Value],
        add_generation_prompt: bool,
        stop: Option<Stop>,
    ) -> Result<String> {
        let options = RenderOptions {
            tools,
            add_generation_prompt,
            ..RenderOptions::default()
        };
        self.render_conversation(messages, &options, stop)
    }

    /// Renders on this thread. `text` is the number of bytes in all values, and `listed` that of tools and documents;
    /// `variables` are further ones.
    fn render_here(
        &self,
        (messages, text, listed): (Vec<Value>, usize, usize),
        tools: Value,
        add_generation_prompt: bool,
        (variables, clock): (Vec<(&str, Value)>, &Clock),
    ) -> Result<String> {
        let mut environment = self.environment.clone();
        let built = MAX_BUILT + MAX_BUILT_PER_BYTE * text;
        bounded::install(&mut environment, &Budget::new(built, clock.for_text(text)));
        let of_bytes = (FUEL_PER_BYTE * listed as u64).min(MAX_FUEL_OF_BYTES);
        let fuel = FUEL + FUEL_PER_MESSAGE * messages.len() as u64 + of_bytes;
        environment.set_fuel(Some(fuel));
        // Compiled each time: with the template in the environment, it could include itself in its original form.
        let (instructions, blocks) = rebuild::compile(NAME, &self.source, syntax()?)?;
        // `documents` is defined but empty, as in `transformers`: templates read it.
        let mut values = vec![
            ("messages", messages.into_iter().collect::<Value>()),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("tools", tools),
            ("documents", Value::from(())),
        ];
        values.extend(
            self.bos_token
                .as_deref()
                .map(|bos| ("bos_token", Value::from(bos))),
        );
        values.extend(
            self.eos_token
                .as_deref()
                .map(|eos| ("eos_token", Value::from(eos))),
        );
        values.extend(variables);
        let (root, mut text_of_all) = (Value::from_pairs(values), String::new());
        let mut output = machinery::make_string_output(&mut text_of_all);
        machinery::eval(
            &environment,
            &instructions,
            root,
            &blocks,
            &mut output,
            AutoEscape::None,
        )
        .map(drop)
        .map_err(template_error)?;
        if text_of_all.len() > 2 * text + MAX_ADDED_OUTPUT {
            return Err(Error::new(
                ErrorKind::Template,
                format!("{NAME}: the output is too long"),
            ));
        }
        Ok(text_of_all)
    }
}

/// Converts JSON to the values of templates.
fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(values) => values.iter().map(from_json).collect(),
        serde_json::Value::Object(entries) => Value::from_pairs(
            entries
                .iter()
                .map(|(key, value)| (key.as_str(), from_json(value))),
        ),
    }
}

/// Returns the syntax settings of `transformers`.
fn syntax() -> Result<SyntaxConfig> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(template_error)
}

/// Refuses a template with longer tags or longer chains than any template in use. The compiler reports invalid Jinja.
fn check_tags(source: &str) -> Result<()> {
    let (mut words, mut elifs) = (0, 0);
    for token in machinery::tokenize(source, false, syntax()?) {
        let Ok((token, span)) = token else { break };
        match token {
            Token::TemplateData(_) => continue,
            Token::BlockStart | Token::VariableStart => words = 0,
            Token::Ident("elif") if words == 1 => elifs += 1,
            _ => {}
        }
        words += 1;
        if words > MAX_WORDS {
            let message = format!("a tag has more than {MAX_WORDS} words and signs");
            return Err(Error::new(
                ErrorKind::Template,
                format!("{NAME}, line {}: {message}", span.start_line),
            ));
        }
    }
    if elifs > MAX_ELIFS {
        let message = format!("{NAME}: {elifs} tags elif, expected at most {MAX_ELIFS}");
        return Err(Error::new(ErrorKind::Template, message));
    }
    Ok(())
}

/// Runs `work` on a thread in which neither deep recursion nor a panic in the template engine ends the process.
fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let error = |reason: String| Error::new(ErrorKind::Template, format!("{NAME}: {reason}"));
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name(NAME.into())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|reason| {
                Error::new(
                    ErrorKind::Exhausted,
                    format!("{NAME}: no thread can be started for it: {reason}"),
                )
            })?
            .join()
            .unwrap_or_else(|_| Err(error("the template engine cannot process it".into())))
    })
}

/// Replaces the tags that mark an assistant's messages, an extension for training, by tags that
/// only end its variables, as they do.
fn without_generation_tags(source: String) -> String {
    if !source.contains("generation") {
        return source;
    }
    let tag =
        Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").expect("the pattern is valid");
    let replacement = |found: &regex::Captures<'_>| {
        let tag = if found.get(2).is_some() {
            "endwith"
        } else {
            "with"
        };
        format!("{}{tag}{}", &found[1], &found[3])
    };
    tag.replace_all(&source, replacement).into_owned()
}

#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
fn template_error(error: minijinja::Error) -> Error {
    let line = error
        .line()
        .map_or_else(String::new, |line| format!(", line {line}"));
    let detail = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned);
    // An error of the output or of an included template is the source of the outer error.
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let cause = causes
        .last()
        .map_or_else(String::new, |cause| format!(": {cause}"));
    Error::new(
        ErrorKind::Template,
        format!("{NAME}{line}: {detail}{cause}"),
    )
}
