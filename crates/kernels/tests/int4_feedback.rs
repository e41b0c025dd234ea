//! Rounding to INT4 with error feedback: the rule of each weight, what it gains, and what must not affect it.

use half::f16;
use proptest::prelude::*;
use triad_kernels::int4::{
    ErrorFeedback, GROUP, quantize_int4_for, quantize_int4_with_feedback, quantize_q5_0,
    quantize_q5_0_with_feedback,
};
use triad_kernels::{BlockArithmetic, BlockFormat, Blocks, Matrix};

/// Widens whole groups.
fn widen(values: &[u8], scales: &[f16], wide: &mut [f32]) {
    Matrix::Int4 { values, scales }.widen_row(0, wide);
}

/// Returns numbers from −1 to 1 that look random.
fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Returns R of a random upper triangle, `[channels, channels]`, whose off-diagonal numbers are at most `most`, by place.
fn triangle(channels: usize, most: f32, seed: u64) -> Vec<f32> {
    let mut factor = random(channels * channels, seed);
    for i in 0..channels {
        for j in 0..channels {
            let number = &mut factor[i * channels + j];
            *number = match i.cmp(&j) {
                std::cmp::Ordering::Less => *number * most,
                std::cmp::Ordering::Equal => 1.0 + number.abs(),
                std::cmp::Ordering::Greater => 0.0,
            };
        }
    }
    factor
}

fn feedback(order: Vec<u32>, factor: &[f32]) -> ErrorFeedback {
    let channels = order.len();
    let diagonal: Vec<f32> = (0..channels).map(|j| factor[j * channels + j]).collect();
    let mut ratios = vec![0.0; channels * channels];
    for j in 0..channels {
        for i in 0..j {
            ratios[j * channels + i] = factor[i * channels + j] / diagonal[j];
        }
    }
    ErrorFeedback::new(order, ratios, diagonal)
}

/// Returns an order of whole groups that is not ascending.
fn order(channels: usize) -> Vec<u32> {
    let groups = channels / GROUP;
    let group = |place: usize| (place * 5 + 2) % groups;
    let of_group = |first: usize| (0..GROUP).map(move |it| (first + it * 7 % GROUP) as u32);
    (0..groups)
        .flat_map(|place| of_group(group(place) * GROUP))
        .collect()
}

fn quantized(weight: &[f32], quantize: impl Fn(&mut [u8], &mut [f16])) -> (Vec<u8>, Vec<f16>) {
    let (mut values, mut scales) = (
        vec![0xa5; weight.len() / 2],
        vec![f16::ZERO; weight.len() / GROUP],
    );
    quantize(&mut values, &mut scales);
    (values, scales)
}

/// Computes Σ (Σ e\[i\] · R\[i, j\])² of each row, in f64.
fn objective(
    (order, factor): (&[u32], &[f32]),
    weight: &[f32],
    (values, scales): &(Vec<u8>, Vec<f16>),
) -> Vec<f64> {
    let channels = order.len();
    let mut wide = vec![f32::NAN; weight.len()];
    widen(values, scales, &mut wide);
    let rows = weight
        .chunks_exact(channels)
        .zip(wide.chunks_exact(channels));
    let of_row = |(weight, wide): (&[f32], &[f32])| {
        let errors = order
            .iter()
            .map(|it| f64::from(weight[*it as usize]) - f64::from(wide[*it as usize]));
        let errors: Vec<f64> = errors.collect();
        let term = |j: usize| {
            let products = errors.iter().enumerate().take(j + 1);
            let sum: f64 = products
                .map(|(i, error)| error * f64::from(factor[i * channels + j]))
                .sum();
            sum * sum
        };
        (0..channels).map(term).sum()
    };
    rows.map(of_row).collect()
}

