//! Self-test of a GPU: compares a small matmul and small feed-forwards with the CPU's kernels.

use std::sync::Arc;

use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::int8::{Int8Weight, QuantizedRows, pack, packed_len, row_sums};
use triad_kernels::pool::Pool;

use super::program::{GpuProgram, Shared};
use crate::cpu::Cpu;
use crate::device::{Device, Program};
use crate::error::{Error, Result};
use crate::subgraph::{DeviceSubgraph, FeedForward, Layer, Linear};

/// Rows, features and width: not multiples of any tile, and more than the largest tile.
const ROWS: usize = 67;
const FEATURES: usize = 133;
const WIDTH: usize = 147;
/// Scale of the input and of the inner activations. It puts some numbers beyond the clip threshold.
const SCALE: f32 = 0.007;
/// Tolerance of the inner activations, relative to the largest of them.
const TOLERANCE: f32 = 1e-5;

/// Runs both on the GPU. The inner error describes a wrong result.
///
/// # Errors
/// If the GPU fails.
pub(super) fn check(shared: &Arc<Shared>) -> Result<std::result::Result<(), String>> {
    let cpu = Cpu::new(Arc::new(Pool::new(1).map_err(|error| Error::Run {
        processor: "cpu".to_owned(),
        reason: error.to_string(),
    })?));
    let layer = |out_features: usize, in_features: usize| -> Arc<dyn Layer> {
        Arc::new(Numbers::new(out_features, in_features))
    };
    let mut input = QuantizedRows::default();
    input.quantize_static(&floats(ROWS * FEATURES), FEATURES, SCALE, None, false);
    let linear = DeviceSubgraph::Linear(Linear {
        input_scale: SCALE,
        layers: vec![layer(WIDTH, FEATURES), layer(FEATURES, FEATURES)],
    });
    let (expected, found) = (
        run(&mut *cpu.prepare(&linear, ROWS)?, &linear, &input)?,
        of_gpu(shared, &linear, &input)?,
    );
    for (layer, (expected, found)) in expected.iter().zip(&found).enumerate() {
        if let Some(index) =
            (0..expected.len()).find(|index| expected[*index].to_bits() != found[*index].to_bits())
        {
            let (found, expected) = (found[index], expected[index]);
            return Ok(Err(format!(
                "output {index} of product {layer} is {found}, expected {expected}"
            )));
        }
    }
    for activation in [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ReluSquared,
    ] {
        let feed_forward = DeviceSubgraph::FeedForward(FeedForward {
            input_scale: SCALE,
            up: layer(WIDTH, FEATURES),
            gate: Some(layer(WIDTH, FEATURES)),
            activation,
            inner_scale: SCALE,
            smoothing: None,
            down: layer(FEATURES, WIDTH),
            return_inner: true,
            fixed_point: false,
        });
        let expected = run(
            &mut *cpu.prepare(&feed_forward, ROWS)?,
            &feed_forward,
            &input,
        )?;
        let found = of_gpu(shared, &feed_forward, &input)?;
        let largest = expected[1]
            .iter()
            .fold(0.0f32, |largest, value| largest.max(value.abs()));
        for (index, (expected, found)) in expected[1].iter().zip(&found[1]).enumerate() {
            if (expected - found).abs().is_nan() || (expected - found).abs() > TOLERANCE * largest {
                return Ok(Err(format!(
                    "{activation:?}: inner activation {index} is {found}, expected {expected}"
                )));
            }
        }
    }
    Ok(Ok(()))
}

fn of_gpu(
    shared: &Arc<Shared>,
    subgraph: &DeviceSubgraph,
    input: &QuantizedRows,
) -> Result<Vec<Vec<f32>>> {
    run(
        &mut GpuProgram::new(shared, subgraph, ROWS)?,
        subgraph,
        input,
    )
}

fn run(
    program: &mut dyn Program,
    subgraph: &DeviceSubgraph,
    input: &QuantizedRows,
) -> Result<Vec<Vec<f32>>> {
    let mut outputs: Vec<_> = subgraph
        .outputs()
        .iter()
        .map(|features| vec![0.0; ROWS * features])
        .collect();
    let views = outputs
        .iter_mut()
        .zip(subgraph.outputs())
        .map(|(out, features)| OutputMut::new(out, features));
    program.run(input.view(), &mut views.collect::<Vec<_>>())?;
    Ok(outputs)
}

/// Returns reproducible pseudorandom numbers from −1 to 1.
fn floats(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A layer with weights over the whole INT8 range.
struct Numbers {
    in_features: usize,
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    bias: Vec<f32>,
}

impl Numbers {
    fn new(out_features: usize, in_features: usize) -> Self {
        let weight: Vec<i8> = floats(out_features * in_features)
            .into_iter()
            .map(|x| (x * 127.9) as i8)
            .collect();
        let length = packed_len(out_features, in_features).expect("a small layer");
        let (mut packed, mut sums) = (vec![0; length], vec![0; out_features]);
        pack(&weight, out_features, in_features, &mut packed);
        row_sums(&weight, in_features, &mut sums);
        let scales = floats(out_features)
            .into_iter()
            .map(|x| 0.002 + 0.001 * x)
            .collect();
        Self {
            in_features,
            packed,
            scales,
            sums,
            bias: floats(out_features),
        }
    }
}

impl Layer for Numbers {
    fn weight(&self) -> Int8Weight<'_> {
        let Self {
            in_features,
            packed,
            scales,
            sums,
            ..
        } = self;
        Int8Weight {
            out_features: scales.len(),
            in_features: *in_features,
            packed,
            scales,
            sums,
        }
    }

    fn bias(&self) -> Option<&[f32]> {
        Some(&self.bias)
    }
}
