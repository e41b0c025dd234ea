//! Feed-forwards: compares the inner activations with the definition, and the output with the result of the processor's
//! inner activations.

use std::sync::Arc;

use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::pool::Pool;
use triad_processors::cpu::Cpu;
use triad_processors::{Device, DeviceSubgraph, FeedForward, Layer};

use crate::plain::{Plain, Random, activation, assert_product, quantized, values};
use crate::processors::{each, run};

const SCALE: f32 = 0.011;

struct Case {
    activation: Activation,
    up: Arc<Plain>,
    gate: Option<Arc<Plain>>,
    down: Arc<Plain>,
    inner_scale: f32,
    smoothing: Option<Arc<[f32]>>,
}

impl Case {
    fn new(shape: &Shape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (hidden, width, bias) = (shape.hidden, shape.width, shape.bias);
        Self {
            activation: shape.activation,
            up: Plain::random(&mut random, width, hidden, bias),
            gate: shape
                .gated
                .then(|| Plain::random(&mut random, width, hidden, bias)),
            down: Plain::random(&mut random, hidden, width, bias),
            // Puts many values beyond the clip threshold, on both sides.
            inner_scale: 0.006,
            smoothing: shape.smoothed.then(|| {
                random
                    .floats(width, 1.0)
                    .into_iter()
                    .map(|x| x.abs() + 0.1)
                    .collect()
            }),
        }
    }

    fn subgraph(&self, return_inner: bool) -> DeviceSubgraph {
        let layer = |layer: &Arc<Plain>| Arc::clone(layer) as Arc<dyn Layer>;
        DeviceSubgraph::FeedForward(FeedForward {
            input_scale: SCALE,
            up: layer(&self.up),
            gate: self.gate.as_ref().map(layer),
            activation: self.activation,
            inner_scale: self.inner_scale,
            smoothing: self.smoothing.clone(),
            down: layer(&self.down),
            return_inner,
            fixed_point: false,
        })
    }

    /// Computes the inner activations of one row by definition, and the magnitude of their inputs.
    fn inner(&self, values: &[i8]) -> Vec<(f64, f64)> {
        let up = self.up.product(values, SCALE);
        let product = |(x, up): (f32, f32)| {
            let activated = activation(f64::from(x), self.activation);
            (
                activated * f64::from(up),
                (1.0 + f64::from(x).abs()) * f64::from(up).abs(),
            )
        };
        match &self.gate {
            Some(gate) => gate
                .product(values, SCALE)
                .iter()
                .zip(up)
                .map(|(gate, up)| product((gate.0, up.0)))
                .collect(),
            None => up.into_iter().map(|up| product((up.0, 1.0))).collect(),
        }
    }