#[test]
fn each_weight_is_the_nearest_number_to_what_compensates_for_earlier_errors() {
    let channels = 6 * GROUP;
    let (order, factor) = (order(channels), triangle(channels, 0.2, 1));
    let feedback = feedback(order.clone(), &factor);
    // One row more than are rounded at a time, and some.
    let weight = random(19 * channels, 2);
    let (values, scales) = quantized(&weight, |values, scales| {
        quantize_int4_with_feedback(&feedback, &weight, values, scales);
    });
    let mut wide = vec![f32::NAN; weight.len()];
    widen(&values, &scales, &mut wide);
    let mut compensated = 0;
    for row in 0..19 {
        let at = |place: usize| row * channels + order[place] as usize;
        for j in 0..channels {
            let earlier: f64 = (0..j)
                .map(|i| {
                    f64::from(weight[at(i)] - wide[at(i)]) * f64::from(factor[i * channels + j])
                })
                .sum();
            let added = earlier / f64::from(factor[j * channels + j]);
            let target = f64::from(weight[at(j)]) + added;
            let scale = f64::from(scales[at(j) / GROUP].to_f32());
            let nearest = (target / scale).clamp(-8.0, 7.0);
            let number = f64::from(wide[at(j)]) / scale;
            assert!((number - nearest).abs() < 0.5001, "{number} for {nearest}");
            let plain = (f64::from(weight[at(j)]) / scale)
                .round_ties_even()
                .clamp(-8.0, 7.0);
            compensated += usize::from((number - plain).abs() > 0.5);
        }
    }
    assert!(
        compensated > channels,
        "{compensated} weights are compensated"
    );
}

/// Returns the weights in Q5_0.
fn in_q5_0(weight: &[f32], quantize: impl Fn(&mut [u8])) -> Vec<f32> {
    let format = BlockFormat::Q5_0;
    let mut bytes = vec![0xa5; format.bytes_for(weight.len())];
    quantize(&mut bytes);
    let blocks = Blocks {
        format,
        bytes: &bytes,
        arithmetic: BlockArithmetic::Exact,
    };
    let mut wide = vec![f32::NAN; weight.len()];
    Matrix::Blocks(blocks).widen_row(0, &mut wide);
    wide
}

#[test]
fn five_bits_compensate_too_and_leave_a_quarter_of_the_error_of_four() {
    let channels = 6 * GROUP;
    let (order, factor) = (order(channels), triangle(channels, 0.2, 1));
    let feedback = feedback(order.clone(), &factor);
    let weight = random(19 * channels, 2);
    let sum = |wide: &[f32]| {
        let rows = weight
            .chunks_exact(channels)
            .zip(wide.chunks_exact(channels));
        let of_row = |(weight, wide): (&[f32], &[f32])| {
            let errors: Vec<f64> = order
                .iter()
                .map(|it| f64::from(weight[*it as usize]) - f64::from(wide[*it as usize]))
                .collect();
            let term = |j: usize| {
                let products = (0..=j).map(|i| errors[i] * f64::from(factor[i * channels + j]));
                products.sum::<f64>().powi(2)
            };
            (0..channels).map(term).sum::<f64>()
        };
        rows.map(of_row).sum::<f64>()
    };
    let five = in_q5_0(&weight, |blocks| {
        quantize_q5_0_with_feedback(&feedback, &weight, blocks);
    });
    let nearest = in_q5_0(&weight, |blocks| quantize_q5_0(&weight, blocks));
    let (values, scales) = quantized(&weight, |values, scales| {
        quantize_int4_with_feedback(&feedback, &weight, values, scales);
    });
    let mut four = vec![f32::NAN; weight.len()];
    widen(&values, &scales, &mut four);
    let [five, nearest, four] = [five, nearest, four].map(|wide| sum(&wide));
    assert!(five < 0.7 * nearest, "{five} of {nearest}");
    assert!((0.15..0.35).contains(&(five / four)), "{five} of {four}");
}

#[test]
fn a_channel_that_is_almost_always_zero_does_not_decide_the_scale_of_its_group() {
    let channels = 2 * GROUP;
    let (order, mut factor) = (order(channels), triangle(channels, 0.2, 5));
    let dead = channels - 3;
    factor[dead * channels + dead] = 1e-4;
    let feedback = feedback(order.clone(), &factor);
    let weight = random(4 * channels, 6);
    let (values, scales) = quantized(&weight, |values, scales| {
        quantize_int4_with_feedback(&feedback, &weight, values, scales);
    });
    let mut wide = vec![f32::NAN; weight.len()];
    widen(&values, &scales, &mut wide);
    for row in 0..4 {
        let of_group = order[GROUP..].iter().map(|channel| *channel as usize);
        let of_group = of_group.filter(|channel| wide[row * channels + channel] != 0.0);
        let count = of_group.count();
        assert!(count > GROUP / 2, "{count} weights are left");
    }
}

