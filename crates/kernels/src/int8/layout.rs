//! How INT8 weights lie in memory: `n16k4`.
//!
//! Sixteen output channels make a block; within it, four neighbouring input features of each of the
//! sixteen lie together: `[out_features / 16][in_features / 4][16][4]`. That is one 64-byte line for each
//! step of a dot-product instruction, which sums four products into each of its 32-bit lanes.
//! Both dimensions are padded with zeros.

use std::ops::Range;

use super::weight::Int8Weight;
use crate::chunks::{chunks_mut, for_each_chunk};

/// The name of the packed layout, as packages store it.
pub const LAYOUT: &str = "n16k4";

/// Output channels of a block.
pub(super) const BLOCK: usize = 16;
/// Input features that a lane of a dot-product instruction sums.
pub(super) const QUAD: usize = 4;
/// Bytes of one step: a quad of each output channel of a block.
pub(super) const STEP: usize = BLOCK * QUAD;

/// Length of the packed form of a weight `[out_features, in_features]`; `None` if memory has no such length.
pub fn packed_len(out_features: usize, in_features: usize) -> Option<usize> {
    let rows = out_features.checked_next_multiple_of(BLOCK)?;
    rows.checked_mul(in_features.checked_next_multiple_of(QUAD)?)
}

/// Bytes of one block of a weight with this many input features.
fn block_len(in_features: usize) -> usize {
    in_features.div_ceil(QUAD) * STEP
}

/// Brings `row_major`, `[out_features, in_features]`, into the packed layout.
///
/// # Panics
/// If a slice's length contradicts the shape.
pub fn pack(row_major: &[i8], out_features: usize, in_features: usize, packed: &mut [i8]) {
    check(row_major.len(), packed.len(), out_features, in_features);
    for_each_chunk(chunks_mut(packed, block_len(in_features).max(1)), 1, |block, packed| {
        let rows = &row_major[block * BLOCK * in_features..];
        let rows = &rows[..rows.len().min(BLOCK * in_features)];
        packed.fill(0);
        for (lane, row) in rows.chunks_exact(in_features).enumerate() {
            for (step, quad) in row.chunks(QUAD).enumerate() {
                packed[step * STEP + lane * QUAD..][..quad.len()].copy_from_slice(quad);
            }
        }
    });
}

/// The inverse of [`pack`].
///
/// # Panics
/// If a slice's length contradicts the shape.
pub fn unpack(weight: Int8Weight, row_major: &mut [i8]) {
    let in_features = weight.in_features;
    check(row_major.len(), weight.packed.len(), weight.out_features, in_features);
    for_each_chunk(chunks_mut(row_major, (BLOCK * in_features).max(1)), 1, |block, rows| {
        let packed = &weight.packed[block * block_len(in_features)..];
        for (lane, row) in rows.chunks_exact_mut(in_features).enumerate() {
            for (step, quad) in row.chunks_mut(QUAD).enumerate() {
                quad.copy_from_slice(&packed[step * STEP + lane * QUAD..][..quad.len()]);
            }
        }
    });
}

fn check(row_major: usize, packed: usize, out_features: usize, in_features: usize) {
    assert_eq!(Some(row_major), out_features.checked_mul(in_features), "weight is [{out_features}, {in_features}]");
    assert_eq!(Some(packed), packed_len(out_features, in_features), "packed weight [{out_features}, {in_features}]");
}

impl<'a> Int8Weight<'a> {
    /// Output channels that lie together: ranges of them begin at multiples of this.
    pub const COLUMNS: usize = BLOCK;

    /// Returns the weights of a range of output channels, which are columns of the output, without a copy.
    ///
    /// # Panics
    /// If the range begins or ends at neither a multiple of [`Self::COLUMNS`] nor the last channel, or if there are no such
    /// channels.
    pub fn columns(self, columns: Range<usize>) -> Self {
        let Range { start, end } = columns;
        let all = self.out_features;
        assert!(start <= end && end <= all, "channels {start}..{end} of {all}");
        let whole = |at: usize| at == all || at.is_multiple_of(BLOCK);
        assert!(whole(start) && whole(end), "channels {start}..{end} of {all} are no whole blocks of {BLOCK}");
        let block = block_len(self.in_features);
        Self {
            out_features: end - start,
            packed: &self.packed[start.div_ceil(BLOCK) * block..end.div_ceil(BLOCK) * block],
            scales: &self.scales[columns.clone()],
            sums: &self.sums[columns],
            ..self
        }
    }

    /// The steps of one block of sixteen output channels.
    pub(super) fn block(self, block: usize) -> &'a [[i8; STEP]] {
        let steps = self.in_features.div_ceil(QUAD);
        &self.packed.as_chunks().0[block * steps..][..steps]
    }

    /// The steps of `count` blocks from `first` on, of as many as there are.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn blocks(self, first: usize, count: usize) -> &'a [[i8; STEP]] {
        let steps = self.in_features.div_ceil(QUAD);
        let all = self.packed.as_chunks().0;
        let end = |blocks: usize| (blocks * steps).min(all.len());
        &all[end(first)..end(first + count)]
    }
}
