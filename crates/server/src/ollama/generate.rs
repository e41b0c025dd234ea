//! `/api/generate`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use triad_engine::Adapters;
use triad_frontend::infill::Gap;
use utoipa::ToSchema;

use super::answer::{Answer, Line, Shape};
use super::chat::{Asked, How, Settings, of_options};
use super::context::Context;
use super::error::OllamaError;
use super::options::Aliases;
use super::turns::with_images;
use crate::app::App;
use crate::body::JsonBody;
use crate::continuation::Continuation;
use crate::error::{ApiError, ApiResult};
use crate::fields;
use crate::guard::{Caller, Client};
use crate::infill;
use crate::pieces::{AnswerStyle, PieceReader};
use crate::prompts::{Prompts, TextFields, encode};
use crate::tools::ToolUse;
use crate::values::{Whole, numbers};

/// A request for a completion of a text, without the fields of [`How`].
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct GenerateRequest {
    /// The model's name, as in `/api/tags`. The default is the first model.
    #[serde(default, deserialize_with = "super::named")]
    model: Option<String>,
    /// The text of the user. Without it, the model is loaded.
    prompt: Option<String>,
    /// The system prompt.
    system: Option<String>,
    /// The text after the completion, for models with tokens for filling in the middle.
    suffix: Option<String>,
    /// Whether the text is continued as it is, without the chat template.
    raw: Option<bool>,
    /// Pictures in base64, for models that read them.
    images: Option<Vec<String>>,
    /// The `context` of the answer before, to continue its conversation.
    #[schema(value_type = Option<Vec<u32>>)]
    context: Option<Vec<Whole<u32>>>,
}

/// The body of a request for a completion of a text.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct OllamaGenerateBody {
    #[serde(flatten)]
    _generate: GenerateRequest,
    #[serde(flatten)]
    _how: How,
    #[serde(flatten)]
    _aliases: Aliases,
}

/// Generates a completion of a text.
#[utoipa::path(
    post, path = "/api/generate", tag = "ollama", request_body = OllamaGenerateBody,
    responses(
        (status = 200, description = "The completion; lines of JSON with parts of it unless `stream` is false",
         content((Line = "application/json"), (Line = "application/x-ndjson"))),
        (status = 400, body = OllamaError), (status = 404, body = OllamaError), (status = 429, body = OllamaError),
    )
)]
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Response> {
    let began = Instant::now();
    let body = body.checked(&fields::OLLAMA_GENERATE)?;
    let (request, how): (GenerateRequest, How) = (body.parse()?, body.parse()?);
    let settings = how.read(&app, body.parse()?)?;
    let GenerateRequest { model, system, .. } = request;
    let system = system.filter(|text| !text.is_empty());
    let mut context = Context::read(&numbers(request.context.unwrap_or_default()))?;
    let Some(prompt) = request.prompt.filter(|text| !text.is_empty()) else {
        return settings.load(&app, model.as_deref(), Shape::Generate).await;
    };
    let images = request.images.unwrap_or_default();
    let suffix = request.suffix.filter(|text| !text.is_empty());
    if request.raw.unwrap_or(false) || suffix.is_some() {
        if !context.is_empty() {
            let message = "a prompt with raw or suffix is continued as it is, without a conversation before it";
            return Err(ApiError::field("context", message));
        }
        if system.is_some() {
            let message =
                "a prompt with raw or suffix is continued as it is, without a system prompt";
            return Err(ApiError::field("system", message));
        }
        if !images.is_empty() {
            let message =
                "a prompt with raw or suffix is continued as it is, without places for pictures";
            return Err(ApiError::field("images", message));
        }
        settings.check_plain()?;
        let text = Text { prompt, suffix };
        return continued(&app, client, (model, text), (settings, began)).await;
    }
    context.ask(system, &prompt);
    let mut messages = context.messages()?;
    let has_images = !images.is_empty();
    if let Some(last) = messages.last_mut().filter(|_| has_images) {
        last["content"] = with_images("", prompt, images)?;
    }
    let asked = Asked {
        model,
        messages,
        tools: ToolUse::default(),
        began,
        shape: Shape::Generate,
        // It would not have the pictures.
        context: (!has_images).then_some(context),
    };
    settings.converse(&app, client, asked).await
}

/// A text to continue without the chat template.
struct Text {
    prompt: String,
    /// The text after the completion.
    suffix: Option<String>,
}

/// Continues a text without the chat template.
async fn continued(
    app: &App,
    client: Caller,
    (model, text): (Option<String>, Text),
    (settings, began): (Settings, Instant),
) -> ApiResult<Response> {
    let mut sampling = settings.sampling;
    if text.suffix.is_some() {
        infill::set_defaults(&mut sampling);
    }
    let model = app.model(model.as_deref()).await?;
    let loading = began.elapsed();
    app.keep(&model, settings.keep_alive);
    let options = sampling.options(&model, settings.max_tokens, settings.log_probabilities);
    let mut options = options.map_err(of_options)?;
    let place = model.enter(client.address)?;
    let prompt = match text.suffix {
        Some(suffix) => {
            let tokens = infill::tokens(&model, "suffix")?;
            infill::end_at(&mut options, &tokens);
            let gap = Gap {
                prefix: text.prompt,
                suffix,
                ..Gap::default()
            };
            infill::encode((&model, &place), tokens, gap).await?.tokens
        }
        None => {
            let text = ("prompt", Prompts::Text(text.prompt));
            let options = TextFields::default().options(&model);
            let mut prompts = encode((&model, &place), text, options).await?;
            prompts.pop().unwrap_or_default()
        }
    };
    let continuation = Continuation {
        model,
        place,
        prompt,
        options,
        adapters: Adapters::default(),
        form: settings.form,
        choices: 1,
    };
    let (reply, answers) = continuation.begin(app, client).await?;
    let reader = PieceReader::new(AnswerStyle::default(), "call_");
    let times = (began, loading);
    let wants_tokens = settings.log_probabilities.is_some();
    let answer = Answer::new(Shape::Generate, (reply, reader), times, wants_tokens);
    answer.respond(answers, settings.streams).await
}
