//! Rules that every kernel must keep.

use half::f16;
use proptest::prelude::*;

use super::*;
use crate::activation::{Activation, activate_and_multiply};
use crate::kernel::int8::output;
use crate::kernel::int8::quantize::ActivationRow;
use crate::kernel::int8::rows::Outliers;
use crate::kernel::{Kernels, available, tested};
use crate::testing::bits;
use crate::{Matrix, OutputMut};

/// Returns pseudo-random numbers from −1 to 1.
fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Returns random numbers of which one in sixteen is up to a hundred times as large.
fn with_outliers(count: usize, seed: u64) -> Vec<f32> {
    let choice = random(count, seed ^ 0x5555);
    let size = choice.iter().map(|choice| {
        if *choice > 0.875 {
            (choice - 0.875) * 800.0
        } else {
            1.0
        }
    });
    random(count, seed)
        .iter()
        .zip(size)
        .map(|(x, size)| x * size)
        .collect()
}

/// A weight that owns its parts.
struct Owned {
    row_major: Vec<i8>,
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    in_features: usize,
}

impl Owned {
    fn new(row_major: Vec<i8>, scales: Vec<f32>, in_features: usize) -> Self {
        let out_features = scales.len();
        let mut packed = vec![1; packed_len(out_features, in_features).unwrap()];
        pack(&row_major, out_features, in_features, &mut packed);
        let mut sums = vec![0; out_features];
        row_sums(&row_major, in_features, &mut sums);
        Self {
            row_major,
            packed,
            scales,
            sums,
            in_features,
        }
    }

    fn quantized(weight: &[f32], in_features: usize) -> Self {
        let mut scales = vec![0.0; weight.len() / in_features];
        let mut row_major = vec![0; weight.len()];
        quantize_weight_rows(weight, in_features, &mut scales, &mut row_major);
        Self::new(row_major, scales, in_features)
    }

    fn view(&self) -> Int8Weight<'_> {
        Int8Weight {
            out_features: self.scales.len(),
            in_features: self.in_features,
            packed: &self.packed,
            scales: &self.scales,
            sums: &self.sums,
        }
    }

    /// Returns a view of `out[rows, out_features]`.
    fn output<'a>(&self, out: &'a mut [f32]) -> OutputMut<'a> {
        OutputMut::new(out, self.scales.len())
    }

    /// Returns the weights that the numbers represent, row-major.
    fn dequantized(&self) -> Vec<f32> {
        let rows = self.row_major.chunks(self.in_features).zip(&self.scales);
        rows.flat_map(|(row, scale)| row.iter().map(move |value| f32::from(*value) * scale))
            .collect()
    }
}

fn quantized(x: &[f32], in_features: usize, scale: f32, shadow: bool) -> QuantizedRows {
    let mut rows = QuantizedRows::default();
    rows.quantize_static(x, in_features, scale, None, shadow);
    rows
}

/// Returns the last row of the table.
fn plain_rust() -> &'static Kernels {
    available().last().unwrap()
}

/// Computes `matmul_int8` and `shadow` on the given number of threads.
fn product(
    x: &QuantizedRows,
    weight: Int8Weight,
    bias: Option<&[f32]>,
    threads: usize,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.rows() * weight.out_features];
    let pool = crate::pool::Pool::new(threads).unwrap();
    pool.install(|| {
        let mut out = OutputMut::new(&mut out, weight.out_features);
        matmul_int8(x.view(), weight, bias, out.reborrow());
        shadow(x.view(), weight, out);
    });
    out
}

