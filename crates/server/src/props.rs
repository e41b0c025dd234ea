//! `/props`: what this server is, and how it was started.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::hosted::Hosted;

/// The server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Props {
    /// Triad's version.
    version: &'static str,
    /// Answers of a model that are computed at once, at most.
    parallel: usize,
    /// Requests that wait, at most.
    queue: usize,
    /// Those in memory.
    models: Vec<ModelProps>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
struct ModelProps {
    id: String,
    /// `llama`, `qwen2`.
    family: String,
    /// Tokens of a prompt and its answer, at most.
    context: usize,
    vocabulary: usize,
    /// Number format of keys and values: `f16`, `int8` or `f32`.
    kv_format: String,
    /// Bytes that keys and values may take.
    kv_bytes: usize,
    /// What computes: `cpu`, `npu`.
    processors: Vec<String>,
    /// Names of LoRA adapters that requests may ask for.
    adapters: Vec<String>,
    /// Whether products are computed in INT8.
    int8: bool,
    chat_template: Option<String>,
    /// What is taken of fields that a request leaves out.
    sampling: SamplingProps,
}

#[derive(Debug, Serialize, ToSchema)]
struct SamplingProps {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
}

impl ModelProps {
    fn new(hosted: &Hosted) -> Self {
        let (model, engine) = (hosted.model(), hosted.engine());
        let sampling = hosted.sampling();
        Self {
            id: hosted.name().to_owned(),
            family: model.description().family.clone(),
            context: hosted.context(),
            vocabulary: model.description().vocab,
            kv_format: format!("{:?}", engine.kv_format()).to_lowercase(),
            kv_bytes: engine.usage().kv.budget,
            processors: engine
                .processors()
                .iter()
                .map(|(_, processor)| processor.name.clone())
                .collect(),
            adapters: hosted
                .adapters()
                .iter()
                .map(|(name, _)| name.clone())
                .collect(),
            int8: model.weights().is_int8(),
            chat_template: model
                .chat_template()
                .map(|template| template.source().to_owned()),
            sampling: SamplingProps {
                temperature: sampling.temperature,
                top_k: sampling.top_k,
                top_p: sampling.top_p,
                min_p: sampling.min_p,
                repetition_penalty: sampling.repetition_penalty,
            },
        }
    }
}

/// What this server is, and how it was started.
#[utoipa::path(get, path = "/props", tag = "server", responses((status = 200, body = Props)))]
pub(crate) async fn props(State(app): State<Arc<App>>) -> Json<Props> {
    let models = app
        .catalog()
        .loaded()
        .iter()
        .map(|model| ModelProps::new(model))
        .collect();
    let (parallel, queue) = (app.options.parallel, app.options.queue);
    Json(Props {
        version: env!("CARGO_PKG_VERSION"),
        parallel,
        queue,
        models,
    })
}
