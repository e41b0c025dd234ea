//! Attention without an order: each row of a sequence reads all rows of it, as in encoders of texts and images.

use std::ops::Range;

use super::{Cache, PAGE, Pass, Precision, Reach, SCRATCH, Shape, strip_rows, tile_rows};
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::output::OutputMut;
use crate::product::Arithmetic;
use crate::{Matrix, pool};

/// Maximum number of strips per tile. Each tile packs all keys and values of its sequence again, so tiles are larger than those
/// of prompts, of which most see few keys.
const TILE_STRIPS: usize = 32;

/// Computes attention among the rows of each of `sequences`, which are ranges of rows: `queries[rows, heads, head_dim]`
/// read the `keys` and `values` `[rows, kv_heads, head_dim]` of their sequence. With a window, a row reads rows on both
/// sides of it. Writes `out[rows, heads, head_dim]`.
///
/// A row has the same bits whatever the other sequences are, and on any number of threads.
///
/// # Panics
/// If a slice's length contradicts the shapes, or the ranges overlap, descend, or exceed the rows.
pub fn attention_within(
    queries: &[f32],
    (keys, values): (&[f32], &[f32]),
    sequences: &[Range<usize>],
    shape: &Shape,
    out: &mut [f32],
) {
    let width = shape.heads * shape.head_dim;
    assert_eq!(
        queries.len(),
        out.len(),
        "queries and output must have the same shape"
    );
    assert_eq!(
        keys.len(),
        values.len(),
        "keys and values must have the same shape"
    );
    // Tasks write the rows of their sequences without a lock.
    let mut end = 0;
    for sequence in sequences {
        assert!(
            end <= sequence.start && sequence.start <= sequence.end,
            "sequences must be disjoint and ascend"
        );
        end = sequence.end;
    }
    assert!(
        end * width <= queries.len() && end * shape.kv_heads * shape.head_dim <= keys.len(),
        "sequences must be within the rows"
    );
    let group = shape.heads / shape.kv_heads;
    let arithmetic = match shape.precision {
        Precision::Exact => Arithmetic::exact(),
        Precision::Fast => Arithmetic::rounded(),
    };
    let strip = strip_rows(arithmetic, group);
    let [keys, values] = [keys, values].map(|of_all| by_head(of_all, end, shape));
    // One task for each tile of rows of each sequence and each head.
    let mut tasks = Vec::new();
    for sequence in sequences.iter().filter(|sequence| !sequence.is_empty()) {
        let tile_rows = tile_rows(sequence.len(), strip, shape.kv_heads, TILE_STRIPS);
        for start in (0..sequence.len()).step_by(tile_rows) {
            let rows = start..(start + tile_rows).min(sequence.len());
            tasks.extend((0..shape.kv_heads).map(|head| (sequence.clone(), rows.clone(), head)));
        }
    }
    let out = OutputMut::new(out, width).into_shared();
    pool::for_each(tasks.len(), 1, |task| {
        let (sequence, rows, kv_head) = tasks[task].clone();
        let dim = shape.head_dim;
        let of_head = (kv_head * end + sequence.start) * dim..(kv_head * end + sequence.end) * dim;
        let cache = HeadRows {
            keys: &keys[of_head.clone()],
            values: &values[of_head],
            dim,
        };
        let pass = Pass {
            queries,
            first_row: sequence.start,
            reach: Reach::All {
                positions: sequence.len(),
            },
            cache: &cache,
            shape,
            group,
            strip,
            arithmetic,
            out,
        };
        SCRATCH.with_borrow_mut(|scratch| pass.tile((kv_head, 0), rows, scratch));
    });
}

/// Keys and values of one head of a sequence `[positions, dim]`. The last page ends with the sequence.
struct HeadRows<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    dim: usize,
}

impl HeadRows<'_> {
    fn page<'a>(&self, of_all: &'a [f32], page: usize) -> Matrix<'a> {
        let page = page * PAGE * self.dim..((page + 1) * PAGE * self.dim).min(of_all.len());
        Matrix::F32(&of_all[page])
    }
}

impl Cache for HeadRows<'_> {
    fn keys(&self, page: usize) -> Matrix<'_> {
        self.page(self.keys, page)
    }

    fn values(&self, page: usize) -> Matrix<'_> {
        self.page(self.values, page)
    }
}

