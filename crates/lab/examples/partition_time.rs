//! Measures how long the partition solver takes for a plan, and the error of its predictions for shapes that they were
//! not fitted to: `cargo run --release -p triad-lab --example partition_time`. A profile simulates the device's
//! measurements.

use std::time::Instant;

use triad_plan::device::DeviceProfile;
use triad_plan::partition::costs::{Costs, Measurement};
use triad_plan::partition::predict::{Method, PredictedCosts, Prediction};
use triad_plan::partition::profile::ProfileCosts;
use triad_plan::partition::solve::{Restriction, Solver};
use triad_plan::partition::{Participant, Phase, ProductShape, products};
use triad_plan::prefill::FloatsOn;
use triad_plan::processors::{ProcessorId, ProcessorKind};

const REPEATS: usize = 21;

fn main() {
    let device = DeviceProfile::builtin("snapdragon-8gen3").expect("a built-in profile");
    let costs = ProfileCosts::new(&device);
    let joins = costs.joins(FloatsOn::Gpu).expect("a GPU");
    let participants = Participant::from_processors(costs.processors());
    let mut predictions = Vec::new();
    println!("predictions: error on held-out shapes, on average and at most");
    for (id, processor) in costs.processors().iter() {
        let measurements = measure(&costs, id);
        let method = match processor.kind {
            ProcessorKind::Npu => Method::Tree {
                step: device.npu.step,
                depth: 12,
                leaf: 2,
            },
            ProcessorKind::Cpu | ProcessorKind::Gpu => Method::Rates,
        };
        let prediction = Prediction::fit(method, id, &measurements).expect("enough shapes");
        let off = prediction.held_out();
        let (mean, largest) = (100.0 * off.mean, 100.0 * off.largest);
        println!(
            "{:<4} {:>5} shapes {mean:>6.2} % {largest:>6.2} %",
            processor.name, off.measurements
        );
        predictions.push((id, prediction));
    }
    let predicted: PredictedCosts = predictions.into_iter().collect();
    let description = triad_model::family::shape("llama-2-7b").expect("a known shape");
    println!("\nmicroseconds of a plan, median of {REPEATS}");
    println!(
        "{:<18} {:>5} {:>10} {:>10} {:>10} {:>10}",
        "product", "rows", "two", "partitions", "three", "partitions"
    );
    for rows in [1, 16, 256, 600, 1000, 2047] {
        let phase = if rows > 16 {
            Phase::Prefill
        } else {
            Phase::Decode
        };
        for (role, shape) in
            products(&description.blocks[0], description.hidden, rows).expect("sizes of a model")
        {
            let of = |participants: &[Participant]| {
                let solver = Solver::new(participants.to_vec(), &predicted, joins)
                    .expect("processors of their own");
                time(|| {
                    solver
                        .solve(shape, phase, Restriction::Auto)
                        .expect("all costs are known")
                        .considered
                })
            };
            let ((two, of_two), (three, of_three)) = (of(&participants[1..]), of(&participants));
            println!(
                "{:<18} {rows:>5} {two:>10.1} {of_two:>10} {three:>10.1} {of_three:>10}",
                role.name()
            );
        }
    }
}

/// Returns the times of a grid of shapes, as a profiler would measure them. They deviate by up to a tenth,
/// reproducibly.
fn measure(costs: &impl Costs, processor: ProcessorId) -> Vec<Measurement> {
    let mut measurements = Vec::new();
    let mut random = 1u64;
    for rows in [1, 4, 16, 32, 64, 128, 256, 512, 1024, 2047] {
        for columns in [
            256, 512, 1024, 2048, 4096, 6144, 8192, 12_288, 16_384, 22_016,
        ] {
            for depth in [2048, 4096, 8192, 11_008] {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let noise = 0.9 + 0.2 * (random >> 40) as f64 / f64::from(1 << 24);
                let shape = ProductShape::new(rows, columns, depth).expect("sizes of a model");
                let seconds = costs
                    .seconds(processor, shape)
                    .expect("a processor of the list")
                    * noise;
                measurements.push(Measurement {
                    processor,
                    shape,
                    seconds,
                });
            }
        }
    }
    measurements
}

/// Returns the median microseconds of a plan, and the plan's result.
fn time(plan: impl Fn() -> usize) -> (f64, usize) {
    let mut times: Vec<_> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            let considered = std::hint::black_box(plan());
            (1e6 * start.elapsed().as_secs_f64(), considered)
        })
        .collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    times[REPEATS / 2]
}
