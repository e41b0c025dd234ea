//! `/sessions`: prompts with their KV cache, saved in files that outlive the server.
//!
//! Saving computes the part of a prompt that is not cached, and writes its KV cache to a named file. Restoring adds the
//! KV cache to the prompt cache: a later request with the same prefix computes only the rest. Names consist of letters,
//! digits, `-` and `_`, so that no name leads out of the folder. Each key has its own folder, with a limit of sessions
//! and bytes. A session beyond the limit replaces the oldest one of the same key.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use triad_engine::{Adapters, Cancel};
use triad_frontend::chat;
use triad_model::output::is_unfinished;
use utoipa::ToSchema;

use crate::app::App;
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::guard::{Caller, Client};
use crate::messages::{ChatMessage, bytes, messages};
use crate::owner::Owner;
use crate::pictures;
use crate::prepare::{CancelOnDrop, Work};
use crate::prompt_fields::PromptOptions;
use crate::prompts::TextFields;
use crate::queue::{Full, Need, Permit};
use crate::served::ServedModel;
use crate::text::{conversation_prompt, no_template};
use crate::tool_fields::ChatTool;
use crate::tools::ToolUse;
use crate::url_path::UrlPath;

/// Maximum number of saved sessions per owner.
const MAX_SESSIONS: usize = 1024;
/// Maximum number of characters of a name.
const LONGEST_NAME: usize = 64;
const EXTENSION: &str = "session";
/// The time after which nothing more is written to an unfinished file.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A request to save the session of a prompt. Exactly one of `messages` and `prompt` must be set.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct SaveRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// A conversation, which the chat template renders. Later requests add messages to it.
    messages: Option<Vec<ChatMessage>>,
    /// Tools of the conversation.
    tools: Option<Vec<ChatTool>>,
    /// A text.
    prompt: Option<String>,
}

/// A prompt to save.
enum Saving {
    Messages(Vec<Value>),
    Text(String),
}

/// A request to restore a session.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RestoreRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
}

/// A session that was saved or restored.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Saved {
    name: String,
    /// Number of tokens of the session's prompt.
    tokens: usize,
    /// Size of the file in bytes.
    bytes: u64,
}

/// The list of saved sessions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionList {
    /// Always `list`.
    object: &'static str,
    data: Vec<SessionFile>,
}

#[derive(Debug, Serialize, ToSchema)]
struct SessionFile {
    name: String,
    bytes: u64,
    /// The time when the session was saved, in seconds since 1970.
    saved: u64,
    #[serde(skip)]
    modified: SystemTime,
}

/// Lists the saved sessions.
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

