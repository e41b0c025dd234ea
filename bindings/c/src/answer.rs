//! Generation of answers.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

use triad_engine::sampler::SamplerOptions;
use triad_engine::speculate::Speculate;
use triad_engine::{Cancel, Event, Finish, GenerateOptions, Model};
use triad_frontend::Error;
use triad_frontend::chat::Conversation;
use triad_frontend::picture_reader::ShownPrompt;
use triad_frontend::tool_calls::{AnswerPart, Tool, ToolCallParser};
use triad_grammar::GrammarSource;

use crate::constraint::Compiler;
use crate::images::{self, TriadImage};
use crate::model::{TriadCancel, TriadMessage, cancel_of, conversation};
use crate::pointers::{self, reference, slice, text, write};
use crate::session::TriadSession;
use crate::status::{Failure, TriadStatus, c_text, call};

/// The options of an answer; triad_generate_options_default fills them in. NaN or -1 in an option that permits it means
/// the value that the model's authors recommend, or else temperature 0.7, top_p 0.95 and repetition penalty 1.05.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TriadGenerateOptions {
    /// `sizeof(TriadGenerateOptions)` of the header that the caller was compiled with.
    pub struct_size: usize,
    /// Maximum number of tokens of the answer.
    pub max_tokens: usize,
    /// Divisor of the logits, or NaN; 0 always selects the likeliest token.
    pub temperature: f32,
    /// Number of likeliest tokens to keep, or -1; 0 keeps all.
    pub top_k: i64,
    /// Keeps the fewest likeliest tokens whose probabilities add up to this, or NaN.
    pub top_p: f32,
    /// Drops tokens less likely than this fraction of the likeliest one, or NaN.
    pub min_p: f32,
    /// Makes tokens that have occurred less likely, or NaN; 1 has no effect.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of a token for each occurrence in the answer so far.
    pub frequency_penalty: f32,
    /// Subtracted from the logits of tokens that occur in the answer so far.
    pub presence_penalty: f32,
    /// Seed of the random numbers: the same seed gives the same answer.
    pub seed: u64,
    /// Texts that end the answer and are not part of it.
    pub stop: *const *const c_char,
    /// Number of these texts.
    pub stop_count: usize,
    /// A JSON schema that the answer follows, or NULL. At most one of `schema`, `regex` and `grammar` may be given.
    pub schema: *const c_char,
    /// A regular expression that the whole answer matches, or NULL.
    pub regex: *const c_char,
    /// A grammar of the answer in Lark's notation, or NULL.
    pub grammar: *const c_char,
}

/// The reason why an answer ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriadFinish {
    /// The model ended it.
    EndToken = 0,
    /// A stop text occurred.
    StopText = 1,
    /// The answer has `max_tokens` tokens.
    Length = 2,
    /// The context has no room for another token.
    ContextFull = 3,
    /// It was cancelled, or `on_text` ended it.
    Cancelled = 4,
}

/// The result of an answer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TriadGeneration {
    /// The reason why it ended.
    pub finish: TriadFinish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were reused from the session instead of computed.
    pub reused_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Seconds for the prompt.
    pub prefill_seconds: f64,
    /// Seconds for the answer, after its first token.
    pub decode_seconds: f64,
    /// Seconds to the first token of the answer.
    pub time_to_first_token_seconds: f64,
}

/// A callback for each part of an answer's text, which is valid during the call; a return value other than 0 ends the
/// answer. It must not return by longjmp or an exception, nor call functions with the session that is computing.
pub type TriadOnText = Option<extern "C" fn(text: *const c_char, user: *mut c_void) -> i32>;

/// Returns the default options.
#[unsafe(no_mangle)]
pub extern "C" fn triad_generate_options_default() -> TriadGenerateOptions {
    TriadGenerateOptions {
        struct_size: size_of::<TriadGenerateOptions>(),
        max_tokens: 512,
        temperature: f32::NAN,
        top_k: -1,
        top_p: f32::NAN,
        min_p: f32::NAN,
        repetition_penalty: f32::NAN,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        seed: 0,
        stop: ptr::null(),
        stop_count: 0,
        schema: ptr::null(),
        regex: ptr::null(),
        grammar: ptr::null(),
    }
}

