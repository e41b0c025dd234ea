//! `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use triad_frontend::embedding;
use triad_frontend::infill::InfillTokens;
use triad_frontend::reasoning::Reasoning;
use utoipa::ToSchema;

use super::error::OllamaError;
use super::time::rfc3339;
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult};
use crate::fields;
use crate::hosted::HostedModel;
use crate::served::ServedModel;
use crate::slots::Offered;

/// The version of Ollama whose API this server follows. Clients compare it with the version of features.
const VERSION: &str = "0.12.11";
/// The remaining time of a model that stays in memory: clients show a date.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The models of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tags {
    models: Vec<Tag>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
struct Tag {
    /// The model's name in requests.
    name: String,
    /// The same name.
    model: String,
    /// The time of the last change of the model's file.
    modified_at: String,
    /// Bytes of the model's file; of a model in memory, the bytes that it takes.
    size: u64,
    /// A hash of the name, size and time of the model's file, by which clients tell models apart. It is no hash of the
    /// contents.
    digest: String,
    details: Details,
    /// Whether `/api/delete` deletes the model. An extension.
    deletable: bool,
}

#[derive(Debug, Serialize, ToSchema)]
struct Details {
    /// Always empty.
    parent_model: &'static str,
    /// `gguf`, `safetensors` or `triad`.
    format: String,
    /// The model family, such as `llama` or `qwen2`.
    family: String,
    families: Vec<String>,
    /// The number of parameters, such as `135M`.
    parameter_size: String,
    /// The number format of the weights, or `unknown`.
    quantization_level: String,
}

/// The models in memory.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Running {
    models: Vec<RunningModel>,
}

#[derive(Debug, Serialize, ToSchema)]
struct RunningModel {
    #[serde(flatten)]
    tag: Tag,
    /// The time at which the model leaves the memory if it is not used.
    expires_at: String,
    /// Always 0.
    size_vram: u64,
    /// Maximum number of tokens of a prompt with its completion.
    context_length: usize,
}

/// The version of the API.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Version {
    /// The version of Ollama whose API this server follows.
    version: &'static str,
    /// Triad's own version.
    triad: &'static str,
}

/// Returns the time of the last change of the model's file.
fn modified_at(model: &HostedModel) -> String {
    rfc3339(model.facts.modified.unwrap_or(SystemTime::UNIX_EPOCH))
}

fn tag(model: &HostedModel, size: u64, deletable: bool) -> Tag {
    let facts = &model.facts;
    let modified_at = modified_at(model);
    let identity = format!("{}\n{}\n{modified_at}", model.name, facts.file_bytes);
    let digest = Sha256::digest(identity.as_bytes());
    Tag {
        name: model.name.clone(),
        model: model.name.clone(),
        modified_at,
        size,
        digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        details: details(model),
        deletable,
    }
}

/// Returns whether `/api/delete` deletes a model, unless a request uses it then.
fn is_deletable(app: &App, model: &Offered) -> bool {
    let library = app.options.library.as_ref();
    let may_change = library.is_some_and(|it| it.check_change(&model.hosted.name).is_ok());
    may_change && !model.is_given
}

fn details(model: &HostedModel) -> Details {
    let facts = &model.facts;
    let quantization = Some(&facts.quantization).filter(|text| !text.is_empty());
    Details {
        parent_model: "",
        format: facts.format.clone(),
        family: facts.family.clone(),
        families: vec![facts.family.clone()],
        parameter_size: parameter_size(facts.parameters),
        quantization_level: quantization.map_or_else(|| "unknown".into(), String::clone),
    }
}

/// Returns a number of parameters as Ollama writes it, such as `135M` or `7.2B`.
fn parameter_size(count: u64) -> String {
    let units = [(1e9, "B"), (1e6, "M"), (1e3, "K")];
    let unit = units.iter().find(|(unit, _)| count as f64 >= *unit);
    match unit {
        Some((unit, name)) => {
            let rounded = format!("{:.2}", count as f64 / unit);
            let rounded = rounded.trim_end_matches('0').trim_end_matches('.');
            format!("{rounded}{name}")
        }
        None => count.to_string(),
    }
}

/// Lists the models of the server under all of their names.
#[utoipa::path(get, path = "/api/tags", tag = "ollama", responses((status = 200, body = Tags)))]
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Json<Tags> {
    let of_model = |model: &Offered| {
        let (hosted, deletable) = (&model.hosted, is_deletable(&app, model));
        let named = |name: &str| Tag {
            name: name.to_owned(),
            model: name.to_owned(),
            ..tag(hosted, hosted.facts.file_bytes, deletable)
        };
        hosted.names().map(named).collect::<Vec<_>>()
    };
    let offered = app.registry().offered();
    let usable = offered.iter().filter(|model| model.is_usable());
    Json(Tags {
        models: usable.flat_map(of_model).collect(),
    })
}

