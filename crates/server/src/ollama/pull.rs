//! `/api/pull` and `/api/delete`: models that clients fetch and delete, on a server that allows it.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use triad_model::fetch::{Progress, untagged};
use utoipa::ToSchema;

use super::error::{self, OllamaError};
use crate::app::App;
use crate::blocking::{blocking, spawn};
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult};
use crate::fields;
use crate::library::{Change, Deletion, ModelLibrary, repository};

/// Minimum time between two lines about the bytes of a file.
const INTERVAL: Duration = Duration::from_millis(100);
/// The number of times, one in each [`INTERVAL`], that the end of another fetch of the same model is waited for.
const CANCEL_TRIES: usize = 20;
/// Maximum number of lines that wait for the client.
const MAX_LINES: usize = 16;
/// The last line of a fetch.
const SUCCESS: &str = "success";

/// A request to fetch a model.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct PullRequest {
    #[serde(default, deserialize_with = "super::named")]
    model: Option<String>,
    /// Alias of `model`.
    #[serde(default, deserialize_with = "super::named")]
    name: Option<String>,
    /// Whether the response is lines of JSON. The default is true.
    stream: Option<bool>,
}

/// A request to delete a model.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DeleteRequest {
    #[serde(default, deserialize_with = "super::named")]
    model: Option<String>,
    /// Alias of `model`.
    #[serde(default, deserialize_with = "super::named")]
    name: Option<String>,
}

/// The progress of a fetch.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct FetchStatus {
    /// The current step. The last one is `success`.
    status: String,
    /// A hash of the file's name, by which clients tell files apart. It is no hash of the contents.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Bytes of the file, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Bytes of the file that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

impl FetchStatus {
    fn new(status: &str) -> Self {
        Self {
            status: status.to_owned(),
            ..Self::default()
        }
    }
}

/// Sends the progress of a fetch to its client. The fetch ends when the client goes away.
struct Reporter {
    lines: mpsc::Sender<ApiResult<FetchStatus>>,
    /// The time of the last line about a file.
    last: Cell<Option<Instant>>,
}

impl Progress for Reporter {
    fn step(&self, what: &str) {
        self.last.set(None);
        let _ = self.lines.blocking_send(Ok(FetchStatus::new(what)));
    }

    fn bytes(&self, file: &str, done: u64, total: Option<u64>) {
        let is_soon = self
            .last
            .get()
            .is_some_and(|last| last.elapsed() < INTERVAL);
        if is_soon && total != Some(done) {
            return;
        }
        self.last.set(Some(Instant::now()));
        let digest = Sha256::digest(file.as_bytes());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        // A client that reads slowly gets fewer lines.
        let _ = self.lines.try_send(Ok(FetchStatus {
            status: format!("pulling {file}"),
            digest: Some(format!("sha256:{digest}")),
            total,
            completed: Some(done),
        }));
    }

    fn cancelled(&self) -> bool {
        self.lines.is_closed()
    }
}

/// Returns the model that a request names.
fn required(model: Option<String>, name: Option<String>) -> ApiResult<String> {
    let name = crate::sampling::one_of(("name", name), ("model", model))?;
    name.ok_or_else(|| ApiError::field("model", "it is missing"))
}

/// Begins a change of the model `name`. A fetch of it that another request has just cancelled may take a moment to end.
async fn begin(app: &App, name: &str) -> ApiResult<Change> {
    for _ in 0..CANCEL_TRIES {
        match app.changes().begin(name) {
            Err(error) if error.status == StatusCode::CONFLICT => {
                tokio::time::sleep(INTERVAL).await;
            }
            begun => return begun,
        }
    }
    app.changes().begin(name)
}

/// Fetches a model into the cache of the server, which serves it from then on. For a model that the server was started
/// with, it only succeeds, and other files of its repository are refused. Without `--allow-pull`, all others are. A client
/// that disconnects ends the fetch; the next one continues it.
#[utoipa::path(
    post, path = "/api/pull", tag = "ollama", request_body = PullRequest,
    responses(
        (status = 200, content((FetchStatus = "application/json"), (FetchStatus = "application/x-ndjson"))),
        (status = 400, body = OllamaError), (status = 403, body = OllamaError), (status = 404, body = OllamaError),
        (status = 409, body = OllamaError), (status = 429, body = OllamaError), (status = 502, body = OllamaError),
        (status = 507, body = OllamaError),
    )
)]
pub(crate) async fn pull(State(app): State<Arc<App>>, body: JsonBody) -> ApiResult<Response> {
    let body = body.checked(&fields::OLLAMA_PULL)?;
    let PullRequest {
        model,
        name,
        stream,
    } = body.parse()?;
    let name = required(model, name)?;
    let streams = stream.unwrap_or(true);
    let (sender, lines) = mpsc::channel(MAX_LINES);
    let library = app.options.library.clone();
    let mut offered = app.registry().offered().into_iter();
    let is_called = offered.any(|model| model.is_given && model.hosted.is_called(&name));
    let of_given = library.as_ref().map(|library| library.is_given(&name));
    if is_called || of_given.transpose()? == Some(true) {
        for status in ["pulling manifest", SUCCESS] {
            let _ = sender.try_send(Ok(FetchStatus::new(status)));
        }
        drop(sender);
        return respond(lines, streams).await;
    }
    let Some(library) = library else {
        let message = format!(
            "model {name:?} is not served here, and clients can't make this server fetch models: fetch it with triad \
             pull, and start the server with -m, or with --allow-pull"
        );
        return Err(ApiError::refused(
            StatusCode::FORBIDDEN,
            "pull_not_allowed",
            message,
        ));
    };
    let name = untagged(&name).to_owned();
    library.check_change(&name)?;
    let change = begin(&app, &name).await?;
    let reporter = Reporter {
        lines: sender,
        last: Cell::new(None),
    };
    spawn(move || {
        let end = fetch(&app, &*library, change, &name, &reporter);
        // The client may be gone.
        let _ = reporter.lines.blocking_send(end);
    })?;
    respond(lines, streams).await
}

