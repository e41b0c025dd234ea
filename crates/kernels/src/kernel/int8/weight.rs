//! Weights in INT8 as kernels read them.
//!
//! Their layout is `n16k4`: a block is sixteen output channels; within it, four consecutive input features of each
//! channel are contiguous: `[out_features / 16][in_features / 4][16][4]`. That is one 64-byte line for each step of a
//! dot-product instruction, which sums four products into each of its 32-bit lanes. Both dimensions are padded with
//! zeros.

use std::ops::Range;

use super::MAX_IN_FEATURES;

/// Output channels per block.
pub(crate) const BLOCK: usize = 16;
/// Input features per lane of a dot-product instruction.
pub(crate) const QUAD: usize = 4;
/// Bytes per step: a quad of each output channel of a block.
pub(crate) const STEP: usize = BLOCK * QUAD;

/// Returns the length of a packed weight `[out_features, in_features]`; `None` on overflow.
pub fn packed_len(out_features: usize, in_features: usize) -> Option<usize> {
    let rows = out_features.checked_next_multiple_of(BLOCK)?;
    rows.checked_mul(in_features.checked_next_multiple_of(QUAD)?)
}

/// Returns the bytes of one block of a weight with this many input features.
pub(crate) fn block_len(in_features: usize) -> usize {
    in_features.div_ceil(QUAD) * STEP
}

/// The weight of a linear layer, `[out_features, in_features]`, in INT8: symmetric, one scale per output channel, in
/// the packed layout.
#[derive(Clone, Copy, Debug)]
pub struct Int8Weight<'a> {
    /// Output channels.
    pub out_features: usize,
    /// Input features, at most [`MAX_IN_FEATURES`].
    pub in_features: usize,
    /// The numbers, packed by [`pack`](crate::int8::pack).
    pub packed: &'a [i8],
    /// Scale of each output channel, `[out_features]`.
    pub scales: &'a [f32],
    /// Sum of each output channel's numbers, `[out_features]`, by [`row_sums`](crate::int8::row_sums): kernels with
    /// unsigned activations subtract it.
    pub sums: &'a [i32],
}

impl Int8Weight<'_> {
    pub(crate) fn check(self) {
        let (out_features, in_features) = (self.out_features, self.in_features);
        assert!(
            (1..=MAX_IN_FEATURES).contains(&in_features),
            "{in_features} input features"
        );
        assert_eq!(
            Some(self.packed.len()),
            packed_len(out_features, in_features),
            "[{out_features}, {in_features}]"
        );
        assert_eq!(
            self.scales.len(),
            out_features,
            "expected one scale per output channel"
        );
        assert_eq!(
            self.sums.len(),
            out_features,
            "expected one sum per output channel"
        );
    }
}

impl<'a> Int8Weight<'a> {
    /// Output channels that are packed together: ranges of channels must start at multiples of this.
    pub const COLUMNS: usize = BLOCK;

    /// Returns the weights of a range of output channels, which are columns of the output, without a copy.
    ///
    /// # Panics
    /// If the range starts or ends at neither a multiple of [`Self::COLUMNS`] nor the last channel, or exceeds the
    /// channels.
    pub fn columns(self, columns: Range<usize>) -> Self {
        let Range { start, end } = columns;
        let all = self.out_features;
        assert!(
            start <= end && end <= all,
            "channels {start}..{end} of {all}"
        );
        let whole = |at: usize| at == all || at.is_multiple_of(BLOCK);
        assert!(
            whole(start) && whole(end),
            "channels {start}..{end} of {all} are no whole blocks of {BLOCK}"
        );
        let block = block_len(self.in_features);
        Self {
            out_features: end - start,
            packed: &self.packed[start.div_ceil(BLOCK) * block..end.div_ceil(BLOCK) * block],
            scales: &self.scales[columns.clone()],
            sums: &self.sums[columns],
            ..self
        }
    }

    /// Returns the steps of one block of sixteen output channels.
    pub(super) fn block(self, block: usize) -> &'a [[i8; STEP]] {
        let steps = self.in_features.div_ceil(QUAD);
        &self.packed.as_chunks().0[block * steps..][..steps]
    }

    /// Returns the steps of `count` blocks from `first` on, or of the remaining ones if there are fewer.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn blocks(self, first: usize, count: usize) -> &'a [[i8; STEP]] {
        let steps = self.in_features.div_ceil(QUAD);
        let all = self.packed.as_chunks().0;
        let end = |blocks: usize| (blocks * steps).min(all.len());
        &all[end(first)..end(first + count)]
    }
}
