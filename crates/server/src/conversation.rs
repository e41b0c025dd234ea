//! The common part of the chat endpoints.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;
use triad_engine::{Cancel, GenerateOptions};
use triad_frontend::pictures::PicturePrompt;
use triad_frontend::reasoning::Reasoning;
use triad_frontend::tool_calls::{AnswerForm, ToolFormat, Words};

use crate::adapters;
use crate::app::App;
use crate::decoded_pictures::{JobPictures, decode};
use crate::error::{ApiError, ApiResult};
use crate::forms::{AskedForm, Asker, check_end};
use crate::gathered_pictures::{Gathered, gather};
use crate::guard::Caller;
use crate::jobs::{Answers, GenerationJob};
use crate::left_out::LeftOut;
use crate::messages::bytes;
use crate::pieces::{AnswerStyle, CallFormat, PieceReader};
use crate::prepare::Work;
use crate::prompt_fields::PromptOptions;
use crate::reasoning::{ReasoningOptions, Thoughts};
use crate::reply::Reply;
use crate::sampling::Sampling;
use crate::served::ServedModel;
use crate::text::{ConversationPrompt, conversation_prompt};
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
    /// The options of reasoning.
    pub(crate) reasoning: ReasoningOptions,
}

/// Completions that have started.
pub(crate) struct Begun {
    pub(crate) reply: Reply,
    pub(crate) answers: Answers,
    /// One parser per completion.
    pub(crate) readers: Vec<PieceReader>,
    /// The parts of the request that the prompt does not have.
    pub(crate) left_out: LeftOut,
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
            mut messages,
            sampling,
            max_tokens,
            log_probabilities,
            tools,
            form,
            prompt,
            reasoning: mut of_reasoning,
        } = self;
        prompt.check(&messages)?;
        let words = reasoning(&model, of_reasoning)?;
        if prompt.disables_reasoning(model.model().chat_template()) {
            of_reasoning.budget = Some(0);
        }
        let continued = continued(&prompt, &messages);
        let (arrived, time_out) = (Instant::now(), app.options.client_time_out);
        let choices = sampling.choices(&model)?;
        let options = sampling.options(&model, max_tokens, log_probabilities)?;
        let adapters = adapters::asked(&model, sampling.lora.as_deref())?;
        check_tools(&model, &tools)?;
        // Take a place in the queue before any work is done.
        let place = model.enter(client.address)?;
        let is_formed = tools.is_allowed() || form.is_some();
        let mut left_out = LeftOut {
            tools: tools.left_out().to_vec(),
            fields: prompt.left_out().to_vec(),
            schemas: Vec::new(),
        };
        let tools = Arc::new(tools);
        let caller = (app, &*model, client.address);
        let gathered = gather(caller, &mut messages).await?;
        let text = bytes(&messages) + prompt.bytes() + tools.bytes();
        let text = Work::with_files(text, gathered.bytes());
        let Gathered { pictures, memory } = gathered;
        let of_prompt = Arc::clone(&tools);
        let encode = move |model: &ServedModel, cancel: &Cancel| {
            let conversation = (&messages[..], of_prompt.listed(), pictures);
            conversation_prompt(model, conversation, &prompt, (model.context(), cancel))
        };
        let ConversationPrompt { prompt, pictures } = model
            .preparers()
            .prepare((&model, &place), text, encode)
            .await?;
        let PicturePrompt {
            tokens: prompt,
            places,
        } = prompt;
        let of_job = (&model, &place, client.owner);
        let pictures = match pictures.is_empty() {
            true => JobPictures::default(),
            false => decode(of_job, places, pictures).await?,
        };
        drop(memory);
        let thoughts = match words {
            Some(words) => {
                let tokenizer = model.model().tokenizer()?;
                let continued = continued.as_deref();
                Some(Thoughts::new(words, tokenizer, &prompt, continued))
            }
            None => None,
        };
        let owner = client.owner;
        let bytes = tools.bytes() + form.as_ref().map_or(0, |form| form.source.text().len());
        let compile = move |model: &ServedModel, cancel: &Cancel| {
            let asker = Asker {
                model,
                owner,
                cancel,
            };
            compile(
                asker,
                (&tools, form.as_ref()),
                (thoughts, of_reasoning),
                options,
            )
        };
        // Without a constraint there is nothing to compile.
        let (options, style, schemas) = if is_formed {
            model
                .preparers()
                .prepare((&model, &place), Work::Form(bytes), compile)
                .await?
        } else {
            compile(&model, &Cancel::new())?
        };
        left_out.schemas = schemas;
        let reply = Reply::new(
            prefixes.answer,
            (&model, client.owner),
            [prompt.len()],
            choices,
        );
        let readers = (0..choices)
            .map(|_| PieceReader::new(style.clone(), prefixes.call))
            .collect();
        let prompts = vec![prompt];
        let scores_prompt = false;
        let order = GenerationJob {
            model,
            prompts,
            pictures: Mutex::new(pictures),
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
            left_out,
        })
    }
}

