use proptest::prelude::*;

use super::number::{Number, Parameters, Steps, multiply, reciprocal};
use super::*;

/// One channel.
#[derive(Clone, Debug)]
struct Channel {
    input_scale: f32,
    up_scale: f32,
    gate_scale: f32,
    biases: Option<[f32; 2]>,
    smoothing: f32,
    inner_scale: f32,
    in_features: usize,
}

impl Channel {
    fn middle<'a>(
        &'a self,
        biases: &'a [[f32; 1]; 2],
        gated: bool,
        activation: Activation,
    ) -> Middle<'a> {
        let layer = |scale: &'a f32, bias: &'a [f32; 1]| Scales {
            in_features: self.in_features,
            scales: std::slice::from_ref(scale),
            bias: self.biases.is_some().then_some(&bias[..]),
        };
        Middle {
            input_scale: self.input_scale,
            up: layer(&self.up_scale, &biases[0]),
            gate: gated.then(|| layer(&self.gate_scale, &biases[1])),
            activation,
            smoothing: Some(std::slice::from_ref(&self.smoothing)),
            inner_scale: self.inner_scale,
        }
    }

    /// Returns the number before rounding, in steps, its exact value, and the maximum error due to rounded biases.
    fn steps(&self, gated: bool, activation: Activation, [up, gate]: [i32; 2]) -> [f64; 3] {
        let biases = self.biases.unwrap_or_default().map(|bias| [bias]);
        let middle = self.middle(&biases, gated, activation);
        let parameters =
            Parameters(of_channel(&middle, activation == Activation::GeluTanh, 0).unwrap());
        let activated = if gated { gate } else { up };
        let Steps(found) = match (gated, activation) {
            (true, Activation::Silu) => Number::<true, false>::steps(&parameters, up, activated),
            (true, _) => Number::<true, true>::steps(&parameters, up, activated),
            (false, Activation::Silu) => Number::<false, false>::steps(&parameters, up, activated),
            (false, _) => Number::<false, true>::steps(&parameters, up, activated),
        };
        let number = |sum: i32, scale: f32, bias: f32| {
            f64::from(sum) * (f64::from(self.input_scale) * f64::from(scale)) + f64::from(bias)
        };
        let [up, gate] = [
            number(up, self.up_scale, biases[0][0]),
            number(gate, self.gate_scale, biases[1][0]),
        ];
        let factor = f64::from(self.smoothing) / f64::from(self.inner_scale);
        let (x, other) = if gated { (gate, up) } else { (up, 1.0) };
        // Half a unit for each bias.
        let half = |scale: f32, bias: f32| {
            let most = self.in_features as f64 * 16129.0 * f64::from(self.input_scale * scale)
                + f64::from(bias.abs());
            if self.biases.is_some() {
                most * (0.5f64.powi(30) + 0.5f64.powi(33))
            } else {
                0.0
            }
        };
        let (of_x, of_other) = if gated {
            (
                half(self.gate_scale, biases[1][0]),
                half(self.up_scale, biases[0][0]),
            )
        } else {
            (half(self.up_scale, biases[0][0]), 0.0)
        };
        // No activation's slope exceeds 1.13.
        let of_biases = factor.abs()
            * (1.13 * of_x * (other.abs() + of_other) + exact(x, activation).abs() * of_other);
        [
            f64::from(found) / 65536.0,
            exact(x, activation) * other * factor,
            of_biases,
        ]
    }

    fn check(
        &self,
        gated: bool,
        activation: Activation,
        sums: [i32; 2],
    ) -> Result<(), TestCaseError> {
        let [found, exact, of_biases] = self.steps(gated, activation, sums);
        if exact.abs() >= 256.0 {
            // Clamped numbers may be larger.
            let beyond = found.abs() > 127.5 && found.signum() == exact.signum();
            prop_assert!(
                beyond,
                "{self:?}, {activation:?}, {sums:?}: {found} not {exact}"
            );
            return Ok(());
        }
        let allowed = RELATIVE_ERROR * exact.abs() + DROPPED + of_biases;
        prop_assert!(
            (found - exact).abs() <= allowed,
            "{self:?}, {activation:?}, {sums:?}: {found} not {exact}"
        );
        Ok(())
    }
}

