//! Linear layers that read floats: in W4A16, and with weights in other formats.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use triad_kernels::int4::{self, quantize_int4};
use triad_kernels::int8::quantize_weight_rows;
use triad_kernels::{BlockArithmetic, BlockFormat, Blocks, Matrix, OutputMut, Phase};
use triad_processors::{Device, Error, FloatLayer, FloatLinear, LayerFormat};

use crate::plain::Random;
use crate::processors::each;

/// The number of formats of weights.
const FORMATS: usize = 6;

/// Weights of a layer.
enum Weight {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Int8(Vec<i8>, Vec<f32>),
    Int4(Vec<u8>, Vec<f16>),
    /// Blocks of GGUF in Q8_0: a scale in f16 and 32 numbers.
    Blocks(Vec<u8>),
}

struct FloatPlain {
    out_features: usize,
    weight: Weight,
    bias: Option<Vec<f32>>,
}

impl FloatPlain {
    /// Returns random weights in the `format`-th format.
    fn random(
        random: &mut Random,
        format: usize,
        (out_features, in_features): (usize, usize),
        bias: bool,
    ) -> Arc<Self> {
        let count = out_features * in_features;
        let values = random.floats(count, 1.0);
        let weight = match format % FORMATS {
            0 => {
                let (mut numbers, mut scales) =
                    (vec![0; count / 2], vec![f16::ZERO; count / int4::GROUP]);
                quantize_int4(&values, &mut numbers, &mut scales);
                Weight::Int4(numbers, scales)
            }
            1 => Weight::F32(values),
            2 => Weight::F16(values.into_iter().map(f16::from_f32).collect()),
            3 => Weight::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            4 => {
                let block = |values: &[f32]| {
                    let scale = f16::from_f32(1.0 / 127.0);
                    let numbers = values.iter().map(|x| (x * 127.0) as i8 as u8);
                    scale
                        .to_le_bytes()
                        .into_iter()
                        .chain(numbers)
                        .collect::<Vec<_>>()
                };
                Weight::Blocks(values.chunks_exact(32).flat_map(block).collect())
            }
            _ => {
                let (mut numbers, mut scales) = (vec![0; count], vec![0.0; out_features]);
                quantize_weight_rows(&values, in_features, &mut scales, &mut numbers);
                Weight::Int8(numbers, scales)
            }
        };
        let bias = bias.then(|| random.floats(out_features, 2.0));
        Arc::new(Self {
            out_features,
            weight,
            bias,
        })
    }
}

impl FloatLayer for FloatPlain {
    fn weight(&self) -> Matrix<'_> {
        match &self.weight {
            Weight::F32(values) => Matrix::F32(values),
            Weight::F16(values) => Matrix::F16(values),
            Weight::Bf16(values) => Matrix::Bf16(values),
            Weight::Int8(values, scales) => Matrix::Int8 { values, scales },
            Weight::Int4(values, scales) => Matrix::Int4 { values, scales },
            Weight::Blocks(bytes) => Matrix::Blocks(Blocks {
                format: BlockFormat::Q8_0,
                bytes,
                arithmetic: BlockArithmetic::default(),
            }),
        }
    }

    fn out_features(&self) -> usize {
        self.out_features
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }
}

/// Some output features of a layer.
struct Columns(Arc<FloatPlain>, Range<usize>, usize);

impl FloatLayer for Columns {
    fn weight(&self) -> Matrix<'_> {
        let Self(layer, columns, in_features) = self;
        layer.weight().rows(columns.clone(), *in_features)
    }

    fn out_features(&self) -> usize {
        self.1.len()
    }

    fn bias(&self) -> Option<&[f32]> {
        self.0.bias().map(|bias| &bias[self.1.clone()])
    }
}

#[test]
fn some_columns_of_a_layer_that_reads_floats_have_the_bits_of_the_whole_in_every_format() {
    let (rows, in_features, out_features) = (17, 96, 40);
    let mut random = Random::new(5);
    let x = random.floats(rows * in_features, 1.0);
    for format in 0..FORMATS {
        let layer = FloatPlain::random(&mut random, format, (out_features, in_features), true);
        each_of_floats(|device, _| {
            let whole = &linear(in_features, &[Arc::clone(&layer)]);
            let whole = run(device, whole, rows, &x).unwrap();
            for columns in [0..16, 16..40, 5..6, 7..39] {
                let part = Columns(Arc::clone(&layer), columns.clone(), in_features);
                let part = FloatLinear {
                    in_features,
                    layers: vec![Arc::new(part)],
                };
                let found = run(device, &part, rows, &x).unwrap();
                for (row, found) in found[0].chunks_exact(columns.len()).enumerate() {
                    let whole = &whole[0][row * out_features..][columns.clone()];
                    let name = device.name();
                    assert!(found == whole, "{name}, {format}, {columns:?}, row {row}");
                }
            }
        });
    }
}

