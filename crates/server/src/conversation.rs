//! The common part of the chat endpoints.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use triad_engine::{Cancel, GenerateOptions};
use triad_frontend::chat;
use triad_frontend::tool_calls::ToolFormat;
use triad_model::tokenizer::TokenKind;

use crate::adapters;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::forms::{AskedForm, Asker, check_end};
use crate::guard::Caller;
use crate::jobs::{Answers, GenerationJob};
use crate::messages::bytes;
use crate::pieces::{CallFormat, PieceReader};
use crate::prepare::Work;
use crate::prompt_fields::PromptOptions;
use crate::reply::Reply;
use crate::sampling::Sampling;
use crate::served::ServedModel;
use crate::tools::ToolUse;

/// A conversation to complete.
pub(crate) struct Conversation<'a> {
    pub(crate) model: Arc<ServedModel>,
    /// The messages in OpenAI's format.
    pub(crate) messages: Vec<Value>,
    pub(crate) sampling: &'a Sampling,
    /// Maximum number of tokens per completion.
    pub(crate) max_tokens: Option<usize>,
    /// The number of alternatives that are returned with each token's log probability. `None` returns no log
    /// probabilities.
    pub(crate) log_probabilities: Option<usize>,
    /// The tools that the model may call.
    pub(crate) tools: ToolUse,
    /// The requested constraint of completions that call no tool.
    pub(crate) form: Option<AskedForm>,
    /// The options that turn the messages into a prompt.
    pub(crate) prompt: PromptOptions,
}

/// Completions that have started.
pub(crate) struct Begun {
    pub(crate) reply: Reply,
    pub(crate) answers: Answers,
    /// One parser per completion.
    pub(crate) readers: Vec<PieceReader>,
}

/// The prefixes of the ids of completions and tool calls.
#[derive(Clone, Copy)]
pub(crate) struct Prefixes {
    pub(crate) answer: &'static str,
    pub(crate) call: &'static str,
}

impl Conversation<'_> {
    /// Waits for admission, and starts generation.
    ///
    /// # Errors
    /// If a field is out of range, the template refuses the messages, the prompt is too long, a constraint can't be
    /// compiled, or the queue is full.
    pub(crate) async fn begin(
        self,
        app: &App,
        client: Caller,
        prefixes: Prefixes,
    ) -> ApiResult<Begun> {
        let Self {
            model,
            messages,
            sampling,
            max_tokens,
            log_probabilities,
            tools,
            form,
            prompt,
        } = self;
        prompt.check(&messages)?;
        let (arrived, time_out) = (Instant::now(), app.options.client_time_out);
        let choices = sampling.choices(&model)?;
        let options = sampling.options(&model, max_tokens, log_probabilities)?;
        let adapters = adapters::asked(&model, sampling.lora.as_deref())?;
        check_tools(&model, &tools)?;
        // Take a place in the queue before any work is done.
        let place = model.enter(client.address)?;
        let tools = Arc::new(tools);
        let text = Work::Text(bytes(&messages) + prompt.bytes() + tools.bytes());
        let of_prompt = Arc::clone(&tools);
        let encode = move |model: &ServedModel, cancel: &Cancel| {
            let conversation =
                prompt.conversation(&messages, of_prompt.listed(), model.keeps_letters());
            let within = (model.context(), cancel);
            let prompt =
                chat::encode_conversation(model.model(), model.name(), &conversation, within);
            prompt.map_err(|error| ApiError::from(error).with_param("messages"))
        };
        let prompt = model
            .preparers()
            .prepare((&model, &place), text, encode)
            .await?;
        let (options, format) = if tools.is_allowed() || form.is_some() {
            let owner = client.owner;
            let bytes = tools.bytes() + form.as_ref().map_or(0, |form| form.source.text().len());
            let work = Work::Form(bytes);
            let compile = move |model: &ServedModel, cancel: &Cancel| {
                let asker = Asker {
                    model,
                    owner,
                    cancel,
                };
                compile(asker, (&tools, form.as_ref()), options)
            };
            model
                .preparers()
                .prepare((&model, &place), work, compile)
                .await?
        } else {
            (options, None)
        };
        let reply = Reply::new(
            prefixes.answer,
            (&model, client.owner),
            [prompt.len()],
            choices,
        );
        let readers = (0..choices)
            .map(|_| PieceReader::new(format, prefixes.call))
            .collect();
        let prompts = vec![prompt];
        let scores_prompt = false;
        let order = GenerationJob {
            model,
            prompts,
            choices,
            options,
            adapters,
            scores_prompt,
            client,
            arrived,
            time_out,
        };
        Ok(Begun {
            reply,
            answers: order.begin(place).await?,
            readers,
        })
    }
}

/// Refuses tools if the model's template can't list them, or if its calls could not be told from text.
fn check_tools(model: &ServedModel, tools: &ToolUse) -> ApiResult<()> {
    if !tools.is_allowed() {
        return Ok(());
    }
    if model.model().chat_template().is_none() {
        let message = "the model has no chat template that could describe tools to it";
        return Err(ApiError::unsupported("tools", message));
    }
    check_words(model, call_format(model), tools)
}

/// Returns the format in which the model writes tool calls.
fn call_format(model: &ServedModel) -> ToolFormat {
    let template = model.model().chat_template();
    ToolFormat::of_template(template.map(|template| template.for_tools().source()))
}

/// Returns the options with the compiled constraint, and the format of tool calls in the completion.
fn compile(
    asker: Asker<'_>,
    (tools, form): (&ToolUse, Option<&AskedForm>),
    mut options: GenerateOptions,
) -> ApiResult<(GenerateOptions, Option<CallFormat>)> {
    let mut calls = None;
    if tools.is_allowed() {
        let format = call_format(asker.model);
        let (kept, which) = tools.form(asker, format, form)?;
        options.form = kept;
        calls = Some(CallFormat {
            format,
            form: which,
            is_parallel: tools.is_parallel(),
        });
    } else if let Some(form) = form {
        options.form = Some(form.compile(asker)?);
    }
    if options.form.is_some() {
        check_end(&options)?;
    }
    Ok((options, calls))
}

/// Refuses tools if calls could not be told from text: when the model marks calls with control tokens, which have no
/// text, and no grammar enforces the calls.
fn check_words(model: &ServedModel, format: ToolFormat, tools: &ToolUse) -> ApiResult<()> {
    let word = match format {
        ToolFormat::Hermes => "<tool_call>",
        ToolFormat::Mistral => "[ARGS]",
        ToolFormat::Llama3 | ToolFormat::Python => return Ok(()),
    };
    let tokenizer = model.model().tokenizer()?;
    let is_control = |token| tokenizer.token_kind(token) == TokenKind::Control;
    if !tools.is_required() && tokenizer.id(word).is_some_and(is_control) {
        let message = format!(
            "the model marks calls with the control token {word}, which is not parsed: expected tool_choice required, or \
             the name of a function"
        );
        return Err(ApiError::unsupported("tools", message));
    }
    Ok(())
}