/// Computes the activation by definition.
fn exact(x: f64, activation: Activation) -> f64 {
    let t = match activation {
        Activation::Silu => x,
        _ => (8.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x),
    };
    x / (1.0 + (-t).exp())
}

/// Returns a typical scale of a model: with it, typical sums of a layer with so many features have the magnitude of
/// `number`.
fn scale(number: f32, in_features: usize) -> f32 {
    number / ((in_features as f32).sqrt() * 40.0 * 40.0)
}

fn channels() -> impl Strategy<Value = (Channel, [i32; 2])> {
    let numbers = (-4f32..4.0, -4f32..4.0, -3f32..3.0, -5f32..5.0);
    let biases = proptest::option::of([-20f32..20.0, -20f32..20.0]);
    (
        numbers,
        biases,
        1usize..12_000,
        any::<bool>(),
        [-1f64..1.0, -1f64..1.0],
        0i32..28,
    )
        .prop_map(
            |((up, gate, smoothing, inner), biases, in_features, negative, sums, size)| {
                let smoothing = smoothing.exp2() * if negative { -1.0 } else { 1.0 };
                let channel = Channel {
                    input_scale: 0.03,
                    up_scale: scale(up.exp2(), in_features) / 0.03,
                    gate_scale: scale(gate.exp2(), in_features) / 0.03,
                    biases,
                    smoothing,
                    inner_scale: inner.exp2() / 30.0,
                    in_features,
                };
                // Sums of all magnitudes up to the largest possible.
                let most = (in_features * 127 * 127) as f64;
                let size = most.min(f64::from(1 << size));
                (channel, sums.map(|sum| (sum * size) as i32))
            },
        )
}

const ACTIVATIONS: [Activation; 2] = [Activation::Silu, Activation::GeluTanh];

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_number_is_as_near_to_the_exact_one_as_it_says((channel, sums) in channels(), gated: bool) {
        for activation in ACTIVATIONS {
            channel.check(gated, activation, sums)?;
        }
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_clamped(steps in -(1i32 << 29)..=1 << 29, near in -(200i32 << 16)..200 << 16) {
        for steps in [steps, near, near & !0x7fff] {
            let expected = (f64::from(steps) / 65536.0 + 0.5).floor().clamp(-127.0, 127.0);
            prop_assert_eq!(f64::from(Steps(steps).rounded()), expected);
        }
    }

    #[test]
    fn a_product_of_significands_is_rounded_to_the_nearest(a: i32, b: i32) {
        let exact = (f64::from(a) * f64::from(b) / f64::from(1u32 << 31) + 0.5).floor();
        // f64 has 53 of the 62 bits.
        prop_assert!((f64::from(multiply(a, b)) - exact).abs() <= 1.0);
        prop_assert_eq!(multiply(a, b), multiply(b, a));
    }

    #[test]
    fn int8_is_that_of_the_kernels_in_f32_but_next_to_ties((channel, sums) in channels(), gated: bool) {
        let channel = Channel { biases: None, ..channel };
        for activation in ACTIVATIONS {
            let biases = channel.biases.unwrap_or_default().map(|bias| [bias]);
            let middle = channel.middle(&biases, gated, activation);
            let fixed = FixedPoint::new(&middle).unwrap();
            let mut found = [0];
            fixed.requantize(&sums[..1], if gated { &sums[1..] } else { &[] }, 0x80, &mut found);
            let found = [(found[0] ^ 0x80).cast_signed()];
            let number = |sum: i32, layer: Scales| {
                sum as f32 * (channel.input_scale * layer.scales[0]) + layer.bias.map_or(0.0, |bias| bias[0])
            };
            let mut x = [number(sums[0], middle.up)];
            if let Some(gate) = middle.gate {
                let up = x;
                x = [number(sums[1], gate)];
                crate::activation::activate_and_multiply(&mut x, &up, activation);
            } else {
                crate::activation::activate(&mut x, activation);
            }
            let steps = x[0] * channel.smoothing * channel.inner_scale.recip();
            let expected = steps.round_ties_even().clamp(-127.0, 127.0) as i8;
            let [_, exact, _] = channel.steps(gated, activation, sums);
            let to_tie = ((exact + 0.5).rem_euclid(1.0)).min(1.0 - (exact + 0.5).rem_euclid(1.0));
            // f32 has its own errors, which grow with the argument of its exponential.
            let layer = middle.gate.unwrap_or(middle.up);
            let argument = number(if gated { sums[1] } else { sums[0] }, layer).abs().min(90.0);
            let of_float = f64::from(f32::EPSILON) * (4.0 + 4.0 * f64::from(argument)) * exact.abs();
            let is_near = to_tie <= RELATIVE_ERROR * exact.abs() + DROPPED + of_float;
            let difference = (i32::from(found[0]) - i32::from(expected)).abs();
            prop_assert!(difference == 0 || (difference == 1 && is_near), "{:?}: {} not {expected}", channel, found[0]);
        }
    }
}

