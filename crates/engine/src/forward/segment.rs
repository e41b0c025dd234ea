//! Rows of a batch that belong to one sequence.

use std::ops::Range;

use triad_kernels::Together;

use crate::kv::KvCache;

/// A segment of a chunk: rows that are consecutive tokens of one sequence, the first of them at `position`.
///
/// Every row is computed independently except in attention, which writes the keys and values of a segment to its
/// sequence's cache and reads the cache. Segments of a prompt may share a cache: each segment then overwrites the one
/// before it.
#[derive(Clone)]
pub struct Segment<'a> {
    /// The keys and values of the sequence. A segment of an encoder is a whole text, which needs no pages.
    pub cache: &'a KvCache,
    /// Its rows in the chunk.
    pub rows: Range<usize>,
    /// Position of the first row in the sequence.
    pub position: usize,
    /// Whether other rows may have run at these positions: states of mixers go back to those before them, which are
    /// [marked](crate::Session::score).
    pub is_branch: bool,
    /// The row from which on tokens are of the second text of a pair.
    pub second: Option<usize>,
    /// The hidden states that its rows read, `[rows, hidden]`; empty if the model reads none.
    pub states: &'a [f32],
    /// Where pictures put its rows.
    pub layout: RowLayout<'a>,
}

impl Segment<'_> {
    pub(super) fn positions(&self) -> Range<usize> {
        self.position..self.position + self.rows.len()
    }

    /// Returns the positions of RoPE by axis.
    pub(super) fn axes(&self) -> impl Iterator<Item = [usize; 3]> + '_ {
        let axes = self.layout.axes;
        let at = |(row, position)| axes.get(row).copied().unwrap_or([position; 3]);
        self.positions().enumerate().map(at)
    }
}

/// Where the rows of a segment are, as far as pictures change it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowLayout<'a> {
    /// Positions of RoPE by axis, one for each row; empty: those in the sequence.
    pub(crate) axes: &'a [[usize; 3]],
    /// Positions in the sequence of rows that read each other, of each picture. They are in one segment as far as they are
    /// not in the cache. If they do so in a window, blocks without one do not have them.
    pub(crate) together: Together<'a>,
}
