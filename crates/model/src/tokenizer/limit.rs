//! Early ends of encoding: when there are more tokens than requested, or when the result is no longer needed.

use std::cell::Cell;

/// Bytes of text per requested token: of a longer text, the start is encoded first.
const BYTES_PER_TOKEN: usize = 16;
/// Maximum bytes of a word in a vocabulary of words, which has 100 letters at most.
const LONGEST_WORD: usize = 400;
/// Steps of a loop between two checks of the limit.
pub(super) const STEPS: usize = 1 << 12;

/// The result of encoding a text within a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// All of its tokens.
    Whole(Vec<u32>),
    /// The text has more tokens than the limit: this many were found before its end.
    TooMany(usize),
    /// Encoding was stopped.
    Stopped,
}

/// The limit of an encoding.
pub(super) struct Limit<'a> {
    most: usize,
    stop: &'a dyn Fn() -> bool,
    is_stopped: Cell<bool>,
    is_cut: Cell<bool>,
}

impl<'a> Limit<'a> {
    /// Creates a limit that ends a text at more than `most` tokens, or when `stop` returns true.
    pub(super) fn new(most: usize, stop: &'a dyn Fn() -> bool) -> Self {
        Self {
            most,
            stop,
            is_stopped: Cell::new(false),
            is_cut: Cell::new(false),
        }
    }

    /// Returns the start of a text that has far more bytes than requested tokens usually have. It ends with a word,
    /// if one ends near its end: a part of a word may have more tokens than the whole, as a vocabulary of words
    /// (`is_of_words`) lacks long ones.
    pub(super) fn start_of<'t>(&self, text: &'t str, is_of_words: bool) -> Option<&'t str> {
        let place = text.floor_char_boundary(self.most.saturating_mul(BYTES_PER_TOKEN));
        let start = Some(&text[..place]).filter(|start| start.len() < text.len())?;
        let tail = start.floor_char_boundary(place.saturating_sub(LONGEST_WORD));
        let ends =
            |letter: char| letter.is_whitespace() || is_of_words && letter.is_ascii_punctuation();
        let end = start[tail..].rfind(ends).map(|end| tail + end);
        Some(&start[..end.unwrap_or(place)])
    }

    /// Returns whether to omit the rest of the text, which has `tokens` tokens so far.
    pub(super) fn ends(&self, tokens: usize) -> bool {
        if tokens > self.most {
            self.is_cut.set(true);
        }
        self.is_cut.get() || self.stops()
    }

    /// Returns whether to stop.
    pub(super) fn stops(&self) -> bool {
        if !self.is_stopped.get() && (self.stop)() {
            self.is_stopped.set(true);
        }
        self.is_stopped.get()
    }

    /// Returns the result for a text with these `tokens`.
    pub(super) fn outcome(&self, tokens: Vec<u32>) -> Encoded {
        if self.is_stopped.get() {
            Encoded::Stopped
        } else if self.is_cut.get() {
            Encoded::TooMany(tokens.len())
        } else {
            Encoded::Whole(tokens)
        }
    }
}
