//! Causal attention over a key-value cache.
//!
//! One task is one key-value head and a tile of query rows: the scores of the tile against all keys that it
//! sees, softmax, and the weighted sum of values, each by [`product`].

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use crate::Matrix;
use crate::activation::{exp, soft_cap};
use crate::product::{Right, Write, product};
use crate::shared_output::SharedOutput;
use crate::vectorize::vectorize;

/// What attention needs to know of a block.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`. Query head `h` reads key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Factor on query · key.
    pub scale: f32,
    /// A query sees this many most recent positions, its own among them.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(scores / cap)`.
    pub soft_cap: Option<f32>,
}

/// Query rows of a tile times query heads that share a key head: enough rows for an efficient product,
/// few enough that little is computed beyond the causal diagonal.
const TILE_ROWS: usize = 96;

#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    output: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Attention of `queries[rows, heads, head_dim]`, the first at `first_position`, over `keys` and `values`,
/// both `[kv_heads, context, head_dim]`, into `out[rows, heads, head_dim]`.
///
/// Positions `0 .. first_position + rows` of the cache must be filled. Row `r` sees positions up to
/// `first_position + r`, and no further back than the window.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn attention(
    queries: &[f32],
    first_position: usize,
    keys: Matrix,
    values: Matrix,
    context: usize,
    shape: &Shape,
    out: &mut [f32],
) {
    let width = shape.heads * shape.head_dim;
    let rows = queries.len() / width;
    assert_eq!(queries.len(), out.len(), "queries and output have one shape");
    assert!(first_position + rows <= context, "positions {first_position} + {rows} in a context of {context}");
    for cache in [keys, values] {
        assert_eq!(cache.len(), shape.kv_heads * context * shape.head_dim, "keys and values fill the context");
    }
    let out = SharedOutput::new(out, width);
    let group = shape.heads / shape.kv_heads;
    let tile_rows = (TILE_ROWS / group).max(1);
    let tiles = rows.div_ceil(tile_rows);
    // The last tiles see the most keys: they start first, so that no thread is left with a long one.
    (0..shape.kv_heads * tiles).into_par_iter().with_max_len(1).for_each(|task| {
        let (tile, kv_head) = (tiles - 1 - task / shape.kv_heads, task % shape.kv_heads);
        let tile = tile * tile_rows..((tile + 1) * tile_rows).min(rows);
        let first_key = shape.window.map_or(0, |window| (first_position + tile.start + 1).saturating_sub(window));
        let seen = first_key..first_position + tile.end;
        let seen_rows = kv_head * context + seen.start;
        let (keys, values) =
            (keys.rows(seen_rows, seen.len(), shape.head_dim), values.rows(seen_rows, seen.len(), shape.head_dim));
        SCRATCH.with_borrow_mut(|scratch| {
            let Scratch { queries: gathered, values: wide_values, scores, output } = scratch;
            let (tile_len, dim) = (tile.len(), shape.head_dim);
            gathered.clear();
            for head in kv_head * group..(kv_head + 1) * group {
                for row in tile.clone() {
                    let start = row * width + head * dim;
                    gathered.extend(queries[start..start + dim].iter().map(|query| query * shape.scale));
                }
            }
            let score_rows = group * tile_len;
            scores.resize(score_rows * seen.len(), 0.0);
            output.resize(score_rows * dim, 0.0);
            multiply(gathered, dim, Right::Transposed(keys), scores, seen.len());
            for (index, row_scores) in scores.chunks_exact_mut(seen.len()).enumerate() {
                let position = first_position + tile.start + index % tile_len;
                let visible = visible_keys(position, shape.window, &seen);
                softmax(row_scores, visible, shape.soft_cap);
            }
            multiply(scores, seen.len(), Right::Plain(values.as_f32(wide_values)), output, dim);
            for (index, row_output) in output.chunks_exact(dim).enumerate() {
                let (head, row) = (kv_head * group + index / tile_len, tile.start + index % tile_len);
                // SAFETY: this task alone writes these rows of this head.
                #[allow(unsafe_code)]
                let out = unsafe { out.row(row, head * dim..(head + 1) * dim) };
                out.copy_from_slice(row_output);
            }
        });
    });
}

/// `out[.., columns] = left[.., depth] · right`.
fn multiply(left: &[f32], depth: usize, right: Right, out: &mut [f32], columns: usize) {
    // SAFETY: `out` is borrowed exclusively.
    #[allow(unsafe_code)]
    unsafe {
        product(left, depth, right, SharedOutput::new(out, columns), 0..columns, Write::Replace);
    }
}

