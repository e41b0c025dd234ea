//! When encoding ends before the text does: once there are more tokens than are wanted, or nothing is wanted any more.

use std::cell::Cell;

/// Steps of a loop between two looks at whether it is to go on.
pub(super) const STEPS: usize = 1 << 12;

/// What became of a text that was encoded within a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// All of its tokens.
    Whole(Vec<u32>),
    /// It has more than the limit: so many were found before its end.
    TooMany(usize),
    /// Encoding was stopped.
    Stopped,
}

/// How long encoding goes on.
pub(super) struct Limit<'a> {
    most: usize,
    stop: &'a dyn Fn() -> bool,
    is_stopped: Cell<bool>,
    is_cut: Cell<bool>,
}

impl<'a> Limit<'a> {
    /// Ends a text at more than `most` tokens, or when `stop` says so.
    pub(super) fn new(most: usize, stop: &'a dyn Fn() -> bool) -> Self {
        Self {
            most,
            stop,
            is_stopped: Cell::new(false),
            is_cut: Cell::new(false),
        }
    }

    /// Tokens that are wanted, at most.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Whether to leave out the rest of the text, of which there are `tokens` so far.
    pub(super) fn ends(&self, tokens: usize) -> bool {
        if tokens > self.most {
            self.is_cut.set(true);
        }
        self.is_cut.get() || self.stops()
    }

    /// Whether to stop.
    pub(super) fn stops(&self) -> bool {
        if !self.is_stopped.get() && (self.stop)() {
            self.is_stopped.set(true);
        }
        self.is_stopped.get()
    }

    /// Returns what became of a text with these `tokens`.
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
