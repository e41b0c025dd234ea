//! `/rerank`: scores of documents for a query, by a cross-encoder.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use triad_engine::{Cancel, EncoderText};
use triad_frontend::reranking::{self, ScoreActivation};
use triad_model::tokenizer::Special;
use utoipa::ToSchema;

use crate::app::App;
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::guard::{Caller, Client};
use crate::prepare::{CancelOnDrop, Work};
use crate::sampling::one_of;
use crate::served::ServedModel;

/// Maximum number of documents per request.
const MAX_DOCUMENTS: usize = 1024;

/// A request for scores of documents.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RerankRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// The text that the documents are compared with.
    query: String,
    /// The documents.
    #[schema(min_items = 1, max_items = 1024)]
    documents: Option<Vec<Document>>,
    /// The documents of a request whose answer is an array with a `score` for each, as in text-embeddings-inference.
    #[schema(min_items = 1, max_items = 1024)]
    texts: Option<Vec<Document>>,
    /// The number of results. The default is all.
    #[schema(minimum = 1)]
    top_n: Option<usize>,
    /// Alias of `top_n`.
    #[schema(minimum = 1)]
    top_k: Option<usize>,
    /// Whether each result has its document. The default is false.
    return_documents: Option<bool>,
    /// Alias of `return_documents`.
    return_text: Option<bool>,
    /// Whether scores are the classifier's output. Otherwise they are the function of it that the model states; the default
    /// is the sigmoid, from 0 to 1.
    raw_scores: Option<bool>,
    /// The opposite of `raw_scores`.
    use_activation: Option<bool>,
    /// Whether names of control tokens in a text become these tokens. The default is true, unless the server was started
    /// with `--keep-letters`.
    parse_special: Option<bool>,
}

/// A document.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a text, or an object with the field text"
)]
enum Document {
    Text(String),
    Object(DocumentText),
}

/// The text of a document.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DocumentText {
    text: String,
}

impl Document {
    fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Object(DocumentText { text }) => text,
        }
    }
}

/// The answer to a request: that of Jina's API, or that of `texts`, which text-embeddings-inference has.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Answer {
    Ranking(Ranking),
    Texts(Vec<RankedText>),
}

/// The score of one of `texts`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RankedText {
    /// The text's place in the request.
    index: usize,
    /// The higher, the more the text is about the query.
    score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Scores of documents, best first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ranking {
    /// Always `list`.
    object: &'static str,
    model: String,
    results: Vec<Ranked>,
    usage: RerankUsage,
}

/// The score of a document.
#[derive(Debug, Serialize, ToSchema)]
struct Ranked {
    /// The document's place in the request.
    index: usize,
    /// The higher, the more the document is about the query.
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentText>,
}

