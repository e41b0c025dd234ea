//! Prefill: figures 13, 14 and 15.

use super::paper::{ENGINES, MODELS, engine_seconds};
use super::{Phone, QWEN, cited, ends, in_order, options, paper};
use crate::papers::heterollm;
use crate::papers::{Kind, Section, more_than, one, value};
use triad_plan::device::DeviceProfile;
use triad_plan::prefill::{FloatsOn, Options};

pub(super) fn figure_13(phone: &Phone) -> Section {
    let bubbles = |prompt, options: &Options| {
        let outcome = phone.run(QWEN, prompt, options);
        100.0 * outcome.timeline.bubble_rate(outcome.npu)
    };
    let of_length = |prompt: usize| {
        let what = format!("in order, {prompt} tokens, %");
        value(
            what,
            one(paper::BUBBLES.value),
            bubbles(prompt, &in_order()),
            Kind::HeldOut,
        )
    };
    let mut values: Vec<_> = [512, 1024, 2048].map(of_length).into();
    values.push(value(
        "equation 5, 1024 tokens, %",
        None,
        bubbles(1024, &options()),
        Kind::Simulated,
    ));
    Section::new(
        "figure-13",
        "§3.4, bubbles of the NPU, Qwen1.5-1.8B. The paper does not state the number of tokens: all three are \
         compared with its one number.",
        values,
    )
}

/// Returns the Redmi K60 Pro.
fn redmi() -> Phone {
    Phone(DeviceProfile::builtin("snapdragon-8gen2").expect("a profile of ours"))
}

/// Returns options that run a whole prompt on the CPU, which stands for MNN: the profile's INT8 rate was fitted to it.
fn cpu_alone() -> Options {
    Options {
        window: Some(0),
        floats_on: FloatsOn::Cpu,
        ..options()
    }
}

pub(super) fn figure_14(phone: &Phone) -> Section {
    let short = phone.run(QWEN, 256, &options());
    let npu = paper::NPU_AT_256.value;
    let mut values = vec![
        value(
            "NPU of qwen1.5-1.8b at 256 tokens, ms (§3.4)",
            one(npu),
            1e3 * short.timeline.busy(short.npu),
            Kind::Fitted,
        ),
        value(
            "CPU of the same, ms (§3.4: half)",
            one(npu / 2.0),
            1e3 * short.timeline.busy(short.float),
            Kind::Fitted,
        ),
    ];
    for name in MODELS {
        for prompt in [64, 256, 1024] {
            let (paper_value, kind) = match (name, prompt) {
                (QWEN, 1024) => (Some(more_than(paper::SPEED.value)), Kind::Fitted),
                (QWEN, 256) => (
                    Some(one(heterollm::paper::MLLM_NPU_SPEED.value)),
                    Kind::Seen,
                ),
                _ => (None, Kind::Simulated),
            };
            let ours = phone.run(name, prompt, &options()).tokens_per_second();
            values.push(value(
                format!("{name}, {prompt} tokens, tokens/s"),
                paper_value,
                ours,
                kind,
            ));
        }
    }
    values.push(value(
        "qwen1.5-1.8b, 1024 tokens, twice HeteroLLM's at 256, tokens/s",
        one(paper::speed_at_1024()),
        phone.run(QWEN, 1024, &options()).tokens_per_second(),
        Kind::Fitted,
    ));
    // MNN on the CPU of either phone.
    let redmi = redmi();
    let over_cpu = |phone: &Phone, prompt| {
        phone.run(QWEN, prompt, &cpu_alone()).seconds / phone.seconds(QWEN, prompt)
    };
    for (what, quote, ours, kind) in [
        (
            "over MNN, Xiaomi 14, 1024 tokens",
            &paper::MNN,
            over_cpu(phone, 1024),
            Kind::Fitted,
        ),
        (
            "over MNN, Xiaomi 14, 64 tokens",
            &paper::SHORT_MNN,
            over_cpu(phone, 64),
            Kind::HeldOut,
        ),
        (
            "over MNN, Redmi K60 Pro, 1024 tokens",
            &paper::REDMI_MNN,
            over_cpu(&redmi, 1024),
            Kind::Seen,
        ),
    ] {
        values.push(value(
            format!("qwen1.5-1.8b {what}, times (§4.2)"),
            one(quote.value),
            ours,
            kind,
        ));
    }
    // Indices of `ENGINES`. Their latency at 1024 tokens lies between those of two workloads of table 4.
    let ours = MODELS.map(|name| phone.seconds(name, 1024));
    for (engine, from, to) in [
        (0, &paper::MLC_FROM, &paper::MLC_TO),
        (1, &paper::LLAMA_CPP_FROM, &paper::LLAMA_CPP_TO),
        (3, &paper::POWERINFER_FROM, &paper::POWERINFER_TO),
        (4, &paper::TFLITE_FROM, &paper::TFLITE_TO),
    ] {
        let ratios = (0..MODELS.len())
            .filter_map(|model| Some(engine_seconds(engine, model, 1024)? / ours[model]));
        let (least, largest) = ends(ratios);
        let name = ENGINES[engine];
        values.push(value(
            format!("over {name}, 1024 tokens, least"),
            one(from.value),
            least,
            Kind::Seen,
        ));
        values.push(value(
            format!("over {name}, 1024 tokens, largest"),
            one(to.value),
            largest,
            Kind::Seen,
        ));
    }
    let redmi = |name: &str, from, to| {
        cited(
            format!("Redmi K60 Pro, 1024 tokens, over {name}, times"),
            from,
            to,
        )
    };
    let short = |name: &str, from, to| cited(format!("64 tokens, over {name}, times"), from, to);
    Section::new(
        "figure-14",
        "Prefill speed. The text states none of the bars, except that one is above 1000. HeteroLLM measured 564 \
         tokens/s of the same system at 256 tokens with a model of 1.8B (its §5.2.1), and states that shortening the \
         prompt from 1024 tokens to 256 halves the speed (its §5.2.2): the speed at 1024 is fitted to twice 564. 564 \
         itself nearly follows from the two times at 256 tokens that were fitted. MNN is simulated as the whole \
         prompt on the CPU, whose rate was fitted to it at 1024 tokens on the Xiaomi 14; on the other phone it nearly \
         follows. The speedup over other engines is their latency at 1024 tokens, interpolated between 800 and 1500 \
         tokens of table 4, divided by the simulated prefill. It nearly follows from table 4, and is too large, since \
         the table includes answers; the error is largest where prefill is fast. PowerInfer-v2 is compared only with \
         the 7B models.",
        values,
    )
    .citing(
        "the text does not state the bars, and table 4, from which the engines' latency is taken above, has neither \
         the Redmi K60 Pro nor 64 tokens",
        vec![
            redmi("llama.cpp", &paper::REDMI_LLAMA_CPP_FROM, &paper::REDMI_LLAMA_CPP_TO),
            redmi("MLC", &paper::REDMI_MLC_FROM, &paper::REDMI_MLC_TO),
            redmi("PowerInfer-v2", &paper::REDMI_POWERINFER_FROM, &paper::REDMI_POWERINFER_TO),
            redmi("TFLite", &paper::REDMI_TFLITE_FROM, &paper::REDMI_TFLITE_TO),
            short("llama.cpp", &paper::SHORT_LLAMA_CPP_FROM, &paper::SHORT_LLAMA_CPP_TO),
            short("MLC", &paper::SHORT_MLC_FROM, &paper::SHORT_MLC_TO),
            short("PowerInfer-v2", &paper::SHORT_POWERINFER_FROM, &paper::SHORT_POWERINFER_TO),
            short("TFLite", &paper::SHORT_TFLITE, &paper::SHORT_TFLITE),
            cited("all engines, lengths and phones, mean, times faster", &paper::FASTER, &paper::FASTER),
        ],
    )
}

