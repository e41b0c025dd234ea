//! Causal attention over a paged cache of keys and values: [`attention`] for the rows of a prompt,
//! [`attention_of_rows`] for rows that are decoded. [`attention_within`] is attention without an order, among the rows of
//! each of several sequences.
//!
//! The caller chooses which of the two computes a row, and the choice affects the result: their sums differ in order
//! and format. Each of them gives a row the same bits whatever other rows are in the batch, however a prompt is cut
//! into chunks, and on any number of threads.
//!
//! For a prompt, one task is one key-value head and a tile of query rows. Page by page, the task packs keys and values
//! for the kernels, once for all strips of the tile. For every strip it computes the scores, turns them into weights by
//! the online softmax (`softmax`), and adds the weighted values to those of earlier pages. So the task never stores
//! more scores at once than those of one strip of query rows with one page of keys. (A value that is NaN or infinite
//! may make every row of its page NaN, since masked positions are multiplied by zero.) Decoded rows are computed one by
//! one (`row`), in f32.

mod row;
mod row_f16;
mod softmax;
#[cfg(test)]
mod tests;
mod within;

use std::cell::RefCell;
use std::ops::Range;

use crate::aligned_buf::AlignedBuf;
use crate::output::{OutputMut, SharedOutput};
use crate::product::{Arithmetic, Left, Operand};
use crate::vectorize::vectorize;
use crate::{Matrix, pool};
pub use row::{Row, attention_of_rows};
use softmax::Running;
pub use within::attention_within;

/// Positions per page of keys and values. The last page may be partly filled.
pub const PAGE: usize = 256;

/// The keys and values of one sequence in one layer of a model, page by page. All pages have the number format of the
/// first one.
pub trait Cache: Sync {
    /// Returns the keys of one page `[kv_heads, PAGE, head_dim]`.
    fn keys(&self, page: usize) -> Matrix<'_>;
    /// Returns the values of one page `[kv_heads, PAGE, head_dim]`.
    fn values(&self, page: usize) -> Matrix<'_>;
}

/// Pages that are contiguous in memory: `[pages, kv_heads, PAGE, head_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct Slab<'a> {
    /// Keys of all pages.
    pub keys: Matrix<'a>,
    /// Values of all pages.
    pub values: Matrix<'a>,
    /// Number of key-value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Slab<'_> {
    fn page<'m>(&self, matrix: Matrix<'m>, page: usize) -> Matrix<'m> {
        let rows = self.kv_heads * PAGE;
        matrix.rows(page * rows..(page + 1) * rows, self.head_dim)
    }
}

impl Cache for Slab<'_> {
    fn keys(&self, page: usize) -> Matrix<'_> {
        self.page(self.keys, page)
    }

    fn values(&self, page: usize) -> Matrix<'_> {
        self.page(self.values, page)
    }
}

/// The properties of a layer that attention reads.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`. Query head `h` reads key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The factor on query · key.
    pub scale: f32,
    /// The sliding window: a query reads positions whose distance to its own is less than this.
    pub window: Option<usize>,
    /// The soft cap: scores become `cap · tanh(scores / cap)`.
    pub soft_cap: Option<f32>,
    /// A score of each query head that takes a share of the weights and has no value (gpt-oss): `[heads]`.
    pub sinks: Option<&'a [f32]>,
    /// The number format of the products.
    pub precision: Precision,
}

impl Shape<'_> {
    /// Returns the sink of a query head as an exponent of two.
    fn sink(&self, head: usize) -> Option<f32> {
        self.sinks
            .map(|sinks| sinks[head] * std::f32::consts::LOG2_E)
    }

    /// Returns the factor on queries that makes scores exponents of two. With a soft cap, which applies first,
    /// [`softmax::cap`] does this conversion instead.
    fn query_scale(&self) -> f32 {
        self.scale
            * if self.soft_cap.is_some() {
                1.0
            } else {
                std::f32::consts::LOG2_E
            }
    }
}

