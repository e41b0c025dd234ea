//! `/v1/completions`: continues texts and tokens without a chat template.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use triad_engine::LogProbabilities;
use triad_frontend::infill::Gap;
use triad_model::tokenizer::Tokenizer;
use utoipa::ToSchema;

use crate::adapters;
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::forms::{self, FormFields};
use crate::guard::{Caller, Client};
use crate::infill;
use crate::jobs::{Answers, GenerationJob, StreamItem};
use crate::log_probabilities::{TextLogProbabilities, TextOffset};
use crate::prompts::{Prompts, TextFields, encode};
use crate::reply::{Reply, finish_reason};
use crate::sampling::{Sampling, likeliest, limit};
use crate::served::ServedModel;
use crate::sse::{self, Render, StreamEvent};
use crate::stream_usage::StreamUsage;
use crate::usage::{Timings, Usage};
use crate::values::whole;

/// The default of `max_tokens`.
const MAX_TOKENS: usize = 16;
/// Maximum number of prompt log probabilities in a response: each takes some hundred bytes.
const MAX_PROMPT_PROBABILITIES: usize = 1 << 18;

/// A completion request without its [`Sampling`].
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// The texts or tokens to continue.
    prompt: Prompts,
    /// Maximum number of tokens per completion. The default is 16; -1 means no limit, as in llama.cpp's server.
    #[serde(default, deserialize_with = "whole")]
    max_tokens: Option<i64>,
    /// Alias of `max_tokens`, as in llama.cpp's server. -1 means no limit.
    #[serde(default, deserialize_with = "whole")]
    n_predict: Option<i64>,
    /// Whether to return the prompt before the completion, with its log probabilities if `logprobs` is set.
    echo: Option<bool>,
    /// Whether to return log probabilities: the value is the number of alternatives per token, 0 to 20.
    #[serde(default, deserialize_with = "whole")]
    logprobs: Option<usize>,
    /// The text after the completion, for models with tokens for filling in the middle.
    suffix: Option<String>,
    /// Must be equal to `n` if given, because all generated completions are returned.
    #[serde(default, deserialize_with = "whole")]
    best_of: Option<usize>,
}

/// The body of a completion request.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionBody {
    #[serde(flatten)]
    _completion: CompletionRequest,
    #[serde(flatten)]
    _text: TextFields,
    #[serde(flatten)]
    _form: FormFields,
    #[serde(flatten)]
    _sampling: Sampling,
}

/// Completions of texts, or a chunk of them in a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    id: String,
    /// Always `text_completion`.
    object: &'static str,
    /// The creation time in seconds since 1970.
    created: u64,
    model: String,
    choices: Vec<CompletionChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Debug, Serialize, ToSchema)]
struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<TextLogProbabilities>,
    /// `stop` or `length`; null before the end.
    finish_reason: Option<&'static str>,
}

