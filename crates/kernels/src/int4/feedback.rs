//! Rounds the weights of a row one after another, so that later ones compensate for the errors of earlier ones (GPTQ).
//!
//! For inputs with the second moments H, the expected squared error of an output is eᵀHe, where e are the errors of its
//! row. With H = RRᵀ and R upper triangular, it is the sum of (Σ e\[i\] · R\[i, j\])² over all j. The term of j has the
//! errors up to j alone, so weights are rounded in ascending order: each to the nearest number of what makes its term
//! zero. Channels are ordered first, whole groups together, so that the format of a matrix does not change.
//!
//! A group's scale is chosen when its turn comes. Each candidate rounds the whole group; the one with the least sum of
//! the group's terms is used, improved by least squares as in `search`.
//!
//! Sixteen rows are rounded at a time, one in each lane.

use half::f16;

use super::search::{EXTREMES, STEP, STEPS};
use super::{GROUP, HALF, OFFSET, q5_0};
use crate::chunks::{chunks_mut, for_each_chunk};
use crate::vectorize::{Fused, vectorize_fused};

/// Rows that are rounded together.
const LANES: usize = 16;
/// Channels whose sums over earlier errors are computed together.
const CHANNELS: usize = 4;
/// Least-squares improvements of a scale.
const ROUNDS: usize = 2;

type Lanes = [f32; LANES];
/// One number for each weight of a group in each row.
type OfGroup = [Lanes; GROUP];

/// The triangular factor R of the second moments of a linear layer's input, in the order in which channels are rounded.
pub struct ErrorFeedback {
    /// The channel at each place: a permutation that keeps groups together.
    order: Vec<u32>,
    /// `R[i, j] / R[j, j]` at `[j, i]` for i < j, by place: the rest is not read.
    ratios: Vec<f32>,
    /// `R[j, j]`.
    diagonal: Vec<f32>,
}

impl ErrorFeedback {
    /// Creates the factor. `order` has the channel at each place; `ratios[channels, channels]` has R\[i, j\] / R\[j, j\]
    /// at \[j, i\] for i < j; `diagonal` has R\[j, j\]. Both are by place.
    ///
    /// # Panics
    /// If a length contradicts the others, or `order` is no permutation whose parts of 32 are groups of channels.
    pub fn new(order: Vec<u32>, ratios: Vec<f32>, diagonal: Vec<f32>) -> Self {
        let channels = order.len();
        assert_eq!(ratios.len(), channels * channels, "[channels, channels]");
        assert_eq!(diagonal.len(), channels, "[channels]");
        let (groups, rest) = order.as_chunks::<GROUP>();
        assert!(
            rest.is_empty() && channels > 0,
            "channels in groups of {GROUP}"
        );
        let mut seen = vec![false; channels];
        for group in groups {
            let first = group[0] as usize / GROUP;
            for channel in group.map(|channel| channel as usize) {
                let is_new =
                    channel / GROUP == first && !std::mem::replace(&mut seen[channel], true);
                assert!(is_new, "order is no permutation within and of groups");
            }
        }
        Self {
            order,
            ratios,
            diagonal,
        }
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        self.order.len()
    }
}

/// Quantizes `weight[out_features, in_features]` as [`quantize_int4`](super::quantize_int4) does, but for the least
/// expected squared error of outputs, with `feedback` of the second moments of the `in_features` channels.
///
/// # Panics
/// If a slice's length contradicts the others.
pub fn quantize_int4_with_feedback(
    feedback: &ErrorFeedback,
    weight: &[f32],
    values: &mut [u8],
    scales: &mut [f16],
) {
    super::check(values, scales);
    let channels = feedback.channels();
    check(channels, weight, values.len() * 2);
    for_each_chunk(
        (
            chunks_mut(values, LANES * channels / 2),
            chunks_mut(scales, LANES * channels / GROUP),
        ),
        1,
        |task, (values, scales)| {
            let weight = &weight[task * LANES * channels..][..values.len() * 2];
            let numbers = round_rows(feedback, f32::from(OFFSET), weight, scales);
            for (numbers, bytes) in groups(&numbers).zip(values.as_chunks_mut::<HALF>().0) {
                *bytes = super::low_bits(numbers, OFFSET);
            }
        },
    );
}

