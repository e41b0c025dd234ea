//! `/v1/embeddings`: one vector per text, pooled from the hidden states of a model.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use triad_frontend::embedding::Pooling;
use utoipa::ToSchema;

use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::guard::{Caller, Client};
use crate::prompts::{Prompts, TextFields};
use crate::sampling::one_of;
use crate::served::ServedModel;
use crate::values::whole;
use crate::vectors::VectorRequest;

/// A request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// A string, an array of token ids, or an array of either.
    input: Option<Prompts>,
    /// Alias of `input`, as in llama.cpp's server.
    content: Option<Prompts>,
    encoding_format: Option<EncodingFormat>,
    /// The method that reduces the hidden states of a text to one vector. The default is what the model's authors state,
    /// else the mean. An extension.
    pooling: Option<PoolingField>,
    /// The name of a text that is put before each input, as the model's files state it, such as `query`. An extension.
    prompt_name: Option<String>,
    /// The number of leading components of each vector. The default is all.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "whole")]
    dimensions: Option<usize>,
    /// Whether vectors have length 1. The default is true.
    normalize: Option<bool>,
    /// Alias of `normalize`, as in vLLM's server.
    use_activation: Option<bool>,
    /// Alias of `normalize`, as in llama.cpp's server: 2 is true, and -1 is false.
    #[serde(default, deserialize_with = "whole")]
    embd_normalize: Option<i64>,
}

/// The body of a request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingBody {
    #[serde(flatten)]
    _embedding: EmbeddingRequest,
    #[serde(flatten)]
    _text: TextFields,
}

/// The encoding of a vector.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    /// An array of numbers.
    #[default]
    Float,
    /// The numbers as little-endian f32, in base64.
    Base64,
}

/// The method that reduces hidden states to one vector.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum PoolingField {
    /// The mean over all tokens.
    Mean,
    /// The state of the last token.
    Last,
    /// The state of the first token.
    First,
}

impl From<PoolingField> for Pooling {
    fn from(pooling: PoolingField) -> Self {
        match pooling {
            PoolingField::Mean => Self::Mean,
            PoolingField::Last => Self::Last,
            PoolingField::First => Self::First,
        }
    }
}

/// Embeddings, in the order of the inputs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Embeddings {
    /// Always `list`.
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, ToSchema)]
struct Embedding {
    /// Always `embedding`.
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, ToSchema)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Computes embeddings of texts.
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "text", request_body = EmbeddingBody,
    responses(
        (status = 200, body = Embeddings), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Embeddings>> {
    let body = body.checked(&fields::EMBEDDINGS)?;
    let request: EmbeddingRequest = body.parse()?;
    let format = request.encoding_format.unwrap_or_default();
    let (model, (vectors, tokens)) = vectors(&app, client, request, body.parse()?).await?;
    let embedding = |(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: written(vector, format),
    };
    let data = vectors.into_iter().enumerate().map(embedding).collect();
    let usage = EmbeddingUsage {
        prompt_tokens: tokens,
        total_tokens: tokens,
    };
    Ok(Json(Embeddings {
        object: "list",
        data,
        model: model.name().to_owned(),
        usage,
    }))
}

/// A vector in the form of llama.cpp's server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PlainEmbedding {
    index: usize,
    /// The vector, which is the only one of its text.
    embedding: [Vec<f32>; 1],
}

/// Computes embeddings of texts, in the form of llama.cpp's server.
#[utoipa::path(
    post, path = "/embedding", tag = "text", request_body = EmbeddingBody,
    responses(
        (status = 200, body = Vec<PlainEmbedding>), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 429, body = ErrorBody)
    )
)]
pub(crate) async fn plain(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Vec<PlainEmbedding>>> {
    let body = body.checked(&fields::EMBEDDINGS)?;
    let request: EmbeddingRequest = body.parse()?;
    if matches!(request.encoding_format, Some(EncodingFormat::Base64)) {
        let message = "expected float, or /v1/embeddings";
        return Err(ApiError::unsupported("encoding_format", message));
    }
    let (_, (vectors, _)) = vectors(&app, client, request, body.parse()?).await?;
    let embedding = |(index, vector)| PlainEmbedding {
        index,
        embedding: [vector],
    };
    Ok(Json(
        vectors.into_iter().enumerate().map(embedding).collect(),
    ))
}

/// A request for vectors in the form of text-embeddings-inference.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbedRequest {
    /// The model's name, as in `/v1/models`. The default is the first model. An extension.
    model: Option<String>,
    /// A string, or an array of strings or of arrays of token ids.
    inputs: Prompts,
    /// Whether vectors have length 1. The default is true.
    normalize: Option<bool>,
    /// Whether texts that are too long are cut at their end. The default is false: they are refused.
    truncate: Option<bool>,
    /// The name of a text that is put before each input, as the model's files state it, such as `query`.
    prompt_name: Option<String>,
    /// The number of leading components of each vector. The default is all.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "whole")]
    dimensions: Option<usize>,
}

/// Computes vectors of texts, in the form of text-embeddings-inference.
#[utoipa::path(
    post, path = "/embed", tag = "text", request_body = EmbedRequest,
    responses(
        (status = 200, body = Vec<Vec<f32>>), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)
    )
)]
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Vec<Vec<f32>>>> {
    let body = body.checked(&fields::EMBED)?;
    let request: EmbedRequest = body.parse()?;
    let wanted = VectorRequest {
        field: "inputs",
        input: request.inputs,
        text: TextFields::default(),
        pooling: None,
        prompt_name: request.prompt_name,
        dimensions: request.dimensions,
        normalizes: request.normalize.unwrap_or(true),
        truncates: request.truncate.unwrap_or(false),
    };
    wanted.check()?;
    let model = app.model(request.model.as_deref()).await?;
    Ok(Json(wanted.compute(&model, client).await?.0))
}

/// Returns the model, the vectors that the request asks for, and the number of tokens of all inputs.
async fn vectors(
    app: &App,
    client: Caller,
    request: EmbeddingRequest,
    text: TextFields,
) -> ApiResult<(Arc<ServedModel>, (Vec<Vec<f32>>, usize))> {
    let (field, input) = match (request.input, request.content) {
        (Some(input), None) => ("input", input),
        (None, Some(content)) => ("content", content),
        _ => return Err(ApiError::field("input", "expected either this or content")),
    };
    let is_scaled = match request.embd_normalize {
        None => None,
        Some(2) => Some(true),
        Some(-1) => Some(false),
        Some(other) => {
            let message = format!("{other}, expected 2 for vectors of length 1, or -1");
            return Err(ApiError::unsupported("embd_normalize", message));
        }
    };
    let normalize = one_of(
        ("use_activation", request.use_activation),
        ("normalize", request.normalize),
    )?;
    let normalizes = one_of(("embd_normalize", is_scaled), ("normalize", normalize))?;
    let wanted = VectorRequest {
        field,
        input,
        text,
        pooling: request.pooling.map(Pooling::from),
        prompt_name: request.prompt_name,
        dimensions: request.dimensions,
        normalizes: normalizes.unwrap_or(true),
        truncates: false,
    };
    wanted.check()?;
    let model = app.model(request.model.as_deref()).await?;
    let computed = wanted.compute(&model, client).await?;
    Ok((model, computed))
}

fn written(vector: Vec<f32>, format: EncodingFormat) -> Vector {
    match format {
        EncodingFormat::Float => Vector::Numbers(vector),
        EncodingFormat::Base64 => {
            let bytes: Vec<_> = vector
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            Vector::Base64(STANDARD.encode(bytes))
        }
    }
}
