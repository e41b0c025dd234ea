//! Pictures for models with a vision encoder: decoding, resizing, tiles and normalization.
//!
//! A [`Processor`] converts a [`Picture`] to what the vision encoder reads ([`View`]) and to what stands for the picture
//! in the prompt ([`Piece`]).

mod error;

pub use error::{Error, Result};

/// A decoded picture, upright.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Colors, `[height][width][3]`: red, green, blue.
    pub rgb: Vec<u8>,
}

/// One input of the vision encoder: the whole picture or a tile, resized and normalized.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Colors, `[3][height][width]`.
    pub planes: Vec<f32>,
}

/// A part of the prompt that stands for a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text with special tokens.
    Text(String),
    /// Rows of the encoder's output, each in place of one token.
    Rows {
        /// Index in [`Prepared::views`].
        view: usize,
        /// Number of rows that the encoder makes of this view.
        rows: usize,
    },
}

/// What a picture becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// Inputs of the encoder.
    pub views: Vec<View>,
    /// Parts of the prompt, in order.
    pub pieces: Vec<Piece>,
}

/// Prepares pictures for one model.
#[derive(Clone, Debug)]
pub struct Processor {
    family: String,
}

impl Processor {
    /// Resizes, cuts and normalizes `picture`.
    ///
    /// # Errors
    ///
    /// Returns an error if the model can't take a picture of this size.
    pub fn prepare(&self, _picture: &Picture) -> Result<Prepared> {
        Err(Error::Unsupported(format!("pictures for {}", self.family)))
    }
}