/// Computes x · Wᵀ in f64, and the sum of the magnitudes of its terms.
fn exact(x: &[f64], weight: &[f32], in_features: usize) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for x in x.chunks(in_features) {
        for weight in weight.chunks(in_features) {
            let terms = || x.iter().zip(weight).map(|(x, w)| x * f64::from(*w));
            out.push((terms().sum(), terms().map(f64::abs).sum()));
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_kernel_equals_the_definition_bit_for_bit(
        rows in 1usize..120, in_features in 1usize..300, out_features in 1usize..300, seed: u64,
        with_bias: bool, extreme: bool,
    ) {
        // Extreme: every number is 127 or −127.
        let stretch = if extreme { 1e9 } else { 1.2 };
        let x: Vec<f32> = random(rows * in_features, seed).iter().map(|x| x * stretch).collect();
        let x = quantized(&x, in_features, 1.0 / 127.0, false);
        let weight = random(out_features * in_features, seed ^ 7);
        let weight = weight.iter().map(|w| (w * 127.0 * stretch).clamp(-127.0, 127.0) as i8).collect();
        let weight = Owned::new(weight, random(out_features, seed ^ 9), in_features);
        let bias = random(out_features, seed ^ 11);
        let mut expected = Vec::new();
        for row in 0..rows {
            let values: Vec<i32> = x.view().values(row).map(i32::from).collect();
            for (column, weights) in weight.row_major.chunks(in_features).enumerate() {
                let sum = values.iter().zip(weights).map(|(x, w)| x * i32::from(*w)).sum();
                let bias = if with_bias { bias[column] } else { 0.0 };
                expected.push(output(sum, x.view().scales()[row], weight.scales[column], bias));
            }
        }
        for kernels in tested() {
            let mut out = vec![f32::NAN; rows * out_features];
            let bias = with_bias.then_some(&bias[..]);
            kernels.install(|| matmul_int8(x.view(), weight.view(), bias, weight.output(&mut out)));
            prop_assert_eq!(bits(&out), bits(&expected), "{}", kernels.int8.name());
        }
    }

    #[test]
    fn products_together_have_the_bits_of_each_alone(
        rows in prop_oneof![2 => 1usize..120, 1 => 128usize..220], in_features in 1usize..100,
        out_features in prop::collection::vec(1usize..200, 0..4), seed: u64, threads in 1usize..4,
    ) {
        let x = quantized(&random(rows * in_features, seed), in_features, 1.0 / 127.0, false);
        let weight = |(index, out_features): (usize, &usize)| {
            Owned::quantized(&random(out_features * in_features, seed ^ index as u64), in_features)
        };
        let weights: Vec<_> = out_features.iter().enumerate().map(weight).collect();
        let mut outs: Vec<_> = out_features.iter().map(|out_features| vec![f32::NAN; rows * out_features]).collect();
        let products = weights.iter().zip(&mut outs);
        let mut products: Vec<_> =
            products.map(|(weight, out)| Int8Product::new(weight.view(), None, weight.output(out))).collect();
        crate::pool::Pool::new(threads).unwrap().install(|| matmul_int8_each(x.view(), &mut products));
        for (weight, out) in weights.iter().zip(outs) {
            let mut alone = vec![f32::NAN; out.len()];
            matmul_int8(x.view(), weight.view(), None, weight.output(&mut alone));
            prop_assert_eq!(bits(&out), bits(&alone));
        }
    }

    #[test]
    fn every_kernel_quantizes_as_plain_rust_does(
        in_features in 1usize..300, seed: u64, scale in 0.0009765625f32..0.1, is_smoothed: bool, keeps_shadow: bool,
        odd in prop::option::of(prop_oneof![Just(f32::NAN), Just(f32::INFINITY)]),
    ) {
        let mut x = with_outliers(in_features, seed);
        if let Some(odd) = odd {
            x[seed as usize % in_features] = odd;
        }
        let smoothing: Vec<f32> = random(in_features, seed ^ 3).iter().map(|x| x.abs() + 0.1).collect();
        let row = ActivationRow {
            x: &x,
            smoothing: is_smoothed.then_some(&smoothing),
            inverse: scale.recip(),
            limit: if keeps_shadow { 127.0 * scale } else { f32::MAX },
        };
        let run = |kernels: &Kernels| {
            // The list already has an outlier of the previous row.
            let mut outliers = Outliers { channels: vec![3], numbers: vec![1.0] };
            let mut stored = vec![7; in_features];
            kernels.int8.quantize(&row, &mut stored, &mut outliers);
            // The stored byte of an outlier that is NaN or infinite is unspecified.
            for (channel, x) in outliers.channels[1..].iter().zip(&outliers.numbers[1..]) {
                stored[*channel as usize] = if x.is_finite() { stored[*channel as usize] } else { 0 };
            }
            (stored, outliers.channels, bits(&outliers.numbers))
        };
        let expected = run(plain_rust());
        for kernels in tested() {
            prop_assert_eq!(run(kernels), expected.clone(), "{}", kernels.int8.name());
        }
    }

    #[test]
    fn every_kernel_makes_the_shadow_that_plain_rust_makes(
        rows in 1usize..20, in_features in 1usize..300, out_features in 1usize..400, seed: u64, add: bool,
    ) {
        let x = quantized(&with_outliers(rows * in_features, seed), in_features, 1.0 / 127.0, true);
        let weight = Owned::quantized(&random(out_features * in_features, seed ^ 7), in_features);
        let run = |kernels: &'static Kernels| {
            let mut out = random(rows * out_features, seed ^ 9);
            let operator = if add { shadow } else { shadow_apart };
            kernels.install(|| operator(x.view(), weight.view(), weight.output(&mut out)));
            bits(&out)
        };
        let expected = run(plain_rust());
        for kernels in tested() {
            prop_assert_eq!(run(kernels), expected.clone(), "{}", kernels.int8.name());
        }
    }

    #[test]
    fn a_shadow_of_channels_has_the_bits_of_every_kernel(
        rows in 1usize..20, in_features in 1usize..300, out_features in 1usize..1200, seed: u64, threads in 1usize..4,
    ) {
        let x = quantized(&with_outliers(rows * in_features, seed), in_features, 1.0 / 127.0, true);
        let weight = Owned::quantized(&random(out_features * in_features, seed ^ 7), in_features);
        let by_channel: Vec<i8> = (0..in_features)
            .flat_map(|channel| weight.row_major.iter().skip(channel).step_by(in_features).copied())
            .collect();
        let mut by_rows = vec![3.0; rows * out_features];
        let mut expected = by_rows.clone();
        crate::pool::Pool::new(threads).unwrap().install(|| {
            let channel = |channel: u32| &by_channel[channel as usize * out_features..][..out_features];
            shadow_of_channels(x.view(), channel, &weight.scales, weight.output(&mut by_rows));
            shadow_apart(x.view(), weight.view(), weight.output(&mut expected));
        });
        prop_assert_eq!(bits(&by_rows), bits(&expected));
    }

    #[test]
    fn clipped_and_shadow_make_the_unclipped_product(
        rows in 1usize..40, in_features in 1usize..300, out_features in 1usize..200, seed: u64,
    ) {
        let x = with_outliers(rows * in_features, seed);
        let weight = Owned::quantized(&random(out_features * in_features, seed ^ 7), in_features);
        let scale = 1.0f32 / 127.0;
        let out = product(&quantized(&x, in_features, scale, true), weight.view(), None, 2);
        let unclipped: Vec<f64> = x.iter().map(|x| {
            let steps = (x * scale.recip()).round_ties_even();
            if x.abs() > 127.0 * scale { f64::from(*x) } else { f64::from(scale) * f64::from(steps) }
        }).collect();
        for (out, (sum, magnitude)) in out.iter().zip(exact(&unclipped, &weight.dequantized(), in_features)) {
            let error = (f64::from(*out) - sum).abs();
            prop_assert!(error <= 4e-6 * magnitude, "{} is not {}", out, sum);
        }
    }

    #[test]
    fn a_shadow_that_is_joined_later_gives_the_same_bits(
        rows in 1usize..40, in_features in 1usize..300, out_features in 1usize..200, seed: u64, threads in 1usize..4,
    ) {
        let x = quantized(&with_outliers(rows * in_features, seed), in_features, 1.0 / 127.0, true);
        let weight = Owned::quantized(&random(out_features * in_features, seed ^ 7), in_features);
        // Some products are −0, which adding 0 would change.
        let products: Vec<f32> = random(rows * out_features, seed ^ 9).iter().map(|x| x * 0.0).collect();
        let (mut expected, mut joined) = (products.clone(), products);
        let mut apart = vec![f32::NAN; joined.len()];
        crate::pool::Pool::new(threads).unwrap().install(|| {
            shadow(x.view(), weight.view(), OutputMut::new(&mut expected, out_features));
            shadow_apart(x.view(), weight.view(), OutputMut::new(&mut apart, out_features));
            join_shadow(x.view(), &apart, OutputMut::new(&mut joined, out_features));
        });
        prop_assert_eq!(bits(&joined), bits(&expected));
    }

    #[test]
    fn a_product_with_its_shadow_has_the_bits_of_one_after_the_other(
        rows in 1usize..220, in_features in 1usize..140, out_features in 1usize..200, seed: u64, threads in 1usize..4,
    ) {
        let x = quantized(&with_outliers(rows * in_features, seed), in_features, 1.0 / 127.0, true);
        let weight = Owned::quantized(&random(out_features * in_features, seed ^ 7), in_features);
        let bias = random(out_features, seed ^ 11);
        for kernels in tested() {
            let (mut expected, mut together) = (vec![0.0; rows * out_features], vec![0.0; rows * out_features]);
            crate::pool::Pool::new(threads).unwrap().install(|| {
                kernels.install(|| {
                    matmul_int8(x.view(), weight.view(), Some(&bias), weight.output(&mut expected));
                    shadow(x.view(), weight.view(), weight.output(&mut expected));
                    let product = Int8Product::new(weight.view(), Some(&bias), weight.output(&mut together));
                    matmul_int8_each(x.view(), &mut [product.with_shadow()]);
                });
            });
            prop_assert_eq!(bits(&together), bits(&expected), "{}", kernels.int8.name());
        }
    }

    #[test]
    fn gate_up_and_activation_as_one_operator_have_the_bits_of_one_after_the_other(
        rows in 1usize..220, in_features in 1usize..90, width in 1usize..200, seed: u64, threads in 1usize..4,
        is_smoothed: bool, has_bias: bool, shadow: bool, is_not_finite in 0usize..4,
    ) {
        let mut x = with_outliers(rows * in_features, seed);
        if is_not_finite == 0 {
            x[seed as usize % (rows * in_features)] = f32::NAN;
        }
        let x = quantized(&x, in_features, 1.0 / 127.0, true);
        let [gate, up] = [7, 9].map(|bits| Owned::quantized(&random(width * in_features, seed ^ bits), in_features));
        let bias = random(width, seed ^ 11);
        let bias = has_bias.then_some(&bias[..]);
        let smoothing: Vec<f32> = random(width, seed ^ 3).iter().map(|x| x.abs() + 0.1).collect();
        let how = (0.01, is_smoothed.then_some(&smoothing[..]), shadow);
        let activation = Activation::Silu;
        // The buffers held more rows before.
        let mut together = quantized(&random(300 * 70, seed), 70, 0.001, true);
        for kernels in tested() {
            let mut expected = QuantizedRows::default();
            crate::pool::Pool::new(threads).unwrap().install(|| {
                kernels.install(|| {
                    let [mut of_gate, of_up] = [&gate, &up].map(|weight| {
                        let mut out = vec![0.0; rows * width];
                        matmul_int8(x.view(), weight.view(), bias, weight.output(&mut out));
                        super::shadow(x.view(), weight.view(), weight.output(&mut out));
                        out
                    });
                    activate_and_multiply(&mut of_gate, &of_up, activation);
                    expected.quantize_static(&of_gate, width, how.0, how.1, how.2);
                    let (gate, up) = (gate.view(), up.view());
                    let gated = Gated { gate, gate_bias: bias, up, up_bias: bias, activation, has_shadow: true };
                    together.quantize_gated(x.view(), &gated, how);
                });
            });
            let (together, expected) = (together.view(), expected.view());
            prop_assert_eq!(together.bytes(), expected.bytes(), "{}", kernels.int8.name());
            prop_assert_eq!(bits(together.scales()), bits(expected.scales()));
            for row in 0..rows {
                let [(channels, numbers), (of_channels, of_numbers)] = [together, expected].map(|all| all.outliers_of(row));
                prop_assert_eq!((channels, bits(numbers)), (of_channels, bits(of_numbers)));
            }
        }
    }

    #[test]
    fn quantized_activations_are_the_nearest_numbers(
        rows in 1usize..40, in_features in 1usize..300, seed: u64, scale in 0.0009765625f32..0.1,
    ) {
        let x = with_outliers(rows * in_features, seed);
        let smoothing: Vec<f32> = random(in_features, seed ^ 3).iter().map(|x| x.abs() + 0.1).collect();
        let mut rounded = QuantizedRows::default();
        rounded.quantize_static(&x, in_features, scale, Some(&smoothing), true);
        for (row, x) in x.chunks(in_features).enumerate() {
            let x: Vec<f32> = x.iter().zip(&smoothing).map(|(x, smoothing)| x * smoothing).collect();
            let expected = x.iter().map(|x| (x * scale.recip()).round_ties_even().clamp(-127.0, 127.0) as i8);
            prop_assert!(rounded.view().values(row).eq(expected));
            let clip = 127.0 * scale;
            let beyond = x.iter().enumerate().filter(|(_, x)| x.abs() > clip);
            let (channels, remainders): (Vec<u32>, Vec<f32>) =
                beyond.map(|(channel, x)| (channel as u32, x - clip.copysign(*x))).unzip();
            prop_assert_eq!(rounded.view().outliers_of(row), (&channels[..], &remainders[..]));
        }
    }

    #[test]
    fn dynamic_quantization_with_its_outlier_columns_stays_near_the_float_product(
        rows in 1usize..40, in_features in 1usize..200, out_features in 1usize..100, seed: u64,
    ) {
        let mut x = random(rows * in_features, seed);
        x.iter_mut().step_by(in_features.max(2)).for_each(|x| *x *= 50.0);
        let weight = random(out_features * in_features, seed ^ 7);
        let packed = Owned::quantized(&weight, in_features);
        let mut rounded = QuantizedRows::default();
        rounded.quantize_dynamic(&x, in_features, Some(6.0));
        let mut out = vec![f32::NAN; rows * out_features];
        matmul_int8(rounded.view(), packed.view(), None, packed.output(&mut out));
        shadow_float(rounded.view(), Matrix::F32(&weight), OutputMut::new(&mut out, out_features));
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for (out, (sum, _)) in out.iter().zip(exact(&wide, &weight, in_features)) {
            // The error is at most half a step of 6/127 for each activation and of 1/127 for each weight.
            let bound = in_features as f64 * (3.0 / 127.0 + 3.0 / 127.0 + 1e-3);
            prop_assert!((f64::from(*out) - sum).abs() <= bound, "{} is not {}", out, sum);
        }
        for row in 0..rows {
            let (channels, full) = rounded.view().outliers_of(row);
            for (channel, full) in channels.iter().zip(full) {
                let column = x.iter().skip(*channel as usize).step_by(in_features);
                prop_assert!(column.clone().any(|x| x.abs() > 6.0));
                prop_assert_eq!(*full, x[row * in_features + *channel as usize]);
                prop_assert_eq!(rounded.view().values(row).nth(*channel as usize), Some(0));
            }
        }
    }

    #[test]
    fn outlier_columns_are_added_with_the_weights_as_they_were(
        rows in 1usize..70, in_features in 1usize..200, out_features in 1usize..250, seed: u64,
    ) {
        let x = with_outliers(rows * in_features, seed);
        let weight = random(out_features * in_features, seed ^ 7);
        let half: Vec<f16> = weight.iter().map(|weight| f16::from_f32(*weight)).collect();
        let from_half: Vec<f32> = half.iter().map(|weight| weight.to_f32()).collect();
        let mut rounded = QuantizedRows::default();
        rounded.quantize_dynamic(&x, in_features, Some(90.0));
        let is_outlier = |index: usize| x.iter().skip(index % in_features).step_by(in_features).any(|x| x.abs() > 90.0);
        let outliers = x.iter().enumerate().map(|(index, x)| if is_outlier(index) { f64::from(*x) } else { 0.0 });
        let outliers: Vec<f64> = outliers.collect();
        let before = random(rows * out_features, seed ^ 11);
        for (weight, exactly) in [(Matrix::F32(&weight), &weight), (Matrix::F16(&half), &from_half)] {
            let mut out = before.clone();
            shadow_float(rounded.view(), weight, OutputMut::new(&mut out, out_features));
            let expected = exact(&outliers, exactly, in_features);
            for ((out, before), (sum, magnitude)) in out.iter().zip(&before).zip(expected) {
                let error = (f64::from(*out) - f64::from(*before) - sum).abs();
                prop_assert!(error <= 4e-6 * (magnitude + 1.0), "{} is not {} + {}", out, before, sum);
            }
        }
    }

    #[test]
    fn neither_threads_nor_batches_change_a_bit(
        rows in 1usize..250, in_features in 1usize..100, out_features in 1usize..300, seed: u64,
    ) {
        let x = with_outliers(rows * in_features, seed);
        let weight = Owned::quantized(&random(out_features * in_features, seed ^ 7), in_features);
        let bias = random(out_features, seed ^ 11);
        let batch = quantized(&x, in_features, 1.0 / 127.0, true);
        let together = product(&batch, weight.view(), Some(&bias), 1);
        prop_assert_eq!(bits(&together), bits(&product(&batch, weight.view(), Some(&bias), 3)));
        let row = rows / 2;
        let alone = quantized(&x[row * in_features..][..in_features], in_features, 1.0 / 127.0, true);
        let alone = product(&alone, weight.view(), Some(&bias), 1);
        prop_assert_eq!(bits(&alone), bits(&together[row * out_features..][..out_features]));
    }

    #[test]
    fn unpack_undoes_pack(out_features in 1usize..100, in_features in 1usize..100, seed: u64) {
        let weight = Owned::quantized(&random(out_features * in_features, seed), in_features);
        let mut row_major = vec![1; out_features * in_features];
        unpack(weight.view(), &mut row_major);
        prop_assert_eq!(row_major, weight.row_major);
    }

    #[test]
    fn quantized_weights_are_within_half_a_step(out_features in 1usize..40, in_features in 1usize..100, seed: u64) {
        let weight = random(out_features * in_features, seed);
        let mut quantized = vec![0; weight.len()];
        let mut scales = vec![0.0; out_features];
        for quantize in [quantize_weight_rows, quantize_weight_tensor] {
            quantize(&weight, in_features, &mut scales, &mut quantized);
            prop_assert!(quantized.iter().any(|value| value.abs() == 127), "the largest weight becomes 127");
            let scales = scales.iter().flat_map(|scale| std::iter::repeat_n(scale, in_features));
            for ((weight, quantized), scale) in weight.iter().zip(&quantized).zip(scales) {
                prop_assert!((weight - f32::from(*quantized) * scale).abs() <= 0.5001 * scale);
                prop_assert!(*quantized != i8::MIN);
            }
        }
    }

    #[test]
    fn no_bits_of_an_activation_give_minus_128(bits: [u32; 70], shadow: bool, threshold in 0.0009765625f32..1e3) {
        let x = bits.map(f32::from_bits);
        let mut rows = quantized(&x, 35, 0.5, shadow);
        prop_assert!((0..2).all(|row| rows.view().values(row).all(|value| value != i8::MIN)));
        for threshold in [None, Some(threshold)] {
            rows.quantize_dynamic(&x, 35, threshold);
            prop_assert!((0..2).all(|row| rows.view().values(row).all(|value| value != i8::MIN)));
        }
    }
}

