//! Models: opening, tokenization, templates.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

use serde_json::{Value, json};
use triad_engine::{Cancel, Engine, KvFormat, SessionOptions, Threads};
use triad_frontend::chat;
use triad_frontend::embedding::{self, VectorOptions};
use triad_frontend::open::{OpenOptions, open};
use triad_frontend::picture_reader::PictureReader;
use triad_model::tokenizer::EncodeOptions;

use crate::constraint::Compiler;
use crate::pointers::{
    self, give, give_text, give_values, optional, reference, slice, take_back, take_text_back,
    take_values_back, text,
};
use crate::status::{Failure, TriadStatus, c_text, call};

/// A model, ready to run.
pub struct TriadModel {
    pub(crate) name: Arc<str>,
    pub(crate) engine: Engine,
    pub(crate) pictures: Arc<PictureReader>,
    pub(crate) compiler: Arc<Compiler>,
}

/// A flag that cancels calls from another thread.
pub struct TriadCancel(pub(crate) Cancel);

/// The number format of keys and values.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriadKvFormat {
    /// 16-bit floats.
    F16 = 0,
    /// 8-bit integers with scales, in half the memory.
    Int8 = 1,
    /// 32-bit floats.
    F32 = 2,
}

/// The options for opening a model; triad_open_options_default fills them in.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TriadOpenOptions {
    /// `sizeof(TriadOpenOptions)` of the header that the caller was compiled with.
    pub struct_size: usize,
    /// Whether to run a model file unchanged, in float, without preparing it for INT8.
    pub run_float: bool,
    /// Number of threads for the computation; 0: one per core.
    pub threads: usize,
    /// Maximum number of tokens of a prompt and its answer together; 0: 4096, or the model's context if that is less.
    pub context: usize,
    /// Tokens of a prompt per forward pass; 0: 256.
    pub chunk: usize,
    /// A TriadKvFormat.
    pub kv_format: u32,
    /// Called with a sentence at the start of each step of opening, or NULL. It must not return by longjmp or an
    /// exception.
    pub on_step: Option<extern "C" fn(step: *const c_char, user: *mut c_void)>,
    /// The second argument of `on_step`.
    pub user: *mut c_void,
}

/// One message of a conversation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TriadMessage {
    /// `system`, `user` or `assistant`.
    pub role: *const c_char,
    /// Its text.
    pub content: *const c_char,
}

/// Returns the default options.
#[unsafe(no_mangle)]
pub extern "C" fn triad_open_options_default() -> TriadOpenOptions {
    TriadOpenOptions {
        struct_size: size_of::<TriadOpenOptions>(),
        run_float: false,
        threads: 0,
        context: 0,
        chunk: 0,
        kv_format: TriadKvFormat::F16 as u32,
        on_step: None,
        user: ptr::null_mut(),
    }
}

impl TriadOpenOptions {
    fn read(&self) -> Result<OpenOptions, Failure> {
        let nonzero = |value: usize| (value != 0).then_some(value);
        let usual = SessionOptions::default();
        let kv_format = match self.kv_format {
            0 => KvFormat::F16,
            1 => KvFormat::Int8,
            2 => KvFormat::F32,
            _ => return Err(Failure::argument("options->kv_format", "a TriadKvFormat")),
        };
        let session = SessionOptions {
            chunk: nonzero(self.chunk).unwrap_or(usual.chunk),
            kv_format,
            ..usual
        };
        let threads = nonzero(self.threads).map_or(Threads::Automatic, Threads::Count);
        Ok(OpenOptions {
            float: self.run_float,
            threads,
            context: nonzero(self.context),
            session,
        })
    }
}

/// Opens the model called `name`: the path of a package, a GGUF file or a safetensors folder, or a name that can be
/// fetched. A model file is prepared for INT8 once. `options` may be NULL for the defaults, `cancel` may be NULL. Free
/// the model with triad_model_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_model_open(
    name: *const c_char,
    options: *const TriadOpenOptions,
    cancel: *const TriadCancel,
    model: *mut *mut TriadModel,
) -> TriadStatus {
    call(|| {
        let name = text("name", name)?;
        reference("model", model)?;
        let options = pointers::options(
            options,
            triad_open_options_default(),
            "triad_open_options_default",
        )?;
        let cancel = cancel_of(cancel);
        let engine = open(name, &options.read()?, &cancel, &mut |step| {
            if let Some(on_step) = options.on_step {
                on_step(c_text(step).as_ptr(), options.user);
            }
        })?;
        give(
            "model",
            model,
            TriadModel {
                name: name.into(),
                engine,
                pictures: Arc::default(),
                compiler: Arc::default(),
            },
        )
    })
}

/// Frees a model. Its sessions remain valid, and keep the data that they need.
#[unsafe(no_mangle)]
pub extern "C" fn triad_model_free(model: *mut TriadModel) {
    take_back(model);
}

/// Returns the size of a model's vocabulary: the number of its logits. 0 if `model` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn triad_model_vocab_size(model: *const TriadModel) -> usize {
    optional(model).map_or(0, |model| model.engine.model().description().vocab)
}

/// Returns the maximum number of tokens of a prompt and its answer together. 0 if `model` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn triad_model_context(model: *const TriadModel) -> usize {
    optional(model).map_or(0, |model| model.engine.context())
}

