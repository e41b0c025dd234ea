//! The input of a head that predicts one more token: a projection of the embedding and of a hidden state.

use triad_kernels::{OutputMut, matmul};

use super::Segment;
use super::subgraphs::ForwardContext;

impl ForwardContext<'_> {
    /// Replaces the embeddings `x[rows, hidden]` by projections of them and of the states of the segments, if the model is
    /// such a head.
    pub(super) fn join_states(&self, segments: &[Segment], x: &mut [f32]) {
        let Some(joined) = &self.weights.joined_input else {
            return;
        };
        let hidden = self.description.hidden;
        let embeddings = joined.embedding_norm.normalized(x);
        let mut rows = Vec::with_capacity(2 * x.len());
        for segment in segments {
            let states = joined.state_norm.normalized(segment.states);
            let of_segment = segment.rows.start * hidden..segment.rows.end * hidden;
            let embeddings = embeddings[of_segment].chunks_exact(hidden);
            for (embedding, state) in embeddings.zip(states.chunks_exact(hidden)) {
                rows.extend_from_slice(embedding);
                rows.extend_from_slice(state);
            }
        }
        let out = OutputMut::new(x, hidden);
        matmul(&rows, joined.projection.view(), None, self.phase, out);
    }
}
