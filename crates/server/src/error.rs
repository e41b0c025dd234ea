//! Errors of requests, in OpenAI's format.

use std::fmt::Display;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use triad_engine::Error as EngineError;
use triad_frontend::Error as FrontendError;
use triad_model::ErrorKind;
use utoipa::ToSchema;

use crate::names::new_id;

/// The code of the error of a request that no route fits.
pub(crate) const UNKNOWN_URL: &str = "unknown_url";

/// Maximum number of characters of a message. Messages repeat texts of requests, which may have megabytes.
const MAX_MESSAGE: usize = 2000;
/// Maximum number of characters of the name of a field.
const MAX_PARAM: usize = 200;

/// An error response.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) detail: ErrorDetail,
    /// The number of seconds after which the client may retry.
    retry_after: Option<u32>,
    /// The prompt that is too long, in the words of Anthropic's API.
    pub(crate) too_long: Option<String>,
}

/// The description of an error.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorDetail {
    /// A message for humans.
    pub(crate) message: String,
    /// `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The field of the request that caused the error, if any.
    pub(crate) param: Option<String>,
    /// A code for programs.
    pub(crate) code: Option<&'static str>,
}

/// The body of an error response.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorDetail,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    fn new(
        status: StatusCode,
        kind: &'static str,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> Self {
        let detail = ErrorDetail {
            message: shortened(message.into(), MAX_MESSAGE),
            kind,
            param: None,
            code,
        };
        Self {
            status,
            detail,
            retry_after: None,
            too_long: None,
        }
    }

    /// Returns the error of a request that is invalid as a whole.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request_error",
            None,
            message,
        )
    }

    /// Returns the error of a body that is no JSON, or has values that no field can have. `field` is where reading it ended,
    /// or empty.
    pub(crate) fn no_json(field: &str, cause: &dyn Display) -> Self {
        let error = match field {
            "" => Self::invalid(format!("the body is no JSON object: {cause}")),
            field => Self::field(field, format!("the body is no JSON here: {cause}")),
        };
        error.with_code("invalid_json")
    }

    /// Returns the error of an invalid value in the field `param`.
    pub(crate) fn field(param: &str, message: impl Into<String>) -> Self {
        Self::invalid(format!("{param}: {}", message.into()))
            .with_param(param)
            .with_code("invalid_value")
    }

    /// Returns the error of a field `param` that requests something unsupported.
    pub(crate) fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self::field(param, message).with_code("unsupported_parameter")
    }

    /// Returns an error of a request with the given status and code.
    pub(crate) fn refused(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self::new(status, "invalid_request_error", Some(code), message)
    }

    /// Returns the error of a missing or wrong API key.
    pub(crate) fn wrong_key(message: &str) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            Some("invalid_api_key"),
            message,
        )
    }

    /// Returns the error of an unknown model.
    pub(crate) fn no_model(name: &str, there: &str) -> Self {
        let message = format!("there is no model {name:?} here: expected one of {there}");
        Self::refused(StatusCode::NOT_FOUND, "model_not_found", message).with_param("model")
    }

    /// Returns the error of a prompt without tokens.
    pub(crate) fn empty_prompt() -> Self {
        Self::invalid("the prompt is empty: expected at least one token").with_code("invalid_value")
    }

    /// Returns the error of a prompt of `tokens` tokens, or of `more`. Clients that shorten their conversations look for
    /// the words of OpenAI's and Anthropic's APIs and of llama.cpp's server.
    pub(crate) fn too_long(tokens: usize, more: bool, context: usize) -> Self {
        let more = if more { "more than " } else { "" };
        let message = format!(
            "the prompt has {more}{tokens} tokens: this model's maximum context length is {context} tokens, and the \
             request exceeds the available context size"
        );
        Self {
            too_long: Some(format!(
                "prompt is too long: {more}{tokens} tokens > {context} maximum"
            )),
            ..Self::invalid(message).with_code("context_length_exceeded")
        }
    }

    /// Returns the error of a full queue.
    pub(crate) fn full(waiting: usize) -> Self {
        let message = format!("{waiting} requests are already waiting: try again later");
        let error = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limit_error",
            Some("queue_full"),
            message,
        );
        Self {
            retry_after: Some(2),
            ..error
        }
    }

    /// Returns the error of a server that is stopping or lacks a resource.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            Some("unavailable"),
            message,
        );
        Self {
            retry_after: Some(2),
            ..error
        }
    }

    /// Returns the error of another server, whose answer this one needs.
    pub(crate) fn other_server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "server_error", None, message)
    }

    /// Returns an internal error. Its message is fixed, because the cause may name files of this machine:
    /// [`ApiError::failed`] logs the cause.
    pub(crate) fn internal(message: &'static str) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "server_error",
            None,
            message,
        )
    }

    /// Returns an internal error with a logged cause. The client receives `what`, which must not name files of this
    /// machine.
    pub(crate) fn failed(what: &str, cause: &dyn std::error::Error) -> Self {
        let id = new_id("error-");
        tracing::error!("{id}: {what}: {}", chain(cause));
        let message = format!("{what}: the server's log has the cause under {id}");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "server_error",
            None,
            message,
        )
    }

    pub(crate) fn with_param(mut self, param: &str) -> Self {
        self.detail.param = Some(shortened(param.to_owned(), MAX_PARAM));
        self
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.detail.code = Some(code);
        self
    }

    /// Returns the error as a JSON body.
    pub(crate) fn body(&self) -> ErrorBody {
        ErrorBody {
            error: self.detail.clone(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Middleware of other APIs converts the error to their format.
        response.extensions_mut().insert(self);
        response
    }
}

/// Replaces the middle of a long text, so that it has at most `most` characters. The end may say what is expected.
fn shortened(text: String, most: usize) -> String {
    // Most texts are short.
    if text.len() <= most || text.chars().nth(most).is_none() {
        return text;
    }
    let half = most / 2;
    let start = text.char_indices().nth(half).map_or(0, |(at, _)| at);
    let mut rest = text.char_indices().rev();
    let end = rest.nth(half - 2).map_or(text.len(), |(at, _)| at);
    format!("{}…{}", &text[..start], &text[end..])
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = chain(&error);
        match error {
            EngineError::PromptTooLong {
                prompt, context, ..
            } => Self::too_long(prompt, false, context),
            EngineError::EmptyPrompt
            | EngineError::TokenOutOfVocabulary { .. }
            | EngineError::SecondText { .. }
            | EngineError::Option { .. } => Self::invalid(message).with_code("invalid_value"),
            EngineError::Encoder { .. } => Self::unsupported("model", message),
            EngineError::Picture(_) => Self::unsupported("messages", message),
            // The cause names a file.
            EngineError::NoPictures { .. } => {
                Self::unsupported("messages", "this model reads no pictures")
            }
            // The cause of a missing tokenizer names a file.
            EngineError::NoTokenizer { .. } => Self::invalid(error.to_string()),
            // The request's own schema or grammar reached a limit.
            EngineError::Constraint(_) => Self::invalid(message).with_code("form_not_kept"),
            EngineError::Model(error) if error.kind() == ErrorKind::Exhausted => {
                Self::unavailable(message)
            }
            // The path is the model's name here. Templates refuse conversations in words that are for their writers.
            EngineError::Model(cause) if cause.kind() == ErrorKind::Template => {
                tracing::warn!("a conversation is refused: {cause}");
                Self::invalid(cause.message())
            }
            // Without a path, the request itself caused the error of a template or tokenizer.
            EngineError::Model(cause) if cause.path().is_none() => Self::invalid(message),
            // The error's numbers would reveal how much memory other clients use.
            EngineError::KvMemoryFull { .. } => Self::unavailable(
                "other requests use all of the memory for the KV cache: try again later",
            ),
            // The path of the file is of no use to a client.
            EngineError::Changed(_) => Self::unavailable(
                "the model's file was changed or truncated while it was in use: the next request loads the model again",
            ),
            EngineError::Cancelled => Self::unavailable("the request was cancelled"),
            EngineError::NotFinite => Self::internal(
                "the model computed numbers that are not finite: its weights are damaged or not what its file states",
            ),
            error => Self::failed("the engine failed", &error),
        }
    }
}