/// Lists the models in memory.
#[utoipa::path(get, path = "/api/ps", tag = "ollama", responses((status = 200, body = Running)))]
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Json<Running> {
    let running = |model: &Offered| {
        let rest = model.rest.unwrap_or(FOREVER).min(FOREVER);
        Some(RunningModel {
            context_length: model.context?,
            tag: tag(&model.hosted, model.hosted.bytes, is_deletable(&app, model)),
            expires_at: rfc3339(SystemTime::now() + rest),
            size_vram: 0,
        })
    };
    Json(Running {
        models: app
            .registry()
            .offered()
            .iter()
            .filter_map(running)
            .collect(),
    })
}

/// Returns the version of the API.
#[utoipa::path(get, path = "/api/version", tag = "ollama", responses((status = 200, body = Version)))]
pub(crate) async fn version() -> Json<Version> {
    Json(Version {
        version: VERSION,
        triad: env!("CARGO_PKG_VERSION"),
    })
}

/// A request for the description of a model.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ShowRequest {
    /// The model's name. The default is the first model.
    #[serde(default, deserialize_with = "super::named")]
    model: Option<String>,
    /// Alias of `model`.
    #[serde(default, deserialize_with = "super::named")]
    name: Option<String>,
}

/// The description of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Shown {
    modelfile: String,
    /// The default sampling options, one in each line.
    parameters: String,
    /// The model's chat template, in Jinja.
    template: String,
    details: Details,
    #[schema(value_type = Object)]
    model_info: Map<String, Value>,
    /// Some of `completion`, `tools`, `vision`, `thinking` and `insert`; or `embedding`, of an encoder.
    capabilities: Vec<&'static str>,
    modified_at: String,
}

/// Describes a model. Loads it if it is not in memory.
#[utoipa::path(
    post, path = "/api/show", tag = "ollama", request_body = ShowRequest,
    responses((status = 200, body = Shown), (status = 400, body = OllamaError), (status = 404, body = OllamaError))
)]
pub(crate) async fn show(State(app): State<Arc<App>>, body: JsonBody) -> ApiResult<Json<Shown>> {
    let body = body.checked(&fields::OLLAMA_SHOW)?;
    let ShowRequest { model, name } = body.parse()?;
    let name = crate::sampling::one_of(("name", name), ("model", model))?;
    let model = app.model(name.as_deref()).await?;
    let mut offered = app.registry().offered().into_iter();
    let offered = offered.find(|offered| offered.hosted.name == model.name());
    let Offered { hosted, .. } =
        offered.ok_or_else(|| ApiError::unavailable("the model was deleted during the request"))?;
    let template = model.model().chat_template();
    let template = template.map(|template| template.source().to_owned());
    Ok(Json(Shown {
        modelfile: format!("FROM {}\n", model.name()),
        parameters: parameters(&model),
        details: details(&hosted),
        model_info: model_info(&model),
        capabilities: capabilities(&model, template.as_deref())?,
        template: template.unwrap_or_default(),
        modified_at: modified_at(&hosted),
    }))
}

fn capabilities(model: &ServedModel, template: Option<&str>) -> ApiResult<Vec<&'static str>> {
    if model.model().check_writes().is_err() {
        let has_vectors = embedding::unsupported(model.model()).is_none();
        return Ok(match has_vectors {
            true => vec!["embedding"],
            false => Vec::new(),
        });
    }
    let mut capabilities = vec!["completion"];
    if template.is_some() {
        capabilities.push("tools");
    }
    if model.reads_pictures() {
        capabilities.push("vision");
    }
    // Files of a model for vectors say how to pool.
    if model.model().embedding_defaults().pooling.is_some() {
        capabilities.push("embedding");
    }
    if Reasoning::of_model(template, model.model().tokenizer()?).is_some() {
        capabilities.push("thinking");
    }
    if InfillTokens::find(model.model().tokenizer()?).is_some() {
        capabilities.push("insert");
    }
    Ok(capabilities)
}

fn parameters(model: &ServedModel) -> String {
    let sampling = model.sampling(None);
    let lines = [
        ("temperature", sampling.temperature.to_string()),
        ("top_k", sampling.top_k.to_string()),
        ("top_p", sampling.top_p.to_string()),
        ("min_p", sampling.min_p.to_string()),
        ("repeat_penalty", sampling.repetition_penalty.to_string()),
        ("num_ctx", model.context().to_string()),
    ];
    let lines = lines.map(|(name, value)| format!("{name:<30} {value}"));
    lines.join("\n")
}

fn model_info(model: &ServedModel) -> Map<String, Value> {
    let description = model.model().description();
    let family = &description.family;
    let of_family = |name: &str| format!("{family}.{name}");
    Map::from_iter([
        ("general.architecture".into(), json!(family)),
        (
            "general.parameter_count".into(),
            json!(description.parameters()),
        ),
        (of_family("context_length"), json!(model.context())),
        (
            of_family("embedding_length"),
            json!(description.vector_width()),
        ),
        (of_family("block_count"), json!(description.blocks.len())),
        (of_family("vocab_size"), json!(description.vocab)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_parameters_have_a_unit() {
        for (count, text) in [
            (7, "7"),
            (1_000, "1K"),
            (134_515_008, "134.52M"),
            (7_000_000_000, "7B"),
            (7_240_000_000, "7.24B"),
        ] {
            assert_eq!(parameter_size(count), text);
        }
    }
}
