//! Rounds weights to INT4 for the least error of a layer's outputs: each weight compensates for the errors of those that
//! were rounded before it (GPTQ), by the second moments of the layer's input over the calibration text ([`moments`]).
//!
//! A text has few rows for the many products of channels, so that its moments fit other text only in part. So the products
//! of different channels are multiplied by a share below 1. Held-out text tells which one: for some rows of the layers
//! that read an input, each share rounds the weights, and the one with the least error on that text is used for all rows.
//! With the share 0 there is no compensation.
//!
//! Under a budget of bits per weight, layers have four, five or eight bits: [`sensitivity`] measures what four cost each,
//! and [`budget`] chooses. The output matrix is then rounded as layers are ([`round_output`]).

pub mod budget;
mod cholesky;
pub mod moments;
mod output;
pub mod sensitivity;

use std::ops::Range;
use std::sync::Arc;

use triad_engine::quantization::{OutputWeights, WeightBits};
use triad_engine::weights::{
    Linear, Weight, WeightMatrix, linear_to_bits, linear_to_int4, linear_to_q5_0,
};
use triad_engine::{Cancel, Inputs, LinearInput, Model};
use triad_kernels::int4::{
    ErrorFeedback, GROUP, quantize_int4_with_feedback, quantize_q5_0_with_feedback,
};
use triad_kernels::{Matrix, OutputMut, Phase, matmul};
use triad_model::description;

use crate::error::Result;
use moments::{Moments, Parts, SecondMoments};
pub use output::round_output;

/// The shares of the products of different channels that are tried.
const SHARES: [f32; 5] = [0.95, 0.85, 0.7, 0.5, 0.25];
/// The share if no text is held out.
const USUAL_SHARE: f32 = 0.5;
/// Rows of weights, of all layers that read an input, with which shares are compared.
const SAMPLED_ROWS: usize = 128;
/// The least mean square of a channel, as a share of the largest one, so that any text has all channels.
const MIN_SQUARE: f32 = 1e-9;

/// Returns the float `model` in W4A16: moments of the text's first part, and of the second, held-out one, decide how each
/// linear layer is rounded.
///
/// # Errors
/// If `cancel` is set, or the model cannot run.
pub fn quantize(
    model: &Arc<Model>,
    text: &Parts<Vec<Vec<u32>>>,
    output_weights: OutputWeights,
    cancel: &Cancel,
) -> Result<Model> {
    let rounding = |first| {
        let mut moments = Moments::new(model.description(), first, moments::MEMORY);
        moments.run(model, text, cancel, |_| Ok(()))?;
        Ok::<_, crate::Error>(Rounding::new(model, moments))
    };
    let mut current = rounding(0)?;
    let weights = model.install(|| {
        let convert = |block, name, linear: &Linear| {
            if !current.blocks().contains(&block) {
                current.clear();
                current = rounding(block)?;
            }
            current.round((block, name), linear, WeightBits::Four, cancel)
        };
        model.weights().convert_linears(output_weights, convert)
    })?;
    Ok(model.with_weights(weights))
}

/// Rounds the linear layers of some blocks.
pub struct Rounding {
    model: Arc<Model>,
    moments: Moments,
    /// The feedback of the inputs of one block that were asked for.
    known: (usize, Inputs<Option<ErrorFeedback>>),
}

impl Rounding {
    /// Rounds by complete `moments` of the blocks' inputs.
    pub fn new(model: &Arc<Model>, moments: Moments) -> Self {
        Self {
            model: Arc::clone(model),
            known: (moments.blocks().start, Inputs::default()),
            moments,
        }
    }

    /// Returns the blocks whose layers it can round.
    pub fn blocks(&self) -> Range<usize> {
        self.moments.blocks()
    }

    /// Drops the moments and all that was computed from them: no layer can be rounded from then on.
    pub fn clear(&mut self) {
        self.known.1 = Inputs::default();
        self.moments.clear();
    }

    /// Rounds one layer to these bits, on the threads of the installed pool, which change no bit. Eight bits are rounded to
    /// the nearest numbers; with four, rows that are not whole groups stay in float. Blocks of the model's file stay as they
    /// are.
    ///
    /// # Errors
    /// If `cancel` is set.
    ///
    /// # Panics
    /// If the block is not among those of the moments, the weights are not in float, or rows with five bits are not whole
    /// groups.
    pub fn round(
        &mut self,
        (block, name): (usize, description::Linear),
        linear: &Linear,
        bits: WeightBits,
        cancel: &Cancel,
    ) -> Result<Linear> {
        if !bits.has_groups() {
            return Ok(linear_to_bits(linear, bits));
        }
        let input = LinearInput::read_by(name);
        let moments = self.moments.input(block, input);
        if moments[0].channels() == 0 {
            return Ok(linear_to_int4(linear, |_, _, _| {
                unreachable!("rows that are not whole groups stay in float")
            }));
        }
        if self.known.0 != block {
            self.known = (block, Inputs::default());
        }
        let known = &mut self.known.1[input.index()];
        let feedback = match known {
            Some(feedback) => feedback,
            None => {
                let linears = &self.model.weights().blocks[block].linears;
                let readers = linears.iter().filter_map(|(name, linear)| {
                    match (LinearInput::read_by(*name) == input, &linear.weight) {
                        (true, Weight::Float(matrix)) => Some(matrix),
                        _ => None,
                    }
                });
                known.insert(feedback(
                    &sample(&readers.collect::<Vec<_>>()),
                    moments,
                    cancel,
                )?)
            }
        };
        Ok(round_with(feedback, linear, bits))
    }
}

