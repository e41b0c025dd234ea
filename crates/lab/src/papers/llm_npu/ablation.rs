//! Figure 17: each technique in addition to the previous ones, and the naive port.

use super::paper::{LLAMA_CPP, MODELS, engine_seconds};
use super::{Phone, options, paper, range};
use crate::papers::quotes::Quote;
use crate::papers::{Kind, Section, Value, one, value};
use triad_plan::prefill::{Options, Techniques};

/// Tokens of the prompt.
const PROMPT: usize = 512;
/// The models of the figure, indices of [`MODELS`].
const FIGURE: [usize; 3] = [0, 1, 3];

/// Gains of the techniques for one model.
struct Steps {
    name: &'static str,
    /// Latency relative to llama.cpp, without any technique.
    naive: f64,
    /// Speedup factor.
    chunk_sharing: f64,
    shadow: f64,
    /// Reduction in percent.
    out_of_order: f64,
}

fn steps(phone: &Phone, model: usize) -> Steps {
    let name = MODELS[model];
    let seconds = |chunk_sharing, shadow, out_of_order| {
        let techniques = Techniques {
            chunk_sharing,
            shadow,
            out_of_order,
            ..Techniques::ALL
        };
        phone
            .run(
                name,
                PROMPT,
                &Options {
                    techniques,
                    ..options()
                },
            )
            .seconds
    };
    let naive = seconds(false, false, false);
    let [chunk, outlier, order] = [
        (true, false, false),
        (true, true, false),
        (true, true, true),
    ]
    .map(|(one, two, three)| seconds(one, two, three));
    Steps {
        name,
        naive: naive / engine_seconds(LLAMA_CPP, model, PROMPT).expect("llama.cpp runs all models"),
        chunk_sharing: naive / chunk,
        shadow: chunk / outlier,
        out_of_order: 100.0 * (1.0 - order / outlier),
    }
}

pub(super) fn figure_17(phone: &Phone) -> Section {
    let all = FIGURE.map(|model| steps(phone, model));
    // Times to build graphs are Gemma-2B's, and the window was disabled for the 7B models after seeing table 4.
    let kind = |name: &str, builds: bool| match name {
        "llama-2-7b" => Kind::Seen,
        "gemma-2b" if builds => Kind::Seen,
        _ => Kind::HeldOut,
    };
    let of = |what: &str, paper: (f64, f64), builds: bool, ours: fn(&Steps) -> f64| {
        let value = |steps: &Steps| {
            value(
                format!("{}, {what}", steps.name),
                paper,
                ours(steps),
                kind(steps.name, builds),
            )
        };
        all.iter().map(value).collect::<Vec<_>>()
    };
    let naive = of(
        "naive port, times as long as llama.cpp",
        range(&paper::NAIVE_FROM, &paper::NAIVE_TO),
        true,
        |steps| steps.naive,
    );
    let mut chunk_sharing = of(
        "chunk-sharing, times faster",
        range(&paper::CHUNK_SHARING_FROM, &paper::CHUNK_SHARING_GEMMA),
        true,
        |steps| steps.chunk_sharing,
    );
    let shadow = of(
        "shadow, times faster",
        range(&paper::SHADOW_FROM, &paper::SHADOW_TO),
        false,
        |steps| steps.shadow,
    );
    let order = of(
        "out of order, % less",
        range(&paper::OUT_OF_ORDER_FROM, &paper::OUT_OF_ORDER_TO),
        false,
        |steps| steps.out_of_order,
    );
    // The ranges are over these three models: each end is the number of one of them.
    let mut ends = vec![
        least(&chunk_sharing, &paper::CHUNK_SHARING_FROM),
        least(&shadow, &paper::SHADOW_FROM),
        largest(&shadow, &paper::SHADOW_TO),
        least(&order, &paper::OUT_OF_ORDER_FROM),
        largest(&order, &paper::OUT_OF_ORDER_TO),
    ];
    chunk_sharing[1].paper = Some(one(paper::CHUNK_SHARING_GEMMA.value));
    let mut values = [naive, chunk_sharing, shadow, order].concat();
    values.append(&mut ends);
    Section::new(
        "figure-17",
        "Ablation at 512 tokens, each technique in addition to the previous ones. The text states ranges over three \
         models, and that chunk-sharing gains the most for Gemma-2B. The ends of a range are compared with the \
         minimum and the maximum of the simulated values. llama.cpp is cited, not simulated: its latency at 512 \
         tokens, including answers, is on the line through 600 and 800 tokens of table 4. Times to build graphs are \
         Gemma-2B's (§2.3), and LLaMA-2-7B has no window, as in table 4: values that depend on either are marked as \
         seen.",
        values,
    )
}

/// Compares the minimum of some values with the lower end of the paper's range.
fn least(values: &[Value], end: &Quote) -> Value {
    let value = values
        .iter()
        .min_by(|one, other| one.ours.total_cmp(&other.ours))
        .expect("three models");
    Value {
        what: format!("least: {}", value.what),
        paper: Some(one(end.value)),
        ..value.clone()
    }
}

/// Compares the maximum of some values with the upper end of the paper's range.
fn largest(values: &[Value], end: &Quote) -> Value {
    let value = values
        .iter()
        .max_by(|one, other| one.ours.total_cmp(&other.ours))
        .expect("three models");
    Value {
        what: format!("largest: {}", value.what),
        paper: Some(one(end.value)),
        ..value.clone()
    }
}