/// Quantizes `weight[out_features, in_features]` as [`quantize_int4_with_feedback`] does, but to numbers from −16 to 15,
/// in GGUF's blocks of Q5_0.
///
/// # Panics
/// If a slice's length contradicts the others.
pub fn quantize_q5_0_with_feedback(feedback: &ErrorFeedback, weight: &[f32], blocks: &mut [u8]) {
    let channels = feedback.channels();
    check(channels, weight, blocks.len() / q5_0::BYTES * GROUP);
    for_each_chunk(
        chunks_mut(blocks, LANES * channels / GROUP * q5_0::BYTES),
        1,
        |task, blocks| {
            let count = blocks.len() / q5_0::BYTES;
            let weight = &weight[task * LANES * channels..][..count * GROUP];
            let mut scales = vec![f16::ZERO; count];
            let numbers = round_rows(feedback, f32::from(q5_0::OFFSET), weight, &mut scales);
            let blocks = blocks.as_chunks_mut::<{ q5_0::BYTES }>().0;
            for ((numbers, scale), block) in groups(&numbers).zip(scales).zip(blocks) {
                *block = q5_0::block(scale, numbers);
            }
        },
    );
}

fn check(channels: usize, weight: &[f32], expected: usize) {
    assert_eq!(weight.len(), expected, "weights for the rounded ones");
    assert!(
        weight.len().is_multiple_of(channels),
        "{} weights for {channels} channels",
        weight.len()
    );
}

fn groups(numbers: &[i8]) -> impl Iterator<Item = &[i8; GROUP]> {
    numbers.as_chunks::<GROUP>().0.iter()
}

/// Rounds up to [`LANES`] rows to numbers from −`half` to `half` − 1, and returns these, row by row; writes the scales.
fn round_rows(feedback: &ErrorFeedback, half: f32, weight: &[f32], scales: &mut [f16]) -> Vec<i8> {
    let mut errors = vec![[0.0; LANES]; feedback.channels()];
    let mut numbers = vec![0; weight.len()];
    vectorize_fused(
        #[inline(always)]
        |fused| {
            let rounded = (&mut numbers[..], &mut scales[..]);
            round_groups(fused, feedback, half, weight, &mut errors, rounded);
        },
    );
    numbers
}

/// Rounds the groups of up to [`LANES`] rows. `errors` are zeros, and in the end the errors by place.
#[inline(always)]
fn round_groups(
    fused: Fused,
    feedback: &ErrorFeedback,
    half: f32,
    weight: &[f32],
    errors: &mut [Lanes],
    (numbers, scales): (&mut [i8], &mut [f16]),
) {
    let channels = feedback.channels();
    let rows = weight.len() / channels;
    for place in 0..channels / GROUP {
        let first = place * GROUP;
        let (before, of_group) = errors.split_at_mut(first);
        let of_group = &mut of_group[..GROUP];
        let mut group = Group::new(feedback, half, first);
        for index in 0..GROUP {
            let channel = feedback.order[first + index] as usize;
            for row in 0..rows {
                group.weight[index][row] = weight[row * channels + channel];
            }
        }
        group.add_earlier(fused, feedback, before);
        let best = group.best_scales(fused);
        group.round(fused, best);
        of_group.copy_from_slice(&group.errors);

        let actual = feedback.order[first] as usize / GROUP;
        for (row, best) in best.into_iter().enumerate().take(rows) {
            let at = row * channels / GROUP + actual;
            scales[at] = best;
            let numbers = &mut numbers[at * GROUP..][..GROUP];
            for index in 0..GROUP {
                let inner = feedback.order[first + index] as usize % GROUP;
                numbers[inner] = group.numbers[index][row] as i8;
            }
        }
    }
}

