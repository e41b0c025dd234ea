//! Prompts with their answers: figure 1 and table 4.

use super::paper::{ENGINES, LLAMA_CPP, MODELS, TABLE_4, Workload};
use super::{Phone, QWEN, geometric_mean, options, paper, range};
use crate::papers::{Cited, Kind, Section, one, value};
use triad_plan::prefill::Options;

/// Returns the tokens of a workload's answer, which the paper does not state: Qwen1.5-1.8B's row minus the simulated
/// prefill.
fn answer(phone: &Phone, workload: &Workload, window: usize) -> f64 {
    let options = Options {
        window: Some(window),
        ..options()
    };
    let prefill = phone.run(QWEN, workload.prompt, &options).seconds;
    ((workload.seconds[0] - prefill) / phone.token(QWEN, workload.prompt)).max(0.0)
}

/// Returns the seconds of a workload on each of [`MODELS`], with an NPU window of `window` bytes.
fn seconds(phone: &Phone, workload: &Workload, window: usize) -> [f64; 5] {
    let answer = answer(phone, workload, window);
    let options = Options {
        window: Some(window),
        ..options()
    };
    MODELS.map(|name| {
        phone.run(name, workload.prompt, &options).seconds
            + answer * phone.token(name, workload.prompt)
    })
}

pub(super) fn figure_1(phone: &Phone) -> Section {
    let share = range(&paper::PREFILL_SHARE_FROM, &paper::PREFILL_SHARE_TO);
    let of = |workload: &Workload| {
        let decode = answer(phone, workload, usize::MAX) * phone.token(QWEN, workload.prompt);
        let all = workload.engines[LLAMA_CPP][0].expect("llama.cpp runs Qwen1.5-1.8B");
        let what = format!(
            "{} ({} tokens), prefill of all, %",
            workload.name, workload.prompt
        );
        value(what, share, 100.0 * (1.0 - decode / all), Kind::Seen)
    };
    Section::new(
        "figure-1",
        "§2.1, Qwen1.5-1.8B on llama.cpp: its latency is cited from table 4, the time of its answer is simulated. The \
         length of answers is that of table 4, fitted to the row of the paper's system, so that these values are \
         marked as seen.",
        TABLE_4.iter().map(of).collect(),
    )
}

pub(super) fn table_4(phone: &Phone) -> Section {
    let mut values = Vec::new();
    let all = TABLE_4.map(|workload| seconds(phone, &workload, usize::MAX));
    for (workload, ours) in TABLE_4.iter().zip(&all) {
        for (place, ours) in ours.iter().enumerate() {
            // HeteroLLM's order-sensitivity was interpreted, and the window was disabled, after seeing this table.
            let kind = if place == 0 { Kind::Fitted } else { Kind::Seen };
            let what = format!(
                "{}, {} ({} tokens), s",
                MODELS[place], workload.name, workload.prompt
            );
            values.push(value(what, one(workload.seconds[place]), *ours, kind));
        }
    }
    for (workload, ours) in TABLE_4.iter().zip(&all) {
        for ((engine, other), printed) in ENGINES.iter().zip(workload.engines).zip(workload.faster)
        {
            let ratios = other
                .iter()
                .zip(ours)
                .filter_map(|(other, ours)| Some((*other)? / ours));
            let mean = geometric_mean(ratios).expect("an engine runs some model");
            let what = format!("{}, over {engine}, geometric mean", workload.name);
            values.push(value(what, one(printed), mean, Kind::Seen));
        }
    }
    // With the window that the paper states, a comparison is not meaningful: see below.
    for (place, ours) in seconds(phone, &TABLE_4[0], phone.0.window())
        .into_iter()
        .enumerate()
        .skip(3)
    {
        values.push(value(
            format!("{} with a window of 4 GiB, 2wiki, s", MODELS[place]),
            None,
            ours,
            Kind::Simulated,
        ));
    }
    let cited = TABLE_4.iter().flat_map(|workload| {
        ENGINES
            .iter()
            .zip(workload.engines)
            .flat_map(move |(engine, seconds)| {
                MODELS
                    .iter()
                    .zip(seconds)
                    .filter_map(move |(model, seconds)| {
                        let what = format!("{model}, {}, {engine}, s", workload.name);
                        Some(Cited {
                            what,
                            paper: one(seconds?),
                        })
                    })
            })
    });
    Section::new(
        "table-4",
        "Prefill and answer, end to end, on the Xiaomi 14. The paper does not state the length of answers: it is \
         fitted to Qwen1.5-1.8B's row. The other models were seen when the cost of a matmul on the NPU was chosen, \
         and when the window was disabled: the 7B models have 6.5 and 7 GB of linear layers, and with a window of 4 \
         GiB the rest would run on the CPU, many times slower than the paper's result. The speedup over an engine is \
         its cited latency divided by the simulated one; the means follow from the rows above. §4.3 states ranges of \
         the same ratios on LongBench in which llama.cpp's and MLC's are swapped: by the table, 23.0 to 46.2 is \
         MLC's.",
        values,
    )
    .citing("other engines, whose kernels and formats neither paper describes", cited.collect())
}
