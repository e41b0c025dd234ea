//! Compares attention with its definition.

use super::*;
use crate::int8::quantize_weight_rows;
use crate::kernel::tested;
use crate::testing::values;
use half::f16;
use proptest::prelude::*;

/// Computes attention by definition, in f64, one query at a time, over contiguous pages.
fn reference(
    queries: &[f32],
    first: usize,
    keys: &[f32],
    values: &[f32],
    shape: &Shape,
) -> Vec<f64> {
    let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
    let mut out = Vec::new();
    for (index, query) in queries.chunks_exact(dim).enumerate() {
        let (position, head) = (first + index / shape.heads, index % shape.heads);
        let at =
            |key: usize| ((key / PAGE * shape.kv_heads + head / group) * PAGE + key % PAGE) * dim;
        let sees = |key: &usize| shape.window.is_none_or(|window| position - key < window);
        let seen: Vec<usize> = (0..=position).filter(sees).collect();
        let scores: Vec<f64> = seen
            .iter()
            .map(|key| {
                let dot: f64 = query
                    .iter()
                    .zip(&keys[at(*key)..])
                    .map(|(q, k)| f64::from(*q) * f64::from(*k))
                    .sum();
                let score = dot * f64::from(shape.scale);
                shape.soft_cap.map_or(score, |cap| {
                    f64::from(cap) * (score / f64::from(cap)).tanh()
                })
            })
            .collect();
        let largest = scores.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
        let sink = shape.sinks.map(|sinks| f64::from(sinks[head]));
        let total = total + sink.map_or(0.0, |sink| (sink - largest).exp());
        out.extend((0..dim).map(|i| {
            let weighted = |(key, score): (&usize, &f64)| {
                (score - largest).exp() / total * f64::from(values[at(*key) + i])
            };
            seen.iter().zip(&scores).map(weighted).sum::<f64>()
        }));
    }
    out
}

/// Returns the count of numbers in the pages that hold `context` positions.
fn paged(context: usize, kv_heads: usize, dim: usize) -> usize {
    context.div_ceil(PAGE) * kv_heads * PAGE * dim
}

fn slab<'a>(keys: Matrix<'a>, values: Matrix<'a>, shape: &Shape) -> Slab<'a> {
    Slab {
        keys,
        values,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
    }
}

/// Computes every query as a decoded row, the first at position `first` of one sequence.
fn decode(queries: &[f32], first: usize, cache: &dyn Cache, shape: &Shape) -> Vec<f32> {
    let count = queries.len() / (shape.heads * shape.head_dim);
    let rows: Vec<_> = (first..first + count)
        .map(|position| Row { cache, position })
        .collect();
    let mut out = vec![f32::NAN; queries.len()];
    attention_of_rows(queries, &rows, shape, &mut out);
    out
}

fn prefill(queries: &[f32], first: usize, cache: &dyn Cache, shape: &Shape) -> Vec<f32> {
    let mut out = vec![f32::NAN; queries.len()];
    attention(queries, first, cache, shape, &mut out);
    out
}

/// Returns keys or values in f16, and the same numbers in f32.
fn cache(count: usize, seed: u64) -> (Vec<f16>, Vec<f32>) {
    let halves: Vec<f16> = values(count, seed)
        .iter()
        .map(|x| f16::from_f32(*x))
        .collect();
    let floats = halves.iter().map(|x| x.to_f32()).collect();
    (halves, floats)
}

/// Returns keys or values in INT8, with a scale for each row.
fn int8_cache(wide: &[f32], dim: usize) -> (Vec<i8>, Vec<f32>) {
    let (mut values, mut scales) = (vec![0; wide.len()], vec![0.0; wide.len() / dim]);
    quantize_weight_rows(wide, dim, &mut scales, &mut values);
    (values, scales)
}

fn matrix((values, scales): &(Vec<i8>, Vec<f32>)) -> Matrix<'_> {
    Matrix::Int8 { values, scales }
}