#[test]
fn an_activation_that_is_not_finite_makes_its_row_nan_and_no_other() {
    let weight = Owned::quantized(&random(40 * 70, 1), 70);
    for bad in [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0x7f80_0080),
    ] {
        for place in [0, 63, 64, 69] {
            let mut x = random(3 * 70, 2);
            x[70 + place] = bad;
            let mut rows = QuantizedRows::default();
            for method in 0..3 {
                match method {
                    0 => rows.quantize_static(&x, 70, 1.0 / 127.0, None, false),
                    1 => rows.quantize_static(&x, 70, 1.0 / 127.0, None, true),
                    _ => rows.quantize_dynamic(&x, 70, None),
                }
                let out = product(&rows, weight.view(), None, 1);
                assert!(out[40..80].iter().all(|x| x.is_nan()), "{bad} at {place}");
                assert!(
                    out[..40].iter().chain(&out[80..]).all(|x| x.is_finite()),
                    "{bad} at {place}"
                );
            }
        }
    }
}

#[test]
fn zeros_and_tiny_numbers_quantize_to_zero() {
    for value in [0.0, -0.0, f32::from_bits(1), f32::MIN_POSITIVE] {
        let weight = Owned::quantized(&[value; 20], 5);
        assert!(weight.scales.iter().all(|scale| scale.is_normal()));
        let mut rows = QuantizedRows::default();
        rows.quantize_dynamic(&[value; 10], 5, None);
        assert!(
            product(&rows, weight.view(), None, 1)
                .iter()
                .all(|x| x.abs() < 1e-30)
        );
    }
}

