//! Predicts what the INT8 subgraphs of a prompt take on a Hexagon NPU, from the packets of instructions that the device
//! program executes for them under qemu:
//! `TRIAD_HEXAGON=$(hexagon/build) cargo run --release -p triad-processors --features hexagon --example hexagon_cycles`
//!
//! Predicted, not measured: qemu counts packets exactly and knows neither stalls nor memory. A thread with a vector context is
//! taken to execute a packet in each cycle, and contexts to divide the rows of a prompt among them; weights are read from
//! memory once for each pass of 64 rows, as far as they do not stay in L2 or VTCM. Clocks and contexts are assumptions, and
//! printed.

use std::sync::Arc;
use std::time::Instant;

use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::int8::{Int8Weight, QuantizedRows, packed_len};
use triad_model::family::shape;
use triad_processors::hexagon::{Between, Hexagon, HexagonOptions, program_from_environment};
use triad_processors::{Device, DeviceSubgraph, FeedForward, Layer, Linear};

/// Chips, the clock of their NPU in GHz, its vector contexts, and bytes a second that it reads from memory.
const CHIPS: [(&str, f64, f64, f64); 2] = [("v73 (8 Gen 2)", 1.2, 4.0, 60e9), ("v75 (8 Gen 3)", 1.4, 4.0, 60e9)];
/// Rows that go through a program at once, as `PASS_ROWS` in hexagon/program.c.
const PASS_ROWS: usize = 64;

/// A layer of zeros with a bias: packets do not depend on numbers, as long as what is activated is not zero.
struct Zeros {
    packed: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    bias: Vec<f32>,
    in_features: usize,
}

impl Layer for Zeros {
    fn weight(&self) -> Int8Weight<'_> {
        let Self { packed, scales, sums, in_features, .. } = self;
        Int8Weight { out_features: scales.len(), in_features: *in_features, packed, scales, sums }
    }

    fn bias(&self) -> Option<&[f32]> {
        Some(&self.bias)
    }
}

fn layer(out_features: usize, in_features: usize) -> Arc<dyn Layer> {
    let packed = vec![0; packed_len(out_features, in_features).expect("it fits into memory")];
    let [scales, bias] = [1.0, 0.5].map(|number| vec![number; out_features]);
    Arc::new(Zeros { packed, scales, sums: vec![0; out_features], bias, in_features })
}

/// Packets of a run on `rows` rows, and seconds of the emulator.
fn run(hexagon: &Hexagon, subgraph: &DeviceSubgraph, rows: usize) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let in_features = subgraph.in_features();
    let mut input = QuantizedRows::default();
    input.quantize_static(&vec![1.0; rows * in_features], in_features, 1.0, None, false);
    let mut outs: Vec<_> = subgraph.outputs().iter().map(|features| vec![0.0; rows * features]).collect();
    let views = outs.iter_mut().zip(subgraph.outputs()).map(|(out, features)| OutputMut::new(out, features));
    let mut program = hexagon.prepare(subgraph, rows)?;
    let start = Instant::now();
    program.run(input.view(), &mut views.collect::<Vec<_>>())?;
    Ok((hexagon.packets() as f64, start.elapsed().as_secs_f64()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "qwen1.5-1.8b".to_owned());
    let rows: usize = arguments.next().map_or(Ok(256), |rows| rows.parse())?;
    let description = shape(&name)?;
    let options = HexagonOptions::new(program_from_environment()?);
    let hexagon = Hexagon::open(&HexagonOptions { transfer_bytes: 256 << 20, between: Between::Device, ..options })?;
    let block = &description.blocks[0];
    let (hidden, width, head) = (description.hidden, block.feed_forward.width, block.attention.head_dim);
    let (query, key) = (block.attention.heads * head, block.attention.kv_heads * head);
    let linear = |layers| DeviceSubgraph::Linear(Linear { input_scale: 1.0, layers });
    let feed_forward = FeedForward {
        input_scale: 1.0,
        up: layer(width, hidden),
        gate: block.feed_forward.gated.then(|| layer(width, hidden)),
        activation: Activation::Silu,
        inner_scale: 1.0,
        smoothing: None,
        down: layer(hidden, width),
        return_inner: false,
    };
    let gates = if block.feed_forward.gated { 2 } else { 1 };
    let subgraphs = [
        (
            "query, key, value",
            linear(vec![layer(query, hidden), layer(key, hidden), layer(key, hidden)]),
            hidden * (query + 2 * key),
        ),
        ("attention's output", linear(vec![layer(hidden, query)]), hidden * query),
        ("gate and up", linear((0..gates).map(|_| layer(width, hidden)).collect()), gates * hidden * width),
        ("down", linear(vec![layer(hidden, width)]), hidden * width),
        // As one program, with what is between: none of the sums below.
        ("feed-forward whole", DeviceSubgraph::FeedForward(feed_forward), (gates + 1) * hidden * width),
    ];
    println!("{name}, {rows} rows, one block; packets counted by qemu, times of chips predicted from them");
    let (mut packets_of_block, mut products_of_block, mut weights_of_block, mut emulated) = (0.0, 0.0, 0, 0.0);
    for (index, (name, subgraph, weights)) in subgraphs.iter().enumerate() {
        let (packets, seconds) = run(&hexagon, subgraph, rows)?;
        let products = (weights * rows) as f64;
        println!(
            "{name}: {:.2} million packets, {:.0} multiply-adds a packet; emulated {seconds:.2} s, {:.2} G/s",
            packets / 1e6,
            products / packets,
            products / seconds / 1e9
        );
        if index < 4 {
            packets_of_block += packets;
            products_of_block += products;
            weights_of_block += weights;
            emulated += seconds;
        }
    }
    let blocks = description.blocks.len() as f64;
    println!(
        "products of all {blocks} blocks: {:.0} million packets, {:.0} multiply-adds a packet; emulated {:.1} s",
        blocks * packets_of_block / 1e6,
        products_of_block / packets_of_block,
        blocks * emulated
    );
    for (chip, gigahertz, contexts, bandwidth) in CHIPS {
        let computing = blocks * packets_of_block / (gigahertz * 1e9 * contexts);
        let reading = blocks * (weights_of_block * rows.div_ceil(PASS_ROWS)) as f64 / bandwidth;
        println!(
            "{chip}: predicted {:.0} ms of packets on {contexts} vector contexts at {gigahertz} GHz (assumed; one context: {:.0} ms), \
             {:.0} ms of reading weights at {:.0} GB/s beside them",
            1e3 * computing,
            1e3 * computing * contexts,
            1e3 * reading,
            bandwidth / 1e9
        );
    }
    Ok(())
}
