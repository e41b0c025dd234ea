//! Attention of decoded rows, each a token of some sequence. Reading keys and values limits its speed.
//!
//! One task is one row, one key-value head and one page of keys. The parts of a row are joined in the order of the
//! pages, so that a row gets the same bits whatever other rows are in the batch.

use std::cell::RefCell;
use std::ops::Range;

use super::row_f16::F16Rows;
use super::softmax::{self, HIDDEN, sink_weight};
use super::{Cache, PAGE, Shape};
use crate::Matrix;
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::kernel::panel::powers_of_two;
use crate::product::{Arithmetic, Left, Operand};
use crate::vectorize::{Fused, vectorize, vectorize_fused};

/// Rows of values that are added in one pass.
const TOGETHER: usize = 4;

/// Buffers of a task.
#[derive(Default)]
struct Scratch {
    keys: Operand,
    values: Vec<f32>,
    /// `[heads of the group, keys]`: scores, then weights in their place.
    scores: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// For each task and head of its group: the weighted values `[head_dim]`, the sum of the weights, and the largest
    /// score.
    static PARTS: RefCell<Vec<f32>> = RefCell::default();
    /// The number of each row's first task, followed by the number of all tasks.
    static FIRSTS: RefCell<Vec<usize>> = RefCell::default();
    /// The queries, multiplied by [`Shape::query_scale`].
    static QUERIES: RefCell<Vec<f32>> = RefCell::default();
}

/// One decoded row of a sequence: it reads positions `0 ..= position` of the cache, and within the window.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// Keys and values of its sequence.
    pub cache: &'a dyn Cache,
    /// Position of the row; its key and value are in the cache.
    pub position: usize,
}

impl Row<'_> {
    fn visible(&self, shape: &Shape) -> Range<usize> {
        let end = self.position + 1;
        shape.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    fn pages(&self, shape: &Shape) -> Range<usize> {
        let visible = self.visible(shape);
        visible.start / PAGE..visible.end.div_ceil(PAGE)
    }
}

/// Computes attention of `queries[rows, heads, head_dim]`, each the query of one of `rows`, into `out[rows, heads,
/// head_dim]`.
///
/// # Panics
/// If a slice's length or a page contradicts the shapes.
pub fn attention_of_rows(queries: &[f32], rows: &[Row], shape: &Shape, out: &mut [f32]) {
    let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
    let width = shape.heads * dim;
    assert_eq!(
        queries.len(),
        rows.len() * width,
        "expected a query of each head for each row"
    );
    assert_eq!(
        queries.len(),
        out.len(),
        "queries and output must have the same shape"
    );
    let part = group * (dim + 2);
    let (mut parts, mut scaled, mut firsts) = (PARTS.take(), QUERIES.take(), FIRSTS.take());
    firsts.clear();
    firsts.push(0);
    for row in rows {
        firsts.push(firsts[firsts.len() - 1] + shape.kv_heads * row.pages(shape).len());
    }
    let tasks = firsts[rows.len()];
    // Reserves twice as much, so that a context may grow for a while without an allocation.
    parts.reserve((2 * tasks * part).saturating_sub(parts.len()));
    parts.resize(tasks * part, 0.0);
    let scale = shape.query_scale();
    scaled.clear();
    scaled.extend(queries.iter().map(|query| query * scale));
    for_each_chunk(chunks_mut(&mut parts, part), 1, |task, part| {
        let index = firsts.partition_point(|first| *first <= task) - 1;
        let (row, task) = (&rows[index], task - firsts[index]);
        let (pages, visible) = (row.pages(shape), row.visible(shape));
        let (kv_head, page) = (task / pages.len(), pages.start + task % pages.len());
        let seen = visible.start.max(page * PAGE)..visible.end.min((page + 1) * PAGE);
        let queries = &scaled[index * width + kv_head * group * dim..][..group * dim];
        let first = kv_head * PAGE + seen.start - page * PAGE;
        let keys = row.cache.keys(page).rows(first..first + seen.len(), dim);
        let values = row.cache.values(page).rows(first..first + seen.len(), dim);
        SCRATCH.with_borrow_mut(|scratch| attend_page(queries, keys, values, shape, scratch, part));
    });
    for (index, out) in out.chunks_exact_mut(dim).enumerate() {
        let (row, head) = (index / shape.heads, index % shape.heads);
        let pages = rows[row].pages(shape).len();
        let first = firsts[row] + head / group * pages;
        let of_page =
            |page: usize| &parts[(first + page) * part + head % group * (dim + 2)..][..dim + 2];
        join(&(0..pages).map(of_page), shape.sink(head), out);
    }
    PARTS.set(parts);
    QUERIES.set(scaled);
    FIRSTS.set(firsts);
}