/// Fetches a model and adds it to those that are served. Others of its repository are described again: they may run from
/// the same files. Returns the last line.
fn fetch(
    app: &App,
    library: &dyn ModelLibrary,
    _change: Change,
    name: &str,
    reporter: &Reporter,
) -> ApiResult<FetchStatus> {
    let pulled = library.pull(name, reporter);
    let others = library.models(Some(repository(name)));
    app.registry().add_all(others, app.metrics());
    if let Some(model) = pulled? {
        let metrics = app.metrics().of_model(&model.name);
        let added = app.registry().add(model, metrics);
        added.map_err(|why| {
            ApiError::invalid(format!("{name} is fetched, but not served: {why}"))
        })?;
    }
    tracing::info!(model = name, "a client fetched the model");
    Ok(FetchStatus::new(SUCCESS))
}

/// Returns the lines of a fetch as they come, or the last one.
async fn respond(
    mut lines: mpsc::Receiver<ApiResult<FetchStatus>>,
    streams: bool,
) -> ApiResult<Response> {
    let broken = || ApiError::internal("the fetch ended without a result");
    if !streams {
        let mut last = Err(broken());
        while let Some(line) = lines.recv().await {
            last = line;
        }
        let last = last?;
        if last.status != SUCCESS {
            return Err(broken());
        }
        return Ok(Json(last).into_response());
    }
    let lines = stream::unfold(Some(lines), move |lines| async move {
        let mut lines = lines?;
        let line = lines.recv().await.unwrap_or_else(|| Err(broken()));
        let is_last = line.as_ref().map_or(true, |line| line.status == SUCCESS);
        let text = match &line {
            Ok(line) => serde_json::to_string(line).expect("responses serialize to JSON"),
            Err(error) => error::body(error).to_string(),
        };
        Some((
            Ok::<_, Infallible>(text + "\n"),
            (!is_last).then_some(lines),
        ))
    });
    let mut response = Body::from_stream(lines).into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CACHE_CONTROL, "no-store"),
        // Disables buffering in proxies, which would delay each line.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// A deletion waits for no other program that fetches the model. Keeps whether it would have waited.
#[derive(Default)]
struct NoWait(AtomicBool);

impl Progress for NoWait {
    fn step(&self, _: &str) {}
    fn bytes(&self, _: &str, _: u64, _: Option<u64>) {}

    fn cancelled(&self) -> bool {
        self.0.store(true, Ordering::Relaxed);
        true
    }
}

/// Deletes the files of a model in the server's cache. Models that the server was started with stay, and without
/// `--allow-pull`, all stay. A repository is deleted with all of its models, and a file with all of its names.
#[utoipa::path(
    delete, path = "/api/delete", tag = "ollama", request_body = DeleteRequest,
    responses(
        (status = 200), (status = 400, body = OllamaError), (status = 403, body = OllamaError),
        (status = 404, body = OllamaError), (status = 409, body = OllamaError), (status = 429, body = OllamaError),
    )
)]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    body: Result<JsonBody, ApiError>,
) -> ApiResult<StatusCode> {
    let not_allowed = |message: &str| {
        Err(ApiError::refused(
            StatusCode::FORBIDDEN,
            "delete_not_allowed",
            message,
        ))
    };
    let Some(library) = app.options.library.clone() else {
        return not_allowed(
            "clients can't delete models of this server: use triad remove on its machine, or start the server with \
             --allow-pull",
        );
    };
    let body = body?.checked(&fields::OLLAMA_DELETE)?;
    let DeleteRequest { model, name } = body.parse()?;
    let name = required(model, name)?;
    let mut offered = app.registry().offered().into_iter();
    if offered.any(|model| model.is_given && model.hosted.is_called(&name)) {
        return not_allowed("the server was started with this model, so it stays");
    }
    let name = untagged(&name).to_owned();
    let change = begin(&app, &name).await?;
    blocking(move || delete_now(&app, &*library, change, &name)).await?;
    Ok(StatusCode::OK)
}

/// Deletes the files of a model that no request uses and no other program fetches.
fn delete_now(app: &App, library: &dyn ModelLibrary, _change: Change, name: &str) -> ApiResult<()> {
    let in_use = |message: String| ApiError::refused(StatusCode::CONFLICT, "model_in_use", message);
    library.check_change(name)?;
    let no_wait = NoWait::default();
    let begun = library.delete(name, &no_wait);
    if begun.is_err() && no_wait.0.load(Ordering::Relaxed) {
        let message = format!("another program fetches {name}: try again later");
        return Err(in_use(message));
    }
    let Deletion { names, end } = begun?;
    // Only now, when nothing but a request can keep the files, models leave the memory.
    let is_meant = |model: &str| model == name || names.iter().any(|name| name == model);
    let removed = Handle::current().block_on(app.registry().remove(is_meant));
    removed.map_err(|model| in_use(format!("a request uses {model}: try again later")))?;
    let ended = end();
    // What is left stays offered, and may have lost a part.
    let left = library.models(Some(repository(name)));
    app.registry().add_all(left, app.metrics());
    ended?;
    tracing::info!(model = name, "a client deleted the model");
    Ok(())
}