/// Continues texts.
#[utoipa::path(
    post, path = "/v1/completions", tag = "answers",
    request_body(content = CompletionBody, examples(
        ("whole" = (value = json!({"prompt": "The capital of France is", "max_tokens": 8}))),
        ("streamed" = (value = json!({"prompt": "The capital of France is", "max_tokens": 8, "stream": true}))),
    )),
    responses(
        (status = 200, description = "The completions; a stream of chunks if `stream` is true",
         content((Completion = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody),
    )
)]
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Response> {
    let body = body.checked(&fields::COMPLETIONS)?;
    let (request, mut sampling): (CompletionRequest, Sampling) = (body.parse()?, body.parse()?);
    let (form, text): (FormFields, TextFields) = (body.parse()?, body.parse()?);
    let log_probabilities = likeliest("logprobs", request.logprobs)?;
    let choices = sampling.check(app.options.parallel)?;
    request.prompt.check("prompt")?;
    let echo = request.echo.unwrap_or(false);
    let suffix = request.suffix.filter(|suffix| !suffix.is_empty());
    if suffix.is_some() && (echo || !matches!(request.prompt, Prompts::Text(_))) {
        let message = "it requires one text as the prompt, without echo";
        return Err(ApiError::field("suffix", message));
    }
    if suffix.is_some() {
        text.check_unused("suffix")?;
        infill::set_defaults(&mut sampling);
    }
    if request.best_of.is_some_and(|best_of| best_of != choices) {
        return Err(ApiError::unsupported(
            "best_of",
            "all generated completions are returned: expected n",
        ));
    }
    let form = form.form()?;
    let max_tokens = ("max_tokens", request.max_tokens);
    let max_tokens = limit(request.n_predict, max_tokens, Some(MAX_TOKENS))?;
    let model = app.model(request.model.as_deref()).await?;
    let mut options = sampling.options(&model, max_tokens, log_probabilities)?;
    let adapters = adapters::asked(&model, sampling.lora.as_deref())?;
    // Take a place in the queue before any work is done.
    let place = model.enter(client.address)?;
    let prompts = match (suffix, request.prompt) {
        (Some(suffix), Prompts::Text(prefix)) => {
            let tokens = infill::tokens(&model, "suffix")?;
            infill::end_at(&mut options, &tokens);
            let gap = Gap {
                prefix,
                suffix,
                ..Gap::default()
            };
            let prompt = infill::encode((&model, &place), tokens, gap).await?;
            vec![prompt.tokens]
        }
        (_, prompt) => {
            let options = text.options(&model);
            encode((&model, &place), ("prompt", prompt), options).await?
        }
    };
    if prompts.iter().any(Vec::is_empty) {
        return Err(ApiError::empty_prompt().with_param("prompt"));
    }
    options.constraint = forms::prepare((&model, &place, client.owner), form, &options).await?;
    if let Some(likeliest) = log_probabilities.filter(|_| echo) {
        let tokens: usize = prompts.iter().map(Vec::len).sum();
        let most = MAX_PROMPT_PROBABILITIES / ((likeliest + 1) * choices).max(1);
        if tokens > most {
            let message = format!(
                "{tokens} prompt tokens, but echo returns at most {most} with these options"
            );
            return Err(ApiError::field("logprobs", message));
        }
    }
    let texts = Texts::new(
        (&model, client),
        &prompts,
        choices,
        (echo, log_probabilities.is_some()),
    )?;
    let scores_prompt = echo && log_probabilities.is_some();
    let (arrived, time_out) = (Instant::now(), app.options.client_time_out);
    let order = GenerationJob {
        model,
        prompts,
        choices,
        options,
        adapters,
        scores_prompt,
        pictures: Mutex::default(),
        client,
        arrived,
        time_out,
    };
    let answers = order.begin(place).await?;
    if sampling.streams() {
        return Ok(sse::respond(
            answers,
            TextStream {
                usage: StreamUsage::new(sampling.stream_options.as_ref(), &texts.reply),
                texts,
            },
        ));
    }
    Ok(Json(texts.collect(answers).await?).into_response())
}

/// The completions as generated so far.
struct Texts {
    reply: Reply,
    choices: usize,
    /// The text that precedes the completions of each prompt.
    echoes: Vec<Echo>,
    wants_tokens: bool,
    /// The offset of each completion's next token.
    offsets: Vec<TextOffset>,
}

/// The parts of a prompt that are returned with its completions.
#[derive(Default)]
struct Echo {
    text: String,
    /// The prompt's tokens, if their log probabilities are returned.
    tokens: Vec<u32>,
}

impl Texts {
    fn new(
        (model, client): (&Arc<ServedModel>, Caller),
        prompts: &[Vec<u32>],
        choices: usize,
        (echo, wants_tokens): (bool, bool),
    ) -> ApiResult<Self> {
        let tokenizer = model.model().tokenizer()?;
        let reply = Reply::new(
            "cmpl-",
            (model, client.owner),
            prompts.iter().map(Vec::len),
            choices,
        );
        let echoed = |prompt: &Vec<u32>| match (echo, wants_tokens) {
            (false, _) => Echo::default(),
            (true, false) => Echo {
                text: tokenizer.decode(prompt),
                tokens: Vec::new(),
            },
            (true, true) => Echo {
                text: tokenizer.decode(prompt),
                tokens: prompt.clone(),
            },
        };
        let echoes: Vec<_> = prompts.iter().map(echoed).collect();
        Ok(Self {
            choices,
            echoes,
            wants_tokens,
            offsets: vec![TextOffset::default(); reply.count()],
            reply,
        })
    }

    fn tokenizer(&self) -> ApiResult<&Tokenizer> {
        Ok(self.reply.model.model().tokenizer()?)
    }

    /// Returns the log probabilities of a completion's next tokens.
    fn more(
        &mut self,
        choice: usize,
        tokens: &[LogProbabilities],
    ) -> ApiResult<Option<TextLogProbabilities>> {
        if !self.wants_tokens {
            return Ok(None);
        }
        let mut more = TextLogProbabilities::default();
        let mut offset = std::mem::take(&mut self.offsets[choice]);
        more.extend(self.tokenizer()?, tokens, &mut offset);
        self.offsets[choice] = offset;
        Ok(Some(more))
    }

    /// Returns the log probabilities of a prompt's tokens, which precede those of the completion `choice`.
    fn of_prompt(
        &mut self,
        choice: usize,
        scores: &[LogProbabilities],
    ) -> ApiResult<TextLogProbabilities> {
        let (mut told, tokenizer) = (TextLogProbabilities::default(), self.tokenizer()?);
        let first = self.echoes[choice / self.choices].tokens.first().copied();
        let mut offset = TextOffset::default();
        if let Some(first) = first {
            told.push_unknown(tokenizer, first, offset.push(&tokenizer.bytes(first)));
        }
        told.extend(tokenizer, scores, &mut offset);
        self.offsets[choice] = offset;
        Ok(told)
    }