fn linear(in_features: usize, layers: &[Arc<FloatPlain>]) -> FloatLinear {
    let layers = layers.iter();
    FloatLinear {
        in_features,
        layers: layers
            .map(|layer| Arc::clone(layer) as Arc<dyn FloatLayer>)
            .collect(),
    }
}

/// Prepares layers for `prepared` rows and runs them once. Unused columns lie between the rows of each output.
fn run(
    device: &dyn Device,
    linear: &FloatLinear,
    prepared: usize,
    x: &[f32],
) -> Result<Vec<Vec<f32>>, Error> {
    const GAP: usize = 3;
    let rows = x.len() / linear.in_features;
    let mut program = device.prepare_floats(linear, prepared)?;
    let outputs = linear.outputs();
    let mut wide: Vec<_> = outputs
        .iter()
        .map(|features| vec![0.5; rows * (features + GAP)])
        .collect();
    let views = wide.iter_mut().zip(&outputs).map(|(wide, features)| {
        OutputMut::new(wide, features + GAP)
            .split_at_column(*features)
            .0
    });
    program.run(x, Phase::Prefill, &mut views.collect::<Vec<_>>())?;
    let narrow = wide.iter().zip(outputs).map(|(wide, features)| {
        let rows = wide.chunks_exact(features + GAP);
        rows.flat_map(|row| {
            assert!(row[features..].iter().all(|gap| *gap == 0.5));
            row[..features].to_vec()
        })
        .collect()
    });
    Ok(narrow.collect())
}

/// Calls `test` with each processor that multiplies layers in W4A16 and float, and the relative error that each term of
/// a sum may have there: kernels of CPUs may round activations and weights to bf16.
fn each_of_floats(test: impl Fn(&dyn Device, f64)) {
    each(|device| {
        let formats = &device.capabilities().formats;
        if formats.contains(&LayerFormat::W4a16) {
            assert!(formats.contains(&LayerFormat::Float), "{}", device.name());
            let is_gpu = device.name().starts_with("gpu");
            test(device, if is_gpu { 1e-5 } else { 2f64.powi(-7) });
        }
    });
}

/// Rows, prepared rows, input features, output features of the layers, whether they have a bias.
const SHAPES: &[(usize, usize, usize, &[usize], bool)] = &[
    (1, 1, 32, &[1], false),
    (1, 32, 576, &[577, 3, 3], true),
    (2, 5, 64, &[7, 2], true),
    (9, 17, 96, &[33, 5], true),
    (64, 64, 192, &[192, 64, 64], true),
    (131, 256, 64, &[20], false),
];