/// Number format of queries, keys, weights and values in attention's products; sums are in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32 throughout.
    Exact,
    /// bf16, or INT16 with a scale per row, if the processor multiplies one of these faster than f32; f32 on other
    /// processors and for decoded rows.
    Fast,
}

/// Maximum number of strips per tile.
const STRIPS: usize = 16;
/// Minimum number of tiles per thread.
const TASKS: usize = 2;

/// Buffers of a task.
#[derive(Default)]
struct Scratch {
    /// The queries of the tile, times the scale.
    scaled: Vec<f32>,
    /// All queries of the tile `[rows, heads of the group, words of a head]`.
    queries: AlignedBuf<u32>,
    /// The scale of each of these rows.
    query_units: Vec<f32>,
    keys: Operand,
    values: Operand,
    /// Scores of a strip `[rows, heads of the group, PAGE]`.
    scores: AlignedBuf<f32>,
    /// The weights computed from these scores, in words.
    weights: AlignedBuf<u32>,
    /// The scale of each of these rows.
    weight_units: Vec<f32>,
    /// Weighted values of the tile `[rows, heads of the group, head_dim]`.
    output: Vec<f32>,
    /// State of the softmax `[rows, heads of the group]` of the tile.
    softmax: Vec<Running>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Computes attention of a prompt's `queries[rows, heads, head_dim]`, the first at `first_position`, over the keys and
/// values in `cache`, into `out[rows, heads, head_dim]`.
///
/// Positions `0 .. first_position + rows` of the cache must be filled. Row `r` reads positions up to `first_position +
/// r`, and within the window.
///
/// # Panics
/// If a slice's length or a page contradicts the shapes.
pub fn attention(
    queries: &[f32],
    first_position: usize,
    cache: &dyn Cache,
    shape: &Shape,
    out: &mut [f32],
) {
    let together = Together::default();
    attention_together(queries, (first_position, together), cache, shape, out);
}

/// Positions of rows that read each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together<'a> {
    /// The positions, which are disjoint and ascend.
    pub ranges: &'a [Range<usize>],
    /// Whether a row reads earlier positions of its range only within the window.
    pub in_window: bool,
}

/// Computes [`attention`], but rows at the positions of one range of `together` also read the positions of that range.
///
/// # Panics
/// As [`attention`]; if a range with a row ends after the last row.
pub fn attention_together(
    queries: &[f32],
    (first_position, together): (usize, Together),
    cache: &dyn Cache,
    shape: &Shape,
    out: &mut [f32],
) {
    let width = shape.heads * shape.head_dim;
    let rows = queries.len() / width;
    assert_eq!(
        queries.len(),
        out.len(),
        "queries and output must have the same shape"
    );
    let end = first_position + rows;
    assert!(
        together
            .ranges
            .iter()
            .all(|it| it.end <= end || end <= it.start || it.end <= first_position),
        "rows that read each other must be computed together"
    );
    let group = shape.heads / shape.kv_heads;
    let arithmetic = match shape.precision {
        Precision::Exact => Arithmetic::exact(),
        Precision::Fast => Arithmetic::rounded(),
    };
    let strip = strip_rows(arithmetic, group);
    let tile_rows = tile_rows(rows, strip, shape.kv_heads, STRIPS);
    let tiles = rows.div_ceil(tile_rows);
    let out = OutputMut::new(out, width).into_shared();
    let pass = Pass {
        queries,
        first_row: 0,
        reach: Reach::Earlier {
            first_position,
            together,
        },
        cache,
        shape,
        group,
        strip,
        arithmetic,
        out,
    };
    // Tasks are in the order of rows, so that each thread gets the rows that it has in other operators. The last rows
    // see the most keys; threads that finish early take tasks from these first.
    pool::for_each(shape.kv_heads * tiles, 1, |task| {
        let (tile, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
        let rows = tile * tile_rows..((tile + 1) * tile_rows).min(rows);
        SCRATCH.with_borrow_mut(|scratch| pass.tile((kv_head, kv_head), rows, scratch));
    });
}

/// Returns the rows of a tile, at most `most` strips. Large tiles share the packing of keys and values, so tiles are as large as
/// they can be while every thread has some. They have equal size, so that no thread waits long for the others.
fn tile_rows(rows: usize, strip: usize, kv_heads: usize, most: usize) -> usize {
    let strips = rows.div_ceil(strip);
    let tiles = (TASKS * pool::threads())
        .div_ceil(kv_heads)
        .clamp(strips.div_ceil(most), strips);
    strips.div_ceil(tiles) * strip
}

/// Returns the rows of a strip, each with all heads of a group.
fn strip_rows(arithmetic: Arithmetic, group: usize) -> usize {
    (arithmetic.strip() / group).max(1)
}

/// The positions that rows read.
#[derive(Clone, Copy)]
enum Reach<'a> {
    /// The positions up to the row's own; that of the first row is given. Some rows read each other.
    Earlier {
        first_position: usize,
        together: Together<'a>,
    },
    /// Every one of this many positions, of which row `r` has the position `r`.
    All { positions: usize },
}

