//! The cost model of products on HMX, compared with what the emulated program executes.

use triad_processors::hexagon::cost::Product;

use super::*;

/// VTCM of the emulated program.
const NEAR: usize = 4 << 20;
/// Rows, features and channels: one tile and many, one pass and several, products that an instruction or a boundary cuts.
const PRODUCTS: [[usize; 3]; 16] = [
    [8, 32, 27],
    [8, 128, 27],
    [8, 128, 900],
    [9, 4096, 27],
    [64, 128, 27],
    [64, 128, 155],
    [64, 1024, 27],
    [64, 1024, 155],
    [64, 512, 1000],
    [100, 640, 200],
    [128, 512, 300],
    [256, 256, 27],
    [256, 256, 600],
    [256, 2048, 100],
    [300, 256, 100],
    [512, 640, 1300],
];

#[test]
fn the_cost_model_has_the_instructions_of_hmx_and_the_packets_of_the_program() {
    let Some(options) = options() else { return };
    for threads in [1, 3] {
        let hexagon = Hexagon::open(&HexagonOptions {
            unit: Some(Unit::Hmx),
            threads: Some(threads),
            transfer_bytes: 64 << 20,
            ..options.clone()
        })
        .unwrap();
        for [rows, in_features, out_features] in PRODUCTS {
            let subgraph = linear(&[[out_features, in_features]]);
            let mut program = hexagon.prepare(&subgraph, rows).unwrap();
            let before = hexagon.hmx_counts().instructions;
            run_program(&mut *program, &subgraph, &input(rows, &subgraph)).unwrap();
            let executed = hexagon.hmx_counts().instructions - before;
            let product = Product {
                rows,
                in_features,
                out_features,
            };
            let steps = product.steps(threads, NEAR).unwrap();
            let what = format!("{product:?} by {threads} threads");
            let instructions: usize = steps.iter().map(|step| step.instructions).sum();
            assert_eq!(instructions as u64, executed, "{what}");
            let modelled: f64 = steps.iter().map(|step| step.packets).sum();
            // Those of the busiest thread.
            let executed = hexagon.packets().longest as f64;
            assert!(
                (modelled - executed).abs() <= 0.01 * executed,
                "{what}: {modelled:.0} packets, executed {executed}"
            );
        }
    }
}
