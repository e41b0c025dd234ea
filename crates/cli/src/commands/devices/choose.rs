//! `triad devices --choose`: times the kernels of the CPU and keeps the fastest.

use anyhow::Result;
use triad_frontend::kernels::{self, KernelChoices, KernelRate};

use triad_console::{output, progress};

/// Times the kernels, keeps the fastest, and prints them.
pub fn run(json: bool) -> Result<()> {
    let choices = {
        let _spinner = progress::spinner("timing kernels");
        kernels::time_again()
    };
    if json {
        output::json(&choices)
    } else {
        output::text(&text(&choices))
    }
}

/// Returns a table with a row for each kernel, with its rate in each setting.
fn text(choices: &KernelChoices) -> String {
    // The first product is timed in all settings.
    let first = choices
        .products
        .first()
        .and_then(|choice| choice.timed.first());
    let settings = first.map_or(&[][..], |timed| &timed.rates);
    let setting = |rate: &KernelRate| {
        let plural = if rate.threads == 1 { "" } else { "s" };
        format!(
            "{} thread{plural}, {}",
            rate.threads,
            if rate.from_memory { "memory" } else { "cache" }
        )
    };
    let names: Vec<_> = settings.iter().map(setting).collect();
    let names = ["product", "kernel"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .chain(["used", "gain"]);
    let mut rows = Vec::new();
    for choice in &choices.products {
        for timed in &choice.timed {
            let rate = |setting: &KernelRate| {
                let is_this = |rate: &&KernelRate| {
                    (rate.threads, rate.from_memory) == (setting.threads, setting.from_memory)
                };
                let rate = timed.rates.iter().find(is_this);
                rate.map_or("-".into(), |rate| {
                    format!("{:.1} Gop/s", rate.operations_per_second / 1e9)
                })
            };
            let is_chosen = timed.kernel == choice.chosen;
            let used = if is_chosen { "yes" } else { "" };
            let gain = if is_chosen {
                format!("{:.2} ×", choice.gain)
            } else {
                String::new()
            };
            let labels = [choice.product.clone(), timed.kernel.clone()];
            rows.push(
                labels
                    .into_iter()
                    .chain(settings.iter().map(rate))
                    .chain([used.into(), gain])
                    .collect(),
            );
        }
    }
    let names: Vec<_> = names.collect();
    format!(
        "{}\ngain: compared with the kernel for the processor's best instructions",
        output::table(&names, 2, &rows)
    )
}
