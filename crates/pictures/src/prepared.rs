//! A prepared picture: its views, and their places in a prompt.

use std::sync::Arc;

use crate::picture::CHANNELS;
use crate::prompt::Piece;
use crate::view::View;

/// The views of a picture and their places in a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// Inputs of the encoder.
    pub views: Vec<View>,
    /// Parts of the prompt, in order.
    pub pieces: Arc<[Piece]>,
}

impl Prepared {
    /// Returns the number of rows of all views.
    pub fn rows(&self) -> usize {
        rows(&self.pieces)
    }
}

/// The sizes of a picture's views and their places in a prompt, which depend on the picture's size alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Height and width of each view in pixels.
    pub views: Vec<[usize; 2]>,
    /// Parts of the prompt, in order.
    pub pieces: Arc<[Piece]>,
}

impl Layout {
    /// Returns the number of rows of all views.
    pub fn rows(&self) -> usize {
        rows(&self.pieces)
    }

    /// Returns the bytes of the views of [`Prepared`].
    pub fn bytes(&self) -> usize {
        let pixels = self.views.iter().map(|[height, width]| height * width);
        pixels.sum::<usize>() * CHANNELS * size_of::<f32>()
    }
}

fn rows(pieces: &[Piece]) -> usize {
    let rows = pieces.iter().map(|piece| match piece {
        Piece::Rows { rows, .. } => *rows,
        Piece::Text(_) => 0,
    });
    rows.sum()
}
