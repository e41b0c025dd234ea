//! Attention of one query row, as in decode: bound by reading keys and values, which nothing else shares.
//!
//! One task is one key-value head and one block of keys; the parts are put together in the order of the blocks.

use std::cell::RefCell;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::row_f16::F16Rows;
use super::softmax::{self, HIDDEN};
use super::{BLOCK, Shape};
use crate::Matrix;
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::product::{Arithmetic, Operand};
use crate::vectorize::{Fused, vectorize, vectorize_fused};

/// Rows of values that are added at once.
const TOGETHER: usize = 4;

/// Buffers of a task.
#[derive(Default)]
struct Scratch {
    keys: Operand,
    values: Vec<f32>,
    /// `[heads of the group, keys]`.
    scores: Vec<f32>,
    /// Those as weights, in words of f32.
    weights: Vec<u32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// For each task and head of its group: weighted values `[head_dim]`, sum of the weights, largest score.
    static PARTS: RefCell<Vec<f32>> = RefCell::default();
    /// The queries, times what makes scores exponents of two.
    static QUERIES: RefCell<Vec<f32>> = RefCell::default();
}

/// Attention of `queries[heads, head_dim]` over the positions `visible` of keys and values `[kv_heads, context, head_dim]`.
pub(super) fn attend(
    queries: &[f32],
    keys: Matrix,
    values: Matrix,
    context: usize,
    visible: Range<usize>,
    shape: &Shape,
    out: &mut [f32],
) {
    let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
    let blocks = visible.start / BLOCK..visible.end.div_ceil(BLOCK);
    let part = group * (dim + 2);
    let (mut parts, mut scaled) = (PARTS.take(), QUERIES.take());
    // For the whole context at once: later rows find memory there.
    parts.reserve((shape.kv_heads * context.div_ceil(BLOCK) * part).saturating_sub(parts.len()));
    parts.resize(shape.kv_heads * blocks.len() * part, 0.0);
    let scale = shape.query_scale();
    scaled.clear();
    scaled.extend(queries.iter().map(|query| query * scale));
    for_each_chunk(chunks_mut(&mut parts, part), 1, |task, part| {
        let (kv_head, block) = (task / blocks.len(), blocks.start + task % blocks.len());
        let seen = visible.start.max(block * BLOCK)..visible.end.min((block + 1) * BLOCK);
        let (at, count) = (kv_head * context + seen.start, seen.len());
        let queries = &scaled[kv_head * group * dim..][..group * dim];
        SCRATCH.with_borrow_mut(|scratch| {
            let arithmetic = Arithmetic::new(false);
            let (keys, values) = (keys.rows(at, count, dim), values.rows(at, count, dim));
            let Scratch { keys: packed, values: widened, scores, weights } = scratch;
            scores.resize(group * BLOCK, 0.0);
            let scores = &mut scores[..group * count];
            let as_they_are = F16Rows::new(keys, values, dim);
            if let Some(rows) = &as_they_are {
                rows.scores(queries, scores);
            } else {
                packed.reserve(arithmetic, BLOCK, dim);
                packed.pack_transposed(arithmetic, keys, dim);
                packed.multiply(bytemuck::cast_slice(queries), count, scores, false);
            }
            if let Some(cap) = shape.soft_cap {
                softmax::cap(scores, cap);
            }
            weights.resize(group * BLOCK, 0);
            let weights = &mut weights[..group * count];
            let heads = scores.chunks_exact_mut(count).zip(weights.chunks_exact_mut(count));
            for ((scores, weights), part) in heads.zip(part.chunks_exact_mut(dim + 2)) {
                (part[dim + 1], part[dim]) = arithmetic.exp2_and_sum(scores, 0..count, HIDDEN, weights);
            }
            let weights = bytemuck::cast_slice(weights);
            if let Some(rows) = &as_they_are {
                return rows.weighted(weights, part, dim + 2);
            }
            widened.resize(widened.len().max(BLOCK * dim), 0.0);
            let values = values.as_f32(widened);
            for (weights, part) in weights.chunks_exact(count).zip(part.chunks_exact_mut(dim + 2)) {
                vectorize_fused(
                    #[inline(always)]
                    |fused| add_weighted(weights, values, &mut part[..dim], fused),
                );
            }
        });
    });
    for (head, out) in out.chunks_exact_mut(dim).enumerate() {
        let of_head = |block: usize| {
            let task = head / group * blocks.len() + block;
            &parts[task * part + head % group * (dim + 2)..][..dim + 2]
        };
        join(&(0..blocks.len()).map(of_head), out);
    }
    PARTS.set(parts);
    QUERIES.set(scaled);
}

/// Other processors read no f16 as it is.
#[cfg(not(target_arch = "x86_64"))]
enum F16Rows {}

#[cfg(not(target_arch = "x86_64"))]
impl F16Rows {
    fn new(_keys: Matrix, _values: Matrix, _dim: usize) -> Option<Self> {
        None
    }

    fn scores(&self, _queries: &[f32], _scores: &mut [f32]) {
        match *self {}
    }

    fn weighted(&self, _weights: &[f32], _out: &mut [f32], _stride: usize) {
        match *self {}
    }
}

/// `out[dim] = Σ weights[key] · values[key, dim]`.
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
    for (weight, values) in rest.iter().zip(values[fours.len() * TOGETHER * dim..].chunks_exact(dim)) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = fused.multiply_add(*weight, *value, *out);
        }
    }
}

/// The weighted mean over all blocks of one head.
fn join<'a>(parts: &(impl Iterator<Item = &'a [f32]> + Clone), out: &mut [f32]) {
    let dim = out.len();
    let largest = parts.clone().map(|part| part[dim + 1]).fold(HIDDEN, f32::max);
    // Without a score that is a number, or all minus infinity, there is no mean.
    let mut total = if largest == HIDDEN { f32::NAN } else { 0.0 };
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