#[test]
fn every_output_is_the_product_by_definition_in_every_format_and_in_several_at_once() {
    each_of_floats(|device, tolerance| {
        for (rows, prepared, in_features, out_features, bias) in SHAPES {
            // The formats of the layers: each alone, and two next to each other.
            for (first, step) in [
                (0, 0),
                (1, 0),
                (2, 0),
                (3, 0),
                (4, 0),
                (5, 0),
                (0, 1),
                (4, 1),
            ] {
                let mut random = Random::new(*rows as u64);
                let layers = out_features.iter().enumerate().map(|(index, out)| {
                    let shape = (*out, *in_features);
                    FloatPlain::random(&mut random, first + step * index, shape, *bias)
                });
                let layers: Vec<_> = layers.collect();
                let x = random.floats(rows * in_features, 4.0);
                let linear = linear(*in_features, &layers);
                let outputs = run(device, &linear, *prepared, &x).unwrap();
                for (out, layer) in outputs.iter().zip(&layers) {
                    let mut wide = vec![0.0; *in_features];
                    for column in 0..layer.out_features {
                        layer.weight().widen_row(column, &mut wide);
                        let bias = layer.bias().map_or(0.0, |bias| f64::from(bias[column]));
                        for (row, x) in x.chunks_exact(*in_features).enumerate() {
                            let terms = x.iter().zip(&wide);
                            let terms = terms.map(|(x, w)| f64::from(*x) * f64::from(*w));
                            let expected = bias + terms.clone().sum::<f64>();
                            let size = bias.abs() + terms.map(f64::abs).sum::<f64>();
                            let found = f64::from(out[row * layer.out_features + column]);
                            assert!(
                                (found - expected).abs() <= tolerance * size,
                                "{}, formats {first} + {step}, {rows} × {in_features}, row {row}, column {column}: \
                                 {found}, expected {expected}",
                                device.name()
                            );
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn a_row_of_floats_that_is_not_finite_changes_no_other_row() {
    let (rows, in_features) = (12, 64);
    let mut random = Random::new(2);
    for format in 0..FORMATS {
        let layers = [FloatPlain::random(
            &mut random,
            format,
            (35, in_features),
            true,
        )];
        let linear = linear(in_features, &layers);
        let x = random.floats(rows * in_features, 1.0);
        each_of_floats(|device, _| {
            let finite = run(device, &linear, rows, &x).unwrap();
            let mut x = x.clone();
            x[3 * in_features + 5] = f32::NAN;
            let found = run(device, &linear, rows, &x).unwrap();
            for (row, (found, finite)) in found[0]
                .chunks_exact(35)
                .zip(finite[0].chunks_exact(35))
                .enumerate()
            {
                if row == 3 {
                    assert!(found.iter().all(|x| x.is_nan()), "{}", device.name());
                } else {
                    assert!(found == finite, "{}: row {row}", device.name());
                }
            }
        });
    }
}

#[test]
fn a_processor_without_floats_refuses_them_with_its_name_and_the_format() {
    let layers = [FloatPlain::random(&mut Random::new(3), 0, (4, 32), false)];
    let linear = linear(32, &layers);
    each(|device| {
        if device.capabilities().formats == [LayerFormat::W8a8] {
            let refused = device.prepare_floats(&linear, 1).err().unwrap().to_string();
            let name = device.name();
            let expected = format!("{name} multiplies INT8 (W8A8) alone, and the layer is in INT4");
            assert!(refused.starts_with(&expected), "{refused}");
        }
    });
}

#[test]
fn layers_of_floats_that_contradict_each_other_are_refused() {
    let mut random = Random::new(4);
    let good = FloatPlain::random(&mut random, 0, (4, 64), true);
    let wrong_bias = FloatPlain {
        bias: Some(vec![0.0; 3]),
        ..Arc::into_inner(FloatPlain::random(&mut random, 1, (4, 64), false)).unwrap()
    };
    let few_scales = FloatPlain {
        out_features: 4,
        weight: Weight::Int4(vec![0; 128], vec![f16::ONE; 7]),
        bias: None,
    };
    let few_numbers = FloatPlain {
        out_features: 4,
        weight: Weight::F32(vec![0.0; 255]),
        bias: None,
    };
    each_of_floats(|device, _| {
        for (in_features, layers) in [(64, vec![]), (32, vec![Arc::clone(&good)]), (0, vec![])] {
            let refused = device.prepare_floats(&linear(in_features, &layers), 2);
            assert!(matches!(refused.err(), Some(Error::Subgraph { .. })));
        }
        for part in [&wrong_bias, &few_scales, &few_numbers] {
            let part = FloatPlain {
                out_features: part.out_features,
                weight: match &part.weight {
                    Weight::F32(values) => Weight::F32(values.clone()),
                    Weight::Int4(values, scales) => Weight::Int4(values.clone(), scales.clone()),
                    _ => unreachable!("the weights of these cases"),
                },
                bias: part.bias.clone(),
            };
            let linear = linear(64, &[Arc::clone(&good), Arc::new(part)]);
            let refused = device.prepare_floats(&linear, 2);
            assert!(matches!(refused.err(), Some(Error::Subgraph { .. })));
        }
        let linear = linear(64, &[Arc::clone(&good)]);
        assert!(matches!(
            device.prepare_floats(&linear, 0).err(),
            Some(Error::Rows { .. })
        ));
        let mut program = device.prepare_floats(&linear, 2).unwrap();
        let mut run = |numbers: usize, out: [usize; 2]| {
            let mut room = vec![0.0; out[0] * out[1]];
            let x = vec![1.0; numbers];
            program.run(&x, Phase::Prefill, &mut [OutputMut::new(&mut room, out[1])])
        };
        assert!(matches!(run(3 * 64, [3, 4]), Err(Error::Rows { .. })));
        assert!(matches!(run(0, [0, 4]), Err(Error::Rows { .. })));
        assert!(matches!(run(65, [1, 4]), Err(Error::Input { .. })));
        assert!(matches!(run(64, [1, 5]), Err(Error::Outputs { .. })));
        assert!(
            run(64, [1, 4]).is_ok(),
            "a refused run leaves the program as it was"
        );
    });
}
