//! Gated DeltaNet (Qwen3-Next, Qwen3.5): a short convolution over queries, keys and values, and a matrix for each head
//! that each position decays and corrects by the delta rule.

use super::blocks::{self, Matrices};
use super::convolution::Convolution;
use super::{BLOCK, PARALLEL, softplus};
use crate::activation::{exp, silu};
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::dot::dot;
use crate::norm::rms_norm;
use crate::vectorize::{Fused, vectorize_fused};

/// Columns of a head's matrix that stay in registers together.
const TILE: usize = 16;
/// Number of independent partial sums of a column.
const SUMS: usize = 4;
/// The summand that keeps the length of queries and keys above zero.
const LENGTH_EPSILON: f32 = 1e-6;

/// The sizes of a [`DeltaNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of those of keys.
    pub value_heads: usize,
    /// Width of a query or key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Positions that the convolution reads, its own among them.
    pub taps: usize,
    /// Whether value head `h` has the key head `h mod key_heads`; otherwise value heads of one key head are adjacent.
    pub tiled: bool,
}

impl DeltaNetShape {
    fn keys(self) -> usize {
        self.key_heads * self.key_dim
    }

    fn values(self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Returns the channels of the convolution: those of queries, keys and values.
    fn channels(self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Returns the values of a row: the channels of the convolution, the output gate, and for each value head a rate and
    /// a decay.
    pub fn row_len(self) -> usize {
        self.channels() + self.values() + 2 * self.value_heads
    }

    fn history(self) -> usize {
        (self.taps - 1) * self.channels()
    }

    /// Returns the number of values of the state.
    pub fn state_len(self) -> usize {
        self.history() + self.value_heads * self.key_dim * self.value_dim
    }

    /// Returns the values of scratch memory that a row needs.
    pub fn scratch_len(self) -> usize {
        self.channels() + self.values()
    }

    fn key_head(self, value_head: usize) -> usize {
        match self.tiled {
            true => value_head % self.key_heads,
            false => value_head / (self.value_heads / self.key_heads),
        }
    }
}

/// The weights of a gated DeltaNet. Its state holds the convolution's inputs `[taps − 1, channels]` of the latest
/// positions, the earliest first, and a matrix `[key_dim, value_dim]` for each value head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet<'a> {
    shape: DeltaNetShape,
    taps: &'a [f32],
    decay: &'a [f32],
    decay_bias: &'a [f32],
    norm: &'a [f32],
    epsilon: f32,
}

impl<'a> DeltaNet<'a> {
    /// Creates the operator of factors `taps[taps, channels]`, of the earliest position first, without a bias. `decay`
    /// and `decay_bias` have a number for each value head, `norm` the factors of the norm of a head's output.
    ///
    /// # Panics
    /// If a length differs, or value heads are no multiple of key heads.
    pub fn new(
        shape: DeltaNetShape,
        taps: &'a [f32],
        [decay, decay_bias]: [&'a [f32]; 2],
        (norm, epsilon): (&'a [f32], f32),
    ) -> Self {
        assert!(
            shape.value_heads.is_multiple_of(shape.key_heads),
            "expected value heads for each key head"
        );
        assert_eq!(
            taps.len(),
            shape.taps * shape.channels(),
            "expected factors of all channels"
        );
        assert!(
            decay.len() == shape.value_heads && decay_bias.len() == shape.value_heads,
            "expected a decay of each head"
        );
        assert_eq!(
            norm.len(),
            shape.value_dim,
            "expected a norm of a head's output"
        );
        Self {
            shape,
            taps,
            decay,
            decay_bias,
            norm,
            epsilon,
        }
    }

    /// Returns its sizes.
    pub fn shape(&self) -> DeltaNetShape {
        self.shape
    }

    /// Brings `state` from before `rows[rows, row_len]` to after them, and writes their outputs
    /// `[rows, value_heads, value_dim]` to `out`, if that is wanted. The number of rows in `scratch` changes no bit.
    ///
    /// # Panics
    /// If a length differs, or `scratch` has less than a row.
    pub fn run(
        &self,
        state: &mut [f32],
        rows: &[f32],
        out: Option<&mut [f32]>,
        scratch: &mut [f32],
    ) {
        blocks::run(self, state, rows, out, scratch);
    }
}

impl Matrices for DeltaNet<'_> {
    fn convolution(&self) -> Convolution<'_> {
        Convolution {
            factors: self.taps,
            bias: None,
            channels: self.shape.channels(),
            first: 0,
            row_len: self.shape.row_len(),
        }
    }

    fn matrices_len(&self) -> usize {
        self.shape.values() * self.shape.key_dim
    }

