//! Tools that OpenAI's and Anthropic's services run themselves. This server leaves them out of prompts, and says so.

use axum::http::HeaderValue;
use axum::response::Response;
use triad_frontend::tool_calls::ToolChoice;

use crate::error::{ApiError, ApiResult};

/// The header with the kinds of tools that a request has and the prompt does not list.
const LEFT_OUT: &str = "x-triad-tools-left-out";

/// Maximum number of kinds in the header and in the log. Clients refuse long heads.
const MAX_KINDS: usize = 16;

/// The client's own tools, each with its place in the list, and the kinds of those that are left out, each once.
type OwnTools<T> = (Vec<(usize, T)>, Vec<String>);

/// Separates the client's own tools, each with its place in the list, from those that a service would run. `other`
/// returns the kind of the latter. If a call is optional, they are left out.
///
/// # Errors
/// If there are such tools, and a call is required.
pub(crate) fn own<T>(
    tools: Option<Vec<T>>,
    choice: Option<&ToolChoice>,
    other: impl Fn(&T) -> Option<&str>,
) -> ApiResult<OwnTools<T>> {
    let is_optional = matches!(choice, None | Some(ToolChoice::Auto | ToolChoice::None));
    let (mut own, mut left_out) = (Vec::new(), Vec::new());
    for (index, tool) in tools.unwrap_or_default().into_iter().enumerate() {
        match other(&tool) {
            None => own.push((index, tool)),
            // A header names the kind.
            Some(kind) if is_optional && is_kind(kind) => {
                if left_out.len() <= MAX_KINDS && !left_out.iter().any(|known| known == kind) {
                    left_out.push(kind.to_owned());
                }
            }
            Some(kind) => {
                let message = format!(
                    "{kind}: this server has no tools of its own, expected functions, or the tool_choice auto, which \
                     leaves it out"
                );
                return Err(ApiError::unsupported(
                    &format!("tools[{index}].type"),
                    message,
                ));
            }
        }
    }
    Ok((own, left_out))
}

/// Returns whether a text may be the kind of a tool.
fn is_kind(kind: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=64).contains(&kind.len()) && kind.bytes().all(is_letter)
}

/// Adds a header to `response` with the kinds of tools that the prompt does not list, if there are any.
pub(crate) fn say(left_out: &[String], mut response: Response) -> Response {
    let mut names: Vec<_> = left_out.iter().map(String::as_str).collect();
    if names.len() > MAX_KINDS {
        names[MAX_KINDS] = "...";
    }
    if let (false, Ok(names)) = (names.is_empty(), HeaderValue::from_str(&names.join(", "))) {
        tracing::info!("tools that this server does not run are left out: {names:?}");
        response.headers_mut().insert(LEFT_OUT, names);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_each_kind_once_and_a_bounded_number_of_them() {
        let header = |kinds: Vec<String>| {
            let (own, left_out) = own(Some(kinds), None, |kind| Some(kind)).unwrap();
            assert!(own.is_empty());
            let response = say(&left_out, Response::default());
            let value = response.headers().get(LEFT_OUT).map(|value| value.to_str());
            value.map(|value| value.unwrap().to_owned())
        };
        assert_eq!(header(Vec::new()), None);
        let twice = ["web_search", "mcp", "web_search"].map(str::to_owned);
        assert_eq!(header(twice.to_vec()).unwrap(), "web_search, mcp");
        let many = |count: usize| header((0..count).map(|kind| format!("kind{kind}")).collect());
        assert!(many(16).unwrap().ends_with("kind14, kind15"));
        for count in [17, 80_000] {
            assert!(many(count).unwrap().ends_with("kind15, ..."), "{count}");
        }
    }
}