/// Computes the attention of a group's heads, with scaled `queries[heads, head_dim]`, to some positions of a page, with
/// `keys` and `values` `[positions, head_dim]`. Writes for each head the weighted values, the sum of the weights and
/// the largest score.
fn attend_page(
    queries: &[f32],
    keys: Matrix,
    values: Matrix,
    shape: &Shape,
    scratch: &mut Scratch,
    part: &mut [f32],
) {
    let dim = shape.head_dim;
    let (group, count) = (queries.len() / dim, keys.len() / dim);
    let arithmetic = Arithmetic::exact();
    let Scratch {
        keys: packed,
        values: widened,
        scores,
    } = scratch;
    scores.resize(group * PAGE, 0.0);
    let scores = &mut scores[..group * count];
    let as_they_are = F16Rows::new(keys, values, dim);
    if let Some(rows) = &as_they_are {
        rows.scores(queries, scores);
    } else {
        packed.reserve(arithmetic, PAGE, dim);
        packed.pack_transposed(arithmetic, keys, dim);
        packed.multiply(
            Left {
                words: bytemuck::cast_slice(queries),
                units: &[],
            },
            count,
            scores,
        );
    }
    if let Some(cap) = shape.soft_cap {
        softmax::cap(scores, cap);
    }
    for (scores, part) in scores
        .chunks_exact_mut(count)
        .zip(part.chunks_exact_mut(dim + 2))
    {
        let powers = powers_of_two(scores, 0..count, HIDDEN);
        (part[dim + 1], part[dim]) = (powers.largest, powers.sum);
    }
    let weights = &*scores;
    if let Some(rows) = &as_they_are {
        return rows.weighted(weights, part, dim + 2);
    }
    widened.resize(widened.len().max(PAGE * dim), 0.0);
    let values = values.as_f32(widened);
    for (weights, part) in weights
        .chunks_exact(count)
        .zip(part.chunks_exact_mut(dim + 2))
    {
        vectorize_fused(
            #[inline(always)]
            |fused| add_weighted(weights, values, &mut part[..dim], fused),
        );
    }
}

/// Computes `out[dim] = Σ weights[key] · values[key, dim]`.
#[inline(always)]
fn add_weighted(weights: &[f32], values: &[f32], out: &mut [f32], fused: Fused) {
    let dim = out.len();
    out.fill(0.0);
    let (fours, rest) = weights.as_chunks::<TOGETHER>();
    for (weights, values) in fours.iter().zip(values.chunks_exact(TOGETHER * dim)) {
        let (first, values) = values.split_at(dim);
        let (second, values) = values.split_at(dim);
        let (third, fourth) = values.split_at(dim);
        let (halves, others) = (first.iter().zip(second), third.iter().zip(fourth));
        for ((out, (first, second)), (third, fourth)) in out.iter_mut().zip(halves).zip(others) {
            let sum = fused.multiply_add(weights[0], *first, *out);
            let sum = fused.multiply_add(weights[1], *second, sum);
            let sum = fused.multiply_add(weights[2], *third, sum);
            *out = fused.multiply_add(weights[3], *fourth, sum);
        }
    }
    for (weight, values) in rest
        .iter()
        .zip(values[fours.len() * TOGETHER * dim..].chunks_exact(dim))
    {
        for (out, value) in out.iter_mut().zip(values) {
            *out = fused.multiply_add(*weight, *value, *out);
        }
    }
}

/// Computes the weighted mean over all pages of one head. `sink` is a score without a value.
fn join<'a>(parts: &(impl Iterator<Item = &'a [f32]> + Clone), sink: Option<f32>, out: &mut [f32]) {
    let dim = out.len();
    let largest = parts
        .clone()
        .map(|part| part[dim + 1])
        .fold(HIDDEN, f32::max);
    // If all scores are NaN or minus infinity, the mean is NaN.
    let mut total = match largest == HIDDEN {
        true => f32::NAN,
        false => sink_weight(sink, largest),
    };
    out.fill(0.0);
    vectorize(
        #[inline(always)]
        || {
            for part in parts.clone() {
                let factor = (part[dim + 1] - largest).exp2();
                total += factor * part[dim];
                for (out, part) in out.iter_mut().zip(part) {
                    *out += factor * part;
                }
            }
            let factor = total.recip();
            for out in &mut *out {
                *out *= factor;
            }
        },
    );
}