    fn width(&self) -> usize {
        self.shape.values()
    }

    /// Gives queries and keys unit length.
    #[inline(always)]
    fn prepare(&self, convolved: &mut [f32], fused: Fused) {
        let shape = self.shape;
        let (queries, keys) = convolved[..2 * shape.keys()].split_at_mut(shape.keys());
        let scale = (shape.key_dim as f32).sqrt().recip();
        for (x, factor) in [(queries, scale), (keys, 1.0)] {
            for x in x.chunks_exact_mut(shape.key_dim) {
                let factor = factor / (dot(x, x, fused) + LENGTH_EPSILON).sqrt();
                for x in x {
                    *x *= factor;
                }
            }
        }
    }

    fn scan(&self, matrices: &mut [f32], rows: &[f32], convolved: &[f32], out: &mut [f32]) {
        let shape = self.shape;
        let (channels, row_len, dim) = (shape.channels(), shape.row_len(), shape.value_dim);
        let count = convolved.len() / channels;
        let matrix = shape.key_dim * dim;
        let work = matrices.len() * count;
        let grain = if work < PARALLEL { usize::MAX } else { 1 };
        let heads = (chunks_mut(matrices, matrix), chunks_mut(out, count * dim));
        for_each_chunk(heads, grain, |head, (matrix, out)| {
            let key_head = shape.key_head(head);
            let mut factors = [(0.0, 0.0); BLOCK];
            for (row, factors) in factors[..count].iter_mut().enumerate() {
                let gates = &rows[row * row_len + channels + shape.values()..];
                let step = softplus(gates[shape.value_heads + head] + self.decay_bias[head]);
                *factors = (
                    1.0 / (1.0 + (-gates[head]).exp()),
                    (self.decay[head] * step).exp(),
                );
            }
            let of_row = |row: usize| Step {
                query: &convolved[row * channels + key_head * shape.key_dim..][..shape.key_dim],
                key: &convolved[row * channels + shape.keys() + key_head * shape.key_dim..]
                    [..shape.key_dim],
                value: &convolved[row * channels + 2 * shape.keys() + head * dim..][..dim],
                rate: factors[row].0,
                decay: factors[row].1,
            };
            vectorize_fused(
                #[inline(always)]
                |fused| {
                    let whole = dim - dim % TILE;
                    for column in (0..whole).step_by(TILE) {
                        for row in 0..count {
                            let out = &mut out[row * dim..][..dim];
                            of_row(row).run::<TILE>(matrix, column, out, fused);
                        }
                    }
                    for column in whole..dim {
                        for row in 0..count {
                            let out = &mut out[row * dim..][..dim];
                            of_row(row).run::<1>(matrix, column, out, fused);
                        }
                    }
                },
            );
        });
    }

    /// Computes the norm of each head's output, times its gate.
    fn finish(&self, mixed: &[f32], count: usize, (row, inputs): (usize, &[f32]), out: &mut [f32]) {
        let shape = self.shape;
        let dim = shape.value_dim;
        for (head, out) in out.chunks_exact_mut(dim).enumerate() {
            let x = &mixed[(head * count + row) * dim..][..dim];
            rms_norm(x, self.norm, self.epsilon, out);
        }
        let gates = &inputs[shape.channels()..][..shape.values()];
        vectorize_fused(
            #[inline(always)]
            |fused| {
                for (out, gate) in out.iter_mut().zip(gates) {
                    *out *= silu(*gate, fused);
                }
            },
        );
    }
}

/// One position of one head.
struct Step<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    rate: f32,
    decay: f32,
}

