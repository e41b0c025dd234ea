//! The error type of this crate.

use std::path::PathBuf;

use crate::limits::{MAX_ASPECT, MAX_BYTES, MAX_PIXELS, MAX_SIDE};

/// The reason why a picture, or the settings of a model for pictures, can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes that begin as no known format does.
    #[error("this is not a picture: expected PNG, JPEG, WebP, GIF or BMP")]
    NotAPicture,
    /// A file that is too long.
    #[error("the picture has {0} bytes, expected at most {MAX_BYTES}")]
    TooManyBytes(usize),
    /// A picture with too many pixels.
    #[error(
        "the picture has {width} × {height} pixels, expected at most {MAX_SIDE} a side and {MAX_PIXELS} in all"
    )]
    TooManyPixels {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// A picture that is too narrow.
    #[error(
        "the picture has {width} × {height} pixels, expected at most {MAX_ASPECT} times as many on one side as on the other"
    )]
    TooNarrow {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// Colors whose number does not fit the sizes.
    #[error("{width} × {height} pixels have {bytes} bytes of color, expected 3 for each pixel")]
    WrongLength {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Bytes of the colors.
        bytes: usize,
    },
    /// A picture whose end is missing.
    #[error("the {0} picture is truncated")]
    Truncated(&'static str),
    /// A picture that its decoder refuses.
    #[error("the {format} picture can't be decoded")]
    Broken {
        /// The format.
        format: &'static str,
        /// The decoder's reason.
        source: image::ImageError,
    },
    /// Text that is not base64.
    #[error("the picture is not valid base64")]
    Base64(#[from] base64::DecodeError),
    /// A `data:` URL of an unexpected form.
    #[error("the picture's URL {0}, expected data:image/…;base64,…")]
    DataUrl(&'static str),
    /// A picture that the model's processor can't resize.
    #[error("a picture of {width} × {height} pixels can't be prepared: {reason}")]
    Unfit {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// The reason.
        reason: String,
    },
    /// A field of a configuration.
    #[error("{}: field `{field}` {problem}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
        /// Its value, and the expected one.
        problem: String,
    },
    /// A model whose pictures Triad can't prepare.
    #[error("{}: {problem}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The kind of model, and the expected ones.
        problem: String,
    },
    /// A file that could not be read.
    #[error("{}: the file could not be read", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file that is not JSON.
    #[error("{}: not valid JSON", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// Metadata of a GGUF file.
    #[error(transparent)]
    Model(#[from] triad_model::Error),
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
