//! `/completion` and `/infill`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use triad_engine::{Cancel, GenerateOptions};
use triad_frontend::chat;
use triad_frontend::infill::{Gap, InfillPrompt, InfillTokens};
use triad_model::tokenizer::EncodeOptions;
use utoipa::ToSchema;

use super::answer::{Answer, Completed, GenerationSettings, Limits};
use super::samplers;
use crate::adapters;
use crate::app::App;
use crate::body::{CheckedBody, JsonBody};
use crate::continuation::Continuation;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::forms::{AskedForm, FormFields};
use crate::guard::{Caller, Client};
use crate::infill;
use crate::left_out::LeftOut;
use crate::prepare::Work;
use crate::prompts::TextFields;
use crate::queue::Place;
use crate::sampling::{Sampling, chosen_seed, limit};
use crate::served::ServedModel;
use crate::sse::StreamEvent;
use crate::values::{PromptItem, TextOrArray, whole};

/// Maximum number of parts of other files, and of parts of a prompt.
const MAX_PARTS: usize = 1024;
/// Maximum number of paths of fields of the response.
const MAX_PATHS: usize = 64;

/// The fields that `/completion` and `/infill` share, without [`Sampling`].
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = LlamaShared)]
pub(crate) struct How {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// Maximum number of tokens. The default and -1 mean no limit.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole")]
    n_predict: Option<i64>,
    /// Alias of `n_predict`.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole")]
    max_tokens: Option<i64>,
    /// The steps of sampling. Steps that are not named are off.
    samplers: Option<Vec<String>>,
    /// Maximum time in milliseconds after the first token, from the first line end on. 0 and -1 mean no limit.
    #[serde(default, deserialize_with = "whole")]
    t_max_predict_ms: Option<i64>,
    /// The completion ends before a line with fewer spaces and tabs than this.
    #[serde(default, deserialize_with = "whole")]
    n_indent: Option<usize>,
    /// The fields of the response, by at most 64 paths with `/`. The default is all.
    response_fields: Option<Vec<String>>,
}

/// A request to continue a text.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = LlamaCompletionRequest)]
pub(crate) struct CompletionRequest {
    /// A text, tokens, or an array of both, which is joined.
    prompt: MixedPrompt,
}

/// A request to fill in the middle.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InfillRequest {
    /// The text before the gap.
    input_prefix: Option<String>,
    /// The text after the gap.
    input_suffix: Option<String>,
    /// Parts of other files.
    input_extra: Option<Vec<Extra>>,
    /// More text before the gap.
    prompt: Option<String>,
}

/// A part of another file.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Extra {
    filename: Option<String>,
    text: String,
}

/// A text, tokens, or an array of both.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOrArray<PromptPart>")]
pub(crate) enum MixedPrompt {
    Text(String),
    Parts(Vec<PromptPart>),
}

impl From<TextOrArray<PromptPart>> for MixedPrompt {
    fn from(given: TextOrArray<PromptPart>) -> Self {
        match given {
            TextOrArray::Text(text) => Self::Text(text),
            TextOrArray::Array(parts) => Self::Parts(parts),
        }
    }
}

/// A token or a text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, try_from = "PromptItem")]
pub(crate) enum PromptPart {
    Token(u32),
    Text(String),
}

impl TryFrom<PromptItem> for PromptPart {
    type Error = &'static str;

    fn try_from(item: PromptItem) -> Result<Self, Self::Error> {
        match item {
            PromptItem::Text(text) => Ok(Self::Text(text)),
            PromptItem::Token(token) => Ok(Self::Token(token)),
            PromptItem::Tokens(_) => {
                Err("is an array, expected a string or a token, a whole number")
            }
        }
    }
}

/// The body of a request to continue a text.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct LlamaCompletionBody {
    #[serde(flatten)]
    _completion: CompletionRequest,
    #[serde(flatten)]
    _how: How,
    #[serde(flatten)]
    _text: TextFields,
    #[serde(flatten)]
    _form: FormFields,
    #[serde(flatten)]
    _sampling: Sampling,
}

/// The body of a request to fill in the middle.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InfillBody {
    #[serde(flatten)]
    _infill: InfillRequest,
    #[serde(flatten)]
    _how: How,
    #[serde(flatten)]
    _sampling: Sampling,
}

