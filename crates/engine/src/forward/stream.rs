//! The beginning and the end of the residual stream.

use triad_kernels::lock;
use triad_kernels::rope::Angles;

use super::Segment;
use super::subgraphs::{Chunk, ForwardContext, write};
use crate::statistics::{Bytes, Operator};

impl ForwardContext<'_> {
    /// Fills the residual stream with the embedding of `tokens`, one for each row.
    pub fn begin(&self, tokens: &[u32], chunk: Chunk) {
        let Chunk { segments, buffers } = chunk;
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        *lock(&buffers.shadow_of) = None;
        *lock(&buffers.requested) = None;
        let mut x = buffers.x.write(hidden, 0..tokens.len());
        for (token, x) in tokens.iter().zip(x.chunks_exact_mut(hidden)) {
            self.embed(*token, x);
        }
        self.add_inputs(tokens, chunk, &mut x);
        self.token_inputs(tokens, &x, buffers);
        self.begin_streams(&x, buffers);
        let mut all = write(&buffers.angles);
        all.resize_with(self.rotation.distinct.len(), Angles::default);
        for (angles, (frequencies, factor)) in all.iter_mut().zip(&self.rotation.distinct) {
            angles.fill(
                segments.iter().flat_map(Segment::positions),
                frequencies,
                *factor,
            );
        }
        self.counters.end(begun, Operator::Embedding, || {
            Bytes::of(
                0,
                size_of_val(&x[..]),
                tokens.len() * self.weights.embedding_row_bytes(),
            )
        });
    }

    /// Writes the embedding of `token`, the first value of the residual stream.
    pub fn embed(&self, token: u32, x: &mut [f32]) {
        self.weights.embed(token, x);
        x.iter_mut()
            .for_each(|x| *x *= self.description.embedding_scale);
    }

    /// Adds the output of the last block to the residual stream.
    pub fn end(&self, chunk: Chunk) {
        self.join_shadow(chunk.rows(), chunk.buffers);
        if let Some(last) = self.weights.blocks.len().checked_sub(1) {
            self.add_last_adapters(last, chunk);
            self.end_block(last, chunk);
            self.end_streams(chunk.rows(), chunk.buffers);
        }
    }
}