/// One group of up to [`LANES`] rows, by place.
struct Group {
    /// Rounded weights divided by the scale are from −`half` to `half` − 1.
    half: f32,
    weight: OfGroup,
    /// The weights, with what compensates for the errors of earlier groups.
    targets: OfGroup,
    /// `R[i, j] / R[j, j]` at `[j][i]`, for i < j; other numbers are zeros.
    ratios: [[f32; GROUP]; GROUP],
    /// `R[j, j]`.
    diagonal: [f32; GROUP],
    /// The rounded weights divided by the scale.
    numbers: OfGroup,
    /// The weights minus the rounded weights.
    errors: OfGroup,
}

impl Group {
    #[inline(always)]
    fn new(feedback: &ErrorFeedback, half: f32, first: usize) -> Self {
        let channels = feedback.channels();
        let mut ratios = [[0.0; GROUP]; GROUP];
        let mut diagonal = [0.0; GROUP];
        for j in 0..GROUP {
            diagonal[j] = feedback.diagonal[first + j];
            let row = &feedback.ratios[(first + j) * channels + first..][..j];
            ratios[j][..j].copy_from_slice(row);
        }
        let zeros = [[0.0; LANES]; GROUP];
        Self {
            half,
            weight: zeros,
            targets: zeros,
            ratios,
            diagonal,
            numbers: zeros,
            errors: zeros,
        }
    }

    /// Computes `targets` from `weight` and the errors of all earlier places.
    #[inline(always)]
    fn add_earlier(&mut self, fused: Fused, feedback: &ErrorFeedback, errors: &[Lanes]) {
        let (channels, first) = (feedback.channels(), errors.len());
        for j in (0..GROUP).step_by(CHANNELS) {
            let mut sums = [[0.0; LANES]; CHANNELS];
            let row =
                |channel: usize| &feedback.ratios[(first + j + channel) * channels..][..first];
            let rows: [&[f32]; CHANNELS] = [row(0), row(1), row(2), row(3)];
            for (i, error) in errors.iter().enumerate() {
                for channel in 0..CHANNELS {
                    let ratio = rows[channel][i];
                    for lane in 0..LANES {
                        let sum = &mut sums[channel][lane];
                        *sum = fused.multiply_add(error[lane], ratio, *sum);
                    }
                }
            }
            for (channel, sums) in sums.iter().enumerate() {
                for (lane, sum) in sums.iter().enumerate() {
                    self.targets[j + channel][lane] = self.weight[j + channel][lane] + sum;
                }
            }
        }
    }

    /// Returns the scale with the least error for each row; NaN if no error is finite.
    #[inline(always)]
    fn best_scales(&mut self, fused: Fused) -> [f16; LANES] {
        let largest = |of_group: &OfGroup| {
            let mut largest = [0.0f32; LANES];
            for values in of_group {
                for lane in 0..LANES {
                    if values[lane].abs() > largest[lane].abs() {
                        largest[lane] = values[lane];
                    }
                }
            }
            largest
        };
        // The target of a channel that is almost always 0 may be far beyond all weights, and counts for little.
        let largest = [largest(&self.targets), largest(&self.weight)];
        let mut best = Best {
            scales: [f16::NAN; LANES],
            errors: [f32::INFINITY; LANES],
        };
        for step in 0..STEPS {
            let extreme = (EXTREMES[0] + STEP * step as f32) * (self.half / f32::from(OFFSET));
            for largest in &largest {
                for sign in [-1.0, 1.0] {
                    let mut scales = [f16::ZERO; LANES];
                    for lane in 0..LANES {
                        scales[lane] = f16::from_f32(sign * largest[lane] / extreme);
                    }
                    let errors = self.round(fused, scales);
                    best.consider(scales, errors);
                }
            }
        }
        for _ in 0..ROUNDS {
            self.round(fused, best.scales);
            let scales = self.least_squares(fused);
            let errors = self.round(fused, scales);
            best.consider(scales, errors);
        }
        best.scales
    }

