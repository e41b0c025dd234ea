//! The settings of a model for pictures, from the files that come with it.

mod fields;
mod gguf;
mod hugging_face;
mod kinds;

use crate::families::Family;
use crate::view::Pixels;

/// A family and how pixels become floats.
pub(crate) struct Settings {
    pub(crate) family: Family,
    pub(crate) pixels: Pixels,
}

pub(crate) use gguf::from_gguf;
pub(crate) use hugging_face::from_folder;
