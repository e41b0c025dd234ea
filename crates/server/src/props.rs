//! `/props`: properties and options of the server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use triad_model::tokenizer::Tokenizer;
use utoipa::ToSchema;

use crate::app::App;
use crate::served::ServedModel;

/// Properties of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Props {
    /// Triad's version.
    version: &'static str,
    /// Maximum number of concurrent completions per model.
    parallel: usize,
    /// Maximum number of waiting requests per model.
    queue: usize,
    /// Whether clients may fetch and delete models (`--allow-pull`).
    allows_pull: bool,
    /// The models in memory.
    models: Vec<ModelProps>,
    #[serde(flatten)]
    #[schema(inline)]
    first: Option<FirstProps>,
}

/// Properties of the first model in memory, with the names of llama.cpp's server.
#[derive(Debug, Serialize, ToSchema)]
struct FirstProps {
    default_generation_settings: DefaultSettings,
    /// Maximum number of concurrent completions.
    total_slots: usize,
    model_alias: String,
    chat_template: String,
    bos_token: String,
    eos_token: String,
    build_info: &'static str,
    modalities: Modalities,
    /// Always false: the model is in memory.
    is_sleeping: bool,
}

#[derive(Debug, Serialize, ToSchema)]
struct DefaultSettings {
    n_ctx: usize,
    params: DefaultParams,
}

#[derive(Debug, Serialize, ToSchema)]
struct DefaultParams {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repeat_penalty: f32,
    /// No limit.
    n_predict: i64,
}

/// The kinds of input besides text.
#[derive(Debug, Serialize, ToSchema)]
struct Modalities {
    /// Whether requests may have pictures.
    vision: bool,
    /// Always false: no model reads sound.
    audio: bool,
}

impl FirstProps {
    fn new(hosted: &ServedModel, parallel: usize) -> Self {
        let (model, sampling) = (hosted.model(), hosted.sampling(None));
        let tokenizer = model.tokenizer().ok();
        let piece = |token: Option<u32>| {
            let piece = tokenizer.and_then(|it| it.piece(token?));
            piece.unwrap_or_default().to_owned()
        };
        Self {
            default_generation_settings: DefaultSettings {
                n_ctx: hosted.context(),
                params: DefaultParams {
                    temperature: sampling.temperature,
                    top_k: sampling.top_k,
                    top_p: sampling.top_p,
                    min_p: sampling.min_p,
                    repeat_penalty: sampling.repetition_penalty,
                    n_predict: -1,
                },
            },
            total_slots: parallel,
            model_alias: hosted.name().to_owned(),
            chat_template: model
                .chat_template()
                .map(|template| template.source().to_owned())
                .unwrap_or_default(),
            bos_token: piece(tokenizer.and_then(Tokenizer::bos)),
            eos_token: piece(tokenizer.and_then(Tokenizer::eos)),
            build_info: concat!("triad ", env!("CARGO_PKG_VERSION")),
            modalities: Modalities {
                vision: hosted.reads_pictures(),
                audio: false,
            },
            is_sleeping: false,
        }
    }
}

/// Properties of a model.
#[derive(Debug, Serialize, ToSchema)]
struct ModelProps {
    id: String,
    /// The model family, such as `llama` or `qwen2`.
    family: String,
    /// Maximum number of tokens of a prompt with its completion.
    context: usize,
    vocabulary: usize,
    /// The number format of the KV cache: `f16`, `int8` or `f32`.
    kv_format: String,
    /// Memory limit of the KV cache in bytes.
    kv_bytes: usize,
    /// The processors that run the model: `cpu`, `npu`.
    processors: Vec<String>,
    /// The names of LoRA adapters that requests may select.
    adapters: Vec<String>,
    /// Whether matrix products are computed in INT8.
    int8: bool,
    chat_template: Option<String>,
    /// The default sampling options.
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
    fn new(hosted: &ServedModel) -> Self {
        let (model, engine) = (hosted.model(), hosted.engine());
        let sampling = hosted.sampling(None);
        Self {
            id: hosted.name().to_owned(),
            family: model.description().family.clone(),
            context: hosted.context(),
            vocabulary: model.description().vocab,
            kv_format: format!("{:?}", engine.kv_format()).to_lowercase(),
            kv_bytes: engine.usage().kv.budget + engine.usage().kv_of_heads.budget,
            processors: engine
                .processor_use()
                .into_iter()
                .map(|processor| processor.name)
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

/// Returns properties and options of the server.
#[utoipa::path(get, path = "/props", tag = "server", responses((status = 200, body = Props)))]
pub(crate) async fn props(State(app): State<Arc<App>>) -> Json<Props> {
    let loaded = app.registry().loaded();
    let models = loaded.iter().map(|model| ModelProps::new(model)).collect();
    let (parallel, queue) = (app.options.parallel, app.options.queue);
    let first = loaded.first();
    let first = first.map(|model| FirstProps::new(model, parallel));
    Json(Props {
        version: env!("CARGO_PKG_VERSION"),
        parallel,
        queue,
        allows_pull: app.options.library.is_some(),
        models,
        first,
    })
}
