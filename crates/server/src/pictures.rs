//! Pictures in requests: parts of messages.
//!
//! A picture stays in its message, in the form in which it was sent, until the model is known: conversations that are
//! kept hold it there. [`gathered_pictures`](crate::gathered_pictures) then takes them out and fetches those in a
//! network. [`read_pictures`](crate::read_pictures) reads their heads, which decide how many tokens the prompt has and
//! whether the pictures are within the limits. [`decoded_pictures`](crate::decoded_pictures) decodes them, unless the
//! engine still has their rows ([`known_pictures`](crate::known_pictures)).

use std::sync::Arc;

use serde_json::{Value, json};
use triad_pictures::{from_base64, from_data_url};

use crate::error::{ApiError, ApiResult, chain};

/// The key of a picture in its part.
const KEY: &str = "picture";

/// The limits on the pictures of a conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PictureLimits {
    /// Maximum number of pictures.
    pub(crate) pictures: usize,
    /// Maximum number of patches of all pictures.
    pub(crate) patches: usize,
}

/// A picture as a request has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenPicture {
    /// The field of the request.
    pub(crate) field: String,
    pub(crate) source: Source,
}

/// The form of a picture in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A `data:` URL, or one that [`image_urls`](crate::image_urls) fetches.
    Url(String),
    /// Bytes in base64.
    Base64(String),
    /// The content of a file, which was fetched.
    Content(Arc<[u8]>),
}

impl Source {
    /// Returns the URL of a picture in a network.
    pub(crate) fn in_network(&self) -> Option<&str> {
        match self {
            Self::Url(url) if has_scheme(url, &["http", "https"]) => Some(url),
            _ => None,
        }
    }
}

/// Returns the part of a message with the picture in `field`.
///
/// # Errors
/// If its URL is of another kind than `data:`, `http:` and `https:`.
pub(crate) fn part(field: &str, source: Source) -> ApiResult<Value> {
    let (form, text) = match source {
        Source::Base64(text) => ("base64", text),
        Source::Content(_) => return Err(ApiError::internal("a picture was fetched too early")),
        Source::Url(url) if has_scheme(&url, &["file", "ftp"]) => {
            let message =
                "the URL of a picture is neither data: nor http: nor https:, expected one of these";
            return Err(ApiError::unsupported(field, message));
        }
        Source::Url(url) => ("url", url),
    };
    Ok(json!({"type": "image", KEY: {"field": field, form: text}}))
}

fn has_scheme(url: &str, schemes: &[&str]) -> bool {
    let scheme = url.split(':').next().unwrap_or_default();
    schemes
        .iter()
        .any(|other| scheme.eq_ignore_ascii_case(other))
}

/// Takes the pictures out of `messages`, in order.
///
/// # Errors
/// If there are more than `most`.
pub(crate) fn take(messages: &mut [Value], most: usize) -> ApiResult<Vec<GivenPicture>> {
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
        if pictures.len() == most {
            let message = format!(
                "the conversation has more than {most} pictures, the maximum of this server (--max-images)"
            );
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

    /// Returns the bytes of its text.
    pub(crate) fn len(&self) -> usize {
        match &self.source {
            Source::Url(text) | Source::Base64(text) => text.len(),
            Source::Content(content) => content.len(),
        }
    }

    /// Returns the content of the picture's file.
    pub(crate) fn content(&self) -> ApiResult<Arc<[u8]>> {
        let content = match &self.source {
            Source::Url(url) => from_data_url(url),
            Source::Base64(text) => from_base64(text),
            Source::Content(content) => return Ok(Arc::clone(content)),
        };
        content
            .map(Arc::from)
            .map_err(|error| ApiError::field(&self.field, chain(&error)))
    }
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
        let pictures = take(&mut messages, 2).unwrap();
        let fields: Vec<_> = pictures.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(fields, ["a", "b"]);
        let place = json!({"type": "image"});
        assert_eq!(messages[1]["content"], json!([place, text]));
        assert_eq!(messages[2]["content"], json!([place]));
        assert!(take(&mut messages, 0).unwrap().is_empty());
    }

    #[test]
    fn pictures_in_files_and_too_many_are_refused_by_their_field() {
        let error = part("x", Source::Url("FILE:///b.png".into())).unwrap_err();
        assert_eq!(error.detail.param.as_deref(), Some("x"));
        let one = part("y", Source::Base64(String::new())).unwrap();
        let content = vec![one; 3];
        let error = take(&mut [json!({"role": "user", "content": content})], 2).unwrap_err();
        assert_eq!(error.detail.param.as_deref(), Some("y"));
    }
}
