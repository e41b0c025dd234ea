//! Pictures of messages.

use std::ffi::c_char;
use std::path::Path;

use serde_json::{Value, json};
use triad_frontend::{Error, picture_reader};
use triad_pictures::Picture;

use crate::pointers::{slice, text};
use crate::status::Failure;

/// A picture of a message: a PNG, JPEG, WebP, GIF (the first frame) or BMP file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TriadImage {
    /// The index of its message.
    pub message: usize,
    /// The path of the file, or NULL if `bytes` has its content.
    pub path: *const c_char,
    /// The content of the file, or NULL if `path` names it.
    pub bytes: *const u8,
    /// Number of these bytes.
    pub byte_count: usize,
}

/// Reads pictures, and puts their places before the texts of their messages.
pub(crate) fn read(
    images: *const TriadImage,
    count: usize,
    messages: &mut [Value],
) -> Result<Vec<Picture>, Failure> {
    let images = slice("images", images, count)?;
    let mut pictures = Vec::with_capacity(images.len());
    let mut latest = 0;
    for (index, image) in images.iter().enumerate() {
        let field = |name: &str| format!("images[{index}].{name}");
        let there = messages.len();
        let message = messages
            .get_mut(image.message)
            .filter(|_| image.message >= latest);
        let message = message.ok_or_else(|| {
            let expected = format!(
                "from {latest} to {}, in the order of the messages",
                there - 1
            );
            Failure::argument(&field("message"), &expected)
        })?;
        latest = image.message;
        pictures.push(match (image.path.is_null(), image.bytes.is_null()) {
            (false, true) => {
                let path = Path::new(text(&field("path"), image.path)?);
                picture_reader::read(path)?
            }
            (true, false) => {
                let bytes = slice(&field("bytes"), image.bytes, image.byte_count)?;
                Picture::decode(bytes).map_err(Error::from)?
            }
            _ => {
                let expected = "NULL if there are bytes, and else the path of a file";
                return Err(Failure::argument(&field("path"), expected));
            }
        });
        let content = &mut message["content"];
        if let Value::String(text) = content {
            *content = json!([{"type": "text", "text": text}]);
        }
        if let Value::Array(parts) = content {
            // After the pictures before it, and before the text.
            let place = parts.len().saturating_sub(1);
            parts.insert(place, json!({"type": "image"}));
        }
    }
    Ok(pictures)
}
