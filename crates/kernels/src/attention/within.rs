//! Attention without an order: each row of a sequence reads all rows of it, as in encoders of texts and images.

use std::ops::Range;

use super::{PAGE, Pass, Precision, Reach, SCRATCH, STRIPS, Shape, Slab, strip_rows};
use crate::output::OutputMut;
use crate::product::Arithmetic;
use crate::{Matrix, pool};

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
    let tile_rows = STRIPS * strip;
    // One task for each tile of rows of each sequence and each head.
    let mut tasks = Vec::new();
    for sequence in sequences {
        for start in (0..sequence.len()).step_by(tile_rows) {
            let rows = start..(start + tile_rows).min(sequence.len());
            tasks.extend((0..shape.kv_heads).map(|head| (sequence.clone(), rows.clone(), head)));
        }
    }
    let out = OutputMut::new(out, width).into_shared();
    pool::for_each(tasks.len(), 1, |task| {
        let (sequence, rows, kv_head) = tasks[task].clone();
        SCRATCH.with_borrow_mut(|scratch| {
            let mut gathered = std::mem::take(&mut scratch.gathered);
            for (gathered, of_all) in gathered.iter_mut().zip([keys, values]) {
                gather(of_all, (&sequence, kv_head), shape, gathered);
            }
            let [keys, values] = &gathered;
            let cache = Slab {
                keys: Matrix::F32(keys),
                values: Matrix::F32(values),
                kv_heads: 1,
                head_dim: shape.head_dim,
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
            pass.tile((kv_head, 0), rows, scratch);
            scratch.gathered = gathered;
        });
    });
}

/// Copies one head of the rows of a sequence to pages of contiguous rows.
fn gather(
    of_all: &[f32],
    (sequence, head): (&Range<usize>, usize),
    shape: &Shape,
    gathered: &mut Vec<f32>,
) {
    let (dim, width) = (shape.head_dim, shape.kv_heads * shape.head_dim);
    gathered.resize(sequence.len().next_multiple_of(PAGE) * dim, 0.0);
    let rows = of_all[sequence.start * width..sequence.end * width].chunks_exact(width);
    for (row, gathered) in rows.zip(gathered.chunks_exact_mut(dim)) {
        gathered.copy_from_slice(&row[head * dim..(head + 1) * dim]);
    }
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
