//! Speed of the float matmul against the peak of this processor, measured in the same run:
//! `cargo run --release -p triad-kernels --example float_speed`.

use std::time::Instant;

use triad_kernels::peak::f32_operations_per_second;
use triad_kernels::{Matrix, matmul};

/// Input and output features of linear layers: those of SmolLM2-135M with a part of its output matrix, then some of a
/// 1.8B model.
const SHAPES: [(usize, usize); 6] = [(576, 576), (576, 1536), (1536, 576), (576, 8192), (2048, 2048), (2048, 5504)];

fn main() {
    println!("kernel {}", matmul::kernel_name());
    for threads in [1, 2] {
        let peak = f32_operations_per_second(threads);
        println!("\n{threads} threads, peak {:.0} GFLOPS", peak / 1e9);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| SHAPES.iter().for_each(|(input, output)| measure(*input, *output, peak)));
    }
}

fn measure(in_features: usize, out_features: usize, peak: f64) {
    let weight: Vec<f32> = (0..in_features * out_features).map(|i| (i * 37 % 255) as f32 / 128.0 - 1.0).collect();
    for rows in [16, 64, 256] {
        let x: Vec<f32> = (0..rows * in_features).map(|i| (i * 31 % 1001) as f32 / 500.0 - 1.0).collect();
        let mut out = vec![0.0; rows * out_features];
        let seconds = best(|| matmul(&x, rows, Matrix::F32(&weight), out_features, None, &mut out));
        let speed = 2.0 * (rows * in_features * out_features) as f64 / seconds;
        println!(
            "{rows:4} × {in_features:4} × {out_features:4}: {:5.0} GFLOPS, {:3.0} % of the peak",
            speed / 1e9,
            100.0 * speed / peak
        );
    }
}

/// Seconds of the fastest of many runs.
fn best(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.3 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