/// Rounds a layer whose rows are whole groups to four or five bits with the `feedback` of its input.
fn round_with(feedback: &ErrorFeedback, linear: &Linear, bits: WeightBits) -> Linear {
    if bits == WeightBits::Four {
        return linear_to_int4(linear, |weight, values, scales| {
            quantize_int4_with_feedback(feedback, weight, values, scales);
        });
    }
    linear_to_q5_0(linear, |weight, blocks| {
        quantize_q5_0_with_feedback(feedback, weight, blocks);
    })
}

/// Returns the feedback with which the layers that read an input are rounded. `sample` are some rows of their weights.
fn feedback(
    sample: &[f32],
    [seen, held_out]: &Parts<SecondMoments>,
    cancel: &Cancel,
) -> Result<ErrorFeedback> {
    let order = order(seen);
    let mut best = (0.0, f64::INFINITY);
    if held_out.rows() == 0 {
        best.0 = USUAL_SHARE;
    } else {
        let products = held_out.symmetric();
        for share in SHARES.into_iter().chain([0.0]) {
            let Some(feedback) = factor(seen, &order, share, cancel)? else {
                continue;
            };
            let error = error(sample, &feedback, &products);
            // False if the error is no number.
            if error < best.1 {
                best = (share, error);
            }
        }
    }
    tracing::debug!(share = best.0, "rounding with feedback");
    let mut all = seen.clone();
    all.merge(held_out);
    let feedback = match factor(&all, &order, best.0, cancel)? {
        Some(feedback) => feedback,
        None => factor(&all, &order, 0.0, cancel)?.expect("a diagonal has a factor"),
    };
    Ok(feedback)
}

/// Returns the order in which channels are rounded: groups, and channels within a group, by their squares, largest first,
/// so that many channels can still compensate for the errors that count most.
fn order(moments: &SecondMoments) -> Vec<u32> {
    let square = |channel: u32| moments.sum(channel as usize, channel as usize);
    let of_group = |group: u32| {
        let first = group * GROUP as u32;
        (first..first + GROUP as u32).map(square).sum::<f32>()
    };
    let mut groups: Vec<u32> = (0..(moments.channels() / GROUP) as u32).collect();
    groups.sort_by(|one, other| of_group(*other).total_cmp(&of_group(*one)));
    let channels = groups.into_iter().flat_map(|group| {
        let first = group * GROUP as u32;
        let mut channels: Vec<u32> = (first..first + GROUP as u32).collect();
        channels.sort_by(|one, other| square(*other).total_cmp(&square(*one)));
        channels
    });
    channels.collect()
}

/// Returns the factor of the moments with their products of different channels multiplied by `share`; `None` if they have
/// none, as numbers beyond the range of f32 have.
fn factor(
    moments: &SecondMoments,
    order: &[u32],
    share: f32,
    cancel: &Cancel,
) -> Result<Option<ErrorFeedback>> {
    let channels = order.len();
    // Only ratios count, so the largest square is 1.
    let square = |channel: &u32| {
        let square = moments.sum(*channel as usize, *channel as usize);
        if square.is_finite() { square } else { f32::MAX }
    };
    let largest = order.iter().map(square).fold(f32::MIN_POSITIVE, f32::max);
    let roots: Vec<f32> = order
        .iter()
        .map(|channel| (square(channel) / largest).max(MIN_SQUARE).sqrt())
        .collect();
    if share == 0.0 {
        let ratios = vec![0.0; channels * channels];
        return Ok(Some(ErrorFeedback::new(order.to_vec(), ratios, roots)));
    }
    // R of the matrix is L of the matrix in descending order, which is factored with a diagonal of ones.
    let mut lower = vec![0.0; channels * channels];
    let descending = |index: usize| channels - 1 - index;
    for (index, row) in lower.chunks_exact_mut(channels).enumerate() {
        let i = descending(index);
        for (index, value) in row[..index].iter_mut().enumerate() {
            let j = descending(index);
            let product = moments.sum(order[i] as usize, order[j] as usize) / largest;
            *value = share * (product / (roots[i] * roots[j]));
        }
        row[index] = 1.0;
    }
    if !cholesky::factor(&mut lower, channels, cancel)? {
        return Ok(None);
    }
    let at = |i: usize, j: usize| roots[i] * lower[descending(i) * channels + descending(j)];
    let diagonal: Vec<f32> = (0..channels).map(|j| at(j, j)).collect();
    let mut ratios = vec![0.0; channels * channels];
    for (j, row) in ratios.chunks_exact_mut(channels).enumerate() {
        for (i, ratio) in row[..j].iter_mut().enumerate() {
            *ratio = at(i, j) / diagonal[j];
        }
    }
    Ok(Some(ErrorFeedback::new(order.to_vec(), ratios, diagonal)))
}

