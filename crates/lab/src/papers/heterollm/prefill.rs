//! Prefill: figures 13, 14 and 15.

use super::{
    INTERNLM, LENGTHS, LLAMA_3B, LLAMA_7B, LLAMA_8B, NOT_SIMULATED, Phone, cited, held_out, mean,
    paper, repeated, seen,
};
use crate::heterollm::Mode;
use crate::papers::quotes::Quote;
use crate::papers::{Kind, Section, more_than, one, value};
use triad_plan::partition::profile::Waiting;

pub(super) fn figure_13(phone: &Phone) -> Section {
    let speed = |model, tokens, mode| tokens as f64 / phone.seconds(model, tokens, mode);
    let times = |model, tokens, mode, other| {
        phone.seconds(model, tokens, other) / phone.seconds(model, tokens, mode)
    };
    let (gpu, layer, tensor) = (Mode::GpuOnly, Mode::HeteroLayer, Mode::HeteroTensor);
    let llama = |tokens| speed(LLAMA_8B, tokens, tensor);
    let mut values = vec![
        seen(
            "Llama-8B, Hetero-tensor at 256 tokens, tokens/s (§5.4)",
            one(paper::TENSOR_SPEED.value),
            llama(256),
        ),
        held_out(
            "Llama-8B, Hetero-tensor at its fastest, tokens/s (§5.2.1)",
            one(paper::TENSOR_FASTEST.value),
            LENGTHS.map(llama).into_iter().fold(0.0, f64::max),
        ),
        held_out(
            "InternLM-1.8B, Hetero-tensor at 256 tokens, tokens/s (§5.2.1)",
            one(paper::INTERNLM_SPEED.value),
            speed(INTERNLM, 256, tensor),
        ),
        held_out(
            "InternLM-1.8B, Hetero-tensor at its fastest, tokens/s (§1)",
            more_than(paper::SURPASSED.value),
            LENGTHS
                .map(|tokens| speed(INTERNLM, tokens, tensor))
                .into_iter()
                .fold(0.0, f64::max),
        ),
        held_out(
            "Llama-8B, Hetero-tensor over Hetero-layer, mean of lengths (§5.2.1)",
            one(paper::TENSOR_OVER_LAYER_MEAN.more()),
            mean(LENGTHS.map(|tokens| times(LLAMA_8B, tokens, tensor, layer))),
        ),
        held_out(
            "the same at 32 tokens (§5.2.1)",
            one(paper::TENSOR_OVER_LAYER_AT_32.more()),
            times(LLAMA_8B, 32, tensor, layer),
        ),
        held_out(
            "the same at 1024 tokens (§5.2.1: 34.5 by 25.12)",
            one(paper::LLAMA_CPP_TENSOR_AT_1024.value / paper::LAYER_AT_1024_TO.value),
            times(LLAMA_8B, 1024, tensor, layer),
        ),
        held_out(
            "Llama-8B, Hetero-layer over GPU only at 64 tokens (§5.2.1)",
            (paper::LAYER_AT_64_FROM.value, paper::LAYER_AT_64_TO.value),
            times(LLAMA_8B, 64, layer, gpu),
        ),
        held_out(
            "the same at 1024 tokens (§5.2.1)",
            (
                paper::LAYER_AT_1024_FROM.value,
                paper::LAYER_AT_1024_TO.value,
            ),
            times(LLAMA_8B, 1024, layer, gpu),
        ),
        held_out(
            "Llama-3B, Hetero-tensor over GPU only, mean of lengths (§5.2.1)",
            one(paper::LLAMA_3B_TENSOR_OVER_GPU.value),
            mean(LENGTHS.map(|tokens| times(LLAMA_3B, tokens, tensor, gpu))),
        ),
    ];
    for (name, model) in [
        ("Llama-8B", LLAMA_8B),
        ("Llama-7B", LLAMA_7B),
        ("Llama-3B", LLAMA_3B),
        ("InternLM-1.8B", INTERNLM),
    ] {
        for tokens in LENGTHS {
            for (mode, label) in [
                (gpu, "GPU only"),
                (layer, "Hetero-layer"),
                (tensor, "Hetero-tensor"),
            ] {
                let what = format!("{name}, {label}, {tokens} tokens, tokens/s");
                values.push(value(
                    what,
                    None,
                    speed(model, tokens, mode),
                    Kind::Simulated,
                ));
            }
        }
    }
    Section::new(
        "heterollm/figure-13",
        "Prefill by prompt length. For Hetero-layer over PPL (GPU only) at 64 and 1024 tokens, the text states the \
         range over four engines. Hetero-layer was fitted to the speed of Hetero-tensor at 256 tokens divided by \
         1.244. So the prediction here is that factor of 1.244 (figure 19).",
        values,
    )
    .citing(
        NOT_SIMULATED,
        vec![
            cited("Llama-8B, 256 tokens, Hetero-layer over MNN-OpenCL", &paper::LAYER_OVER_MNN),
            cited("Llama-8B, 256 tokens, Hetero-layer over llama.cpp", &paper::LAYER_OVER_LLAMA_CPP),
            cited("Llama-8B, 256 tokens, Hetero-layer over MLC", &paper::LAYER_OVER_MLC),
            cited("Llama-8B, 1024 tokens, Hetero-tensor over llama.cpp", &paper::LLAMA_CPP_TENSOR_AT_1024),
            cited("Llama-8B, 1024 tokens, Hetero-tensor over MLC", &paper::MLC_TENSOR_AT_1024),
            cited("Llama-8B, 1024 tokens, Hetero-tensor over MNN-OpenCL", &paper::MNN_TENSOR_AT_1024),
            cited("Llama-7B, Hetero-tensor over MNN-OpenCL", &paper::LLAMA_7B_OVER_MNN),
            cited("Llama-7B, Hetero-tensor over MLC", &paper::LLAMA_7B_OVER_MLC),
            cited("Llama-3B, Hetero-tensor over MNN-OpenCL", &paper::LLAMA_3B_OVER_MNN),
            cited("a model of 1.8B, 256 tokens, MLLM-NPU, tokens/s", &paper::MLLM_NPU_SPEED),
        ],
    )
}

