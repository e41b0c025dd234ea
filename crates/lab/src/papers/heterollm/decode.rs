//! Decode: figures 16 and 17.

use super::{INTERNLM, LLAMA_3B, LLAMA_7B, LLAMA_8B, NOT_SIMULATED, Phone, cited, paper};
use crate::heterollm::Mode;
use crate::papers::quotes::Quote;
use crate::papers::{Kind, Section, one, value};
use triad_plan::partition::profile::Waiting;

pub(super) fn figure_16(phone: &Phone) -> Section {
    let speed = |model, mode| 1.0 / phone.decode(model, mode, Waiting::Fast).seconds();
    let cases = [
        (
            "Llama-8B",
            LLAMA_8B,
            Some((paper::DECODE_LLAMA_8B, paper::DECODE_LLAMA_8B_OVER_GPU)),
        ),
        ("Llama-7B", LLAMA_7B, None),
        (
            "Llama-3B",
            LLAMA_3B,
            Some((paper::DECODE_LLAMA_3B, paper::DECODE_LLAMA_3B_OVER_GPU)),
        ),
        (
            "InternLM-1.8B",
            INTERNLM,
            Some((paper::DECODE_INTERNLM, paper::DECODE_INTERNLM_OVER_GPU)),
        ),
    ];
    let mut values = Vec::new();
    for (name, model, quotes) in cases {
        let (gpu, tensor) = (
            speed(model, Mode::GpuOnly),
            speed(model, Mode::HeteroTensor),
        );
        let kind = match quotes {
            None => Kind::Simulated,
            // The bytes per second of the same run nearly follow from the profile's bandwidths: figure 6.
            Some(_) if model == LLAMA_8B => Kind::Seen,
            Some(_) => Kind::HeldOut,
        };
        let (of_speed, over) = (
            quotes.map(|(speed, _)| one(speed.value)),
            quotes.map(|(_, over)| one(over.more())),
        );
        values.push(value(
            format!("{name}, Hetero-tensor, tokens/s"),
            of_speed,
            tensor,
            kind,
        ));
        values.push(value(
            format!("{name}, Hetero-tensor over GPU only"),
            over,
            tensor / gpu,
            kind,
        ));
        values.push(value(
            format!("{name}, GPU only, tokens/s"),
            None,
            gpu,
            Kind::Simulated,
        ));
    }
    Section::new(
        "heterollm/figure-16",
        "Decode after 256 tokens. GPU only is PPL in the paper. Hetero-layer keeps all matmuls on the GPU, as in the \
         paper. The speed of Llama-8B corresponds to the bandwidth in figure 6, and nearly follows from the profile's \
         bandwidths.",
        values,
    )
    .citing(
        NOT_SIMULATED,
        vec![
            cited("Llama-8B, Hetero-tensor over MNN-OpenCL", &paper::DECODE_OVER_MNN),
            cited("Llama-8B, Hetero-tensor over llama.cpp", &paper::DECODE_OVER_LLAMA_CPP),
            cited("Llama-8B, Hetero-tensor over MLC", &paper::DECODE_OVER_MLC),
            cited("InternLM-1.8B, Hetero-tensor over MNN-OpenCL", &paper::DECODE_INTERNLM_OVER_MNN),
            cited("InternLM-1.8B, Hetero-tensor over MLC", &paper::DECODE_INTERNLM_OVER_MLC),
        ],
    )
}

pub(super) fn figure_17(phone: &Phone) -> Section {
    let times = |model| {
        let seconds = |waiting| phone.decode(model, Mode::HeteroTensor, waiting).seconds();
        seconds(Waiting::Blocking) / seconds(Waiting::Fast)
    };
    let of = |name: &str, model, quote: Quote| {
        value(
            format!("{name}, with over without"),
            one(quote.value),
            times(model),
            Kind::HeldOut,
        )
    };
    Section::new(
        "heterollm/figure-17",
        "Decode by Hetero-tensor with and without fast synchronization, with the same plan (§5.4).",
        vec![
            of("Llama-8B", LLAMA_8B, paper::FAST_DECODE_LLAMA_8B),
            of("Llama-7B", LLAMA_7B, paper::FAST_DECODE_OTHERS),
            of("Llama-3B", LLAMA_3B, paper::FAST_DECODE_OTHERS),
            of("InternLM-1.8B", INTERNLM, paper::FAST_DECODE_OTHERS),
        ],
    )
}
