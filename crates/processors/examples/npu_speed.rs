//! Compares ONNX Runtime's CPU provider with Triad's own kernels. Both run on one thread, in turns, with the shapes of
//! a model:
//!
//! ```sh
//! taskset --cpu-list 1 cargo run --release --package triad-processors --features npu --example npu_speed
//! ```
//!
//! For each static subgraph of one layer of Qwen1.5-1.8B at 256 rows, prints the minimum and the median time of each in
//! milliseconds, and their ratio.

use std::sync::Arc;
use std::time::Instant;

use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::int8::{Int8Weight, QuantizedRows, packed_len};
use triad_kernels::pool::Pool;
use triad_processors::cpu::Cpu;
use triad_processors::npu::{Npu, NpuOptions, Provider, library_from_environment};
use triad_processors::{Device, DeviceSubgraph, FeedForward, Layer, Linear, Result};

const ROWS: usize = 256;
const HIDDEN: usize = 2048;
const WIDTH: usize = 5504;
const SCALE: f32 = 0.01;
const TURNS: usize = 15;

struct Weights {
    out_features: usize,
    in_features: usize,
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl Weights {
    /// Creates weights whose shapes are whole blocks of the layout, so that sums are those of the packed rows. Their
    /// values don't matter.
    fn new(out_features: usize, in_features: usize) -> Arc<Self> {
        let length = packed_len(out_features, in_features).expect("fits");
        let packed = (0..length)
            .map(|index| (index * 37 % 255) as u8 as i8)
            .map(|value| value.max(-127))
            .collect();
        let (scales, sums) = (vec![1e-4; out_features], vec![0; out_features]);
        Arc::new(Self {
            out_features,
            in_features,
            packed,
            scales,
            sums,
        })
    }
}

impl Layer for Weights {
    fn weight(&self) -> Int8Weight<'_> {
        let Self {
            out_features,
            in_features,
            packed,
            scales,
            sums,
        } = self;
        Int8Weight {
            out_features: *out_features,
            in_features: *in_features,
            packed,
            scales,
            sums,
        }
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let cpu = Cpu::new(Arc::new(Pool::new(1)?));
    let npu = Npu::new(NpuOptions::new(library_from_environment()?, Provider::Cpu))?;
    let linear = |out_features: &[usize]| {
        let layers = out_features
            .iter()
            .map(|out| Weights::new(*out, HIDDEN) as Arc<dyn Layer>)
            .collect();
        DeviceSubgraph::Linear(Linear {
            input_scale: SCALE,
            layers,
        })
    };
    let feed_forward = |smoothing| {
        DeviceSubgraph::FeedForward(FeedForward {
            input_scale: SCALE,
            up: Weights::new(WIDTH, HIDDEN),
            gate: Some(Weights::new(WIDTH, HIDDEN)),
            activation: Activation::Silu,
            inner_scale: SCALE,
            smoothing,
            down: Weights::new(HIDDEN, WIDTH),
            return_inner: false,
            fixed_point: false,
        })
    };
    let subgraphs = [
        ("query, key, value", linear(&[HIDDEN; 3])),
        ("attention's output", linear(&[HIDDEN])),
        ("feed-forward", feed_forward(None)),
        (
            "feed-forward, smoothed",
            feed_forward(Some(vec![0.9; WIDTH].into())),
        ),
    ];
    println!(
        "{:24} {:>14} {:>14} {:>14}",
        "", "cpu ms", "npu:cpu ms", "npu/cpu"
    );
    for (name, subgraph) in subgraphs {
        let [ours, theirs] = times(&[&cpu, &npu], &subgraph)?;
        let ratio = [theirs[0] / ours[0], theirs[1] / ours[1]];
        println!(
            "{name:24} {:>14} {:>14} {:>14}",
            formatted(ours, 1e3),
            formatted(theirs, 1e3),
            formatted(ratio, 1.0)
        );
    }
    Ok(())
}

fn formatted([shortest, median]: [f64; 2], factor: f64) -> String {
    format!("{:.2} {:.2}", shortest * factor, median * factor)
}

/// Returns the minimum and the median time of each processor.
fn times(processors: &[&dyn Device; 2], subgraph: &DeviceSubgraph) -> Result<[[f64; 2]; 2]> {
    let x: Vec<_> = (0..ROWS * HIDDEN)
        .map(|index| (index * 31 % 255) as f32 * SCALE - 127.0 * SCALE)
        .collect();
    let mut input = QuantizedRows::default();
    input.quantize_static(&x, HIDDEN, SCALE, None, false);
    let mut outputs: Vec<_> = subgraph
        .outputs()
        .iter()
        .map(|features| vec![0.0; ROWS * features])
        .collect();
    let mut programs = [
        processors[0].prepare(subgraph, ROWS)?,
        processors[1].prepare(subgraph, ROWS)?,
    ];
    let mut seconds = [vec![], vec![]];
    for _ in 0..TURNS {
        for (program, seconds) in programs.iter_mut().zip(&mut seconds) {
            let start = Instant::now();
            let views = outputs
                .iter_mut()
                .zip(subgraph.outputs())
                .map(|(out, features)| OutputMut::new(out, features));
            program.run(input.view(), &mut views.collect::<Vec<_>>())?;
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        [seconds[0], seconds[seconds.len() / 2]]
    }))
}