pub(super) fn figure_14(phone: &Phone) -> Section {
    let seconds = |tokens, mode| phone.seconds(LLAMA_8B, tokens, mode);
    let times = |tokens, mode| seconds(tokens, mode) / seconds(tokens, Mode::HeteroTensor);
    let prepared = phone.prefill(LLAMA_8B, 135, Mode::OnlinePrepare, Waiting::Fast);
    let padding = times(525, Mode::Padding);
    let mut values = vec![
        seen(
            "525 tokens, Online-prepare over Hetero-tensor",
            one(paper::ONLINE_AT_525.value),
            times(525, Mode::OnlinePrepare),
        ),
        held_out(
            "525 tokens, Padding over Hetero-tensor (§5.2.2)",
            one(paper::PADDING_AT_525.value),
            padding,
        ),
        repeated("the same (§1)", one(paper::PADDING_MOST.value), padding),
        held_out(
            "525 tokens, Pipe over Hetero-tensor",
            one(paper::PIPE_AT_525.value),
            times(525, Mode::Pipe),
        ),
        held_out(
            "Padding over Hetero-tensor, mean of 135 and 525 tokens (just above a standard length)",
            one(paper::PADDING_MEAN.value),
            mean([135, 525].map(|tokens| times(tokens, Mode::Padding))),
        ),
        seen(
            "135 tokens, share of graphs in Online-prepare",
            one(1.0 - paper::GRAPHS_SHARE_AT_135.less()),
            prepared.prepare_seconds / prepared.seconds(),
        ),
    ];
    // Hetero-tensor takes less time than Pipe by this share.
    let pipe = (
        1.0 / paper::BELOW_PIPE_FROM.less(),
        1.0 / paper::BELOW_PIPE_TO.less(),
    );
    for tokens in [135, 300, 600, 1000] {
        values.push(held_out(
            format!("{tokens} tokens, Pipe over Hetero-tensor"),
            pipe,
            times(tokens, Mode::Pipe),
        ));
    }
    let modes = [
        (Mode::OnlinePrepare, "Online-prepare"),
        (Mode::Padding, "Padding"),
        (Mode::Pipe, "Pipe"),
        (Mode::HeteroTensor, "Hetero-tensor"),
    ];
    for tokens in [135, 300, 525, 600, 1000] {
        for (mode, label) in modes {
            values.push(value(
                format!("{tokens} tokens, {label}, s"),
                None,
                seconds(tokens, mode),
                Kind::Simulated,
            ));
        }
    }
    Section::new(
        "heterollm/figure-14",
        "Llama-8B with prompts of non-standard lengths (§5.2.2), relative to Hetero-tensor's latency. Padding is 2.21 \
         times in §5.2.2 and 2.12 in §1: both are listed, and the first one counts. Pipe takes 1.152 to 1.431 times \
         as long over all lengths. Times of graphs are fitted (figure 9), so that values that depend on them are \
         marked as seen.",
        values,
    )
}

pub(super) fn figure_15(phone: &Phone) -> Section {
    let seconds =
        |model, tokens, mode, waiting| phone.prefill(model, tokens, mode, waiting).seconds();
    let times = |model, mode| {
        let of = |tokens| {
            seconds(model, tokens, mode, Waiting::Blocking)
                / seconds(model, tokens, mode, Waiting::Fast)
        };
        mean(LENGTHS.map(of))
    };
    let (layer, tensor) = (Mode::HeteroLayer, Mode::HeteroTensor);
    let blocking = 256.0 / seconds(LLAMA_8B, 256, tensor, Waiting::Blocking);
    let mean_of = |what: &str, quote: &Quote, model, mode| {
        held_out(
            format!("{what}, with over without, mean of lengths"),
            one(quote.more()),
            times(model, mode),
        )
    };
    Section::new(
        "heterollm/figure-15",
        "Prefill with and without fast synchronization, with the same plan (§5.4). Without it, a join of GPU and NPU \
         costs a copy in each direction (§3.1).",
        vec![
            held_out(
                "Llama-8B, Hetero-tensor without it at 256 tokens, tokens/s",
                one(paper::BLOCKING_TENSOR_SPEED.value),
                blocking,
            ),
            mean_of(
                "Llama-8B, Hetero-layer",
                &paper::FAST_LLAMA_8B_LAYER,
                LLAMA_8B,
                layer,
            ),
            mean_of(
                "Llama-8B, Hetero-tensor",
                &paper::FAST_LLAMA_8B_TENSOR,
                LLAMA_8B,
                tensor,
            ),
            mean_of(
                "Llama-7B, Hetero-layer",
                &paper::FAST_LLAMA_7B_LAYER,
                LLAMA_7B,
                layer,
            ),
            mean_of(
                "Llama-7B, Hetero-tensor",
                &paper::FAST_LLAMA_7B_TENSOR,
                LLAMA_7B,
                tensor,
            ),
            mean_of(
                "InternLM-1.8B, Hetero-layer",
                &paper::FAST_INTERNLM_LAYER,
                INTERNLM,
                layer,
            ),
            mean_of(
                "InternLM-1.8B, Hetero-tensor",
                &paper::FAST_INTERNLM_TENSOR,
                INTERNLM,
                tensor,
            ),
        ],
    )
}
