//! `/sessions`: what the model has read of a prompt, kept in files beyond the end of the server.
//!
//! A prompt is computed, as far as it is not known, and its keys and values are saved by a name. Restored, they are where
//! prompts look for what they have in common: the next request that begins alike computes the rest alone. Names are
//! letters, digits, `-` and `_`, so that none leads out of the folder. Sessions of each key are in a folder of their own, with
//! a bound on their number and on their bytes: a further one replaces the oldest of the same key.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use triad_engine::{Adapters, Cancel};
use triad_frontend::chat;
use utoipa::ToSchema;

use crate::app::App;
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::guard::{Caller, Client};
use crate::hosted::Hosted;
use crate::messages::{ChatMessage, bytes, messages};
use crate::owner::Owner;
use crate::prepare::{CancelOnDrop, Work};
use crate::prompt_fields::PromptOptions;
use crate::prompts::TextFields;
use crate::queue::{Full, Need, Permit};
use crate::text::{conversation_tokens, no_template};
use crate::tools::{ChatTool, ToolUse};

/// Saved sessions of an owner, at most.
const MAX_SESSIONS: usize = 1024;
/// Letters of a name, at most.
const LONGEST_NAME: usize = 64;
const EXTENSION: &str = "session";

/// Which prompt is saved.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct SaveRequest {
    /// The model, as `/v1/models` names it; without, the first one.
    model: Option<String>,
    /// A conversation, to which the template is applied; the next request adds messages to it.
    messages: Option<Vec<ChatMessage>>,
    /// Functions that the conversation may call.
    tools: Option<Vec<ChatTool>>,
    /// Or a text.
    prompt: Option<String>,
}

/// A prompt whose session is to be saved.
enum Saving {
    Messages(Vec<Value>),
    Text(String),
}

/// Whose session is restored.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RestoreRequest {
    /// The model, as `/v1/models` names it; without, the first one.
    model: Option<String>,
}

/// A session that was saved or restored.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Saved {
    name: String,
    /// Tokens of its prompt.
    tokens: usize,
    /// Of the file.
    bytes: u64,
}

/// The files of saved sessions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionList {
    /// `list`.
    object: &'static str,
    data: Vec<SessionFile>,
}

#[derive(Debug, Serialize, ToSchema)]
struct SessionFile {
    name: String,
    bytes: u64,
    /// When it was saved, in seconds since 1970.
    saved: u64,
    #[serde(skip)]
    modified: SystemTime,
}

/// The sessions that were saved.
#[utoipa::path(
    get, path = "/sessions", tag = "sessions",
    responses((status = 200, body = SessionList), (status = 404, body = ErrorBody))
)]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Client(client): Client,
) -> ApiResult<Json<SessionList>> {
    let folder = folder(&app, client.owner)?;
    let data = blocking(move || files(&folder)).await?;
    Ok(Json(SessionList {
        object: "list",
        data,
    }))
}

/// Computes a prompt, and saves its keys and values; a session of this name is replaced.
#[utoipa::path(
    post, path = "/sessions/{name}/save", tag = "sessions", request_body = SaveRequest,
    params(("name" = String, Path, description = "Letters, digits, - and _")),
    responses((status = 200, body = Saved), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
              (status = 429, body = ErrorBody))
)]
pub(crate) async fn save(
    State(app): State<Arc<App>>,
    Client(client): Client,
    UrlPath(name): UrlPath<String>,
    body: JsonBody,
) -> ApiResult<Json<Saved>> {
    let folder = folder(&app, client.owner)?;
    let path = path(&folder, &name)?;
    let SaveRequest {
        model,
        messages: given,
        tools,
        prompt,
    } = body.parse()?;
    // Wrong ones are refused with a text, too, which has no use for them.
    let tools = ToolUse::of_chat(tools, None, None)?;
    let prompt = match (given, prompt) {
        (Some(given), None) => Saving::Messages(messages(given)?),
        (None, Some(text)) => Saving::Text(text),
        _ => {
            return Err(ApiError::field(
                "messages",
                "expected either messages or prompt",
            ));
        }
    };
    let model = app.model(model.as_deref()).await?;
    let place = model.enter(client.address)?;
    let tokens = match prompt {
        Saving::Messages(messages) => {
            let work = Work::Text(bytes(&messages));
            let encode = move |model: &Hosted, cancel: &Cancel| {
                model.model().chat_template().ok_or_else(no_template)?;
                let (options, within) = (PromptOptions::of_messages(), (model.context(), cancel));
                conversation_tokens(model, (&messages, tools.listed()), &options, within)
            };
            model
                .preparers()
                .prepare((&model, &place), work, encode)
                .await?
        }
        Saving::Text(text) => {
            let work = Work::Text(text.len());
            // As `/v1/completions` reads it, which is to find it.
            let encode = move |model: &Hosted, cancel: &Cancel| {
                let reading = TextFields::default().reading(model);
                Ok(chat::encode_around(
                    model.model(),
                    &text,
                    reading,
                    (model.context(), cancel),
                )?)
            };
            model
                .preparers()
                .prepare((&model, &place), work, encode)
                .await?
        }
    };
    let need = model.need(&tokens, Some(0), 1)?;
    let most = app.options.session_bytes;
    let bytes = need.pages as u64 * model.engine().usage().kv.page_bytes as u64;
    if bytes > most {
        let message = format!(
            "a session of {} tokens takes {bytes} bytes, expected at most {most} (--session-storage)",
            tokens.len()
        );
        return Err(ApiError::refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            "session_too_large",
            message,
        ));
    }
    let permit = place.admit(need).await;
    // Dropped with this future, where the client goes away.
    let cancel = CancelOnDrop(Cancel::new());
    let stop = cancel.0.clone();
    let saved = blocking(move || {
        std::fs::create_dir_all(&folder).map_err(|error| failed(&error))?;
        let mut session = model.engine().session();
        session.set_salt(client.owner.salt());
        let known = session.reuse(&tokens);
        session.prefill(&tokens[known..], &stop, |_| {})?;
        session.share();
        session.save(&path)?;
        drop((session, permit));
        make_room(&folder, &name, (MAX_SESSIONS, most))?;
        Ok(Saved {
            name,
            tokens: tokens.len(),
            bytes: size(&path)?,
        })
    });
    Ok(Json(saved.await?))
}

