//! Adds the outputs of LoRA adapters to those of linear layers: `scale · (x · Aᵀ) · Bᵀ`, in float, for the rows of the
//! sequences that have them.
//!
//! They are added at the beginning of the float subgraph that follows the linear layers, as shadows that were computed
//! apart are. There, the outputs are complete, whether they were computed as a whole or in parts, and the input is
//! still in the buffers in float.

use smallvec::SmallVec;
use triad_kernels::activation::add;
use triad_kernels::lock;
use triad_kernels::{Matrix, OutputMut, Phase, matmul};
use triad_model::adapter::{Adapter, LowRank};
use triad_model::role::Role;

use super::buffers::AdapterBuffers;
use super::subgraphs::{Chunk, ForwardContext};
use crate::statistics::{Bytes, Operator};

/// An adapter and the rows of a chunk that have it, each with its scale.
struct Share<'a> {
    adapter: &'a Adapter,
    rows: Vec<(usize, f32)>,
}

impl Chunk<'_> {
    /// Returns whether a row has an adapter.
    pub(super) fn has_adapters(&self) -> bool {
        self.segments
            .iter()
            .any(|segment| !segment.cache.adapters().is_empty())
    }

    /// Returns the adapters of all rows, in the order in which each row's are added. This is the order of
    /// [`Adapters`](crate::Adapters), and does not depend on the other rows of the chunk.
    fn shares(&self) -> SmallVec<[Share<'_>; 4]> {
        let mut shares: SmallVec<[Share; 4]> = SmallVec::new();
        for segment in self.segments {
            for one in segment.cache.adapters().iter() {
                let adapter: &Adapter = &one.adapter;
                let rows = segment.rows.clone().map(|row| (row, one.scale));
                match shares
                    .iter_mut()
                    .find(|share| share.adapter.fingerprint() == adapter.fingerprint())
                {
                    Some(share) => share.rows.extend(rows),
                    None => shares.push(Share {
                        adapter,
                        rows: rows.collect(),
                    }),
                }
            }
        }
        shares.sort_by_key(|share| *share.adapter.fingerprint());
        shares
    }
}

impl ForwardContext<'_> {
    /// Adds the outputs of the chunk's adapters to the complete outputs of a role's linear layers.
    pub(super) fn add_adapters(&self, index: usize, role: Role, chunk: Chunk) {
        if !chunk.has_adapters() {
            return;
        }
        let begun = self.counters.begin();
        let mut bytes = Bytes::default();
        let (x, channels) = self.input(index, role, chunk);
        let mut buffers = lock(&chunk.buffers.adapters);
        let AdapterBuffers {
            x: gathered,
            reduced,
            added,
        } = &mut *buffers;
        for Share { adapter, rows } in chunk.shares() {
            gathered.clear();
            for (linear, features) in self.layers(index, role) {
                let Some(LowRank { rank, a, b, scale }) = adapter.low_rank(index, linear) else {
                    continue;
                };
                if gathered.is_empty() {
                    rows.iter().for_each(|(row, _)| {
                        gathered.extend_from_slice(&x[row * channels..][..channels]);
                    });
                }
                reduced.resize(rows.len() * rank, 0.0);
                matmul(
                    gathered,
                    Matrix::F32(a),
                    None,
                    self.phase,
                    OutputMut::new(reduced, *rank),
                );
                for (reduced, (_, of_row)) in reduced.chunks_exact_mut(*rank).zip(&rows) {
                    let scale = scale * of_row;
                    reduced.iter_mut().for_each(|value| *value *= scale);
                }
                added.resize(rows.len() * features, 0.0);
                // The rows are too short for the decode kernels, which compute dot products of rows.
                matmul(
                    reduced,
                    Matrix::F32(b),
                    None,
                    Phase::Prefill,
                    OutputMut::new(added, features),
                );
                let mut out = self.outputs((index, linear), (features, 0..features), chunk);
                let mut out = out.output();
                for (added, (row, _)) in added.chunks_exact(features).zip(&rows) {
                    add(out.row_mut(*row), added);
                }
                let outputs = size_of_val(&added[..]);
                bytes += Bytes::new(outputs, outputs, size_of_val(&a[..]) + size_of_val(&b[..]));
            }
            bytes += Bytes::new(size_of_val(&gathered[..]), 0, 0);
        }
        self.counters.end(begun, Operator::Adapters, || bytes);
    }
}
