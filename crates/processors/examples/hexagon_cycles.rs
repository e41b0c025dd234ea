//! Predicts what the INT8 subgraphs of a prompt take on a Hexagon NPU, from the packets of instructions that the device
//! program executes for them under qemu:
//! `TRIAD_HEXAGON=$(hexagon/build) cargo run --release -p triad-processors --features hexagon --example hexagon_cycles`
//!
//! A third argument is how many threads compute: 4 unless it says otherwise, whatever this machine has. Of chips those with as many
//! vector contexts are predicted.
//!
//! Predicted, not measured: qemu counts packets exactly and knows neither stalls nor memory. A thread with a vector context is
//! taken to execute a packet in each cycle. What counts is one behind the other: what one thread does alone, and of all that
//! threads share the one with the most packets; waking up and waiting are not in it. Weights are read from memory once for each
//! pass of 64 rows, as far as they do not stay in L2 or VTCM. Clocks and contexts are assumptions, and printed.

use std::sync::Arc;
use std::time::Instant;

use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::int8::{Int8Weight, QuantizedRows, packed_len};
use triad_model::family::shape;
use triad_processors::hexagon::{Between, Hexagon, HexagonOptions, program_from_environment};
use triad_processors::{Device, DeviceSubgraph, FeedForward, Layer, Linear};

/// A chip. All is assumed but what v79 has: its clock and cycles are those of [`PUBLISHED`], its contexts those that llama.cpp uses
/// (<https://github.com/ggml-org/llama.cpp/pull/26373>).
struct Chip {
    name: &'static str,
    /// Of its NPU, in GHz.
    clock: f64,
    /// Of a packet of one thread.
    cycles: f64,
    /// Threads that compute at once.
    contexts: usize,
}

