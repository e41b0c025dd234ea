//! Pictures in requests: parts of messages, and what the model's processor makes of them.
//!
//! A picture stays in its message, in the form in which it was sent, until the model is known: conversations that are
//! kept hold it there. [`take`] then leaves `{"type": "image"}` for the template.

use std::sync::Arc;

use serde_json::{Value, json};
use triad_pictures::{Picture, Prepared, Processor, from_base64, from_data_url};

use crate::error::{ApiError, ApiResult, chain};

/// Maximum number of pictures in a conversation.
pub(crate) const MAX_PICTURES: usize = 64;
/// Maximum number of colors of all views of a conversation's pictures.
const MAX_FLOATS: usize = 1 << 26;
/// The key of a picture in its part.
const KEY: &str = "picture";

/// A picture as a request has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenPicture {
    /// The field of the request.
    field: String,
    source: Source,
}

/// The form of a picture in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A `data:` URL.
    Url(String),
    /// Bytes in base64.
    Base64(String),
}

/// Returns the part of a message with the picture in `field`.
///
/// # Errors
/// If its URL is not a `data:` URL.
pub(crate) fn part(field: &str, source: Source) -> ApiResult<Value> {
    let (form, text) = match source {
        Source::Base64(text) => ("base64", text),
        Source::Url(url) if is_of_network(&url) => {
            let message = "this server fetches no pictures from a network: expected a data: URL with the picture in base64";
            return Err(ApiError::unsupported(field, message));
        }
        Source::Url(url) => ("url", url),
    };
    Ok(json!({"type": "image", KEY: {"field": field, form: text}}))
}

fn is_of_network(url: &str) -> bool {
    let scheme = url.split(':').next().unwrap_or_default();
    ["http", "https", "file", "ftp"]
        .iter()
        .any(|other| scheme.eq_ignore_ascii_case(other))
}

/// Takes the pictures out of `messages`, in order.
///
/// # Errors
/// If there are too many.
pub(crate) fn take(messages: &mut [Value]) -> ApiResult<Vec<GivenPicture>> {
    let mut pictures = Vec::new();
    let contents = messages
        .iter_mut()
        .filter_map(|message| message.get_mut("content")?.as_array_mut());
    for part in contents.flatten() {
        let given = part.as_object_mut().and_then(|part| part.remove(KEY));
        let Some(Value::Object(mut given)) = given else {
            continue;
        };
        let mut text = |name| match given.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let field = text("field").unwrap_or_default();
        let source = match (text("url"), text("base64")) {
            (Some(url), _) => Source::Url(url),
            (None, base64) => Source::Base64(base64.unwrap_or_default()),
        };
        if pictures.len() == MAX_PICTURES {
            let message = format!("the conversation has more than {MAX_PICTURES} pictures");
            return Err(ApiError::field(&field, message));
        }
        pictures.push(GivenPicture { field, source });
    }
    Ok(pictures)
}

impl GivenPicture {
    /// Returns the field of the request.
    pub(crate) fn field(&self) -> &str {
        &self.field
    }
}

/// Decodes pictures and prepares them for the model.
///
/// # Errors
/// If one is not a picture or beyond the limits; the error names its field.
pub(crate) fn prepare(
    processor: &Processor,
    pictures: &[GivenPicture],
) -> ApiResult<Vec<Arc<Prepared>>> {
    let mut floats = 0;
    let prepared = pictures.iter().map(|GivenPicture { field, source }| {
        let bytes = match source {
            Source::Url(url) => from_data_url(url),
            Source::Base64(text) => from_base64(text),
        };
        let picture = bytes.and_then(|bytes| Picture::decode(&bytes));
        let prepared = picture.and_then(|picture| processor.prepare(&picture));
        let prepared = prepared.map_err(|error| ApiError::field(field, chain(&error)))?;
        let views = prepared.views.iter();
        floats += views.map(|view| view.planes.len()).sum::<usize>();
        if floats > MAX_FLOATS {
            let message =
                "the pictures up to this one take too much memory: expected fewer or smaller ones";
            return Err(ApiError::field(field, message));
        }
        Ok(Arc::new(prepared))
    });
    prepared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_taken_in_order_and_leave_their_places() {
        let first = part("a", Source::Url("data:,x".into())).unwrap();
        let second = part("b", Source::Base64("aGk=".into())).unwrap();
        let text = json!({"type": "text", "text": "Hi"});
        let mut messages = [
            json!({"role": "user", "content": "Hi"}),
            json!({"role": "user", "content": [first, text]}),
            json!({"role": "user", "content": [second]}),
        ];
        let pictures = take(&mut messages).unwrap();
        let fields: Vec<_> = pictures.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(fields, ["a", "b"]);
        let place = json!({"type": "image"});
        assert_eq!(messages[1]["content"], json!([place, text]));
        assert_eq!(messages[2]["content"], json!([place]));
        assert!(take(&mut messages).unwrap().is_empty());
    }

    #[test]
    fn pictures_in_a_network_and_too_many_are_refused_by_their_field() {
        let error = part("x", Source::Url("HTTPS://a/b.png".into())).unwrap_err();
        assert_eq!(error.detail.param.as_deref(), Some("x"));
        let one = part("y", Source::Base64(String::new())).unwrap();
        let content = vec![one; MAX_PICTURES + 1];
        let error = take(&mut [json!({"role": "user", "content": content})]).unwrap_err();
        assert_eq!(error.detail.param.as_deref(), Some("y"));
    }
}