#[test]
fn buffers_can_be_used_again_for_fewer_rows() {
    let mut rows = QuantizedRows::default();
    rows.quantize_static(&[9.0; 300], 3, 0.01, None, true);
    assert_eq!(rows.outliers(), 300);
    rows.quantize_static(&[9.0; 5], 5, 0.01, None, true);
    assert_eq!(
        (rows.rows(), rows.in_features(), rows.outliers()),
        (1, 5, 5)
    );
    rows.quantize_static(&[], 5, 0.01, None, true);
    assert_eq!((rows.rows(), rows.outliers()), (0, 0));
    matmul_int8(
        rows.view(),
        Owned::quantized(&[1.0; 10], 5).view(),
        None,
        OutputMut::new(&mut [], 2),
    );
}

#[test]
#[should_panic(expected = "output is [1, 4]")]
fn a_wrong_shape_is_named() {
    let (x, weight) = (
        quantized(&[0.0; 5], 5, 1.0, false),
        Owned::quantized(&[1.0; 20], 5),
    );
    matmul_int8(
        x.view(),
        weight.view(),
        None,
        OutputMut::new(&mut [0.0; 3], 3),
    );
}

#[test]
fn a_length_that_memory_cannot_have_is_none() {
    assert_eq!(packed_len(usize::MAX, 3), None);
    assert_eq!(packed_len(1 << 40, 1 << 40), None);
    assert_eq!(packed_len(17, 5), Some(32 * 8));
}

