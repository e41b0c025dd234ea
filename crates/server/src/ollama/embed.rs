//! `/api/embed` and the older `/api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::OllamaError;
use super::keep_alive::KeepAlive;
use super::time::nanoseconds;
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult};
use crate::fields;
use crate::guard::Client;
use crate::prompts::{Prompts, TextFields};
use crate::values::whole;
use crate::vectors::VectorRequest;

/// A request for vectors of texts.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbedRequest {
    /// The model's name, as in `/api/tags`. The default is the first model.
    #[serde(default, deserialize_with = "super::named")]
    model: Option<String>,
    /// A text or an array of texts. Without it, or with an empty text, the model is loaded, and there are no vectors.
    input: Option<Prompts>,
    /// Whether a text that is too long is cut at its end. Otherwise it is refused. The default is true.
    truncate: Option<bool>,
    /// The number of leading components of each vector. The default is all.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "whole")]
    dimensions: Option<usize>,
    keep_alive: Option<KeepAlive>,
}

/// Vectors of length 1, in the order of the inputs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Embedded {
    model: String,
    embeddings: Vec<Vec<f32>>,
    /// Nanoseconds.
    total_duration: u64,
    /// Nanoseconds until the model was in memory.
    load_duration: u64,
    prompt_eval_count: usize,
}

/// Computes vectors of texts.
#[utoipa::path(
    post, path = "/api/embed", tag = "ollama", request_body = EmbedRequest,
    responses(
        (status = 200, body = Embedded), (status = 400, body = OllamaError), (status = 404, body = OllamaError),
        (status = 429, body = OllamaError)
    )
)]
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Embedded>> {
    let began = Instant::now();
    let body = body.checked(&fields::OLLAMA_EMBED)?;
    let request: EmbedRequest = body.parse()?;
    let input = request.input.unwrap_or(Prompts::Tokens(Vec::new()));
    let wanted = VectorRequest {
        dimensions: request.dimensions,
        truncates: request.truncate.unwrap_or(true),
        ..wanted("input", input)
    };
    let is_empty = match &wanted.input {
        Prompts::Text(text) => text.is_empty(),
        Prompts::Tokens(tokens) => tokens.is_empty(),
        Prompts::Texts(_) | Prompts::TokenLists(_) => false,
    };
    if is_empty {
        wanted.check_dimensions()?;
    } else {
        wanted.check()?;
    }
    let keep = request.keep_alive.as_ref().map(KeepAlive::read);
    let keep = keep.transpose()?;
    let model = app.model(request.model.as_deref()).await?;
    let load_duration = nanoseconds(began.elapsed());
    app.keep(&model, keep);
    // As in Ollama, no texts have no vectors.
    let (embeddings, prompt_eval_count) = match is_empty {
        true => (Vec::new(), 0),
        false => wanted.compute(&model, client).await?,
    };
    Ok(Json(Embedded {
        model: model.name().to_owned(),
        embeddings,
        total_duration: nanoseconds(began.elapsed()),
        load_duration,
        prompt_eval_count,
    }))
}

/// A request for the vector of a text.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingsRequest {
    /// The model's name, as in `/api/tags`. The default is the first model.
    #[serde(default, deserialize_with = "super::named")]
    model: Option<String>,
    /// The text. Without it, the model is loaded, and the vector has no components.
    prompt: Option<String>,
    keep_alive: Option<KeepAlive>,
}

/// A vector, which is not scaled to length 1.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddedText {
    embedding: Vec<f32>,
}

/// Computes the vector of a text. It is not scaled to length 1, as in Ollama.
#[utoipa::path(
    post, path = "/api/embeddings", tag = "ollama", request_body = EmbeddingsRequest,
    responses(
        (status = 200, body = EmbeddedText), (status = 400, body = OllamaError), (status = 404, body = OllamaError),
        (status = 429, body = OllamaError)
    )
)]
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<EmbeddedText>> {
    let body = body.checked(&fields::OLLAMA_EMBEDDINGS)?;
    let request: EmbeddingsRequest = body.parse()?;
    let prompt = request.prompt.unwrap_or_default();
    let is_empty = prompt.is_empty();
    let wanted = VectorRequest {
        normalizes: false,
        truncates: true,
        ..wanted("prompt", Prompts::Text(prompt))
    };
    let keep = request.keep_alive.as_ref().map(KeepAlive::read);
    let keep = keep.transpose()?;
    let model = app.model(request.model.as_deref()).await?;
    app.keep(&model, keep);
    if is_empty {
        let embedding = Vec::new();
        return Ok(Json(EmbeddedText { embedding }));
    }
    let (mut vectors, _) = wanted.compute(&model, client).await?;
    let embedding = vectors
        .pop()
        .ok_or_else(|| ApiError::internal("there is no vector"))?;
    Ok(Json(EmbeddedText { embedding }))
}

fn wanted(field: &'static str, input: Prompts) -> VectorRequest {
    VectorRequest {
        field,
        input,
        text: TextFields::default(),
        pooling: None,
        prompt_name: None,
        dimensions: None,
        normalizes: true,
        truncates: true,
    }
}
