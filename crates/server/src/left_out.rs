//! Parts of requests that prompts do not have: tools that OpenAI's and Anthropic's services run themselves, fields that the
//! model's template does not read, and parts of other files for which a middle leaves no room. Also schemas of functions
//! that do not constrain optional calls. Headers of the answer say so.

use axum::http::HeaderValue;
use axum::response::Response;
use triad_frontend::tool_calls::ToolChoice;

use crate::error::{ApiError, ApiResult};

/// The header with the kinds of tools that a request has and the prompt does not list.
const TOOLS: &str = "x-triad-tools-left-out";
/// The header with the fields that a request has and the prompt does not have, or not as a whole.
const FIELDS: &str = "x-triad-fields-left-out";
/// The header with the functions whose schemas do not constrain the arguments of their calls.
const SCHEMAS: &str = "x-triad-schemas-left-out";

/// Maximum number of names in a header and in the log. Clients refuse long heads.
const MAX_KINDS: usize = 16;

/// The parts of a request that its prompt does not have.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    /// The kinds of tools, and of items in which such a tool was used, each once.
    pub(crate) tools: Vec<String>,
    /// The names of fields.
    pub(crate) fields: Vec<&'static str>,
    /// The names of functions. Each is of letters, digits, `_`, `.` and `-`.
    pub(crate) schemas: Vec<String>,
}

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
            Some(kind) if is_optional && is_kind(kind) => add(&mut left_out, kind),
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

/// Adds the kind of a tool unless it is there.
pub(crate) fn add(kinds: &mut Vec<String>, kind: &str) {
    if kinds.len() <= MAX_KINDS && !kinds.iter().any(|known| known == kind) {
        kinds.push(kind.to_owned());
    }
}

/// Returns whether a text may be the kind of a tool.
fn is_kind(kind: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=64).contains(&kind.len()) && kind.bytes().all(is_letter)
}

/// Returns the first names of a list, and `...` if there are more.
fn few(names: &[String]) -> Vec<&str> {
    let mut few: Vec<_> = names.iter().map(String::as_str).collect();
    few.truncate(MAX_KINDS + 1);
    if few.len() > MAX_KINDS {
        few[MAX_KINDS] = "...";
    }
    few
}

impl LeftOut {
    /// Adds headers to `response` with what is left out, if there is anything.
    pub(crate) fn say(&self, mut response: Response) -> Response {
        for (header, names) in [
            (TOOLS, &few(&self.tools)),
            (FIELDS, &self.fields),
            (SCHEMAS, &few(&self.schemas)),
        ] {
            if let (false, Ok(names)) = (names.is_empty(), HeaderValue::from_str(&names.join(", ")))
            {
                tracing::info!("{header}: {names:?}");
                response.headers_mut().insert(header, names);
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_each_kind_once_and_a_bounded_number_of_them() {
        let header = |kinds: Vec<String>| {
            let (own, tools) = own(Some(kinds), None, |kind| Some(kind)).unwrap();
            assert!(own.is_empty());
            let left_out = LeftOut {
                tools,
                ..LeftOut::default()
            };
            let response = left_out.say(Response::default());
            let value = response.headers().get(TOOLS).map(|value| value.to_str());
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