/// Computes a prompt and saves its KV cache. Replaces an existing session of the same name.
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
    } = body.checked(&fields::SAVE)?.parse()?;
    // Invalid tools are refused even with a text, which does not use them.
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
        Saving::Messages(mut messages) => {
            if let Some(picture) = pictures::take(&mut messages, usize::MAX)?.first() {
                let message = "sessions with pictures are not saved";
                return Err(ApiError::unsupported(picture.field(), message));
            }
            let work = Work::Text(bytes(&messages));
            let encode = move |model: &ServedModel, cancel: &Cancel| {
                model.model().chat_template().ok_or_else(no_template)?;
                let (options, within) = (PromptOptions::of_messages(), (model.context(), cancel));
                let conversation = (&messages[..], tools.listed(), Vec::new());
                let prompt = conversation_prompt(model, conversation, &options, within)?;
                Ok(prompt.prompt.tokens)
            };
            model
                .preparers()
                .prepare((&model, &place), work, encode)
                .await?
        }
        Saving::Text(text) => {
            let work = Work::Text(text.len());
            // Tokenize as `/v1/completions` does, so that its requests find the session.
            let encode = move |model: &ServedModel, cancel: &Cancel| {
                let options = TextFields::default().options(model);
                Ok(chat::encode_text(
                    model.model(),
                    &text,
                    options,
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
    // Cancels the work if the client disconnects, which drops this future.
    let cancel = CancelOnDrop(Cancel::new());
    let stop = cancel.0.clone();
    let saved = blocking(move || {
        std::fs::create_dir_all(&folder).map_err(|error| failed(&error))?;
        remove_abandoned(&folder);
        let mut session = model.engine().session();
        session.set_salt(client.owner.salt());
        let known = session.reuse(&tokens);
        session.prefill(&tokens[known..], &stop, |_| {})?;
        session.share();
        session.save_own(&path)?;
        drop((session, permit));
        let bytes = path.metadata().map_err(|error| match error.kind() {
            ErrorKind::NotFound => ApiError::refused(
                StatusCode::CONFLICT,
                "session_deleted",
                "another request deleted the session at the same time",
            ),
            _ => failed(&error),
        })?;
        make_room(&folder, &name, (MAX_SESSIONS, most))?;
        Ok(Saved {
            name,
            tokens: tokens.len(),
            bytes: bytes.len(),
        })
    });
    Ok(Json(saved.await?))
}

/// Restores a saved session into the prompt cache, where prompts with the same prefix find it.
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
    let RestoreRequest { model } = body.checked(&fields::RESTORE)?.parse()?;
    let bytes = existing(&path, &name)?;
    let model = app.model(model.as_deref()).await?;
    let most = model.queue().most().pages;
    let pages = usize::try_from(bytes / model.engine().usage().kv.page_bytes.max(1) as u64 + 1)
        .unwrap_or(usize::MAX);
    if pages > most {
        let message = format!(
            "session {name} takes {pages} pages of the KV cache, but the server has {most} (--kv-memory)"
        );
        return Err(ApiError::invalid(message).with_code("context_length_exceeded"));
    }
    let permit = admit(&model, client, Need { slots: 1, pages }).await?;
    let restored = blocking(move || {
        // The error must not reveal the path of the file, which the client did not choose.
        let mut session = model
            .engine()
            .restore_salted(&path, &Adapters::default(), client.owner.salt())
            .map_err(|error| {
                // Another request may have deleted it.
                if let Err(error) = existing(&path, &name) {
                    return error;
                }
                tracing::warn!("session {name}: {error}");
                let message = format!(
                    "session {name} is damaged, or was saved with another model, context or format"
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

/// Deletes a saved session.
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

/// Returns the folder of an owner's sessions. The folder is created with the first session.
fn folder(app: &App, owner: Owner) -> ApiResult<PathBuf> {
    let message = "this server saves no sessions: start it with --sessions FOLDER";
    let folder = app.options.sessions.as_deref();
    let folder =
        folder.ok_or_else(|| ApiError::refused(StatusCode::NOT_FOUND, "no_sessions", message))?;
    Ok(owner
        .folder()
        .map_or_else(|| folder.to_owned(), |own| folder.join(own)))
}

/// Returns the file of the session `name`.
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
        // The file may have been deleted in the meantime.
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

/// Removes what a server left unfinished that was killed while it saved a session: these files count towards no limit.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let written = entry.metadata().and_then(|data| data.modified());
        let age = written.ok().and_then(|written| written.elapsed().ok());
        let name = entry.file_name();
        if age.is_some_and(|age| age > ABANDONED) && name.to_str().is_some_and(is_unfinished) {
            tracing::info!("an unfinished session is removed");
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Deletes the oldest sessions of a folder, except `kept`, until the number and the bytes of the rest are at most
/// `most`.
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

/// Returns the size in bytes of the session `name`.
fn existing(path: &Path, name: &str) -> ApiResult<u64> {
    let data = path.metadata().map_err(|error| unread(name, &error))?;
    Ok(data.len())
}

/// Returns the error of a session file that can't be read. A missing file is a client error.
fn unread(name: &str, error: &std::io::Error) -> ApiError {
    if error.kind() != ErrorKind::NotFound {
        return failed(error);
    }
    let message = format!("there is no session called {name}");
    tracing::debug!("{message}");
    ApiError::refused(StatusCode::NOT_FOUND, "no_session", message)
}

fn failed(error: &std::io::Error) -> ApiError {
    ApiError::failed("the folder of sessions", error)
}

async fn admit(model: &ServedModel, client: Caller, need: Need) -> ApiResult<Permit> {
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
    use tracing::{Event, Level, Metadata, Subscriber, span};

    /// Counts the errors in the log.
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
            // A folder that can't be read is a server error.
            std::fs::write(folder.path().join("file"), "").unwrap();
            let error = existing(&folder.path().join("file/a.session"), "a").unwrap_err();
            assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR);
            assert_eq!(errors.0.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn what_a_killed_server_left_is_removed_and_what_is_written_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let long_ago = SystemTime::now() - 2 * ABANDONED;
        for (name, modified) in [
            (".triad-a.part", long_ago),
            (".triad-b.part", SystemTime::now()),
            ("c.session", long_ago),
            ("d.part", long_ago),
        ] {
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_modified(modified).unwrap();
        }
        remove_abandoned(folder.path());
        remove_abandoned(&folder.path().join("none"));
        let names = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".triad-b.part", "c.session", "d.part"]);
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