/// Copies `of_all[rows, kv_heads, head_dim]` to `[kv_heads, rows, head_dim]`: tiles then read contiguous rows, and a head is
/// gathered once.
fn by_head(of_all: &[f32], rows: usize, shape: &Shape) -> Vec<f32> {
    let (dim, width) = (shape.head_dim, shape.kv_heads * shape.head_dim);
    let mut gathered = vec![0.0; rows * width];
    let heads = chunks_mut(&mut gathered, (rows * dim).max(1));
    for_each_chunk(heads, 1, |head, gathered| {
        let rows = of_all
            .chunks_exact(width)
            .zip(gathered.chunks_exact_mut(dim));
        for (row, gathered) in rows {
            gathered.copy_from_slice(&row[head * dim..(head + 1) * dim]);
        }
    });
    gathered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tested;
    use crate::testing::values;
    use proptest::prelude::*;

    /// Computes one query row of a sequence by definition, in f64.
    fn by_definition(
        queries: &[f32],
        (keys, values): (&[f32], &[f32]),
        (sequence, row): (&Range<usize>, usize),
        shape: &Shape,
    ) -> Vec<f64> {
        let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        let mut out = Vec::new();
        for head in 0..shape.heads {
            let query = &queries[(row * shape.heads + head) * dim..][..dim];
            let at = |other: usize| (other * shape.kv_heads + head / group) * dim;
            let sees = |other: &usize| shape.window.is_none_or(|it| other.abs_diff(row) < it);
            let seen: Vec<usize> = sequence.clone().filter(sees).collect();
            let score = |other: &usize| {
                let pairs = query.iter().zip(&keys[at(*other)..]);
                let dot: f64 = pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                (dot * f64::from(shape.scale)).exp()
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let total: f64 = scores.iter().sum();
            out.extend((0..dim).map(|i| {
                let weighted = |(other, score): (&usize, &f64)| {
                    score / total * f64::from(values[at(*other) + i])
                };
                seen.iter().zip(&scores).map(weighted).sum::<f64>()
            }));
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rows_read_all_rows_of_their_sequence_and_no_others(
            lengths in prop::collection::vec(prop_oneof![1usize..40, PAGE - 3..PAGE + 40], 1..4),
            kv_heads in 1usize..3, group in 1usize..4, dim in prop_oneof![1usize..20, Just(64)],
            window in prop::option::of(1usize..300), seed: u64,
        ) {
            let shape = Shape {
                heads: kv_heads * group, kv_heads, head_dim: dim, scale: 2.0 / dim as f32, window, soft_cap: None,
                sinks: None, precision: Precision::Exact,
            };
            let mut sequences = Vec::new();
            for length in lengths {
                let start = sequences.last().map_or(0, |before: &Range<usize>| before.end);
                sequences.push(start..start + length);
            }
            let rows = sequences.last().map_or(0, |last| last.end);
            let queries = values(rows * shape.heads * dim, seed);
            let keys = values(rows * kv_heads * dim, seed ^ 1);
            let values = values(rows * kv_heads * dim, seed ^ 2);
            for kernels in tested() {
                let run = |sequences: &[Range<usize>]| kernels.install(|| {
                    let mut out = vec![f32::NAN; queries.len()];
                    attention_within(&queries, (&keys, &values), sequences, &shape, &mut out);
                    out
                });
                let together = run(&sequences);
                for sequence in &sequences {
                    let of_rows = |rows: Range<usize>| rows.start * shape.heads * dim..rows.end * shape.heads * dim;
                    let alone = run(std::slice::from_ref(sequence));
                    prop_assert_eq!(&alone[of_rows(sequence.clone())], &together[of_rows(sequence.clone())]);
                    for row in [sequence.start, (sequence.start + sequence.end) / 2, sequence.end - 1] {
                        let expected = by_definition(&queries, (&keys, &values), (sequence, row), &shape);
                        for (out, expected) in together[of_rows(row..row + 1)].iter().zip(&expected) {
                            prop_assert!((f64::from(*out) - expected).abs() < 1e-5, "{out} is not {expected}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "disjoint")]
    fn sequences_that_overlap_are_refused() {
        let shape = Shape {
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            scale: 1.0,
            window: None,
            soft_cap: None,
            sinks: None,
            precision: Precision::Exact,
        };
        let x = [1.0; 4];
        attention_within(&x, (&x, &x), &[0..3, 2..4], &shape, &mut [0.0; 4]);
    }
}
