//! Speed of the float matmul against the peak of this processor, measured in the same run, with weights in f32 and in
//! INT8 (where the processor has instructions for bf16, products with those are computed in it):
//! `cargo run --release -p triad-kernels --example float_speed`.

use std::time::Instant;

use triad_kernels::peak::{bf16_operations_per_second, f32_operations_per_second};
use triad_kernels::{Matrix, matmul};

/// Input and output features of linear layers: those of SmolLM2-135M with a part of its output matrix, then some of a
/// 1.8B model.
const SHAPES: [(usize, usize); 6] = [(576, 576), (576, 1536), (1536, 576), (576, 8192), (2048, 2048), (2048, 5504)];

fn main() {
    println!("kernel {}", matmul::kernel_name());
    for threads in [1, 2] {
        let peak = f32_operations_per_second(threads);
        let narrow = bf16_operations_per_second(threads).unwrap_or(peak);
        println!("\n{threads} threads, peak {:.0} GFLOPS, with INT8 weights {:.0}", peak / 1e9, narrow / 1e9);
        let pool = triad_kernels::pool::Pool::new(threads).expect("a pool");
        pool.install(|| SHAPES.iter().for_each(|(input, output)| measure(*input, *output, [peak, narrow])));
    }
}

fn measure(in_features: usize, out_features: usize, peaks: [f64; 2]) {
    let weight: Vec<i8> = (0..in_features * out_features).map(|i| (i * 37 % 255) as u8 as i8).collect();
    let wide: Vec<f32> = weight.iter().map(|weight| f32::from(*weight)).collect();
    let scales = vec![1.0; out_features];
    let weights = [Matrix::F32(&wide), Matrix::Int8 { values: &weight, scales: &scales }];
    for rows in [16, 64, 256] {
        let x: Vec<f32> = (0..rows * in_features).map(|i| (i * 31 % 1001) as f32 / 500.0 - 1.0).collect();
        let mut out = vec![0.0; rows * out_features];
        let speeds = weights.map(|weight| {
            let seconds = best(|| matmul(&x, rows, weight, out_features, None, &mut out));
            2.0 * (rows * in_features * out_features) as f64 / seconds
        });
        let [f32, int8] = [0, 1].map(|which| (speeds[which] / 1e9, 100.0 * speeds[which] / peaks[which]));
        println!(
            "{rows:4} × {in_features:4} × {out_features:4}: {:4.0} GFLOPS, {:2.0} % of the peak; \
             with INT8 weights {:4.0}, {:2.0} %",
            f32.0, f32.1, int8.0, int8.1
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
