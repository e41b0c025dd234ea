//! The hardware: figures 4, 5, 6 and 9, and the values that the profile was fitted to.

use triad_model::family;

use super::{GAME, LLAMA_8B, Phone, paper, seen};
use crate::heterollm::Mode;
use crate::heterollm::rendering::Submission;
use crate::papers::{Kind, Section, one, value};
use triad_plan::partition::products;
use triad_plan::partition::profile::Waiting;

pub(super) fn fit(phone: &Phone) -> Section {
    let of = |mode| phone.prefill(LLAMA_8B, 256, mode, Waiting::Fast);
    let (gpu, layer) = (of(Mode::GpuOnly), of(Mode::HeteroLayer));
    let during = GAME.during(&layer, Submission::OneByOne);
    let fitted = |what: &str, paper: f64, ours: f64| value(what, one(paper), ours, Kind::Fitted);
    Section::new(
        "heterollm/fit",
        "Llama-8B at 256 tokens, GPU only and Hetero-layer: all values that the profile's parameters were fitted to. \
         Hetero-layer is 236.92 tokens/s (§5.4) divided by 1.244 (§5.6); GPU only is that divided by 2.99 (§5.2.1).",
        vec![
            fitted(
                "GPU only, tokens/s",
                paper::gpu_only_speed(),
                256.0 / gpu.seconds(),
            ),
            fitted(
                "Hetero-layer, tokens/s",
                paper::layer_speed(),
                256.0 / layer.seconds(),
            ),
            fitted("GPU only, W (§5.6)", paper::gpu_only_watts(), gpu.watts()),
            fitted(
                "Hetero-layer, W (§5.6)",
                paper::LAYER_WATTS.value,
                layer.watts(),
            ),
            fitted(
                "Hetero-layer with a game, relative to without (§5.5)",
                paper::LAYER_LOSS_WITH_GAME.less(),
                layer.seconds() / during.seconds,
            ),
        ],
    )
}

pub(super) fn figure_4(phone: &Phone) -> Section {
    let npu = |rows| npu_microseconds(phone, 4096, rows, 4096);
    let mut values = vec![value(
        "32 rows, times 1 row (§3.2)",
        one(1.0),
        npu(32) / npu(1),
        Kind::Fitted,
    )];
    let rows = [1, 32, 33, 64, 65, 256, 257, 512];
    values.extend(
        rows.map(|rows| value(format!("{rows} rows, µs"), None, npu(rows), Kind::Simulated)),
    );
    Section::new(
        "heterollm/figure-4",
        "Stage performance: [4096, 4096] × [4096, rows] on the NPU. The text states no times, only that sizes up to \
         the side of the array take the same time; the profile has that side.",
        values,
    )
}

fn npu_microseconds(phone: &Phone, streamed: usize, kept: usize, depth: usize) -> f64 {
    let w4a16 = phone.0.w4a16.as_ref().expect("a profile with W4A16");
    1e6 * w4a16.npu_order(streamed, kept, depth, false)
}

pub(super) fn figure_5(phone: &Phone) -> Section {
    let order = |kept| {
        npu_microseconds(phone, kept, 14_336, 4096) / npu_microseconds(phone, 14_336, kept, 4096)
    };
    let of_length = |kept: usize| {
        let what = format!("[{kept}, 4096] × [4096, 14336], times the reverse");
        if kept == 256 {
            seen(what, one(paper::ORDER.value), order(kept))
        } else {
            value(what, None, order(kept), Kind::Simulated)
        }
    };
    let mut values: Vec<_> = [64, 256, 1024].map(of_length).into();
    let wide =
        npu_microseconds(phone, 4096, 256, 14_336) / npu_microseconds(phone, 14_336, 256, 4096);
    values.push(value(
        "[4096, 14336] × [14336, 256], times [14336, 4096] × [4096, 256]",
        None,
        wide,
        Kind::Simulated,
    ));
    Section::new(
        "heterollm/figure-5",
        "Order- and shape-sensitive performance of the NPU. The text does not state the K of its factor of six: it is \
         compared at 256, as in the fit. That the cost depends on the order was taken from this figure.",
        values,
    )
}

pub(super) fn figure_6(phone: &Phone) -> Section {
    let gigabytes = |mode| {
        let run = phone.decode(LLAMA_8B, mode, Waiting::Fast);
        run.bytes / run.seconds() / 1e9
    };
    let w4a16 = phone.0.w4a16.as_ref().expect("a profile with W4A16");
    let one_processor = (paper::BANDWIDTH_FROM.value, paper::BANDWIDTH_TO.value);
    let of_profile = |what, paper, ours| value(what, paper, ours, Kind::Fitted);
    Section::new(
        "heterollm/figure-6",
        "Memory bandwidth in GB/s. The profile has the paper's values. A simulated token of Llama-8B reaches less, \
         since it also includes work other than reading, and nearly follows from them.",
        vec![
            of_profile(
                "GPU, profile",
                one_processor,
                w4a16.gpu.gigabytes_per_second,
            ),
            of_profile(
                "NPU, profile",
                one_processor,
                w4a16.npu.gigabytes_per_second,
            ),
            of_profile(
                "both, profile (§5.3)",
                one(paper::BANDWIDTH_TOGETHER.value),
                w4a16.gigabytes_per_second,
            ),
            value(
                "GPU only, decode (§5.3)",
                one(paper::BANDWIDTH_GPU.value),
                gigabytes(Mode::GpuOnly),
                Kind::Seen,
            ),
            value(
                "Hetero-tensor, decode (§5.3)",
                one(paper::BANDWIDTH_TOGETHER.value),
                gigabytes(Mode::HeteroTensor),
                Kind::Seen,
            ),
        ],
    )
}

pub(super) fn figure_9(phone: &Phone) -> Section {
    let graphs = |tokens| {
        1e3 * phone
            .prefill(LLAMA_8B, tokens, Mode::OnlinePrepare, Waiting::Fast)
            .prepare_seconds
    };
    let w4a16 = phone.0.w4a16.as_ref().expect("a profile with W4A16");
    let mut values = vec![
        value(
            "all of Llama-8B, 135 tokens, ms (§5.2.2)",
            one(paper::GRAPHS_AT_135.value),
            graphs(135),
            Kind::Fitted,
        ),
        value(
            "all of Llama-8B, 1000 tokens, ms (§5.2.2)",
            one(paper::GRAPHS_AT_1000.value),
            graphs(1000),
            Kind::Fitted,
        ),
    ];
    let description = family::shape(LLAMA_8B).expect("a shape of ours");
    for (role, shape) in
        products(&description.blocks[0], description.hidden, 256).expect("a few rows")
    {
        let seconds = w4a16.npu_graph(shape.rows(), shape.columns(), shape.depth());
        values.push(value(
            format!("{}, 256 tokens, ms", role.name()),
            None,
            1e3 * seconds,
            Kind::Simulated,
        ));
    }
    Section::new(
        "heterollm/figure-9",
        "Time to build graphs of the NPU. The text states two totals, which determine a line.",
        values,
    )
}
