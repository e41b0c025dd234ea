//! Attention over the cache of a block.

use std::ops::Range;
use std::sync::MutexGuard;

use smallvec::SmallVec;
use triad_kernels::attention::{Precision, Row, Shape};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::norm::rms_norm_in_place;
use triad_kernels::rope::{Pairing, rope};
use triad_kernels::{Phase, Together};
use triad_model::description::{Attention, KeyValues, MixerWeight, RopePairing};

use super::Segment;
use super::subgraphs::{Chunk, ForwardContext, MatmulContext, TASK_ROWS, read};
use crate::kv::BlockCache;
use crate::linear_input::LinearInput;
use crate::statistics::{Bytes, Operator};
use crate::weights::Norm;

/// The number of sequences that decode together without an allocation.
const DECODED_TOGETHER: usize = 16;

impl ForwardContext<'_> {
    /// Applies RoPE; writes keys and values to the cache; computes attention; quantizes its output.
    pub(super) fn attention(
        &self,
        (index, description): (usize, &Attention),
        chunk: Chunk,
        multiplier: &mut MatmulContext,
    ) {
        let weights = self.block(index);
        let (head_dim, heads, kv_heads) = (
            description.head_dim,
            description.heads,
            description.kv_heads,
        );
        // Without keys and values of its own, a block reads those in the cache of another one.
        let (source, stored) = match description.shared_from() {
            Some(source) => (source, 0),
            None => (index, kv_heads),
        };
        let [query, key_value] = [heads, stored].map(|heads| heads * head_dim);
        let (Chunk { segments, buffers }, rows) = (chunk, chunk.rows());
        let begun = self.counters.begin();
        let latent = description.latent().map(|it| (index, description, it));
        let (mut queries, gates) = match latent {
            Some(latent) => (self.latent_queries(latent, rows, buffers), None),
            None => Self::separate_queries(description, rows, buffers),
        };
        let mut keys = buffers.keys.write(key_value, 0..rows);
        let mut values = buffers.values.write(key_value, 0..rows);
        let mut attended = match latent {
            Some(_) => buffers.queries.write(query, 0..rows),
            None => buffers.attended.write(query, 0..rows),
        };
        let angles = read(&buffers.angles);
        let angles = &angles[self.rotation.of_block[index]];
        let pairing = match description.rope.pairing {
            RopePairing::Halves => Pairing::Halves,
            RopePairing::Adjacent => Pairing::Adjacent,
        };
        let norms_last = description.qk_norm.is_some_and(|norm| norm.after_rope);
        let rotate = |x: &mut [f32], heads: usize, norm: Option<&Norm>| {
            for_each_chunk(chunks_mut(x, TASK_ROWS * heads * head_dim), 1, |task, x| {
                let normalize = |x: &mut [f32]| {
                    if let Some(norm) = norm {
                        rms_norm_in_place(x, &norm.weight, norm.epsilon);
                    }
                };
                if !norms_last {
                    normalize(x);
                }
                if description.rope.dims > 0 {
                    rope(x, head_dim, heads, angles, task * TASK_ROWS, pairing);
                }
                if norms_last {
                    normalize(x);
                }
            });
        };
        if description.key_values == KeyValues::OneLayer {
            values.copy_from_slice(&keys);
        }
        if let Some(norm) = &weights.value_norm {
            let task = TASK_ROWS * key_value.max(1);
            for_each_chunk(chunks_mut(&mut values, task), 1, |_, x| {
                rms_norm_in_place(x, &norm.weight, norm.epsilon);
            });
        }
        // Norms of latent vectors have been computed.
        let [query_norm, key_norm] = match latent {
            Some(_) => [None; 2],
            None => [&weights.query_norm, &weights.key_norm].map(Option::as_ref),
        };
        rotate(&mut queries, heads, query_norm);
        rotate(&mut keys, kv_heads, key_norm);
        if let Some(temperature) = &description.temperature {
            let positions = segments.iter().flat_map(Segment::positions);
            for (position, queries) in positions.zip(queries.chunks_exact_mut(query)) {
                let factor = temperature.factor(position);
                queries.iter_mut().for_each(|value| *value *= factor);
            }
        }
        self.counters.end(begun, Operator::Rope, || {
            let bytes = size_of_val(&queries[..]) + size_of_val(&keys[..]);
            let norms = [&weights.query_norm, &weights.key_norm]
                .into_iter()
                .flatten();
            Bytes::new(bytes, bytes, norms.map(Norm::bytes).sum())
        });
        let shape = Shape {
            heads,
            kv_heads,
            head_dim,
            scale: description.scale,
            window: description.window,
            soft_cap: description.soft_cap,
            sinks: weights
                .mixer
                .get(&MixerWeight::Sinks)
                .map(|sinks| &sinks[..]),
            // If linear layers round their input, attention need not be more exact than bf16.
            precision: if weights.rounds_activations() {
                Precision::Fast
            } else {
                Precision::Exact
            },
        };
        let of_keys = |rows: &Range<usize>| rows.start * key_value..rows.end * key_value;
        match self.phase {
            _ if description.bidirectional => {
                let states = (&queries[..], &keys[..], &values[..]);
                self.attention_within(states, segments, &shape, &mut attended);
            }
            Phase::Prefill => {
                for Segment {
                    cache,
                    rows,
                    position,
                    layout,
                    ..
                } in segments
                {
                    let mut cache = cache.block(source);
                    self.write_cache(
                        &mut cache,
                        &keys[of_keys(rows)],
                        &values[of_keys(rows)],
                        *position,
                    );
                    let begun = self.counters.begin();
                    let of_queries = rows.start * query..rows.end * query;
                    let (queries, attended) =
                        (&queries[of_queries.clone()], &mut attended[of_queries]);
                    let together = match shape.window {
                        None if layout.together.in_window => Together::default(),
                        _ => layout.together,
                    };
                    let reach = (*position, together);
                    triad_kernels::attention_together(queries, reach, &*cache, &shape, attended);
                    self.counters.end(begun, Operator::Attention, || {
                        let cached =
                            cache.bytes(seen(*position..position + rows.len(), shape.window));
                        Bytes::new(size_of_val(queries) + cached, size_of_val(attended), 0)
                    });
                }
            }
            // All rows run together; each reads the cache of its own sequence.
            Phase::Decode => {
                let caches: SmallVec<[_; DECODED_TOGETHER]> = segments
                    .iter()
                    .map(
                        |Segment {
                             cache,
                             rows,
                             position,
                             ..
                         }| {
                            let mut cache = cache.block(source);
                            self.write_cache(
                                &mut cache,
                                &keys[of_keys(rows)],
                                &values[of_keys(rows)],
                                *position,
                            );
                            cache
                        },
                    )
                    .collect();
                let begun = self.counters.begin();
                let rows: SmallVec<[_; DECODED_TOGETHER]> = segments
                    .iter()
                    .zip(&caches)
                    .flat_map(|(segment, cache)| {
                        segment.positions().map(|position| Row {
                            cache: &**cache,
                            position,
                        })
                    })
                    .collect();
                triad_kernels::attention_of_rows(&queries, &rows, &shape, &mut attended);
                self.counters.end(begun, Operator::Attention, || {
                    let of_segment = |(segment, cache): (&Segment, &MutexGuard<BlockCache>)| {
                        let of_row = |position| seen(position..position + 1, shape.window);
                        cache.bytes(segment.positions().map(of_row).sum())
                    };
                    let cached: usize = segments.iter().zip(&caches).map(of_segment).sum();
                    Bytes::new(
                        size_of_val(&queries[..]) + cached,
                        size_of_val(&attended[..]),
                        0,
                    )
                });
            }
        }
        self.gate(&mut attended, gates.as_deref(), description);
        if let Some(latent) = latent {
            let mut values = buffers.attended.write(description.output_width(), 0..rows);
            self.latent_values(latent, &attended, &mut values, buffers);
            attended = values;
        }
        multiplier.observe(index, LinearInput::AttentionOutput, &attended);
        self.quantize(index, LinearInput::AttentionOutput, &attended, chunk);
    }

    /// Writes the keys and values of a segment, `[rows, kv_heads, head_dim]`, to the cache from position `first` on.
    fn write_cache(&self, cache: &mut BlockCache, keys: &[f32], values: &[f32], first: usize) {
        if keys.is_empty() {
            return;
        }
        let begun = self.counters.begin();
        cache.write(keys, values, first);
        self.counters.end(begun, Operator::CacheWrite, || {
            let read = size_of_val(keys) + size_of_val(values);
            Bytes::new(read, cache.bytes(keys.len() / cache.width()), 0)
        });
    }
}

/// Returns the number of positions that the rows at `positions` attend to, all together.
fn seen(positions: Range<usize>, window: Option<usize>) -> usize {
    let first = window.map_or(0, |window| (positions.start + 1).saturating_sub(window));
    positions.end - first
}