    /// Computes down's INT8 input by definition.
    fn requantized(&self, inner: &[f32]) -> Vec<i8> {
        let inverse = self.inner_scale.recip();
        let one = |(channel, x): (usize, &f32)| {
            let x = x * self
                .smoothing
                .as_ref()
                .map_or(1.0, |smoothing| smoothing[channel]);
            (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8
        };
        inner.iter().enumerate().map(one).collect()
    }

    /// Runs `rows` rows of a program prepared for `prepared` rows, and compares the outputs with the definition.
    fn check(&self, processor: &dyn Device, rows: usize, prepared: usize, what: &str) {
        let (hidden, width) = (self.up.in_features, self.up.out_features);
        let input = quantized(
            &Random::new(rows as u64).floats(rows * hidden, 140.0 * SCALE),
            hidden,
            SCALE,
        );
        let outputs = run(processor, &self.subgraph(true), prepared, &input);
        let [out, inner] = &outputs[..] else {
            panic!("{what}: {} outputs", outputs.len())
        };
        for (row, inner) in inner.chunks_exact(width).enumerate() {
            for (inner, (expected, magnitude)) in inner.iter().zip(self.inner(&values(&input, row)))
            {
                let error = (f64::from(*inner) - expected).abs();
                assert!(
                    error <= 2e-6 * magnitude,
                    "{what}, row {row}: inner is {inner}, expected {expected}"
                );
            }
        }
        let requantized: Vec<_> = inner
            .chunks_exact(width)
            .map(|inner| self.requantized(inner))
            .collect();
        assert_product(out, &self.down, &requantized, self.inner_scale, what);
        let without = run(processor, &self.subgraph(false), prepared, &input);
        assert!(
            without.len() == 1 && without[0] == *out,
            "{what}: other outputs where inner is not returned"
        );
    }
}

struct Shape {
    hidden: usize,
    width: usize,
    gated: bool,
    smoothed: bool,
    bias: bool,
    activation: Activation,
}

#[test]
fn every_output_follows_from_the_definition() {
    each(|processor| {
        let activations = [
            Activation::Silu,
            Activation::GeluTanh,
            Activation::Gelu,
            Activation::ReluSquared,
        ];
        let sizes = [
            (1, 1, 3, 5),
            (1, 16, 64, 192),
            (5, 7, 33, 66),
            (64, 64, 96, 130),
            (270, 300, 30, 47),
        ];
        for (index, (rows, prepared, hidden, width)) in sizes.into_iter().enumerate() {
            for flags in 0..8 {
                let [gated, smoothed, bias] = [1, 2, 4].map(|flag| flags & flag != 0);
                let activation = activations[(index + flags) % 4];
                let shape = Shape {
                    hidden,
                    width,
                    gated,
                    smoothed,
                    bias,
                    activation,
                };
                let what = format!(
                    "{}, {rows} of {prepared} × {hidden} × {width}, gated {gated}, smoothed {smoothed}, bias {bias}, {activation:?}",
                    processor.name()
                );
                Case::new(&shape, index as u64).check(processor, rows, prepared, &what);
            }
        }
    });
}

#[test]
fn every_number_to_requantize_is_clipped_to_127_on_both_sides() {
    // One weight of each sign. The activations step the inner values through the whole range, including ties.
    let width = 2;
    let up = Plain::new(vec![1, -1], vec![0.5; width], None);
    let gate = Plain::new(vec![0, 0], vec![1.0; width], Some(vec![40.0; width]));
    let down = Plain::new(vec![1, 0, 0, 1], vec![1.0; 2], None);
    let case = Case {
        activation: Activation::Silu,
        up,
        gate: Some(gate),
        down,
        inner_scale: 20.0,
        smoothing: None,
    };
    let input = quantized(&(-127..=127).map(|x| x as f32).collect::<Vec<_>>(), 1, 1.0);
    let DeviceSubgraph::FeedForward(mut feed_forward) = case.subgraph(false) else {
        unreachable!()
    };
    feed_forward.input_scale = 1.0;
    each(|processor| {
        for inner_scale in [20.0, 19.9, 4.0, 40.0 * 0.5 / 1.5] {
            let subgraph = DeviceSubgraph::FeedForward(FeedForward {
                inner_scale,
                ..feed_forward.clone()
            });
            let out = &run(processor, &subgraph, 255, &input)[0];
            for (x, out) in (-127i32..=127).zip(out.chunks_exact(2)) {
                let expected = (x as f32 * 20.0 * inner_scale.recip())
                    .round_ties_even()
                    .clamp(-127.0, 127.0)
                    * inner_scale;
                assert_eq!(
                    out,
                    [expected, -expected],
                    "{}: {x} · 20 / {inner_scale}",
                    processor.name()
                );
            }
        }
    });
}

#[test]
fn padding_and_what_ran_before_change_no_bit() {
    let (rows, hidden) = (11, 24);
    let shape = Shape {
        hidden,
        width: 50,
        gated: true,
        smoothed: true,
        bias: true,
        activation: Activation::Silu,
    };
    let case = Case::new(&shape, 5);
    let x = Random::new(6).floats(rows * hidden, 1.0);
    each(|processor| {
        let whole = run(
            processor,
            &case.subgraph(true),
            rows,
            &quantized(&x, hidden, SCALE),
        );
        let mut program = processor.prepare(&case.subgraph(true), rows).unwrap();
        for end in [rows, 1, 7, rows, 2] {
            let (mut out, mut inner) = (vec![0.5; end * hidden], vec![0.5; end * 50]);
            let input = quantized(&x[..end * hidden], hidden, SCALE);
            let mut outputs = [
                OutputMut::new(&mut out, hidden),
                OutputMut::new(&mut inner, 50),
            ];
            program.run(input.view(), &mut outputs).unwrap();
            assert!(
                out == whole[0][..end * hidden],
                "{}: {end} rows",
                processor.name()
            );
            assert!(
                inner == whole[1][..end * 50],
                "{}: {end} rows",
                processor.name()
            );
        }
    });
}

#[test]
fn a_row_that_is_not_finite_makes_its_outputs_nan_and_no_others() {
    let (rows, hidden) = (3, 8);
    let shape = Shape {
        hidden,
        width: 12,
        gated: false,
        smoothed: false,
        bias: true,
        activation: Activation::Gelu,
    };
    let mut x = Random::new(7).floats(rows * hidden, 1.0);
    x[hidden] = f32::NEG_INFINITY;
    each(|processor| {
        let outputs = run(
            processor,
            &Case::new(&shape, 8).subgraph(true),
            rows,
            &quantized(&x, hidden, SCALE),
        );
        for out in outputs {
            for (row, out) in out.chunks_exact(out.len() / rows).enumerate() {
                assert!(
                    out.iter().all(|x| x.is_nan() == (row == 1)),
                    "{}: row {row}: {out:?}",
                    processor.name()
                );
            }
        }
    });
}

#[test]
fn fixed_point_has_the_same_bits_on_every_processor_that_has_it_and_is_refused_by_others_by_name() {
    let cpu = Cpu::new(Arc::new(Pool::new(1).unwrap()));
    let sizes = [
        (1, 3, 5),
        (7, 33, 66),
        (8, 64, 64),
        (64, 96, 130),
        (270, 30, 47),
        (66, 1200, 17),
    ];
    each(|processor| {
        let has_it = has_fixed_point(processor);
        for (index, (rows, hidden, width)) in sizes.into_iter().enumerate() {
            for flags in 0..16 {
                let [gated, smoothed, bias, gelu] = [1, 2, 4, 8].map(|flag| flags & flag != 0);
                let activation = if gelu {
                    Activation::GeluTanh
                } else {
                    Activation::Silu
                };
                let case = Case::new(
                    &Shape {
                        hidden,
                        width,
                        gated,
                        smoothed,
                        bias,
                        activation,
                    },
                    index as u64,
                );
                let fixed_point = |inner_scale| {
                    let DeviceSubgraph::FeedForward(feed_forward) = case.subgraph(false) else {
                        unreachable!()
                    };
                    DeviceSubgraph::FeedForward(FeedForward {
                        fixed_point: true,
                        inner_scale,
                        ..feed_forward
                    })
                };
                let what = format!(
                    "{}, {rows} × {hidden} × {width}, gated {gated}, smoothed {smoothed}, bias {bias}, {activation:?}",
                    processor.name()
                );
                let subgraph = fixed_point(case.inner_scale);
                if !has_it {
                    let error = processor
                        .prepare(&subgraph, rows)
                        .err()
                        .unwrap()
                        .to_string();
                    let expected =
                        "computes no feed-forward in fixed point: expected the CPU or npu:hexagon";
                    assert_eq!(error, format!("{} {expected}", processor.name()));
                    continue;
                }
                // Includes a row that is not finite.
                let mut x = Random::new(rows as u64).floats(rows * hidden, 140.0 * SCALE);
                x[rows / 2 * hidden] = f32::NAN;
                let input = quantized(&x, hidden, SCALE);
                let found = run(processor, &subgraph, rows, &input);
                let bits = |out: &[f32]| out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    bits(&found[0]),
                    bits(&run(&cpu, &subgraph, rows, &input)[0]),
                    "{what}"
                );
                for (row, out) in found[0].chunks_exact(hidden).enumerate() {
                    assert!(
                        out.iter().all(|x| x.is_nan() == (row == rows / 2)),
                        "{what}: row {row}"
                    );
                }
                // Few numbers of down's input differ from those in f32, and by 1.
                let float = run(&cpu, &case.subgraph(false), rows, &input);
                let largest = 127.0
                    * case
                        .down
                        .scales
                        .iter()
                        .fold(0f32, |largest, scale| largest.max(*scale));
                let few = (1 + rows * width / 1000).min(width) as f32;
                let near = |(found, float): (&f32, &f32)| {
                    (found - float).abs() <= few * largest * case.inner_scale + 1e-5 * float.abs()
                        || float.is_nan()
                };
                assert!(found[0].iter().zip(&float[0]).all(near), "{what}");
            }
        }
    });
}