#[test]
fn without_products_of_channels_it_is_as_good_as_the_search_for_scales() {
    let channels = 3 * GROUP;
    let squares: Vec<f32> = random(channels, 3)
        .iter()
        .map(|x| (x * 6.0).exp2())
        .collect();
    let order = order(channels);
    let mut factor = vec![0.0; channels * channels];
    for (place, channel) in order.iter().enumerate() {
        factor[place * channels + place] = squares[*channel as usize].sqrt();
    }
    let weight = random(7 * channels, 4);
    let feedback = feedback(order.clone(), &factor);
    let rounded = quantized(&weight, |values, scales| {
        quantize_int4_with_feedback(&feedback, &weight, values, scales);
    });
    let searched = quantized(&weight, |values, scales| {
        quantize_int4_for(&squares, &weight, values, scales);
    });
    let [rounded, searched]: [f64; 2] = [rounded, searched].map(|quantized| {
        objective((&order, &factor), &weight, &quantized)
            .iter()
            .sum()
    });
    assert!(
        (rounded / searched - 1.0).abs() < 0.01,
        "{rounded} {searched}"
    );
}

#[test]
fn correlated_channels_compensate_for_most_of_the_error() {
    // Every channel is a sum of few others: the factor has large numbers in its first rows.
    let channels = 4 * GROUP;
    let mut factor = triangle(channels, 1.0, 5);
    for j in 8..channels {
        factor[j * channels + j] = 0.05;
    }
    for i in 8..channels {
        factor[i * channels + i + 1..(i + 1) * channels].fill(0.0);
    }
    let order: Vec<u32> = (0..channels as u32).collect();
    let feedback = feedback(order.clone(), &factor);
    let weight = random(16 * channels, 6);
    let squares: Vec<f32> = (0..channels)
        .map(|i| {
            factor[i * channels..(i + 1) * channels]
                .iter()
                .map(|x| x * x)
                .sum()
        })
        .collect();
    let rounded = quantized(&weight, |values, scales| {
        quantize_int4_with_feedback(&feedback, &weight, values, scales);
    });
    let nearest = quantized(&weight, |values, scales| {
        quantize_int4_for(&squares, &weight, values, scales);
    });
    let [rounded, nearest]: [f64; 2] = [rounded, nearest].map(|quantized| {
        objective((&order, &factor), &weight, &quantized)
            .iter()
            .sum()
    });
    assert!(
        rounded * 3.0 < nearest,
        "{rounded} is not far below {nearest}"
    );
}

proptest! {
    #[test]
    fn a_row_is_rounded_alike_among_any_others(seed: u64, rows in 1usize..40, most in 0f32..0.5) {
        let channels = 2 * GROUP;
        let feedback = feedback(order(channels), &triangle(channels, most, seed));
        let weight = random(rows * channels, seed ^ 1);
        let whole = quantized(&weight, |values, scales| {
            quantize_int4_with_feedback(&feedback, &weight, values, scales);
        });
        let last = &weight[(rows - 1) * channels..];
        let alone = quantized(last, |values, scales| {
            quantize_int4_with_feedback(&feedback, last, values, scales);
        });
        prop_assert_eq!(&whole.0[(rows - 1) * channels / 2..], &alone.0[..]);
        prop_assert_eq!(&whole.1[(rows - 1) * channels / GROUP..], &alone.1[..]);
    }
}

#[test]
fn zeros_stay_zeros_and_a_number_that_is_not_finite_or_too_large_shows() {
    let channels = 2 * GROUP;
    let feedback = feedback(order(channels), &triangle(channels, 0.3, 7));
    let mut weight = vec![0.0; 4 * channels];
    weight[channels + 40] = f32::NAN;
    weight[2 * channels + 40] = f32::INFINITY;
    weight[3 * channels + 40] = 1e30;
    let (values, scales) = quantized(&weight, |values, scales| {
        quantize_int4_with_feedback(&feedback, &weight, values, scales);
    });
    let mut wide = vec![f32::NAN; weight.len()];
    widen(&values, &scales, &mut wide);
    assert!(wide[..channels].iter().all(|x| *x == 0.0));
    for row in 1..4 {
        let scales = &scales[2 * row..][..2];
        assert!(
            scales.iter().any(|scale| !scale.is_finite()),
            "row {row}: {scales:?}"
        );
    }
}

#[test]
#[should_panic(expected = "order is no permutation within and of groups")]
fn an_order_that_mixes_groups_is_refused() {
    let mut order: Vec<u32> = (0..64).collect();
    order.swap(3, 40);
    ErrorFeedback::new(order, vec![0.0; 64 * 64], vec![1.0; 64]);
}