fn widened(cache: Matrix, dim: usize) -> Vec<f32> {
    let mut wide = vec![0.0; cache.len()];
    wide.chunks_exact_mut(dim)
        .enumerate()
        .for_each(|(row, wide)| cache.widen_row(row, wide));
    wide
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn attention_agrees_with_its_definition(
        rows in prop_oneof![Just(1usize), 2usize..70], first in prop_oneof![0usize..90, PAGE - 40..PAGE + 40, 2 * PAGE..2 * PAGE + 9],
        kv_heads in 1usize..3, group in 1usize..6, dim in prop_oneof![1usize..20, 60usize..70, Just(80)],
        window in prop::option::of(1usize..300), cap in prop::option::of(1f32..5.0), format in 0..3, fast: bool,
        has_sinks: bool, seed: u64,
    ) {
        let context = first + rows + 3;
        let precision = if fast { Precision::Fast } else { Precision::Exact };
        let scale = 3.0 / dim as f32;
        let sinks = values(kv_heads * group, seed ^ 3);
        let shape = Shape { heads: kv_heads * group, kv_heads, head_dim: dim, scale, window, soft_cap: cap, sinks: has_sinks.then_some(&sinks), precision };
        let queries = values(rows * shape.heads * dim, seed);
        let (narrow_keys, wide_keys) = cache(paged(context, kv_heads, dim), seed ^ 1);
        let (narrow_values, wide_values) = cache(paged(context, kv_heads, dim), seed ^ 2);
        let (int8_keys, int8_values) = (int8_cache(&wide_keys, dim), int8_cache(&wide_values, dim));
        let (keys, values) = match format {
            0 => (Matrix::F16(&narrow_keys), Matrix::F16(&narrow_values)),
            1 => (Matrix::F32(&wide_keys), Matrix::F32(&wide_values)),
            _ => (matrix(&int8_keys), matrix(&int8_values)),
        };
        let expected = reference(&queries, first, &widened(keys, dim), &widened(values, dim), &shape);
        let cache = slab(keys, values, &shape);
        for kernels in tested() {
            // In bf16, scores up to 3 are off by at most 2⁻⁷, and weights and values by 2⁻⁹ each.
            let tolerance = match (fast, kernels.rounded_pairs(), kernels.bf16) {
                (false, ..) | (true, None, None) => 1e-5,
                (true, Some(_), _) => 2e-3,
                (true, None, Some(_)) => 0.02,
            };
            let run = || (prefill(&queries, first, &cache, &shape), decode(&queries, first, &cache, &shape));
            let (prefilled, decoded) = kernels.install(run);
            for (out, tolerance) in [(prefilled, tolerance), (decoded, 1e-5)] {
                for (out, expected) in out.iter().zip(&expected) {
                    prop_assert!((f64::from(*out) - expected).abs() < tolerance, "{:?}: {} is not {}", kernels.isa, out, expected);
                }
            }
        }
    }

    #[test]
    fn rows_by_themselves_have_the_same_bits(
        rows in 1usize..120, first in 0usize..300, group in 1usize..4, window in prop::option::of(1usize..300), fast: bool,
        some in any::<prop::sample::Index>(), count in 1usize..5, seed: u64,
    ) {
        let dim = 24;
        let precision = if fast { Precision::Fast } else { Precision::Exact };
        let shape = Shape { heads: group, kv_heads: 1, head_dim: dim, scale: 0.3, window, soft_cap: None, sinks: None, precision };
        let queries = values(rows * group * dim, seed);
        let (keys, _) = cache(paged(first + rows, 1, dim), seed ^ 1);
        let (values, _) = cache(paged(first + rows, 1, dim), seed ^ 2);
        let cache = slab(Matrix::F16(&keys), Matrix::F16(&values), &shape);
        let row = some.index(rows);
        let of_rows = row * group * dim..(row + count).min(rows) * group * dim;
        for attend in [prefill, decode] {
            let alone = attend(&queries[of_rows.clone()], first + row, &cache, &shape);
            prop_assert_eq!(&alone, &attend(&queries, first, &cache, &shape)[of_rows.clone()]);
        }
    }

    #[test]
    fn decoded_rows_of_several_sequences_have_the_bits_of_each_alone(
        positions in prop::collection::vec(0usize..600, 1..9), kv_heads in 1usize..3, window in prop::option::of(1usize..300),
        dim in prop_oneof![Just(24usize), Just(32)], seed: u64, threads in 1usize..4,
    ) {
        let shape = Shape {
            heads: 3 * kv_heads, kv_heads, head_dim: dim, scale: 0.3, window, soft_cap: None, sinks: None,
            precision: Precision::Fast,
        };
        let width = shape.heads * dim;
        let queries = values(positions.len() * width, seed);
        let planes: Vec<_> = positions.iter().enumerate().map(|(index, position)| {
            let plane = |seed: u64| cache(paged(position + 1, kv_heads, dim), seed ^ index as u64).0;
            (plane(seed ^ 0x100), plane(seed ^ 0x200))
        }).collect();
        let slabs: Vec<_> =
            planes.iter().map(|(keys, values)| slab(Matrix::F16(keys), Matrix::F16(values), &shape)).collect();
        let rows: Vec<_> = slabs.iter().zip(&positions).map(|(cache, position)| Row { cache, position: *position }).collect();
        let mut together = vec![f32::NAN; queries.len()];
        pool::Pool::new(threads).unwrap().install(|| attention_of_rows(&queries, &rows, &shape, &mut together));
        for ((row, queries), together) in rows.iter().zip(queries.chunks_exact(width)).zip(together.chunks_exact(width)) {
            prop_assert_eq!(&decode(queries, row.position, row.cache, &shape), together);
        }
    }
}