/// The keys among `seen` that a query at `position` may look at, as indices into `seen`.
fn visible_keys(position: usize, window: Option<usize>, seen: &Range<usize>) -> Range<usize> {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
    first.max(seen.start) - seen.start..position + 1 - seen.start
}

/// Softmax over the visible scores; the others become 0.
fn softmax(scores: &mut [f32], visible: Range<usize>, cap: Option<f32>) {
    scores[..visible.start].fill(0.0);
    scores[visible.end..].fill(0.0);
    let scores = &mut scores[visible];
    if let Some(cap) = cap {
        soft_cap(scores, cap);
    }
    vectorize(
        #[inline(always)]
        || {
            let mut largest = [f32::NEG_INFINITY; 16];
            let (blocks, rest) = scores.as_chunks::<16>();
            for block in blocks {
                for (largest, score) in largest.iter_mut().zip(block) {
                    *largest = if *score > *largest { *score } else { *largest };
                }
            }
            let largest = largest.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sums = [0.0f32; 16];
            let (blocks, rest) = scores.as_chunks_mut::<16>();
            for block in blocks {
                for (sum, score) in sums.iter_mut().zip(block) {
                    *score = exp(*score - largest);
                    *sum += *score;
                }
            }
            for score in rest.iter_mut() {
                *score = exp(*score - largest);
            }
            let total = sums.iter().sum::<f32>() + rest.iter().sum::<f32>();
            let factor = 1.0 / total;
            for score in scores.iter_mut() {
                *score *= factor;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;
    use half::f16;
    use proptest::prelude::*;

    /// The definition, in f64, one query at a time.
    fn reference(
        queries: &[f32],
        first: usize,
        keys: &[f32],
        values: &[f32],
        context: usize,
        shape: &Shape,
    ) -> Vec<f64> {
        let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        let mut out = Vec::new();
        for (index, query) in queries.chunks_exact(dim).enumerate() {
            let (position, head) = (first + index / shape.heads, index % shape.heads);
            let at = |key: usize| ((head / group) * context + key) * dim;
            let sees = |key: &usize| shape.window.is_none_or(|window| position - key < window);
            let seen: Vec<usize> = (0..=position).filter(sees).collect();
            let scores: Vec<f64> = seen
                .iter()
                .map(|key| {
                    let dot: f64 =
                        query.iter().zip(&keys[at(*key)..]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    let score = dot * f64::from(shape.scale);
                    shape.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                })
                .collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            out.extend((0..dim).map(|i| {
                let weighted =
                    |(key, score): (&usize, &f64)| (score - largest).exp() / total * f64::from(values[at(*key) + i]);
                seen.iter().zip(&scores).map(weighted).sum::<f64>()
            }));
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn attention_agrees_with_its_definition(
            rows in 1usize..140, first in 0usize..90, kv_heads in 1usize..4, group in 1usize..4, dim in 1usize..20,
            window in prop::option::of(1usize..60), cap in prop::option::of(1f32..5.0), half_cache: bool, seed: u64,
        ) {
            let context = first + rows + 3;
            let shape = Shape { heads: kv_heads * group, kv_heads, head_dim: dim, scale: 0.7, window, soft_cap: cap };
            let queries = values(rows * shape.heads * dim, seed);
            let narrow = |seed| -> Vec<f16> { values(kv_heads * context * dim, seed).iter().map(|x| f16::from_f32(*x)).collect() };
            let (narrow_keys, narrow_values) = (narrow(seed ^ 1), narrow(seed ^ 2));
            let wide = |narrow: &[f16]| -> Vec<f32> { narrow.iter().map(|x| x.to_f32()).collect() };
            let (wide_keys, wide_values) = (wide(&narrow_keys), wide(&narrow_values));
            let mut out = vec![f32::NAN; queries.len()];
            if half_cache {
                attention(&queries, first, Matrix::F16(&narrow_keys), Matrix::F16(&narrow_values), context, &shape, &mut out);
            } else {
                attention(&queries, first, Matrix::F32(&wide_keys), Matrix::F32(&wide_values), context, &shape, &mut out);
            }
            let expected = reference(&queries, first, &wide_keys, &wide_values, context, &shape);
            for (out, expected) in out.iter().zip(expected) {
                prop_assert!((f64::from(*out) - expected).abs() < 1e-5, "{} is not {}", out, expected);
            }
        }
    }
}