/// Reads a saved session: prompts that begin as it does find it.
#[utoipa::path(
    post, path = "/sessions/{name}/restore", tag = "sessions", request_body = RestoreRequest,
    params(("name" = String, Path, description = "Letters, digits, - and _")),
    responses((status = 200, body = Saved), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
              (status = 429, body = ErrorBody))
)]
pub(crate) async fn restore(
    State(app): State<Arc<App>>,
    Client(client): Client,
    UrlPath(name): UrlPath<String>,
    body: JsonBody,
) -> ApiResult<Json<Saved>> {
    let path = path(&folder(&app, client.owner)?, &name)?;
    let RestoreRequest { model } = body.parse()?;
    let bytes = existing(&path, &name)?;
    let model = app.model(model.as_deref()).await?;
    let most = model.queue().most().pages;
    let pages = usize::try_from(bytes / model.engine().usage().kv.page_bytes.max(1) as u64 + 1)
        .unwrap_or(usize::MAX);
    if pages > most {
        let message = format!(
            "session {name} takes {pages} pages of keys and values, the server has {most} (--kv-memory)"
        );
        return Err(ApiError::invalid(message).with_code("context_length_exceeded"));
    }
    let permit = admit(&model, client, Need { slots: 1, pages }).await?;
    let restored = blocking(move || {
        // The file is not what the request wrote: what is wrong with it is named without its place.
        let mut session = model
            .engine()
            .restore_salted(&path, &Adapters::default(), client.owner.salt())
            .map_err(|error| {
                tracing::warn!("session {name}: {error}");
                let message = format!(
                    "session {name} is damaged, or was saved of another model, context or format"
                );
                ApiError::invalid(message).with_code("invalid_session")
            })?;
        session.share();
        let tokens = session.tokens().len();
        drop((session, permit));
        Ok(Saved {
            name,
            tokens,
            bytes,
        })
    });
    Ok(Json(restored.await?))
}

/// Deletes the file of a saved session.
#[utoipa::path(
    delete, path = "/sessions/{name}", tag = "sessions",
    params(("name" = String, Path, description = "Letters, digits, - and _")),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Client(client): Client,
    UrlPath(name): UrlPath<String>,
) -> ApiResult<StatusCode> {
    let path = path(&folder(&app, client.owner)?, &name)?;
    blocking(move || std::fs::remove_file(path).map_err(|error| unread(&name, &error))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the folder of an owner's sessions. It is made for the first of them.
fn folder(app: &App, owner: Owner) -> ApiResult<PathBuf> {
    let message = "this server saves no sessions: start it with --sessions FOLDER";
    let folder = app.options.sessions.as_deref();
    let folder =
        folder.ok_or_else(|| ApiError::refused(StatusCode::NOT_FOUND, "no_sessions", message))?;
    Ok(owner
        .folder()
        .map_or_else(|| folder.to_owned(), |own| folder.join(own)))
}

/// The file of the session called `name`.
fn path(folder: &Path, name: &str) -> ApiResult<PathBuf> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_letter) {
        return Err(ApiError::field(
            "name",
            format!("expected 1 to {LONGEST_NAME} letters, digits, - and _"),
        ));
    }
    Ok(file_of(folder, name))
}

fn file_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.{EXTENSION}"))
}