pub(super) fn figure_15(phone: &Phone) -> Section {
    let all = |options: &Options| phone.run(QWEN, 1024, options);
    let (kept, none) = (
        all(&Options {
            prune: 0.0,
            ..options()
        }),
        all(&Options {
            prune: 1.0,
            ..options()
        }),
    );
    let [late, energy] = [
        1.0 - none.seconds / kept.seconds,
        1.0 - none.joules / kept.joules,
    ]
    .map(|less| 100.0 * less);
    let mut values = vec![
        value(
            "latency of all shadows, % (§3.3)",
            one(paper::SHADOWS_LATENCY.value),
            late,
            Kind::Fitted,
        ),
        value(
            "energy of all shadows, % (§3.3)",
            one(paper::SHADOWS_ENERGY.value),
            energy,
            Kind::HeldOut,
        ),
    ];
    let redmi = redmi();
    for prompt in [64, 256, 1024] {
        let joules = |options: &Options| redmi.run(QWEN, prompt, options).joules;
        let (ours, cpu) = (joules(&options()), joules(&cpu_alone()));
        values.push(value(
            format!("qwen1.5-1.8b on the 8 Gen 2, {prompt} tokens, J"),
            None,
            ours,
            Kind::Simulated,
        ));
        values.push(value(
            format!("the CPU alone over that, {prompt} tokens"),
            None,
            cpu / ours,
            Kind::Simulated,
        ));
    }
    let of = |tokens: usize, name: &str, from, to| {
        cited(format!("{tokens} tokens, {name} over it, times"), from, to)
    };
    Section::new("figure-15", "Energy on the Redmi K60 Pro. The power of the CPU is assumed.", values).citing(
        "neither the bars nor the engines' energy or power are in the text, so that no ratio can be computed",
        vec![
            of(1024, "llama.cpp", &paper::ENERGY_LLAMA_CPP_FROM, &paper::ENERGY_LLAMA_CPP_TO),
            of(1024, "MLC", &paper::ENERGY_MLC_FROM, &paper::ENERGY_MLC_TO),
            of(1024, "TFLite", &paper::ENERGY_TFLITE_FROM, &paper::ENERGY_TFLITE_TO),
            of(64, "llama.cpp", &paper::SHORT_ENERGY_LLAMA_CPP_FROM, &paper::SHORT_ENERGY_LLAMA_CPP_TO),
            of(64, "MLC", &paper::SHORT_ENERGY_MLC_FROM, &paper::SHORT_ENERGY_MLC_TO),
            of(64, "TFLite", &paper::SHORT_ENERGY_TFLITE_FROM, &paper::SHORT_ENERGY_TFLITE_TO),
            cited("all engines and lengths, mean, times less energy", &paper::FRUGAL, &paper::FRUGAL),
        ],
    )
}
