//! The part of a prompt that stands for a picture.

use std::sync::Arc;

/// A part of the prompt that stands for a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text with special tokens. No other text is next to it.
    Text(String),
    /// Rows of the encoder's output, each in place of one token.
    Rows {
        /// Index in [`Prepared::views`](crate::Prepared::views).
        view: usize,
        /// Number of rows that the encoder makes of this view.
        rows: usize,
    },
}

/// Collects pieces; joins texts, which a tokenizer must see as one.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    pub(crate) fn text(mut self, text: &str) -> Self {
        match self.0.last_mut() {
            Some(Piece::Text(last)) => last.push_str(text),
            _ => self.0.push(Piece::Text(text.to_owned())),
        }
        self
    }

    pub(crate) fn rows(mut self, view: usize, rows: usize) -> Self {
        self.0.push(Piece::Rows { view, rows });
        self
    }

    pub(crate) fn finish(self) -> Arc<[Piece]> {
        self.0.into()
    }
}