#[derive(Debug, Serialize, ToSchema)]
struct RerankUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Scores documents for a query.
#[utoipa::path(
    post, path = "/rerank", tag = "text", request_body = RerankRequest,
    responses(
        (status = 200, body = Answer), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)
    )
)]
pub(crate) async fn rerank(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Answer>> {
    rank(app, client, body).await
}

/// Scores documents for a query, as `/rerank` does.
#[utoipa::path(
    post, path = "/v1/rerank", tag = "text", request_body = RerankRequest,
    responses(
        (status = 200, body = Answer), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)
    )
)]
pub(crate) async fn v1_rerank(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Answer>> {
    rank(app, client, body).await
}

/// Scores documents for a query, as `/rerank` does.
#[utoipa::path(
    post, path = "/reranking", tag = "text", request_body = RerankRequest,
    responses(
        (status = 200, body = Answer), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)
    )
)]
pub(crate) async fn reranking(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Answer>> {
    rank(app, client, body).await
}

/// Scores documents for a query, as `/rerank` does.
#[utoipa::path(
    post, path = "/v1/reranking", tag = "text", request_body = RerankRequest,
    responses(
        (status = 200, body = Answer), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)
    )
)]
pub(crate) async fn v1_reranking(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Answer>> {
    rank(app, client, body).await
}

async fn rank(app: Arc<App>, client: Caller, body: JsonBody) -> ApiResult<Json<Answer>> {
    body.check(&fields::RERANK)?;
    let request: RerankRequest = body.parse()?;
    let (field, documents) = match (request.documents, request.texts) {
        (Some(documents), None) => ("documents", documents),
        (None, Some(texts)) => ("texts", texts),
        _ => {
            return Err(ApiError::field(
                "documents",
                "expected either this or texts",
            ));
        }
    };
    if documents.is_empty() || documents.len() > MAX_DOCUMENTS {
        let message = format!(
            "{} documents, expected 1 to {MAX_DOCUMENTS}",
            documents.len()
        );
        return Err(ApiError::field(field, message));
    }
    let top = one_of(("top_k", request.top_k), ("top_n", request.top_n))?;
    if top == Some(0) {
        return Err(ApiError::field("top_n", "0, expected at least 1"));
    }
    let returns = one_of(
        ("return_text", request.return_text),
        ("return_documents", request.return_documents),
    )?;
    let is_raw = one_of(
        ("use_activation", request.use_activation.map(|it| !it)),
        ("raw_scores", request.raw_scores),
    )?;
    let model = app.model(request.model.as_deref()).await?;
    if let Some(reason) = reranking::unsupported(model.model()) {
        let message = format!("this model scores no documents: {reason}");
        return Err(ApiError::unsupported("model", message));
    }
    let documents: Vec<String> = documents.into_iter().map(Document::text).collect();
    let texts = Texts {
        query: request.query,
        documents,
    };
    let (texts, scores, tokens) =
        scores(&model, client, (field, texts), request.parse_special).await?;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // Equal scores stay in the order of the documents.
    order.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]));
    order.truncate(top.unwrap_or(usize::MAX));
    let activation = match is_raw.unwrap_or(false) {
        true => ScoreActivation::Identity,
        false => reranking::activation(model.model()),
    };
    let mut documents: Vec<_> = texts.documents.into_iter().map(Some).collect();
    let returns = returns.unwrap_or(false);
    let result = |index: usize| RankedText {
        index,
        score: activation.apply(f64::from(scores[index])),
        text: documents[index].take().filter(|_| returns),
    };
    let results = order.into_iter().map(result);
    if field == "texts" {
        return Ok(Json(Answer::Texts(results.collect())));
    }
    let result = |RankedText { index, score, text }| Ranked {
        index,
        relevance_score: score,
        document: text.map(|text| DocumentText { text }),
    };
    Ok(Json(Answer::Ranking(Ranking {
        object: "list",
        model: model.name().to_owned(),
        results: results.map(result).collect(),
        usage: RerankUsage {
            prompt_tokens: tokens,
            total_tokens: tokens,
        },
    })))
}

/// The texts of a request.
struct Texts {
    query: String,
    documents: Vec<String>,
}

/// Returns the texts, the score of each document, and the number of tokens of all pairs.
async fn scores(
    model: &Arc<ServedModel>,
    client: Caller,
    (field, texts): (&'static str, Texts),
    parses: Option<bool>,
) -> ApiResult<(Texts, Vec<f32>, usize)> {
    let place = model.enter_to_encode(client.address)?;
    let special = match parses.unwrap_or(!model.keeps_letters()) {
        true => Special::Parsed,
        false => Special::AsText,
    };
    let longest = texts.documents.iter().map(String::len).max().unwrap_or(0);
    let size = texts.query.len() + longest;
    let work = move |model: &ServedModel, cancel: &Cancel| {
        let of = (&*texts.query, &texts.documents[..]);
        let pairs = reranking::pairs(model.model(), of, (special, model.context()), cancel);
        let pairs = pairs.map_err(|error| ApiError::from(error).with_param(field))?;
        Ok((texts, pairs))
    };
    let prepared = model
        .preparers()
        .prepare((model, &place), Work::Text(size), work);
    let (texts, pairs): (Texts, Vec<EncoderText>) = prepared.await?;
    let tokens = pairs.iter().map(|pair| pair.tokens.len()).sum();
    let needs = pairs.iter().map(|pair| {
        let need = model.need(&pair.tokens, Some(0), 1);
        need.map_err(|error| error.with_param(field))
    });
    let needs = needs.collect::<ApiResult<Vec<_>>>()?;
    let Some(most) = needs.into_iter().max_by_key(|need| need.pages) else {
        return Err(ApiError::field(field, "there is none"));
    };
    let permit = place.admit(most).await;
    // Cancels the work if the client disconnects, which drops this future.
    let cancel = CancelOnDrop(Cancel::new());
    let (model, stop) = (Arc::clone(model), cancel.0.clone());
    let scores = blocking(move || {
        let scores = reranking::scores(model.engine(), &pairs, &stop);
        drop(permit);
        scores.map_err(ApiError::from)
    });
    Ok((texts, scores.await?, tokens))
}
