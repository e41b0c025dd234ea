//! Predicts how long a Hexagon NPU takes for the INT8 subgraphs of a prompt on HVX, its vector unit, from the
//! instruction packets that the device program executes for them under qemu:
//! `TRIAD_HEXAGON=$(hexagon/build) cargo run --release -p triad-processors --features hexagon --example hexagon_cycles`
//!
//! The third argument is the number of compute threads (default: 4, on any machine). The prediction covers chips with
//! at least as many vector contexts.
//!
//! These are predictions, not measurements: qemu counts packets exactly, but models neither stalls nor memory. A thread
//! with a vector context is assumed to take a fixed number of cycles per packet. The time follows from the packets on
//! the critical path: those that one thread executes alone, and in parallel sections those of the busiest thread.
//! Waking up and waiting are not included. Weights are read from memory once for each pass of 64 rows, unless they stay
//! in L2 or VTCM. Clocks and contexts are assumptions, and printed.

use std::sync::Arc;
use std::time::Instant;

use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::int8::{Int8Weight, QuantizedRows, packed_len};
use triad_model::family::shape;
use triad_processors::hexagon::{Between, Hexagon, HexagonOptions, Unit, program_from_environment};
use triad_processors::{Device, DeviceSubgraph, FeedForward, Layer, Linear};

/// A chip. All values are assumptions, except those of v79: its clock and cycles are those of [`PUBLISHED`], and its
/// contexts those that llama.cpp uses (<https://github.com/ggml-org/llama.cpp/pull/26373>).
struct Chip {
    name: &'static str,
    /// Clock of its NPU in GHz.
    clock: f64,
    /// Cycles per packet of one thread.
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
/// Assumed memory bandwidth in bytes per second.
const BANDWIDTH: f64 = 60e9;
/// Features, channels and rows of an INT8 matmul, and the seconds that llama.cpp's HVX takes for it on a chip that its
/// reporter calls an 8 Elite: <https://github.com/ggml-org/llama.cpp/issues/18139>. The same lines have 10.5 million
/// cycles and 5.12 million packets in 4.96 ms.
const PUBLISHED: ([usize; 3], f64) = ([4096, 4096, 64], 4.92e-3);
/// Rows of one pass through a program, equal to `PASS_ROWS` in hexagon/product.h.
const PASS_ROWS: usize = 64;

/// A layer of zeros with a bias. The number of packets does not depend on values, unless the inputs of the activation
/// are zero.
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

/// Returns the packets of a run on `rows` rows in total and on the critical path, and the emulator's seconds.
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
        unit: Some(Unit::Hvx),
        ..options
    };
    let hexagon = Hexagon::open(&options)?;
    let threads = hexagon.threads();
    let block = &description.blocks[0];
    let (hidden, width, head) = (
        description.hidden,
        block.feed_forward.width,
        block.attention().unwrap().head_dim,
    );
    let (query, key) = (
        block.attention().unwrap().heads * head,
        block.attention().unwrap().kv_heads * head,
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
        // The whole feed-forward as one program, including the part between the matmuls. The sums below don't include
        // it.
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
        "{name}, {rows} rows, one block, {threads} threads; packets are counted by qemu, and times of chips predicted from them"
    );
    let (mut of_block, mut products_of_block, mut weights_of_block) = ([0.0; 3], 0.0, 0);
    // Packets on the critical path of a feed-forward: only its matmuls, whole in f32, whole in fixed point.
    let mut of_feed_forward = [0.0; 3];
    for (index, (name, subgraph, weights)) in subgraphs.iter().enumerate() {
        let found = run(&hexagon, subgraph, rows)?;
        let [packets, longest, seconds] = found;
        let products = (weights * rows) as f64;
        println!(
            "{name}: {:.2} million packets, {:.0} multiply-adds per packet; {:.2} million on the critical path; emulated \
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
        "matmuls of all {blocks} blocks: {:.0} million packets, {:.0} multiply-adds per packet; {:.0} million on the critical path, \
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
             {clock} GHz and {cycles} cycles per packet (one thread: {:.0} ms), {:.0} ms of reading weights at {:.0} GB/s in \
             parallel",
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
            "{name}: predicted feed-forwards of all blocks, whole in f32 {float:.0} ms, whole in fixed point {fixed:.0} ms; matmuls \
             only {products:.0} ms"
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
        "{out_features} channels of {in_features} features, {rows} rows: {:.2} million packets on the critical path, predicted {:.2} ms \
         on {chip}, {:.2} T multiply-adds/s; llama.cpp's HVX, measured: {:.2} ms, {:.2} T/s",
        longest / 1e6,
        1e3 * predicted,
        products / predicted / 1e12,
        1e3 * published,
        products / published / 1e12
    );
    Ok(())
}
