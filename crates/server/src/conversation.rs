//! What the endpoints that answer conversations have in common.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use triad_engine::GenerateOptions;
use triad_frontend::chat;
use triad_frontend::tool_calls::ToolFormat;
use triad_model::tokenizer::TokenKind;

use crate::adapters;
use crate::answers::{Answers, Order};
use crate::app::App;
use crate::blocking::of_model;
use crate::error::{ApiError, ApiResult};
use crate::forms::{AskedForm, check_end};
use crate::guard::Caller;
use crate::hosted::Hosted;
use crate::pieces::{CallFormat, PieceReader};
use crate::prompt_fields::PromptOptions;
use crate::reply::Reply;
use crate::sampling::Sampling;
use crate::tools::ToolUse;

/// A conversation that is to be answered.
pub(crate) struct Conversation<'a> {
    pub(crate) model: Arc<Hosted>,
    /// In OpenAI's form.
    pub(crate) messages: Vec<Value>,
    pub(crate) sampling: &'a Sampling,
    /// Tokens of an answer at most.
    pub(crate) max_tokens: Option<usize>,
    /// How many of the likeliest tokens are told with each token; `None`: not even its own probability.
    pub(crate) log_probabilities: Option<usize>,
    /// Functions that answers may call.
    pub(crate) tools: ToolUse,
    /// The form that answers have where they call none.
    pub(crate) form: Option<AskedForm>,
    /// How the messages become a prompt.
    pub(crate) prompt: PromptOptions,
}

/// Answers that have begun.
pub(crate) struct Begun {
    pub(crate) reply: Reply,
    pub(crate) answers: Answers,
    /// One for each answer.
    pub(crate) readers: Vec<PieceReader>,
}

/// What names of answers and of calls begin with.
#[derive(Clone, Copy)]
pub(crate) struct Prefixes {
    pub(crate) answer: &'static str,
    pub(crate) call: &'static str,
}

impl Conversation<'_> {
    /// Waits until it is admitted, and begins.
    ///
    /// # Errors
    /// If a field has a value out of its range, the template refuses the messages, they do not fit, a form can't be had, or
    /// too many wait.
    pub(crate) async fn begin(self, app: &App, client: Caller, prefixes: Prefixes) -> ApiResult<Begun> {
        let Self { model, messages, sampling, max_tokens, log_probabilities, tools, form, prompt } = self;
        prompt.check(&messages)?;
        let (arrived, time_out) = (Instant::now(), app.options.client_time_out);
        let choices = sampling.choices(&model)?;
        let options = sampling.options(&model, max_tokens, log_probabilities)?;
        let adapters = adapters::asked(&model, sampling.lora.as_deref())?;
        let prepared = move |model: &Hosted| prepare(model, (&messages, &prompt), (&tools, form.as_ref()), options);
        let prepared = of_model(&model, prepared);
        let (prompt, options, format) = prepared.await?;
        let reply = Reply::new(prefixes.answer, (&model, client.owner), [prompt.len()], choices);
        let readers = (0..choices).map(|_| PieceReader::new(format, prefixes.call)).collect();
        let prompts = vec![prompt];
        let scores_prompt = false;
        let order = Order { model, prompts, choices, options, adapters, scores_prompt, client, arrived, time_out };
        Ok(Begun { reply, answers: order.begin().await?, readers })
    }
}

/// The tokens of the prompt, the options with the form of the answer, and how calls in it are found.
fn prepare(
    model: &Hosted,
    (messages, prompt): (&[Value], &PromptOptions),
    (tools, form): (&ToolUse, Option<&AskedForm>),
    mut options: GenerateOptions,
) -> ApiResult<(Vec<u32>, GenerateOptions, Option<CallFormat>)> {
    let template = model.model().chat_template();
    if tools.is_allowed() && template.is_none() {
        let message = "the model has no chat template, by which it could be told of functions";
        return Err(ApiError::unsupported("tools", message));
    }
    let conversation = prompt.conversation(messages, tools.listed(), model.keeps_letters());
    let prompt = chat::encode_conversation(model.model(), model.name(), &conversation, model.context());
    let prompt = prompt.map_err(|error| ApiError::from(error).with_param("messages"))?;
    let mut calls = None;
    if tools.is_allowed() {
        let format = ToolFormat::of_template(template.map(|template| template.for_tools().source()));
        check_words(model, format, tools)?;
        let (kept, which) = tools.form(model, format, form)?;
        options.form = kept;
        calls = Some(CallFormat { format, form: which, is_parallel: tools.is_parallel() });
    } else if let Some(form) = form {
        options.form = Some(form.compile(model)?);
    }
    if options.form.is_some() {
        check_end(&options)?;
    }
    Ok((prompt, options, calls))
}

/// Refuses functions where calls could not be told from text: where words of the model's calls are control tokens, which have
/// no text, and no grammar spells them.
fn check_words(model: &Hosted, format: ToolFormat, tools: &ToolUse) -> ApiResult<()> {
    let word = match format {
        ToolFormat::Hermes => "<tool_call>",
        ToolFormat::Mistral => "[ARGS]",
        ToolFormat::Llama3 | ToolFormat::Python => return Ok(()),
    };
    let tokenizer = model.model().tokenizer()?;
    let is_control = |token| tokenizer.token_kind(token) == TokenKind::Control;
    if !tools.is_required() && tokenizer.id(word).is_some_and(is_control) {
        let message = format!(
            "the model writes calls with the control token {word}, which is not read: expected tool_choice required, or \
             the name of a function"
        );
        return Err(ApiError::unsupported("tools", message));
    }
    Ok(())
}
