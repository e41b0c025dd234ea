//! Pictures for models that read them.

use std::path::Path;

use triad_frontend::{Error as FrontendError, picture_reader};
use triad_pictures::Picture;

use crate::error::Result;

/// A picture for a model that reads pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image(pub(crate) Picture);

impl Image {
    /// Reads a PNG, JPEG, WebP, GIF (the first frame) or BMP file.
    ///
    /// # Errors
    /// If the file can't be read, is not a picture or is beyond the limits of pictures.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self(picture_reader::read(path.as_ref())?))
    }

    /// Decodes the content of such a file.
    ///
    /// # Errors
    /// If it is not a picture or beyond the limits of pictures.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(Self(Picture::decode(bytes).map_err(FrontendError::from)?))
    }

    /// Creates a picture from its colors, `[height][width][3]`: red, green, blue.
    ///
    /// # Errors
    /// If `rgb` has another length, or the picture is beyond the limits of pictures.
    pub fn from_rgb(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self> {
        let picture = Picture::from_rgb(width, height, rgb);
        Ok(Self(picture.map_err(FrontendError::from)?))
    }
}
