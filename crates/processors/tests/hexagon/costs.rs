//! The cost model of products on HMX, compared with what the emulated program executes.

use super::*;

#[test]
fn measure() {
    let Some(options) = options() else { return };
    for threads in [1, 2] {
        let hexagon = Hexagon::open(&HexagonOptions {
            unit: Some(Unit::Hmx),
            threads: Some(threads),
            transfer_bytes: 64 << 20,
            ..options.clone()
        })
        .unwrap();
        for (rows, inputs, outputs) in [
            (8, 32, 27),
            (8, 128, 27),
            (8, 128, 900),
            (64, 128, 27),
            (64, 128, 155),
            (64, 1024, 27),
            (64, 1024, 155),
            (64, 512, 1000),
            (128, 512, 300),
            (256, 256, 27),
            (256, 256, 600),
            (300, 256, 100),
            (100, 640, 200),
            (256, 2048, 100),
        ] {
            let subgraph = linear(&[[outputs, inputs]]);
            let before = hexagon.hmx_counts();
            run(&hexagon, &subgraph, &input(rows, &subgraph)).unwrap();
            let (packets, after) = (hexagon.packets(), hexagon.hmx_counts());
            println!(
                "M {threads} {rows} {inputs} {outputs} {} {} {}",
                packets.longest,
                packets.all,
                after.instructions - before.instructions
            );
        }
    }
}
