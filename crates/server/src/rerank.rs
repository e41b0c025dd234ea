//! `/rerank`: scores of documents for a query, by a model that reads both together.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use triad_engine::{Cancel, EncoderText};
use triad_frontend::reranking::{self, Part, ScoreActivation};
use utoipa::ToSchema;

use crate::app::App;
use crate::body::JsonBody;
use crate::encoding;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::guard::{Caller, Client};
use crate::prepare::Work;
use crate::sampling::one_of;
use crate::served::ServedModel;
use crate::values::{TextOrObject, whole};

/// The paths of this endpoint, all of which clients use.
pub(crate) const PATHS: [&str; 4] = ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"];
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
    #[serde(default, deserialize_with = "whole")]
    top_n: Option<usize>,
    /// Alias of `top_n`.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "whole")]
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
    /// The task, for models whose prompt has a place for it, such as Qwen3-Reranker. The default is that of the model's
    /// files, or of its prompt.
    instruction: Option<String>,
    /// Whether names of control tokens in a text become these tokens. The default is true, unless the server was started
    /// with `--keep-letters`.
    parse_special: Option<bool>,
}

/// A document.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOrObject<DocumentText>")]
enum Document {
    Text(String),
    Object(DocumentText),
}

impl From<TextOrObject<DocumentText>> for Document {
    fn from(given: TextOrObject<DocumentText>) -> Self {
        match given {
            TextOrObject::Text(text) => Self::Text(text),
            TextOrObject::Object(text) => Self::Object(text),
        }
    }
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
    let body = body.checked(&fields::RERANK)?;
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
    if request.instruction.is_some() && !reranking::reads_instructions(model.model()) {
        let message = "this model's prompt has no place for one";
        return Err(ApiError::unsupported("instruction", message));
    }
    let texts = Texts {
        query: request.query,
        documents: documents.into_iter().map(Document::text).collect(),
        instruction: request.instruction,
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
        score: activation.apply(&scores[index..=index])[0],
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
    instruction: Option<String>,
}

/// Returns the texts, the score of each document, and the number of tokens of all pairs.
async fn scores(
    model: &Arc<ServedModel>,
    client: Caller,
    (field, texts): (&'static str, Texts),
    parses: Option<bool>,
) -> ApiResult<(Texts, Vec<f32>, usize)> {
    let place = model.enter_to_encode(client.address)?;
    let parses = encoding::parses_special(model, parses);
    let longest = texts.documents.iter().map(String::len).max().unwrap_or(0);
    let size = texts.query.len() + longest;
    let work = move |model: &ServedModel, cancel: &Cancel| {
        let of = reranking::Texts {
            query: &texts.query,
            documents: &texts.documents,
            instruction: texts.instruction.as_deref(),
        };
        let within = (parses, model.context());
        let pairs = reranking::pairs(model.model(), model.name(), &of, within, cancel);
        let pairs = pairs.map_err(|(part, error)| {
            let field = match part {
                Part::Query => "query",
                Part::Documents => field,
                Part::Instruction => "instruction",
            };
            ApiError::from(error).with_param(field)
        })?;
        Ok((texts, pairs))
    };
    let prepared = model
        .preparers()
        .prepare((model, &place), Work::Text(size), work);
    let (texts, pairs): (Texts, Vec<EncoderText>) = prepared.await?;
    let lengths: Vec<usize> = pairs.iter().map(|pair| pair.tokens.len()).collect();
    let scores = encoding::compute(
        (model, place),
        (field, &lengths),
        move |engine, most_pages, cancel| reranking::scores(engine, &pairs, most_pages, cancel),
    );
    Ok((texts, scores.await?, lengths.iter().sum()))
}
