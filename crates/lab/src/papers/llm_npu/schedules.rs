//! The paper's schedule and those of other systems, on the same tasks and costs.

use super::{Phone, in_order, model, options};
use crate::papers::{Kind, Section, value};
use crate::simulated::systems::System;
use triad_plan::prefill::Prefill;

/// Tokens of the prompt: four chunks.
const PROMPT: usize = 1024;

pub(super) fn schedules(phone: &Phone) -> Section {
    let mut values = Vec::new();
    for name in ["qwen1.5-1.8b", "llama-2-7b"] {
        let mut speed = |by: &str, prefill: &Prefill| {
            let speed = prefill.run().tokens_per_second();
            values.push(value(
                format!("{name}, {by}, tokens/s"),
                None,
                speed,
                Kind::Simulated,
            ));
        };
        let plain = Prefill::new(&phone.0, &model(name), PROMPT, &in_order());
        speed("in order", &plain);
        for system in System::ALL {
            let mut ordered = plain.clone();
            ordered.tasks.dag = system
                .order(&plain.tasks)
                .dag(&plain.tasks.dag, |task| plain.tasks.dag.seconds(task));
            speed(system.name(), &ordered);
        }
        speed(
            "equation 5",
            &Prefill::new(&phone.0, &model(name), PROMPT, &options()),
        );
    }
    Section::new(
        "schedules",
        "The schedules of MLLM and PowerInfer-2 on the tasks of llm.npu, with its costs, at 1024 tokens: the effect \
         of the order only. PowerInfer-2's clusters are neurons, and its CPU prepares weights; here clusters are \
         chunks, and weights are ready. The speedup of llm.npu over PowerInfer-2 as a system is in figure 14 and \
         table 4.",
        values,
    )
}