#[test]
fn fixed_point_returns_no_float_and_has_no_error_function() {
    let shape = Shape {
        hidden: 8,
        width: 12,
        gated: true,
        smoothed: false,
        bias: false,
        activation: Activation::Gelu,
    };
    let case = Case::new(&shape, 3);
    let DeviceSubgraph::FeedForward(feed_forward) = case.subgraph(false) else {
        unreachable!()
    };
    let gelu = FeedForward {
        fixed_point: true,
        ..feed_forward
    };
    let inner = FeedForward {
        activation: Activation::Silu,
        return_inner: true,
        ..gelu.clone()
    };
    each(|processor| {
        if !has_fixed_point(processor) {
            return;
        }
        let refused = |subgraph: &FeedForward| {
            processor
                .prepare(&DeviceSubgraph::FeedForward(subgraph.clone()), 4)
                .err()
                .unwrap()
                .to_string()
        };
        assert!(
            refused(&gelu).contains("GELU with the error function is computed only in float"),
            "{}",
            refused(&gelu)
        );
        assert!(
            refused(&inner).contains("what down reads in f32 as an output"),
            "{}",
            refused(&inner)
        );
    });
}

/// Returns whether a processor supports [`FeedForward::fixed_point`].
fn has_fixed_point(processor: &dyn Device) -> bool {
    ["cpu", "npu:hexagon"].contains(&processor.name())
}