/// Returns the tokens of a text. With `special`, texts of special tokens become those tokens. Free them with
/// triad_tokens_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_model_tokenize(
    model: *const TriadModel,
    text: *const c_char,
    special: bool,
    tokens: *mut *mut u32,
    count: *mut usize,
) -> TriadStatus {
    call(|| {
        let model = reference("model", model)?;
        let options = if special {
            EncodeOptions::TEMPLATE
        } else {
            EncodeOptions::TEXT
        };
        let encoded = model
            .engine
            .model()
            .tokenizer()?
            .encode(pointers::text("text", text)?, options)?;
        give_values("tokens", tokens, count, encoded)
    })
}

/// Returns the vector of a text, of length 1: the last hidden states, pooled as the model's files state, or else their
/// mean. `cancel` may be NULL. Free it with triad_vector_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_model_embed(
    model: *const TriadModel,
    text: *const c_char,
    cancel: *const TriadCancel,
    vector: *mut *mut f32,
    count: *mut usize,
) -> TriadStatus {
    call(|| {
        let engine = &reference("model", model)?.engine;
        let (text, cancel) = (pointers::text("text", text)?, cancel_of(cancel));
        reference("vector", vector)?;
        reference("count", count)?;
        let pooling = embedding::pooling(engine.model(), None)?;
        let within = (engine.context(), &cancel);
        let tokens = chat::encode_text(engine.model(), text, EncodeOptions::TEXT, within)?;
        let options = VectorOptions::of_length_1(pooling);
        let made = embedding::embed(engine, tokens, options, &cancel)?;
        give_values("vector", vector, count, made)
    })
}

/// Returns the text of tokens. Free it with triad_text_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_model_detokenize(
    model: *const TriadModel,
    tokens: *const u32,
    count: usize,
    text: *mut *mut c_char,
) -> TriadStatus {
    call(|| {
        let (model, tokens) = (reference("model", model)?, slice("tokens", tokens, count)?);
        let vocab = model.engine.model().description().vocab;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(Failure::argument(
                "tokens",
                &format!("less than {vocab}, not {token}"),
            ));
        }
        give_text(
            "text",
            text,
            &model.engine.model().tokenizer()?.decode(tokens),
        )
    })
}

/// Returns the text of a conversation by the model's chat template, up to the start of the answer. Free it with
/// triad_text_free.
#[unsafe(no_mangle)]
pub extern "C" fn triad_model_apply_template(
    model: *const TriadModel,
    messages: *const TriadMessage,
    count: usize,
    text: *mut *mut c_char,
) -> TriadStatus {
    call(|| {
        let model = reference("model", model)?;
        let messages = conversation(messages, count)?;
        let template = model.engine.model().chat_template();
        let missing = || {
            Failure::new(
                TriadStatus::Model,
                format!("{} has no chat template", model.name),
            )
        };
        let rendered = chat::render_with_tools(
            template.ok_or_else(missing)?,
            &model.name,
            (&messages, &[]),
            (true, &Cancel::new()),
        )?;
        give_text("text", text, &rendered)
    })
}

/// Reads the messages of a conversation.
pub(crate) fn conversation(
    messages: *const TriadMessage,
    count: usize,
) -> Result<Vec<Value>, Failure> {
    let messages = slice("messages", messages, count)?;
    if messages.is_empty() {
        return Err(Failure::argument("messages", "at least one"));
    }
    let each = |(index, message): (usize, &TriadMessage)| {
        let role = text(&format!("messages[{index}].role"), message.role)?;
        let content = text(&format!("messages[{index}].content"), message.content)?;
        Ok(json!({ "role": role, "content": content }))
    };
    messages.iter().enumerate().map(each).collect()
}

/// Frees a text that a function returned.
#[unsafe(no_mangle)]
pub extern "C" fn triad_text_free(text: *mut c_char) {
    take_text_back(text);
}

/// Frees tokens that a function returned, with their number.
#[unsafe(no_mangle)]
pub extern "C" fn triad_tokens_free(tokens: *mut u32, count: usize) {
    take_values_back(tokens, count);
}

/// Frees a vector that a function returned, with its length.
#[unsafe(no_mangle)]
pub extern "C" fn triad_vector_free(vector: *mut f32, count: usize) {
    take_values_back(vector, count);
}

/// Creates a flag that cancels the calls that receive it. Free it with triad_cancel_free, after those calls.
#[unsafe(no_mangle)]
pub extern "C" fn triad_cancel_new() -> *mut TriadCancel {
    Box::into_raw(Box::new(TriadCancel(Cancel::new())))
}

/// Cancels calls with `cancel`, now and later, until triad_cancel_reset. May be called by a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn triad_cancel_set(cancel: *const TriadCancel) {
    if let Some(TriadCancel(cancel)) = optional(cancel) {
        cancel.cancel();
    }
}

/// Permits calls with `cancel` again.
#[unsafe(no_mangle)]
pub extern "C" fn triad_cancel_reset(cancel: *const TriadCancel) {
    if let Some(TriadCancel(cancel)) = optional(cancel) {
        cancel.reset();
    }
}

/// Frees a cancel flag.
#[unsafe(no_mangle)]
pub extern "C" fn triad_cancel_free(cancel: *mut TriadCancel) {
    take_back(cancel);
}

/// Returns the caller's flag, or a flag that is never set.
pub(crate) fn cancel_of(cancel: *const TriadCancel) -> Cancel {
    optional(cancel).map_or_else(Cancel::new, |TriadCancel(cancel)| cancel.clone())
}
