//! `/v1/embeddings`: one vector per text, pooled from the hidden states of a language model.
//!
//! The hidden states are those after the last norm, which are the input of the output matrix. Their mean over the
//! text's tokens, or the state of the last token, is normalized to length 1. A model that was not trained for
//! embeddings gives vectors of moderate quality.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use triad_engine::Cancel;
use triad_frontend::embedding::embed;
use utoipa::ToSchema;

use crate::app::App;
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::guard::Client;
use crate::prepare::CancelOnDrop;
use crate::prompts::{Prompts, TextFields, encode};

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
    /// The method that reduces the hidden states of a text to one vector. An extension.
    pooling: Option<Pooling>,
    /// The vector's dimension. Any value other than the model's own dimension is refused.
    dimensions: Option<usize>,
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
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Pooling {
    /// The mean over all tokens.
    #[default]
    Mean,
    /// The state of the last token.
    Last,
}

impl From<Pooling> for triad_frontend::embedding::Pooling {
    fn from(pooling: Pooling) -> Self {
        match pooling {
            Pooling::Mean => Self::Mean,
            Pooling::Last => Self::Last,
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
    body.check(&fields::EMBEDDINGS)?;
    let (request, text): (EmbeddingRequest, TextFields) = (body.parse()?, body.parse()?);
    let input = match (request.input, request.content) {
        (Some(input), None) => ("input", input),
        (None, Some(content)) => ("content", content),
        _ => return Err(ApiError::field("input", "expected either this or content")),
    };
    let checked = input.1.check(input.0);
    checked.map_err(|error| error.with_param(input.0))?;
    let model = app.model(request.model.as_deref()).await?;
    let hidden = model.model().description().hidden;
    if request
        .dimensions
        .is_some_and(|dimensions| dimensions != hidden)
    {
        return Err(ApiError::unsupported(
            "dimensions",
            format!("this model's vectors have {hidden}"),
        ));
    }
    let field = input.0;
    let place = model.enter(client.address)?;
    let texts = encode((&model, &place), input, text.reading(&model)).await?;
    let tokens = texts.iter().map(Vec::len).sum();
    let needs = texts.iter().map(|text| {
        model
            .need(text, Some(0), 1)
            .map_err(|error| error.with_param(field))
    });
    let most = needs
        .collect::<ApiResult<Vec<_>>>()?
        .into_iter()
        .max_by_key(|need| need.pages);
    let Some(most) = most else {
        return Err(ApiError::field("input", "there is none"));
    };
    // The texts are computed one after another, with the permit of one completion.
    let permit = place.admit(most).await;
    // Cancels the work if the client disconnects, which drops this future.
    let cancel = CancelOnDrop(Cancel::new());
    let (pooling, format) = (
        request.pooling.unwrap_or_default(),
        request.encoding_format.unwrap_or_default(),
    );
    let work = {
        let (model, cancel) = (Arc::clone(&model), cancel.0.clone());
        move || {
            let vectors = texts
                .iter()
                .map(|text| embed(model.engine().session(), text, pooling.into(), &cancel))
                .collect::<Result<Vec<_>, _>>();
            drop(permit);
            vectors.map_err(ApiError::from)
        }
    };
    let vectors = blocking(work).await?;
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
