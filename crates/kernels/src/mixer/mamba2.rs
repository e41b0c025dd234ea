//! Mamba-2 (Granite 4): a short convolution, and a matrix for each head that each position decays and adds to.

use super::blocks::{self, Matrices};
use super::convolution::Convolution;
use super::{PARALLEL, softplus};
use crate::activation::silu;
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::dot::sum;
use crate::norm::rms_norm_in_place;
use crate::vectorize::{Fused, vectorize_fused};

/// Number of independent partial sums of an output.
const LANES: usize = 16;

/// The sizes of a [`Mamba2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba2Shape {
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Groups of neighboring heads that share an input and an output vector; also the parts of the norm.
    pub groups: usize,
    /// Width of these vectors.
    pub state: usize,
    /// Positions that the convolution reads, its own among them.
    pub taps: usize,
}

impl Mamba2Shape {
    fn width(self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the channels of the convolution: those of all heads, and of input and output vectors.
    fn channels(self) -> usize {
        self.width() + 2 * self.groups * self.state
    }

    /// Returns the values of a row: the output gate, the channels of the convolution, and the step of each head.
    pub fn row_len(self) -> usize {
        self.width() + self.channels() + self.heads
    }

    fn history(self) -> usize {
        (self.taps - 1) * self.channels()
    }

    /// Returns the number of values of the state.
    pub fn state_len(self) -> usize {
        self.history() + self.width() * self.state
    }

    /// Returns the values of scratch memory that a row needs.
    pub fn scratch_len(self) -> usize {
        self.channels() + self.width()
    }
}

/// The weights of each head.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2Heads<'a> {
    /// Factors from steps to the logarithms of decays.
    pub decay: &'a [f32],
    /// Summands of steps.
    pub step_bias: &'a [f32],
    /// Factors of a head's input that is added to its output.
    pub skip: &'a [f32],
}

/// The weights of a Mamba-2. Its state holds the convolution's inputs `[taps − 1, channels]` of the latest positions, the
/// earliest first, and a matrix `[head_dim, state]` for each head.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2<'a> {
    shape: Mamba2Shape,
    convolution: Convolution<'a>,
    heads: Mamba2Heads<'a>,
    norm: Mamba2Norm<'a>,
}

/// The norm of a Mamba-2's outputs.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2Norm<'a> {
    /// Its place.
    pub place: GateNorm,
    /// Factors of the outputs of all heads; none if there is no norm.
    pub factors: &'a [f32],
    /// The number that is added to the mean square.
    pub epsilon: f32,
}

/// The place of the norm of a Mamba-2's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateNorm {
    /// After the outputs are multiplied by SiLU of their gates (Granite 4).
    AfterGate,
    /// Before that.
    BeforeGate,
    /// There is none.
    Never,
}

impl<'a> Mamba2<'a> {
    /// Creates the operator of factors `taps[taps, channels]`, of the earliest position first, with a bias if there is
    /// one.
    ///
    /// # Panics
    /// If a length differs, or the number of heads is no multiple of that of groups.
    pub fn new(
        shape: Mamba2Shape,
        (taps, bias): (&'a [f32], Option<&'a [f32]>),
        heads: Mamba2Heads<'a>,
        norm: Mamba2Norm<'a>,
    ) -> Self {
        assert!(
            shape.heads.is_multiple_of(shape.groups),
            "expected heads for each group"
        );
        let channels = shape.channels();
        assert!(
            taps.len() == shape.taps * channels && bias.is_none_or(|bias| bias.len() == channels),
            "expected factors of all channels"
        );
        let Mamba2Heads {
            decay,
            step_bias,
            skip,
        } = heads;
        assert!(
            [decay, step_bias, skip]
                .iter()
                .all(|it| it.len() == shape.heads),
            "expected weights of each head"
        );
        let normed = match norm.place {
            GateNorm::Never => 0,
            GateNorm::AfterGate | GateNorm::BeforeGate => shape.width(),
        };
        assert_eq!(norm.factors.len(), normed, "expected a norm of all heads");
        Self {
            shape,
            convolution: Convolution {
                factors: taps,
                bias,
                channels,
                first: shape.width(),
                row_len: shape.row_len(),
            },
            heads,
            norm,
        }
    }