impl TriadGenerateOptions {
    /// Returns the constraint of the answer, if one is given.
    fn constraint(&self) -> Result<Option<GrammarSource>, Failure> {
        type Source = fn(String) -> GrammarSource;
        let given = [
            (
                "options->schema",
                self.schema,
                GrammarSource::JsonSchema as Source,
            ),
            ("options->regex", self.regex, GrammarSource::Regex),
            ("options->grammar", self.grammar, GrammarSource::Lark),
        ];
        let mut found = None;
        for (name, pointer, source) in given {
            if pointer.is_null() {
                continue;
            }
            if found.is_some() {
                let expected = "at most one of schema, regex and grammar";
                return Err(Failure::argument(name, expected));
            }
            found = Some(source(text(name, pointer)?.to_owned()));
        }
        Ok(found)
    }

    fn read(&self, model: &Arc<Model>, compiler: &Compiler) -> Result<GenerateOptions, Failure> {
        let temperature = (!self.temperature.is_nan()).then_some(self.temperature);
        let recommended = SamplerOptions::recommended(model.generation_defaults(), temperature);
        let or = |value: f32, otherwise: f32| if value.is_nan() { otherwise } else { value };
        let top_k = match self.top_k {
            -1 => recommended.top_k,
            value => usize::try_from(value)
                .map_err(|_| Failure::argument("options->top_k", "-1 or more"))?,
        };
        let sampler = SamplerOptions {
            top_k,
            top_p: or(self.top_p, recommended.top_p),
            min_p: or(self.min_p, recommended.min_p),
            repetition_penalty: or(self.repetition_penalty, recommended.repetition_penalty),
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed,
            ..recommended
        };
        let form = self.constraint()?;
        let form = form.map(|source| compiler.compile(model, &source));
        let form = form.transpose()?;
        let stop = slice("options->stop", self.stop, self.stop_count)?
            .iter()
            .enumerate();
        let stop =
            stop.map(|(index, one)| Ok(text(&format!("options->stop[{index}]"), *one)?.to_owned()));
        Ok(GenerateOptions {
            max_tokens: Some(self.max_tokens),
            sampler,
            stop: stop.collect::<Result<_, Failure>>()?,
            speculate: Some(Speculate::automatic()),
            constraint: form,
            ..GenerateOptions::default()
        })
    }
}

/// The callbacks and the result of an answer.
pub(crate) struct Listener<'a> {
    pub cancel: *const TriadCancel,
    pub on_text: TriadOnText,
    /// The callback for calls of functions, and the functions. Without it, calls are text.
    pub calls: Option<(OnCall, &'a [Tool])>,
    pub user: *mut c_void,
    pub generation: *mut TriadGeneration,
}

/// A callback for calls of functions.
pub(crate) type OnCall = extern "C" fn(*const c_char, *const c_char, *mut c_void) -> i32;

impl Listener<'_> {
    /// Passes a part of the answer on. Returns whether the answer goes on.
    fn take(&self, part: &AnswerPart) -> bool {
        let ends = match part {
            AnswerPart::Text(text) => match self.on_text {
                Some(on_text) => on_text(c_text(text).as_ptr(), self.user),
                None => 0,
            },
            AnswerPart::Call(call) => match self.calls {
                Some((on_call, _)) => {
                    let (name, arguments) = (c_text(&call.name), c_text(&call.arguments));
                    on_call(name.as_ptr(), arguments.as_ptr(), self.user)
                }
                None => 0,
            },
        };
        ends == 0
    }
}

/// Continues a prompt, which is the whole conversation: the part that the session has already processed is not computed
/// again, and processed tokens that differ from it are discarded. `options`, `cancel`, `on_text` and `generation` may
/// be NULL. A cancelled answer is not an error: its `finish` reports it.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_generate(
    session: *const TriadSession,
    prompt: *const u32,
    count: usize,
    options: *const TriadGenerateOptions,
    cancel: *const TriadCancel,
    on_text: TriadOnText,
    user: *mut c_void,
    generation: *mut TriadGeneration,
) -> TriadStatus {
    call(|| {
        let prompt = slice("prompt", prompt, count)?;
        let listener = Listener {
            cancel,
            on_text,
            calls: None,
            user,
            generation,
        };
        generate(
            reference("session", session)?,
            options,
            &listener,
            |_, _| Ok(prompt.to_vec().into()),
        )
    })
}

