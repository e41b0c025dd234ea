//! Linear layers that read the same input.

use std::sync::Arc;

use triad_kernels::OutputMut;
use triad_kernels::int8::MAX_IN_FEATURES;
use triad_processors::{DeviceSubgraph, Layer, Linear};

use crate::plain::{Plain, Random, assert_product, quantized, values};
use crate::processors::{each, run};

const SCALE: f32 = 0.013;

fn subgraph(layers: &[Arc<Plain>]) -> DeviceSubgraph {
    let layers = layers
        .iter()
        .map(|layer| Arc::clone(layer) as Arc<dyn Layer>)
        .collect();
    DeviceSubgraph::Linear(Linear {
        input_scale: SCALE,
        layers,
    })
}

/// Rows, prepared rows, input features, output features of the layers, whether they have a bias.
const SHAPES: &[(usize, usize, usize, &[usize], bool)] = &[
    (1, 1, 1, &[1], false),
    (1, 1, 576, &[577, 3, 3], true),
    (1, 32, 64, &[64], false),
    (2, 5, 3, &[7, 2], true),
    (17, 17, 31, &[33], true),
    (31, 64, 129, &[5, 66, 16], false),
    (64, 64, 192, &[192, 64, 64], true),
    (97, 256, 66, &[20], false),
    (300, 300, 130, &[19, 47, 1], true),
];

#[test]
fn every_output_is_the_product_by_definition() {
    each(|processor| {
        for (rows, prepared, in_features, out_features, bias) in SHAPES {
            let mut random = Random::new(*rows as u64);
            let layers: Vec<_> = out_features
                .iter()
                .map(|out| Plain::random(&mut random, *out, *in_features, *bias))
                .collect();
            // Some values are beyond the clip threshold.
            let input = quantized(
                &random.floats(rows * in_features, 140.0 * SCALE),
                *in_features,
                SCALE,
            );
            let numbers: Vec<_> = (0..*rows).map(|row| values(&input, row)).collect();
            let outputs = run(processor, &subgraph(&layers), *prepared, &input);
            for (index, (out, layer)) in outputs.iter().zip(&layers).enumerate() {
                let what = format!(
                    "{}, {rows} of {prepared} × {in_features}, layer {index}",
                    processor.name()
                );
                assert_product(out, layer, &numbers, SCALE, &what);
            }
        }
    });
}

#[test]
fn the_largest_numbers_do_not_saturate() {
    let rows = 9;
    // The widest supported layer, and a layer of a model.
    for (in_features, out_features) in [(MAX_IN_FEATURES, 3), (5504, 40)] {
        for signs in [[1i8, 1], [1, -1], [-1, 1], [-1, -1]] {
            let weight = vec![127 * signs[0]; out_features * in_features];
            let layer = Plain::new(weight, vec![1.0; out_features], None);
            let input = quantized(
                &vec![f32::from(signs[1]) * 200.0 * SCALE; rows * in_features],
                in_features,
                SCALE,
            );
            let numbers: Vec<_> = (0..rows).map(|row| values(&input, row)).collect();
            assert!(numbers[0].iter().all(|number| number.abs() == 127));
            each(|processor| {
                let outputs = run(processor, &subgraph(&[Arc::clone(&layer)]), rows, &input);
                assert_product(&outputs[0], &layer, &numbers, SCALE, processor.name());
            });
        }
    }
}

#[test]
fn padding_and_what_ran_before_change_no_bit() {
    let (rows, in_features) = (13, 65);
    let mut random = Random::new(1);
    let layers = [Plain::random(&mut random, 35, in_features, true)];
    let x = random.floats(rows * in_features, 1.0);
    each(|processor| {
        let subgraph = subgraph(&layers);
        let whole = run(
            processor,
            &subgraph,
            rows,
            &quantized(&x, in_features, SCALE),
        );
        let mut program = processor.prepare(&subgraph, rows).unwrap();
        for end in [rows, 1, 7, rows, 2] {
            let mut out = vec![0.5; end * 35];
            let input = quantized(&x[..end * in_features], in_features, SCALE);
            program
                .run(input.view(), &mut [OutputMut::new(&mut out, 35)])
                .unwrap();
            assert!(
                out == whole[0][..end * 35],
                "{}: {end} rows",
                processor.name()
            );
        }
    });
}

#[test]
fn a_row_that_is_not_finite_makes_its_outputs_nan_and_no_others() {
    let (rows, in_features) = (4, 20);
    let mut random = Random::new(2);
    let layers = [
        Plain::random(&mut random, 6, in_features, true),
        Plain::random(&mut random, 3, in_features, false),
    ];
    let mut x = random.floats(rows * in_features, 1.0);
    x[in_features + 3] = f32::INFINITY;
    x[3 * in_features] = f32::NAN;
    each(|processor| {
        for out in run(
            processor,
            &subgraph(&layers),
            rows,
            &quantized(&x, in_features, SCALE),
        ) {
            for (row, out) in out.chunks_exact(out.len() / rows).enumerate() {
                let not_finite = row % 2 == 1;
                assert!(
                    out.iter().all(|x| x.is_nan() == not_finite),
                    "{}: row {row}: {out:?}",
                    processor.name()
                );
            }
        }
    });
}