impl From<FrontendError> for ApiError {
    fn from(error: FrontendError) -> Self {
        match error {
            FrontendError::Engine(error) => error.into(),
            FrontendError::PromptTooLong {
                tokens,
                more,
                context,
            } => Self::too_long(tokens, more, context),
            error @ (FrontendError::Message { .. }
            | FrontendError::OnlyText(_)
            | FrontendError::PicturePlaces { .. }
            | FrontendError::Tool { .. }
            | FrontendError::NoSuchTool { .. }) => {
                Self::invalid(error.to_string()).with_code("invalid_value")
            }
            error => Self::failed("the request failed", &error),
        }
    }
}

/// Returns the message of an error with the messages of its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_shortened_in_its_middle() {
        let long = "ü".repeat(8 << 20);
        let error = ApiError::field(&long, "expected a number").detail;
        assert!(error.message.chars().count() <= MAX_MESSAGE);
        assert!(error.message.starts_with("üü") && error.message.ends_with("ü: expected a number"));
        assert!(error.param.unwrap().chars().count() <= MAX_PARAM);
        let short = "ü".repeat(MAX_MESSAGE);
        assert_eq!(ApiError::invalid(short.clone()).detail.message, short);
    }

    #[test]
    fn no_error_names_a_file_of_this_machine() {
        let path = || std::path::PathBuf::from("/secret/folder/file");
        let io = || std::io::Error::other("/secret/folder/file is gone");
        let model = |kind| triad_model::Error::new(kind, "no such tensor").at(path());
        let errors = [
            ApiError::from(EngineError::Io {
                path: path(),
                source: io(),
            }),
            ApiError::from(EngineError::File {
                path: path(),
                problem: "it is damaged",
                source: Box::new(io()),
            }),
            ApiError::from(EngineError::AdapterOfAnotherModel { path: path() }),
            ApiError::from(EngineError::Model(model(ErrorKind::Io))),
            ApiError::from(EngineError::Model(
                model(ErrorKind::Template).caused_by(io()),
            )),
            ApiError::from(EngineError::NoTokenizer {
                source: std::sync::Arc::new(model(ErrorKind::Missing)),
            }),
            ApiError::from(FrontendError::Engine(EngineError::Io {
                path: path(),
                source: io(),
            })),
            ApiError::from(FrontendError::File {
                what: "read",
                path: path(),
                source: io(),
            }),
            ApiError::failed("the folder of sessions", &io()),
        ];
        for error in errors {
            assert!(!error.detail.message.contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn a_template_that_refuses_a_conversation_is_an_error_of_the_request() {
        let error = triad_model::Error::new(ErrorKind::Template, "line 1: only one system message");
        let error = ApiError::from(EngineError::Model(error.at("a-model")));
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
        assert_eq!(error.detail.message, "line 1: only one system message");
    }

    #[test]
    fn a_limit_that_a_form_reaches_is_one_of_the_request() {
        let error = ApiError::from(EngineError::Constraint("too many states".into()));
        assert_eq!(
            (error.status, error.detail.code),
            (StatusCode::BAD_REQUEST, Some("form_not_kept"))
        );
        assert!(
            error.detail.message.ends_with("too many states"),
            "{}",
            error.detail.message
        );
    }
}