/// Returns some rows of these matrices, evenly over each, as one.
fn sample(matrices: &[&WeightMatrix]) -> Vec<f32> {
    let count = SAMPLED_ROWS.div_ceil(matrices.len().max(1));
    let mut sample = Vec::new();
    for matrix in matrices.iter().take(SAMPLED_ROWS) {
        let count = count.min(matrix.out_features());
        for index in 0..count {
            let row = index * matrix.out_features() / count;
            let first = sample.len();
            sample.resize(first + matrix.in_features(), 0.0);
            matrix.rows_to_f32(row..row + 1, &mut sample[first..]);
        }
    }
    sample
}

/// Returns the squared error of the outputs of rows `weight` that are rounded with `feedback`, for inputs with these sums
/// of `products`.
fn error(weight: &[f32], feedback: &ErrorFeedback, products: &[f32]) -> f64 {
    let channels = feedback.channels();
    let rows = weight.len() / channels;
    let mut values = vec![0; weight.len() / 2];
    let mut scales = vec![half::f16::ZERO; weight.len() / GROUP];
    quantize_int4_with_feedback(feedback, weight, &mut values, &mut scales);
    let rounded = Matrix::Int4 {
        values: &values,
        scales: &scales,
    };
    let mut errors = vec![0.0; weight.len()];
    for (row, errors) in errors.chunks_exact_mut(channels).enumerate() {
        rounded.widen_row(row, errors);
    }
    for (error, weight) in errors.iter_mut().zip(weight) {
        *error -= weight;
    }
    let mut outputs = vec![0.0; rows * channels];
    let out = OutputMut::new(&mut outputs, channels);
    matmul(&errors, Matrix::F32(products), None, Phase::Prefill, out);
    let products = errors.iter().zip(&outputs);
    products
        .map(|(one, other)| f64::from(*one) * f64::from(*other))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNELS: usize = 96;

    /// Returns numbers from −1 to 1 that look random.
    fn random(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Returns the moments of rows whose channels are sums of `causes` random numbers, the same for each `text`, and noise.
    fn moments(causes: usize, noise: f32, rows: usize, text: u32) -> SecondMoments {
        let mixture = random(causes * CHANNELS, 1);
        let (of_causes, noises) = (
            random(rows * causes, text),
            random(rows * CHANNELS, text + 100),
        );
        let mut x = vec![0.0; rows * CHANNELS];
        for (index, x) in x.iter_mut().enumerate() {
            let (row, channel) = (index / CHANNELS, index % CHANNELS);
            let products = (0..causes)
                .map(|it| of_causes[row * causes + it] * mixture[it * CHANNELS + channel]);
            *x = products.sum::<f32>() + noise * noises[index];
        }
        let mut moments = SecondMoments::new(CHANNELS);
        moments.add(&x);
        moments
    }

    /// Returns the errors on a third text of weights that are rounded with the feedback of two, and without any.
    fn errors(causes: usize, noise: f32, rows: usize) -> [f64; 2] {
        let weight = random(40 * CHANNELS, 7);
        let parts = [
            moments(causes, noise, rows, 20),
            moments(causes, noise, rows / 3, 30),
        ];
        let cancel = Cancel::new();
        let chosen = feedback(&weight, &parts, &cancel).unwrap();
        let without = factor(&parts[0], &order(&parts[0]), 0.0, &cancel)
            .unwrap()
            .unwrap();
        let other = moments(causes, noise, 2000, 40).symmetric();
        [chosen, without].map(|feedback| error(&weight, &feedback, &other))
    }

    #[test]
    fn correlated_inputs_leave_a_fraction_of_the_error_on_other_text() {
        let [with, without] = errors(12, 0.05, 1000);
        assert!(with * 3.0 < without, "{with} is not far below {without}");
    }

    #[test]
    fn moments_of_few_rows_do_no_harm_on_other_text() {
        // Fewer rows than channels, which are independent: what they seem to have in common is chance.
        let [with, without] = errors(0, 1.0, 60);
        assert!(with < without * 1.03, "{with} exceeds {without}");
    }

    #[test]
    fn inputs_that_are_zero_or_too_large_are_rounded_without_feedback() {
        let weight = random(40 * CHANNELS, 7);
        for magnitude in [0.0, 1e25, 3e38] {
            let mut moments = SecondMoments::new(CHANNELS);
            let x: Vec<f32> = random(50 * CHANNELS, 3)
                .iter()
                .map(|x| x * magnitude)
                .collect();
            moments.add(&x);
            let feedback = feedback(&weight, &[moments.clone(), moments], &Cancel::new()).unwrap();
            let (mut values, mut scales) = (
                vec![0; weight.len() / 2],
                vec![half::f16::NAN; weight.len() / GROUP],
            );
            quantize_int4_with_feedback(&feedback, &weight, &mut values, &mut scales);
            assert!(scales.iter().all(|scale| scale.is_finite()), "{magnitude}");
        }
    }
}