#[test]
fn activations_are_near_at_every_argument() {
    // Covers the whole range where SiLU and GELU are neither 0 nor x, on both sides, in fine steps.
    let channel = |scale| Channel {
        input_scale: 1.0,
        up_scale: 1.0,
        gate_scale: scale,
        biases: None,
        smoothing: 1.0,
        inner_scale: 1.0,
        in_features: 1 << 14,
    };
    let mut worst = [0f64; 2];
    for (activation, (most, worst)) in ACTIVATIONS
        .into_iter()
        .zip([40.0f32, 7.4].into_iter().zip(&mut worst))
    {
        let channel = channel(most / 200_000.0);
        for sum in (-200_000..=200_000).filter(|sum| *sum != 0) {
            // Makes the product about 100 steps, as far as the range of up allows.
            let alone = channel.steps(true, activation, [1, sum])[1].abs();
            let up = (100.0 / alone).min(f64::from(1 << 27)) as i32;
            let [found, exact, _] = channel.steps(true, activation, [up, sum]);
            let error = (found - exact).abs() - DROPPED;
            *worst = worst.max(error / exact.abs());
            assert!(
                error <= RELATIVE_ERROR * exact.abs(),
                "{activation:?} of {sum}: {found} not {exact}"
            );
        }
    }
    // The bound is tight.
    assert!(
        worst.iter().all(|worst| *worst > RELATIVE_ERROR / 8.0),
        "{worst:?}"
    );
}

#[test]
fn reciprocals_are_near_over_all_of_their_range() {
    for e in (0..=i32::MAX).step_by(4093) {
        let exact = 1.0 / (1.0 + f64::from(e) / f64::from(1u32 << 31));
        let found = f64::from(reciprocal(e)) / f64::from(1u32 << 31);
        assert!(
            (found / exact - 1.0).abs() < 1e-8,
            "of {e}: {found} not {exact}"
        );
    }
}