    /// Rounds each weight with these scales, and returns the sum of the group's terms.
    #[inline(always)]
    fn round(&mut self, fused: Fused, scales: [f16; LANES]) -> Lanes {
        let (mut wide, mut inverse) = ([0.0; LANES], [0.0; LANES]);
        for lane in 0..LANES {
            wide[lane] = scales[lane].to_f32();
            inverse[lane] = super::inverse(scales[lane]);
        }
        let mut sums = [0.0; LANES];
        for j in 0..GROUP {
            let target = self.with_products(fused, &self.targets, &self.errors, j);
            let (weight, diagonal) = (self.weight[j], self.diagonal[j]);
            for lane in 0..LANES {
                let number = (target[lane] * inverse[lane])
                    .round_ties_even()
                    .clamp(-self.half, self.half - 1.0);
                let rounded = number * wide[lane];
                let term = diagonal * (target[lane] - rounded);
                sums[lane] = fused.multiply_add(term, term, sums[lane]);
                self.errors[j][lane] = weight[lane] - rounded;
                self.numbers[j][lane] = number;
            }
        }
        sums
    }

    /// Returns `of_group[j]` plus the sum of `earlier[i]` · R\[i, j\] / R\[j, j\] over the places i < j of the group.
    ///
    /// The compiler vectorizes over lanes, since it may not reorder the sums.
    #[inline(always)]
    fn with_products(
        &self,
        fused: Fused,
        of_group: &OfGroup,
        earlier: &OfGroup,
        j: usize,
    ) -> Lanes {
        let ratios = &self.ratios[j];
        // Two sums, which do not wait for each other.
        let (mut even, mut odd) = (of_group[j], [0.0; LANES]);
        for pair in 0..j / 2 {
            let (one, other) = (2 * pair, 2 * pair + 1);
            for lane in 0..LANES {
                even[lane] = fused.multiply_add(earlier[one][lane], ratios[one], even[lane]);
                odd[lane] = fused.multiply_add(earlier[other][lane], ratios[other], odd[lane]);
            }
        }
        if !j.is_multiple_of(2) {
            for lane in 0..LANES {
                even[lane] = fused.multiply_add(earlier[j - 1][lane], ratios[j - 1], even[lane]);
            }
        }
        for lane in 0..LANES {
            even[lane] += odd[lane];
        }
        even
    }

    /// Returns the scales with the least sum of the group's terms for the present numbers.
    #[inline(always)]
    fn least_squares(&self, fused: Fused) -> [f16; LANES] {
        // A term is diagonal · (of_weights − scale · of_numbers).
        let (mut products, mut squares) = ([0.0; LANES], [0.0; LANES]);
        for j in 0..GROUP {
            let of_weights = self.with_products(fused, &self.targets, &self.weight, j);
            let of_numbers = self.with_products(fused, &self.numbers, &self.numbers, j);
            let square = self.diagonal[j] * self.diagonal[j];
            for lane in 0..LANES {
                let numbers = of_numbers[lane] * square;
                products[lane] = fused.multiply_add(numbers, of_weights[lane], products[lane]);
                squares[lane] = fused.multiply_add(numbers, of_numbers[lane], squares[lane]);
            }
        }
        let mut scales = [f16::ZERO; LANES];
        for lane in 0..LANES {
            scales[lane] = f16::from_f32(products[lane] / squares[lane]);
        }
        scales
    }
}

/// The best scales so far.
struct Best {
    scales: [f16; LANES],
    errors: Lanes,
}

impl Best {
    #[inline(always)]
    fn consider(&mut self, scales: [f16; LANES], errors: Lanes) {
        for lane in 0..LANES {
            // Always false for numbers that are not finite.
            if errors[lane] < self.errors[lane] {
                (self.scales[lane], self.errors[lane]) = (scales[lane], errors[lane]);
            }
        }
    }
}