    /// Returns its sizes.
    pub fn shape(&self) -> Mamba2Shape {
        self.shape
    }

    /// Brings `state` from before `rows[rows, row_len]` to after them, and writes their outputs
    /// `[rows, heads, head_dim]` to `out`, if that is wanted. The number of rows in `scratch` changes no bit.
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

impl Matrices for Mamba2<'_> {
    fn convolution(&self) -> Convolution<'_> {
        self.convolution
    }

    fn matrices_len(&self) -> usize {
        self.shape.width() * self.shape.state
    }

    fn width(&self) -> usize {
        self.shape.width()
    }

    /// Runs the convolved rows of a block through the matrices of all heads. Writes `[heads, rows, head_dim]`.
    fn scan(&self, matrices: &mut [f32], rows: &[f32], convolved: &[f32], out: &mut [f32]) {
        let shape = self.shape;
        let (channels, row_len, dim) = (shape.channels(), shape.row_len(), shape.head_dim);
        let count = convolved.len() / channels;
        let matrix = dim * shape.state;
        let work = matrices.len() * count;
        let grain = if work < PARALLEL { usize::MAX } else { 1 };
        let heads = (chunks_mut(matrices, matrix), chunks_mut(out, count * dim));
        for_each_chunk(heads, grain, |head, (matrix, out)| {
            let group = head / (shape.heads / shape.groups);
            let Mamba2Heads {
                decay,
                step_bias,
                skip,
            } = self.heads;
            for row in 0..count {
                let raw = rows[row * row_len + shape.width() + channels + head];
                let step = softplus(raw + step_bias[head]);
                let convolved = &convolved[row * channels..][..channels];
                let vectors = &convolved[shape.width() + group * shape.state..];
                let position = Position {
                    decay: (decay[head] * step).exp(),
                    step,
                    skip: skip[head],
                    x: &convolved[head * dim..][..dim],
                    input: &vectors[..shape.state],
                    output: &vectors[shape.groups * shape.state..][..shape.state],
                };
                let out = &mut out[row * dim..][..dim];
                vectorize_fused(
                    #[inline(always)]
                    |fused| position.run(matrix, out, fused),
                );
            }
        });
    }

    fn finish(&self, mixed: &[f32], count: usize, (row, inputs): (usize, &[f32]), out: &mut [f32]) {
        let shape = self.shape;
        let (width, dim) = (shape.width(), shape.head_dim);
        for (head, out) in out.chunks_exact_mut(dim).enumerate() {
            out.copy_from_slice(&mixed[(head * count + row) * dim..][..dim]);
        }
        if self.norm.place == GateNorm::BeforeGate {
            self.normalize(out);
        }
        vectorize_fused(
            #[inline(always)]
            |fused| {
                for (out, gate) in out.iter_mut().zip(&inputs[..width]) {
                    *out *= silu(*gate, fused);
                }
            },
        );
        if self.norm.place == GateNorm::AfterGate {
            self.normalize(out);
        }
    }
}

impl Mamba2<'_> {
    /// Computes the norm of each part of a row's outputs.
    fn normalize(&self, out: &mut [f32]) {
        let part = out.len() / self.shape.groups;
        let norms = self.norm.factors.chunks_exact(part);
        for (out, norm) in out.chunks_exact_mut(part).zip(norms) {
            rms_norm_in_place(out, norm, self.norm.epsilon);
        }
    }
}

/// One position of one head.
struct Position<'a> {
    decay: f32,
    step: f32,
    skip: f32,
    x: &'a [f32],
    input: &'a [f32],
    output: &'a [f32],
}