const V79: Chip = Chip {
    name: "v79 (8 Elite)",
    clock: 2.11,
    cycles: 2.05,
    contexts: 6,
};
const CHIPS: [Chip; 3] = [
    Chip {
        name: "v73 (8 Gen 2)",
        clock: 1.2,
        cycles: 1.0,
        contexts: 4,
    },
    Chip {
        name: "v75 (8 Gen 3)",
        clock: 1.4,
        cycles: 1.0,
        contexts: 4,
    },
    V79,
];
/// Bytes a second that they read from memory, assumed.
const BANDWIDTH: f64 = 60e9;
/// What llama.cpp's HVX takes for an INT8 product of so many features, channels and rows, in seconds, on what its reporter says is
/// an 8 Elite: <https://github.com/ggml-org/llama.cpp/issues/18139>. In the same lines are 10.5 million cycles and 5.12 million
/// packets in 4.96 ms.
const PUBLISHED: ([usize; 3], f64) = ([4096, 4096, 64], 4.92e-3);
/// Rows that go through a program at once, as `PASS_ROWS` in hexagon/product.h.
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
        let Self {
            packed,
            scales,
            sums,
            in_features,
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

fn layer(out_features: usize, in_features: usize) -> Arc<dyn Layer> {
    let packed = vec![0; packed_len(out_features, in_features).expect("it fits into memory")];
    let [scales, bias] = [1.0, 0.5].map(|number| vec![number; out_features]);
    Arc::new(Zeros {
        packed,
        scales,
        sums: vec![0; out_features],
        bias,
        in_features,
    })
}

/// Packets of a run on `rows` rows, in all and one behind the other, and seconds of the emulator.
fn run(
    hexagon: &Hexagon,
    subgraph: &DeviceSubgraph,
    rows: usize,
) -> Result<[f64; 3], Box<dyn std::error::Error>> {
    let in_features = subgraph.in_features();
    let mut input = QuantizedRows::default();
    input.quantize_static(
        &vec![1.0; rows * in_features],
        in_features,
        1.0,
        None,
        false,
    );
    let mut outs: Vec<_> = subgraph
        .outputs()
        .iter()
        .map(|features| vec![0.0; rows * features])
        .collect();
    let views = outs
        .iter_mut()
        .zip(subgraph.outputs())
        .map(|(out, features)| OutputMut::new(out, features));
    let mut program = hexagon.prepare(subgraph, rows)?;
    let start = Instant::now();
    program.run(input.view(), &mut views.collect::<Vec<_>>())?;
    let (packets, seconds) = (hexagon.packets(), start.elapsed().as_secs_f64());
    Ok([packets.all as f64, packets.longest as f64, seconds])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments
        .next()
        .unwrap_or_else(|| "qwen1.5-1.8b".to_owned());
    let rows: usize = arguments.next().map_or(Ok(256), |rows| rows.parse())?;
    let description = shape(&name)?;
    let threads = Some(arguments.next().map_or(Ok(4), |threads| threads.parse())?);
    let options = HexagonOptions::new(program_from_environment()?);
    let options = HexagonOptions {
        transfer_bytes: 256 << 20,
        between: Between::Device,
        threads,
        ..options
    };
    let hexagon = Hexagon::open(&options)?;
    let threads = hexagon.threads();
    let block = &description.blocks[0];
    let (hidden, width, head) = (
        description.hidden,
        block.feed_forward.width,
        block.attention.head_dim,
    );
    let (query, key) = (
        block.attention.heads * head,
        block.attention.kv_heads * head,
    );
    let linear = |layers| {
        DeviceSubgraph::Linear(Linear {
            input_scale: 1.0,
            layers,
        })
    };
    let feed_forward = FeedForward {
        input_scale: 1.0,
        up: layer(width, hidden),
        gate: block.feed_forward.gated.then(|| layer(width, hidden)),
        activation: Activation::Silu,
        inner_scale: 1.0,
        smoothing: None,
        down: layer(hidden, width),
        return_inner: false,
        fixed_point: false,
    };
    let whole = |fixed_point| {
        DeviceSubgraph::FeedForward(FeedForward {
            fixed_point,
            ..feed_forward.clone()
        })
    };
    let gates = if block.feed_forward.gated { 2 } else { 1 };
    let subgraphs = [
        (
            "query, key, value",
            linear(vec![
                layer(query, hidden),
                layer(key, hidden),
                layer(key, hidden),
            ]),
            hidden * (query + 2 * key),
        ),
        (
            "attention's output",
            linear(vec![layer(hidden, query)]),
            hidden * query,
        ),
        (
            "gate and up",
            linear((0..gates).map(|_| layer(width, hidden)).collect()),
            gates * hidden * width,
        ),
        ("down", linear(vec![layer(hidden, width)]), hidden * width),
        // As one program, with what is between: none of the sums below.
        (
            "feed-forward whole, in f32",
            whole(false),
            (gates + 1) * hidden * width,
        ),
        (
            "feed-forward whole, in fixed point",
            whole(true),
            (gates + 1) * hidden * width,
        ),
    ];
    println!(
        "{name}, {rows} rows, one block, {threads} threads; packets counted by qemu, times of chips predicted from them"
    );
    let (mut of_block, mut products_of_block, mut weights_of_block) = ([0.0; 3], 0.0, 0);
    // One behind the other, of a feed-forward: its products alone, and whole.
    let mut of_feed_forward = [0.0; 3];
    for (index, (name, subgraph, weights)) in subgraphs.iter().enumerate() {
        let found = run(&hexagon, subgraph, rows)?;
        let [packets, longest, seconds] = found;
        let products = (weights * rows) as f64;
        println!(
            "{name}: {:.2} million packets, {:.0} multiply-adds a packet; {:.2} million one behind the other; emulated \
             {seconds:.2} s, {:.2} G/s",
            packets / 1e6,
            products / packets,
            longest / 1e6,
            products / seconds / 1e9
        );
        match index {
            2 | 3 => of_feed_forward[0] += longest,
            4 | 5 => of_feed_forward[index - 3] = longest,
            _ => {}
        }
        if index < 4 {
            of_block
                .iter_mut()
                .zip(found)
                .for_each(|(sum, number)| *sum += number);
            products_of_block += products;
            weights_of_block += weights;
        }
    }
    let blocks = description.blocks.len() as f64;
    let [packets, longest, emulated] = of_block.map(|number| blocks * number);
    let products = blocks * products_of_block;
    println!(
        "products of all {blocks} blocks: {:.0} million packets, {:.0} multiply-adds a packet; {:.0} million one behind the other, \
         {:.2} times fewer; emulated {emulated:.1} s",
        packets / 1e6,
        products / packets,
        longest / 1e6,
        packets / longest
    );
    for Chip {
        name,
        clock,
        cycles,
        ..
    } in CHIPS.into_iter().filter(|chip| chip.contexts >= threads)
    {
        let [computing, alone] = [longest, packets].map(|packets| packets * cycles / (clock * 1e9));
        let reading = blocks * (weights_of_block * rows.div_ceil(PASS_ROWS)) as f64 / BANDWIDTH;
        println!(
            "{name}: predicted {:.0} ms of packets, {:.2} T multiply-adds/s, with {threads} threads on as many vector contexts at \
             {clock} GHz and {cycles} cycles a packet (one thread: {:.0} ms), {:.0} ms of reading weights at {:.0} GB/s beside \
             them",
            1e3 * computing,
            products / computing / 1e12,
            1e3 * alone,
            1e3 * reading,
            BANDWIDTH / 1e9
        );
    }
    for Chip {
        name,
        clock,
        cycles,
        ..
    } in CHIPS.into_iter().filter(|chip| chip.contexts >= threads)
    {
        let milliseconds = |packets: f64| 1e3 * blocks * packets * cycles / (clock * 1e9);
        let [products, float, fixed] = of_feed_forward.map(milliseconds);
        println!(
            "{name}: predicted feed-forwards of all blocks, whole in f32 {float:.0} ms, whole in fixed point {fixed:.0} ms; products \
             alone {products:.0} ms"
        );
    }
    let ([in_features, out_features, rows], published) = PUBLISHED;
    let [_, longest, _] = run(
        &hexagon,
        &linear(vec![layer(out_features, in_features)]),
        rows,
    )?;
    let (
        products,
        Chip {
            name: chip,
            clock,
            cycles,
            ..
        },
    ) = ((in_features * out_features * rows) as f64, V79);
    let predicted = longest * cycles / (clock * 1e9);
    println!(
        "{out_features} channels of {in_features} features, {rows} rows: {:.2} million packets one behind the other, predicted {:.2} ms \
         on {chip}, {:.2} T multiply-adds/s; llama.cpp's HVX, measured: {:.2} ms, {:.2} T/s",
        longest / 1e6,
        1e3 * predicted,
        products / predicted / 1e12,
        1e3 * published,
        products / published / 1e12
    );
    Ok(())
}
