//! The hardware: single matmuls (§2.2, §2.3), and figure 8.

use triad_model::description::LinearShape;

use super::{Phone, QWEN, cited, model, paper, range};
use crate::papers::{Kind, Section, one, value};
use triad_plan::device::cost::NpuUse;
use triad_plan::graph::{Graph, Role};

/// Returns the linear layers of a layer of `name` in a subgraph of `role`.
fn linears(name: &str, role: Role) -> Vec<LinearShape> {
    let description = model(name);
    let all = description.blocks[0].linears(description.hidden);
    all.into_iter()
        .filter(|shape| role.has(shape.linear))
        .collect()
}

pub(super) fn micro_benchmarks(phone: &Phone) -> Section {
    let device = &phone.0;
    let mut values = Vec::new();
    for (name, shape) in [
        (QWEN, (2048, 2048)),
        (QWEN, (2048, 5504)),
        ("llama-2-7b", (4096, 4096)),
        ("llama-2-7b", (4096, 11_008)),
    ] {
        for rows in [64, 256] {
            let (inputs, outputs) = shape;
            let faster = device.cpu.int8_product(rows, inputs, outputs)
                / device.npu_product(rows, inputs, outputs);
            let what = format!(
                "INT8, NPU over CPU, [{rows}, {inputs}] × [{inputs}, {outputs}] of {name}, times (§2.2)"
            );
            values.push(value(
                what,
                range(&paper::INT8_OVER_CPU_FROM, &paper::INT8_OVER_CPU_TO),
                faster,
                Kind::HeldOut,
            ));
        }
    }
    let graph = Graph::new(&model(QWEN), 256, 256);
    let products = |how: NpuUse| -> f64 {
        let of_block = graph.subgraphs()[..6]
            .iter()
            .filter(|subgraph| !linears(QWEN, subgraph.role).is_empty());
        of_block
            .map(|subgraph| device.npu_subgraph(subgraph, &linears(QWEN, subgraph.role), 256, how))
            .sum()
    };
    let best = NpuUse {
        equivalent_shapes: true,
        per_tensor: true,
    };
    let per_group = products(NpuUse {
        per_tensor: false,
        ..best
    }) / products(best);
    values.push(value(
        "a scale for each group over one for a tensor, a block of qwen1.5-1.8b, times (§2.3)",
        range(&paper::PER_GROUP_FROM, &paper::PER_GROUP_TO),
        per_group,
        Kind::Fitted,
    ));
    let gemma = model("gemma-2b");
    let weights: usize = Graph::new(&gemma, 256, 256)
        .subgraphs()
        .iter()
        .map(|subgraph| subgraph.weight_bytes)
        .sum();
    for (what, quote, paper, of_gigabyte) in [
        (
            "build",
            &paper::BUILD_GEMMA,
            1e-3 * paper::BUILD_GEMMA.value,
            device.npu.build_milliseconds_per_gigabyte,
        ),
        (
            "optimize",
            &paper::OPTIMIZE_GEMMA,
            paper::OPTIMIZE_GEMMA.value,
            device.npu.optimize_milliseconds_per_gigabyte,
        ),
    ] {
        let seconds = 1e-3 * of_gigabyte * weights as f64 / 1e9;
        let what = format!("to {what} the graph of gemma-2b, s (§{})", quote.section);
        values.push(value(what, one(paper), seconds, Kind::Fitted));
    }
    values.push(value(
        "rows in one line over rows in a square, of the profile, times (§4)",
        one(paper::EQUIVALENT_SHAPES.value),
        device.npu.flat_rows_slowdown,
        Kind::Fitted,
    ));
    Section::new(
        "micro-benchmarks",
        "Single matmuls. The text does not state the measured sizes: these are matmuls of the paper's models, \
         including the launch of a subgraph each. The slowdown by groups is a parameter of the profile, the geometric \
         mean of the paper's range.",
        values,
    )
    .citing(
        "llm.npu runs no float on the NPU, and the profile has no rate for it; HeteroLLM measured up to 10 TFLOPS in \
         FP16 on the same chip (its §1), so that the factor of 159 is not due to the hardware",
        vec![cited(
            "FP16 on the NPU below INT8 on the CPU, at most, times",
            &paper::FP16_BELOW_CPU,
            &paper::FP16_BELOW_CPU,
        )],
    )
}

pub(super) fn figure_8(phone: &Phone) -> Section {
    let device = &phone.0;
    let (rate, bandwidth) = (
        1e12 * device.npu.int8_tera_operations,
        1e9 * device.npu.gigabytes_per_second,
    );
    let mut values = vec![value(
        "rows that stream as long as weights load (chosen chunk)",
        one(paper::CHUNK.value),
        rate / (2.0 * bandwidth),
        Kind::Seen,
    )];
    for (name, role, label) in [
        (QWEN, Role::QueryKeyValue, "QKV"),
        (QWEN, Role::FeedForward, "FFN"),
        ("gemma-2b", Role::QueryKeyValue, "QKV"),
        ("gemma-2b", Role::FeedForward, "FFN"),
    ] {
        let linears = linears(name, role);
        let weights: usize = linears.iter().map(LinearShape::parameters).sum();
        let loading = weights as f64 / bandwidth;
        for chunk in [32, 64, 128, 256, 512, 1024] {
            let matmul = |shape: &LinearShape| {
                device.npu_matmul(chunk, shape.in_features, shape.out_features, true)
            };
            let products: f64 = linears.iter().map(matmul).sum();
            let mut push = |how: &str, seconds: f64| {
                let what = format!("{name} {label}, chunks of {chunk}{how}, µs per token");
                values.push(value(
                    what,
                    None,
                    1e6 * seconds / chunk as f64,
                    Kind::Simulated,
                ));
            };
            push("", products + device.npu.launch_milliseconds * 1e-3);
            if (name, role) == (QWEN, Role::FeedForward) {
                push(" without the launch", products);
                push(
                    " if weights load while rows stream",
                    loading.max(products - loading),
                );
            }
        }
    }
    Section::new(
        "figure-8",
        "Per-token latency of one layer's linear layers by chunk length. The text states no numbers, except that the \
         NPU is well utilized at 256. At HeteroLLM's rates (its §1, table 1, §3.3), streaming 250 rows takes as long \
         as loading the weights, for any matmul: that explains a knee there if an NPU loads weights while rows \
         stream. In HeteroLLM weights are preloaded (its §3.2), as in the profile, which makes a smooth curve. The \
         launch of a subgraph, which is fitted to whole prefills, bends it at longer chunks.",
        values,
    )
}
