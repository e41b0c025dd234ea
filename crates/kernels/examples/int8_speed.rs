//! Speed of the INT8 matmul against the peak of this processor, measured in the same run:
//! `cargo run --release -p triad-kernels --example int8_speed`.

use std::time::Instant;

use triad_kernels::int8::{Int8Weight, QuantizedRows, kernel_name, matmul_int8, pack, packed_len, row_sums, shadow};
use triad_kernels::peak::int8_operations_per_second;

/// Input and output features of linear layers: those of SmolLM2-135M, then one of a 1.8B model.
const SHAPES: [(usize, usize); 5] = [(576, 576), (576, 192), (576, 1536), (1536, 576), (2048, 5504)];

fn main() {
    println!("kernel {}", kernel_name());
    for threads in [1, 2] {
        let peak = int8_operations_per_second(threads);
        match peak {
            Some(peak) => println!("\n{threads} threads, peak {:.0} GOPS", peak / 1e9),
            None => println!("\n{threads} threads, peak unknown"),
        }
        let pool = triad_kernels::pool::Pool::new(threads).expect("a pool");
        pool.install(|| SHAPES.iter().for_each(|(input, output)| measure(*input, *output, peak)));
    }
}

fn measure(in_features: usize, out_features: usize, peak: Option<f64>) {
    let row_major: Vec<i8> = (0..in_features * out_features).map(|i| (i * 37 % 255) as u8 as i8).collect();
    let mut packed = vec![0; packed_len(out_features, in_features).expect("a small matrix")];
    pack(&row_major, out_features, in_features, &mut packed);
    let mut sums = vec![0; out_features];
    row_sums(&row_major, in_features, &mut sums);
    let scales = vec![0.01; out_features];
    let weight = Int8Weight { out_features, in_features, packed: &packed, scales: &scales, sums: &sums };
    for rows in [1, 64, 256, 512] {
        let x: Vec<f32> = (0..rows * in_features).map(|i| (i * 31 % 1001) as f32 / 500.0 - 1.0).collect();
        // One activation in two hundred is clipped.
        let mut quantized = QuantizedRows::default();
        let quantize = best(|| quantized.quantize_static(&x, in_features, 0.995 / 127.0, None, true));
        let mut out = vec![0.0; rows * out_features];
        let multiply = best(|| matmul_int8(&quantized, weight, None, &mut out));
        let add = best(|| shadow(&quantized, weight, &mut out));
        let speed = 2.0 * (rows * in_features * out_features) as f64 / multiply;
        let share = peak.map_or(f64::NAN, |peak| 100.0 * speed / peak);
        println!(
            "{rows:4} × {in_features:4} × {out_features:4}: {:5.0} GOPS, {share:3.0} % of the peak; \
             {:7.1} µs, quantize {:5.1} µs, shadow of {:4} outliers {:6.1} µs",
            speed / 1e9,
            multiply * 1e6,
            quantize * 1e6,
            quantized.outliers(),
            add * 1e6,
        );
    }
}

/// Seconds of the fastest of many runs.
fn best(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.1 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