/// All processors must compute this, for numbers of all magnitudes.
#[test]
fn the_bits_are_the_same_on_every_machine() {
    let width = 70;
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as i32
    };
    let mut hash = 0u64;
    for case in 0..64 {
        let mut floats = |least: i32| -> Vec<f32> {
            (0..width)
                .map(|_| (1 + next() % 1000) as f32 * f32::from_bits(((127 - least) as u32) << 23))
                .collect()
        };
        let (up, gate, biases, smoothing) =
            (floats(16), floats(18), [floats(8), floats(9)], floats(10));
        let layer = |scales, bias| Scales {
            in_features: 600,
            scales,
            bias: (case & 4 != 0).then_some(bias),
        };
        let middle = Middle {
            input_scale: 0.05,
            up: layer(&up, &biases[0]),
            gate: (case & 1 != 0).then_some(layer(&gate, &biases[1])),
            activation: ACTIVATIONS[case >> 1 & 1],
            smoothing: (case & 8 != 0).then_some(&smoothing[..]),
            inner_scale: 0.25,
        };
        let fixed = FixedPoint::new(&middle).unwrap();
        let mut sums = || -> Vec<i32> {
            (0..width)
                .map(|channel| {
                    ((next() % (600 * 127 * 127)) * (1 - 2 * (channel & 1))) >> (next() % 20)
                })
                .collect()
        };
        let (up, gate) = (sums(), sums());
        let mut out = vec![0u8; width as usize];
        fixed.requantize(&up, &gate, 0, &mut out);
        for number in out {
            hash = (hash ^ u64::from(number))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        }
    }
    assert_eq!(hash, 0x34d0_b74f_c309_54fe, "{hash:#018x}");
}

#[test]
fn what_has_no_fixed_point_is_refused() {
    let channel = Channel {
        input_scale: 1.0,
        up_scale: 1.0,
        gate_scale: 1.0,
        biases: Some([0.0; 2]),
        smoothing: 1.0,
        inner_scale: 1.0,
        in_features: 8,
    };
    let of = |channel: &Channel, activation| {
        let biases = channel.biases.unwrap_or_default().map(|bias| [bias]);
        FixedPoint::new(&channel.middle(&biases, true, activation)).err()
    };
    assert_eq!(of(&channel, Activation::Silu), None);
    assert_eq!(of(&channel, Activation::Gelu), Some(Unfit::Activation));
    let bad = [0.0, -1.0, f32::NAN, f32::INFINITY];
    for number in bad {
        assert_eq!(
            of(
                &Channel {
                    gate_scale: number,
                    ..channel.clone()
                },
                Activation::Silu
            ),
            Some(Unfit::Numbers)
        );
        assert_eq!(
            of(
                &Channel {
                    inner_scale: number,
                    ..channel.clone()
                },
                Activation::Silu
            ),
            Some(Unfit::Numbers)
        );
    }
    for number in [f32::NAN, f32::INFINITY] {
        assert_eq!(
            of(
                &Channel {
                    smoothing: number,
                    ..channel.clone()
                },
                Activation::Silu
            ),
            Some(Unfit::Numbers)
        );
        assert_eq!(
            of(
                &Channel {
                    biases: Some([number, 0.0]),
                    ..channel.clone()
                },
                Activation::Silu
            ),
            Some(Unfit::Numbers)
        );
    }
}

#[test]
fn scales_of_any_size_give_what_they_would_in_floating_point() {
    // A row of zeros has the scale 1; the largest and smallest scales are those of f32.
    for scales in [
        [1.0, 1.0],
        [1e30, 1e-30],
        [1e-30, 1e30],
        [f32::MAX, f32::MIN_POSITIVE],
        [1e-38, 1e-38],
    ] {
        for (biases, inner_scale) in [
            (None, 1.0),
            (Some([3.0, 50.0]), 1.3),
            (Some([-1e30, 2.5]), 1e28),
        ] {
            let [up_scale, gate_scale] = scales;
            let smoothing = 1.0;
            let channel = Channel {
                input_scale: 1.0,
                up_scale,
                gate_scale,
                biases,
                smoothing,
                inner_scale,
                in_features: 4096,
            };
            for sums in [
                [0, 0],
                [1, 1],
                [-1, 1],
                [100, 5],
                [1 << 20, -3],
                [3, 1 << 25],
            ] {
                let [found, exact, of_biases] = channel.steps(true, Activation::Silu, sums);
                // Compares values far above one step by their sign and clamp only.
                let is_right = if exact.abs() > 256.0 {
                    found.abs() > 127.5
                } else {
                    (found - exact).abs() < 0.01 + of_biases
                };
                assert!(
                    is_right || exact.is_nan() || of_biases > 1.0,
                    "{channel:?} {sums:?}: {found} not {exact}"
                );
            }
        }
    }
}