/// Continues a text or tokens.
#[utoipa::path(
    post, path = "/completion", tag = "answers", request_body = LlamaCompletionBody,
    responses(
        (status = 200, description = "The completion; a stream of parts if `stream` is true",
         content((Completed = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody),
    )
)]
pub(crate) async fn completion(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Response> {
    let body = body.checked(&fields::LLAMA_COMPLETION)?;
    let request: CompletionRequest = body.parse()?;
    let form = body.parse::<FormFields>()?.form()?;
    let text: TextFields = body.parse()?;
    let asked = Asked::read(&app, &body)?;
    request.prompt.check()?;
    let model = app.model(asked.how.model.as_deref()).await?;
    let place = model.enter(client.address)?;
    let prompt = request.prompt.encode((&model, &place), text).await?;
    asked
        .complete(&app, client, (model, place), prompt, form)
        .await
}

/// Fills in the text between a prefix and a suffix.
#[utoipa::path(
    post, path = "/infill", tag = "answers", request_body = InfillBody,
    responses(
        (status = 200, description = "The completion; a stream of parts if `stream` is true",
         content((Completed = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody),
    )
)]
pub(crate) async fn fill(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Response> {
    let body = body.checked(&fields::LLAMA_INFILL)?;
    let request: InfillRequest = body.parse()?;
    let mut asked = Asked::read(&app, &body)?;
    infill::set_defaults(&mut asked.sampling);
    let mut gap = request.gap()?;
    let model = app.model(asked.how.model.as_deref()).await?;
    // An editor wants the middle more than parts of other files.
    let context = model.context();
    gap.room = asked.max_tokens.unwrap_or(context / 8).min(context / 2);
    let tokens = infill::tokens(&model, "input_prefix")?;
    asked.infill = Some(tokens.clone());
    let place = model.enter(client.address)?;
    let InfillPrompt { tokens, left_out } = infill::encode((&model, &place), tokens, gap).await?;
    let place = (model, place);
    let response = asked.complete(&app, client, place, tokens, None).await?;
    let left_out = LeftOut {
        fields: Vec::from_iter((left_out > 0).then_some("input_extra")),
        ..LeftOut::default()
    };
    Ok(left_out.say(response))
}

impl InfillRequest {
    fn gap(self) -> ApiResult<Gap> {
        let extra = self.input_extra.unwrap_or_default();
        if extra.len() > MAX_PARTS {
            let message = format!("{} parts, expected at most {MAX_PARTS}", extra.len());
            return Err(ApiError::field("input_extra", message));
        }
        let name = |extra: Extra| (extra.filename.unwrap_or_else(|| "tmp".into()), extra.text);
        Ok(Gap {
            prefix: self.input_prefix.unwrap_or_default()
                + self.prompt.as_deref().unwrap_or_default(),
            suffix: self.input_suffix.unwrap_or_default(),
            extra: extra.into_iter().map(name).collect(),
            room: 0,
        })
    }
}

/// A request with its sampling.
struct Asked {
    how: How,
    sampling: Sampling,
    max_tokens: Option<usize>,
    choices: usize,
    /// The tokens for filling in the middle.
    infill: Option<InfillTokens>,
}

impl Asked {
    fn read(app: &App, body: &CheckedBody) -> ApiResult<Self> {
        let (how, mut sampling): (How, Sampling) = (body.parse()?, body.parse()?);
        let paths = how.response_fields.as_ref().map_or(0, Vec::len);
        if paths > MAX_PATHS {
            let message = format!("{paths} paths, expected at most {MAX_PATHS}");
            return Err(ApiError::field("response_fields", message));
        }
        sampling.seed = chosen_seed(sampling.seed);
        samplers::apply(how.samplers.as_deref(), &mut sampling)?;
        sampling.check(app.options.parallel)?;
        let choices = sampling.n.unwrap_or(1);
        if choices != 1 {
            return Err(ApiError::unsupported("n", "expected 1, or /v1/completions"));
        }
        let max_tokens = limit(how.n_predict, ("max_tokens", how.max_tokens), None)?;
        Ok(Self {
            how,
            sampling,
            max_tokens,
            choices,
            infill: None,
        })
    }

    fn limits(&self) -> Limits {
        let time = self.how.t_max_predict_ms.filter(|time| *time > 0);
        Limits {
            time: time.map(|time| Duration::from_millis(time.unsigned_abs())),
            indent: self.how.n_indent.unwrap_or(0),
        }
    }

    async fn complete(
        self,
        app: &App,
        client: Caller,
        (model, place): (Arc<ServedModel>, Place),
        prompt: Vec<u32>,
        form: Option<AskedForm>,
    ) -> ApiResult<Response> {
        let limits = self.limits();
        let mut options = self.sampling.options(&model, self.max_tokens, None)?;
        let tokenizer = model.model().tokenizer()?;
        if let Some(tokens) = &self.infill {
            infill::end_at(&mut options, tokens);
        }
        let adapters = adapters::asked(&model, self.sampling.lora.as_deref())?;
        let settings = settings(&model, &options);
        let text = tokenizer.decode(&prompt);
        let continuation = Continuation {
            model,
            place,
            prompt,
            options,
            adapters,
            form,
            choices: self.choices,
        };
        let (reply, answers) = continuation.begin(app, client).await?;
        let fields = self.how.response_fields.unwrap_or_default();
        let answer = Answer::new((reply, text), settings, limits, fields);
        answer.respond(answers, self.sampling.streams()).await
    }
}

fn settings(model: &ServedModel, options: &GenerateOptions) -> GenerationSettings {
    let sampler = &options.sampler;
    GenerationSettings {
        n_predict: options
            .max_tokens
            .map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX)),
        n_ctx: model.context(),
        seed: sampler.seed,
        temperature: sampler.temperature,
        top_k: sampler.top_k,
        top_p: sampler.top_p,
        min_p: sampler.min_p,
        repeat_penalty: sampler.repetition_penalty,
        presence_penalty: sampler.presence_penalty,
        frequency_penalty: sampler.frequency_penalty,
    }
}

