//! `/predict`: classes of texts, or of pairs of texts, in the form of text-embeddings-inference.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use triad_engine::{Cancel, EncoderText};
use triad_frontend::reranking::{self, ScoreActivation};
use utoipa::ToSchema;

use crate::app::App;
use crate::body::JsonBody;
use crate::encoding;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::guard::Client;
use crate::prepare::Work;
use crate::served::ServedModel;

/// Maximum number of texts or pairs per request.
const MAX_INPUTS: usize = 1024;
/// Maximum number of scores of all texts of a request.
const MAX_SCORES: usize = 1 << 20;
/// The name of the class of a classifier with one output.
const ONE_CLASS: &str = "LABEL_0";

/// A request for classes of texts.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct PredictRequest {
    /// The model's name, as in `/v1/models`. The default is the first model. An extension.
    model: Option<String>,
    inputs: Inputs,
    /// Whether scores are the classifier's outputs. Otherwise they are the softmax of all classes, or what the model states;
    /// the default of one class is the sigmoid.
    raw_scores: Option<bool>,
    /// Whether names of control tokens in a text become these tokens. The default is true, unless the server was started
    /// with `--keep-letters`. An extension.
    parse_special: Option<bool>,
}

/// One text or pair, or several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a text, an array of one or two texts, or an array of such arrays"
)]
enum Inputs {
    Text(String),
    One(Vec<String>),
    Several(Vec<Vec<String>>),
}

/// The classes of one input, or of each of several.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Prediction {
    One(Vec<Class>),
    Several(Vec<Vec<Class>>),
}

/// A class, the best first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Class {
    /// The higher, the more the text is of this class.
    score: f64,
    /// The name of the class in the model's files.
    label: String,
}

impl Inputs {
    /// Returns each text, with the second one of a pair, and whether they are several.
    fn texts(self) -> ApiResult<(Vec<[Option<String>; 2]>, bool)> {
        let (inputs, is_list) = match self {
            Self::Text(text) => (vec![vec![text]], false),
            Self::One(texts) => (vec![texts], false),
            Self::Several(inputs) => (inputs, true),
        };
        if inputs.is_empty() || inputs.len() > MAX_INPUTS {
            let message = format!("{} texts, expected 1 to {MAX_INPUTS}", inputs.len());
            return Err(ApiError::field("inputs", message));
        }
        let of = |texts: Vec<String>| {
            let count = texts.len();
            let mut texts = texts.into_iter();
            match count {
                1 | 2 => Ok([texts.next(), texts.next()]),
                count => Err(ApiError::field(
                    "inputs",
                    format!("an array of {count} texts, expected one or two"),
                )),
            }
        };
        let texts = inputs.into_iter().map(of).collect::<ApiResult<_>>()?;
        Ok((texts, is_list))
    }
}

/// Returns the classes of texts.
#[utoipa::path(
    post, path = "/predict", tag = "text", request_body = PredictRequest,
    responses(
        (status = 200, body = Prediction), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)
    )
)]
pub(crate) async fn predict(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Prediction>> {
    let body = body.checked(&fields::PREDICT)?;
    let request: PredictRequest = body.parse()?;
    let (texts, is_list) = request.inputs.texts()?;
    let model = app.model(request.model.as_deref()).await?;
    let classifier = model.model().description().classifier();
    let Some(classifier) = classifier.filter(|it| !it.of_words) else {
        let reason = match classifier {
            Some(_) => "it ranks documents: ask for a reranking",
            None => "it has no classifier",
        };
        let message = format!("this model classifies no texts: {reason}");
        return Err(ApiError::unsupported("model", message));
    };
    if let Some(part) = reranking::unsupported_texts(model.model()) {
        let message = format!("this model classifies no texts here: {part}");
        return Err(ApiError::unsupported("model", message));
    }
    let (labels, is_regression) = (classifier.labels.clone(), classifier.is_regression);
    let outputs = texts.len().saturating_mul(labels.len());
    if outputs > MAX_SCORES {
        let message = format!("{outputs} scores of all texts, expected at most {MAX_SCORES}");
        return Err(ApiError::field("inputs", message));
    }
    let place = model.enter_to_encode(client.address)?;
    let parses = encoding::parses_special(&model, request.parse_special);
    let size = |texts: &[Option<String>; 2]| texts.iter().flatten().map(String::len).sum();
    let size = texts.iter().map(size).max().unwrap_or(0);
    let work = move |model: &ServedModel, cancel: &Cancel| {
        let within = (parses, model.context());
        let tokens = |[text, second]: &[Option<String>; 2]| {
            let of = (text.as_deref().unwrap_or_default(), second.as_deref());
            reranking::classified(model.model(), of, within, cancel)
                .map_err(|error| ApiError::from(error).with_param("inputs"))
        };
        texts.iter().map(tokens).collect::<ApiResult<Vec<_>>>()
    };
    let prepared = model
        .preparers()
        .prepare((&model, &place), Work::Text(size), work);
    let texts: Vec<EncoderText> = prepared.await?;
    let lengths: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
    let outputs = encoding::compute(
        (&model, place),
        ("inputs", &lengths),
        move |engine, most_pages, cancel| reranking::scores(engine, &texts, most_pages, cancel),
    );
    let outputs = outputs.await?;
    let activation = match request.raw_scores.unwrap_or(false) || is_regression {
        true => ScoreActivation::Identity,
        false => reranking::activation(model.model()),
    };
    let width = model.model().description().vector_width().max(1);
    let classes = |outputs: &[f32]| {
        let scores = activation.apply(outputs).into_iter().enumerate();
        let class = |(index, score): (usize, f64)| {
            let label = labels.get(index).map_or(ONE_CLASS, String::as_str);
            let label = label.to_owned();
            Class { score, label }
        };
        let mut classes: Vec<_> = scores.map(class).collect();
        // Equal scores stay in the order of the classes.
        classes.sort_by(|one, other| other.score.total_cmp(&one.score));
        classes
    };
    let mut predictions = outputs.chunks_exact(width).map(classes);
    Ok(Json(match is_list {
        true => Prediction::Several(predictions.collect()),
        false => Prediction::One(predictions.next().unwrap_or_default()),
    }))
}