impl Step<'_> {
    /// Updates `WIDTH` columns of a head's matrix, and computes their outputs. Each column is computed alone: the matrix
    /// decays, then `key · rate · (value − key · column)` is added, and the output is `query · column`.
    #[inline(always)]
    fn run<const WIDTH: usize>(
        &self,
        matrix: &mut [f32],
        column: usize,
        out: &mut [f32],
        fused: Fused,
    ) {
        let dim = out.len();
        let mut sums = [[0.0f32; WIDTH]; SUMS];
        let (keys, rest) = self.key.as_chunks::<SUMS>();
        let (lines, last) = matrix.split_at(keys.len() * SUMS * dim);
        for (keys, lines) in keys.iter().zip(lines.chunks_exact(SUMS * dim)) {
            for part in 0..SUMS {
                let line = &lines[part * dim + column..][..WIDTH];
                for lane in 0..WIDTH {
                    sums[part][lane] = fused.multiply_add(keys[part], line[lane], sums[part][lane]);
                }
            }
        }
        for (key, line) in rest.iter().zip(last.chunks_exact(dim)) {
            let line = &line[column..][..WIDTH];
            for lane in 0..WIDTH {
                sums[0][lane] = fused.multiply_add(*key, line[lane], sums[0][lane]);
            }
        }
        let mut change = [0.0f32; WIDTH];
        let value = &self.value[column..][..WIDTH];
        for lane in 0..WIDTH {
            let known = (sums[0][lane] + sums[1][lane]) + (sums[2][lane] + sums[3][lane]);
            change[lane] = self.rate * (value[lane] - self.decay * known);
        }
        let mut sums = [[0.0f32; WIDTH]; SUMS];
        let (queries, last_queries) = self.query.as_chunks::<SUMS>();
        let (lines, last) = matrix.split_at_mut(keys.len() * SUMS * dim);
        let of_lines = keys.iter().zip(queries);
        for ((keys, queries), lines) in of_lines.zip(lines.chunks_exact_mut(SUMS * dim)) {
            for part in 0..SUMS {
                let line = &mut lines[part * dim + column..][..WIDTH];
                for lane in 0..WIDTH {
                    let kept = self.decay * line[lane];
                    let new = fused.multiply_add(keys[part], change[lane], kept);
                    line[lane] = new;
                    sums[part][lane] = fused.multiply_add(queries[part], new, sums[part][lane]);
                }
            }
        }
        let of_lines = rest.iter().zip(last_queries);
        for ((key, query), line) in of_lines.zip(last.chunks_exact_mut(dim)) {
            let line = &mut line[column..][..WIDTH];
            for lane in 0..WIDTH {
                let kept = self.decay * line[lane];
                line[lane] = fused.multiply_add(*key, change[lane], kept);
                sums[0][lane] = fused.multiply_add(*query, line[lane], sums[0][lane]);
            }
        }
        let out = &mut out[column..][..WIDTH];
        for lane in 0..WIDTH {
            out[lane] = (sums[0][lane] + sums[1][lane]) + (sums[2][lane] + sums[3][lane]);
        }
    }
}

