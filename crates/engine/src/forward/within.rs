//! Attention without an order of tokens, among the rows of each text of a chunk.

use std::ops::Range;

use smallvec::SmallVec;
use triad_kernels::attention::{Shape, attention_within};

use super::Segment;
use super::subgraphs::ForwardContext;
use crate::statistics::{Bytes, Operator};

/// The texts of a chunk that need no allocation.
const TEXTS: usize = 16;

impl ForwardContext<'_> {
    /// Computes attention of queries, keys and values of a chunk, each within its segment.
    pub(super) fn attention_within(
        &self,
        (queries, keys, values): (&[f32], &[f32], &[f32]),
        segments: &[Segment],
        shape: &Shape,
        out: &mut [f32],
    ) {
        let begun = self.counters.begin();
        let texts: SmallVec<[Range<usize>; TEXTS]> = segments
            .iter()
            .map(|segment| segment.rows.clone())
            .collect();
        attention_within(queries, (keys, values), &texts, shape, out);
        self.counters.end(begun, Operator::Attention, || {
            let read = size_of_val(queries) + size_of_val(keys) + size_of_val(values);
            Bytes::new(read, size_of_val(out), 0)
        });
    }
}