impl MixedPrompt {
    fn check(&self) -> ApiResult<()> {
        match self {
            Self::Text(_) => Ok(()),
            Self::Parts(parts) if parts.is_empty() => Err(ApiError::empty_prompt()),
            Self::Parts(parts) => {
                let texts = parts
                    .iter()
                    .filter(|part| matches!(part, PromptPart::Text(_)));
                let count = texts.count();
                // In llama.cpp's server an array of texts is several prompts.
                if count == parts.len() && count > 1 {
                    let message = "several prompts, expected one, or /v1/completions";
                    return Err(ApiError::unsupported("prompt", message));
                }
                if count > MAX_PARTS {
                    let message = format!("{count} texts, expected at most {MAX_PARTS}");
                    return Err(ApiError::field("prompt", message));
                }
                Ok(())
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Parts(parts) => {
                let bytes = parts.iter().map(|part| match part {
                    PromptPart::Text(text) => text.len(),
                    PromptPart::Token(_) => 0,
                });
                bytes.sum()
            }
        }
    }

    /// Returns the tokens. BOS is added before a text at the beginning only.
    async fn encode(
        self,
        (model, place): (&Arc<ServedModel>, &Place),
        text: TextFields,
    ) -> ApiResult<Vec<u32>> {
        let options = text.options(model);
        let vocab = model.model().description().vocab;
        let work = Work::Text(self.bytes());
        let encode = move |model: &ServedModel, cancel: &Cancel| {
            let within = (model.context(), cancel);
            let text = |text: &str, adds: bool| {
                let options = EncodeOptions {
                    add_special: adds && options.add_special,
                    ..options
                };
                chat::encode_text(model.model(), text, options, within)
            };
            let parts = match self {
                Self::Text(given) => return Ok(text(&given, true)?),
                Self::Parts(parts) => parts,
            };
            let mut tokens = Vec::new();
            for (place, part) in parts.into_iter().enumerate() {
                match part {
                    PromptPart::Token(token) if token as usize >= vocab => {
                        let message = format!("token {token} is outside the vocabulary of {vocab}");
                        return Err(ApiError::field("prompt", message));
                    }
                    PromptPart::Token(token) => tokens.push(token),
                    PromptPart::Text(part) => {
                        tokens.extend(text(&part, place == 0)?);
                    }
                }
            }
            Ok(tokens)
        };
        let tokens = model
            .preparers()
            .prepare((model, place), work, encode)
            .await;
        tokens.map_err(|error| match error.detail.param {
            None => error.with_param("prompt"),
            Some(_) => error,
        })
    }
}