impl Position<'_> {
    /// Updates a head's matrix and computes its outputs. Each row of the matrix is computed alone: it decays, then
    /// `step · x · input` is added, and its output is `output · row + skip · x`.
    #[inline(always)]
    fn run(&self, matrix: &mut [f32], out: &mut [f32], fused: Fused) {
        let (inputs, last_inputs) = self.input.as_chunks::<LANES>();
        let (outputs, last_outputs) = self.output.as_chunks::<LANES>();
        let lines = matrix.chunks_exact_mut(self.input.len());
        for ((out, x), line) in out.iter_mut().zip(self.x).zip(lines) {
            let added = self.step * x;
            let mut sums = [0.0f32; LANES];
            let (line, last) = line.as_chunks_mut::<LANES>();
            for ((line, input), output) in line.iter_mut().zip(inputs).zip(outputs) {
                for lane in 0..LANES {
                    let new = fused.multiply_add(input[lane], added, self.decay * line[lane]);
                    line[lane] = new;
                    sums[lane] = fused.multiply_add(output[lane], new, sums[lane]);
                }
            }
            let mut rest = 0.0;
            for ((line, input), output) in last.iter_mut().zip(last_inputs).zip(last_outputs) {
                *line = fused.multiply_add(*input, added, self.decay * *line);
                rest = fused.multiply_add(*output, *line, rest);
            }
            *out = fused.multiply_add(self.skip, *x, sum(sums) + rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::BLOCK;
    use super::*;
    use crate::pool::Pool;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0)
            .collect()
    }

    struct Weights {
        taps: Vec<f32>,
        bias: Vec<f32>,
        decay: Vec<f32>,
        step_bias: Vec<f32>,
        skip: Vec<f32>,
        norm: Vec<f32>,
    }

    impl Weights {
        fn new(shape: Mamba2Shape) -> Self {
            let decay = numbers(shape.heads, 3);
            Self {
                taps: numbers(shape.taps * shape.channels(), 2),
                bias: numbers(shape.channels(), 7),
                decay: decay.iter().map(|x| -x.abs()).collect(),
                step_bias: numbers(shape.heads, 4),
                skip: numbers(shape.heads, 6),
                norm: numbers(shape.width(), 5),
            }
        }

        fn operator(&self, shape: Mamba2Shape, bias: bool, place: GateNorm) -> Mamba2<'_> {
            let heads = Mamba2Heads {
                decay: &self.decay,
                step_bias: &self.step_bias,
                skip: &self.skip,
            };
            let bias = bias.then_some(&self.bias[..]);
            let norm = Mamba2Norm {
                place,
                factors: match place {
                    GateNorm::Never => &[],
                    GateNorm::AfterGate | GateNorm::BeforeGate => &self.norm,
                },
                epsilon: 1e-5,
            };
            Mamba2::new(shape, (&self.taps, bias), heads, norm)
        }
    }

    /// Computes the outputs in f64 from the definition, position by position.
    fn reference(
        shape: Mamba2Shape,
        weights: &Weights,
        (bias, norm): (bool, GateNorm),
        rows: &[f32],
    ) -> Vec<f64> {
        let (channels, len, width) = (shape.channels(), shape.row_len(), shape.width());
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let mut matrices = vec![0.0; width * shape.state];
        let mut all = Vec::new();
        for (row, values) in rows.chunks_exact(len).enumerate() {
            let convolved: Vec<f64> = (0..channels)
                .map(|channel| {
                    let of_tap = |tap: usize| {
                        let at = (row + tap).checked_sub(shape.taps - 1)?;
                        let factor = weights.taps[tap * channels + channel];
                        Some(f64::from(rows[at * len + width + channel]) * f64::from(factor))
                    };
                    let bias = if bias {
                        f64::from(weights.bias[channel])
                    } else {
                        0.0
                    };
                    silu((0..shape.taps).filter_map(of_tap).sum::<f64>() + bias)
                })
                .collect();
            let mut outputs = Vec::new();
            for place in 0..width {
                let head = place / shape.head_dim;
                let group = head * shape.groups / shape.heads;
                let vector = |which: usize| {
                    let first = width + (which * shape.groups + group) * shape.state;
                    &convolved[first..first + shape.state]
                };
                let raw = f64::from(values[width + channels + head]);
                let step = (raw + f64::from(weights.step_bias[head])).exp().ln_1p();
                let decay = (f64::from(weights.decay[head]) * step).exp();
                let line = &mut matrices[place * shape.state..][..shape.state];
                let mut out = f64::from(weights.skip[head]) * convolved[place];
                for ((line, input), output) in line.iter_mut().zip(vector(0)).zip(vector(1)) {
                    *line = decay * *line + step * convolved[place] * input;
                    out += *line * output;
                }
                outputs.push(out);
            }
            let gate = |outputs: &mut [f64]| {
                let gates = outputs.iter_mut().zip(values);
                gates.for_each(|(out, gate)| *out *= silu(f64::from(*gate)));
            };
            if norm != GateNorm::BeforeGate {
                gate(&mut outputs);
            }
            let part = width / shape.groups;
            for (index, outputs) in outputs.chunks_mut(part).enumerate() {
                if norm == GateNorm::Never {
                    break;
                }
                let square = outputs.iter().map(|x| x * x).sum::<f64>() / part as f64;
                for (place, x) in outputs.iter_mut().enumerate() {
                    let factor = f64::from(weights.norm[index * part + place]);
                    *x *= factor / (square + 1e-5).sqrt();
                }
            }
            if norm == GateNorm::BeforeGate {
                gate(&mut outputs);
            }
            all.extend(outputs);
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn outputs_follow_the_scan_however_rows_are_cut(
            groups in 1usize..4, per_group in 1usize..4, head_dim in 1usize..23, state in 1usize..40,
            taps in 2usize..6, bias in any::<bool>(), pieces in prop::collection::vec(1usize..40, 1..5),
            scratch_rows in 1usize..40, threads in 1usize..4,
            norm in prop::sample::select(vec![GateNorm::AfterGate, GateNorm::BeforeGate, GateNorm::Never]),
        ) {
            let shape = Mamba2Shape { heads: groups * per_group, head_dim, groups, state, taps };
            let weights = Weights::new(shape);
            let operator = weights.operator(shape, bias, norm);
            let count: usize = pieces.iter().sum();
            let (len, width) = (shape.row_len(), shape.width());
            let rows = numbers(count * len, 1);
            let (mut whole, mut after) = (vec![0.0; count * width], vec![0.0; shape.state_len()]);
            let mut scratch = vec![f32::NAN; shape.scratch_len() * BLOCK];
            Pool::new(threads).unwrap().install(|| {
                operator.run(&mut after, &rows, Some(&mut whole), &mut scratch);
            });
            for (computed, expected) in whole.iter().zip(reference(shape, &weights, (bias, norm), &rows)) {
                let apart = (f64::from(*computed) - expected).abs();
                prop_assert!(apart < 5e-4, "{} for {}", computed, expected);
            }
            let (mut cut, mut in_pieces, mut replayed) =
                (Vec::new(), vec![0.0; shape.state_len()], vec![0.0; shape.state_len()]);
            let mut scratch = vec![f32::NAN; shape.scratch_len() * scratch_rows];
            let mut row = 0;
            for piece in pieces {
                let rows = &rows[row * len..(row + piece) * len];
                let mut out = vec![0.0; piece * width];
                operator.run(&mut in_pieces, rows, Some(&mut out), &mut scratch);
                operator.run(&mut replayed, rows, None, &mut scratch);
                cut.extend(out);
                row += piece;
            }
            prop_assert!(cut == whole, "pieces have the bits of the whole");
            prop_assert!(in_pieces == after && replayed == after, "states have the bits of the whole");
        }
    }
}
