//! Gates on the output of attention, which the query layer computes together with the queries.

use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::lease::{ReadLease, WriteLease};
use triad_kernels::mixer::gate_heads;
use triad_model::description::Attention;

use crate::forward::Buffers;
use crate::forward::subgraphs::{ForwardContext, TASK_ROWS};
use crate::statistics::{Bytes, Operator};

impl ForwardContext<'_> {
    /// Leases the queries `[rows, heads, head_dim]` for writing. Where they come with gates, copies them first, and returns
    /// the layer's outputs `[rows, heads, 2, head_dim]`, too.
    pub(in crate::forward) fn separate_queries<'a>(
        attention: &Attention,
        rows: usize,
        buffers: &'a Buffers,
    ) -> (WriteLease<'a>, Option<ReadLease<'a>>) {
        let (dim, query) = (attention.head_dim, attention.heads * attention.head_dim);
        if !attention.output_gate {
            return (buffers.queries.write(query, 0..rows), None);
        }
        let gated = buffers.queries.read(2 * query, 0..rows);
        let mut queries = buffers.separate_queries.write(query, 0..rows);
        let task = TASK_ROWS * query;
        for_each_chunk(chunks_mut(&mut queries, task), 1, |index, queries| {
            let gated = gated[2 * index * task..].chunks_exact(2 * dim);
            for (queries, gated) in queries.chunks_exact_mut(dim).zip(gated) {
                queries.copy_from_slice(&gated[..dim]);
            }
        });
        (queries, Some(gated))
    }

    /// Multiplies the output of attention by the sigmoid of its gates, if it has some.
    pub(in crate::forward) fn gate(
        &self,
        attended: &mut [f32],
        gated: Option<&[f32]>,
        attention: &Attention,
    ) {
        let Some(gated) = gated else {
            return;
        };
        let begun = self.counters.begin();
        let task = TASK_ROWS * attention.heads * attention.head_dim;
        for_each_chunk(chunks_mut(attended, task), 1, |index, attended| {
            let gated = &gated[2 * index * task..][..2 * attended.len()];
            gate_heads(attended, gated, attention.head_dim);
        });
        self.counters.end(begun, Operator::Mixer, || {
            let bytes = size_of_val(attended);
            Bytes::new(2 * bytes, bytes, 0)
        });
    }
}