#[test]
fn the_last_bit_of_fixed_point_is_the_same_where_numbers_are_next_to_ties() {
    use crate::plain::activation as by_definition;
    let (hidden, width) = (5, 4096);
    let cpu = Cpu::new(Arc::new(Pool::new(1).unwrap()));
    for flags in 0..4 {
        let [gated, gelu] = [1, 2].map(|flag| flags & flag != 0);
        let activation = if gelu {
            Activation::GeluTanh
        } else {
            Activation::Silu
        };
        let mut case = Case::new(
            &Shape {
                hidden,
                width,
                gated,
                smoothed: true,
                bias: false,
                activation,
            },
            flags,
        );
        let x = Random::new(9).floats(hidden, 100.0 * SCALE);
        let input = quantized(&x.repeat(8), hidden, SCALE);
        // Factors that put each number within 10⁻⁵ of a tie, from 60.5 to 123.5.
        let sums = |layer: &Plain, channel: usize| -> f64 {
            let weight = &layer.weight[channel * hidden..][..hidden];
            let sum: i32 = weight
                .iter()
                .zip(values(&input, 0))
                .map(|(w, x)| i32::from(*w) * i32::from(x))
                .sum();
            f64::from(sum) * f64::from(SCALE) * f64::from(layer.scales[channel])
        };
        let factor = |channel: usize| {
            let up = sums(&case.up, channel);
            let (x, other) = case
                .gate
                .as_ref()
                .map_or((up, 1.0), |gate| (sums(gate, channel), up));
            let (tie, number) = (
                60.5 + (channel % 64) as f64,
                by_definition(x, activation) * other,
            );
            let factor = tie * f64::from(case.inner_scale) / number;
            if factor.is_finite() {
                factor as f32
            } else {
                1.0
            }
        };
        case.smoothing = Some((0..width).map(factor).collect());
        let DeviceSubgraph::FeedForward(feed_forward) = case.subgraph(false) else {
            unreachable!()
        };
        let subgraph = DeviceSubgraph::FeedForward(FeedForward {
            fixed_point: true,
            ..feed_forward
        });
        let expected = run(&cpu, &subgraph, 8, &input);
        each(|processor| {
            if has_fixed_point(processor) {
                let found = run(processor, &subgraph, 8, &input);
                assert!(
                    found == expected,
                    "{}, gated {gated}, {activation:?}",
                    processor.name()
                );
            }
        });
    }
}