/// The data that all tasks share.
struct Pass<'a> {
    queries: &'a [f32],
    /// The place of the first row among the rows of queries and output.
    first_row: usize,
    reach: Reach<'a>,
    cache: &'a dyn Cache,
    shape: &'a Shape<'a>,
    /// Query heads per key head.
    group: usize,
    /// Rows per strip, each with all heads of a group.
    strip: usize,
    arithmetic: Arithmetic,
    out: SharedOutput<'a>,
}

impl Pass<'_> {
    /// Computes query rows `rows` of the heads that read `kv_head`, which is the head `stored` of the cache.
    fn tile(&self, (kv_head, stored): (usize, usize), rows: Range<usize>, scratch: &mut Scratch) {
        let (dim, group) = (self.shape.head_dim, self.group);
        self.gather(kv_head, rows.clone(), scratch);
        scratch.output.clear();
        scratch.output.resize(rows.len() * group * dim, 0.0);
        scratch.softmax.clear();
        scratch
            .softmax
            .resize(rows.len() * group, Running::default());
        let seen = self.visible(rows.start).start..self.visible(rows.end - 1).end;
        for page in seen.start / PAGE..seen.end.div_ceil(PAGE) {
            // From the start of the page, so that keys form the same pairs in every tile.
            let keys = page * PAGE..((page + 1) * PAGE).min(seen.end);
            let first = stored * PAGE;
            scratch.keys.pack_transposed(
                self.arithmetic,
                self.cache.keys(page).rows(first..first + keys.len(), dim),
                dim,
            );
            scratch.values.pack(
                self.arithmetic,
                self.cache.values(page).rows(first..first + keys.len(), dim),
                dim,
            );
            for first in rows.clone().step_by(self.strip) {
                let strip = first..(first + self.strip).min(rows.end);
                let keys = keys.start..keys.end.min(self.visible(strip.end - 1).end);
                if self.visible(first).start < keys.end && !keys.is_empty() {
                    self.strip(strip, first - rows.start, keys, scratch);
                }
            }
        }
        let heads = scratch
            .output
            .chunks_exact(dim)
            .zip(&scratch.softmax)
            .enumerate();
        for (index, (output, softmax)) in heads {
            let (row, head) = (rows.start + index / group, kv_head * group + index % group);
            // SAFETY: only this task writes these rows of these heads.
            #[allow(unsafe_code)]
            let out = unsafe {
                self.out
                    .row(self.first_row + row, head * dim..(head + 1) * dim)
            };
            softmax.finish(self.shape.sink(head), output, out);
        }
    }

    /// Adds the attention of query rows `strip` to `keys` of one page; the tile has `before` rows before these.
    fn strip(&self, strip: Range<usize>, before: usize, keys: Range<usize>, scratch: &mut Scratch) {
        let Scratch {
            queries,
            query_units,
            keys: packed,
            values,
            scores,
            weights,
            weight_units,
            output,
            softmax,
            ..
        } = scratch;
        // `visible` hides the padding after the keys.
        let (dim, count) = (
            self.shape.head_dim,
            keys.len().next_multiple_of(self.arithmetic.step()),
        );
        let of_tile = before * self.group..(before + strip.len()) * self.group;
        let words = self.arithmetic.words(dim);
        scores.resize(self.arithmetic.strip().max(of_tile.len()) * PAGE);
        let scores = &mut scores[..of_tile.len() * count];
        let queries = &queries[of_tile.start * words..of_tile.end * words];
        packed.multiply(
            Left {
                words: queries,
                units: &query_units[of_tile.clone()],
            },
            count,
            scores,
        );
        let words = self.arithmetic.words(count);
        weights.resize(self.arithmetic.strip().max(of_tile.len()) * PAGE);
        let weights = &mut weights[..of_tile.len() * words];
        let output = &mut output[of_tile.start * dim..of_tile.end * dim];
        weight_units.clear();
        let rows = scores
            .chunks_exact_mut(count)
            .zip(weights.chunks_exact_mut(words));
        let rows = rows
            .zip(output.chunks_exact_mut(dim))
            .zip(&mut softmax[of_tile])
            .enumerate();
        for (index, (((scores, weights), output), softmax)) in rows {
            let visible = self.visible(strip.start + index / self.group);
            let visible = visible.start.max(keys.start).min(keys.end) - keys.start
                ..visible.end.min(keys.end).max(keys.start) - keys.start;
            weight_units.push(softmax.add(
                scores,
                visible,
                self.shape.soft_cap,
                values,
                weights,
                output,
            ));
        }
        values.multiply_and_add(
            Left {
                words: weights,
                units: weight_units,
            },
            output,
        );
    }

    /// Returns the positions that a query row reads.
    fn visible(&self, row: usize) -> Range<usize> {
        let window = self.shape.window;
        let since = |end: usize| window.map_or(0, |window| end.saturating_sub(window));
        match self.reach {
            Reach::Earlier {
                first_position,
                together,
            } => {
                let position = first_position + row;
                let earlier = since(position + 1)..position + 1;
                let mut ranges = together.ranges.iter();
                match ranges.find(|range| range.contains(&position)) {
                    None => earlier,
                    Some(range) if together.in_window => earlier.start..range.end,
                    Some(range) => earlier.start.min(range.start)..range.end,
                }
            }
            Reach::All { positions } => {
                let end = window.map_or(positions, |window| positions.min(row + window));
                since(row + 1)..end
            }
        }
    }

    /// Copies the queries of a tile, multiplied by [`Shape::query_scale`], and converts them for the kernel.
    fn gather(&self, kv_head: usize, rows: Range<usize>, scratch: &mut Scratch) {
        let dim = self.shape.head_dim;
        let words = self.arithmetic.words(dim);
        let scale = self.shape.query_scale();
        let count = rows.len() * self.group;
        scratch
            .scaled
            .resize(scratch.scaled.len().max(count * dim), 0.0);
        let scaled = &mut scratch.scaled[..count * dim];
        vectorize(
            #[inline(always)]
            || {
                for (index, scaled) in scaled.chunks_exact_mut(dim).enumerate() {
                    let (row, head) = (
                        rows.start + index / self.group,
                        kv_head * self.group + index % self.group,
                    );
                    let row = self.first_row + row;
                    let query = &self.queries[(row * self.shape.heads + head) * dim..][..dim];
                    for (scaled, query) in scaled.iter_mut().zip(query) {
                        *scaled = query * scale;
                    }
                }
            },
        );
        scratch.queries.resize(count * words);
        self.arithmetic
            .to_words(scaled, dim, &mut scratch.queries, &mut scratch.query_units);
    }
}