/// Answers the last of `messages`, which are the whole conversation, by the model's chat template; a model without one
/// continues the last message. Otherwise the same as triad_session_generate.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_chat(
    session: *const TriadSession,
    messages: *const TriadMessage,
    count: usize,
    options: *const TriadGenerateOptions,
    cancel: *const TriadCancel,
    on_text: TriadOnText,
    user: *mut c_void,
    generation: *mut TriadGeneration,
) -> TriadStatus {
    triad_session_chat_images(
        session,
        messages,
        count,
        ptr::null(),
        0,
        options,
        cancel,
        on_text,
        user,
        generation,
    )
}

/// Does the same as triad_session_chat for messages with pictures, which come before the text of their message and are in
/// the order of the messages. The model has to read pictures.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_chat_images(
    session: *const TriadSession,
    messages: *const TriadMessage,
    count: usize,
    images: *const TriadImage,
    image_count: usize,
    options: *const TriadGenerateOptions,
    cancel: *const TriadCancel,
    on_text: TriadOnText,
    user: *mut c_void,
    generation: *mut TriadGeneration,
) -> TriadStatus {
    call(|| {
        let session = reference("session", session)?;
        let mut messages = conversation(messages, count)?;
        let images = images::read(images, image_count, &mut messages)?;
        let listener = Listener {
            cancel,
            on_text,
            calls: None,
            user,
            generation,
        };
        generate(session, options, &listener, |model, context| {
            let prepared = images
                .iter()
                .map(|image| session.pictures.prepare(model, image));
            let conversation = Conversation {
                messages: &messages,
                ..Conversation::default()
            };
            let (named, prepared) = ((model, &*session.name), prepared.collect::<Result<_, _>>()?);
            let within = (context, &Cancel::new());
            session
                .pictures
                .prompt(named, &conversation, prepared, within)
        })
    })
}

pub(crate) fn generate(
    session: &TriadSession,
    options: *const TriadGenerateOptions,
    listener: &Listener<'_>,
    encode: impl FnOnce(&Model, usize) -> Result<ShownPrompt, Error>,
) -> Result<(), Failure> {
    let compiler = &session.compiler;
    let mut session = session.lock()?;
    let usual = triad_generate_options_default();
    let mut options = pointers::options(options, usual, "triad_generate_options_default")?
        .read(session.model(), compiler)?;
    let mut parser = None;
    if let Some((_, tools)) = listener.calls.filter(|(_, tools)| !tools.is_empty()) {
        if options.constraint.is_some() {
            let expected = "tools, or one of schema, regex and grammar";
            return Err(Failure::argument("options", expected));
        }
        let (made, spelled) = ToolCallParser::for_model(session.model(), tools)?;
        (parser, options.spelled) = (Some(made), spelled);
    }
    let prompt = encode(session.model(), session.context())?;
    // Ending only this answer must not change the caller's flag.
    let cancel = cancel_of(listener.cancel).child();
    let prompt = prompt.hold(&mut session, &cancel)?;
    let pass_on = |parts: Vec<AnswerPart>| {
        for part in &parts {
            if !cancel.is_cancelled() && !listener.take(part) {
                cancel.cancel();
            }
        }
    };
    let made = triad_engine::generate(&mut session, &prompt, &options, &cancel, &mut |event| {
        if let Event::Text(text) = event {
            pass_on(match &mut parser {
                Some(parser) => parser.push(text),
                None => vec![AnswerPart::Text(text.to_owned())],
            });
        }
    })?;
    pass_on(parser.map(ToolCallParser::finish).unwrap_or_default());
    if listener.generation.is_null() {
        return Ok(());
    }
    let generation = TriadGeneration {
        finish: finish(made.finish),
        prompt_tokens: prompt.len(),
        reused_tokens: made.timing.reused_tokens,
        answer_tokens: made.tokens.len(),
        prefill_seconds: made.timing.prefill_seconds,
        decode_seconds: made.timing.decode_seconds,
        time_to_first_token_seconds: made.timing.time_to_first_token_seconds,
    };
    write("generation", listener.generation, generation)
}

fn finish(finish: Finish) -> TriadFinish {
    match finish {
        Finish::EndToken => TriadFinish::EndToken,
        Finish::StopString => TriadFinish::StopText,
        Finish::Length => TriadFinish::Length,
        Finish::ContextFull => TriadFinish::ContextFull,
        Finish::Cancelled => TriadFinish::Cancelled,
    }
}