    /// Collects all completions.
    async fn collect(mut self, mut answers: Answers) -> ApiResult<Completion> {
        let text = |choice: usize| self.echoes[choice / self.choices].text.clone();
        let start = || self.wants_tokens.then(TextLogProbabilities::default);
        let mut texts: Vec<_> = (0..self.reply.count())
            .map(|choice| (text(choice), start()))
            .collect();
        while let Some(part) = answers.parts.recv().await {
            match part {
                StreamItem::Prompt { prompt, scores } => {
                    let answers = texts.iter_mut().enumerate().skip(prompt * self.choices);
                    for (choice, (_, told)) in answers.take(self.choices) {
                        *told = Some(self.of_prompt(choice, &scores)?);
                    }
                }
                StreamItem::Text {
                    choice,
                    text,
                    tokens,
                    ..
                } => {
                    texts[choice].0 += &text;
                    let more = self.more(choice, &tokens)?;
                    if let (Some(all), Some(more)) = (&mut texts[choice].1, more) {
                        all.append(more);
                    }
                }
                StreamItem::Begun { .. } => {}
                StreamItem::End { choice, end } => self.reply.end(choice, end),
                StreamItem::Failed(error) => return Err(error),
            }
        }
        let choice =
            |(index, (text, logprobs)): (usize, (String, Option<TextLogProbabilities>))| {
                let finish_reason = Some(finish_reason(self.reply.finish(index)?));
                Ok(CompletionChoice {
                    index,
                    text,
                    logprobs,
                    finish_reason,
                })
            };
        let choices = texts
            .into_iter()
            .enumerate()
            .map(choice)
            .collect::<ApiResult<_>>()?;
        let (usage, timings) = (Some(self.reply.usage), self.reply.timings);
        Ok(Completion {
            choices,
            usage,
            timings,
            ..self.empty()
        })
    }

    fn empty(&self) -> Completion {
        Completion {
            id: self.reply.id.clone(),
            object: "text_completion",
            created: self.reply.created,
            model: self.reply.model.name().to_owned(),
            choices: Vec::new(),
            usage: None,
            timings: None,
        }
    }
}

/// The state of a streamed response.
struct TextStream {
    texts: Texts,
    usage: StreamUsage,
}

impl TextStream {
    fn event(&self, choice: CompletionChoice) -> Event {
        sse::json(&Completion {
            usage: self.usage.of_chunk(&self.texts.reply, choice.index),
            choices: vec![choice],
            ..self.texts.empty()
        })
    }

    fn events(&mut self, part: StreamItem) -> ApiResult<Vec<Event>> {
        Ok(match part {
            StreamItem::Prompt { prompt, scores } => {
                let mut events = Vec::new();
                for index in prompt * self.texts.choices..(prompt + 1) * self.texts.choices {
                    let (text, logprobs) =
                        (String::new(), Some(self.texts.of_prompt(index, &scores)?));
                    events.push(self.event(CompletionChoice {
                        index,
                        text,
                        logprobs,
                        finish_reason: None,
                    }));
                }
                events
            }
            StreamItem::Begun { .. } => Vec::new(),
            StreamItem::Text {
                choice,
                text,
                tokens,
                count,
            } => {
                self.usage.add(choice, count);
                let logprobs = self.texts.more(choice, &tokens)?;
                vec![self.event(CompletionChoice {
                    index: choice,
                    text,
                    logprobs,
                    finish_reason: None,
                })]
            }
            StreamItem::End { choice, end } => {
                let finish_reason = Some(finish_reason(end.finish));
                self.usage.end(choice, end.tokens);
                self.texts.reply.end(choice, end);
                let (index, text) = (choice, String::new());
                vec![self.event(CompletionChoice {
                    index,
                    text,
                    logprobs: None,
                    finish_reason,
                })]
            }
            StreamItem::Failed(error) => return Err(error),
        })
    }
}

impl Render for TextStream {
    fn begin(&mut self) -> Vec<Event> {
        let echo = |index: usize| {
            let text = self.texts.echoes[index / self.texts.choices].text.clone();
            let choice = CompletionChoice {
                index,
                text,
                logprobs: None,
                finish_reason: None,
            };
            (!choice.text.is_empty()).then(|| self.event(choice))
        };
        (0..self.texts.reply.count()).filter_map(echo).collect()
    }

    fn part(&mut self, part: StreamItem) -> Vec<Event> {
        self.events(part)
            .unwrap_or_else(|error| vec![sse::json(&error.body())])
    }

    fn end(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let reply = &self.texts.reply;
        if let Some(usage) = self.usage.of_all(reply) {
            events.push(sse::json(&Completion {
                usage: Some(usage),
                timings: reply.timings,
                ..self.texts.empty()
            }));
        }
        events.push(sse::done());
        events
    }
}