#[test]
fn what_is_not_a_number_stays_so() {
    let dim = 8;
    let shape = Shape {
        heads: 1,
        kv_heads: 1,
        head_dim: dim,
        scale: 1.0,
        window: None,
        soft_cap: None,
        sinks: None,
        precision: Precision::Exact,
    };
    for precision in [Precision::Exact, Precision::Fast] {
        let mut queries = vec![0.5; 3 * dim];
        queries[dim] = f32::NAN;
        let (keys, values) = (vec![0.25; PAGE * dim], vec![0.75; PAGE * dim]);
        let shape = Shape { precision, ..shape };
        let out = prefill(
            &queries,
            0,
            &slab(Matrix::F32(&keys), Matrix::F32(&values), &shape),
            &shape,
        );
        assert!(
            out[..dim]
                .iter()
                .chain(&out[2 * dim..])
                .all(|out| (*out - 0.75).abs() < 1e-3),
            "{precision:?}: {out:?}"
        );
        assert!(
            out[dim..2 * dim].iter().all(|out| out.is_nan()),
            "{precision:?}: {out:?}"
        );
    }
}

#[test]
fn heads_may_be_many_and_wide() {
    for (heads, dim) in [(100, 8), (7, 256), (1, 1024)] {
        for precision in [Precision::Exact, Precision::Fast] {
            let shape = Shape {
                heads,
                kv_heads: 1,
                head_dim: dim,
                scale: 1.0 / dim as f32,
                window: None,
                soft_cap: None,
                sinks: None,
                precision,
            };
            let (rows, first) = (3, 5);
            let queries = values(rows * heads * dim, 1);
            let (keys, values) = (values(PAGE * dim, 2), values(PAGE * dim, 3));
            let cache = slab(Matrix::F32(&keys), Matrix::F32(&values), &shape);
            let expected = reference(&queries, first, &keys, &values, &shape);
            for out in [
                prefill(&queries, first, &cache, &shape),
                decode(&queries, first, &cache, &shape),
            ] {
                for (out, expected) in out.iter().zip(&expected) {
                    assert!(
                        (f64::from(*out) - expected).abs() < 0.02,
                        "{heads} heads of {dim}: {out} is not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let (rows, context, dim) = (300, 400, 16);
    let queries = values(rows * 4 * dim, 1);
    let (keys, _) = cache(paged(context, 2, dim), 2);
    let (values, _) = cache(paged(context, 2, dim), 3);
    for precision in [Precision::Exact, Precision::Fast] {
        let shape = Shape {
            heads: 4,
            kv_heads: 2,
            head_dim: dim,
            scale: 0.25,
            window: Some(150),
            soft_cap: None,
            sinks: None,
            precision,
        };
        let run = |threads: usize| {
            let cache = slab(Matrix::F16(&keys), Matrix::F16(&values), &shape);
            pool::Pool::new(threads).unwrap().install(|| {
                (
                    prefill(&queries, 90, &cache, &shape),
                    decode(&queries[..4 * dim], 399, &cache, &shape),
                )
            })
        };
        // One thread computes tiles of four strips; sixteen threads compute tiles of one.
        let alone = run(1);
        assert!(
            [3, 16].into_iter().all(|threads| run(threads) == alone),
            "{precision:?}"
        );
    }
}

#[test]
fn a_score_of_minus_infinity_has_no_weight_among_others_and_no_mean_alone() {
    for precision in [Precision::Exact, Precision::Fast] {
        let shape = Shape {
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            scale: 1.0,
            window: None,
            soft_cap: None,
            sinks: None,
            precision,
        };
        let (mut keys, mut values) = ([0.0; PAGE], [0.0; PAGE]);
        keys[..3].copy_from_slice(&[f32::NEG_INFINITY, 1.0, 1.0]);
        values[..3].copy_from_slice(&[3.0, 5.0, 5.0]);
        let cache = slab(Matrix::F32(&keys), Matrix::F32(&values), &shape);
        let out = decode(&[1.0; 3], 0, &cache, &shape);
        assert!(
            out[0].is_nan() && out[1..] == [5.0, 5.0],
            "decoded: {out:?}"
        );
        let out = prefill(&[1.0; 3], 0, &cache, &shape);
        assert!(out[0].is_nan(), "{precision:?}: {out:?}");
        assert!(
            (out[1] - 5.0).abs() < 1e-3 && (out[2] - 5.0).abs() < 1e-3,
            "{precision:?}: {out:?}"
        );
    }
}

#[test]
fn int16_is_ten_times_nearer_than_numbers_rounded_to_bf16_with_outliers_too() {
    let (rows, heads) = (300, 3);
    for (dim, scale) in [(64, 2.0), (256, 0.1)] {
        let shape = Shape {
            heads,
            kv_heads: 1,
            head_dim: dim,
            scale,
            window: None,
            soft_cap: None,
            sinks: None,
            precision: Precision::Fast,
        };
        let with_outliers = |mut rows: Vec<f32>| {
            rows.chunks_exact_mut(dim).for_each(|row| row[3] *= 8.0);
            rows
        };
        let queries = with_outliers(values(rows * heads * dim, 1));
        let (keys, values) = (
            with_outliers(values(2 * PAGE * dim, 2)),
            values(2 * PAGE * dim, 3),
        );
        let exact = reference(&queries, 0, &keys, &values, &shape);
        let error = |out: &[f64]| {
            out.iter()
                .zip(&exact)
                .map(|(out, exact)| (out - exact).powi(2))
                .sum::<f64>()
                .sqrt()
        };
        let rounded = |numbers: &[f32]| {
            numbers
                .iter()
                .map(|x| half::bf16::from_f32(*x).to_f32())
                .collect::<Vec<_>>()
        };
        let of_bf16 = error(&reference(
            &rounded(&queries),
            0,
            &rounded(&keys),
            &rounded(&values),
            &shape,
        ));
        let cache = slab(Matrix::F32(&keys), Matrix::F32(&values), &shape);
        for kernels in tested().filter(|kernels| kernels.rounds_to_pairs) {
            let out = kernels.install(|| prefill(&queries, 0, &cache, &shape));
            let of_int16 = error(&out.into_iter().map(f64::from).collect::<Vec<_>>());
            assert!(
                of_int16 * 10.0 < of_bf16,
                "{:?}: {of_int16} compared with {of_bf16}",
                kernels.isa
            );
        }
    }
}
