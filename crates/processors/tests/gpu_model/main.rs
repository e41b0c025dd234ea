//! Compares whole models on the GPU that the environment names with the CPU's kernels in f32.

mod families;
mod outer;
mod plain;
mod sequences;
mod shapes;
#[path = "../skip/mod.rs"]
mod skip;
mod slices;
mod w8a8;

use triad_kernels::Phase;
use triad_processors::ModelOptions;
use triad_processors::gpu::model::{GpuModel, GpuSegment, GpuSequence, ModelVariant};
use triad_processors::gpu::{ADAPTER, Gpu, GpuOptions};
use triad_processors::model::OutputRows;

use plain::PlainModel;

/// Rows of a chunk.
const ROWS: usize = 96;
const OPTIONS: ModelOptions = ModelOptions {
    rows: ROWS,
    outputs: ROWS,
};

/// Returns the GPU that the environment names.
fn gpu() -> Option<Gpu> {
    gpu_with(&GpuOptions::from_environment())
}

fn gpu_with(options: &GpuOptions) -> Option<Gpu> {
    if options.adapter.is_none() {
        skip::skip(format_args!("{ADAPTER} names no GPU"));
        return None;
    }
    Some(Gpu::open(options).unwrap())
}

fn on_gpu(gpu: &Gpu, model: &PlainModel) -> GpuModel {
    GpuModel::new(gpu, &model.view(), &OPTIONS, &ModelVariant::ALL).unwrap()
}

/// Returns the logits of all rows of one chunk of a prompt.
fn logits(model: &mut GpuModel, sequence: &mut GpuSequence, x: &[f32], rows: usize) -> Vec<f32> {
    logits_in(model, sequence, x, rows, Phase::Prefill)
}

/// Returns the logits of all rows of one chunk in the given phase.
fn logits_in(
    model: &mut GpuModel,
    sequence: &mut GpuSequence,
    x: &[f32],
    rows: usize,
    phase: Phase,
) -> Vec<f32> {
    let all: Vec<_> = (0..rows).collect();
    let wanted = OutputRows {
        rows: &all,
        logits: true,
        phase,
        keys_and_values: false,
    };
    let mut found = Vec::new();
    model
        .forward(
            x,
            &mut [GpuSegment { sequence, rows }],
            &wanted,
            |outputs| found.extend_from_slice(outputs.values),
        )
        .unwrap();
    found
}

/// Asserts that values are equal up to rounding: keys and values are rounded to f16, and sums are in another order.
#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    assert_within(2e-3, found, expected, what);
}

/// Asserts that values differ by at most `tolerance` of the largest.
#[track_caller]
fn assert_within(tolerance: f32, found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected
        .iter()
        .fold(0.0f32, |largest, value| largest.max(value.abs()));
    let error = found
        .iter()
        .zip(expected)
        .fold(0.0f32, |most, (found, expected)| {
            let error = (found - expected).abs();
            if error.is_nan() {
                f32::INFINITY
            } else {
                most.max(error)
            }
        });
    assert!(
        error <= tolerance * largest,
        "{what}: off by {error}, of {largest}"
    );
}