fn files(folder: &Path) -> ApiResult<Vec<SessionFile>> {
    let mut files = Vec::new();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(files),
        Err(error) => return Err(failed(&error)),
    };
    for file in entries {
        let path = file.map_err(|error| failed(&error))?.path();
        let is_session = path
            .extension()
            .is_some_and(|extension| extension == EXTENSION);
        // One that is deleted meanwhile is none.
        let (Some(name), Ok(data)) = (
            path.file_stem().and_then(|name| name.to_str()),
            path.metadata(),
        ) else {
            continue;
        };
        if is_session && data.is_file() {
            let modified = data.modified().unwrap_or(UNIX_EPOCH);
            let saved = modified.duration_since(UNIX_EPOCH);
            let saved = saved.map_or(0, |time| time.as_secs());
            files.push(SessionFile {
                name: name.to_owned(),
                bytes: data.len(),
                saved,
                modified,
            });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Deletes the oldest sessions of a folder other than `kept` until at most `most` of them, of so many bytes, are left.
fn make_room(folder: &Path, kept: &str, most: (usize, u64)) -> ApiResult<()> {
    let mut files = files(folder)?;
    let (mut count, mut bytes) = (
        files.len(),
        files.iter().map(|file| file.bytes).sum::<u64>(),
    );
    files.retain(|file| file.name != kept);
    files.sort_by_key(|file| file.modified);
    for file in files {
        if count <= most.0 && bytes <= most.1 {
            break;
        }
        let gone = std::fs::remove_file(file_of(folder, &file.name));
        // Another request may have deleted it.
        if let Err(error) = gone
            && error.kind() != ErrorKind::NotFound
        {
            return Err(failed(&error));
        }
        tracing::info!("session {} makes room for {kept}", file.name);
        (count, bytes) = (count - 1, bytes - file.bytes);
    }
    Ok(())
}

/// Returns the bytes of the session called `name`.
fn existing(path: &Path, name: &str) -> ApiResult<u64> {
    let data = path.metadata().map_err(|error| unread(name, &error))?;
    Ok(data.len())
}

/// Returns the error of a session whose file can't be read. One that is not there is a mistake of the client.
fn unread(name: &str, error: &std::io::Error) -> ApiError {
    if error.kind() != ErrorKind::NotFound {
        return failed(error);
    }
    let message = format!("there is no session called {name}");
    tracing::debug!("{message}");
    ApiError::refused(StatusCode::NOT_FOUND, "no_session", message)
}

fn size(path: &Path) -> ApiResult<u64> {
    Ok(path.metadata().map_err(|error| failed(&error))?.len())
}

fn failed(error: &std::io::Error) -> ApiError {
    ApiError::failed("the folder of sessions", error)
}

async fn admit(model: &Hosted, client: Caller, need: Need) -> ApiResult<Permit> {
    model
        .queue()
        .admit(client.address, need)
        .await
        .map_err(|Full(waiting)| ApiError::full(waiting))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tracing::{Event, Level, Metadata, Subscriber, span};

    /// Counts errors in the log.
    #[derive(Clone, Default)]
    struct Errors(Arc<AtomicUsize>);

    impl Subscriber for Errors {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            if *event.metadata().level() <= Level::WARN {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn a_session_that_is_not_there_is_no_error_of_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let errors = Errors::default();
        tracing::subscriber::with_default(errors.clone(), || {
            let error = existing(&folder.path().join("a.session"), "a").unwrap_err();
            assert_eq!(
                (error.status, error.detail.code),
                (StatusCode::NOT_FOUND, Some("no_session"))
            );
            assert_eq!(errors.0.load(Ordering::Relaxed), 0);
            // A folder that can't be read is one.
            std::fs::write(folder.path().join("file"), "").unwrap();
            let error = existing(&folder.path().join("file/a.session"), "a").unwrap_err();
            assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR);
            assert_eq!(errors.0.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_session_beyond_the_bounds_replaces_the_oldest_ones_and_never_itself() {
        let folder = tempfile::tempdir().unwrap();
        let save = |name: &str, bytes: usize, age: u64| {
            let path = path(folder.path(), name).unwrap();
            std::fs::write(&path, vec![0; bytes]).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age))
                .unwrap();
        };
        let names = || -> Vec<_> {
            files(folder.path())
                .unwrap()
                .into_iter()
                .map(|file| file.name)
                .collect()
        };
        save("a", 10, 30);
        save("b", 10, 50);
        save("c", 10, 40);
        make_room(folder.path(), "c", (3, 30)).unwrap();
        assert_eq!(names(), ["a", "b", "c"]);
        make_room(folder.path(), "c", (3, 29)).unwrap();
        assert_eq!(names(), ["a", "c"]);
        save("d", 1, 60);
        make_room(folder.path(), "d", (2, 30)).unwrap();
        assert_eq!(names(), ["a", "d"]);
        make_room(folder.path(), "d", (9, 0)).unwrap();
        assert_eq!(names(), ["d"]);
    }
}