#[test]
#[should_panic(expected = "outliers are whole columns")]
fn outliers_of_a_static_scale_are_not_multiplied_as_columns() {
    let mut rows = QuantizedRows::default();
    rows.quantize_dynamic(&[9.0; 5], 5, Some(6.0));
    rows.quantize_static(&[0.0, 0.0, 9.0, 0.0, 0.0], 5, 0.01, None, true);
    shadow_float(
        rows.view(),
        Matrix::F32(&[1.0; 20]),
        OutputMut::new(&mut [0.0; 4], 4),
    );
}

proptest! {
    #[test]
    fn rows_that_are_quantized_as_they_are_made_are_those_of_a_matrix(
        rows in 0usize..50, in_features in 1usize..70, seed: u64, smoothed: bool, shadow: bool, threads in 1usize..4,
    ) {
        let x = with_outliers(rows * in_features, seed);
        let factors: Vec<f32> = random(in_features, seed).iter().map(|factor| factor.abs() + 0.1).collect();
        let smoothing = smoothed.then_some(&factors[..]);
        let (mut expected, mut made) = (QuantizedRows::default(), QuantizedRows::default());
        // Earlier contents must leave no trace.
        made.quantize_dynamic(&with_outliers(90, seed ^ 1), 9, Some(0.5));
        expected.quantize_static(&x, in_features, 0.01, smoothing, shadow);
        let mut sums = vec![1.0; rows * in_features];
        let pool = crate::pool::Pool::new(threads).unwrap();
        pool.install(|| {
            let source = crate::chunks::chunks_mut(&mut sums, QuantizedRows::TASK_ROWS * in_features);
            made.quantize_made((rows, in_features), (0.01, smoothing, shadow), source, |sums, row, made| {
                let place = row % QuantizedRows::TASK_ROWS * in_features;
                for ((sum, made), x) in sums[place..].iter_mut().zip(made).zip(&x[row * in_features..]) {
                    *sum += x;
                    *made = *x;
                }
            });
        });
        prop_assert!(sums.iter().zip(&x).all(|(sum, x)| *sum == 1.0 + x), "each row is made once");
        let (made, expected) = (made.view(), expected.view());
        prop_assert_eq!(made.bytes(), expected.bytes());
        prop_assert_eq!(made.scales(), expected.scales());
        prop_assert_eq!(made.outlier_columns(), expected.outlier_columns());
        for row in 0..rows {
            prop_assert_eq!(made.outliers_of(row), expected.outliers_of(row));
        }
    }
}