/// Refuses tools if the model's template can't list them.
fn check_tools(model: &ServedModel, tools: &ToolUse) -> ApiResult<()> {
    if tools.is_allowed() && model.model().chat_template().is_none() {
        let message = "the model has no chat template that could describe tools to it";
        return Err(ApiError::unsupported("tools", message));
    }
    Ok(())
}

/// Returns the words of the model's reasoning.
///
/// # Errors
/// If there is a budget of tokens for it, but the model marks no reasoning.
fn reasoning(model: &ServedModel, options: ReasoningOptions) -> ApiResult<Option<Reasoning>> {
    let template = model.model().chat_template();
    let source = template.map(triad_model::template::ChatTemplate::source);
    let words = Reasoning::of_model(source, model.model().tokenizer()?);
    match options.field {
        Some(field) if words.is_none() => {
            let message = "the model does not mark its reasoning";
            Err(ApiError::unsupported(field, message))
        }
        _ => Ok(words),
    }
}

/// Returns the text of the message that the completions continue.
fn continued(prompt: &PromptOptions, messages: &[Value]) -> Option<String> {
    let last = messages.last().filter(|_| prompt.continues())?;
    Some(match &last["content"] {
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        content => content.as_str().unwrap_or_default().to_owned(),
    })
}

/// Returns the options with the compiled constraint, the parts of the completions, and the functions whose schemas do not
/// constrain their calls.
fn compile(
    asker: Asker<'_>,
    (tools, form): (&ToolUse, Option<&AskedForm>),
    (thoughts, reasoning): (Option<Thoughts>, ReasoningOptions),
    mut options: GenerateOptions,
) -> ApiResult<(GenerateOptions, AnswerStyle, Vec<String>)> {
    let tokenizer = asker.model.model().tokenizer()?;
    let (mut calls, mut answer, mut schemas) = (None, AnswerForm::Any, Vec::new());
    if tools.is_allowed() {
        let (format, spelled) = ToolFormat::of_answers(asker.model.model())?;
        options.spelled = spelled;
        let words = Words::new(tokenizer);
        let found = tools.form(asker, (format, &words), form)?;
        if found.form.is_some() {
            options.spelled.extend(words.tokens());
        }
        (options.constraint, answer, schemas) = (found.form, found.kind, found.left_out);
        calls = Some(CallFormat {
            format,
            form: answer,
            is_parallel: tools.is_parallel(),
            tools: tools.listed().into(),
        });
    } else if let Some(form) = form {
        options.constraint = Some(form.compile(asker)?);
    }
    if options.constraint.is_some() {
        check_end(&options)?;
    }
    if let Some(thoughts) = thoughts {
        options
            .spelled
            .extend(thoughts.words.control_words(tokenizer));
        let answer = (&mut options, answer);
        thoughts.guard(asker.model.model(), reasoning.budget, answer);
    }
    let style = AnswerStyle {
        thoughts,
        delivery: reasoning.delivery,
        calls,
    };
    Ok((options, style, schemas))
}