/// Multiplies `x[rows, heads, dim]` by the sigmoid of gates, which follow the queries of each head in
/// `gated[rows, heads, 2, dim]`.
///
/// # Panics
/// If a length differs.
pub fn gate_heads(x: &mut [f32], gated: &[f32], dim: usize) {
    assert_eq!(2 * x.len(), gated.len(), "expected a gate for each value");
    vectorize_fused(
        #[inline(always)]
        |fused| {
            for (x, gated) in x.chunks_exact_mut(dim).zip(gated.chunks_exact(2 * dim)) {
                for (x, gate) in x.iter_mut().zip(&gated[dim..]) {
                    *x /= 1.0 + exp(-*gate, fused);
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pool::Pool;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0)
            .collect()
    }

    struct Weights {
        taps: Vec<f32>,
        decay: Vec<f32>,
        bias: Vec<f32>,
        norm: Vec<f32>,
    }

    impl Weights {
        fn new(shape: DeltaNetShape) -> Self {
            let rates = numbers(shape.value_heads, 3)
                .iter()
                .map(|x| -x.abs())
                .collect();
            Self {
                taps: numbers(shape.taps * shape.channels(), 2),
                decay: rates,
                bias: numbers(shape.value_heads, 4),
                norm: numbers(shape.value_dim, 5),
            }
        }

        fn operator(&self, shape: DeltaNetShape) -> DeltaNet<'_> {
            DeltaNet::new(
                shape,
                &self.taps,
                [&self.decay, &self.bias],
                (&self.norm, 1e-5),
            )
        }
    }

    /// Computes the outputs in f64 from the definition, position by position.
    fn reference(shape: DeltaNetShape, weights: &Weights, rows: &[f32]) -> Vec<f64> {
        let (channels, len) = (shape.channels(), shape.row_len());
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let mut matrices = vec![0.0; shape.value_heads * shape.key_dim * shape.value_dim];
        let mut out = Vec::new();
        for row in 0..rows.len() / len {
            let convolved: Vec<f64> = (0..channels)
                .map(|channel| {
                    let of_tap = |tap: usize| {
                        let at = (row + tap).checked_sub(shape.taps - 1)?;
                        let factor = weights.taps[tap * channels + channel];
                        Some(f64::from(rows[at * len + channel]) * f64::from(factor))
                    };
                    silu((0..shape.taps).filter_map(of_tap).sum())
                })
                .collect();
            let unit = |x: &[f64]| -> Vec<f64> {
                let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / length).collect()
            };
            for head in 0..shape.value_heads {
                let key_head = match shape.tiled {
                    true => head % shape.key_heads,
                    false => head * shape.key_heads / shape.value_heads,
                };
                let at = key_head * shape.key_dim;
                let query = unit(&convolved[at..][..shape.key_dim]);
                let key = unit(&convolved[shape.keys() + at..][..shape.key_dim]);
                let value =
                    &convolved[2 * shape.keys() + head * shape.value_dim..][..shape.value_dim];
                let rest = &rows[row * len + channels..][..len - channels];
                let (gates, rates) = rest.split_at(shape.values());
                let rate = 1.0 / (1.0 + (-f64::from(rates[head])).exp());
                let step =
                    f64::from(rates[shape.value_heads + head]) + f64::from(weights.bias[head]);
                let decay = (f64::from(weights.decay[head]) * step.exp().ln_1p()).exp();
                let matrix = &mut matrices[head * shape.key_dim * shape.value_dim..]
                    [..shape.key_dim * shape.value_dim];
                matrix.iter_mut().for_each(|x| *x *= decay);
                let mut of_head = Vec::new();
                for (column, value) in value.iter().enumerate() {
                    let at = |line: usize| line * shape.value_dim + column;
                    let known: f64 = (0..shape.key_dim)
                        .map(|line| key[line] * matrix[at(line)])
                        .sum();
                    for (line, key) in key.iter().enumerate() {
                        matrix[at(line)] += key * rate * (value - known);
                    }
                    let read: f64 = (0..shape.key_dim)
                        .map(|line| query[line] * matrix[at(line)])
                        .sum();
                    of_head.push(read / (shape.key_dim as f64).sqrt());
                }
                let square = of_head.iter().map(|x| x * x).sum::<f64>() / of_head.len() as f64;
                for (column, x) in of_head.iter().enumerate() {
                    let gate = silu(f64::from(gates[head * shape.value_dim + column]));
                    out.push(x / (square + 1e-5).sqrt() * f64::from(weights.norm[column]) * gate);
                }
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn outputs_follow_the_delta_rule_however_rows_are_cut(
            key_heads in 1usize..4, per_key in 1usize..4, key_dim in 1usize..23, value_dim in 1usize..40,
            taps in 2usize..6, tiled in any::<bool>(), pieces in prop::collection::vec(1usize..40, 1..5),
            scratch_rows in 1usize..40, threads in 1usize..4,
        ) {
            let shape = DeltaNetShape {
                key_heads, value_heads: key_heads * per_key, key_dim, value_dim, taps, tiled,
            };
            let weights = Weights::new(shape);
            let operator = weights.operator(shape);
            let count: usize = pieces.iter().sum();
            let (len, values) = (shape.row_len(), shape.values());
            let rows = numbers(count * len, 1);
            let (mut whole, mut state) = (vec![0.0; count * values], vec![0.0; shape.state_len()]);
            let mut scratch = vec![f32::NAN; shape.scratch_len() * BLOCK];
            Pool::new(threads).unwrap().install(|| {
                operator.run(&mut state, &rows, Some(&mut whole), &mut scratch);
            });
            for (computed, expected) in whole.iter().zip(reference(shape, &weights, &rows)) {
                let apart = (f64::from(*computed) - expected).abs();
                prop_assert!(apart < 2e-4, "{} for {}", computed, expected);
            }
            let (mut cut, mut in_pieces, mut replayed) =
                (Vec::new(), vec![0.0; shape.state_len()], vec![0.0; shape.state_len()]);
            let mut scratch = vec![f32::NAN; shape.scratch_len() * scratch_rows];
            let mut row = 0;
            for piece in pieces {
                let rows = &rows[row * len..(row + piece) * len];
                let mut out = vec![0.0; piece * values];
                operator.run(&mut in_pieces, rows, Some(&mut out), &mut scratch);
                operator.run(&mut replayed, rows, None, &mut scratch);
                cut.extend(out);
                row += piece;
            }
            prop_assert!(cut == whole, "pieces have the bits of the whole");
            prop_assert!(in_pieces == state && replayed == state, "states have the bits of the whole");
        }
    }

    #[test]
    fn a_gate_is_that_of_the_same_head() {
        let mut x = [1.0, 2.0, 3.0, 4.0];
        let gated = [9.0, 9.0, 0.0, 1.0, 9.0, 9.0, -1.0, 2.0];
        gate_heads(&mut x, &gated, 2);
        for (x, (value, gate)) in x
            .iter()
            .zip([(1.0, 0.0f32), (2.0, 1.0), (3.0, -1.0), (4.0, 2.0)])
        {
            assert!((x - value / (1.0 + (-gate).exp())).abs() < 1e-6);
        }
    }
}
